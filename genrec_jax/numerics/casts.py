"""Formats that round each number on its own: floats of 32, 16 and 8 bits.

'fp8' is two formats: rows keep the three bits of mantissa of e4m3, their
gradients the range of e5m2. A scale for each row brings its largest number near
the largest of the format.
"""

import ml_dtypes
import numpy as np

from genrec_jax.numerics.number_format import (
  EncodedArray,
  NumberFormat,
  flush_subnormals,
)

# A row with no larger number is scaled as if this were its largest, so that the
# inverse of the scale is finite.
_TINY = np.float32(1e-30)


def _make_stored(
  name: str, dtype, stored: str, *, exact: bool = False
) -> NumberFormat:
  """The format of a dtype.

  Args:
    name: name of the format.
    dtype: the dtype.
    stored: a dtype of the same size that NumPy knows by itself, for files.
    exact: whether every float32 survives.
  """
  dtype = np.dtype(dtype)

  def encode_rows(rows, xp):
    with np.errstate(over='ignore', invalid='ignore'):
      return {'values': xp.asarray(rows, dtype).view(stored)}

  def decode_rows(arrays, columns, xp):
    del columns
    return xp.asarray(arrays['values']).view(dtype).astype(np.float32)

  return NumberFormat(
    name,
    encode_rows,
    decode_rows,
    layout=lambda columns: {'values': EncodedArray(stored, columns)},
    exact=exact,
    storage_dtype=dtype,
  )


def _make_scaled(name: str, dtype, top: float, gradients=None) -> NumberFormat:
  """8 bits of floating point; the largest number of a row becomes `top`."""
  dtype = np.dtype(dtype)

  def encode_rows(rows, xp):
    with np.errstate(all='ignore'):
      rows = flush_subnormals(rows, xp)
      largest = xp.abs(rows).max(-1)
      scale = xp.maximum(largest, _TINY) * np.float32(1 / top)
      # Not a division by the scale: XLA would make it this one on some
      # platforms, and the last bit would depend on which.
      inverse = np.float32(1) / scale
      codes = (rows * inverse[..., None]).astype(dtype)
    return {'codes': codes.view(np.uint8), 'scale': scale}

  def decode_rows(arrays, columns, xp):
    del columns
    codes = xp.asarray(arrays['codes']).view(dtype).astype(np.float32)
    with np.errstate(invalid='ignore'):
      return codes * xp.asarray(arrays['scale'])[..., None]

  return NumberFormat(
    name,
    encode_rows,
    decode_rows,
    layout=lambda columns: {
      'codes': EncodedArray('uint8', columns),
      'scale': EncodedArray('float32'),
    },
    gradients=gradients,
  )


FLOAT32 = _make_stored('float32', np.float32, 'float32', exact=True)
FLOAT16 = _make_stored('float16', np.float16, 'float16')
BFLOAT16 = _make_stored('bfloat16', ml_dtypes.bfloat16, 'uint16')
# Below the largest numbers, 448 and 57344, so that nothing overflows.
FP8 = _make_scaled(
  'fp8',
  ml_dtypes.float8_e4m3fn,
  2.0**8,
  gradients=_make_scaled('fp8', ml_dtypes.float8_e5m2, 2.0**15),
)
