"""A split in two: each row by a draw of its own."""

from collections.abc import Sequence

import numpy as np

from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking.store import SplitStore


def cut_split(
  split: SplitStore, share: float, seed: int
) -> tuple[SplitStore, SplitStore]:
  """The rows of a split but for a share of them, and that share.

  Blocks are read when they are asked for, as those of the split itself; the
  same seed gives the same rows.

  Args:
    split: whose rows.
    share: of the rows, between 0 and 1.
    seed: of the draws.
  """
  sizes = np.diff(split.starts)
  drawn = [
    np.flatnonzero(np.random.default_rng([seed, i]).random(size) < share)
    for i, size in enumerate(sizes)
  ]
  rest = [
    np.setdiff1d(np.arange(size), own, assume_unique=True)
    for size, own in zip(sizes, drawn, strict=True)
  ]
  return _keep_rows(split, rest), _keep_rows(split, drawn)


def _keep_rows(split: SplitStore, places: Sequence[np.ndarray]) -> SplitStore:
  kept = [(i, own) for i, own in enumerate(places) if len(own)]
  source = _SomeRows(split, kept)
  return SplitStore(
    split.name, [len(own) for _, own in kept], source, split.names
  )


class _SomeRows(Sequence):
  """Blocks of which some rows are left."""

  def __init__(self, split: SplitStore, kept):
    self._split, self._kept = split, kept

  def __len__(self) -> int:
    return len(self._kept)

  def __getitem__(self, number: int) -> rows_lib.Rows:
    block, places = self._kept[number]
    return self._split.block(block).take(places)
