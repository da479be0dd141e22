"""Formats whose levels are evenly spaced over the range of a row.

An element is `code * scale + bias`. The formats differ in the range that they
span, and in what computes them:

| format     | range of a row              | runs in         |
|------------|-----------------------------|-----------------|
| symmetric  | -max to max, without a bias | NumPy           |
| asymmetric | its least to greatest value | NumPy           |
| adaptive   | what `range_search` finds   | NumPy           |
| int8       | its least to greatest value | NumPy, programs |

int8 is asymmetric with 8 bits but for the following, so that the bytes of the
two may differ. It must run in any compiled program and cannot refuse a row:

- it multiplies by 1 / 255 and by the inverse of the rounded scale, as XLA does
  on a CPU whatever one writes; asymmetric8 divides, as FBGEMM does, so that
  scales differ by a unit in the last place and ties may go the other way;
- a range below 1e-30 counts as 1e-30, where asymmetric8 counts ranges below
  2**-116 as none and gives them the scale 0; subnormal numbers are zeros;
- a row with NaN or an infinity has the scale NaN, so that all of it stays
  visible; asymmetric8 refuses it, and ranges above 1e38, by name.

Decoding is the same, and so is the order of the parts.
"""

import numpy as np

from genrec_jax.numerics import row_blocks
from genrec_jax.numerics.bit_packing import check_bits, unpack_codes
from genrec_jax.numerics.levels import choose_levels, nearest_codes
from genrec_jax.numerics.number_format import (
  EncodedArray,
  NumberFormat,
  flush_subnormals,
)
from genrec_jax.numerics.range_search import search_ranges

# Steps of the search in a whole range, and the share of it that may be cut off,
# by the paper.
BINS = {2: 25, 3: 25, 4: 45}
RATIO = 0.5
_LEAST_RANGE = np.float32(1e-30)  # of int8: its inverse scale is finite


def symmetric(bits: int) -> NumberFormat:
  """Even levels from -max to max of a row, one of them zero."""

  def lay_out_arrays(columns):
    return row_blocks.lay_out_arrays(columns, bits, scale=None)

  def encode_rows(rows, xp):
    del xp
    return row_blocks.encode_rows(
      rows, bits, lay_out_arrays(rows.shape[-1]), _quantise_symmetric
    )

  def decode_rows(arrays, columns, xp):
    del xp
    rows = unpack_codes(np.asarray(arrays['codes']), columns, bits)
    rows = rows.astype(np.float32)
    # Codes are unsigned in the file; the middle one stands for zero.
    rows -= np.float32(2 ** (bits - 1) - 1)
    rows *= np.asarray(arrays['scale']).astype(np.float32)[:, None]
    return rows

  return _make_quantiser(
    'symmetric', bits, encode_rows, decode_rows, lay_out_arrays
  )


def asymmetric(bits: int) -> NumberFormat:
  """Even levels from the least to the greatest value of a row."""
  return _of_range('asymmetric', bits, _whole_range)


def adaptive(
  bits: int, bins: int | None = None, ratio: float | None = None
) -> NumberFormat:
  """Even levels over the range that the greedy search finds.

  With 8 bits, that is the whole range.

  Args:
    bits: bits of an element: 2, 3, 4 or 8.
    bins: steps of the search in a whole range; `BINS` if None.
    ratio: share of a range the search may cut off; `RATIO` if None.

  Returns:
    A format. Its settings do not matter for decoding.
  """
  bins = BINS.get(bits) if bins is None else bins
  ratio = RATIO if ratio is None else ratio
  if bins is not None and not bins >= 1:
    raise ValueError(f'bins is {bins}, must be 1 or more')
  if not 0 < ratio <= 1:
    raise ValueError(f'ratio is {ratio}, must be above 0 and 1 at most')

  def best_range(block):
    return search_ranges(
      block.x,
      block.low,
      block.high,
      bits=bits,
      bins=bins,
      ratio=ratio,
      half=block.half,
    )

  # With 8 bits nothing is gained, as the paper says.
  return _of_range('adaptive', bits, best_range if bits <= 4 else _whole_range)


