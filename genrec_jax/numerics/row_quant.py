"""Rows of tables in 2, 3, 4 or 8 bits an element, as Check-N-Run writes them.

    arrays = quantize(rows, bits=4)          # NumPy in, NumPy out
    rows = dequantize(arrays, dim=64, bits=4)

Each row is quantised by itself (arXiv 2010.08679), in one of these ways:

| method     | levels of a row                            | arrays             |
|------------|--------------------------------------------|--------------------|
| symmetric  | even, from -max to max, one of them zero   | codes, scale       |
| asymmetric | even, from its least to its greatest value | codes, scale, bias |
| adaptive   | even, over the range `range_search` finds  | codes, scale, bias |
| kmeans     | anywhere: 2**bits numbers of its own       | codes, codebook    |

With 8 bits `adaptive` is `asymmetric`, as in the paper.

An element is `code * scale + bias`; `symmetric` has no bias in its arrays: its
element is `(code - (2**(bits-1) - 1)) * scale`. Scale, bias and codebook are
float16 with 4 bits and fewer where every row of the call can do with that, else
float32. `asymmetric` gives what FBGEMM gives: with float16 its rows of 4 and 2
bits, with 8 bits its float32 scale and bias.

With evenly spaced levels over all of a row no element is off by more than half
a step and what float16 adds: an eighth of a step at most, else the call takes
float32. Equal rows give equal arrays however rows are spread over calls, as
long as the calls agree about float16.
"""

from collections.abc import Mapping

import numpy as np

from genrec_jax.numerics import bit_packing, row_kmeans
from genrec_jax.numerics.bit_packing import pack, packed_bytes, unpack
from genrec_jax.numerics.levels import levels, nearest
from genrec_jax.numerics.range_search import BLOCK, search

BITS = bit_packing.BITS
METHODS = ('symmetric', 'asymmetric', 'adaptive', 'kmeans')
# The search's steps in a whole range and the share of it that may go, by the
# paper.
BINS = {2: 25, 3: 25, 4: 45}
RATIO = 0.5
# Restores of one run that a bit width bears, by the paper.
RESTORES = {2: 1, 3: 3, 4: 20}

_NARROWEST = 2.0**-14  # float16 with all its digits
# Spans whose steps float32 does not have with all its digits count as none, and
# those it cannot hold are refused.
_TINY, _HUGE = 2.0**-116, 1e38


def quantize(
  rows: np.ndarray,
  bits: int,
  method: str = 'adaptive',
  *,
  bins: int | None = None,
  ratio: float | None = None,
) -> dict[str, np.ndarray]:
  """Quantises rows, each by itself.

  Args:
    rows: `[n, D]` float32, finite.
    bits: 2, 3, 4 or 8 an element.
    method: of `METHODS`.
    bins: steps of the search in a whole range, for `adaptive`; `BINS` if None.
    ratio: share of a range the search may cut off; `RATIO` if None.

  Returns:
    'codes' `[n, ceil(D * bits / 8)]` uint8 and, by method, 'scale' and 'bias'
    `[n]` or 'codebook' `[n, 2**bits]`.
  """
  _check(rows, bits, method)
  bins, ratio = _settings(bits, method, bins, ratio)
  count, dim = rows.shape
  low, high = _ends(rows)
  half = bits <= 4 and _half_holds(low, high, bits)
  parameter = np.float16 if half else np.float32
  arrays = {'codes': np.empty((count, packed_bytes(dim, bits)), np.uint8)}
  if method == 'kmeans':
    arrays['codebook'] = np.empty((count, 2**bits), parameter)
  else:
    arrays['scale'] = np.empty(count, parameter)
    if method != 'symmetric':
      arrays['bias'] = np.empty(count, parameter)
  for begin in range(0, count, BLOCK):
    part = slice(begin, begin + BLOCK)
    x = np.ascontiguousarray(rows[part].T)
    if method == 'kmeans':
      book = row_kmeans.codebooks(rows[part], bits).astype(parameter)
      codes = row_kmeans.nearest(x, book.astype(np.float32))
      found = {'codebook': book.T}
    elif method == 'symmetric':
      codes, found = _symmetric(x, low[part], high[part], bits, half)
    else:
      ends = low[part], high[part]
      if method == 'adaptive' and bits <= 4:
        ends = search(x, *ends, bits=bits, bins=bins, ratio=ratio, half=half)
      codes, found = _asymmetric(x, *ends, bits, half)
    arrays['codes'][part] = pack(codes.T, bits)
    for name, values in found.items():
      arrays[name][part] = values
  return arrays


def dequantize(
  arrays: Mapping[str, np.ndarray], dim: int, bits: int
) -> np.ndarray:
  """Rows `[n, dim]` float32 of the arrays of `quantize`, by whatever method."""
  codes = unpack(np.asarray(arrays['codes']), dim, bits)
  if 'codebook' in arrays:
    book = np.asarray(arrays['codebook']).astype(np.float32)
    return np.take_along_axis(book, codes, axis=1)
  scale = np.asarray(arrays['scale']).astype(np.float32)
  rows = codes.astype(np.float32)
  if 'bias' not in arrays:
    rows -= np.float32(2 ** (bits - 1) - 1)
  rows *= scale[:, None]
  if 'bias' in arrays:
    rows += np.asarray(arrays['bias']).astype(np.float32)[:, None]
  return rows


