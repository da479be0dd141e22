"""Evenly spaced levels of a row, and the nearest level of each element.

Rows are stored as columns, `[D, R]`, so that a vector instruction works on
sixteen rows and sums run over the elements in order. The functions take the
module that does the arithmetic: numpy, or jax.numpy for the program of
`range_search_xla`, which must compute the same bits.
"""

import types

import numpy as np


def choose_levels(xp: types.ModuleType, low, high, top, half: bool):
  """The levels `bias + code * scale` from `low` to `high`, codes 0 to `top`.

  With `half`, bias and scale are rounded to float16 as FBGEMM does for 4 and 2
  bits: first the bias, then the scale of the range above the rounded bias.
  Without, they are those of FBGEMM for 8 bits.

  Args:
    xp: numpy or jax.numpy.
    low: `[R]` float32.
    high: `[R]` float32, not below `low`.
    top: `[R]` float32, `2**bits - 1`. An array and not a number: XLA would
      multiply by the reciprocal of a number instead of dividing by it.
    half: whether to round bias and scale to float16.

  Returns:
    Bias, scale and the factor of `x - bias`, `[R]` float32 each.
  """
  one = xp.float32(1)
  if not half:
    span = high - low
    # All elements are the bias: any factor gives the code 0.
    flat = span == 0
    inverse = xp.where(flat, one, top / xp.where(flat, one, span))
    return low, span / top, inverse
  bias = _round_to_half(xp, low)
  # From the rounded bias on, so that its rounding does not shift the top.
  span = high - bias
  scale = _round_to_half(xp, xp.where(span == 0, one, span / top))
  # A scale may round to zero in float16.
  scale = xp.where(scale == 0, one, scale)
  return bias, scale, one / scale


def nearest_codes(
  x, bias, inverse, top: int, out=None, xp: types.ModuleType = np
):
  """Codes, as float32, of the levels nearest to `x`.

  Args:
    x: numbers.
    bias: the lowest level, of a shape that broadcasts against `x`.
    inverse: the factor of `x - bias`.
    top: the greatest code.
    out: array to write to, in NumPy.
    xp: numpy or jax.numpy.

  Returns:
    Whole numbers from 0 to `top`, in the shape of `x`.
  """
  out = x - bias if out is None else np.subtract(x, bias, out=out)
  # In NumPy all steps write to one array; those of JAX cannot be written to.
  into = {'out': out} if xp is np else {}
  out = xp.multiply(out, inverse, **into)
  out = xp.rint(out, **into)
  return xp.clip(out, np.float32(0), np.float32(top), **into)


def _round_to_half(xp, x):
  return x.astype(xp.float16).astype(xp.float32)
