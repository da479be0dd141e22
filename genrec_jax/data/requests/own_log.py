"""A log of one's own as requests: what will a user do with the items shown?

Every row of the CSV or Parquet files is a user, an item and what came of it. It
is a candidate once and an event ever after, unless `candidate_if` and
`event_if` say otherwise. Time divides the splits, and a history ends before the
moment at which its candidates are asked for, so that it holds nothing of what
comes later, whatever the order of the rows is. Rows of one user and moment keep
their order.

Files are read a block of rows at a time. What memory keeps of a row are
numbers, 4 bytes for each feature, label and action and some 30 beside them, and
of each distinct id its text. Sorting copies them.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import numpy as np

from genrec_jax.config.request_set_rules import check_options
from genrec_jax.config.request_sets import LogOptions
from genrec_jax.data import remote_files, source_files
from genrec_jax.data.quoting import quote
from genrec_jax.data.requests import (
  cutting,
  log_files,
  log_rows,
  log_tables,
)
from genrec_jax.data.requests.log_rows import LogPlan, LogRows, of_column
from genrec_jax.data.requests.ordering import sort_events
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.data.requests.rows import describe_feature
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import (
  ACTION,
  AGE,
  WATCH_TIME,
  WEIGHT,
  LabelSpec,
  RequestSpec,
)

_SECOND = 10**9
_TAKEN = (ACTION, AGE, WATCH_TIME, WEIGHT)  # names in a batch
_DAY = 86_400
_MOST_STEPS = np.iinfo(np.int32).max


def load(
  path: str | pathlib.Path,
  options: LogOptions | None = None,
  format_: str = 'csv',
) -> RequestDataset:
  """Reads a log of one's own.

  Args:
    path: a file, or a directory of files that are read in the order of their
      names.
    options: see there.
    format_: 'csv' or 'parquet'.

  Raises:
    ValueError: the files cannot be read, or give no request; the message says
      where and what to change.
  """
  options = options or LogOptions()
  check_options('log', options)
  plan = LogPlan.from_options(options)
  _check_names(plan)
  files = log_files.open_files(
    str(path), 'data.path', plan.columns, options, format_
  )
  items = log_tables.open_table(options, 'item')
  users = log_tables.open_table(options, 'user')
  paths = [x for some in (files, items, users) if some for x in some.paths]
  before = source_files.stat_files(paths)
  rows = log_rows.read_rows(files, plan)
  of_items = log_tables.read_features(items, files, rows, options, 'item')
  of_users = log_tables.read_features(users, files, rows, options, 'user')
  source_files.check_unchanged(before)
  name = remote_files.locate(path).name
  return _make_dataset(name, path, plan, rows, of_items, of_users)


def _check_names(plan: LogPlan) -> None:
  """Refuses options that contradict each other."""
  o = plan.options
  for what in ('item', 'user'):
    path, names = getattr(o, f'{what}s'), getattr(o, f'{what}_features')
    if bool(path) != bool(names):
      one, other = f'data.log.{what}s', f'data.log.{what}_features'
      if not path:
        one, other = other, one
      raise ValueError(
        f'{one} is set and {other} is empty; set both or none of them'
      )
  if o.step_s and not o.time:
    raise ValueError(
      'data.log.step_s makes a stream of steps of time, and the log has no '
      "times (data.log.time=''); set it to 0"
    )
  of_items = [o.item, *o.features, *o.item_features, *o.candidate_features]
  of_context = [o.user, *o.user_features, *o.request_features]
  for names in (of_items, of_context):
    for name in names:
      if names.count(name) > 1:
        raise ValueError(
          f'{name!r} is two features in data.log (features, item_features, '
          'candidate_features, request_features, user_features or an id); name '
          'it once, or rename one of the columns'
        )
  labels = [x.name for x in (*plan.labels, *plan.regression)]
  for name in (*of_items, *labels):
    if name in _TAKEN or [*of_items, *labels].count(name) > 1:
      raise ValueError(
        f'{name!r} is the name of something else in a request; call the label '
        "another, as in 'NAME: COLUMN', or rename the column of the feature"
      )
  told = {x.column for x in (*plan.labels, *plan.regression)}
  if both := told & set(o.request_features):
    raise ValueError(
      f'{sorted(both)[0]!r} is predicted (data.log.labels or '
      'data.log.regression) and would be known as one of '
      'data.log.request_features; take it out of one of them'
    )
  if both := set(of_items) & set(of_context):
    raise ValueError(
      f'{sorted(both)[0]!r} is a feature of items and of users or requests in '
      'data.log; rename one of the columns'
    )


@dataclasses.dataclass(frozen=True)
class _Log:
  """N rows by user and time.

  Attributes:
    user_codes: `[U]` the number of each user's id.
    user_ids: `[U]` the ids, ascending.
    offsets: `[U + 1]` where the rows of each lie.
    columns: as in `LogRows`, with the labels as 'label NAME'.
    splits: `[N]` which split a row is of, by its time.
    steps: `[N]` int32 steps of the stream, or None.
  """

  user_codes: np.ndarray
  user_ids: np.ndarray
  offsets: np.ndarray
  columns: dict[str, np.ndarray]
  splits: np.ndarray
  steps: np.ndarray | None

  @property
  def moment(self) -> np.ndarray:
    return self.columns['moment']

  @functools.cached_property
  def events_before(self) -> np.ndarray:
    """`[N + 1]` how many rows in front of each become events."""
    return np.concatenate([[0], np.cumsum(self.columns['is_event'])])


def _make_dataset(
  name: str,
  path: object,
  plan: LogPlan,
  rows: LogRows,
  of_items: log_tables.Features,
  of_users: log_tables.Features,
) -> RequestDataset:
  """Sorts the rows, cuts requests and encodes values."""
  o = plan.options
  keys = ('valid_from', 'test_from') if o.valid_from else ('test_from',)
  log = _sort_rows(path, rows, o, keys)
  parts = _cut_splits(path, log, o, ('train', *(x[:-5] for x in keys)))
  vocabs, encoded = _encode_items(log, rows, of_items, o)
  context_vocabs, context = _encode_users(
    log, rows, of_users, o, parts['train'].user
  )
  asking_vocabs, asking = _encode_requests(log, rows, o, parts['train'])
  is_event = log.columns['is_event']
  shared = [x for x in encoded if x not in o.candidate_features]
  events = EventStore(
    log.events_before[log.offsets],
    {x: encoded[x][is_event] for x in shared},
    log.columns['action'][is_event],
    log.moment[is_event] // _SECOND if o.time else None,
    log.columns['watch_time'][is_event] if o.watch_time else None,
  )
  return RequestDataset(
    name=name,
    spec=RequestSpec(
      items=tuple(describe_feature(x, vocabs[x]) for x in shared),
      context=tuple(
        describe_feature(k, v)
        for k, v in (context_vocabs | asking_vocabs).items()
      ),
      actions=tuple((x.name, 1 << i) for i, x in enumerate(plan.actions)),
      labels=(
        *(LabelSpec(x.name) for x in plan.labels),
        *(LabelSpec(x.name, 'regression') for x in plan.regression),
      ),
      watch_time=bool(o.watch_time),
      timed=bool(o.time),
      candidates=tuple(
        describe_feature(x, vocabs[x]) for x in o.candidate_features
      ),
    ),
    events=events,
    context=context,
    splits={
      split: _make_requests(
        log, cut, events, encoded, asking, list(rows.labels), o
      )
      for split, cut in parts.items()
    },
    vocabs=vocabs | context_vocabs | asking_vocabs,
    user_ids=log.user_ids,
  )


def _sort_rows(path, rows: LogRows, o: LogOptions, borders) -> _Log:
  columns = rows.columns | {f'label {k}': x for k, x in rows.labels.items()}
  ids = rows.codes[o.user].list_ids()
  order = np.argsort(ids, kind='stable')
  rank = np.empty(len(ids), np.int64)
  rank[order] = np.arange(len(ids))
  user = rank[columns.pop(of_column(o.user)) - 1]
  users, offsets, columns = sort_events(
    user, columns['moment'], columns, o.duplicates, of_column(o.item)
  )
  moment = columns['moment']
  asked = moment[columns['is_candidate']]
  if not len(asked):
    raise ValueError(
      f'{path}: no row is a candidate; change data.log.candidate_if'
    )
  borders = log_rows.find_borders(o, asked, borders)
  steps = None
  if o.step_s:
    day = _DAY * _SECOND
    begin = int(moment.min()) // day * day
    if (int(moment.max()) - begin) // (o.step_s * _SECOND) > _MOST_STEPS:
      raise ValueError(
        f'{path}: with data.log.step_s={o.step_s} there are more than '
        f'{_MOST_STEPS:,} steps; raise it'
      )
    steps = ((moment - begin) // (o.step_s * _SECOND)).astype(np.int32)
  return _Log(
    order[users] + 1,
    ids[order[users]],
    offsets,
    columns,
    np.searchsorted(borders, moment, side='right'),
    steps,
  )


def _cut_splits(
  path, log: _Log, o: LogOptions, names: Sequence[str]
) -> dict[str, cutting.Cut]:
  """The requests of each split, as positions of rows."""
  cut = _cut_requests(path, log, o)
  # Histories have the rows that are events alone.
  begin = log.offsets[cut.user]
  lengths = log.events_before[cut.end] - log.events_before[begin]
  cut = cut.select(np.flatnonzero(lengths >= o.min_history))
  of_split = log.splits[cut.positions[cut.offsets[:-1]]]
  parts = {}
  for number, name in enumerate(names):
    part = cut.select(np.flatnonzero(of_split == number))
    cutting.require_requests(
      name,
      part,
      path,
      'change data.log.valid_from or data.log.test_from, or lower '
      'data.log.min_history, data.log.pause_s or data.log.candidates',
    )
    parts[name] = cutting.order_by_time(part, log.moment) if o.step_s else part
  return parts


def _cut_requests(path, log: _Log, o: LogOptions) -> cutting.Cut:
  positions = np.flatnonzero(log.columns['is_candidate'])
  moment, most = log.moment, o.candidates
  marks = [log.splits, *([log.steps] if o.step_s else [])]
  if o.request:
    positions, group = _gather_requests(
      log, positions, [log.columns['request'], *marks]
    )
    _require_one_value(path, log, positions, group, o)
    marks, most = [group], len(positions)
  else:
    marks += [log.columns[of_column(x)] for x in o.request_features]
  breaks = np.zeros(len(positions), bool)
  for mark in marks:
    breaks[1:] |= np.diff(mark if o.request else mark[positions]) != 0
  if o.pause_s and o.time and not o.request:
    breaks[1:] |= np.diff(moment[positions]) > o.pause_s * _SECOND
  return cutting.cut_requests(
    log.offsets,
    positions,
    most=most,
    breaks=breaks,
    moment=moment if o.history == 'before' else None,
  )


def _gather_requests(
  log: _Log, positions: np.ndarray, marks: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """The candidates of each user and mark together, at the first of them.

  Args:
    log: the rows.
    positions: `[C]` of the candidates, ascending.
    marks: `[N]` whole numbers each, which candidates of a request share.

  Returns:
    `[C]` positions, and `[C]` the number of the request of each.
  """
  group = np.searchsorted(log.offsets, positions, side='right')
  for mark in marks:
    wide = group * (int(mark.max()) + 1) + mark[positions]
    group = np.unique(wide, return_inverse=True)[1]
  first = np.full(int(group.max()) + 1, len(group))
  np.minimum.at(first, group, np.arange(len(group)))
  order = np.argsort(first[group], kind='stable')
  return positions[order], group[order]


def _require_one_value(
  path, log: _Log, positions: np.ndarray, group: np.ndarray, o: LogOptions
) -> None:
  """Refuses requests whose candidates differ in a feature of requests.

  Args:
    path: of the log, for messages.
    log: the rows.
    positions: `[C]` of the candidates, those of a request side by side.
    group: `[C]` the number of the request of each.
    o: the options.
  """
  for name in o.request_features:
    values = log.columns[of_column(name)][positions]
    differ = (np.diff(values) != 0) & (np.diff(group) == 0)
    if differ.any():
      at = positions[np.argmax(differ)]
      user = np.searchsorted(log.offsets, at, side='right') - 1
      raise ValueError(
        f'{path}: a request (data.log.request={o.request!r}) of user '
        f'{quote(str(log.user_ids[user]))} has rows with several values of '
        f'{name!r}, which data.log.request_features names; name it in '
        'data.log.candidate_features, or mend the rows'
      )


def _encode_items(
  log: _Log, rows: LogRows, of_items: log_tables.Features, o: LogOptions
) -> tuple[dict[str, Vocab], dict[str, np.ndarray]]:
  """Vocabularies, and `[N]` rows, of the features of candidates."""
  vocabs, encoded = {}, {}
  item = log.columns[of_column(o.item)]
  for name in (o.item, *o.features, *o.item_features, *o.candidate_features):
    if name in of_items.codes:
      codes, values = of_items.codes[name], of_items.columns[name][item]
    else:
      codes, values = rows.codes[name], log.columns[of_column(name)]
    counts = np.bincount(values[log.splits == 0], minlength=len(codes.texts))
    vocabs[name], table = codes.make_vocab(
      counts, o.min_count if name == o.item else 1
    )
    encoded[name] = table[values]
  return vocabs, encoded


def _encode_users(
  log: _Log,
  rows: LogRows,
  of_users: log_tables.Features,
  o: LogOptions,
  trained: np.ndarray,
) -> tuple[dict[str, Vocab], dict[str, np.ndarray]]:
  """Vocabularies, and `[U]` rows, of the features of users.

  Args:
    log: the rows.
    rows: as they were read.
    of_users: what the file of the users says.
    o: the options.
    trained: numbers of the users who have requests to train on.
  """
  is_known = np.zeros(len(log.user_codes), bool)
  is_known[trained] = True
  found = {o.user: (rows.codes[o.user], log.user_codes)}
  for name, codes in of_users.codes.items():
    found[name] = codes, of_users.columns[name][log.user_codes]
  vocabs, context = {}, {}
  for name, (codes, values) in found.items():
    counts = np.bincount(values[is_known], minlength=len(codes.texts))
    vocabs[name], table = codes.make_vocab(counts)
    context[name] = table[values]
  return vocabs, context


def _encode_requests(
  log: _Log, rows: LogRows, o: LogOptions, trained: cutting.Cut
) -> tuple[dict[str, Vocab], dict[str, np.ndarray]]:
  """Vocabularies, and `[N]` rows, of the features of requests."""
  vocabs, encoded = {}, {}
  for name in o.request_features:
    codes, values = rows.codes[name], log.columns[of_column(name)]
    of_trained = values[trained.positions[trained.offsets[:-1]]]
    counts = np.bincount(of_trained, minlength=len(codes.texts))
    vocabs[name], table = codes.make_vocab(counts)
    encoded[name] = table[values]
  return vocabs, encoded


def _make_requests(
  log: _Log,
  cut: cutting.Cut,
  events: EventStore,
  encoded: dict[str, np.ndarray],
  asking: dict[str, np.ndarray],
  labels: Sequence[str],
  o: LogOptions,
) -> Requests:
  """The requests of a split, whose histories are of `events`."""
  positions, first = cut.positions, cut.positions[cut.offsets[:-1]]
  end = log.events_before[cut.end]
  time = None
  if o.time and o.asked_at == 'last_event':
    time = events.time[end - 1]
  elif o.time:
    time = log.moment[first] // _SECOND
  return Requests(
    user=cut.user,
    end=end,
    offsets=cut.offsets,
    items={name: x[positions] for name, x in encoded.items()},
    labels={name: log.columns[f'label {name}'][positions] for name in labels},
    weight=log.columns['weight'][positions] if o.weight else None,
    time=time,
    step=log.steps[first] if o.step_s else None,
    context={name: x[first] for name, x in asking.items()},
  )
