"""A codebook for each row: one-dimensional k-means.

Lloyd's rounds from evenly spaced centroids, so that no row is worse off than
with the levels they start as. On sorted rows a cluster is a stretch, its sum a
difference of two prefix sums.
"""

import numpy as np

# Rounds until the error hardly falls any more; most rows end before.
ROUNDS = 30


def codebooks(rows: np.ndarray, bits: int) -> np.ndarray:
  """Centroids of each row, ascending: `[R, D]` float32 -> `[2**bits, R]`."""
  count, dim = rows.shape
  size = 2**bits
  ordered = np.ascontiguousarray(np.sort(rows, axis=1).T)
  sums = np.zeros((dim + 1, count))
  np.cumsum(ordered, axis=0, dtype=np.float64, out=sums[1:])
  low, high = ordered[0], ordered[-1]
  share = (np.arange(size) / (size - 1)).astype(np.float32)
  centroids = low[None] + share[:, None] * (high - low)[None]
  ends = np.zeros((size + 1, count), np.int64)
  ends[-1] = dim
  for _ in range(ROUNDS):
    for end, middle in zip(ends[1:-1], middles(centroids), strict=True):
      np.add.reduce(ordered <= middle, axis=0, out=end)
    members = np.diff(ends, axis=0)
    means = np.diff(np.take_along_axis(sums, ends, axis=0), axis=0)
    means = (means / np.maximum(members, 1)).astype(np.float32)
    means = np.where(members > 0, means, centroids)  # nobody's stays
    if np.array_equal(means, centroids):
      break
    centroids = means
  return centroids


def middles(centroids: np.ndarray) -> np.ndarray:
  """Where the next centroid becomes the nearest: `[K, R]` -> `[K - 1, R]`."""
  return (centroids[1:] + centroids[:-1]) / np.float32(2)


def nearest(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
  """Codes `[D, R]` uint8 of the centroids nearest to `x`, `[D, R]`."""
  codes = np.zeros(x.shape, np.uint8)
  for middle in middles(centroids):
    codes += x > middle
  return codes
