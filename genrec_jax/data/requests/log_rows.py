"""The rows of a log of one's own -> columns of numbers."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from genrec_jax.config.request_sets import LogOptions
from genrec_jax.data import decimals, fields
from genrec_jax.data.ranking import annotations, raw
from genrec_jax.data.requests.conditions import (
  Condition,
  list_texts,
  parse_conditions,
  read_numbers,
)
from genrec_jax.data.requests.log_files import Codes, LogFiles

_MOST_ACTIONS = 31  # bits of an int32 that is not negative
_SECOND = 10**9
_LATEST = 9 * _SECOND  # in the year 2255; beyond, nanoseconds have no room
_EARLIEST = 10 * 365 * 86_400  # in 1979, before anybody kept logs
_UNITS = {'s': '', 'ms': 'milli', 'us': 'micro', 'ns': 'nano'}


@dataclasses.dataclass(frozen=True)
class LogPlan:
  """What is read of a log.

  Attributes:
    options: of the data set.
    actions: what is a bit of an event.
    labels: what is predicted, of 0 and 1.
    regression: what is predicted, of numbers.
    candidate_if: which rows are candidates, None for all.
    event_if: which rows become events, None for all.
  """

  options: LogOptions
  actions: tuple[Condition, ...]
  labels: tuple[Condition, ...]
  regression: tuple[Condition, ...]
  candidate_if: Condition | None
  event_if: Condition | None

  @classmethod
  def from_options(cls, options: LogOptions) -> 'LogPlan':
    """Reads the conditions.

    Raises:
      ValueError: options contradict each other.
    """

    def read_one(key: str) -> Condition | None:
      text = getattr(options, key)
      return parse_conditions(f'data.log.{key}', [text])[0] if text else None

    plan = cls(
      options,
      parse_conditions('data.log.actions', options.actions),
      parse_conditions('data.log.labels', options.labels),
      parse_conditions('data.log.regression', options.regression),
      read_one('candidate_if'),
      read_one('event_if'),
    )
    for label in plan.regression:
      if label.sign:
        raise ValueError(
          f'data.log.regression: {label.name!r} is a condition, and what is '
          'predicted as a number is a column; name it in data.log.labels'
        )
    if not plan.labels and not plan.regression:
      raise ValueError(
        'data.log.labels and data.log.regression are both empty; name what is '
        'to be predicted'
      )
    if len(plan.actions) > _MOST_ACTIONS:
      raise ValueError(
        f'data.log.actions are {len(plan.actions)}; {_MOST_ACTIONS} are '
        'possible'
      )
    return plan

  @property
  def codes(self) -> tuple[str, ...]:
    """The columns that are read as texts, that of the user first."""
    o = self.options
    return (
      o.user,
      o.item,
      *o.features,
      *o.candidate_features,
      *o.request_features,
    )

  @property
  def columns(self) -> dict[str, str]:
    """Column -> the key that names it."""
    o, found = self.options, {}
    for key in ('user', 'item', 'time', 'watch_time', 'weight', 'request'):
      if getattr(o, key):
        found.setdefault(getattr(o, key), f'data.log.{key}')
    for key in ('features', 'candidate_features', 'request_features'):
      for name in getattr(o, key):
        found.setdefault(name, f'data.log.{key}')
    for condition in (
      *self.actions,
      *self.labels,
      *self.regression,
      self.candidate_if,
      self.event_if,
    ):
      if condition:
        found.setdefault(condition.column, condition.key)
    return found


@dataclasses.dataclass(frozen=True)
class LogRows:
  """N rows, in the order of the files.

  Attributes:
    codes: column -> the texts that it has.
    columns: name -> `[N]` values: a number for each column of `codes`, and
      'moment' (nanoseconds since 1970, or the number of the row), 'action',
      'is_candidate', 'is_event', and where they are asked for 'watch_time',
      'weight', 'request'.
    labels: name -> `[N]` float32 of each label, anything where a row is no
      candidate.
  """

  codes: dict[str, Codes]
  columns: dict[str, np.ndarray]
  labels: dict[str, np.ndarray]


def of_column(name: str) -> str:
  """The name in `LogRows.columns` of a column of the log."""
  return f'column {name}'


def read_rows(files: LogFiles, plan: LogPlan) -> LogRows:
  """Reads all rows that are a candidate or an event.

  Args:
    files: of the log.
    plan: what is read.

  Raises:
    ValueError: a cell cannot be read; the message says where it is and what to
      change.
  """
  codes = {name: Codes() for name in plan.codes}
  requests, parts = Codes(), {}
  for chunk in files.read(list(plan.columns)):
    part = _read_chunk(chunk, plan, codes, requests)
    kept = part['is_candidate'] | part['is_event']
    for name, values in part.items():
      parts.setdefault(name, []).append(values if kept.all() else values[kept])
  columns = {name: np.concatenate(parts.pop(name)) for name in [*parts]}
  if not len(columns['is_event']):
    raise ValueError(
      f'{files.paths[0]}: no row is a candidate or an event; change '
      'data.log.candidate_if or data.log.event_if'
    )
  if plan.options.time:
    columns['moment'] = _join_moments(columns, files, plan.options)
  else:
    columns['moment'] = np.arange(len(columns['is_event']))
  labels = [x.name for x in (*plan.labels, *plan.regression)]
  return LogRows(
    codes, columns, {name: columns.pop(f'label {name}') for name in labels}
  )


def _read_chunk(chunk, plan: LogPlan, codes, requests) -> dict[str, np.ndarray]:
  o, count = plan.options, len(chunk)
  part = {
    'is_candidate': np.ones(count, bool),
    'is_event': np.ones(count, bool),
  }
  for name, condition in (
    ('is_candidate', plan.candidate_if),
    ('is_event', plan.event_if),
  ):
    if condition:
      part[name] = condition.find(chunk)[0]
  asked = part['is_candidate']
  for name in plan.codes:
    part[of_column(name)] = codes[name].encode(chunk, name)
  for name, what in ((o.user, 'a user'), (o.item, 'an item')):
    _refuse_empty(chunk, name, part[of_column(name)] == 0, f'has {what}')
  if o.time:
    part['seconds'], part['fraction'] = _read_times(chunk, o)
  part['action'] = np.zeros(count, np.int32)
  for number, condition in enumerate(plan.actions):
    part['action'] |= condition.find(chunk)[0].astype(np.int32) << number
  for condition in plan.labels:
    holds, present = condition.find(chunk)
    _refuse_unlabelled(chunk, condition, asked & ~present)
    part[f'label {condition.name}'] = holds.astype(np.float32)
  for label in plan.regression:
    numbers, present = read_numbers(chunk, label.column, label.key)
    _refuse_unlabelled(chunk, label, asked & ~present)
    part[f'label {label.name}'] = np.where(present, numbers, 0).astype(
      np.float32
    )
  if o.watch_time:
    numbers, present = _read_amounts(chunk, o.watch_time, 'data.log.watch_time')
    part['watch_time'] = np.where(present, numbers, 0).astype(np.float32)
  if o.weight:
    numbers, present = _read_amounts(chunk, o.weight, 'data.log.weight')
    _refuse_empty(chunk, o.weight, asked & ~present, 'has a weight')
    part['weight'] = np.where(present, numbers, 0).astype(np.float32)
  if o.request:
    part['request'] = requests.encode(chunk, o.request)
    empty = asked & (part['request'] == 0)
    _refuse_empty(chunk, o.request, empty, 'is of a request')
  return part


def _refuse_empty(chunk, name: str, empty: np.ndarray, rule: str) -> None:
  if empty.any():
    raise ValueError(
      f'{chunk.where(int(np.argmax(empty)))}, column {name!r}: the cell is '
      f'empty, but every row {rule}; fill it in, or remove the row'
    )


def _refuse_unlabelled(chunk, label: Condition, bad: np.ndarray) -> None:
  if bad.any():
    raise ValueError(
      f'{chunk.where(int(np.argmax(bad)))}, column {label.column!r}: the cell '
      f'is empty, but every candidate has the label {label.name!r} '
      f'({label.key}); fill it in, or leave the row out of the candidates with '
      'data.log.candidate_if'
    )


def _read_amounts(chunk, name: str, key: str) -> tuple[np.ndarray, np.ndarray]:
  numbers, present = read_numbers(chunk, name, key)
  bad = present & (numbers < 0)
  if bad.any():
    at = int(np.argmax(bad))
    raise ValueError(
      f'{chunk.quote_cell(at, name, f"{numbers[at]:g}")} ({key}) is below 0; '
      'mend it, or leave the cell empty'
    )
  return numbers, present


def _read_times(chunk: raw.RawChunk, options: LogOptions):
  """`[N]` int64 seconds and `[N]` int32 nanoseconds after them."""
  key = 'data.log.time'
  times, good = annotations.parse_exact_times(
    chunk, options.time, key, options.time_unit
  )
  if not good.all():
    at = int(np.argmin(good))
    cell = list_texts(chunk, options.time)[at]
    problem = fields.explain_date(cell)
    raise ValueError(
      f'{chunk.where(at)}, column {options.time!r}: {problem}'
      if problem
      else f'{chunk.quote_cell(at, options.time, cell)} ({key}) is not a time '
      f'({_UNITS[options.time_unit]}seconds since 1970, zero or more, or an '
      f'ISO date){decimals.hint_comma(cell)}; mend or remove the row'
    )
  late = times.seconds >= _LATEST
  if late.any():
    at = int(np.argmax(late))
    cell = list_texts(chunk, options.time)[at]
    raise ValueError(
      f'{chunk.quote_cell(at, options.time, cell)} lies after the year 2254 if '
      f'times are in {options.time_unit!r}; say their unit with '
      '--config.data.log.time_unit=ms, us or ns'
    )
  fraction = times.fraction
  if fraction is None:
    fraction = np.zeros(len(chunk), np.int32)
  return times.seconds, fraction


def _join_moments(columns, files: LogFiles, options: LogOptions) -> np.ndarray:
  """`[N]` int64 nanoseconds since 1970; takes the columns that say it."""
  seconds = columns.pop('seconds')
  # Of all rows: units may be mixed.
  if options.time_unit != 's' and seconds.min() < _EARLIEST:
    every = 'all times are' if seconds.max() < _EARLIEST else 'a time is'
    raise ValueError(
      f'{files.paths[-1]}: with data.log.time_unit={options.time_unit!r} '
      f'{every} before 1980, the earliest {seconds.min():,} seconds after 1970 '
      'began; if times are in seconds, set --config.data.log.time_unit=s, if '
      'in milliseconds, ms; mend rows of another unit than the others'
    )
  return seconds * _SECOND + columns.pop('fraction')


def find_row(files: LogFiles, name: str, text: str) -> str:
  """Where a text stands first in a column."""
  for chunk in files.read([name]):
    texts = list_texts(chunk, name)
    if text in texts:
      return chunk.where(texts.index(text))
  return str(files.paths[0])


def read_border(text: str, key: str) -> tuple[float | None, int | None]:
  """Where a split begins: a share of the candidates, or a time in nanoseconds.

  >>> read_border('0.8', 'test_from'), read_border('1970-01-02', 'test_from')
  ((0.8, None), (None, 86400000000000))

  Raises:
    ValueError: the text is neither.
  """
  try:
    share = float(text)
  except ValueError:
    share = 1.0
  if 0 < share < 1:
    return share, None
  times, good = fields.parse_times([text], 's')
  if not good.all() or times.seconds[0] >= _LATEST:
    raise ValueError(
      f'data.log.{key} is {text!r}; give a share of the candidates between 0 '
      'and 1, an ISO date such as 2024-05-31, or seconds since 1970'
    )
  fraction = 0 if times.fraction is None else int(times.fraction[0])
  return None, int(times.seconds[0]) * _SECOND + fraction


def find_borders(
  options: LogOptions, moment: np.ndarray, keys: Sequence[str]
) -> np.ndarray:
  """`[len(keys)]` first moments of splits.

  Args:
    options: of the data set.
    moment: `[N]` of the candidates.
    keys: of `options`, in the order of time.

  Raises:
    ValueError: they are in another order, or times where there are none.
  """
  borders, ordered = [], None
  for key in keys:
    text = getattr(options, key)
    share, border = read_border(text, key)
    if border is not None and not options.time:
      raise ValueError(
        f"data.log.{key} is {text!r}, and without times (data.log.time='') "
        "splits begin at a share of the candidates, such as '0.8'"
      )
    if share is not None:
      ordered = np.sort(moment) if ordered is None else ordered
      border = ordered[int(share * len(ordered))]
    borders.append(border)
  if borders != sorted(set(borders)):
    raise ValueError(
      f'data.log.test_from {options.test_from!r} does not lie after valid_from '
      f"{options.valid_from!r} in this log; choose another, or valid_from=''"
    )
  return np.array(borders, np.int64)
