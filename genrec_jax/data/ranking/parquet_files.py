"""Parquet files by column names; lists are multi_hot or sequence features."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data import fields, parquet, text
from genrec_jax.data.parquet import pa
from genrec_jax.data.ranking import csv_files, raw

SUFFIXES = ('.parquet',)
BARE = False


def read_names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file."""
  del reading
  columns = parquet.read_schema(text.require_file(path)).names
  name = csv_files.find_twin(columns)
  if name is not None:
    raise ValueError(f'{path}: two columns are named {name!r}; rename one')
  return columns


def read_chunks(
  path: pathlib.Path, column_names: Sequence[str], reading: Mapping[str, str]
) -> Iterator[raw.RawChunk]:
  """Rows of a file, the columns `column_names` alone.

  Args:
    path: the file.
    column_names: names of the columns.
    reading: whose 'time' is the column that may hold dates and timestamps; it
      becomes seconds.
  """
  csv_files.find_columns(path, column_names, read_names(path, reading))
  done = 0
  for batch in parquet.read_batches(path, column_names, raw.CHUNK_ROWS):

    def quote_row(i, done=done):
      return f'{path}, row {done + i + 1}'

    columns = {}
    with parquet.explain_damage(path, done):
      for name in column_names:
        values = batch[name]
        if name == reading.get('time', ''):
          values = _to_seconds(values)
        place = f'{quote_row(0)}, column {name!r}'
        columns[name] = _convert_column(values, place)
    yield raw.RawChunk(columns, batch.num_rows, quote_row)
    done += batch.num_rows


def _to_seconds(values):
  """Dates and timestamps as seconds since 1970; others as they are."""
  if pa.types.is_date(values.type):
    values = values.cast(pa.timestamp('s'))
  if not pa.types.is_timestamp(values.type):
    return values
  unit = fields.UNITS[values.type.unit]
  present = values.is_valid().to_numpy(zero_copy_only=False)
  whole = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
  seconds, rest = np.divmod(whole, unit)
  if rest.any():  # a split by time minds fractions, which round to no second
    end = np.nextafter(seconds + 1.0, 0)
    seconds = np.minimum(seconds + rest / unit, end)
  return pa.array(seconds, mask=~present)


def _convert_column(values, where: str) -> raw.Column:
  types, kind = pa.types, values.type
  if types.is_dictionary(kind):
    values = values.dictionary_decode()
    kind = values.type
  if _is_list(kind):
    if not _suggest_kind(kind):
      raise ValueError(
        f'{where}: type {kind}, and a feature holds lists of text or of whole '
        'numbers; convert the column, or leave it out of data.features'
      )
    lengths = values.value_lengths().fill_null(0)
    inner = values.filter(values.is_valid()).flatten()
    lengths = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return raw.ListColumn(_convert_column(inner, where), lengths)
  if types.is_string(kind) or types.is_large_string(kind):
    return parquet.list_texts(values)
  if types.is_boolean(kind):
    values, kind = values.cast(pa.int8()), pa.int8()
  if types.is_integer(kind):
    zero, dtype = 0, np.int64
  elif types.is_floating(kind):
    zero, dtype = 0.0, np.float64
  else:
    raise ValueError(
      f'{where}: type {kind} is neither text nor a number nor a list of those; '
      'convert the column, or leave it out of data.features'
    )
  present = None
  if values.null_count:
    present = values.is_valid().to_numpy(zero_copy_only=False)
    values = values.fill_null(zero)
  numbers = values.to_numpy(zero_copy_only=False)
  if kind == pa.uint64():
    if len(numbers) and numbers.max() > np.iinfo(np.int64).max:
      raise ValueError(
        f'{where}: numbers beyond 2^63; convert the column to text'
      )
  return raw.NumberColumn(numbers.astype(dtype), present)


def default_features(
  path: pathlib.Path, reading: Mapping[str, str]
) -> dict[str, dict | None]:
  """Features by the types of the columns; None for types of no feature."""
  del reading
  schema = parquet.read_schema(text.require_file(path))
  out = {}
  for name, type_ in zip(schema.names, schema.types, strict=True):
    kind = _suggest_kind(type_)
    out[name] = {'kind': kind} if kind else None
  return out


def _is_list(kind: pa.DataType) -> bool:
  return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _suggest_kind(kind: pa.DataType) -> str:
  """The kind of feature that a type is read as, '' for none."""
  types = pa.types
  if types.is_dictionary(kind):
    kind = kind.value_type
  if _is_list(kind):
    is_of_categories = _suggest_kind(kind.value_type) == 'categorical'
    return 'multi_hot' if is_of_categories else ''
  if types.is_floating(kind):
    return 'numeric'
  if types.is_string(kind) or types.is_large_string(kind):
    return 'categorical'
  is_whole = types.is_integer(kind) or types.is_boolean(kind)
  return 'categorical' if is_whole else ''
