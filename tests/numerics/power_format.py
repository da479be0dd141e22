"""A number format that the library does not have: 8 bits, scaled by 2**k.

All that a format needs, in one file. Codes are whole numbers from -127 to 127,
kept with 128 added; the scale of a row is a power of two, kept as its exponent
with 127 added, so that nothing but the codes is rounded.
"""

import numpy as np

from genrec_jax.numerics.number_format import (
  EncodedArray,
  NumberFormat,
  flush_subnormals,
)


def _power(exponent, xp):
  """2**exponent as float32, from -126 to 127, by its bits."""
  return ((exponent.astype(np.int32) + np.int32(127)) << 23).view(np.float32)


def _encode(rows, xp):
  rows = flush_subnormals(rows, xp)  # programs on a CPU would
  largest = xp.abs(rows).max(-1)
  exponent = xp.clip(xp.frexp(largest)[1] - 7, -100, 100).astype(np.int32)
  codes = xp.rint(rows * _power(-exponent, xp)[..., None])
  codes = xp.clip(codes, np.float32(-127), np.float32(127)) + np.float32(128)
  biased = (exponent + np.int32(127)).astype(np.uint8)
  return {'codes': codes.astype(np.uint8), 'exponent': biased}


def _decode(parts, columns, xp):
  del columns
  exponent = xp.asarray(parts['exponent']).astype(np.int32) - np.int32(127)
  codes = xp.asarray(parts['codes']).astype(np.float32) - np.float32(128)
  return codes * _power(exponent, xp)[..., None]


POWER8 = NumberFormat(
  'power8',
  _encode,
  _decode,
  layout=lambda columns: {
    'codes': EncodedArray('uint8', columns),
    'exponent': EncodedArray('uint8'),
  },
  method='power',
  bits=8,
)
