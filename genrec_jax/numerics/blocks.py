"""Encodes numbers in blocks that share a power of two, bit by bit.

    arrays = encode(x, find_block_format('mxfp6_e3m2'), axis=0, xp=jnp)
    x = decode(arrays, find_block_format('mxfp6_e3m2'), axis=0, xp=jnp)

Everything is done with whole numbers. Powers of two from `exp2`, exponents from
`log2`, quotients by a shared number and subnormal numbers are all inexact in
XLA on a CPU, in ways that depend on the program around them; the bits of a
float32 are not. What is encoded is therefore the same in a compiled program and
without one, on one device and on many, and equal to what NumPy would make of
the definition. It is also the fastest way there.
"""

import math
import types
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from genrec_jax.numerics.block_formats import (
  LEAST_SCALE,
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
_NAN = 0x7FC00000

Array = Any  # of NumPy or of JAX


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

  codes: Array
  scales: Array
  shifts: Array | None


def encode(
  x: Array,
  number_format: BlockFormat,
  axis: int = -1,
  *,
  rounding: str = 'even',
  scale_mode: str = '',
  random: Array | None = None,
  xp: types.ModuleType = np,
) -> Blocks:
  """Encodes numbers in blocks along an axis.

  >>> from genrec_jax.numerics.block_formats import BLOCK_FORMATS
  >>> x = np.array([448, 464, 480, -500, 0], np.float32)
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
    xp: `numpy`, or `jax.numpy` in a program; the bits are the same.

  Returns:
    The blocks. A number that is larger than the largest element saturates.
  """
  _check(x, number_format, rounding, scale_mode, random)
  axis = check_axis(axis, x)
  size = x.shape[axis]
  split = _split_axis(x.astype(np.float32), axis, number_format, xp)
  bits = split.view(np.int32)
  magnitude = bits & _MAGNITUDE
  # Whole numbers order floats as their magnitudes, NaN and infinities on top.
  most = magnitude.max((axis + 1, axis + 2), keepdims=True)
  broken = most >= _INFINITE
  scale = _choose_scale(most, number_format, scale_mode, xp)
  step, shift = scale, None
  if number_format.group:
    # The exponent of a group of zeros is very small: it gets the finest steps.
    of_group, _ = _take_apart(magnitude.max(axis + 2, keepdims=True), xp)
    shift = xp.clip(scale - of_group, 0, number_format.most_shift)
    step = scale - shift
  if random is not None:
    random = _split_axis(random, axis, number_format, xp)
  code = _encode_elements(
    xp.where(broken, 0, bits), step, number_format, rounding, random, xp
  )
  scale = xp.where(broken, NAN_SCALE, scale + _BIAS)
  return Blocks(
    _join_axis(code, axis, size),
    scale.squeeze((axis + 1, axis + 2)).astype(np.uint8),
    None if shift is None else shift.squeeze(axis + 2).astype(np.uint8),
  )


def encode_elements(
  x: Array,
  number_format: BlockFormat,
  scale: int = 0,
  rounding: str = 'even',
  xp: types.ModuleType = np,
) -> Array:
  """Codes of numbers whose scale is one given power of two.

  >>> from genrec_jax.numerics.block_formats import BLOCK_FORMATS
  >>> e2m1 = BLOCK_FORMATS['mxfp4_e2m1']
  >>> encode_elements(np.array([0.5, 1, -6, 7], np.float32), e2m1).tolist()
  [1, 2, 15, 7]

  Args:
    x: float32. What is too large becomes the largest element, NaN too.
    number_format: of the elements.
    scale: exponent of the power of two that is 1 to the elements.
    rounding: 'even', 'away' or 'down'.
    xp: `numpy`, or `jax.numpy` in a program.

  Returns:
    uint8, in the shape of x.
  """
  _check(x, number_format, rounding, '', None)
  bits = x.astype(np.float32).view(np.int32)
  return _encode_elements(bits, scale, number_format, rounding, None, xp)


def _encode_elements(bits, step, number_format, rounding, random, xp):
  """Codes of the numbers with these bits, in steps of `2^step`."""
  exponent, significand = _take_apart(bits & _MAGNITUDE, xp)
  # Exponent of an element, and that of the smallest with its steps.
  own = exponent - step
  private = own * 0
  if number_format.exponent_bits:
    private = xp.maximum(own, number_format.least_exponent)
  drop = _FRACTION - number_format.mantissa_bits + private - own
  code = _drop_bits(significand, drop, rounding, random, xp)
  code += (private - number_format.least_exponent) << (
    number_format.mantissa_bits
  )
  code = xp.minimum(code, number_format.most_code)
  code = xp.where(significand == 0, 0, code)
  if number_format.exponent_bits:
    code |= xp.where(bits < 0, 1 << (number_format.bits - 1), 0)
  else:
    code = xp.where(bits < 0, -code, code)
  return code.astype(np.uint8)


def decode(
  blocks: Blocks,
  number_format: BlockFormat,
  axis: int = -1,
  dtype=np.float32,
  xp: types.ModuleType = np,
) -> Array:
  """The numbers of blocks, exactly.

  Args:
    blocks: as `encode` made them.
    number_format: of the elements and their scales.
    axis: along which numbers share a scale.
    dtype: of the result. bfloat16 has all values but the subnormal ones.
    xp: `numpy`, or `jax.numpy` in a program.

  Returns:
    The numbers; NaN in blocks that held one, or an infinity. What float32
    cannot hold is infinite, and codes that stand for NaN or an infinity are
    these.
  """
  axis = check_axis(axis, blocks.codes)
  size = blocks.codes.shape[axis]
  _check_blocks(blocks, number_format, size, axis)
  codes = _split_axis(blocks.codes, axis, number_format, xp)
  scale = xp.expand_dims(blocks.scales, (axis + 1, axis + 2)).astype(np.int32)
  step = scale - _BIAS
  if blocks.shifts is not None:
    step = step - xp.expand_dims(blocks.shifts, axis + 2).astype(np.int32)
  bits = _decode_elements(codes, step, number_format, xp)
  if number_format.specials:
    # `encode` writes no such codes, but blocks may come from elsewhere.
    beyond = (codes & ((1 << (number_format.bits - 1)) - 1)).astype(np.int32)
    beyond -= number_format.most_code
    infinite = (beyond == 1) & (number_format.specials == 'ieee')
    special = xp.where(infinite, (bits & ~_MAGNITUDE) | _INFINITE, _NAN)
    bits = xp.where(beyond > 0, special, bits)
  bits = xp.where(scale == NAN_SCALE, _NAN, bits)
  return _join_axis(bits.view(np.float32), axis, size).astype(dtype)


def _check_blocks(
  blocks: Blocks, number_format: BlockFormat, size: int, axis: int
) -> None:
  """Refuses blocks that another format made, as far as shapes tell it."""
  found = blocks.scales.shape[axis], blocks.shifts is not None
  wanted = -(-size // number_format.block), bool(number_format.group)
  if found != wanted:
    told = [f'{n} scales, with{"" if own else "out"} shifts' for n, own in
            (wanted, found)]  # fmt: skip
    raise ValueError(
      f'{size} numbers in {number_format.name} have {told[0]}; these blocks '
      f'have {told[1]}: decode them in the format that encoded them'
    )


def decode_elements(
  codes: Array,
  number_format: BlockFormat,
  scale: int = 0,
  xp: types.ModuleType = np,
) -> Array:
  """float32 of the codes of `encode_elements`.

  >>> from genrec_jax.numerics.block_formats import BLOCK_FORMATS
  >>> e2m1 = BLOCK_FORMATS['mxfp4_e2m1']
  >>> decode_elements(np.array([1, 2, 15, 7], np.uint8), e2m1).tolist()
  [0.5, 1.0, -6.0, 6.0]

  Args:
    codes: uint8.
    number_format: of the elements.
    scale: exponent of the power of two that is 1 to the elements.
    xp: `numpy`, or `jax.numpy` in a program.
  """
  bits = _decode_elements(codes, scale, number_format, xp)
  return bits.view(np.float32)


def _decode_elements(codes, step, number_format, xp):
  """Bits of the numbers that have these codes, in steps of `2^step`."""
  codes = codes.astype(np.int32)
  mantissa_bits = number_format.mantissa_bits
  sign_bit = 1 << (number_format.bits - 1)
  exponent = codes * 0 + step
  if number_format.exponent_bits:
    negative = (codes & sign_bit) != 0
    magnitude = codes & (sign_bit - 1)
    field = magnitude >> mantissa_bits
    whole = magnitude & ((1 << mantissa_bits) - 1)
    whole += xp.where(field > 0, 1 << mantissa_bits, 0)
    exponent += xp.maximum(field, 1) - number_format.bias
  else:
    codes = codes.astype(np.int8).astype(np.int32)
    if number_format.bits < 8:
      codes = xp.where((codes & sign_bit) != 0, codes | -sign_bit, codes)
    negative, whole = codes < 0, xp.abs(codes)
  # Elements that are never above one step fit every scale.
  overflows = number_format.most_exponent > 0
  bits = _put_together(whole, exponent - mantissa_bits, overflows, xp)
  return bits | xp.where(negative, np.int32(-(1 << 31)), 0)


def check_floats(x: Array, name: str) -> None:
  """Refuses what is no array of floats that float32 has.

  Args:
    x: an array.
    name: of the format that is asked for.
  """
  if not _is_float(x.dtype) or x.dtype.itemsize > 4:
    raise ValueError(
      f'numbers of {x.dtype} cannot be encoded as {name}: they must be floats '
      'of at most 32 bits'
    )


def check_axis(axis: int, x: Array) -> int:
  """The number of an axis, from 0.

  >>> check_axis(-1, np.zeros((2, 3)))
  1

  Args:
    axis: counted from the first, or below 0 from the last.
    x: an array.

  Raises:
    ValueError: the array has no such axis.
  """
  if not x.ndim:
    raise ValueError('a single number has no axis along which blocks could lie')
  is_whole = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
  if not is_whole or not -x.ndim <= axis < x.ndim:
    raise ValueError(
      f'axis is {axis!r:.100}, and the array has {x.ndim} axes; give '
      f'{-x.ndim} to {x.ndim - 1}'
    )
  return int(axis) % x.ndim


def _check(x, number_format, rounding, scale_mode, random) -> None:
  check_floats(x, number_format.name)
  check_axis(-1, x)
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
  if random is not None and (random.shape, random.dtype) != (
    x.shape,
    np.uint32,
  ):
    raise ValueError(
      f'random bits must be uint32 {x.shape}, not {random.dtype} {random.shape}'
    )


def _is_float(dtype) -> bool:
  try:
    return bool(ml_dtypes.finfo(dtype).bits)  # of bfloat16 too, unlike NumPy
  except ValueError:
    return False


def _split_axis(x, axis: int, number_format: BlockFormat, xp):
  """`[..., n, ...]` -> `[..., blocks, groups, group, ...]`, zeros behind."""
  group = number_format.group or number_format.block
  missing = -x.shape[axis] % number_format.block
  if missing:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    x = xp.pad(x, widths)
  before, after = x.shape[:axis], x.shape[axis + 1 :]
  groups = number_format.block // group
  # Said, and not -1, which no array without numbers can tell.
  count = x.shape[axis] // number_format.block
  return x.reshape(*before, count, groups, group, *after)


def _join_axis(x, axis: int, size: int):
  """The inverse of `_split_axis`."""
  before, after = x.shape[:axis], x.shape[axis + 3 :]
  x = x.reshape(*before, math.prod(x.shape[axis : axis + 3]), *after)
  return x[(slice(None),) * axis + (slice(size),)]


def _take_apart(magnitude, xp):
  """(exponent, significand of 24 bits) of a float's bits, subnormal or not.

  Zero has a significand of zero, and an exponent below all others.
  """
  small = magnitude < _ONE
  # The conversion of a whole number to a float finds its highest bit.
  as_float = magnitude.astype(np.float32).view(np.int32)
  normal = xp.where(small, as_float, magnitude)
  lowered = _BIAS + xp.where(small, 126 + _FRACTION, 0)
  exponent = (normal >> _FRACTION) - lowered
  significand = (normal & (_ONE - 1)) | xp.where(normal > 0, _ONE, 0)
  return exponent, significand


def _choose_scale(most, number_format: BlockFormat, mode: str, xp):
  """Exponent of the power of two that a block shares."""
  exponent, significand = _take_apart(most, xp)
  mode = mode or number_format.scale_mode
  fraction = significand & (_ONE - 1)
  if mode == 'rceil':
    above = fraction > number_format.most_fraction
    exponent += above.astype(xp.int32)
  elif mode == 'ceil':
    exponent += (fraction > 0).astype(xp.int32)
  elif mode in ('even', 'even_below'):
    half = 1 << (_FRACTION - 1 - number_format.mantissa_bits)
    half -= mode == 'even_below'
    exponent += (significand + half) >> (_FRACTION + 1)
  return xp.clip(
    exponent - number_format.most_exponent,
    LEAST_SCALE,
    number_format.most_scale,
  )


def _drop_bits(significand, count, rounding: str, random, xp):
  """A number of 24 bits without its `count` last ones, rounded."""
  if rounding == 'stochastic':
    # Of what lies below the 31 bits of a random number nothing is left.
    far = xp.clip(count - 31, 0, 24)
    count = xp.clip(count, 0, 31)
    kept = (significand >> far).astype(np.uint32)
    count = count.astype(np.uint32)
    below = (np.uint32(1) << count) - np.uint32(1)
    return ((kept + (random & below)) >> count).astype(np.int32)
  count = xp.clip(count, 0, _FRACTION + 3)
  if rounding == 'even':
    significand = significand + ((significand >> count) & 1) - 1
  if rounding != 'down':
    significand = significand + ((xp.ones_like(count) << count) >> 1)
  return significand >> count


def _put_together(whole, exponent, overflows: bool, xp):
  """Bits of `whole * 2^exponent`, with whole numbers below 2^8."""
  as_float = whole.astype(np.float32).view(np.int32)
  field = (as_float >> _FRACTION) + exponent
  normal = as_float + (exponent << _FRACTION)
  # A subnormal number has no bit in front of its point.
  significand = (as_float & (_ONE - 1)) | _ONE
  subnormal = significand >> xp.clip(1 - field, 0, 31)
  bits = xp.where(field > 0, normal, subnormal)
  if overflows:  # by scales that `encode` never chooses
    bits = xp.where(field > 254, _INFINITE, bits)
  return xp.where(whole == 0, 0, bits)