def row_bytes(dim: int, bits: int, method: str) -> int:
  """Bytes of a row; with float16 where there may be float16."""
  _known(method)
  numbers = {'symmetric': 1, 'kmeans': 2**bits}.get(method, 2)
  return packed_bytes(dim, bits) + numbers * (2 if bits <= 4 else 4)


def expected_restores(
  failures_per_node_hour: float, nodes: int, hours: float
) -> float:
  """How often a run will be restored: failures of any of its nodes."""
  return failures_per_node_hour * nodes * hours


def bits_for(expected_restores: float) -> int:
  """The fewest bits that bear so many restores of one run."""
  if not expected_restores >= 0:
    raise ValueError(
      f'expected_restores is {expected_restores}, must be 0 or more'
    )
  for bits, restores in RESTORES.items():
    if expected_restores <= restores:
      return bits
  return 8


def _asymmetric(x, low, high, bits, half):
  top = 2**bits - 1
  bias, scale, inverse = levels(np, low, high, np.full_like(low, top), half)
  codes = nearest(x, bias, inverse, top).astype(np.uint8)
  return codes, {'scale': scale, 'bias': bias}


def _symmetric(x, low, high, bits, half):
  top = 2 ** (bits - 1) - 1
  largest = np.maximum(np.abs(low), np.abs(high))
  largest = np.where(largest < _TINY, np.float32(0), largest)
  # From zero on, the same levels; then to both sides.
  _, scale, inverse = levels(
    np, np.zeros_like(low), largest, np.full_like(low, top), half
  )
  codes = np.rint(x * inverse)
  codes = np.clip(codes, np.float32(-top), np.float32(top)) + np.float32(top)
  return codes.astype(np.uint8), {'scale': scale}


def _ends(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Least and greatest value of each row, `[n]` each; refuses bad rows."""
  with np.errstate(over='ignore', invalid='ignore'):
    low, high = rows.min(axis=1), rows.max(axis=1)
    span = high - low
    bad = ~(span <= _HUGE) | ~np.isfinite(high)
  if bad.any():
    row = int(np.argmax(bad))
    strange = np.flatnonzero(~np.isfinite(rows[row]))
    what = (
      f'holds {rows[row, strange[0]]} in column {strange[0]}'
      if len(strange)
      else f'spans more than {_HUGE:g}'
    )
    raise ValueError(
      f'row {row} of {len(rows)} {what}: rows to quantise must be finite. Look '
      'for what broke the table, or write this checkpoint with 32 bits'
    )
  return low, np.where(span < _TINY, low, high)


def _half_holds(low, high, bits: int) -> bool:
  """Whether bias and scale of every row may be rounded to float16."""
  largest = np.maximum(np.abs(low), np.abs(high))
  if not (largest <= np.finfo(np.float16).max).all():
    return False
  step = (high - low) / np.float32(2**bits - 1)
  # Half a unit in the last place of the bias is an eighth of a step at most.
  spread = (step >= _NARROWEST) & (largest <= step * 2**8)
  flat = (largest >= _NARROWEST * 2**bits) | (largest == 0)
  return bool(np.where(high == low, flat, spread).all())


def _known(method: str) -> None:
  if method not in METHODS:
    raise ValueError(
      f'method is {method!r}, must be one of {", ".join(METHODS)}'
    )


def _check(rows: np.ndarray, bits: int, method: str) -> None:
  _known(method)
  if rows.dtype != np.float32 or rows.ndim != 2 or not rows.shape[1]:
    raise ValueError(
      'rows must be float32 [n, D] with D > 0, these are '
      f'{rows.dtype} {list(rows.shape)}'
    )
  dim = rows.shape[1]
  packed_bytes(dim, bits)
  if method == 'kmeans' and (bits == 8 or dim <= 2**bits):
    raise ValueError(
      f'kmeans with {bits} bits keeps {2**bits} numbers a row beside the '
      f'codes, which does not make rows of {dim} smaller: take fewer bits or '
      'adaptive'
    )


def _settings(bits, method, bins, ratio) -> tuple[int | None, float]:
  if method != 'adaptive' and (bins, ratio) != (None, None):
    raise ValueError(f'bins and ratio belong to adaptive, not to {method}')
  bins = BINS.get(bits) if bins is None else bins
  ratio = RATIO if ratio is None else ratio
  if bins is not None and not bins >= 1:
    raise ValueError(f'bins is {bins}, must be 1 or more')
  if not 0 < ratio <= 1:
    raise ValueError(f'ratio is {ratio}, must be above 0 and 1 at most')
  return bins, ratio
