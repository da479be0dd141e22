"""Parquet columns -> typed columns; the only importer of pyarrow."""

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

try:
  import pyarrow as pa
  import pyarrow.parquet as pq
except ImportError:
  raise ImportError(
    "reading Parquet needs pyarrow: pip install 'genrec_jax[parquet]'"
  ) from None

from genrec_jax.data import extras as extras_lib
from genrec_jax.data import fields
from genrec_jax.data import vocab as vocab_lib


def open_parquet(path: pathlib.Path) -> pq.ParquetFile:
  try:
    return pq.ParquetFile(path)
  except (pa.ArrowException, OSError) as e:
    raise ValueError(f'{path}: not a readable Parquet file ({e})') from None


def read_batches(
  path: pathlib.Path,
  file: pq.ParquetFile,
  names: Sequence[str],
  chunk_rows: int,
) -> Iterator[pa.RecordBatch]:
  """Batches of the named columns; never an empty one."""
  done = 0
  try:
    for batch in file.iter_batches(chunk_rows, columns=list(names)):
      if batch.num_rows:
        done += batch.num_rows
        yield batch
  except (pa.ArrowException, OSError) as e:
    raise ValueError(
      f'{path}, after row {done}: the file is damaged ({e})'
    ) from None


def _to_numpy(values: pa.Array, dtype) -> np.ndarray:
  return values.to_numpy(zero_copy_only=False).astype(dtype)


def _decode_dictionary(values: pa.Array) -> pa.Array:
  """Dictionary-coded columns hold the same values in another form."""
  if pa.types.is_dictionary(values.type):
    return values.dictionary_decode()
  return values


def read_column(
  values: pa.Array, role: str, ids: str, time_unit: str, where: str
) -> tuple[np.ndarray, np.ndarray]:
  """One column of a batch as NumPy, and which rows are good.

  Args:
    values: `[N]` the column.
    role: 'user', 'item', 'time' or 'rating'.
    ids: kind of ids: 'auto', 'int' or 'str'.
    time_unit: of numeric times.
    where: names the column, for a type that does not fit.

  Returns:
    `[N]` values and `[N]` bool mask; nulls are not good.
  """
  values = _decode_dictionary(values)
  present = values.is_valid().to_numpy(zero_copy_only=False)
  kind = values.type
  if role in ('user', 'item'):
    converted = _read_ids(values, kind, ids)
  elif role == 'time':
    converted = _read_times(values, kind, time_unit)
  else:
    converted = _read_ratings(values, kind)
  if converted is None:
    raise ValueError(
      f'{where.replace(", row {}", "")}: type {kind} is not '
      f'{fields.WANTED[role]}'
    )
  return converted[0], converted[1] & present


def _is_text(kind: pa.DataType) -> bool:
  return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _read_ids(values, kind, ids):
  if pa.types.is_integer(kind):
    whole = _to_numpy(values.fill_null(0), kind.to_pandas_dtype())
    good = whole <= np.iinfo(np.int64).max  # uint64 reaches further
    whole = whole.astype(np.int64)
    return (whole.astype(str) if ids == 'str' else whole), good
  if not _is_text(kind):
    return None
  text = _to_numpy(values.fill_null(''), str)
  if ids == 'int':
    return vocab_lib.parse_ints(text)
  return text, text != ''


def _read_times(values, kind, unit):
  if pa.types.is_date(kind):
    values, kind = values.cast(pa.timestamp('s')), pa.timestamp('s')
  if pa.types.is_timestamp(kind):
    unit, kind, values = kind.unit, pa.int64(), values.cast(pa.int64())
  if pa.types.is_integer(kind):
    whole = _to_numpy(values.fill_null(0), np.int64)
    return whole // fields.UNITS[unit], whole >= 0
  if pa.types.is_floating(kind):
    seconds = _to_numpy(values.fill_null(0), np.float64) / fields.UNITS[unit]
    return fields.whole_seconds(seconds)
  if _is_text(kind):
    return fields.parse_times(values.fill_null('').to_pylist(), unit)
  return None


def _read_ratings(values, kind):
  if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
    return None
  numbers = _to_numpy(values.fill_null(0), np.float32)
  return numbers, np.isfinite(numbers)


def read_extra(
  values: pa.Array, column: extras_lib.ExtraColumn
) -> tuple[np.ndarray, np.ndarray]:
  """An extra column of a batch as NumPy, and which rows are good.

  Raises:
    TypeError: for a type that is not of the column's kind.
  """
  values = _decode_dictionary(values)
  kind = values.type
  present = values.is_valid().to_numpy(zero_copy_only=False)
  if pa.types.is_boolean(kind):
    values, kind = values.cast(pa.int8()), pa.int8()
  if _is_text(kind) and column.kind == 'category':
    return extras_lib.read_texts(column, values.fill_null('').to_pylist())
  if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
    raise TypeError(f'type {kind} is not of kind {column.kind}')
  numbers = _to_numpy(values.fill_null(0), kind.to_pandas_dtype())
  return extras_lib.read_numbers(column, numbers, present)
