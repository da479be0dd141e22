"""What every reader yields: some rows of a raw file, column by column."""

import contextlib
import dataclasses
import decimal
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import forms

CHUNK_ROWS = 1 << 10  # their texts fit into a core's cache
_NUMBERS = (
  int,
  float,
  np.bool_,
  np.integer,
  np.floating,
  decimal.Decimal,
)


@dataclasses.dataclass(frozen=True)
class NumberColumn:
  """N numbers of a file that knows types.

  Attributes:
    values: `[N]` int64, or floats of the type that the file has.
    present: `[N]` bool, or None when nothing is missing.
    are_dates: whether they are the seconds since 1970 of dates.
    fraction: `[N]` int32 nanoseconds after `values`, where these are the
      seconds of dates; None where all are 0.
  """

  values: np.ndarray
  present: np.ndarray | None = None
  are_dates: bool = False
  fraction: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.values)

  def take(self, keep: np.ndarray | slice) -> 'NumberColumn':
    present = None if self.present is None else self.present[keep]
    fraction = None if self.fraction is None else self.fraction[keep]
    return NumberColumn(self.values[keep], present, self.are_dates, fraction)

  def list_texts(self) -> list[str]:
    """The canonical texts; '' is a missing value."""
    texts, places, _ = forms.find_distinct(self.values, self.present)
    return [texts[place] for place in places.tolist()]


def make_numbers(
  values: np.ndarray, present: np.ndarray | None = None
) -> NumberColumn:
  """A column whose NaN are missing, beside what else is."""
  if values.dtype.kind == 'f':
    there = ~np.isnan(values)
    there = there if present is None else there & present
    present = None if there.all() else there
  return NumberColumn(values, present)


@dataclasses.dataclass(frozen=True)
class ListColumn:
  """N lists of values, one behind the other.

  Attributes:
    values: K texts or numbers.
    lengths: `[N]` int64, their sum is K.
    weights: of the values, K texts or numbers; None where they have none.
  """

  values: 'Sequence[str] | NumberColumn'
  lengths: np.ndarray
  weights: 'Sequence[str] | NumberColumn | None' = None

  def __len__(self) -> int:
    return len(self.lengths)

  def take(self, keep: np.ndarray) -> 'ListColumn':
    return self._take(np.repeat(keep, self.lengths), self.lengths[keep])

  def take_values(self, keep: np.ndarray) -> 'ListColumn':
    """The lists with those values alone where `keep [K]` is true."""
    total = np.concatenate([[0], np.cumsum(keep)])
    ends = np.cumsum(self.lengths)
    return self._take(keep, total[ends] - total[ends - self.lengths])

  def _take(self, keep: np.ndarray, lengths: np.ndarray) -> 'ListColumn':
    weights = self.weights
    weights = None if weights is None else _take_cells(weights, keep)
    return ListColumn(_take_cells(self.values, keep), lengths, weights)

  def drop_empty(self) -> 'ListColumn':
    """The lists without missing values."""
    if isinstance(self.values, NumberColumn):
      present = self.values.present
      return self if present is None else self.take_values(present)
    if '' not in self.values:
      return self
    there = (value != '' for value in self.values)
    return self.take_values(np.fromiter(there, bool, len(self.values)))


# Texts; '' is a missing value.
Column = Sequence[str] | NumberColumn | ListColumn


def _take_cells(column: Column, keep: np.ndarray) -> Column:
  if isinstance(column, NumberColumn | ListColumn):
    return column.take(keep)
  return list(itertools.compress(column, keep.tolist()))


@dataclasses.dataclass(frozen=True)
class RawChunk:
  """Some consecutive rows of a raw file.

  Attributes:
    columns: name -> N values; those that were asked for.
    size: N.
    where: names the origin of row i for messages ('log.csv, line 7').
    remedy: what to do where a number is missing.
  """

  columns: Mapping[str, Column]
  size: int
  where: Callable[[int], str] = 'row {}'.format
  remedy: str = 'leave the cell empty if it is missing'

  def __len__(self) -> int:
    return self.size

  def quote_cell(self, row: int, column: str, value: object) -> str:
    """Names a cell and shows it, as errors begin."""
    return f'{self.where(row)}, column {column!r}: {quote(str(value))}'

  def take(self, keep: np.ndarray) -> 'RawChunk':
    """The rows where the bool mask `keep [N]` is true."""
    if keep.all():
      return self
    rows = np.flatnonzero(keep)
    return RawChunk(
      {
        name: _take_cells(column, keep) for name, column in self.columns.items()
      },
      len(rows),
      lambda i: self.where(int(rows[i])),
      self.remedy,
    )


