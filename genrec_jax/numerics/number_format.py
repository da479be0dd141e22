"""Number formats, which encode rows of numbers as named arrays and decode them.

Checkpoints, the exchange between devices and tables share this interface. A
format encodes rows as *parts*, arrays with one entry for each row. A checkpoint
stores each part by its name; the exchange joins the bytes of all parts, so that
one collective moves them. `formats.FORMATS` lists the formats of the library.

Nothing here imports JAX. Code that reads rows without it passes `numpy` as
`xp`; a program on devices passes `jax.numpy`.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Array = Any  # of NumPy or of JAX
_ENGINES = {'numpy': 'numpy', 'jax.numpy': 'jax'}
# What else has a name in a chunk of a checkpoint, see `checkpoint.chunks`.
_OF_CHUNKS = {'about', 'ids'}


class EncodedArray(NamedTuple):
  """One array of encoded rows.

  Attributes:
    dtype: dtype of its elements, by a name that NumPy itself knows.
    width: elements for each row; None for one number for each row, in an array
      without that axis.
  """

  dtype: str
  width: int | None = None

  @property
  def row_bytes(self) -> int:
    return np.dtype(self.dtype).itemsize * (
      1 if self.width is None else self.width
    )


@dataclasses.dataclass(frozen=True)
class NumberFormat:
  """A way to write rows of numbers.

  Attributes:
    name: its key in `formats.FORMATS`, and in `exchange.forward`.
    encoder: (rows `[..., C]` float32, xp) -> {part: array}, one entry a row.
    decoder: (parts, columns, xp) -> rows `[..., C]` float32.
    layout: columns -> {part: `EncodedArray`}, in the order in which they
      travel. The dtypes are those of the smallest rows that the format writes.
    exact: whether every float32 comes back as it was, so that sums may be made
      of encoded rows.
    engines: what can run it: 'numpy', 'jax', or both with equal bytes.
    method: the `checkpoint.method` that selects it; '' if none does.
    bits: the `checkpoint.bits` that selects it: bits of an element, without the
      numbers that belong to its row.
    least_columns: the encoder refuses narrower rows.
    storage_dtype: dtype of a table in this format; None if tables cannot be.
    gradients: the format in which gradients of such rows travel; None for this
      one.
  """

  name: str
  encoder: Callable[[Array, types.ModuleType], dict[str, Array]]
  decoder: Callable[[Mapping[str, Array], int, types.ModuleType], Array]
  layout: Callable[[int], dict[str, EncodedArray]]
  exact: bool = False
  engines: tuple[str, ...] = ('numpy', 'jax')
  method: str = ''
  bits: int = 0
  least_columns: int = 1
  storage_dtype: np.dtype | None = None
  gradients: 'NumberFormat | None' = None

  def __post_init__(self):
    wrong = set(self.engines) - set(_ENGINES.values())
    if wrong or not self.engines:
      raise ValueError(
        f"engines of the number format {self.name!r} are {self.engines}, must "
        "be of 'numpy' and 'jax'"
      )
    if self.method and not ('numpy' in self.engines and 1 <= self.bits < 32):
      raise ValueError(
        f'the number format {self.name!r} has the method {self.method!r}, by '
        "which checkpoints name it, and so needs 'numpy' among its engines and "
        'bits from 1 to 31: 32 stand for the values as they are'
      )
    clashes = _OF_CHUNKS & set(self.layout(self.least_columns))
    if clashes:
      raise ValueError(
        f'the number format {self.name!r} has a part {clashes.pop()!r}, which '
        'every chunk of a checkpoint has for something else; rename the part'
      )

  def encode(self, rows: Array, xp: types.ModuleType = np) -> dict[str, Array]:
    """The arrays of rows `[..., C]`.

    >>> from genrec_jax.numerics.formats import FORMATS
    >>> rows = np.array([[0, 0.5, 1], [-1, 0, 1]], np.float32)
    >>> FORMATS['asymmetric2'].encode(rows)['codes'].tolist()
    [[56], [56]]
    """
    self._check_engine(xp)
    return self.encoder(rows, xp)

  def decode(
    self,
    arrays: Mapping[str, Array],
    columns: int,
    xp: types.ModuleType = np,
  ) -> Array:
    """Rows `[..., columns]` float32 of the arrays of `encode`.

    Args:
      arrays: {name: array}.
      columns: number of columns, which packed codes do not determine.
      xp: `numpy`, or `jax.numpy` where 'jax' is among the engines.

    Returns:
      The rows, as near to what was encoded as the format comes.
    """
    self._check_engine(xp)
    return self.decoder(arrays, columns, xp)

  def bytes_per_row(self, columns: int) -> int:
    """The bytes of all parts of a row of `columns` numbers.

    >>> from genrec_jax.numerics.formats import FORMATS
    >>> [FORMATS[f].bytes_per_row(64) for f in ('bfloat16', 'adaptive4')]
    [128, 36]
    """
    return sum(part.row_bytes for part in self.layout(columns).values())

  def _check_engine(self, xp: types.ModuleType) -> None:
    if _ENGINES.get(xp.__name__) not in self.engines:
      raise ValueError(
        f'the number format {self.name!r} runs in '
        f'{" and ".join(self.engines)}, not in {xp.__name__}'
      )


def flush_subnormals(rows: Array, xp: types.ModuleType) -> Array:
  """Replaces subnormal numbers by zeros of the same sign.

  XLA on a CPU treats subnormal numbers as zeros and NumPy does not. Formats
  that compute with rows call this first, so that both give equal bytes.
  """
  least = np.float32(2.0**-126)
  return xp.where(xp.abs(rows) < least, xp.copysign(np.float32(0), rows), rows)
