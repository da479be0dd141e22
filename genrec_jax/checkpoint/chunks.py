"""A chunk of rows as one .npz file, which NumPy alone can read.

    rows/item/d0-00003.npz
      about       JSON as bytes: table, first_column, columns, dtype, bits,
                  method, and how the ids are written: first, stride, count
      ids         one of: absent (first, first + stride, ... `count` of them),
                  uint8 (bit j of it, low bits first, says whether
                  first + j * stride is there), or int64 (as they are)
      values      [n, C] at 32 bits; bfloat16 as uint16
      codes scale bias (or codebook)
                  [n, ...] at fewer: the parts of a format of numerics.formats
      slot.NAME   [n] or [n, C] float32, or float16 to be multiplied by
                  slot.NAME.scale

docs/checkpoint_format.md says the same at length, with a reader.
"""

import dataclasses
import io
import json
from collections.abc import Mapping

import numpy as np

from genrec_jax.data import npz_members
from genrec_jax.numerics import formats as formats_lib
from genrec_jax.numerics.formats import FORMATS, Formats
from genrec_jax.numerics.number_format import NumberFormat

EXACT = 32  # bits: the values as they are
SLOTS = ('float32', 'float16')


@dataclasses.dataclass(frozen=True)
class RowChunk:
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
class RowEncoding:
  """How rows are written.

  Attributes:
    bits: of a weight: 32 writes the dtype of the table as it is, and so are
      narrow rows written that fewer bits would not make smaller; or those of a
      format of this method.
    method: one of `formats.list_methods()`, for fewer bits.
    slots: 'float32', or 'float16' with a common factor for each chunk.
    formats: the number formats there are, see `formats.extend_formats`.
  """

  bits: int = EXACT
  method: str = 'adaptive'
  slots: str = 'float32'
  formats: Formats = dataclasses.field(
    default_factory=lambda: FORMATS, hash=False, repr=False
  )

  def __post_init__(self):
    known = {
      'bits': (*formats_lib.bit_widths(self.formats), EXACT),
      'method': formats_lib.list_methods(self.formats),
      'slots': SLOTS,
    }
    for key, values in known.items():
      if getattr(self, key) not in values:
        raise ValueError(
          f'checkpoint {key} is {getattr(self, key)!r}, must be one of '
          + ', '.join(map(str, values))
        )
    try:
      self._find_quantiser()
    except ValueError as e:
      raise ValueError(f'checkpoint {e}') from e

  def describe(self) -> dict:
    """What a manifest says of it."""
    return {'bits': self.bits, 'method': self.method, 'slots': self.slots}

  def format_of(self, values: np.ndarray) -> NumberFormat:
    """The format of such rows: what is asked for, or their own.

    >>> RowEncoding(4).format_of(np.zeros((9, 64), np.float32)).name
    'adaptive4'
    >>> RowEncoding(4).format_of(np.zeros((9, 1), np.float32)).name
    'float32'
    """
    columns = values.shape[1]
    dtype = str(values.dtype)
    formats_lib.storage_dtype(dtype, self.formats)
    as_it_is, quantiser = self.formats[dtype], self._find_quantiser()
    if quantiser is None or columns < quantiser.least_columns:
      return as_it_is
    smaller = quantiser.bytes_per_row(columns) < as_it_is.bytes_per_row(columns)
    return quantiser if smaller else as_it_is

  def _find_quantiser(self) -> NumberFormat | None:
    if self.bits == EXACT:
      return None
    return formats_lib.find_quantiser(self.method, self.bits, self.formats)


def to_bytes(chunk: RowChunk, encoding: RowEncoding) -> bytes:
  """The file of a chunk; raises ValueError for what cannot be encoded."""
  written = encoding.format_of(chunk.values)
  about = {
    'table': chunk.table,
    'first_column': chunk.first_column,
    'columns': chunk.values.shape[1],
    'dtype': str(chunk.values.dtype),
    # A format that no method names is that of the table.
    'bits': written.bits if written.method else EXACT,
    'method': written.method or 'exact',
  }
  progression, arrays = _written_ids(chunk.ids)
  about |= progression
  arrays |= _written_values(chunk, written)
  for name, slot in chunk.slots.items():
    arrays |= _written_slot(chunk, name, slot, encoding)
  text = np.frombuffer(json.dumps(about).encode(), np.uint8)
  file = io.BytesIO()
  np.savez(file, about=text, **arrays)
  return file.getvalue()