def split_cells(cells: Sequence[str], separator: str) -> ListColumn:
  """The values of cells such as '3^17^4'; an empty cell holds none."""
  lengths = np.fromiter(
    (cell.count(separator) + 1 if cell else 0 for cell in cells),
    np.int64,
    len(cells),
  )
  values = separator.join(filter(None, cells)).split(separator)
  return ListColumn(values if lengths.any() else [], lengths)


def from_records(
  records: Iterable[Mapping[str, object]], names: Sequence[str]
) -> RawChunk:
  """Rows given as mappings, as a server gets them.

  Args:
    records: name -> text, number, list of those, or None for missing; what
      pandas puts for a missing value, such as NaN, is missing, too.
    names: the columns to take; each record must have each of them.

  Returns:
    The rows as one chunk.
  """
  records = list(records)
  for i, record in enumerate(records):
    for name in names:
      if name not in record:
        raise ValueError(
          f'row {i}: no value for {name!r}; give None for a missing one'
        )
  columns = {
    name: _from_objects([record[name] for record in records], name)
    for name in names
  }
  return RawChunk(columns, len(records), remedy='give None if it is missing')


def from_columns(data: object, names: Sequence[str]) -> RawChunk:
  """Rows given as columns: arrays or lists by name, or a DataFrame.

  Args:
    data: has the columns by name.
    names: the columns to take.

  Returns:
    The rows as one chunk.
  """
  known = data if isinstance(data, Mapping) else data.columns
  known = list(map(str, getattr(data, 'column_names', known)))
  for name in names:
    if name not in known:
      columns = (
        f'the columns are {list_names(known)}'
        if known
        else ('there are no columns; for no rows at all, give []')
      )
      raise ValueError(
        f'no column {name!r}; {columns}' + hint_nearest(name, known)
      )
  cells = {name: _list_cells(data[name], name) for name in names}
  sizes = {name: len(values) for name, values in cells.items()}
  if len(set(sizes.values())) > 1:
    text = list_names([f'{name} has {size}' for name, size in sizes.items()])
    raise ValueError(f'the columns differ in length: {text}')
  columns = {name: _from_objects(x, name) for name, x in cells.items()}
  remedy = 'give None or NaN if it is missing'
  return RawChunk(columns, next(iter(sizes.values())), remedy=remedy)


def _list_cells(values: Iterable, name: str) -> list:
  """The cells of a column of any package, floats in the type they have."""
  # Texts, sets and mappings can be listed, but are no columns.
  is_column = hasattr(values, '__iter__') and getattr(values, 'ndim', 1) > 0
  if not is_column or isinstance(values, str | bytes | Set | Mapping):
    raise ValueError(
      f'column {name!r} is {quote(values)}; give a list with a value for each '
      'row'
    )
  kind = str(getattr(values, 'dtype', getattr(values, 'type', ''))).lower()
  if 'float' in kind or 'double' in kind:
    return list(np.asarray(values))
  # Whole numbers beside missing ones would become floats as an array.
  read = getattr(values, 'to_pylist', getattr(values, 'to_list', None))
  return read() if read else list(values)


def _format_cell(value: object, row: int, name: str) -> str:
  if isinstance(value, str):
    return value
  if forms.is_missing(value):
    return ''
  if isinstance(value, _NUMBERS):
    with contextlib.suppress(ValueError):  # a number of over 4,300 digits
      return forms.format_number(value)
  raise ValueError(
    f'row {row}, column {name!r}: {quote(value)} is neither text nor a number '
    'nor a list of those'
  )


def _from_objects(values: list, name: str) -> Column:
  if not any(isinstance(v, list | tuple | np.ndarray) for v in values):
    return [_format_cell(v, i, name) for i, v in enumerate(values)]
  rows = []
  for i, value in enumerate(values):
    if not isinstance(value, list | tuple | np.ndarray):
      value = [] if forms.is_missing(value) else value
    if not isinstance(value, list | tuple | np.ndarray):
      raise ValueError(
        f'row {i}, column {name!r}: {quote(value)} is not a list, others are'
      )
    rows.append([_format_cell(v, i, name) for v in value])
  flat = list(itertools.chain.from_iterable(rows))
  return ListColumn(flat, np.array([len(r) for r in rows], np.int64))
