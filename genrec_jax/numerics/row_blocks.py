"""Quantises rows block by block, with the checks that all quantisers share.

A quantiser of rows is a function of a `RowBlock`; `encode_rows` calls it and
packs its codes. `encode_rows` also decides, once for a call, whether scale,
bias and codebook are float16, and refuses rows that no evenly spaced levels
could span.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from genrec_jax.numerics.bit_packing import pack_codes, packed_bytes
from genrec_jax.numerics.number_format import EncodedArray
from genrec_jax.numerics.range_search import BLOCK

# Spans whose steps float32 does not have with all its digits count as none, and
# those it cannot hold are refused.
TINY, HUGE = 2.0**-116, 1e38
_NARROWEST = 2.0**-14  # float16 with all its digits


class RowBlock(NamedTuple):
  """Some rows and their ranges.

  Attributes:
    rows: `[R, D]` float32.
    x: the same as columns, `[D, R]`, contiguous.
    low: `[R]` the least value of each row.
    high: `[R]` the greatest; `low` where they are next to equal.
    bits: bits of a code.
    half: whether scale, bias and codebook are float16.
  """

  rows: np.ndarray
  x: np.ndarray
  low: np.ndarray
  high: np.ndarray
  bits: int
  half: bool


def lay_out_arrays(
  columns: int, bits: int, **numbers: int | None
) -> dict[str, EncodedArray]:
  """The parts of a packed format.

  Args:
    columns: columns of a row.
    bits: bits of a code.
    **numbers: name -> numbers for each row beside its codes, None for one.
  """
  dtype = 'float16' if bits <= 4 else 'float32'
  arrays = {'codes': EncodedArray('uint8', packed_bytes(columns, bits))}
  return arrays | {
    name: EncodedArray(dtype, width) for name, width in numbers.items()
  }


def encode_rows(
  rows: np.ndarray,
  bits: int,
  arrays: dict[str, EncodedArray],
  quantise: Callable[[RowBlock], tuple[np.ndarray, dict[str, np.ndarray]]],
) -> dict[str, np.ndarray]:
  """Quantises rows, each by itself.

  Args:
    rows: `[n, D]` float32, finite.
    bits: bits of a code.
    arrays: from `lay_out_arrays`.
    quantise: block -> codes `[D, R]` and {part: `[R, ...]`}.

  Returns:
    {part: array}.

  Raises:
    ValueError: for rows that are not finite, or not float32 `[n, D]`.
  """
  if rows.dtype != np.float32 or rows.ndim != 2 or not rows.shape[1]:
    raise ValueError(
      'rows must be float32 [n, D] with D > 0, these are '
      f'{rows.dtype} {list(rows.shape)}'
    )
  low, high = _find_ends(rows)
  # One dtype for a whole array, whichever rows share a call.
  half = bits <= 4 and _half_holds(low, high, bits)
  encoded = {}
  for name, array in arrays.items():
    shape = (len(rows),) if array.width is None else (len(rows), array.width)
    number = np.float16 if half else np.float32
    dtype = np.uint8 if name == 'codes' else number
    encoded[name] = np.empty(shape, dtype)
  for begin in range(0, len(rows), BLOCK):
    # A block stays in the cache, which its search walks through often.
    here = slice(begin, begin + BLOCK)
    x = np.ascontiguousarray(rows[here].T)
    codes, numbers = quantise(
      RowBlock(rows[here], x, low[here], high[here], bits, half)
    )
    encoded['codes'][here] = pack_codes(codes.T, bits)
    for name, values in numbers.items():
      encoded[name][here] = values
  return encoded


def _find_ends(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Least and greatest value of each row, `[n]` each; refuses bad rows."""
  with np.errstate(over='ignore', invalid='ignore'):
    low, high = rows.min(axis=1), rows.max(axis=1)
    span = high - low
    # Written so that NaN, of which every comparison is false, counts as bad.
    bad = ~(span <= HUGE) | ~np.isfinite(high)
  if bad.any():
    row = int(np.argmax(bad))
    strange = np.flatnonzero(~np.isfinite(rows[row]))
    what = (
      f'holds {rows[row, strange[0]]} in column {strange[0]}'
      if len(strange)
      else f'spans more than {HUGE:g}'
    )
    raise ValueError(
      f'row {row} of {len(rows)} {what}: rows to quantise must be finite. Look '
      'for what broke the table, or write this checkpoint with 32 bits'
    )
  return low, np.where(span < TINY, low, high)


def _half_holds(low, high, bits: int) -> bool:
  """Whether bias and scale of every row may be rounded to float16."""
  largest = np.maximum(np.abs(low), np.abs(high))
  if not (largest <= np.finfo(np.float16).max).all():
    return False
  step = (high - low) / np.float32(2**bits - 1)
  # Half a unit in the last place of the bias is an eighth of a step at most.
  bias_is_close = (step >= _NARROWEST) & (largest <= step * 2**8)
  # Equal elements are the bias itself, which needs no step but its digits.
  flat = (largest >= _NARROWEST * 2**bits) | (largest == 0)
  return bool(np.where(high == low, flat, bias_is_close).all())
