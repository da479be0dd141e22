"""Histories that may hold what came after the impression: counted, told once.

Three things are read as they are and are mostly faults of the file: events that
took place after the impression, times that go back within a history, and a
candidate that stands in its own history.
"""

import dataclasses
import logging
import re
from collections.abc import Sequence

import numpy as np

from genrec_jax import features
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import raw
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking import schema as schema_lib

LOG = logging.getLogger('genrec_jax')

# Words in the names of columns. Numbers of an event may be prices as well, of
# which order and sign say nothing: what is called so is taken for a time.
_AGES = frozenset(
  'age ages ago elapsed recency since seconds secs minutes hours days'.split()
)
_TIMES = frozenset(
  'date dates moment moments time times timestamp timestamps ts when'.split()
)
# How long an event took is neither.
_SPANS = frozenset(
  'duration durations dwell gap gaps length listen listened play played read '
  'session spent view viewed watch watched'.split()
)


@dataclasses.dataclass
class _Finding:
  """Rows with one kind of doubt.

  Attributes:
    rows: how many.
    clicks: how many of them have a first label above 0.
    first: the place of the first one, and what is there.
  """

  rows: int = 0
  clicks: int = 0
  first: str = ''


class HistoryChecks:
  """Counts doubtful rows of all splits; memory does not grow with the rows.

  checks = HistoryChecks(encoder)
  checks.add(chunk, rows, absent)
  checks.warn()
  """

  def __init__(self, encoder: encoder_lib.Encoder, repeats: bool = False):
    """Starts at zero.

    Args:
      encoder: makes the rows.
      repeats: whether candidates are known to be in their own histories now and
        then, so that nobody needs to hear of it.
    """
    schema = encoder.schema
    self._time = schema.annotations.time
    self._clocks = {
      c: '' if c.coded else find_clock(c.name, c.source)
      for c in schema.lists
      if c.history
    }
    self._pairs = {} if repeats else _pair_columns(encoder)
    self._rows = self._clicks = 0
    self._findings: dict[tuple[str, object], _Finding] = {}

  def add(
    self,
    chunk: raw.RawChunk,
    rows: rows_lib.Rows,
    absent: encoder_lib.Absent,
    at: np.ndarray | None = None,
  ) -> None:
    """Looks at some rows.

    Args:
      chunk: what they were made of.
      rows: as `Encoder.encode` has made them.
      absent: the numbers of their events, and which of them are missing.
      at: `[N]` which rows of the chunk they are; None for all.
    """
    if not self._clocks:
      return
    at = np.arange(len(rows)) if at is None else at
    labels = rows.labels[:, :1] > 0
    self._rows += len(rows)
    self._clicks += int(labels.sum())
    for column, clock in self._clocks.items():
      if clock:
        self._check_clock(chunk, rows, absent, at, column, clock)
    for history, pairs in self._pairs.items():
      place = _find_candidates(rows, pairs)
      self._note('own', history, pairs[0][1], chunk, rows, at, place)

  def _check_clock(self, chunk, rows, absent, at, column, clock: str) -> None:
    numbers, missing = (
      absent.raw_events[column.name],
      absent.events[column.name],
    )
    values, there = numbers.values, ~missing.values
    row = np.repeat(np.arange(len(rows)), numbers.lengths)
    if clock == 'age':
      late = there & (values < 0)
      self._note('below', column, column, chunk, rows, at, (row, late, values))
    elif rows.time is not None:
      # The time of the impression is without its fraction of a second.
      late = there & (values >= rows.time[row] + 1)
      self._note('after', column, column, chunk, rows, at, (row, late, values))
    known = np.flatnonzero(there)
    step = np.diff(values[known]) * (-1 if clock == 'age' else 1)
    back = np.zeros(len(values), bool)
    back[known[1:]] = (step < 0) & (np.diff(row[known]) == 0)
    self._note('back', column, column, chunk, rows, at, (row, back, values))

  def _note(self, kind, key, column, chunk, rows, at, place) -> None:
    """Counts the rows with an event of `place`: rows, flags, values."""
    row, flags, values = place
    hits = np.flatnonzero(flags)
    if not len(hits):
      return
    found = self._findings.setdefault((kind, key), _Finding())
    if not found.rows:
      i = int(row[hits[0]])
      value = values[hits[0]]
      if kind == 'own':  # a row of a table; the cell says which value it is
        value = chunk.columns[self._pairs[key][0][0].source]
        value = value.values if isinstance(value, raw.NumberColumn) else value
        value = value[int(at[i])]
      elif float(value).is_integer():
        value = int(value)
      found.first = chunk.quote_cell(int(at[i]), column.source, value)
    own = np.unique(row[hits])
    found.rows += len(own)
    found.clicks += int((rows.labels[own, :1] > 0).sum())

  def warn(self) -> None:
    """Warns of each doubt that there is, with the first place."""
    for (kind, key), found in self._findings.items():
      rows = f'{found.rows:,} of {self._rows:,} rows'
      if kind == 'own':
        LOG.warning(
          '%s have the candidate in their own history %r (%s of the %s rows '
          'whose first label is above 0, %s of the %s others), the first is '
          '%s; that is right where people repeat things, such as purchases, '
          'but if the history holds what came of the impression itself, it '
          'tells the label: end it before the impression',
          rows, key, f'{found.clicks:,}', f'{self._clicks:,}',
          f'{found.rows - found.clicks:,}', f'{self._rows - self._clicks:,}',
          found.first,
        )  # fmt: skip
      elif kind == 'back':
        LOG.warning(
          '%s have a history whose times go back, by %r, the first is %s; '
          'events stand in the order of time, the latest last, and max_len, '
          'positions and recurrences count on it: sort the lists of history %r '
          '(by its name, the column is taken for %s)',
          rows, key.name, found.first, key.history, _WORDS[self._clocks[key]],
        )  # fmt: skip
      else:
        LOG.warning(
          '%s have an event after the impression, by %r, which is %s there, '
          'the first is %s%s; a model that is trained so knows what serving '
          'does not: leave such events out of history %r (by its name, the '
          'column is taken for %s)',
          rows, key.name,
          'below zero' if kind == 'below' else f'later than {self._time!r}',
          found.first,
          ', read as 0 by transform=log'
          if kind == 'below' and key.transform == 'log'
          else '',
          key.history, _WORDS[self._clocks[key]],
        )  # fmt: skip


