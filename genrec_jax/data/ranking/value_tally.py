"""Counts missing and unseen values while rows are encoded."""

from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax import features
from genrec_jax.data.ranking import cell_values, event_lists, raw
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking.value_shares import LEAST_DISTINCT, FeatureCounts

_LOOKED_AT = 64  # unseen values of a feature and a chunk, for different ones
_LONGEST = 200  # characters by which two of them differ
_IRREGULAR = 7919  # a prime
_NEVER = np.iinfo(np.int32).max


class Tally:
  """Values of each feature; memory does not grow with the rows.

  One thread at a time may use it.

  Attributes:
    encoder: makes the rows.
    rows: how many were counted.
  """

  def __init__(self, encoder: encoder_lib.Encoder):
    """Starts at zero."""
    schema = encoder.schema
    self.encoder = encoder
    self._columns = [*schema.single, *schema.numeric, *schema.lists]
    self._plain = len(schema.single) + len(schema.numeric)
    self._first_unseen = np.array(
      [
        len(encoder.vocabularies[c.table_name].values) + 1
        if c.coded and c.vocabulary == 'fitted'
        else _NEVER
        for c in self._columns
      ],
      np.int32,
    )
    self._counts = np.zeros((len(self._columns), 3), np.int64)
    self._values = [{} for _ in self._columns]  # unseen one -> it, its place
    self._gaps = [''] * len(self._columns)
    self._empty = [0] * len(self._columns)  # of columns of histories
    self._empty_at = [''] * len(self._columns)
    # Whether a feature needs no further example of an unseen, of a missing one.
    self._is_told = np.zeros((2, len(self._columns)), bool)
    self.rows = 0

  def add(
    self,
    chunk: raw.RawChunk,
    rows: rows_lib.Rows,
    absent: encoder_lib.Absent,
    at: np.ndarray | None = None,
  ) -> None:
    """Counts some rows.

    Args:
      chunk: what they were made of.
      rows: as `Encoder.encode` has made them.
      absent: which of their numbers are missing.
      at: `[N]` which rows of the chunk they are; None for all.
    """
    single = rows.ids.shape[1]
    is_unseen = rows.ids >= self._first_unseen[:single]
    is_missing = np.concatenate(
      [rows.ids == features.PAD, absent.numbers], axis=1
    )
    counts = np.zeros_like(self._counts)
    counts[: self._plain, 0] = len(rows)
    counts[: self._plain, 1] = _sum_columns(is_missing)
    counts[:single, 2] = _sum_columns(is_unseen)
    for i, column in enumerate(self._columns[self._plain :], self._plain):
      bags = rows.bags[column.name]
      empty = len(rows) - np.count_nonzero(bags.lengths)
      missing = np.count_nonzero(_find_missing(column, bags, absent))
      unseen = 0
      if column.coded:
        unseen = np.count_nonzero(bags.values >= self._first_unseen[i])
      counts[i] = len(bags.values) + empty, missing + empty, unseen
      if column.history and empty:
        self._note_empty(i, chunk, at, bags, empty)
    self._counts += counts
    self.rows += len(rows)
    news = (counts[:, [2, 1]].T > 0) & ~self._is_told
    if news.any():
      at = np.arange(len(rows)) if at is None else at
      for i in np.flatnonzero(news[0]).tolist():
        self._note_unseen(i, chunk, at, rows, is_unseen)
      for i in np.flatnonzero(news[1]).tolist():
        self._note_gap(i, chunk, at, rows, is_missing, absent)

  def _note_unseen(self, i: int, chunk, at, rows, is_unseen) -> None:
    """Remembers some unseen values of a feature, and the place of the first."""
    column, values = self._columns[i], self._values[i]
    if not column.is_list:
      where = _spread(at[is_unseen[:, i]])
      cells = chunk.columns[column.source]
      pairs = [(row, _read_cell(cells, row)) for row in where]
    else:
      bags = rows.bags[column.name]
      places = np.flatnonzero(bags.values >= self._first_unseen[i])
      of_row = np.searchsorted(np.cumsum(bags.lengths), places, 'right')
      pairs = self._read_again(i, chunk, _spread(np.unique(at[of_row])))
    for row, value in pairs:
      if len(values) < LEAST_DISTINCT:
        text = str(value)[:_LONGEST]
        cell = '' if values else chunk.quote_cell(row, column.source, value)
        values.setdefault(text, cell)
    self._is_told[0, i] = len(values) == LEAST_DISTINCT

  def _read_again(self, i: int, chunk, where: Sequence[int]):
    """Row and value of what is unseen in the lists of a few rows."""
    column = self._columns[i]
    keep = np.zeros(len(chunk), bool)
    keep[where] = True
    # Those of a history are read together.
    own = self.encoder.schema.histories.get(column.history, [column])
    sources = {source for c in own for source in c.sources}
    few = raw.RawChunk(
      {name: chunk.columns[name] for name in sources}, len(chunk), chunk.where
    ).take(keep)
    if column.history:
      lists = dict(event_lists.read_events(few, own))[column]
      values, lengths = lists.values, lists.lengths
    else:
      values, lengths, _ = cell_values.read_values(
        few, column, self.encoder.drops_empty
      )
    coded = self.encoder.vocabularies[column.table_name].encode(values)
    rows = np.repeat(np.flatnonzero(keep), lengths)
    for place in np.flatnonzero(coded >= self._first_unseen[i]).tolist():
      yield int(rows[place]), _read_cell(values, place)

  def _note_gap(self, i: int, chunk, at, rows, is_missing, absent) -> None:
    column = self._columns[i]
    if i < self._plain:
      row = int(at[np.argmax(is_missing[:, i])])
    else:
      bags = rows.bags[column.name]
      ends = np.cumsum(bags.lengths)
      missing = _find_missing(column, bags, absent)
      padded = np.searchsorted(ends, np.flatnonzero(missing)[:1], 'right')
      row = int(at[min([*np.flatnonzero(bags.lengths == 0)[:1], *padded])])
    self._gaps[i] = f'{chunk.where(row)}, column {column.source!r}'
    self._is_told[1, i] = True

  def _note_empty(self, i: int, chunk, at, bags, empty: int) -> None:
    self._empty[i] += int(empty)
    if not self._empty_at[i]:
      first = int(np.argmax(bags.lengths == 0))
      row = first if at is None else int(at[first])
      place = f'{chunk.where(row)}, column {self._columns[i].source!r}'
      self._empty_at[i] = place

  def absorb(self, other: 'Tally') -> None:
    """Adds what another tally of the same encoder, no longer used, holds."""
    self.rows += other.rows
    self._counts += other._counts
    for i, values in enumerate(other._values):
      self._values[i] = self._values[i] or values
      self._gaps[i] = self._gaps[i] or other._gaps[i]
      self._empty[i] += other._empty[i]
      self._empty_at[i] = self._empty_at[i] or other._empty_at[i]

  def counts(self) -> Mapping[str, FeatureCounts]:
    """Feature -> what was counted, in the order of the schema."""
    by_name = {
      column.name: FeatureCounts(
        values,
        missing,
        None if self._first_unseen[i] == _NEVER else unseen,
        len(self._values[i]),
        next(iter(self._values[i].values()), ''),
        self._gaps[i],
        *(
          (self.rows, self._empty[i], self._empty_at[i])
          if column.history
          else ()
        ),
      )
      for i, (column, (values, missing, unseen)) in enumerate(
        zip(self._columns, self._counts.tolist(), strict=True)
      )
    }
    return {c.name: by_name[c.name] for c in self.encoder.schema.columns}


def _find_missing(column, bags: rows_lib.Bags, absent) -> np.ndarray:
  """`[K]` bool, which values of some lists are missing."""
  if column.coded:
    return bags.values == features.PAD
  return absent.events[column.name].values


def _sum_columns(flags: np.ndarray) -> np.ndarray:
  """How often each column is true; a product of BLAS is the fastest sum."""
  return np.ones(len(flags)) @ flags.astype(np.float64)


def _spread(places: np.ndarray) -> list[int]:
  """At most `_LOOKED_AT` of them, the first and others far from each other.

  Their distances vary, for values may repeat regularly.
  """
  count = len(places)
  if count <= _LOOKED_AT:
    return places.tolist()
  steps = np.arange(_LOOKED_AT) * count // _LOOKED_AT
  jitter = np.arange(_LOOKED_AT) * _IRREGULAR % max(1, count // _LOOKED_AT)
  return places[steps + jitter].tolist()


def _read_cell(cells: raw.Column, row: int):
  values = cells.values if isinstance(cells, raw.NumberColumn) else cells
  return values[row]
