"""Encodes the rows of an exchange as the bytes of a number format.

A codec turns `[..., C]` float32 into unsigned integers and back. It uses
integers because the compiler may widen a collective of a narrow float type; in
this form, the bits that travel are the bits of the format. The parts of a row,
such as its scale, follow one another in its bytes, so that one collective moves
them all.

Every format that runs in JAX is a codec, see `numerics.formats`:

| name     | bytes of a row | forward       | backward      |
|----------|----------------|---------------|---------------|
| float32  | 4 C            |               |               |
| float16  | 2 C            | nearest       | nearest       |
| bfloat16 | 2 C            | nearest       | nearest       |
| fp8      | C + 4          | e4m3, scaled  | e5m2, scaled  |
| int8     | C + 8          | 256 steps from the least to the greatest value |

and those of `numerics.fused_rows` whose rows show a NaN: fbgemm_int8, _int4,
_int2, _fp8 and _mx4, with the bytes that FBGEMM's collectives send. Those of
`numerics.block_rows`, which are MX, shared microexponents and MSFP, share a
power of two in 16 or 32 numbers and have 4 to 9 bits for each.

In float16, numbers below 3e-8 become zero and those above 65,504 infinite. A
codec may multiply rows by a power of two before they are encoded and divide
them afterwards, which moves this range and rounds no number within it. An
exchange does so with gradients (`Exchange.gradient_scale`).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.numerics.formats import FORMATS, Formats
from genrec_jax.numerics.number_format import EncodedArray, NumberFormat


@dataclasses.dataclass(frozen=True)
class Codec:
  """How rows travel.

  Attributes:
    format: the number format of the rows.
    scale: a power of two by which rows are larger on the wire.
  """

  format: NumberFormat
  scale: float = 1.0

  @property
  def exact(self) -> bool:
    """Whether the format loses nothing, so that sums may travel in it."""
    return self.format.exact

  def row_bytes(self, columns: int) -> int:
    """Bytes of a row on the wire."""
    return self.format.bytes_per_row(columns)

  def encode(self, rows: jax.Array) -> jax.Array:
    """`[..., C]` float32 -> `[..., N]` unsigned, or float32 as it is.

    >>> find_codec('int8').encode(jnp.zeros((3, 64))).shape
    (3, 72)
    """
    layout = self.format.layout(rows.shape[-1])
    if self.scale != 1:
      rows = rows * jnp.float32(self.scale)
    arrays = self.format.encode(rows, jnp)
    if len(layout) == 1:
      (array,) = arrays.values()
      # One part needs no cutting into bytes, only another name for its bits.
      bits = 8 * array.dtype.itemsize
      # Sums are made of what is exact, so it stays what it is.
      return array if self.exact else array.view(f'uint{bits}')
    return jnp.concatenate(
      [_to_bytes(arrays[name], array) for name, array in layout.items()],
      axis=-1,
    )

  def decode(self, bits: jax.Array, columns: int) -> jax.Array:
    """The inverse of `encode`, for rows of `columns` numbers."""
    rows = self._decode_bits(bits, columns)
    return rows if self.scale == 1 else rows * jnp.float32(1 / self.scale)

  def _decode_bits(self, bits: jax.Array, columns: int) -> jax.Array:
    layout = self.format.layout(columns)
    if len(layout) == 1:
      ((name, array),) = layout.items()
      return self.format.decode({name: bits.view(array.dtype)}, columns, jnp)
    # In the order of the layout, which `encode` follows too.
    arrays, start = {}, 0
    for name, array in layout.items():
      end = start + array.row_bytes
      arrays[name] = _from_bytes(bits[..., start:end], array)
      start = end
    return self.format.decode(arrays, columns, jnp)


def find_codec(
  name: str, *, backward: bool = False, formats: Formats = FORMATS
) -> Codec:
  """The codec called `name`.

  Args:
    name: one of `names(formats)`.
    backward: whether the codec is for gradients of rows instead of rows.
    formats: the available number formats.

  Raises:
    ValueError: there is no such codec.
  """
  if name not in names(formats):
    raise ValueError(
      f'there is no codec {name!r}, must be one of {", ".join(names(formats))}'
    )
  chosen = formats[name]
  # Some formats have a twin for gradients, with more range and fewer digits.
  return Codec(chosen.gradients or chosen if backward else chosen)


def names(formats: Formats = FORMATS) -> tuple[str, ...]:
  """The formats that may travel: those that run inside a program.

  >>> names()[:8]
  ('float32', 'float16', 'bfloat16', 'fp8', 'int8', 'fbgemm_int8', \
'fbgemm_int4', 'fbgemm_int2')
  """
  return tuple(n for n, f in formats.items() if 'jax' in f.engines)


def _to_bytes(x: jax.Array, array: EncodedArray) -> jax.Array:
  """A part as `[..., part.row_bytes]` uint8."""
  if array.width is None:
    x = x[..., None]
  return x.view(np.uint8)


def _from_bytes(x: jax.Array, array: EncodedArray) -> jax.Array:
  """The inverse of `_to_bytes`."""
  x = x.view(array.dtype)
  return x[..., 0] if array.width is None else x
