"""Chooses settings of the range search by trying them on a sample of rows."""

import math

import numpy as np

from genrec_jax.numerics.row_quant import dequantize, quantize

# What is tried: fine steps and deep cuts cost time, `bins * ratio` steps a row.
BINS = (5, 10, 15, 25, 35, 45, 60)
RATIOS = (0.3, 0.5, 0.7, 0.9)
FEWEST = 200  # rows, whatever the share


def tune_search(
  rows: np.ndarray,
  bits: int,
  sample: float = 1e-5,
  rng: np.random.Generator | None = None,
) -> tuple[int, float]:
  """Chooses the settings of the search for these rows by trying a few of them.

  Args:
    rows: `[n, D]` float32.
    bits: 2, 3 or 4.
    sample: share of the rows to try, though `FEWEST` at least.
    rng: draws the sample; seeded with 0 if None.

  Returns:
    (bins, ratio): the fewest steps of search whose mean L2 error over the
    sample is within 1 % of the best.
  """
  if bits > 4:
    raise ValueError(f'{bits} bits are not searched: there is nothing to tune')
  if not len(rows):
    raise ValueError('there are no rows to tune on')
  dim = rows.shape[1]
  rng = rng or np.random.default_rng(0)
  size = min(len(rows), max(FEWEST, math.ceil(sample * len(rows))))
  # Sorted, so that a table in a mapped file is read from front to back.
  some = rows[np.sort(rng.choice(len(rows), size, replace=False))]
  errors = {
    (bins, ratio): mean_error(
      some, dequantize(quantize(some, bits, bins=bins, ratio=ratio), dim, bits)
    )
    for ratio in RATIOS
    for bins in BINS
  }
  # The time of a search grows with its steps, so nearly the best will do.
  enough = 1.01 * min(errors.values())
  return min(
    (setting for setting, error in errors.items() if error <= enough),
    key=lambda setting: setting[0] * setting[1],
  )


def mean_error(rows: np.ndarray, approximation: np.ndarray) -> float:
  """The mean over rows of the L2 norm of the error of a row."""
  off = approximation.astype(np.float64) - rows
  return float(np.sqrt(np.square(off).sum(axis=1)).mean())
