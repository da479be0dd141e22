"""Says in a sentence what is wrong with requests, before anything reads them.

JAX would clamp a row that a table does not have, and nobody would see that a
user's time runs backwards.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np

from genrec_jax.data.quoting import quote
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)

CONTEXT_DTYPE = np.int32  # of users and of requests
# Of the columns, by field; those of `items`, `labels` and `context` are of one
# type each.
EVENT_DTYPES = {
  'offsets': np.int64,
  'items': np.int32,
  'action': np.int32,
  'time': np.int64,
  'watch_time': np.float32,
}
REQUEST_DTYPES = {
  'user': np.int32,
  'end': np.int64,
  'offsets': np.int64,
  'items': np.int32,
  'labels': np.float32,
  'weight': np.float32,
  'time': np.int64,
  'step': np.int32,
  'context': CONTEXT_DTYPE,
}
_CHUNK = 1 << 22  # values that are looked at together
_INT32 = np.iinfo(np.int32)


def check_dataset(dataset: RequestDataset) -> None:
  """Refuses data that batches would make nonsense of.

  Raises:
    ValueError: with the user, the position and what to change.
  """
  _check_users(dataset)
  _check_events(dataset, dataset.events)
  for name, split in dataset.splits.items():
    _check_requests(dataset, name, split)


def _check_column(what: str, column, dtype, size: int) -> None:
  """Refuses a column of another type or length."""
  if column is None:
    raise ValueError(f'{what}: there is no such column, but the spec wants it')
  if column.dtype != dtype or column.shape != (size,):
    raise ValueError(
      f'{what} is {column.dtype} {column.shape}, must be {np.dtype(dtype)} '
      f'{(size,)}'
    )


def _check_offsets(what: str, offsets: np.ndarray, size: int) -> None:
  _check_column(f'{what}.offsets', offsets, np.int64, size + 1)
  if offsets[0] or (np.diff(offsets) < 0).any():
    raise ValueError(f'{what}.offsets do not ascend from 0; sort by owner')


def _find_first(size: int, is_bad: Callable[[slice], np.ndarray]) -> int | None:
  """The first place of which `is_bad` says so, without a copy of everything."""
  for begin in range(0, size, _CHUNK):
    bad = is_bad(slice(begin, min(begin + _CHUNK, size)))
    if bad.any():
      return begin + int(np.argmax(bad))
  return None


def _check_rows(
  what: str, column, dtype, size: int, rows: int, name: Callable[[int], str]
) -> None:
  """Refuses values that are no row of a table of so many rows."""
  _check_column(what, column, dtype, size)
  bad = _find_first(
    size, lambda some: (column[some] < 0) | (column[some] >= rows)
  )
  if bad is not None:
    raise ValueError(
      f'{name(bad)} has {what} {column[bad]}, but the table has rows 0 to '
      f'{rows - 1}; encode it with the vocabulary of the table, or give the '
      'feature more rows'
    )


def _check_users(dataset: RequestDataset) -> None:
  spec, users = dataset.spec, dataset.events.users
  if dataset.user_ids.shape != (users,):
    raise ValueError(
      f'{len(dataset.user_ids)} user_ids for the events of {users} users; give '
      'each user one'
    )
  for feature in (*spec.candidate_features, *spec.context):
    vocab = dataset.vocabs.get(feature.source)
    # Row 0 is what is missing; the last may be for what is unknown.
    if vocab is not None and len(vocab) >= feature.rows:
      raise ValueError(
        f'feature {feature.name!r} has {feature.rows} rows for a vocabulary of '
        f'{len(vocab)} values; give it at least {len(vocab) + 1}'
      )
  of_requests = _list_context_of_requests(dataset)
  for column, feature in spec.context_columns.items():
    if column not in of_requests:
      _check_rows(
        f'context {column!r}',
        dataset.context.get(column),
        CONTEXT_DTYPE,
        users,
        feature.rows,
        lambda u: _name_user(dataset, u),
      )


def _list_context_of_requests(dataset: RequestDataset) -> set[str]:
  """Columns of the context that belong to requests and not to users."""
  spec, owned = dataset.spec, {}
  for split, requests in dataset.splits.items():
    owned |= dict.fromkeys(requests.context, split)
  wanted = {*spec.context_columns}
  if extra := sorted({*dataset.context, *owned} - wanted):
    raise ValueError(
      f'context {extra[0]!r} is not a feature of the spec; add it to '
      'RequestSpec.context, or leave the column out'
    )
  if both := sorted({*dataset.context} & {*owned}):
    raise ValueError(
      f'context {both[0]!r} is a column of the users and one of the requests '
      f'of {owned[both[0]]}; it belongs to one of the two, so take it out of '
      'the other'
    )
  # Files of candidates find both by their names.
  if same := sorted({f.name for f in spec.candidate_features} & {*owned}):
    raise ValueError(
      f'context {same[0]!r} of the requests of {owned[same[0]]} has the name '
      'of a feature of candidates; give one of them another name'
    )
  return {*owned}


def _check_events(dataset: RequestDataset, events: EventStore) -> None:
  spec, size = dataset.spec, len(events)
  _check_offsets('events', events.offsets, len(events.offsets) - 1)

  def name(position: int) -> str:
    user = int(np.searchsorted(events.offsets, position, 'right')) - 1
    number = position - int(events.offsets[user])
    return f'{_name_user(dataset, user)}, event {number} (from 0)'

  for feature in spec.items:
    _check_rows(
      feature.name,
      events.items.get(feature.name),
      EVENT_DTYPES['items'],
      size,
      feature.rows,
      name,
    )
  for feature in spec.candidates:
    if feature.name in events.items:
      raise ValueError(
        f'the events have a column {feature.name!r}, which is a feature of '
        'candidates alone; take the column out, or name the feature in '
        'RequestSpec.items instead'
      )
  _check_column('events.action', events.action, EVENT_DTYPES['action'], size)
  known = sum(bit for _, bit in spec.actions)
  bad = _find_first(
    size, lambda some: (events.action[some].astype(np.int64) & ~known) != 0
  )
  if bad is not None:
    raise ValueError(
      f'{name(bad)} has action {events.action[bad]}, but the actions have the '
      f'bits {", ".join(str(b) for _, b in spec.actions) or "none"}; name the '
      'other bits in RequestSpec.actions, or take them out'
    )
  if events.time is not None:
    _check_column('events.time', events.time, EVENT_DTYPES['time'], size)
    bad = _find_backwards(events)
    if bad is not None:
      raise ValueError(
        f'{name(bad)} is at time {events.time[bad]}, before the event in front '
        f"of it at {events.time[bad - 1]}; sort each user's events by time"
      )
  elif spec.timed:
    raise ValueError(
      'RequestSpec.timed says that ages tell something, but the events have no '
      'times; give them, or set timed=False'
    )
  if spec.watch_time:
    seconds = events.watch_time
    dtype = EVENT_DTYPES['watch_time']
    _check_column('events.watch_time', seconds, dtype, size)
    bad = _find_first(size, functools.partial(_is_wrong, seconds, _is_amount))
    if bad is not None:
      raise ValueError(
        f'{name(bad)} has a watch time of {seconds[bad]} seconds; it must be '
        'finite and not negative, 0 for one that is not known'
      )


def _find_backwards(events: EventStore) -> int | None:
  """The first event that is earlier than the one before it of its user."""
  first = np.unique(events.offsets)  # of each user who has any

  def is_early(some: slice) -> np.ndarray:
    before = max(some.start - 1, 0)
    early = np.diff(events.time[before : some.stop]) < 0
    if not some.start:
      early = np.concatenate([[False], early])
    low, high = np.searchsorted(first, [some.start, some.stop])
    early[first[low:high] - some.start] = False
    return early

  return _find_first(len(events), is_early)


def _is_amount(values: np.ndarray) -> np.ndarray:
  return np.isfinite(values) & (values >= 0)


def _is_zero_or_one(values: np.ndarray) -> np.ndarray:
  return (values == 0) | (values == 1)


def _is_wrong(values: np.ndarray, is_good, some: slice) -> np.ndarray:
  return ~is_good(values[some])


def _name_user(dataset: RequestDataset, user: int) -> str:
  return f'user {quote(dataset.user_ids[user].item())}'


def _check_requests(
  dataset: RequestDataset, name: str, split: Requests
) -> None:
  events, size = dataset.events, len(split)
  for field in ('user', 'end', 'time', 'step'):
    column = getattr(split, field)
    if column is not None:
      _check_column(f'{name}.{field}', column, REQUEST_DTYPES[field], size)
  _check_offsets(name, split.offsets, size)

  def name_request(request: int) -> str:
    user = _name_user(dataset, split.user[request])
    return f'{name}: request {request} (from 0) of {user}'

  bad = _find_first(
    size,
    lambda some: (split.user[some] < 0) | (split.user[some] >= events.users),
  )
  if bad is not None:
    raise ValueError(
      f'{name}: request {bad} (from 0) is of user number {split.user[bad]}, of '
      f'{events.users} users; a user without events needs offsets as well'
    )

  def is_outside(some: slice) -> np.ndarray:
    user, end = split.user[some], split.end[some]
    return (end < events.offsets[user]) | (end > events.offsets[user + 1])

  bad = _find_first(size, is_outside)
  if bad is not None:
    user = split.user[bad]
    raise ValueError(
      f'{name_request(bad)}: the history ends at position {split.end[bad]}; '
      f'the events of this user are at {events.offsets[user]} to '
      f'{events.offsets[user + 1]}; a history ends one beyond an event of its '
      'own user'
    )
  of_requests = _list_context_of_requests(dataset)
  for column, feature in dataset.spec.context_columns.items():
    if column in of_requests:
      _check_rows(
        f'{name}.context {column!r}',
        split.context.get(column),
        REQUEST_DTYPES['context'],
        size,
        feature.rows,
        name_request,
      )
  for fault in _find_time_faults(dataset, split, name_request):
    raise ValueError(fault)
  _check_candidates(dataset, name, split, name_request)


def _find_time_faults(
  dataset: RequestDataset, split: Requests, name: Callable[[int], str]
) -> Iterator[str]:
  """What is wrong with the times and steps of requests, in sentences."""
  events, size = dataset.events, len(split)
  if split.step is not None and (np.diff(split.step) < 0).any():
    bad = int(np.argmax(np.diff(split.step) < 0)) + 1
    yield (
      f'{name(bad)} has step {split.step[bad]}, after one of step '
      f'{split.step[bad - 1]}; sort the requests by step'
    )
  if not dataset.spec.timed:
    return
  if split.time is None:
    yield (
      'RequestSpec.timed says that ages tell something, but the requests have '
      'no times; give them, or set timed=False'
    )
    return

  def measure_age(some: slice, first: bool) -> np.ndarray:
    """From the first or last event of each history; 0 without any."""
    begin, end = events.offsets[split.user[some]], split.end[some]
    has_any = end > begin
    age = np.zeros(len(end), np.int64)
    at = (begin if first else end - 1)[has_any]
    age[has_any] = split.time[some][has_any] - events.time[at]
    return age

  bad = _find_first(size, lambda some: measure_age(some, False) < 0)
  if bad is not None:
    yield (
      f'{name(bad)} is at time {split.time[bad]}, before the last event of its '
      f'history at {events.time[split.end[bad] - 1]}; end the history before '
      'that event, or ask later'
    )
  bad = _find_first(size, lambda some: measure_age(some, True) > _INT32.max)
  if bad is not None:
    yield (
      f'{name(bad)} is {measure_age(slice(bad, bad + 1), True)[0]} seconds '
      f"after its user's first event, more than {_INT32.max}; are the times in "
      'milliseconds? give seconds'
    )


def _check_candidates(dataset, name, split, name_request) -> None:
  spec, size = dataset.spec, split.candidates

  def name_candidate(position: int) -> str:
    request = int(np.searchsorted(split.offsets, position, 'right')) - 1
    number = position - int(split.offsets[request])
    return f'{name_request(request)}, candidate {number} (from 0)'

  for feature in spec.candidate_features:
    _check_rows(
      feature.name,
      split.items.get(feature.name),
      REQUEST_DTYPES['items'],
      size,
      feature.rows,
      name_candidate,
    )
  # What is to be predicted has no labels at all.
  for label in spec.labels if split.labels else ():
    values = split.labels.get(label.name)
    what = f'{name}.labels {label.name!r}'
    _check_column(what, values, REQUEST_DTYPES['labels'], size)
    is_binary = label.kind == 'binary'
    is_good = _is_zero_or_one if is_binary else np.isfinite
    bad = _find_first(size, functools.partial(_is_wrong, values, is_good))
    if bad is not None:
      remedy = (
        "it must be 0 or 1; its kind is 'regression' if it may be any number"
        if is_binary
        else 'it must be a finite number; leave the candidate out otherwise'
      )
      raise ValueError(
        f'{name_candidate(bad)} has label {label.name!r} {values[bad]}; '
        f'{remedy}'
      )
  if (weight := split.weight) is not None:
    _check_column(f'{name}.weight', weight, REQUEST_DTYPES['weight'], size)
    bad = _find_first(size, functools.partial(_is_wrong, weight, _is_amount))
    if bad is not None:
      raise ValueError(
        f'{name_candidate(bad)} has weight {weight[bad]}; it must be finite '
        'and not negative, 0 for a candidate that does not count'
      )