_WORDS = {
  'age': 'the time from an event to the impression',
  'time': 'the time of an event',
}


def find_clock(*names: str) -> str:
  """'age' or 'time' where a column's names say that it holds such, or ''.

  >>> find_clock('history_age'), find_clock('visitTimes'), find_clock('price')
  ('age', 'time', '')

  Args:
    *names: of the column, and of the feature that reads it.
  """
  words = re.sub('([A-Z])', r' \1', ' '.join(names)).lower()
  words = set(re.findall('[a-z]+', words))
  if words & _SPANS:
    return ''
  return 'age' if words & _AGES else 'time' if words & _TIMES else ''


# Of a candidate and of the events: the columns, the number of the candidate's
# in `Rows.ids`, and the first row of the table that several values share.
_Pair = tuple[schema_lib.Column, schema_lib.Column, int, int]


def _pair_columns(encoder: encoder_lib.Encoder) -> dict[str, list[_Pair]]:
  """History -> its columns of ids, with those of the candidate.

  A pair is what reads one table. If two features of a row do, nobody knows
  which of them is the candidate.
  """
  schema, out = encoder.schema, {}
  for history, columns in schema.histories.items():
    for column in columns:
      if not column.coded:
        continue
      same = [
        (other, column, i, len(encoder.vocabularies[other.table_name].values))
        for i, other in enumerate(schema.single)
        if other.table_name == column.table_name
      ]
      if len(same) == 1:
        candidate, own, i, known = same[0]
        out.setdefault(history, []).append((candidate, own, i, known + 1))
  return out


def _find_candidates(
  rows: rows_lib.Rows, pairs: Sequence[_Pair]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Rows, flags and values of events that are the candidate in all columns.

  In all of them, since an event of the candidate's category is mostly another
  item. Values that share a row of the table, unseen ones or those of a hashed
  table, are none.
  """
  lengths = rows.bags[pairs[0][1].name].lengths
  row = np.repeat(np.arange(len(rows)), lengths)
  same = np.ones(len(row), bool)
  for _, column, i, shared in pairs:
    values = rows.bags[column.name].values
    same &= (values == rows.ids[row, i]) & (values != features.PAD)
    same &= values < shared
  return row, same, values
