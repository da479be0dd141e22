"""Options of the data sets of requests: type, default and meaning of each.

They are the sections `data.streaming`, `data.movielens`, `data.kuairand`,
`data.yambda` and `data.log` of a config; the last one is of 'csv' and
'parquet'. The modules of data/requests/ import their class from here; what a
file holds is judged there.
"""

import dataclasses

_MOST_ROWS = 2**31 - 3  # a table has two rows more
_LONGEST_AGE = 2**31 - 1  # seconds
# Option of the generated stream -> the options that bound it.
_BOUNDS = {
  'items': ' (data.streaming.categories is the least)',
  'users x 200 items': ' (data.streaming.categories is the least)',
  'categories_per_user': ' (data.streaming.categories is the most)',
  'train_steps': ' (data.streaming.steps is the most)',
  'inference_candidates': ' (data.streaming.inference_events is the most)',
}


@dataclasses.dataclass(frozen=True)
class StreamOptions:
  """What stream is generated; the defaults are those of MLPerf, but for users.

  Attributes:
    users: number of users; the stream of a user does not depend on it.
    items: number of items, 0 for 200 a user: an item is then met some 50 times
      at any scale.
    categories: ranges of `items // categories` ids each; ids beyond them never
      occur.
    categories_per_user: categories of a user, in an order, the best rated
      first.
    steps: steps 0 .. steps - 1 are of training and inference.
    train_steps: how many of them are of training.
    activity: chance that a user is active in a step.
    events: mean of the events in a step.
    deviation: their deviation, before the least number is minded.
    train_candidates: candidates that are asked for in a training step and in
      the evaluation; a step has one event more at least.
    inference_candidates: candidates that are asked for in an inference step, of
      its events.
    inference_events: events of an inference step. All of them count for the
      tastes of later steps, and a part of the usual size becomes history.
    seed: seed of everything.
    true_time: whether times tell the step. They do not in the original, and a
      model can then tell steps apart by what users do alone.
    step_seconds: seconds from one step to the next, if times tell the step.
  """

  users: int = 2_000
  items: int = 0
  categories: int = 128
  categories_per_user: int = 4
  steps: int = 100
  train_steps: int = 90
  activity: float = 0.7
  events: float = 100.0
  deviation: float = 25.0
  train_candidates: int = 32
  inference_candidates: int = 2_048
  inference_events: int = 2_048
  seed: int = 0
  true_time: bool = False
  step_seconds: int = 3_600

  def __post_init__(self):
    items = 'items' if self.items else 'users x 200 items'
    for name, value, least, most in (
      ('users', self.users, 1, _MOST_ROWS),
      ('categories', self.categories, 1, _MOST_ROWS),
      (items, self.item_count, self.categories, _MOST_ROWS),
      ('categories_per_user', self.categories_per_user, 1, self.categories),
      ('steps', self.steps, 1, None),
      ('train_steps', self.train_steps, 0, self.steps),
      ('activity', self.activity, 0, 1),
      ('events', self.events, 0, None),
      ('deviation', self.deviation, 0, None),
      ('train_candidates', self.train_candidates, 1, None),
      ('inference_events', self.inference_events, 1, None),
      (
        'inference_candidates',
        self.inference_candidates,
        1,
        self.inference_events,
      ),
      ('seed', self.seed, 0, 2**64 - 1),
      ('step_seconds', self.step_seconds, 1, None),
    ):
      if not least <= value or (most is not None and value > most):
        until = '' if most is None else f' and {most} at most'
        raise ValueError(
          f'data.streaming.{name} is {value}, must be {least} at least{until}'
          f'{_BOUNDS.get(name, "")}'
        )

    last = max(self.steps, self.train_steps + 1)  # after the base step
    if self.true_time and last * self.step_seconds > _LONGEST_AGE:
      raise ValueError(
        f'data.streaming.step_seconds is {self.step_seconds}, and with '
        f'data.streaming.true_time and data.streaming.steps={self.steps} the '
        f'stream takes {last * self.step_seconds:,} seconds, of which '
        f'{_LONGEST_AGE:,} are possible: lower step_seconds or steps'
      )

  @property
  def item_count(self) -> int:
    return self.items or 200 * self.users

  @property
  def items_per_category(self) -> int:
    return self.item_count // self.categories

  @property
  def evaluation_slot(self) -> int:
    """Number of the evaluation among the slots of a user."""
    return self.train_steps + 1


