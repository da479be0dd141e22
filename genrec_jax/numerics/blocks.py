"""Encodes numbers in blocks that share a power of two, bit by bit.

    arrays = encode(x, find_block_format('mxfp6_e3m2'), axis=0)
    x = decode(arrays, find_block_format('mxfp6_e3m2'), axis=0)

Everything is done with whole numbers. Powers of two from `exp2`, exponents from
`log2`, quotients by a shared number and subnormal numbers are all inexact in
XLA on a CPU, in ways that depend on the program around them; the bits of a
float32 are not. What is encoded is therefore the same in a compiled program and
without one, on one device and on many, and equal to what NumPy would make of
the definition. It is also the fastest way there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from genrec_jax.numerics.block_formats import (
  LEAST_SCALE,
  MOST_SCALE,
  NAN_SCALE,
  ROUNDINGS,
  SCALE_MODES,
  BlockFormat,
)

_FRACTION = 23  # bits behind the point of a float32
_ONE = 1 << _FRACTION
_BIAS = 127
_INFINITE = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


class Blocks(NamedTuple):
  """Encoded numbers.

  Attributes:
    codes: uint8, in the shape of the numbers. The sign is the highest of the
      format's bits, or the code a two's complement where elements are whole
      steps.
    scales: uint8, exponent + 127 of each block along the axis; 255 for a block
      that held NaN or an infinity.
    shifts: uint8, by how many powers of two each group is finer, an axis behind
      that of the blocks; None without groups.
  """

  codes: jax.Array
  scales: jax.Array
  shifts: jax.Array | None


def encode(
  x: jax.Array,
  number_format: BlockFormat,
  axis: int = -1,
  *,
  rounding: str = 'even',
  scale_mode: str = '',
  random: jax.Array | None = None,
) -> Blocks:
  """Encodes numbers in blocks along an axis.

  >>> from genrec_jax.numerics.block_formats import BLOCK_FORMATS
  >>> x = jnp.array([448.0, 464.0, 480.0, -500.0, 0.0])
  >>> blocks = encode(x, BLOCK_FORMATS['mxfp8_e4m3'])
  >>> blocks.codes.tolist(), blocks.scales.tolist()
  ([126, 126, 126, 254, 0], [127])

  Args:
    x: float32, or a float of fewer bits, every value of which float32 has.
    number_format: of the elements and their scales.
    axis: along which numbers share a scale. The last block may be shorter.
    rounding: to the nearest element, of two the 'even' one or the one 'away'
      from zero; 'down' towards zero; or 'stochastic'.
    scale_mode: in place of that of the format.
    random: uint32 in the shape of x, for 'stochastic'.

  Returns:
    The blocks. A number that is larger than the largest element saturates.
  """
  _check(x, number_format, rounding, scale_mode, random)
  axis %= x.ndim
  size = x.shape[axis]
  split = _split_axis(x.astype(jnp.float32), axis, number_format)
  bits = jax.lax.bitcast_convert_type(split, jnp.int32)
  magnitude = bits & _MAGNITUDE
  # Whole numbers order floats as their magnitudes, NaN and infinities on top.
  most = magnitude.max((axis + 1, axis + 2), keepdims=True)
  broken = most >= _INFINITE
  scale = _choose_scale(most, number_format, scale_mode)
  shift = None
  exponent, significand = _take_apart(magnitude)
  step = scale
  if number_format.group:
    # The exponent of a group of zeros is very small: it gets the finest steps.
    of_group, _ = _take_apart(magnitude.max(axis + 2, keepdims=True))
    shift = jnp.clip(scale - of_group, 0, number_format.most_shift)
    step = scale - shift
  # Exponent of an element, and what a step of it is.
  own = exponent - step
  private = (
    jnp.maximum(own, number_format.least_exponent)
    if number_format.exponent_bits
    else 0
  )
  drop = _FRACTION - number_format.mantissa_bits + private - own
  if random is not None:
    random = _split_axis(random, axis, number_format)
  code = _drop_bits(significand, drop, rounding, random)
  code += (private - number_format.least_exponent) << (
    number_format.mantissa_bits
  )
  code = jnp.minimum(code, number_format.most_code)
  code = jnp.where((significand == 0) | broken, 0, code)
  negative = (bits < 0) & ~broken
  if number_format.exponent_bits:
    code |= jnp.where(negative, 1 << (number_format.bits - 1), 0)
  else:
    code = jnp.where(negative, -code, code)
  scale = jnp.where(broken, NAN_SCALE, scale + _BIAS)
  return Blocks(
    _join_axis(code.astype(jnp.uint8), axis, size),
    scale.squeeze((axis + 1, axis + 2)).astype(jnp.uint8),
    None if shift is None else shift.squeeze(axis + 2).astype(jnp.uint8),
  )


def decode(
  blocks: Blocks,
  number_format: BlockFormat,
  axis: int = -1,
  dtype=jnp.float32,
) -> jax.Array:
  """The numbers of blocks, exactly.

  Args:
    blocks: as `encode` made them.
    number_format: of the elements and their scales.
    axis: along which numbers share a scale.
    dtype: of the result. bfloat16 has all values but the subnormal ones.

  Returns:
    The numbers; NaN in blocks that held one, or an infinity.
  """
  axis %= blocks.codes.ndim
  size = blocks.codes.shape[axis]
  codes = _split_axis(blocks.codes, axis, number_format).astype(jnp.int32)
  scale = jnp.expand_dims(blocks.scales, (axis + 1, axis + 2))
  scale = scale.astype(jnp.int32)
  exponent = scale - _BIAS
  if blocks.shifts is not None:
    exponent -= jnp.expand_dims(blocks.shifts, axis + 2).astype(jnp.int32)
  mantissa_bits = number_format.mantissa_bits
  sign_bit = 1 << (number_format.bits - 1)
  if number_format.exponent_bits:
    negative = (codes & sign_bit) != 0
    magnitude = codes & (sign_bit - 1)
    field = magnitude >> mantissa_bits
    whole = magnitude & ((1 << mantissa_bits) - 1)
    whole += jnp.where(field > 0, 1 << mantissa_bits, 0)
    exponent += jnp.maximum(field, 1) - number_format.bias
  else:
    codes = codes.astype(jnp.int8).astype(jnp.int32)
    if number_format.bits < 8:
      codes = jnp.where(codes & sign_bit, codes | -sign_bit, codes)
    negative, whole = codes < 0, jnp.abs(codes)
  bits = _put_together(whole, exponent - mantissa_bits)
  bits = jnp.where(scale == NAN_SCALE, 0x7FC00000, bits)
  bits |= jnp.where(negative, -(1 << 31), 0)
  values = jax.lax.bitcast_convert_type(bits, jnp.float32)
  return _join_axis(values, axis, size).astype(dtype)


def _check(x, number_format, rounding, scale_mode, random) -> None:
  if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize > 4:
    raise ValueError(
      f'numbers of {x.dtype} cannot be encoded as {number_format.name}: they '
      'must be floats of at most 32 bits'
    )
  if not x.ndim:
    raise ValueError('a single number has no axis along which blocks could lie')
  if rounding not in ROUNDINGS:
    raise ValueError(
      f'rounding is {rounding!r}, must be one of {", ".join(ROUNDINGS)}'
    )
  if scale_mode and scale_mode not in SCALE_MODES:
    raise ValueError(
      f'scale_mode is {scale_mode!r}, must be one of {", ".join(SCALE_MODES)}'
    )
  if (rounding == 'stochastic') != (random is not None):
    raise ValueError(
      "random bits go with rounding='stochastic', and with no other"
    )


def _split_axis(x: jax.Array, axis: int, number_format: BlockFormat):
  """`[..., n, ...]` -> `[..., blocks, groups, group, ...]`, zeros behind."""
  group = number_format.group or number_format.block
  missing = -x.shape[axis] % number_format.block
  if missing:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    x = jnp.pad(x, widths)
  before, after = x.shape[:axis], x.shape[axis + 1 :]
  groups = number_format.block // group
  return x.reshape(*before, -1, groups, group, *after)


def _join_axis(x: jax.Array, axis: int, size: int) -> jax.Array:
  """The inverse of `_split_axis`."""
  before, after = x.shape[:axis], x.shape[axis + 3 :]
  x = x.reshape(*before, -1, *after)
  return jax.lax.slice_in_dim(x, 0, size, axis=axis)


def _take_apart(magnitude: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(exponent, significand of 24 bits) of a float's bits, subnormal or not.

  Zero has a significand of zero, and an exponent below all others.
  """
  small = magnitude < _ONE
  # The conversion of a whole number to a float finds its highest bit.
  as_float = jax.lax.bitcast_convert_type(
    magnitude.astype(jnp.float32), jnp.int32
  )
  normal = jnp.where(small, as_float, magnitude)
  lowered = _BIAS + jnp.where(small, 126 + _FRACTION, 0)
  exponent = (normal >> _FRACTION) - lowered
  significand = (normal & (_ONE - 1)) | jnp.where(normal > 0, _ONE, 0)
  return exponent, significand


