"""Searches the range of a row that its levels should span.

The whole range is not always best: an outlier stretches the levels of all other
elements. The greedy search of Check-N-Run (arXiv 2010.08679) cuts the range at
whichever end costs less, by `1 / bins` of it at a time, and remembers the best
range; `range_walk` has the exact rules.

Two programs do the same arithmetic in the same order and so compute the same
bits: the NumPy program below, for few rows and where JAX has no CPU, and an XLA
program, which is several times faster and does not hold the interpreter's lock
while it runs.
"""

import functools

import numpy as np

from genrec_jax.numerics import range_walk
from genrec_jax.numerics.levels import choose_levels, nearest_codes

BLOCK = 2048  # rows: a block of 64 columns, 512 KB, stays in the cache
FEW = 512  # rows that NumPy searches sooner than XLA compiles


def search_ranges(
  x: np.ndarray,
  low: np.ndarray,
  high: np.ndarray,
  *,
  bits: int,
  bins: int,
  ratio: float,
  half: bool,
) -> np.ndarray:
  """Searches the range of each row.

  Args:
    x: rows as columns, `[D, R]` float32, R at most `BLOCK`.
    low: least value of each row, `[R]` float32.
    high: greatest value of each row, `[R]`.
    bits: 2, 3, 4 or 8.
    bins: steps in a whole range.
    ratio: share of the range that may be cut off.
    half: whether bias and scale will be float16.

  Returns:
    Ends of the best range found, `[2, R]` float32.
  """
  # Rows whose numbers fit float16 have squares that fit float32.
  if half:
    return _walk_ranges(x, low, high, bits, bins, ratio, half)
  # In float32 squares of small or large numbers would leave its range: bring
  # all ranges near one, by powers of two, which round nothing.
  exponent = np.clip(np.frexp(high - low)[1], -125, 126)
  unit = np.ldexp(np.float32(1), -exponent)
  back = np.ldexp(np.float32(1), exponent)
  ranges = _walk_ranges(
    x * unit[None], low * unit, high * unit, bits, bins, ratio, half
  )
  # What has not moved stays as it was, subnormal numbers too.
  whole = np.stack([low, high])
  return np.where(ranges == whole * unit[None], whole, ranges * back[None])


def _walk_ranges(x, low, high, bits, bins, ratio, half):
  # In float32 from here on, so that both programs take the same steps.
  step = (high - low) / np.float32(bins)
  least = np.float32(bins * (1.0 - ratio)) * step
  ends = np.stack([low, high, step, least, np.full_like(low, 2**bits - 1)])
  # Rows far from zero may have steps that round to nothing.
  most = bins + 1
  device = _find_cpu() if x.shape[1] > FEW else None
  if device is None:
    return _in_numpy(x, *ends, most, half)
  from genrec_jax.numerics import range_search_xla

  return range_search_xla.search_ranges(
    x, ends, most, half=half, to=BLOCK, device=device
  )


def _in_numpy(x, low, high, step, least, top, most, half):
  work = np.empty_like(x)

  def measure_error(low, high):
    bias, scale, inverse = choose_levels(np, low, high, top, half)
    y = nearest_codes(x, bias, inverse, top[0], out=work)
    np.multiply(y, scale, out=y)
    np.add(y, bias, out=y)
    np.subtract(x, y, out=y)
    np.multiply(y, y, out=y)
    total = np.zeros_like(low)
    for squares in y:  # in order: np.sum has an order for each shape
      total += squares
    return np.sqrt(total)

  walk = range_walk.start_walk(measure_error(low, high), low, high)
  for _ in range(most):
    if not range_walk.unfinished_rows(walk, least).any():
      break
    raised, lowered = (
      measure_error(*ends) for ends in range_walk.advance_ranges(walk, step)
    )
    walk = range_walk.advance_walk(np, walk, step, least, raised, lowered)
  return np.stack(walk[4:])


@functools.cache
def _find_cpu():
  """The CPU as a device of JAX, or None if JAX is not to use it."""
  import jax

  try:
    return jax.local_devices(backend='cpu')[0]
  except RuntimeError:
    return None
