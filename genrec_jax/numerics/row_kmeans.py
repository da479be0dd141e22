"""A codebook for each row: one-dimensional k-means.

Lloyd's algorithm starts from evenly spaced centroids, so that no row ends up
worse than with these levels. In a sorted row a cluster is a run of neighbours,
and its sum the difference of two prefix sums.
"""

import numpy as np

from genrec_jax.numerics import row_blocks
from genrec_jax.numerics.bit_packing import unpack_codes
from genrec_jax.numerics.number_format import NumberFormat

# After so many rounds the error hardly falls; most rows stop earlier.
ROUNDS = 30


def kmeans(bits: int) -> NumberFormat:
  """The format in which each row has `2**bits` levels of its own, anywhere."""
  size = 2**bits

  def lay_out_arrays(columns):
    return row_blocks.lay_out_arrays(columns, bits, codebook=size)

  def encode_rows(rows, xp):
    del xp
    columns = rows.shape[-1]
    if columns <= size:
      raise ValueError(
        f'kmeans with {bits} bits keeps {size} numbers a row beside the '
        f'codes, which does not make rows of {columns} smaller: take fewer '
        'bits or adaptive'
      )
    return row_blocks.encode_rows(
      rows, bits, lay_out_arrays(columns), _quantise_block
    )

  def decode_rows(arrays, columns, xp):
    del xp
    codes = unpack_codes(np.asarray(arrays['codes']), columns, bits)
    book = np.asarray(arrays['codebook']).astype(np.float32)
    return np.take_along_axis(book, codes, axis=1)

  return NumberFormat(
    f'kmeans{bits}',
    encode_rows,
    decode_rows,
    lay_out_arrays,
    engines=('numpy',),
    method='kmeans',
    bits=bits,
    least_columns=size + 1,
  )


def _quantise_block(block):
  book = find_codebooks(block.rows, block.bits)
  # Codes of the numbers that are kept, which float16 may have moved.
  book = book.astype(np.float16 if block.half else np.float32)
  codes = nearest_centroids(block.x, book.astype(np.float32))
  return codes, {'codebook': book.T}


def find_codebooks(rows: np.ndarray, bits: int) -> np.ndarray:
  """Centroids of each row, ascending: `[R, D]` float32 -> `[2**bits, R]`."""
  count, dim = rows.shape
  size = 2**bits
  ordered = np.ascontiguousarray(np.sort(rows, axis=1).T)
  sums = np.zeros((dim + 1, count))
  # In float64: a difference of two long sums loses digits.
  np.cumsum(ordered, axis=0, dtype=np.float64, out=sums[1:])
  low, high = ordered[0], ordered[-1]
  share = (np.arange(size) / (size - 1)).astype(np.float32)
  centroids = low[None] + share[:, None] * (high - low)[None]
  ends = np.zeros((size + 1, count), np.int64)
  ends[-1] = dim
  for _ in range(ROUNDS):
    for end, middle in zip(ends[1:-1], midpoints(centroids), strict=True):
      # Counts instead of searching, so that all rows take this step at once.
      np.add.reduce(ordered <= middle, axis=0, out=end)
    members = np.diff(ends, axis=0)
    means = np.diff(np.take_along_axis(sums, ends, axis=0), axis=0)
    means = (means / np.maximum(members, 1)).astype(np.float32)
    means = np.where(members > 0, means, centroids)  # nobody's stays
    # Lloyd's rounds repeat from here on.
    if np.array_equal(means, centroids):
      break
    centroids = means
  return centroids


def midpoints(centroids: np.ndarray) -> np.ndarray:
  """The numbers halfway between centroids: `[K, R]` -> `[K - 1, R]`."""
  return (centroids[1:] + centroids[:-1]) / np.float32(2)


def nearest_centroids(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
  """Codes `[D, R]` uint8 of the centroids nearest to `x`, `[D, R]`."""
  codes = np.zeros(x.shape, np.uint8)
  for middle in midpoints(centroids):
    # The nearest centroid is the number of midpoints below.
    codes += x > middle
  return codes
