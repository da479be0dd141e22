"""A chunk of rows as one .npz file, which NumPy alone can read.

    rows/item/d0-00003.npz
      about       JSON as bytes: table, first_column, columns, dtype, bits,
                  method, and how the ids are written: first, stride, count
      ids         one of: absent (first, first + stride, ... `count` of them),
                  uint8 (bit j of it, low bits first, says whether
                  first + j * stride is there), or int64 (as they are)
      values      [n, C] at 32 bits; bfloat16 as uint16
      codes scale bias (or codebook)
                  [n, ...] at fewer, see numerics.row_quant
      slot.NAME   [n] or [n, C] float32, or float16 to be multiplied by
                  slot.NAME.scale

docs/checkpoint_format.md says the same at length, with a reader.
"""

import dataclasses
import io
import json

import ml_dtypes
import numpy as np

from genrec_jax.numerics import row_quant

EXACT = 32  # bits: the values as they are
BITS = (*row_quant.BITS, EXACT)
SLOTS = ('float32', 'float16')


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Some rows of a table, or of some of its columns.

  Attributes:
    table: its name.
    first_column: of the table.
    ids: `[n]` int64, ascending: numbers of the rows in the whole table.
    values: `[n, C]`.
    slots: slot of the row optimizer -> `[n]` or `[n, C]`.
  """

  table: str
  first_column: int
  ids: np.ndarray
  values: np.ndarray
  slots: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Encoding:
  """How rows are written.

  Attributes:
    bits: of a weight, one of `BITS`; 32 writes the dtype of the table as it is,
      and so are narrow rows written that fewer bits would not make smaller.
    method: of `row_quant.METHODS`, for fewer bits.
    slots: 'float32', or 'float16' with a common factor for each chunk.
  """

  bits: int = EXACT
  method: str = 'adaptive'
  slots: str = 'float32'

  def __post_init__(self):
    known = {'bits': BITS, 'method': row_quant.METHODS, 'slots': SLOTS}
    for key, values in known.items():
      if getattr(self, key) not in values:
        raise ValueError(
          f'checkpoint {key} is {getattr(self, key)!r}, must be one of '
          + ', '.join(map(str, values))
        )
    if self.method == 'kmeans' and self.bits == 8:
      raise ValueError(
        'checkpoint method kmeans is for 2, 3 and 4 bits: 256 numbers of its '
        "own are more than a row; take 'adaptive' with 8"
      )

  def of(self, values: np.ndarray) -> 'Encoding':
    """The encoding of such rows: this one, or as they are."""
    dim, each = values.shape[1], values.dtype.itemsize
    if self.bits == EXACT:
      return self
    small = row_quant.row_bytes(dim, self.bits, self.method) >= dim * each
    if small or self.method == 'kmeans' and dim <= 2**self.bits:
      return dataclasses.replace(self, bits=EXACT)
    return self


def to_bytes(chunk: Chunk, encoding: Encoding) -> bytes:
  """The file of a chunk; raises ValueError for what cannot be encoded."""
  encoding = encoding.of(chunk.values)
  about = {
    'table': chunk.table,
    'first_column': chunk.first_column,
    'columns': chunk.values.shape[1],
    'dtype': str(chunk.values.dtype),
    'bits': encoding.bits,
    'method': encoding.method if encoding.bits != EXACT else 'exact',
  }
  progression, arrays = _written_ids(chunk.ids)
  about |= progression
  arrays |= _written_values(chunk, encoding)
  for name, slot in chunk.slots.items():
    arrays |= _written_slot(chunk, name, slot, encoding)
  text = np.frombuffer(json.dumps(about).encode(), np.uint8)
  file = io.BytesIO()
  np.savez(file, about=text, **arrays)
  return file.getvalue()


def from_bytes(raw: bytes) -> Chunk:
  """The chunk of a file, with its values and slots as they are used."""
  with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
    about = json.loads(arrays['about'].tobytes())
    slots = {
      name.removeprefix('slot.'): _read_slot(arrays, name)
      for name in arrays.files
      if name.startswith('slot.') and not name.endswith('.scale')
    }
    return Chunk(
      about['table'],
      about['first_column'],
      _read_ids(arrays, about),
      _read_values(arrays, about),
      slots,
    )


def _written_ids(ids: np.ndarray) -> tuple[dict, dict[str, np.ndarray]]:
  """(first, stride and count; the array `ids` where those do not tell all)."""
  gaps = np.diff(ids)
  if not len(ids) or (gaps <= 0).any():
    raise ValueError('ids of a chunk must be some, and ascending')
  stride = int(np.gcd.reduce(gaps)) if len(gaps) else 1
  about = {'first': int(ids[0]), 'stride': stride, 'count': len(ids)}
  places = (ids - ids[0]) // stride
  span = int(places[-1]) + 1
  if span == len(ids):
    return about, {}
  if span > 64 * len(ids):  # more bytes as bits than as numbers
    return about, {'ids': ids.astype(np.int64)}
  there = np.zeros(span, bool)
  there[places] = True
  return about, {'ids': np.packbits(there, bitorder='little')}


def _read_ids(arrays, about) -> np.ndarray:
  if 'ids' not in arrays.files:
    places = np.arange(about['count'], dtype=np.int64)
  elif arrays['ids'].dtype == np.int64:
    return arrays['ids']
  else:
    bits = np.unpackbits(arrays['ids'], bitorder='little')
    places = np.flatnonzero(bits)
  return about['first'] + about['stride'] * places


def _written_values(chunk: Chunk, encoding: Encoding) -> dict[str, np.ndarray]:
  values = chunk.values
  if encoding.bits == EXACT:
    if values.dtype == ml_dtypes.bfloat16:
      values = values.view(np.uint16)
    return {'values': values}
  try:
    return row_quant.quantize(
      values.astype(np.float32), encoding.bits, encoding.method
    )
  except ValueError as e:
    raise ValueError(
      f'rows {chunk.ids[0]} to {chunk.ids[-1]} of table {chunk.table!r}: {e}'
    ) from e


def _read_values(arrays, about) -> np.ndarray:
  dtype = np.dtype(about['dtype'])  # ml_dtypes has told NumPy of bfloat16
  if about['bits'] == EXACT:
    values = arrays['values']
    return values if values.dtype == dtype else values.view(dtype)
  found = row_quant.dequantize(arrays, about['columns'], about['bits'])
  return found.astype(dtype, copy=False)


def _written_slot(
  chunk: Chunk, name: str, slot: np.ndarray, encoding: Encoding
) -> dict[str, np.ndarray]:
  key = f'slot.{name}'
  if encoding.slots == 'float32':
    return {key: slot}
  most = float(np.max(np.abs(slot)))
  if not np.isfinite(most):
    raise ValueError(f'slot {name} of table {chunk.table!r} is not finite')
  # A power of two, so that only the mantissa is rounded, and the whole range
  # of float16 below the largest.
  exponent = np.frexp(most)[1] - 15 if most else 0
  scale = np.float32(2.0 ** max(exponent, -126))
  half = (slot / scale).astype(np.float16)
  # A second moment of zero would be a division by next to nothing.
  lost = (half == 0) & (slot != 0)
  half[lost] = np.copysign(np.float16(2**-24), slot[lost])
  return {key: half, f'{key}.scale': scale}


def _read_slot(arrays, name: str) -> np.ndarray:
  slot = arrays[name]
  if f'{name}.scale' in arrays.files:
    return slot.astype(np.float32) * arrays[f'{name}.scale']
  return slot