def _choose_scale(most: jax.Array, number_format: BlockFormat, mode: str):
  """Exponent of the power of two that a block shares."""
  exponent, significand = _take_apart(most)
  mode = mode or number_format.scale_mode
  fraction = significand & (_ONE - 1)
  if mode == 'rceil':
    above = fraction > number_format.most_fraction
    exponent += above.astype(jnp.int32)
  elif mode == 'ceil':
    exponent += (fraction > 0).astype(jnp.int32)
  elif mode == 'even':
    half = 1 << (_FRACTION - 1 - number_format.mantissa_bits)
    exponent += (significand + half) >> (_FRACTION + 1)
  return jnp.clip(
    exponent - number_format.most_exponent, LEAST_SCALE, MOST_SCALE
  )


def _drop_bits(significand, count, rounding: str, random) -> jax.Array:
  """A number of 24 bits without its `count` last ones, rounded."""
  if rounding == 'stochastic':
    # Of what lies below the 31 bits of a random number nothing is left.
    far = jnp.clip(count - 31, 0, 24)
    count = jnp.clip(count, 0, 31)
    kept = (significand >> far).astype(jnp.uint32)
    below = (jnp.uint32(1) << count.astype(jnp.uint32)) - jnp.uint32(1)
    return ((kept + (random & below)) >> count.astype(jnp.uint32)).astype(
      jnp.int32
    )
  count = jnp.clip(count, 0, _FRACTION + 3)
  if rounding == 'even':
    significand += ((significand >> count) & 1) - 1
  if rounding != 'down':
    significand += (1 << count) >> 1
  return significand >> count


def _put_together(whole: jax.Array, exponent: jax.Array) -> jax.Array:
  """Bits of `whole * 2^exponent`, with whole numbers below 2^8."""
  as_float = jax.lax.bitcast_convert_type(whole.astype(jnp.float32), jnp.int32)
  field = (as_float >> _FRACTION) + exponent
  normal = as_float + (exponent << _FRACTION)
  # A subnormal number has no bit in front of its point.
  significand = (as_float & (_ONE - 1)) | _ONE
  subnormal = significand >> jnp.clip(1 - field, 0, 31)
  bits = jnp.where(field > 0, normal, subnormal)
  return jnp.where(whole == 0, 0, bits)
