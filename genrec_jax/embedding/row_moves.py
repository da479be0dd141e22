"""From the rows of one map to those of another: what each new row begins with.

When values are born and die, a map is learned again. A new row that
is mostly the old one goes on with its weights and with what its optimizer has
gathered: new and old rows are matched so that the matched ones have the most
occurrences in common. Any other row begins with the mean of the old rows of its
ids and of their moments, and with the largest of their other slots, so that its
steps are not too large.

NumPy on the host.
"""

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

NEW = -1  # a row that goes on with no old one
# Slots that are means of gradients, of row optimizers and of optax.
MOMENTS = ('mean', 'momentum', 'mu', 'trace')


@dataclasses.dataclass(frozen=True)
class RowMoves:
  """Where each new row comes from.

  Attributes:
    kept: `[R']` the old row that it goes on with, or `NEW`.
    shares: `[R', R]` sparse, of each new row the share of its occurrences that
      each old row had; a row of zeros has none of which anything is known.
  """

  kept: np.ndarray
  shares: sparse.csr_matrix

  def move_weights(self, table: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """The new table.

    Args:
      table: `[R, D]` old rows.
      fresh: `[R', D]` rows as they are drawn, for those of which nothing is
        known.
    """
    moved = (self.shares @ table.astype(np.float64)).astype(table.dtype)
    known = np.diff(self.shares.indptr) > 0
    moved[~known] = fresh[~known]
    moved[self.kept >= 0] = table[self.kept[self.kept >= 0]]
    return moved

  def move_slots(
    self, name: str, slots: np.ndarray, fresh: np.ndarray
  ) -> np.ndarray:
    """The new rows of a slot of the optimizer, `[R', ...]`.

    Args:
      name: of the slot.
      slots: `[R, ...]` of the old rows.
      fresh: `[R', ...]` before the first step.
    """
    if name in MOMENTS:
      return self.move_weights(slots, fresh)
    moved = fresh.copy()
    begins = self.shares.indptr
    for row in np.flatnonzero(np.diff(begins)):
      if self.kept[row] == NEW:
        members = self.shares.indices[begins[row] : begins[row + 1]]
        moved[row] = slots[members].max(axis=0)
    moved[self.kept >= 0] = slots[self.kept[self.kept >= 0]]
    return moved


def plan_moves(
  old: np.ndarray,
  new: np.ndarray,
  counts: np.ndarray,
  old_rows: int,
  new_rows: int,
) -> RowMoves:
  """Matches new rows with old ones by the occurrences that they share.

  >>> old, new = np.array([1, 1, 2, 3]), np.array([2, 2, 1, 1])
  >>> moves = plan_moves(old, new, np.array([5, 4, 3, 2]), 4, 4)
  >>> moves.kept.tolist()
  [0, 2, 1, -1]

  Args:
    old: `[N]` the old row of each value that both maps know.
    new: `[N]` its new row.
    counts: `[N]` how often each was seen, zero or more.
    old_rows: rows there were.
    new_rows: rows there are.
  """
  counts = np.asarray(counts, np.float64)
  if not len(old) == len(new) == len(counts):
    raise ValueError(
      f'{len(old):,} old rows, {len(new):,} new and {len(counts):,} counts '
      'are not of the same values'
    )
  for name, rows, size in (('old', old, old_rows), ('new', new, new_rows)):
    if len(rows) and not 0 < rows.min() <= rows.max() < size:
      raise ValueError(
        f'{name} rows are {rows.min():,} to {rows.max():,}, and there are rows '
        f'1 to {size - 1:,}'
      )
  shared = sparse.coo_matrix(
    (counts, (new, old)), shape=(new_rows, old_rows)
  ).tocsr()  # which adds up
  shared.eliminate_zeros()
  totals = np.asarray(shared.sum(axis=1)).ravel()
  scale = sparse.diags(1 / np.where(totals > 0, totals, 1))
  kept = _match(shared)
  kept[0] = 0  # padding stays
  return RowMoves(kept, (scale @ shared).tocsr())


def _match(shared: sparse.csr_matrix) -> np.ndarray:
  """The old row of each new one, of the matching that shares the most."""
  count, old_count = shared.shape
  # A column of its own for each row, which is worth nothing: so that a full
  # matching exists. SciPy takes no zero for an edge, so all are worth 1 more.
  unit = shared.max() / 1e6 if shared.nnz else 1.0
  shared = shared.copy()
  shared.data += unit
  own = sparse.identity(count, format='csr') * unit
  _, column = csgraph.min_weight_full_bipartite_matching(
    sparse.hstack([shared, own]).tocsr(), maximize=True
  )
  return np.where(column < old_count, column, NEW).astype(np.int64)
