"""Taobao's UserBehavior.csv as examples: is this what a user does next?

The events of a user, in order of time, are e_1 .. e_n. The last `most` of them
count (200, as published), of which the very last is the target, and the h
before it the history. Examples are windows of `history` events (T, 20) and a
candidate, as TBSM's code draws them:

- A training user gives k positive and k negative windows, k by h as in
  `count_windows`. A positive window ends right before an event of the history,
  which is its candidate. A negative one ends with an event of the history; its
  candidate is a random item, shown when the next event took place. Ends are
  drawn uniformly, with replacement, from those with T events before them, or
  from the last one where h is smaller than that.
- A validation user gives one window of each kind, if h is 10 or more.
- A test user gives one: the target (label 1), or with probability 1/2 a random
  item (label 0), after the last T events of the history.

A user who tests is one whose last event is later than that of the share
`train_quantile` of all users. What else differs between the splits:

- 'published': users who validate also train, on other windows. The random item
  of a test user may be any but the target, also one of the history; that of a
  window is none of the user's last `most` events.
- 'corrected': users who validate do not train, and a random item is none that
  its user ever touched, before or after.

In both, the candidate of a positive window may be in its own history: people
come back to what they have seen.

Not as published: random items are drawn from all items of the log, where the
published code draws those of windows from the items of anybody's last `most`
events; item 0 is an item; windows have the seconds from their events to the
impression, and no padding.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from genrec_jax.data import remote_files
from genrec_jax.data.ranking import behaviour_rows, raw, taobao_sort
from genrec_jax.data.ranking.counted_draws import (
  NoItemLeftError,
  draw_below,
  draw_uniform,
  draw_unmet_items,
  make_keys,
)

NAMES = (*behaviour_rows.NAMES, 'history_behaviour')
SPLITS = ('corrected', 'published')
_FILES = ('UserBehavior.csv', 'UserBehavior.csv.gz')
_BLOCK = 1 << 18  # events that are in memory at a time, and at least one user
_CHUNK = 1 << 12  # rows that a reader yields at once
# Windows of each kind, by tens of events in the history; then `points`.
_REGIME = (0, 1, 3, 6)
# The fewest events of a user who gives an example, with the target.
_LEAST = {'train': 11, 'valid': 11, 'test': 2}
# Each use of draws has a sequence of its own.
_VALID, _POSITIVE, _NEGATIVE, _LABEL, _ITEM = range(5)


@dataclasses.dataclass(frozen=True)
class TaobaoOptions:
  """How examples are made of the log.

  Attributes:
    split: 'corrected' or 'published'.
    history: the most events of a window, T.
    most: events of a user that count, with the target; the last ones.
    points: positive windows of a user with a long history, and negative ones.
    train_quantile: share of the users that do not test, those whose last event
      is earlier.
    valid_share: share of these that validate.
    memory_mb: megabytes of the rows that are sorted at a time.
    negative_times: 'refuse' rows with a time below zero, or 'drop' them.
    seed: of all draws.
  """

  split: str = 'corrected'
  history: int = 20
  most: int = 200
  points: int = 10
  train_quantile: float = 0.7
  valid_share: float = 0.1
  memory_mb: int = 256
  negative_times: str = 'refuse'
  seed: int = 0

  def __post_init__(self):
    for name, least in (
      ('history', 1),
      ('most', 2),
      ('points', 1),
      ('memory_mb', 0),
      ('seed', 0),
    ):
      if not getattr(self, name) >= least:
        raise ValueError(
          f'data.taobao.{name} must be at least {least}, not '
          f'{getattr(self, name)}'
        )
    for name, words in (
      ('split', SPLITS),
      ('negative_times', ('refuse', 'drop')),
    ):
      if getattr(self, name) not in words:
        raise ValueError(
          f'data.taobao.{name} is {getattr(self, name)!r}, must be one of '
          f'{", ".join(words)}'
        )
    for name in ('train_quantile', 'valid_share'):
      if not 0 < getattr(self, name) < 1:
        raise ValueError(
          f'data.taobao.{name} is {getattr(self, name)}, must be above 0 and '
          'below 1'
        )


@dataclasses.dataclass(frozen=True)
class UserSplits:
  """Which users are in which split.

  Attributes:
    masks: 'train', 'valid' and 'test' -> `[U]` bool; a user may be in two of
      them where the split is 'published'.
    tests_after: the seconds that the last events of test users are later than.
  """

  masks: dict[str, np.ndarray]
  tests_after: int


def find_file(path: str | pathlib.Path) -> pathlib.Path:
  """The log at a path, which is that of the file or of its directory."""
  path = remote_files.locate(path)
  if path.is_file():
    return path
  for name in _FILES:
    if (path / name).is_file():
      return path / name
  raise FileNotFoundError(
    f'{path}: no file {_FILES[0]} (data.path); give the file, or the directory '
    'that holds it'
  )


def count_windows(history: np.ndarray, points: int) -> np.ndarray:
  """`[U]` positive windows of training users, and as many negative ones.

  >>> count_windows(np.array([9, 10, 20, 30, 40, 199]), 10).tolist()
  [0, 1, 3, 6, 10, 10]

  Args:
    history: `[U]` events before the target that count.
    points: windows of a long history.
  """
  regime = np.array([*_REGIME, points])
  return regime[np.minimum(history // 10, len(_REGIME))]


def assign_users(
  log: taobao_sort.SortedLog, options: TaobaoOptions
) -> UserSplits:
  """Divides the users among the splits.

  Args:
    log: the sorted events.
    options: of the examples.
  """
  place = int(len(log.users) * options.train_quantile)
  after = int(np.sort(log.last_time)[place])
  test = log.last_time > after
  draw = draw_uniform(options.seed, _VALID, log.users)
  valid = ~test & (draw < options.valid_share)
  train = ~test if options.split == 'published' else ~test & ~valid
  return UserSplits({'train': train, 'valid': valid, 'test': test}, after)


class TaobaoClicks:
  """The examples of a log; as a context, it sorts the log once for all reads.

  Outside of a context, each read sorts anew. The sorted events are in a scratch
  directory, which is removed when the context or the read ends.
  """

  def __init__(
    self,
    path: pathlib.Path,
    options: TaobaoOptions,
    scratch: pathlib.Path,
    log: Callable[[str], None] = print,
  ):
    """Reads nothing yet.

    Args:
      path: of UserBehavior.csv.
      options: of the examples.
      scratch: the directory of the scratch directory.
      log: called with progress messages.
    """
    self.path, self.options = path, options
    self._scratch, self._log = scratch, log
    self._stack = self._sorted = None

  def __enter__(self) -> 'TaobaoClicks':
    self._stack = contextlib.ExitStack()
    return self

  def __exit__(self, *error) -> None:
    stack, self._stack, self._sorted = self._stack, None, None
    stack.__exit__(*error)

  def read_chunks(
    self, column_names: Sequence[str], split: str
  ) -> Iterator[raw.RawChunk]:
    """The examples of a split as a reader yields them, user by user.

    Args:
      column_names: those that are wanted.
      split: 'train', 'valid' or 'test'.

    Raises:
      ValueError: the split has no examples; the message says what to change.
    """
    with self._open() as (log, users):
      _check_rows(self.path, split, log, users.masks[split], self.options)
      for first, stop in _cut_blocks(log.offsets, users.masks[split]):
        block = _Block(self.path, log, first, stop, self.options)
        owner = np.flatnonzero(users.masks[split][first:stop])
        shown = block.draw_impressions(split, owner)
        for begin in range(0, len(shown), _CHUNK):
          some = shown.take(slice(begin, begin + _CHUNK))
          yield behaviour_rows.make_chunk(
            block.events,
            some,
            column_names,
            lambda i, some=some: (
              f'{self.path}, user {some.user[i]}, time {some.time[i]}'
            ),
          )

  @contextlib.contextmanager
  def _open(self) -> Iterator[tuple[taobao_sort.SortedLog, UserSplits]]:
    if self._stack is None:
      with self._sort() as found:
        yield found
      return
    if self._sorted is None:
      self._sorted = self._stack.enter_context(self._sort())
    yield self._sorted

  @contextlib.contextmanager
  def _sort(self) -> Iterator[tuple[taobao_sort.SortedLog, UserSplits]]:
    with taobao_sort.sort_log(
      self.path,
      self._scratch,
      memory_mb=self.options.memory_mb,
      negative_times=self.options.negative_times,
      log=self._log,
    ) as log:
      users = assign_users(log, self.options)
      for line in describe_users(log, users, self.options):
        self._log(line)
      yield log, users


def describe_users(
  log: taobao_sort.SortedLog, users: UserSplits, options: TaobaoOptions
) -> list[str]:
  """Lines for a log: the rules of the split, its users and its examples.

  Args:
    log: the sorted events.
    users: of `assign_users`.
    options: of the examples.
  """
  shared = int((users.masks['train'] & users.masks['valid']).sum())
  unmet = {
    'corrected': 'random candidates are items that their user never touched',
    'published': (
      'random candidates of training and validation are none of the last '
      f'{options.most} events of their user, those of the test may be any but '
      'the target'
    ),
  }[options.split]
  lines = [
    f'taobao, data.taobao.split={options.split!r}: {len(log.users):,} users, '
    f'{len(log.catalogue.items):,} items, {log.offsets[-1]:,} events; users '
    f'whose last event is later than {users.tests_after} test; {shared:,} '
    f'users both validate and train; {unmet}'
  ]
  size = np.minimum(np.diff(log.offsets), options.most) - 1
  for split, mask in users.masks.items():
    rows = int(_count_rows(split, size[mask], options).sum())
    lines.append(f'{split}: {mask.sum():,} users, {rows:,} examples')
  return lines


def _count_rows(split: str, history: np.ndarray, options) -> np.ndarray:
  """`[U]` examples of users with `history` events before their target."""
  if split == 'test':
    return (history > 0).astype(np.int64)
  windows = count_windows(history, options.points)
  return 2 * (np.minimum(windows, 1) if split == 'valid' else windows)


def _check_rows(
  path: pathlib.Path,
  split: str,
  log: taobao_sort.SortedLog,
  mask: np.ndarray,
  options: TaobaoOptions,
) -> None:
  """Refuses a split without examples, in words that say what to change."""
  least, counts = _LEAST[split], np.diff(log.offsets)
  able = counts >= least
  if options.most >= least and (able & mask).any():
    return
  if options.most < least:
    remedy = (
      f'set data.taobao.most, which is {options.most}, to {least} or more'
    )
  elif not able.any():
    remedy = 'give a log whose users have more events'
  else:
    remedy = {
      'train': 'raise data.taobao.train_quantile, or lower '
      'data.taobao.valid_share',
      'valid': 'raise data.taobao.valid_share or data.taobao.train_quantile',
      'test': 'lower data.taobao.train_quantile',
    }[split]
  raise ValueError(
    f'{path}, {split} split: holds no rows, since examples of this split are '
    f'made of users with {least} events or more, of whom the log has '
    f'{able.sum():,} among {len(able):,} users, and this split '
    f'{(able & mask).sum():,} among {mask.sum():,}; {remedy}'
  )


def _cut_blocks(
  offsets: np.ndarray, mask: np.ndarray
) -> Iterator[tuple[int, int]]:
  """Ranges of users with about `_BLOCK` events, and some user of a split."""
  first = 0
  while first < len(mask):
    limit = offsets[first] + _BLOCK
    stop = int(np.searchsorted(offsets, limit, 'right')) - 1
    stop = max(stop, first + 1)  # a user is never divided
    if mask[first:stop].any():
      yield first, stop
    first = stop


class _Block:
  """The events of some users that lie side by side, and their examples."""

  def __init__(self, path, log: taobao_sort.SortedLog, first, stop, options):
    self._path, self._options = path, options
    self._catalogue = log.catalogue
    self._users = log.users[first:stop]
    self._offsets = log.offsets[first : stop + 1] - log.offsets[first]
    columns = log.read_events(int(log.offsets[first]), int(log.offsets[stop]))
    self._code = columns['item']
    self.events = behaviour_rows.PastEvents(
      log.catalogue.items[self._code],
      columns['category'],
      columns['time'],
      {'behaviour': np.array(taobao_sort.BEHAVIOURS)[columns['behaviour']]},
    )
    counts = np.diff(self._offsets)
    self._history = np.minimum(counts, options.most) - 1
    self._last = self._offsets[1:] - 1  # the target of each user
    self._first = self._last - self._history  # that counts

  def draw_impressions(
    self, split: str, owner: np.ndarray
  ) -> behaviour_rows.Impressions:
    """The examples of some of the users, in their order.

    Args:
      split: of them.
      owner: numbers of users of the block, ascending.
    """
    draw_rows = self._draw_tests if split == 'test' else self._draw_windows
    user, at, begin, stop, label, place = draw_rows(split, owner)
    item, category = self.events.item[at], self.events.category[at]
    negative = np.flatnonzero(label == 0)
    code = self._draw_items(split, user[negative], place[negative])
    item[negative] = self._catalogue.items[code]
    category[negative] = self._catalogue.categories[code]
    return behaviour_rows.Impressions(
      self._users[user], item, category, self.events.time[at], label, begin,
      stop - begin,
    )  # fmt: skip

  def _draw_windows(self, split: str, owner: np.ndarray):
    """Of each row: user, candidate's event, begin, stop, label, number."""
    options, history = self._options, self._history[owner]
    count = _count_rows(split, history, options) // 2
    user = np.repeat(owner, count)
    starts = np.repeat(np.cumsum(count) - count, count)
    window = np.arange(len(user)) - starts
    if split == 'valid':
      window = window - 1  # a user who also trains has other windows there
    last = self._history[user] - 1
    parts = []
    for use, label in ((_POSITIVE, 1), (_NEGATIVE, 0)):
      # The event that is the candidate, or that is the last before it.
      least = np.minimum(options.history - (1 - label), last)
      draw = draw_uniform(options.seed, use, self._users[user], window)
      end = self._first[user] + least + draw_below(draw, last + 1 - least)
      stop = end if label else end + 1
      begin = np.maximum(stop - options.history, self._first[user])
      # A negative is shown when the event took place that it replaces.
      parts.append((user, stop, begin, stop, np.full(len(user), label), window))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind='stable')
    return [column[order] for column in columns]

  def _draw_tests(self, split: str, owner: np.ndarray):
    """As `_draw_windows`."""
    user = owner[self._history[owner] > 0]
    at = self._last[user]
    begin = np.maximum(at - self._options.history, self._first[user])
    draw = draw_uniform(self._options.seed, _LABEL, self._users[user])
    label = (draw < 0.5).astype(np.int64)
    return user, at, begin, at, label, np.zeros_like(user)

  def _draw_items(self, split: str, user: np.ndarray, place) -> np.ndarray:
    """`[M]` numbers of items that the users may not have touched."""
    counts = np.diff(self._offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(owner))
    if self._options.split == 'published':
      first = self._last if split == 'test' else self._first
      at = at[at >= np.repeat(first, counts)]
    items = len(self._catalogue.items)
    met = make_keys(owner[at], self._code[at], items)
    seed, known = self._options.seed, self._users[user]
    try:
      return draw_unmet_items(
        met,
        user,
        items,
        lambda number, some: draw_uniform(
          seed, _ITEM, known[some], place[some], number
        ),
      )
    except NoItemLeftError as error:
      raise ValueError(
        f'{self._path}: user {self._users[error.owner]} has touched all '
        f'{items:,} items, so that there is no negative for this user; leave '
        'the user out'
      ) from None
