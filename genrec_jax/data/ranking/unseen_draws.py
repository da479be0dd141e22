"""Reads a share of the known values of a batch as unseen.

With min_count=1 every value of the training split has a row of its own, so that
no training row would ever read the rows of unseen values, and an example with a
new value would be scored by a row as it was drawn at the start.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking import schema as schema_lib

# Keeps these draws apart from those of the order of rows, of the same seed.
_STREAM = 0x75_6E_73_6E


@dataclasses.dataclass(frozen=True)
class _Drawn:
  """Columns whose values are drawn together.

  Attributes:
    share: of the values.
    places: `[C]` the columns among those of `Rows.ids`; empty for a bag.
    known: `[C]` number of known values, whose rows are 1 to that.
    unseen: `[C]` number of rows of unseen values, which follow.
  """

  share: float
  places: np.ndarray
  known: np.ndarray
  unseen: np.ndarray

  def draw(
    self, rng: np.random.Generator, values: np.ndarray, places: np.ndarray
  ) -> np.ndarray:
    """`values [N, C']` in which columns `places [C]` have unseen values."""
    size = len(values) * len(places)
    # Each value by a draw of its own, but only those hit are looked at.
    hits = rng.choice(
      size, rng.binomial(size, self.share), replace=False, shuffle=False
    )
    row, column = np.divmod(hits, len(places))
    # Any row of 'hash' alike: what an unseen value hashes to says nothing
    # about it, so all of them learn from all values.
    unseen = self.known[column] + 1 + rng.integers(0, self.unseen[column])
    before = values[row, places[column]]
    is_known = (before > 0) & (before <= self.known[column])
    values = values.copy()
    values[row, places[column]] = np.where(is_known, unseen, before)
    return values


class UnseenDraws:
  """Says which values of which training batch are read as unseen."""

  def __init__(self, encoder: encoder_lib.Encoder, share: float, seed: int):
    """Finds the features whose rows of unseen values have to be drawn.

    Args:
      encoder: of the data.
      share: of the values of features that do not say so themselves.
      seed: of the draws.
    """
    schema_lib.check_share(share, 'data.train_unseen')
    self._seed, schema = seed, encoder.schema

    def group(columns: Sequence[schema_lib.Column], places: Sequence[int]):
      tables = [encoder.vocabularies[c.table_name] for c in columns]
      known = np.array([len(table.values) for table in tables], np.int32)
      unseen = np.array([table.rows for table in tables], np.int32) - 1 - known
      return _Drawn(
        _share_of(columns[0], share), np.array(places), known, unseen
      )

    shares = [_share_of(column, share) for column in schema.single]
    self._groups: list[_Drawn] = []
    for value in sorted(set(shares) - {0}):
      places = [i for i, x in enumerate(shares) if x == value]
      self._groups.append(group([schema.single[i] for i in places], places))
    self._bags: Mapping[str, _Drawn] = {
      column.name: group([column], [0])
      for column in schema.lists
      if column.coded and _share_of(column, share)
    }

  def __bool__(self) -> bool:
    return bool(self._groups or self._bags)

  def apply(self, rows: rows_lib.Rows, batch: int) -> rows_lib.Rows:
    """The rows of the whole batch number `batch`, some values unseen.

    The draws depend on the seed and that number alone, so that they are the
    same on every mesh and after a restart.
    """
    rng = np.random.default_rng([self._seed, _STREAM, batch])
    ids, bags = rows.ids, dict(rows.bags)
    for group in self._groups:
      ids = group.draw(rng, ids, group.places)
    for name, group in self._bags.items():
      values = group.draw(rng, bags[name].values[:, None], group.places)
      bags[name] = dataclasses.replace(bags[name], values=values[:, 0])
    return dataclasses.replace(rows, ids=ids, bags=bags)


def _share_of(column: schema_lib.Column, share: float) -> float:
  """The share of the values of a feature that are read as unseen."""
  if column.train_unseen is not None:
    return column.train_unseen
  # Rare values train these rows where they are unseen ones.
  return share if column.has_unseen_rows and column.min_count == 1 else 0.0