@dataclasses.dataclass(frozen=True)
class MovielensOptions:
  """How the ratings become requests.

  Attributes:
    candidates: candidates of a request; also how many ratings of a user are
      test, and how many valid.
    train_requests: most requests of a user in the training split, the latest
      ones; 0 takes all.
    min_history: fewest ratings of a history; a request with fewer is left out.
    min_count: films with fewer ratings in the training split share the row of
      unknown ones.
    threshold: ratings from it on count as liked.
    rating_label: whether the rating is a second label, for regression.
    user_features: whether the file of the users is read, too: sex, age group,
      occupation and zip code. Layouts with ratings.csv have none.
    asked_at: the time of a request: that of the 'last_event' of its history,
      as in the reference, or of the 'first_candidate'.
    duplicates: 'keep', or 'drop' for all but the first of ratings with equal
      user, film and time.
  """

  candidates: int = 10
  train_requests: int = 0
  min_history: int = 1
  min_count: int = 1
  threshold: float = 3.5
  rating_label: bool = False
  user_features: bool = True
  asked_at: str = 'last_event'
  duplicates: str = 'keep'


@dataclasses.dataclass(frozen=True)
class KuairandOptions:
  """How the logs become requests.

  Attributes:
    candidates: most candidates of a request; a request ends before that where
      the user pauses, and at the end of a split or step.
    pause_s: seconds without an event that end a request; 0 for none.
    history: 'before' ends a history before the moment of the first candidate;
      'order' right before the candidate, so that of a page of videos with one
      time those of the requests before it count.
    asked_at: the time of a request: that of the 'last_event' of its history,
      as in the reference, or of the 'first_candidate'.
    labels: what is predicted, of the eight columns of 0 and 1; 'play_time', in
      seconds and for regression, may be added.
    valid_from: the first day of the split valid, as YYYY-MM-DD.
    test_from: the first day of the split test.
    step_s: seconds of a step of the stream, from the midnight before the first
      event; requests are then in the order of steps. 0 makes no stream.
    random: whether rows of randomly shown videos (is_rand is 1) count, and the
      log of these is read.
    tab: whether the scenario of the app, a number, is a feature of events and
      candidates.
    candidate_tab: whether it is one of candidates alone; not with `tab`.
    request_tab: whether it is one of the context of a request, which then also
      ends where the scenario changes; not with the other two.
    min_history: fewest events of a history; a request with fewer is left out.
    min_count: videos with fewer events in the training split share the row of
      unknown ones.
    duplicates: 'keep', or 'drop' for all but the first of events with equal
      user, video and time.
  """

  candidates: int = 10
  pause_s: int = 1_800
  history: str = 'before'
  asked_at: str = 'last_event'
  labels: tuple[str, ...] = (
    'is_click',
    'is_like',
    'is_follow',
    'is_comment',
    'is_forward',
    'is_hate',
    'long_view',
    'is_profile_enter',
  )
  valid_from: str = '2022-04-22'
  test_from: str = '2022-04-29'
  step_s: int = 0
  random: bool = False
  tab: bool = False
  candidate_tab: bool = False
  request_tab: bool = False
  min_history: int = 1
  min_count: int = 1
  duplicates: str = 'keep'


@dataclasses.dataclass(frozen=True)
class YambdaOptions:
  """How the events become requests.

  Attributes:
    source: 'multi_event' or 'listens' (with the files of the feedback), or
      'auto' for the first of them that is there.
    feedback: event types that histories hold beside listens: 'like', 'dislike',
      'unlike', 'undislike'.
    threshold: percent of a track from which on it counts as listened to; 50 by
      the benchmark. Values above 100 are of tracks played again.
    candidates: most candidates of a request; 1 scores every listen with all
      that lies before it, as MLPerf does.
    pause_s: seconds without a listen that end a request; 0 for none.
    history: 'order' ends a history right before the first candidate, in the
      order of the file; 'before' at the 5 seconds of the candidate, whose other
      events may tell the label.
    asked_at: the time of a request: that of the 'first_candidate', or of the
      'last_event' of its history.
    last_time: the end of the data, in seconds.
    test_s: seconds of the split test.
    valid_s: seconds of the split valid; 0 makes none, and no second gap.
    gap_s: seconds before the splits valid and test that are in no split.
    train_s: seconds before the end of the training split of which the
      candidates are taken; 0 takes all. Histories are longer.
    step_s: seconds of a step of the stream: a day, or 3600 for an hour;
      requests are then in the order of steps. 0 makes no stream.
    watch_time: whether histories hold the seconds that a track was played.
    sort: whether files that are not sorted by user and time are sorted, which
      takes 16 bytes an event more; they are refused otherwise.
    min_history: fewest events of a history; a request with fewer is left out.
    min_count: tracks with fewer events in the training split share the row of
      unknown ones.
  """

  source: str = 'auto'
  feedback: tuple[str, ...] = ('like',)
  threshold: int = 50
  candidates: int = 1
  pause_s: int = 1_800
  history: str = 'order'
  asked_at: str = 'first_candidate'
  last_time: int = 26_000_000
  test_s: int = 86_400
  valid_s: int = 86_400
  gap_s: int = 1_800
  train_s: int = 0
  step_s: int = 86_400
  watch_time: bool = False
  sort: bool = False
  min_history: int = 1
  min_count: int = 1


