"""Parquet files by column names; lists are multi_hot or sequence features."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data import fields, parquet, text
from genrec_jax.data.parquet import pa
from genrec_jax.data.ranking import csv_files, forms, raw

_OTHERWISE = ', or leave it out of data.features'
_REMEDY = 'make it null if it is missing'
SUFFIXES = ('.parquet',)
BARE = False
# Kind of what is inside of lists -> of their feature.
_OF_LISTS = {'categorical': 'multi_hot', 'numeric': 'numeric_sequence', '': ''}


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
    reading: the format and its options; 'otherwise' is what else to do about a
      column of a type that cannot be read.
  """
  otherwise = reading.get('otherwise', _OTHERWISE)
  csv_files.find_columns(path, column_names, read_names(path, {}))
  done = 0
  for batch in parquet.read_batches(path, column_names, raw.CHUNK_ROWS):

    def quote_row(i, done=done):
      return f'{path}, row {done + i + 1}'

    columns = {}
    with parquet.explain_damage(path, done):
      for name in column_names:
        values = batch[name]
        place = f'{quote_row(0)}, column {name!r}'
        columns[name] = _convert_column(values, place, otherwise)
    yield raw.RawChunk(columns, batch.num_rows, quote_row, _REMEDY)
    done += batch.num_rows


def _convert_column(values, where: str, otherwise: str) -> raw.Column:
  types, kind = pa.types, values.type
  if types.is_dictionary(kind):
    values = values.dictionary_decode()
    kind = values.type
  if parquet.is_list(kind):
    lengths = values.value_lengths().fill_null(0)
    inner = values.filter(values.is_valid()).flatten()
    lengths = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if not (_suggest_kind(kind.value_type) or types.is_null(kind.value_type)):
      _refuse_type(kind, where, otherwise)
    return raw.ListColumn(_convert_column(inner, where, otherwise), lengths)
  if types.is_null(kind):
    return [''] * len(values)
  if types.is_decimal(kind):
    return _list_decimals(values)
  if parquet.is_text(kind):
    return parquet.list_texts(values)
  present = None
  if values.null_count:
    present = values.is_valid().to_numpy(zero_copy_only=False)
  if types.is_date(kind) or types.is_timestamp(kind):
    seconds, fraction = _read_dates(values)
    return raw.NumberColumn(seconds, present, True, fraction)
  if types.is_boolean(kind):
    values, kind = values.cast(pa.int8()), pa.int8()
  if not (types.is_integer(kind) or types.is_floating(kind)):
    _refuse_type(kind, where, otherwise)
  if present is not None:
    values = values.fill_null(pa.scalar(0, kind))
  numbers = values.to_numpy(zero_copy_only=False)
  if kind == pa.uint64():
    if len(numbers) and numbers.max() > np.iinfo(np.int64).max:
      raise ValueError(
        f'{where}: numbers beyond 2^63; convert the column to text'
      )
  if types.is_integer(kind):
    return raw.NumberColumn(numbers.astype(np.int64), present)
  return raw.make_numbers(numbers, present)


def _refuse_type(kind: pa.DataType, where: str, otherwise: str) -> None:
  is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
  remedy = 'cast the column to text' if is_binary else 'convert the column'
  raise ValueError(
    f'{where}: type {kind} is neither text nor a number nor a list of those; '
    f'{remedy}{otherwise}'
  )


def _list_decimals(values: pa.Array) -> list[str]:
  """The canonical texts of decimals, '' where there is none."""
  coded = values.dictionary_encode()
  texts = [*map(forms.format_number, coded.dictionary.to_pylist()), '']
  places = coded.indices.fill_null(len(texts) - 1).to_numpy()
  return [texts[place] for place in places.tolist()]


def _read_dates(values: pa.Array) -> fields.Times:
  """Seconds since 1970 of dates and timestamps, and what follows these."""
  if pa.types.is_date(values.type):
    values = values.cast(pa.timestamp('s'))
  whole = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
  return fields.from_integers(whole, values.type.unit)[0]


def default_features(
  path: pathlib.Path, reading: Mapping[str, str]
) -> dict[str, dict | None]:
  """Features by the types of the columns; None for types of no feature."""
  del reading
  schema = parquet.read_schema(text.require_file(path))
  out = {}
  for name, type_ in zip(schema.names, schema.types, strict=True):
    kind = _suggest_kind(type_)
    if parquet.is_list(type_):
      # Those of fractions are no categories: numbers of events, or embeddings.
      inner = _suggest_kind(type_.value_type)
      kind = _OF_LISTS[inner]
    out[name] = {'kind': kind} if kind else None
  return out


def _suggest_kind(kind: pa.DataType) -> str:
  """The kind of feature that a type is read as, '' for none."""
  types = pa.types
  if types.is_dictionary(kind):
    kind = kind.value_type
  if types.is_floating(kind) or types.is_decimal(kind):
    return 'numeric'
  is_whole = types.is_integer(kind) or types.is_boolean(kind)
  return 'categorical' if is_whole or parquet.is_text(kind) else ''
