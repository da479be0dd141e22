"""Rows as FBGEMM keeps and sends them: the bytes of its operators, to the bit.

| format      | bytes of a row | in this order                               |
|-------------|----------------|---------------------------------------------|
| fbgemm_int8 | C + 8          | codes, scale and bias in float32            |
| fbgemm_int4 | C / 2 + 4      | codes, scale and bias in float16            |
| fbgemm_int2 | C / 4 + 4      | codes, scale and bias in float16            |
| fbgemm_fp16 | 2 C            | float16, the largest in place of infinity   |
| fbgemm_bf16 | 2 C            | bfloat16, likewise                          |
| fbgemm_hfp8 | C              | floats of 8 bits below 1 (gradients: 2)     |
| fbgemm_fp8  | C + 8          | the same of a scaled row; its scale, and 0  |
| fbgemm_mx4  | 17 C / 32      | 16 bytes of codes and a scale for 32 numbers|
| tbe_int8    | C + 4          | scale and bias in float16, codes            |
| tbe_int4    | C / 2 + 4      | the same                                    |
| tbe_int2    | C / 4 + 4      | the same                                    |
| tbe_fp8     | C              | floats of 8 bits, largest 240               |

The first eight are what its operators write and its collectives send; those of
`tbe` are the rows of its embedding tables for inference. All round up to whole
bytes, `fbgemm_fp8` to four of them and `fbgemm_mx4` to 32 numbers.
`packed_formats.join_parts` makes one array of bytes of the parts.

An element of the whole numbers is `code * scale + bias`. The rules are those of
`levels`, which Check-N-Run's checkpoints follow too; only 8 bits differ: FBGEMM
adds 1e-8 to the range before it divides by it.

NumPy and programs give equal bytes, FBGEMM's where it was compared (its CPU
operators; `fbgemm_fp8` has none). Two things are our own: subnormal numbers are
zeros, as XLA has them, and NaN or an infinity in a row of whole numbers makes
its scale NaN, so that it stays visible.
"""

import dataclasses
import types

import ml_dtypes
import numpy as np

from genrec_jax.numerics import blocks, levels
from genrec_jax.numerics.bit_packing import pack_elements, unpack_elements
from genrec_jax.numerics.block_formats import BLOCK_FORMATS, BlockFormat
from genrec_jax.numerics.number_format import (
  EncodedArray,
  NumberFormat,
  flush_subnormals,
)

# Floats of 8 bits whose largest exponent is that of numbers like any other's
# above, so that the largest are 240 and 57,344.
_HFP8 = BlockFormat('hfp8', 3, 4, specials='ieee')
_HFP8_GRADIENTS = BlockFormat('hfp8_gradients', 2, 5, specials='ieee')
_MX4 = dataclasses.replace(
  BLOCK_FORMATS['mxfp4_e2m1'],
  name='fbgemm_mx4',
  scale_mode='even_below',
  most_scale=125,
)
_LEAST_RANGE = np.float32(1e-8)
_LEAST_LARGEST = np.float32(1e-20)