def _of_range(method: str, bits: int, choose_range) -> NumberFormat:
  """Levels with a bias, over the range that a function of the block names."""

  def lay_out_arrays(columns):
    return row_blocks.lay_out_arrays(columns, bits, scale=None, bias=None)

  def quantise_block(block):
    low, high = choose_range(block)
    top = 2**bits - 1
    bias, scale, inverse = choose_levels(
      np, low, high, np.full_like(low, top), block.half
    )
    codes = nearest_codes(block.x, bias, inverse, top).astype(np.uint8)
    return codes, {'scale': scale, 'bias': bias}

  def encode_rows(rows, xp):
    del xp
    return row_blocks.encode_rows(
      rows, bits, lay_out_arrays(rows.shape[-1]), quantise_block
    )

  def decode_rows(arrays, columns, xp):
    codes = unpack_codes(np.asarray(arrays['codes']), columns, bits)
    numbers = {'scale': arrays['scale'], 'bias': arrays['bias']}
    return _decode_levels({'codes': codes, **numbers}, columns, xp)

  return _make_quantiser(method, bits, encode_rows, decode_rows, lay_out_arrays)


def _make_quantiser(method, bits, encode, decode, layout) -> NumberFormat:
  check_bits(bits)
  return NumberFormat(
    f'{method}{bits}',
    encode,
    decode,
    layout,
    engines=('numpy',),
    method=method,
    bits=bits,
  )


def _whole_range(block):
  return block.low, block.high


def _quantise_symmetric(block):
  top = 2 ** (block.bits - 1) - 1
  largest = np.maximum(np.abs(block.low), np.abs(block.high))
  largest = np.where(largest < row_blocks.TINY, np.float32(0), largest)
  # From zero on, the same levels; then to both sides.
  _, scale, inverse = choose_levels(
    np,
    np.zeros_like(largest),
    largest,
    np.full_like(largest, top),
    block.half,
  )
  codes = np.rint(block.x * inverse)
  codes = np.clip(codes, np.float32(-top), np.float32(top)) + np.float32(top)
  return codes.astype(np.uint8), {'scale': scale}


def _encode_int8(rows, xp):
  with np.errstate(all='ignore'):
    # A single column is its own least value, which no arithmetic touches.
    if rows.shape[-1] > 1:
      rows = flush_subnormals(rows, xp)
    least = rows.min(-1)
    span = xp.maximum(rows.max(-1) - least, _LEAST_RANGE)
    # The multiplication by which XLA would replace a division by 255, whose
    # last bit differs, stated so that NumPy and every platform do it.
    scale = span * np.float32(1 / 255)
    inverse = np.float32(1) / scale
    codes = nearest_codes(
      rows, least[..., None], inverse[..., None], 255, xp=xp
    )
    # A NaN would become some integer; it must stay visible. Look at all of the
    # row: maxima on a CPU may leave out a NaN.
    finite = xp.isfinite(rows).all(-1)
    scale = xp.where(finite, scale, np.float32(np.nan))
    return {'codes': codes.astype(np.uint8), 'scale': scale, 'bias': least}


def _decode_levels(arrays, columns, xp):
  """Rows of codes, one a byte, with scale and bias of each row."""
  del columns
  rows = xp.asarray(arrays['codes']).astype(np.float32)
  # In place in NumPy; arrays of JAX make new ones.
  rows *= xp.asarray(arrays['scale']).astype(np.float32)[..., None]
  rows += xp.asarray(arrays['bias']).astype(np.float32)[..., None]
  return rows


INT8 = NumberFormat(
  'int8',
  _encode_int8,
  _decode_levels,
  layout=lambda columns: {
    'codes': EncodedArray('uint8', columns),
    'scale': EncodedArray('float32'),
    'bias': EncodedArray('float32'),
  },
)
