"""Formats in which the rows of a table may be kept packed, and their bytes.

    packed = join_parts(PACKED_FORMATS['tbe_int4'], rows)
    rows = split_parts(PACKED_FORMATS['tbe_int4'], packed, columns=64)

Those of `fused_rows`, which are FBGEMM's, and of `block_rows`, which are those
of the MX standard, shared microexponents and MSFP.
"""

import numpy as np

from genrec_jax.numerics.block_rows import BLOCK_ROWS
from genrec_jax.numerics.fused_rows import FUSED_ROWS
from genrec_jax.numerics.number_format import NumberFormat

PACKED_FORMATS: dict[str, NumberFormat] = FUSED_ROWS | BLOCK_ROWS


def join_parts(
  number_format: NumberFormat,
  rows: np.ndarray,
  *,
  align: int = 1,
) -> np.ndarray:
  """Rows as bytes, with all their parts.

  >>> rows = np.array([[1, 2, 3, 4]], np.float32)
  >>> join_parts(PACKED_FORMATS['fbgemm_int4'], rows).tolist()
  [[80, 250, 102, 50, 0, 60]]

  Args:
    number_format: any that NumPy runs.
    rows: `[n, C]` float32.
    align: each row is filled with zeros to a multiple of so many bytes.

  Returns:
    `[n, bytes_per_row]` uint8.
  """
  if np.ndim(rows) != 2 or not rows.shape[1]:
    raise ValueError(
      f'rows must be [n, C] with C of at least 1, not {list(np.shape(rows))}'
    )
  columns = rows.shape[-1]
  if not len(rows):
    size = number_format.bytes_per_row(columns)
    return np.zeros((0, size + -size % align), np.uint8)
  arrays = number_format.encode(np.asarray(rows, np.float32))
  parts = []
  for part, array in number_format.layout(columns).items():
    values = np.ascontiguousarray(arrays[part]).reshape(len(rows), -1)
    parts.append(values.astype(array.dtype, copy=False).view(np.uint8))
  size = number_format.bytes_per_row(columns)
  if missing := -size % align:
    parts.append(np.zeros((len(rows), missing), np.uint8))
  return np.concatenate(parts, axis=-1)


def split_parts(
  number_format: NumberFormat, data: np.ndarray, columns: int
) -> np.ndarray:
  """Rows `[n, columns]` float32 of the bytes of `join_parts`."""
  size = number_format.bytes_per_row(columns)
  if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] < size:
    raise ValueError(
      f'rows of {columns} numbers in {number_format.name} are uint8 [n, {size}]'
      f', these are {data.dtype} {list(data.shape)}'
    )
  arrays, start = {}, 0
  for part, array in number_format.layout(columns).items():
    end = start + array.row_bytes
    values = np.ascontiguousarray(data[:, start:end]).view(array.dtype)
    arrays[part] = values[:, 0] if array.width is None else values
    start = end
  return number_format.decode(arrays, columns)