@dataclasses.dataclass(frozen=True)
class LogOptions:
  """How the rows of a log of your own become requests.

  A condition is the column of 0 and 1, 'rating >= 4', which holds from that
  number on, or 'event == buy', which holds for that text. A name in front, as
  in 'liked: rating >= 4', is what the action or label is called.

  Attributes:
    user: the column of the user's id.
    item: the column of the item's id; the feature is called like it.
    time: the column of the time; '' is for files whose rows are in order.
    time_unit: unit of numeric times: 's', 'ms', 'us' or 'ns'.
    features: columns of the log that are further features of its items.
    candidate_features: columns that are features of candidates alone, such as
      the place at which something was shown.
    request_features: columns that are features of a whole request, such as the
      device; it has those of its first row, and where no column says which
      rows it has, it ends where one of them changes.
    items: the CSV or Parquet file (or directory) with a row for each item; ''
      has none.
    items_id: its column of the item's id; '' is called as in the log.
    item_features: columns of it that are features of items.
    users: the file with a row for each user; '' has none.
    users_id: its column of the user's id; '' is called as in the log.
    user_features: columns of it that are features of users.
    unlisted: items and users of the log that those files lack are an 'error',
      or their features are 'missing'.
    actions: what a user may have done with an item, conditions.
    labels: what is predicted of a candidate, conditions.
    regression: columns of numbers that are predicted as well; with a name in
      front, as in 'seconds: watch_time', if they are called otherwise.
    watch_time: the column of the seconds that an item was watched; '' is for
      logs without one.
    weight: the column of the weight of a candidate, zero or more; '' gives all
      of them weight 1.
    candidate_if: the condition of rows that are candidates; '' is all.
    event_if: the condition of rows that are events of later histories; '' is
      all.
    request: the column of the request that a row was shown in; '' cuts
      requests at pauses.
    candidates: most candidates of a request, where no column says which they
      are.
    pause_s: seconds without a candidate that end a request, where no column
      says it; 0 for none.
    history: 'before' ends a history before the moment of the first candidate;
      'order' right before the candidate.
    asked_at: the time of a request: that of the 'last_event' of its history, or
      of the 'first_candidate'.
    valid_from: where the split valid begins: an ISO date, seconds since 1970,
      or a share of the candidates such as '0.8'; '' has no such split.
    test_from: where the split test begins, in the same way.
    step_s: seconds of a step of the stream, from the midnight (UTC) before the
      first row; requests are then in the order of steps. 0 makes no stream.
    min_history: fewest events of a history; a request with fewer is left out.
    min_count: items with fewer rows in the training split share the row of
      unknown ones.
    duplicates: 'keep', or 'drop' for all but the first of rows with equal user,
      item and time.
    delimiter: the character between the cells of CSV files, 'tab' or '::'; ''
      is the one of a tab, ';', '|', ',' and '::' that gives the columns that
      are named.
    header: whether CSV files have a header: 'yes', 'no', or ('auto') unless all
      columns are named by numbers.
    decimal: the decimal mark of the numbers in CSV files, '.' or ','.
  """

  user: str = 'user'
  item: str = 'item'
  time: str = 'time'
  time_unit: str = 's'
  features: tuple[str, ...] = ()
  candidate_features: tuple[str, ...] = ()
  request_features: tuple[str, ...] = ()
  items: str = ''
  items_id: str = ''
  item_features: tuple[str, ...] = ()
  users: str = ''
  users_id: str = ''
  user_features: tuple[str, ...] = ()
  unlisted: str = 'error'
  actions: tuple[str, ...] = ()
  labels: tuple[str, ...] = ('label',)
  regression: tuple[str, ...] = ()
  watch_time: str = ''
  weight: str = ''
  candidate_if: str = ''
  event_if: str = ''
  request: str = ''
  candidates: int = 10
  pause_s: int = 1_800
  history: str = 'before'
  asked_at: str = 'last_event'
  valid_from: str = '0.8'
  test_from: str = '0.9'
  step_s: int = 0
  min_history: int = 1
  min_count: int = 1
  duplicates: str = 'keep'
  delimiter: str = ''
  header: str = 'auto'
  decimal: str = '.'
