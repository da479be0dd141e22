"""Rows of tables in 2, 3, 4 or 8 bits an element, as Check-N-Run writes them.

    arrays = quantize(rows, bits=4)          # NumPy in, NumPy out
    rows = dequantize(arrays, dim=64, bits=4)

Each row is quantised on its own (arXiv 2010.08679), by one of these methods:

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

With evenly spaced levels over the whole range of a row, no element is off by
more than half a step and what float16 adds, which is an eighth of a step at
most; otherwise the call uses float32. Equal rows give equal arrays however rows
are divided among calls, as long as the calls agree about float16.

Each method with each number of bits is a format in `formats.FORMATS`.
"""

from collections.abc import Mapping

import numpy as np

from genrec_jax.numerics import even_levels
from genrec_jax.numerics.formats import find_quantiser


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
    method: one of `formats.list_methods()`.
    bins: steps of the search in a whole range, for `adaptive`;
      `even_levels.BINS` if None.
    ratio: share of a range the search may cut off; `even_levels.RATIO` if None.

  Returns:
    'codes' `[n, ceil(D * bits / 8)]` uint8 and, by method, 'scale' and 'bias'
    `[n]` or 'codebook' `[n, 2**bits]`.

  >>> quantize(np.array([[1, 2, 3, 4]], np.float32), 2)['codes'].tolist()
  [[228]]
  """
  quantiser = find_quantiser(method, bits)
  if (bins, ratio) != (None, None):
    if method != 'adaptive':
      raise ValueError(f'bins and ratio belong to adaptive, not to {method}')
    quantiser = even_levels.adaptive(bits, bins, ratio)
  return quantiser.encode(rows)


def dequantize(
  arrays: Mapping[str, np.ndarray],
  dim: int,
  bits: int,
  method: str = 'adaptive',
) -> np.ndarray:
  """Rows `[n, dim]` float32 of the arrays of `quantize`.

  Args:
    arrays: as `quantize` returned them.
    dim: columns of the rows.
    bits: as given to `quantize`.
    method: as given to `quantize`.

  Returns:
    The rows, coarser.

  >>> rows = np.array([[1, 2, 3, 4]], np.float32)
  >>> dequantize(quantize(rows, 2), 4, 2).tolist()
  [[1.0, 2.0, 3.0, 4.0]]
  """
  return find_quantiser(method, bits).decode(arrays, dim)


def expected_restores(
  failures_per_node_hour: float, nodes: int, hours: float
) -> float:
  """How often a run will be restored, once for each failure of a node.

  >>> round(expected_restores(0.001, nodes=100, hours=24), 3)
  2.4

  Args:
    failures_per_node_hour: failures of one node in an hour, in the mean.
    nodes: number of nodes.
    hours: duration of the run.
  """
  return failures_per_node_hour * nodes * hours


def bits_for(expected_restores: float) -> int:
  """The bits that so many restores of one run leave within 0.1 % of log loss.

  The paper allows one restore with 2 bits, three with 3 and twenty with 4. That
  is not what was measured (docs/checkpoint_cost.md#quality-after-restores): one
  restore costs 0.8 % with 2 bits, 0.3 % with 3 and 0.06 % with 4, and three
  cost 0.2 % with 4. So fewer bits are never chosen, only asked for.

  >>> bits_for(0.5), bits_for(2.4)
  (4, 8)

  Args:
    expected_restores: of the whole run; 0 is a run without a plan, or weights
      that are used as they are.
  """
  if not expected_restores >= 0:
    raise ValueError(
      f'expected_restores is {expected_restores}, must be 0 or more'
    )
  return 4 if 0 < expected_restores <= 1 else 8