def from_bytes(
  raw: bytes, formats: Formats = FORMATS, most_rows: int | None = None
) -> RowChunk:
  """The chunk of a file, with its values and slots as they are used.

  Nothing is allocated for what the file only claims to hold.

  Args:
    raw: content of the file.
    formats: the number formats there are; that of the rows must be among them.
    most_rows: rows of the table; ids beyond them are refused.

  Returns:
    The chunk.

  Raises:
    ValueError, LookupError, TypeError: the file is no chunk.
  """
  arrays = npz_members.read_members(raw)
  about = read_description(arrays)
  ids = _read_ids(arrays, about, most_rows)
  slots = {
    name.removeprefix('slot.'): _read_slot(arrays, name)
    for name in arrays
    if name.startswith('slot.') and not name.endswith('.scale')
  }
  return RowChunk(
    about['table'],
    about['first_column'],
    ids,
    _read_values(arrays, about, len(ids), formats),
    slots,
  )


def read_description(arrays: Mapping[str, np.ndarray]) -> dict:
  """`about` of a chunk, of its members; ValueError unless it is one."""
  about = json.loads(arrays['about'].tobytes())
  for name in ('first_column', 'columns', 'first', 'stride', 'count', 'bits'):
    least = int(name in ('columns', 'stride', 'count', 'bits'))
    if type(about[name]) is not int or not least <= about[name] < 1 << 62:
      raise ValueError(f'{name} is {str(about[name])[:40]}')
  for name in ('table', 'dtype', 'method'):
    if not isinstance(about[name], str):
      raise ValueError(f'{name} is {str(about[name])[:40]}')
  return about


def _written_ids(ids: np.ndarray) -> tuple[dict, dict[str, np.ndarray]]:
  """First id, stride and count; and a bit map or list of ids with gaps."""
  gaps = np.diff(ids)
  if not len(ids) or (gaps <= 0).any():
    raise ValueError('the ids of a chunk must not be empty, and must ascend')
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


def _read_ids(
  arrays: Mapping[str, np.ndarray], about: dict, most_rows: int | None
) -> np.ndarray:
  first, stride, count = about['first'], about['stride'], about['count']
  ids = arrays.get('ids')
  if ids is None:
    span = count
  elif ids.dtype == np.uint8 and ids.ndim == 1 and len(ids):
    # A bit map ends with the byte of its last row.
    span = 8 * (len(ids) - 1) + 1
  elif ids.dtype == np.int64 and ids.shape == (count,):
    return ids
  else:
    raise ValueError(f'its ids are {ids.dtype}{list(ids.shape)}')
  last = first + stride * (span - 1)
  if last >= (most_rows or 1 << 62):
    raise ValueError(f'they do not fit: row {last:,} of {most_rows:,}')
  places = (
    np.arange(count, dtype=np.int64)
    if ids is None
    else np.flatnonzero(np.unpackbits(ids, bitorder='little'))
  )
  if len(places) != count:
    raise ValueError(f'it has {len(places):,} ids instead of {count:,}')
  return first + stride * places


def _written_values(
  chunk: RowChunk, written: NumberFormat
) -> dict[str, np.ndarray]:
  values = chunk.values
  if written.method:  # quantisers see float32, whatever the table is
    values = values.astype(np.float32)
  try:
    return written.encode(values)
  except ValueError as e:
    raise ValueError(
      f'rows {chunk.ids[0]} to {chunk.ids[-1]} of table {chunk.table!r}: {e}'
    ) from e


def _read_values(
  arrays: Mapping[str, np.ndarray], about: dict, count: int, formats: Formats
) -> np.ndarray:
  dtype = formats_lib.storage_dtype(about['dtype'], formats)
  if about['bits'] == EXACT:
    # Not by way of float32, in which a NaN may lose its other bits.
    values = _find_part(arrays, 'values', count)
    return values if values.dtype == dtype else values.view(dtype)
  try:
    written = formats_lib.find_quantiser(
      about['method'], about['bits'], formats
    )
  except ValueError as e:
    raise ValueError(f'{e}; hand in the format that wrote them') from e
  columns = about['columns']
  if not written.least_columns <= columns < 1 << 24:
    raise ValueError(f'it has {columns:,} columns')
  parts = {
    name: _find_part(arrays, name, count) for name in written.layout(columns)
  }
  return written.decode(parts, columns).astype(dtype, copy=False)


def _find_part(
  arrays: Mapping[str, np.ndarray], name: str, count: int
) -> np.ndarray:
  """An array with an entry for each row."""
  if arrays[name].shape[:1] != (count,):
    raise ValueError(f'{name} has the shape {list(arrays[name].shape)}')
  return arrays[name]


def _written_slot(
  chunk: RowChunk, name: str, slot: np.ndarray, encoding: RowEncoding
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


def _read_slot(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
  slot = arrays[name]
  if f'{name}.scale' in arrays:
    return slot.astype(np.float32) * arrays[f'{name}.scale']
  return slot
