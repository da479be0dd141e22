"""Columns of a history: lists that run side by side, one value an event.

A value that is missing keeps its place, since the columns must stay aligned.
The events of a row are as many as the values of each column:

| cells of one row                  | events                               |
|-----------------------------------|--------------------------------------|
| `a^b` and `3^4`                   | (a, 3) and (b, 4)                    |
| `a^^c` and `3^4^`                 | (a, 3), (missing, 4) and (c, missing)|
| empty and empty                   | none                                 |
| `a` and empty                     | one, (a, missing): a list of one     |
|                                   | missing value is an empty text       |
| `[a]` and `[]`, of a typed file   | refused, as all unequal lengths      |
"""

from collections.abc import Sequence

import numpy as np

from genrec_jax.data import decimals
from genrec_jax.data.ranking import cell_values, raw, transform
from genrec_jax.data.ranking import schema as schema_lib


def read_events(
  chunk: raw.RawChunk, columns: Sequence[schema_lib.Column]
) -> list[tuple[schema_lib.Column, raw.ListColumn]]:
  """The lists of a history, of equal lengths, at most `max_len` values each.

  Args:
    chunk: the rows.
    columns: all columns of one history.

  Returns:
    Each column with its lists, in which missing values are filled or kept.

  Raises:
    ValueError: two lists of one row differ in length.
  """
  lists = [_as_lists(chunk, column) for column in columns]
  longest = np.maximum.reduce([x.lengths for x in lists])
  for i, column in enumerate(columns):
    if not isinstance(chunk.columns[column.source], raw.ListColumn):
      alone = np.flatnonzero((lists[i].lengths == 0) & (longest == 1))
      lists[i] = _add_missing(lists[i], alone)
  _check_lengths(chunk, columns, lists)
  return [
    (column, _fill(cell_values.shorten_lists(own, column), column))
    for column, own in zip(columns, lists, strict=True)
  ]


def _as_lists(chunk: raw.RawChunk, column: schema_lib.Column) -> raw.ListColumn:
  if column.coded:
    cell_values.refuse_dates(chunk, column)
  return cell_values.as_lists(chunk, column, column.source, fill='')


def _add_missing(lists: raw.ListColumn, rows: np.ndarray) -> raw.ListColumn:
  """The lists with one missing value in each of `rows`, which are empty."""
  if not len(rows):
    return lists
  values, lengths = lists.values, lists.lengths.copy()
  places = np.cumsum(lengths)[rows]
  lengths[rows] = 1
  if not isinstance(values, raw.NumberColumn):
    texts = np.array([*values, ''], object)[:-1]  # an array of any length
    return raw.ListColumn(np.insert(texts, places, '').tolist(), lengths)
  there = values.present
  there = np.ones(len(values), bool) if there is None else there
  numbers = raw.NumberColumn(
    np.insert(values.values, places, 0),
    np.insert(there, places, False),
    values.are_dates,
    None if values.fraction is None else np.insert(values.fraction, places, 0),
  )
  return raw.ListColumn(numbers, lengths)


def _check_lengths(
  chunk: raw.RawChunk,
  columns: Sequence[schema_lib.Column],
  lists: Sequence[raw.ListColumn],
) -> None:
  first, lengths = columns[0], lists[0].lengths
  for other, own in zip(columns[1:], lists[1:], strict=True):
    if (own.lengths != lengths).any():
      at = int(np.argmax(own.lengths != lengths))
      raise ValueError(
        f'{chunk.where(at)}: column {first.source!r} holds {lengths[at]} '
        f'values and column {other.source!r} {own.lengths[at]}; all columns '
        f'of history {first.history!r} need one value an event, which may be '
        'empty'
      )


def _fill(lists: raw.ListColumn, column: schema_lib.Column) -> raw.ListColumn:
  """The lists with `fill` for missing categories; numbers are read later."""
  if not column.coded:
    return lists
  values = cell_values.fill_empty(lists.values, column.fill)
  return raw.ListColumn(values, lists.lengths)


def read_numbers(
  chunk: raw.RawChunk, column: schema_lib.Column, lists: raw.ListColumn
) -> raw.NumberColumn:
  """The numbers of a column of a history, value by value.

  Args:
    chunk: the rows.
    column: one of kind 'numeric_sequence'.
    lists: of `read_events`.
  """
  try:
    return transform.parse_numbers(lists.values, column.fill)
  except transform.NumberError as e:
    row = int(np.searchsorted(np.cumsum(lists.lengths), e.at, 'right'))
    remedy = decimals.hint_comma(e.value) or f'; mend it, or {chunk.remedy}'
    raise ValueError(
      f'{chunk.quote_cell(row, column.source, e.value)}, one of the values of '
      f"the row, is not a finite number of float32's range{remedy}"
    ) from None
