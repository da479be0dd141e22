"""Raw cells -> the values of one feature, before any vocabulary."""

import dataclasses

import numpy as np

from genrec_jax.data import decimals
from genrec_jax.data.ranking import raw, transform
from genrec_jax.data.ranking import schema as schema_lib


def read_numbers(
  chunk: raw.RawChunk, column: schema_lib.Column
) -> raw.NumberColumn:
  """The numbers of a numeric feature, one a row."""
  try:
    return transform.parse_numbers(chunk.columns[column.source], column.fill)
  except transform.NumberError as e:
    remedy = decimals.hint_comma(e.value) or f'; mend it, or {chunk.remedy}'
    raise ValueError(
      f'{chunk.quote_cell(e.at, column.source, e.value)} is not a finite '
      f"number of float32's range{remedy}"
    ) from None
  except TypeError as e:
    raise ValueError(
      f'{chunk.where(0)}, column {column.source!r}: {e}; give feature '
      f'{column.name!r} another kind'
    ) from None


def _read_lists(
  chunk: raw.RawChunk, column: schema_lib.Column
) -> raw.ListColumn:
  lists = as_lists(chunk, column, column.source, column.fill)
  if not column.weights:
    return lists
  # What stands for an empty cell weighs 1.
  weights = as_lists(chunk, column, column.weights, column.fill and '1')
  if (lists.lengths != weights.lengths).any():
    at = int(np.argmax(lists.lengths != weights.lengths))
    raise ValueError(
      f'{chunk.where(at)}: column {column.source!r} holds '
      f'{lists.lengths[at]} values and column {column.weights!r} '
      f'{weights.lengths[at]} weights; give each value of feature '
      f'{column.name!r} one weight'
    )
  return dataclasses.replace(lists, weights=weights.values)


def _parse_weights(
  chunk: raw.RawChunk, column: schema_lib.Column, lists: raw.ListColumn
) -> np.ndarray | None:
  """`[K]` float32 weights of the values, None where they have none."""
  if lists.weights is None:
    return None
  try:
    weights = transform.parse_numbers(lists.weights)
    if weights.present is not None:
      at = int(np.argmin(weights.present))
      is_typed = isinstance(lists.weights, raw.NumberColumn)
      raise transform.NumberError('' if is_typed else lists.weights[at], at)
  except transform.NumberError as e:
    ends = np.cumsum(lists.lengths)
    row = int(np.searchsorted(ends, e.at, 'right'))
    number = e.at - int(ends[row] - lists.lengths[row]) + 1
    raise ValueError(
      f'{chunk.quote_cell(row, column.weights, e.value)}, the weight of value '
      f"{number} of the row, is not a finite number of float32's range; mend "
      'it, or remove the value and its weight'
    ) from None
  return weights.values.astype(np.float32)


def as_lists(
  chunk: raw.RawChunk, column: schema_lib.Column, name: str, fill: str
) -> raw.ListColumn:
  """The lists of values in some cells.

  Args:
    chunk: the rows.
    column: the feature, whose separator stands between values in a text.
    name: of the raw column.
    fill: what an empty cell holds; '' for no value.
  """
  cells = chunk.columns[name]
  if isinstance(cells, raw.ListColumn):
    return cells
  cells = fill_empty(cells, fill)
  if isinstance(cells, raw.NumberColumn):
    return raw.ListColumn(cells, np.ones(len(cells), np.int64)).drop_empty()
  return raw.split_cells(cells, column.separator)


def fill_empty(cells: raw.Column, fill: str) -> raw.Column:
  """`fill` in the place of empty cells."""
  if not fill:
    return cells
  if isinstance(cells, raw.NumberColumn):
    if cells.present is None:
      return cells
    cells = cells.list_texts()
  return [cell or fill for cell in cells]


def shorten_lists(
  lists: raw.ListColumn, column: schema_lib.Column
) -> raw.ListColumn:
  """At most `max_len` values, the last or the first."""
  most = column.max_len
  if not most or not len(lists) or lists.lengths.max() <= most:
    return lists
  ends = np.cumsum(lists.lengths)
  place = np.arange(ends[-1]) - np.repeat(ends - lists.lengths, lists.lengths)
  if column.keeps_last:
    place = np.repeat(lists.lengths, lists.lengths) - 1 - place
  return lists.take_values(place < most)


def refuse_dates(chunk: raw.RawChunk, column: schema_lib.Column) -> None:
  """Refuses dates where categories are wanted."""
  cells = chunk.columns[column.source]
  inner = cells.values if isinstance(cells, raw.ListColumn) else cells
  if isinstance(inner, raw.NumberColumn) and inner.are_dates:
    raise ValueError(
      f'{chunk.where(0)}, column {column.source!r}: dates are not categories; '
      'convert the column to text or whole numbers, or make feature '
      f'{column.name!r} numeric, of the seconds since 1970'
    )


def read_values(
  chunk: raw.RawChunk, column: schema_lib.Column, drops_empty: bool = True
) -> tuple[raw.Column, np.ndarray | None, np.ndarray | None]:
  """The values of a coded feature, and of its lists lengths and weights.

  Columns of histories are read by `event_lists`.

  Args:
    chunk: the rows.
    column: the feature.
    drops_empty: whether empty values inside lists take no place.
  """
  if column.kind == 'numeric':
    return transform.bucket_counts(read_numbers(chunk, column)), None, None
  refuse_dates(chunk, column)
  cells = chunk.columns[column.source]
  if column.is_list:
    lists = _read_lists(chunk, column)
    lists = lists.drop_empty() if drops_empty else lists
    lists = shorten_lists(lists, column)
    return lists.values, lists.lengths, _parse_weights(chunk, column, lists)
  if isinstance(cells, raw.ListColumn):
    raise ValueError(
      f'{chunk.where(0)}, column {column.source!r}: holds lists; make feature '
      f'{column.name!r} a multi_hot or a sequence'
    )
  return fill_empty(cells, column.fill), None, None
