"""The columns of a row other than its features: labels, group, time, id, ...

`config.data` names the columns; blocks store their values as they are read
here. None of them is encoded by a vocabulary or a statistic.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import decimals, fields
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.ranking import forms, raw, transform

LABEL_KINDS = ('binary', 'probability', 'float')
EXTRA_KINDS = ('float', 'int', 'int64')  # a category is a feature here
ROW = 'row'  # the example id that is the number of the row
_LABELS = {'0': 0, '1': 1}


@dataclasses.dataclass(frozen=True)
class Annotations:
  """Where the optional ones are.

  Attributes:
    time: column of the time, '' for none.
    example_id: column of the examples' ids, 'row' for the number of the row in
      the raw files, '' for none.
    float_labels: labels that are any finite number, and not 0 or 1.
    label_weights: label -> column of its weights; the others have weight 1.
    extras: columns that a task may read.
    probability_labels: labels that are any number from 0 to 1.
    weight: column of the examples' weights, '' where all are 1.
    negatives_kept: share of the negatives that the training split has kept.
  """

  time: str = ''
  example_id: str = ''
  float_labels: tuple[str, ...] = ()
  label_weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
  extras: tuple[extras_lib.ExtraColumn, ...] = ()
  probability_labels: tuple[str, ...] = ()
  weight: str = ''
  negatives_kept: float = 1.0

  @property
  def columns(self) -> dict[str, str]:
    """Key of the config -> the column of the raw files that it names."""
    numbered = self.example_id in ('', ROW)
    out = {'data.time': self.time} if self.time else {}
    out |= {} if numbered else {'data.example_id': self.example_id}
    for label, column in self.label_weights.items():
      out[f'data.label_weights.{label}'] = column
    out |= {'data.weight': self.weight} if self.weight else {}
    for extra in self.extras:
      out[f'{extras_lib.KEY}.{extra.name}'] = extra.source
    return out

  def to_json(self) -> dict:
    """What differs from no annotations at all; {} for those."""
    every, usual = dataclasses.asdict(self), dataclasses.asdict(Annotations())
    return {key: x for key, x in every.items() if x != usual[key]}

  @property
  def logit_correction(self) -> float:
    """What is added to a logit for the negatives that training has not seen.

    Of q = p / (p + (1 - p) / w) the odds are w times those of p.
    """
    return math.log(self.negatives_kept)

  @classmethod
  def from_json(cls, entries: Mapping) -> 'Annotations':
    """The inverse of `to_json`, also after a round trip through JSON."""
    entries = dict(entries)
    for key in ('float_labels', 'probability_labels'):
      entries[key] = tuple(entries.get(key, ()))
    extras = entries.get('extras', ())
    entries['extras'] = tuple(
      extras_lib.ExtraColumn(**extra) for extra in extras
    )
    return cls(**entries)


def build_annotations(cfg: Mapping, labels: Sequence[str]) -> Annotations:
  """The annotations that `config.data` asks for.

  >>> cfg = {'time': 'when', 'extras': {'teacher': 'float'}}
  >>> found = build_annotations(cfg, ['click'])
  >>> found.columns
  {'data.time': 'when', 'data.extras.teacher': 'teacher'}
  """
  kinds = dict(cfg.get('label_kinds', None) or {})
  weights = dict(cfg.get('label_weights', None) or {})
  for key, section in (('label_kinds', kinds), ('label_weights', weights)):
    for label in section:
      if label not in labels:
        raise ValueError(
          f'data.{key}.{label}: {label!r} is not a label; data.labels are '
          f'{", ".join(labels)}' + hint_nearest(label, labels)
        )
  for label, kind in kinds.items():
    if kind not in LABEL_KINDS:
      raise ValueError(
        f'data.label_kinds.{label} is {kind!r}, must be one of '
        f'{", ".join(LABEL_KINDS)}' + hint_nearest(str(kind), LABEL_KINDS)
      )
  by_kind = {
    kind: tuple(label for label in labels if kinds.get(label) == kind)
    for kind in LABEL_KINDS
  }
  return Annotations(
    cfg.get('time', '') or '',
    cfg.get('example_id', '') or '',
    by_kind['float'],
    {label: weights[label] for label in labels if weights.get(label)},
    extras_lib.build_extras(cfg.get('extras', None), kinds=EXTRA_KINDS),
    by_kind['probability'],
    cfg.get('weight', '') or '',
    _check_negatives_kept(cfg.get('negatives_kept', 1.0), labels, kinds),
  )


def _check_negatives_kept(share: float, labels, kinds: Mapping) -> float:
  if not 0 < share <= 1:
    raise ValueError(
      f'data.negatives_kept is {share}, must be above 0 and at most 1, which '
      'keeps all'
    )
  others = [label for label in labels if kinds.get(label, 'binary') != 'binary']
  if share < 1 and (len(labels) > 1 or others):
    problem = f'{others[0]!r} is not' if others else f'there are {len(labels)}'
    raise ValueError(
      f'data.negatives_kept={share} needs one label, of 0 and 1, whose zeros '
      f'are the negatives; {problem} (data.labels, data.label_kinds)'
    )
  return float(share)


def read_labels(
  chunk: raw.RawChunk,
  names: Sequence[str],
  float_labels: Sequence[str] = (),
  probability_labels: Sequence[str] = (),
) -> np.ndarray:
  """`[N, L]` labels: uint8, or float32 for all where one may be a fraction."""
  dtype = np.float32 if float_labels or probability_labels else np.uint8
  labels = np.empty((len(chunk), len(names)), dtype)
  for i, name in enumerate(names):
    if name in float_labels:
      labels[:, i] = _read_numbers(chunk, name, 'label')
    elif name in probability_labels:
      labels[:, i] = _read_numbers(chunk, name, 'label', 0, 1)
    else:
      labels[:, i] = _read_binary(chunk, name)
  return labels


def _take_column(
  chunk: raw.RawChunk, name: str, what: str, remedy: str = ''
) -> Sequence[str] | raw.NumberColumn:
  """A column of texts or numbers; lists are an error that calls it `what`."""
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    raise ValueError(f'{chunk.where(0)}: {what} holds lists{remedy}')
  return column


def _read_binary(chunk: raw.RawChunk, name: str) -> np.ndarray:
  """Labels `[N]`; anything but 0, 1 and words for them is an error."""
  column = _take_column(chunk, name, f'label {name!r}', '; it must be 0 or 1')
  if not isinstance(column, raw.NumberColumn):
    with contextlib.suppress(KeyError):  # of labels such as '1.0'
      return np.array([_LABELS[text] for text in column], np.uint8)
    words = {text: forms.read_label_word(text) for text in set(column)}
    column = [words[text] for text in column]

  def refuse(at, value):
    numbers, are_numbers = fields.parse_ratings([str(value)])
    hint = 'of ratings, write a column of 0 and 1, such as whether they are '
    hint += 'at least 4, and name it in data.labels; '
    hint += f'data.label_kinds.{name}=float is for tasks that read any number'
    if not are_numbers.all():
      hint = 'convert the column to them; yes and no, true and false, t, f, y '
      hint += 'and n are read, too'
    elif 0 < numbers[0] < 1:
      hint = f'data.label_kinds.{name}=probability reads numbers between'
    return ValueError(
      f'{chunk.quote_cell(at, name, value)} is not a label; labels are 0 or 1 '
      f'({hint})'
    )

  values = _take_numbers(column, lambda x: (x == 0) | (x == 1), refuse)
  return values.astype(np.uint8)


def describe_words(chunk: raw.RawChunk, names: Sequence[str]) -> str:
  """For the log, how the words of binary labels are read; '' without words.

  >>> rows = [{'bought': 'yes'}, {'bought': 'no'}]
  >>> chunk = raw.from_records(rows, ['bought'])
  >>> describe_words(chunk, ['bought'])
  "label 'bought': 'no' is 0, 'yes' is 1"
  """
  lines = []
  for name in names:
    column = chunk.columns[name]
    if isinstance(column, raw.NumberColumn | raw.ListColumn):
      continue
    words = {text: forms.read_label_word(text) for text in sorted(set(column))}
    words = [f'{a!r} is {b}' for a, b in words.items() if a != b]
    if words:
      lines.append(f'label {name!r}: {", ".join(words)}')
  return '; '.join(lines)


def _take_numbers(column: raw.Column, accept, refuse) -> np.ndarray:
  """`[N]` float64 numbers.

  Args:
    column: of a file.
    accept: `[N]` numbers -> which of them may be.
    refuse: (row, cell) -> the error of the first that may not, or is none.
  """
  try:
    numbers = transform.parse_numbers(column)
  except transform.NumberError as e:
    raise refuse(e.at, e.value) from None
  good = accept(numbers.values)
  if numbers.present is not None:
    good &= numbers.present
  if not good.all():
    at = int(np.argmin(good))
    raise refuse(at, _quote_cell(column, at))
  return numbers.values


def _quote_cell(column: raw.Column, at: int) -> object:
  """A cell for messages; '' for an empty one."""
  if not isinstance(column, raw.NumberColumn):
    return column[at]
  if column.present is not None and not column.present[at]:
    return ''
  return column.values[at]


def _read_numbers(
  chunk: raw.RawChunk,
  name: str,
  what: str,
  least: float = -np.inf,
  most: float = np.inf,
) -> np.ndarray:
  """`[N]` float64 finite numbers; a missing one is an error."""
  column = _take_column(chunk, name, f'{what} {name!r}')

  def refuse_number(at, value):
    requirement = "a finite number of float32's range"
    requirement += '' if least < 0 else ', zero or more'
    requirement = requirement if most > 1 else 'a number from 0 to 1'
    requirement += decimals.hint_comma(value)
    return ValueError(
      f'{chunk.quote_cell(at, name, value)}: the {what} must be {requirement}'
    )

  return _take_numbers(
    column, lambda x: (x >= least) & (x <= most), refuse_number
  )


def read_group_texts(chunk: raw.RawChunk, name: str, key: str) -> Sequence[str]:
  """`[N]` texts of a column of groups, which `key` names; none is missing."""
  column = _take_column(chunk, name, f'{key} {name!r}')
  if isinstance(column, raw.NumberColumn):
    column = column.list_texts()
  if '' in column:
    raise ValueError(
      f'{chunk.quote_cell(list(column).index(""), name, "")} is not a group; '
      f"fill it in, or set {key}=''"
    )
  known = {value: forms.canonicalize(value) for value in dict.fromkeys(column)}
  return [known[value] for value in column]


def read_groups(
  chunk: raw.RawChunk, name: str, groups: dict[str, int]
) -> np.ndarray:
  """`[N]` int32 numbers of the groups, in the order they are first met."""
  column = read_group_texts(chunk, name, 'data.group')
  for value in dict.fromkeys(column):
    groups.setdefault(value, len(groups))
  return np.fromiter(map(groups.__getitem__, column), np.int32, len(column))


def read_annotations(
  chunk: raw.RawChunk,
  annotations: Annotations,
  labels: Sequence[str],
  first: int | None = None,
) -> dict:
  """The optional annotations of some rows, by their names in `rows.Rows`.

  Args:
    chunk: the rows; a column that it lacks is left out.
    annotations: where they are.
    labels: those whose weights are wanted.
    first: number of the first row; None leaves numbers of rows out.

  Returns:
    Some of `time`, `example_id`, `label_weights`, `weight` and `extras`.
  """
  out, there = {}, chunk.columns
  if annotations.time and annotations.time in there:
    out['time'] = read_exact_times(chunk, annotations.time).seconds
  if annotations.example_id == ROW:
    if first is not None:
      out['example_id'] = np.arange(first, first + len(chunk), dtype=np.int64)
  elif annotations.example_id and annotations.example_id in there:
    out['example_id'] = _read_ids(chunk, annotations.example_id)
  weights = annotations.label_weights
  if weights and all(c in there for c in weights.values()):
    out['label_weights'] = np.ones((len(chunk), len(labels)), np.float32)
    for i, label in enumerate(labels):
      if label in weights:
        what = f'weight of label {label!r}'
        out['label_weights'][:, i] = _read_numbers(
          chunk, weights[label], what, least=0
        )
  if annotations.weight and annotations.weight in there:
    what = 'weight (data.weight)'
    numbers = _read_numbers(chunk, annotations.weight, what, least=0)
    out['weight'] = numbers.astype(np.float32)
  extras = {
    extra.name: _read_extra(chunk, extra)
    for extra in annotations.extras
    if extra.source in there
  }
  return out | ({'extras': extras} if extras else {})


def _refuse_cells(chunk, name: str, good: np.ndarray, requirement: str) -> None:
  if not good.all():
    at = int(np.argmin(good))
    value = _quote_cell(chunk.columns[name], at)
    if requirement == fields.WANTED['time']:
      if problem := fields.explain_date(value):
        raise ValueError(f'{chunk.where(at)}, column {name!r}: {problem}')
      requirement += decimals.hint_comma(value)
    raise ValueError(
      f'{chunk.quote_cell(at, name, value)} is not {requirement}'
    )


def read_exact_times(chunk: raw.RawChunk, name: str) -> fields.Times:
  """The times of N rows; rows store their whole seconds alone.

  Numbers are kept in their unit, as if it were the second.

  Args:
    chunk: the rows.
    name: column of the times.
  """
  times, good = parse_exact_times(chunk, name, 'data.time')
  _refuse_cells(chunk, name, good, fields.WANTED['time'])
  return times


def parse_exact_times(
  chunk: raw.RawChunk, name: str, key: str, unit: str = 's'
) -> tuple[fields.Times, np.ndarray]:
  """Times as `read_exact_times` gives them, and which of them are good.

  Args:
    chunk: the rows.
    name: column of the times.
    key: of the config, which names that column.
    unit: of numbers, one of `fields.UNITS`; dates have none.
  """
  column = _take_column(chunk, name, f'{key} {name!r}')
  if not isinstance(column, raw.NumberColumn):
    return fields.parse_times(column, unit)
  unit = 's' if column.are_dates else unit
  if column.values.dtype.kind == 'f':
    times, good = fields.from_floats(column.values, unit)
  else:
    fraction = 0 if column.fraction is None else column.fraction
    times, good = fields.from_integers(column.values, unit, fraction)
  if column.present is not None:
    good = good & column.present
  return times, good


_FRACTION_BITS = 30  # of a second's nanoseconds
_WHOLE = 1 << 63  # from here on, keys are of times in a unit without fractions


def read_moments(chunk: raw.RawChunk, name: str) -> np.ndarray:
  """`[N]` uint64 keys that are in the order of the times, with fractions.

  Times beyond the year 2242 in seconds are of another unit, and are whole.
  """
  times = read_exact_times(chunk, name)
  values = times.seconds.astype(np.uint64)
  fraction = 0 if times.fraction is None else times.fraction
  fine = (values << np.uint64(_FRACTION_BITS)) + np.uint64(fraction)
  are_fine = values < np.uint64(_WHOLE >> _FRACTION_BITS)
  # The last key is that of no time: it stands for the end of all of them.
  whole = np.minimum(values, np.uint64(_WHOLE - 2)) + np.uint64(_WHOLE)
  return np.where(are_fine, fine, whole)


def time_of_moment(key: int) -> int | float:
  """The time of a key of `read_moments`."""
  if key >= _WHOLE:
    return key - _WHOLE
  seconds, fraction = divmod(key, 1 << _FRACTION_BITS)
  return seconds + fraction / 10**9 if fraction else seconds


def _read_ids(chunk: raw.RawChunk, name: str) -> np.ndarray:
  """`[N]` int64 ids of examples."""
  column = _take_column(chunk, name, f'data.example_id {name!r}')
  if isinstance(column, raw.NumberColumn):
    whole = extras_lib.ExtraColumn(name, 'int64')
    values, good = extras_lib.read_numbers(whole, column.values, column.present)
  else:
    values, good = vocab_lib.parse_ints(column)
  wanted = 'an example id; those are whole numbers without leading zeros, and '
  wanted += f'data.example_id={ROW} numbers the rows'
  _refuse_cells(chunk, name, good, wanted)
  return values


def _read_extra(
  chunk: raw.RawChunk, extra: extras_lib.ExtraColumn
) -> np.ndarray:
  what = f'{extras_lib.KEY}.{extra.name}'
  column = _take_column(chunk, extra.source, what)
  if isinstance(column, raw.NumberColumn):
    values, good = extras_lib.read_numbers(extra, column.values, column.present)
  else:
    values, good = extras_lib.read_texts(extra, column)
  if not good.all():
    at = int(np.argmin(good))
    problem = extras_lib.explain_value(extra, str(_quote_cell(column, at)))
    raise ValueError(f'{chunk.where(at)}, column {extra.source!r}: {problem}')
  return values