def _make_levels(name: str, bits: int, kept: str, leading: bool = False):
  """Evenly spaced levels over the range of a row.

  Args:
    name: of the format.
    bits: of an element.
    kept: dtype of scale and bias in the row.
    leading: whether they stand in front of the codes.
  """
  top = 2**bits - 1

  def lay_out_arrays(columns):
    numbers = {'scale': EncodedArray(kept), 'bias': EncodedArray(kept)}
    codes = {'codes': EncodedArray('uint8', -(-columns * bits // 8))}
    return numbers | codes if leading else codes | numbers

  def encode_rows(rows, xp):
    with np.errstate(all='ignore'):
      rows = flush_subnormals(rows, xp)
      low, high = rows.min(-1), rows.max(-1)
      if bits == 8:
        span = high - low
        scale = _divide(span, np.float32(top), xp)
        inverse = _divide(np.float32(top), span + _LEAST_RANGE, xp)
        bias = low
      else:
        bias, scale, inverse = levels.choose_levels(
          xp, low, high, _spread(np.float32(top), low.shape, xp), half=True
        )
      codes = levels.nearest_codes(
        rows, bias[..., None], inverse[..., None], top, xp=xp
      )
      scale = flush_subnormals(scale, xp)
      # What a maximum makes of NaN depends on the platform: look at each.
      finite = xp.isfinite(rows).all(-1)
      codes = xp.where(finite[..., None], codes, np.float32(0))
      scale = xp.where(finite, scale, np.float32(np.nan))
      # Of zeros, 0 and not -0, which a minimum may or may not prefer to it.
      bias = xp.where(finite & (low != 0), bias, np.float32(0))
      return {
        'codes': pack_elements(codes.astype(np.uint8), bits, xp),
        'scale': scale.astype(kept),
        'bias': bias.astype(kept),
      }

  def decode_rows(arrays, columns, xp):
    codes = unpack_elements(xp.asarray(arrays['codes']), columns, bits, xp)
    scale, bias = (
      xp.asarray(arrays[part])[..., None].astype(np.float32)
      for part in ('scale', 'bias')
    )
    if xp is np:
      # As one rounding, which is what a fused multiplication with addition
      # does: the product of 8 and of 24 bits is exact in float64.
      with np.errstate(over='ignore', invalid='ignore'):
        wide = codes.astype(np.float64) * scale + bias
        return wide.astype(np.float32)
    return codes.astype(np.float32) * scale + bias

  return NumberFormat(name, encode_rows, decode_rows, lay_out_arrays)


def _make_clamped(name: str, dtype, stored: str) -> NumberFormat:
  """Floats of 16 bits, without infinities of numbers that are too large."""
  dtype = np.dtype(dtype)
  most = np.float32(ml_dtypes.finfo(dtype).max)

  def encode_rows(rows, xp):
    # Selected, not clipped: in a program that would flush subnormal numbers.
    large = xp.abs(rows) > most
    values = xp.where(large, xp.copysign(most, rows), rows)
    return {'values': values.astype(dtype).view(stored)}

  def decode_rows(arrays, columns, xp):
    del columns
    return xp.asarray(arrays['values']).view(dtype).astype(np.float32)

  return NumberFormat(
    name,
    encode_rows,
    decode_rows,
    layout=lambda columns: {'values': EncodedArray(stored, columns)},
  )


def _make_floats(
  name: str, elements: BlockFormat, scale: int, gradients=None
) -> NumberFormat:
  """Floats of 8 bits, each by itself."""

  def encode_rows(rows, xp):
    return {'codes': blocks.encode_elements(rows, elements, scale, xp=xp)}

  def decode_rows(arrays, columns, xp):
    del columns
    codes = xp.asarray(arrays['codes'])
    return blocks.decode_elements(codes, elements, scale, xp)

  return NumberFormat(
    name,
    encode_rows,
    decode_rows,
    layout=lambda columns: {'codes': EncodedArray('uint8', columns)},
    gradients=gradients,
  )


def _make_scaled(
  name: str, elements: BlockFormat, scale: int, gradients=None
) -> NumberFormat:
  """Floats of 8 bits of rows whose largest number is the largest of them."""
  most = np.float32(elements.most * 2.0**scale)

  def encode_rows(rows, xp):
    with np.errstate(all='ignore'):
      rows = flush_subnormals(rows, xp)
      largest = xp.abs(rows).max(-1)
      factor = flush_subnormals(_divide(most, largest + _LEAST_LARGEST, xp), xp)
      codes = blocks.encode_elements(
        rows * factor[..., None], elements, scale, xp=xp
      )
      missing = -rows.shape[-1] % 4
      if missing:
        widths = [(0, 0)] * (codes.ndim - 1) + [(0, missing)]
        codes = xp.pad(codes, widths)
      finite = xp.isfinite(rows).all(-1) & (factor != 0)
      codes = xp.where(finite[..., None], codes, np.uint8(0))
      factor = xp.where(finite, factor, np.float32(np.nan))
      return {'codes': codes, 'scale': factor, 'zero': xp.zeros_like(factor)}

  def decode_rows(arrays, columns, xp):
    codes = xp.asarray(arrays['codes'])[..., :columns]
    values = blocks.decode_elements(codes, elements, scale, xp)
    factor = xp.asarray(arrays['scale'])[..., None]
    with np.errstate(invalid='ignore', divide='ignore'):
      return _divide(values, factor, xp)

  return NumberFormat(
    name,
    encode_rows,
    decode_rows,
    layout=lambda columns: {
      'codes': EncodedArray('uint8', columns + -columns % 4),
      'scale': EncodedArray('float32'),
      'zero': EncodedArray('float32'),
    },
    gradients=gradients,
  )


def _encode_mx4(rows, xp):
  missing = -rows.shape[-1] % _MX4.block
  if missing:
    rows = xp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
  # Ties away from zero, unlike the standard.
  encoded = blocks.encode(rows, _MX4, rounding='away', xp=xp)
  packed = pack_elements(encoded.codes, 4, xp)
  packed = packed.reshape(*encoded.scales.shape, _MX4.block // 2)
  together = xp.concatenate([packed, encoded.scales[..., None]], -1)
  count, each = together.shape[-2:]
  return {'blocks': together.reshape(*rows.shape[:-1], count * each)}


def _decode_mx4(arrays, columns, xp):
  together = xp.asarray(arrays['blocks'])
  each = 1 + _MX4.block // 2
  count = together.shape[-1] // each
  together = together.reshape(*together.shape[:-1], count, each)
  packed, scales = together[..., :-1], together[..., -1]
  packed = packed.reshape(*packed.shape[:-2], count * (each - 1))
  codes = unpack_elements(packed, 2 * packed.shape[-1], 4, xp)
  rows = blocks.decode(blocks.Blocks(codes, scales, None), _MX4, xp=xp)
  return rows[..., :columns]


def _divide(x, y, xp: types.ModuleType):
  """x / y to the last bit: XLA would multiply by the inverse of a number."""
  if xp is np:
    return x / y
  return x / _spread(y, np.broadcast_shapes(np.shape(x), np.shape(y)), xp)


def _spread(y, shape, xp: types.ModuleType):
  """y in a shape, which XLA does not see to be all of one number."""
  if xp is np:
    return np.broadcast_to(y, shape)
  import jax  # `formats` is read where there is no JAX

  return jax.lax.optimization_barrier(xp.broadcast_to(y, shape))


FUSED_ROWS: dict[str, NumberFormat] = {
  x.name: x
  for x in (
    _make_levels('fbgemm_int8', 8, 'float32'),
    _make_levels('fbgemm_int4', 4, 'float16'),
    _make_levels('fbgemm_int2', 2, 'float16'),
    _make_clamped('fbgemm_fp16', np.float16, 'float16'),
    _make_clamped('fbgemm_bf16', ml_dtypes.bfloat16, 'uint16'),
    _make_floats(
      'fbgemm_hfp8',
      _HFP8,
      -8,
      gradients=_make_floats('fbgemm_hfp8', _HFP8_GRADIENTS, -16),
    ),
    _make_scaled(
      'fbgemm_fp8',
      _HFP8,
      -8,
      gradients=_make_scaled('fbgemm_fp8', _HFP8_GRADIENTS, -16),
    ),
    NumberFormat(
      'fbgemm_mx4',
      _encode_mx4,
      _decode_mx4,
      layout=lambda columns: {
        'blocks': EncodedArray('uint8', 17 * -(-columns // 32))
      },
    ),
    _make_levels('tbe_int8', 8, 'float16', leading=True),
    _make_levels('tbe_int4', 4, 'float16', leading=True),
    _make_levels('tbe_int2', 2, 'float16', leading=True),
    _make_floats('tbe_fp8', _HFP8, 0),
  )
}
