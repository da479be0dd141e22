"""Shapes of real tables and batches, shared by the tests and the benchmarks."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
  """One table and one batch of bags.

  Attributes:
    rows: rows of the table.
    dim: elements of a row.
    bags: B.
    length: ids of each bag; the longest if `uneven`.
    uneven: whether lengths are uniform in 0 .. length, with padding at the end.
    zipf: exponent of the popularity of ids, 0 for all alike. Popular ids are
      scattered over the table.
  """

  rows: int
  dim: int
  bags: int
  length: int
  uneven: bool = False
  zipf: float = 0.0

  @property
  def capacity(self) -> int:
    return self.bags * self.length


# The shape of FBGEMM's own benchmark of one table, then what models have.
_PEER = dict(dim=64, bags=4096, length=26)
SHAPES = {
  'million_uniform': Shape(1_000_000, **_PEER),
  'million_zipf': Shape(1_000_000, zipf=1.05, **_PEER),
  'ten_million_uniform': Shape(10_000_000, **_PEER),
  'ten_million_zipf': Shape(10_000_000, zipf=1.05, **_PEER),
  # MovieLens-1M as sequences: an item table and a batch of 128 histories.
  'ml1m_items': Shape(3_884, 50, 128, 200, uneven=True, zipf=0.8),
  'wide': Shape(2_000, 256, 64, 40, uneven=True, zipf=1.05),
  'narrow': Shape(500, 7, 300, 9, uneven=True),
  'tiny': Shape(11, 5, 6, 4, uneven=True),
}


def lengths(shape: Shape, seed: int = 0) -> np.ndarray:
  """Ids of each bag, `[B]` int32."""
  if not shape.uneven:
    return np.full(shape.bags, shape.length, np.int32)
  rng = np.random.default_rng(seed)
  return rng.integers(0, shape.length + 1, shape.bags, dtype=np.int32)


def ids(shape: Shape, seed: int = 0) -> np.ndarray:
  """Packed ids, `[capacity]` int32; also the padding holds rows."""
  rng = np.random.default_rng(seed + 1)
  if not shape.zipf:
    return rng.integers(0, shape.rows, shape.capacity, dtype=np.int32)
  popularity = np.arange(1, shape.rows + 1, dtype=np.float64) ** -shape.zipf
  ends = np.cumsum(popularity)
  rank = np.searchsorted(ends, rng.random(shape.capacity) * ends[-1])
  # Which row is popular does not depend on the seed.
  place = np.random.default_rng(0).permutation(shape.rows)
  return place[np.minimum(rank, shape.rows - 1)].astype(np.int32)
