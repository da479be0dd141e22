"""Whole numbers under a scale in float32: INT, and VSQ with a second scale.

    rounded = round_to_integers(x, INTEGER_FORMATS['int8'], axis=0, xp=jnp)

All numbers along an axis share one scale, such that the largest of them is the
largest whole number. In VSQ (arXiv 2102.04503) each vector of 16 has a scale
of its own besides, a whole number of a few bits: steps are as fine as the
largest number of the vector allows, rounded up, so that nothing saturates.

| format | bits | vector | its scale, bits | bits of a number, of 1,024 |
|--------|------|--------|-----------------|----------------------------|
| int8   | 8    |        |                 | 8.03                       |
| int4   | 4    |        |                 | 4.03                       |
| vsq8   | 8    | 16     | 8               | 8.53                       |
| vsq6   | 6    | 16     | 6               | 6.41                       |
| vsq4   | 4    | 16     | 4               | 4.28                       |

Unlike those of `block_formats`, these scales are no powers of two: what is
rounded is not what bfloat16 has, and its products are computed in float32.
"""

import dataclasses
import types
from typing import Any

import numpy as np

from genrec_jax.numerics.block_formats import check_whole
from genrec_jax.numerics.blocks import check_axis, check_floats

Array = Any  # of NumPy or of JAX
# Below, the inverse of a step would be larger than any float32.
_LEAST = np.float32(2.0**-110)


@dataclasses.dataclass(frozen=True)
class IntegerFormat:
  """Whole numbers from -(2^(bits-1) - 1) to 2^(bits-1) - 1, and their scales.

  Attributes:
    name: of the format.
    bits: of a number, with its sign.
    vector: how many numbers share a second scale; 0 for none.
    scale_bits: of the second scale.
  """

  name: str
  bits: int
  vector: int = 0
  scale_bits: int = 0

  def __post_init__(self):
    check_whole(self, 'bits', 'vector', 'scale_bits')
    if not 2 <= self.bits <= 8:
      raise ValueError(f'{self.name!r} has {self.bits} bits, must be 2 to 8')
    if bool(self.vector) != bool(self.scale_bits) or self.scale_bits > 10:
      raise ValueError(
        f'{self.name!r} has vectors of {self.vector} with scales of '
        f'{self.scale_bits} bits: both must be 0, or neither, and 10 are most'
      )

  @property
  def most(self) -> int:
    """The largest whole number of an element."""
    return 2 ** (self.bits - 1) - 1

  def mean_bits(self, length: int) -> float:
    """Of a number, with its part of the scales of an axis.

    >>> INTEGER_FORMATS['vsq4'].mean_bits(1024)
    4.28125
    """
    second = self.scale_bits / self.vector if self.vector else 0.0
    return self.bits + second + 32 / length


INTEGER_FORMATS: dict[str, IntegerFormat] = {
  x.name: x
  for x in (
    IntegerFormat('int8', 8),
    IntegerFormat('int4', 4),
    IntegerFormat('vsq8', 8, 16, 8),
    IntegerFormat('vsq6', 6, 16, 6),
    IntegerFormat('vsq4', 4, 16, 4),
  )
}


def round_to_integers(
  x: Array,
  number_format: IntegerFormat,
  axis: int = -1,
  xp: types.ModuleType = np,
) -> Array:
  """The nearest numbers that a format has, ties to even.

  >>> x = np.array([127, -2.5, 1.5, 0.4], np.float32)
  >>> round_to_integers(x, INTEGER_FORMATS['int8']).tolist()
  [127.0, -2.0, 2.0, 0.0]

  Args:
    x: floats of at most 32 bits.
    number_format: of `INTEGER_FORMATS`, or your own.
    axis: along which numbers share the scale in float32.
    xp: `numpy`, or `jax.numpy` in a program; the bits are the same.

  Returns:
    float32. A NaN or an infinity makes all NaN that shares its scale; numbers
    whose largest is below 2^-110 are zeros.
  """
  check_floats(x, number_format.name)
  axis = check_axis(axis, x)
  wide = x.astype(np.float32)
  size, vector = x.shape[axis], number_format.vector
  if not size:
    return wide
  # A product with what is known, since XLA makes one of such a quotient.
  share = np.float32(1 / number_format.most)
  if not vector:
    step = _find_largest(wide, axis, xp) * share
    return _round_in_steps(wide, step, number_format, xp)
  if missing := -size % vector:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    wide = xp.pad(wide, widths)
  before, after = wide.shape[:axis], wide.shape[axis + 1 :]
  split = wide.reshape(*before, -1, vector, *after)
  largest = _find_largest(split, axis + 1, xp)
  # The largest vector has the largest second scale. One factor and not two:
  # XLA would make one of them where there is a single vector.
  top = 2**number_format.scale_bits - 1
  first = _find_largest(split, (axis, axis + 1), xp)
  first = first * np.float32(1 / (number_format.most * top))
  inverse = np.float32(1) / xp.where(first > 0, first, np.float32(1))
  # A hair less, so that the largest is not rounded above the top.
  second = xp.ceil(largest * inverse * share - np.float32(2.0**-12))
  second = xp.maximum(second, np.float32(1))
  step = xp.where(first > 0, second * first, first)
  found = _round_in_steps(split, step, number_format, xp)
  index = (slice(None),) * axis + (slice(size),)
  return found.reshape(*before, -1, *after)[index]


def _find_largest(x, axis, xp):
  """The largest magnitude along axes; NaN with a NaN, 0 of tiny numbers."""
  # A maximum of floats may leave a NaN out; as whole numbers they are on top.
  bits = (x.view(np.int32) & np.int32(0x7FFFFFFF)).max(axis, keepdims=True)
  largest = bits.view(np.float32)
  return xp.where(largest < _LEAST, np.float32(0), largest)


def _round_in_steps(x, step, number_format: IntegerFormat, xp):
  """Whole numbers of steps; NaN where the step is NaN or infinite."""
  known = (step > 0) & (step < np.float32(np.inf))
  inverse = np.float32(1) / xp.where(known, step, np.float32(1))
  most = np.float32(number_format.most)
  whole = xp.clip(xp.rint(x * inverse), -most, most)
  value = xp.where(known, whole * step, np.float32(0))
  broken = ~(step < np.float32(np.inf))
  return xp.where(broken, np.float32(np.nan), value)
