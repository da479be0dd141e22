"""Parquet columns -> typed columns; the only importer of pyarrow."""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

try:
  import pyarrow as pa
  import pyarrow.compute as pc
  import pyarrow.parquet as pq
except ImportError:
  raise ImportError(
    "reading Parquet needs pyarrow: pip install 'genrec_jax[parquet]'"
  ) from None

from genrec_jax.data import extras as extras_lib
from genrec_jax.data import fields, text, text_arrays

_DECODED = 1 << 26  # bytes of a column of texts, at most


@contextlib.contextmanager
def explain_damage(path: pathlib.Path, done: int) -> Iterator[None]:
  """Turns what pyarrow says of a damaged file into an error that names it.

  Args:
    path: of the file.
    done: rows that were read before.
  """
  try:
    with text.explain_memory(path):
      yield
  except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as e:
    raise ValueError(
      f'{path}, after row {done}: the file is damaged ({_shorten(e)})'
    ) from None


def _shorten(error: Exception) -> str:
  return str(error)[:200]  # it may quote the content


@contextlib.contextmanager
def _open_file(path: pathlib.Path, **options) -> Iterator[pq.ParquetFile]:
  with contextlib.ExitStack() as stack:
    # pyarrow maps what is on a disk; of a store it reads pieces.
    is_local = isinstance(path, pathlib.Path)
    source = path if is_local else stack.enter_context(path.open('rb'))
    # Of files whose pages have checksums; of others it changes nothing.
    options = {'page_checksum_verification': True} | options
    yield stack.enter_context(pq.ParquetFile(source, **options))


def read_whole(path: pathlib.Path) -> pa.Table:
  """All rows and columns of a file on a disk.

  Raises:
    ValueError: it is not there, or is no Parquet file; names it.
  """
  try:
    # The file itself: names such as time=3 in its path are no columns.
    with _open_file(pathlib.Path(path)) as file:
      return file.read()
  except (OSError, pa.ArrowException) as error:
    raise ValueError(
      f'{path} cannot be read as a Parquet file: {error}'
    ) from None


def read_schema(path: pathlib.Path) -> pa.Schema:
  """The names and types of the columns of a file."""
  try:
    with text.explain_memory(path), _open_file(path) as file:
      schema = file.schema_arrow
      text.check_width(path, len(schema.names))
      return schema
  except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
    raise ValueError(
      f'{path}: not a readable Parquet file ({_shorten(e)})'
    ) from None


def read_batches(
  path: pathlib.Path,
  names: Sequence[str],
  chunk_rows: int,
  coded: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
  """Batches of the named columns; never an empty one.

  Args:
    path: the file.
    names: of the columns.
    chunk_rows: most rows of a batch.
    coded: columns whose texts may stay dictionaries; others never are.
  """
  schema, done = read_schema(path), 0
  # A text stored once may stand in every row, so texts stay dictionaries until
  # it is known how long they are.
  texts = [name for name in names if is_text(schema.field(name).type)]
  with (
    explain_damage(path, 0),
    _open_file(
      path, read_dictionary=texts, page_checksum_verification=True
    ) as file,
  ):
    _check_metadata(file)
    # Each batch brings the whole dictionary of its row group, which should not
    # be looked through for a few rows.
    most = min(1 << 16, (1 << 23) // len(names)) if texts else 0
    batches = _read_groups(file, list(names), max(chunk_rows, most))
    while True:
      with explain_damage(path, done):
        batch = next(batches, None)
        if batch is None:
          return
        batch.validate(full=True)
        rows = _count_rows_at_once(batch)
        # Small chunks are cut from larger ones: decoding has a cost of its own.
        rows -= rows % chunk_rows if rows > chunk_rows else 0
      for first in range(0, batch.num_rows, rows):
        with explain_damage(path, done):
          piece = batch.slice(first, rows)
          piece = pa.record_batch(
            [
              column if name in coded else _decode_dictionary(column)
              for name, column in zip(names, piece.columns, strict=True)
            ],
            names,
          )
        for start in range(0, piece.num_rows, chunk_rows):
          chunk = piece.slice(start, chunk_rows)
          done += chunk.num_rows
          yield chunk


def _check_metadata(file: pq.ParquetFile) -> None:
  """Refuses columns of two types, which pyarrow sees in some batches alone."""
  types = [file.schema.column(i).physical_type for i in range(len(file.schema))]
  groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
  rows = 0
  for number, group in enumerate(groups):
    stored = [group.column(i).physical_type for i in range(group.num_columns)]
    rows += group.num_rows
    if stored != types:
      raise pa.ArrowInvalid(f'row group {number} has columns of other types')
  if rows != file.metadata.num_rows:
    raise pa.ArrowInvalid(f'{rows:,} of {file.metadata.num_rows:,} rows')


def _read_groups(
  file: pq.ParquetFile, names: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
  """The batches of one row group after the other, each read to its end.

  pyarrow does not notice where a damaged column has rows left over, or goes on
  with those of the next group.
  """
  for number in range(file.metadata.num_row_groups):
    group = file.metadata.row_group(number)
    stored = [group.column(i) for i in range(group.num_columns)]
    counted = [x for x in names if _is_counted(file.schema_arrow.field(x).type)]
    done, values = 0, dict.fromkeys(counted, 0)
    for batch in file.iter_batches(rows, row_groups=[number], columns=names):
      for name in counted:
        values[name] += _count_values(batch[name])
      done += batch.num_rows
      if batch.num_rows:
        # pyarrow takes 'a.x' for the field x of a column 'a', too.
        yield batch.select(names)
    # A flat column is called by its name, the values of lists by a longer one.
    expected = {
      x.path_in_schema.split('.list.')[0]: x.num_values for x in stored
    }
    if done != group.num_rows or any(
      count != expected.get(name, count) for name, count in values.items()
    ):
      raise pa.ArrowInvalid(f'row group {number} has {group.num_rows:,} rows')


def _count_values(column: pa.Array) -> int:
  """As Parquet counts them: an empty list is one value."""
  if not is_list(column.type):
    return len(column)
  lengths = column.value_lengths().fill_null(0)
  return pc.sum(pc.max_element_wise(lengths, 1)).as_py() or 0


def is_list(kind: pa.DataType) -> bool:
  """Whether the values are lists, of any lengths or of one."""
  types = pa.types
  is_any = types.is_list(kind) or types.is_large_list(kind)
  return is_any or types.is_fixed_size_list(kind)


def _is_counted(kind: pa.DataType) -> bool:
  """Whether a column is flat, or of lists of what is flat."""
  inner = kind.value_type if is_list(kind) else kind
  return not pa.types.is_nested(inner)


def _count_rows_at_once(batch: pa.RecordBatch) -> int:
  """Rows whose texts, each as long as the longest, fit into memory."""
  longest = 1
  for column in batch.columns:
    if pa.types.is_dictionary(column.type) and is_text(column.type.value_type):
      length = pc.max(pc.binary_length(column.dictionary)).as_py()
      longest = max(longest, length or 0)
  return max(1, min(batch.num_rows, _DECODED // longest))


def show_value(values: pa.Array, at: int) -> object:
  """A value for a message; as text where Python has no such value."""
  try:
    return values[at].as_py()
  except (ValueError, OverflowError):  # a year 300000, half a microsecond
    return values.slice(at, 1).cast(pa.string())[0].as_py()


def list_texts(values: pa.Array) -> list[str]:
  """The texts of a column, '' where there is none."""
  # Five times as fast as to_pylist(), which makes a scalar of each value.
  values = values.fill_null('') if values.null_count else values
  return values.to_numpy(zero_copy_only=False).tolist()


def _to_numpy(values: pa.Array, dtype) -> np.ndarray:
  return values.to_numpy(zero_copy_only=False).astype(dtype)


def _decode_dictionary(values: pa.Array) -> pa.Array:
  """Dictionary-coded columns hold the same values in another form."""
  if pa.types.is_dictionary(values.type):
    return values.dictionary_decode()
  return values


def read_column(
  values: pa.Array, role: str, ids: str, time_unit: str, where: str
) -> tuple[np.ndarray | fields.Times, np.ndarray]:
  """One column of a batch as NumPy, and which rows are good.

  Args:
    values: `[N]` the column.
    role: 'user', 'item', 'time' or 'rating'.
    ids: kind of ids: 'auto', 'int' or 'str'.
    time_unit: of numeric times.
    where: names the column, for a type that does not fit.

  Returns:
    `[N]` values, for a time `fields.Times`, and `[N]` bool mask; nulls are not
    good.
  """
  present = values.is_valid().to_numpy(zero_copy_only=False)
  if role in ('user', 'item') and _is_worth_its_codes(values):
    read, good = _read_coded_ids(values, ids)
    return read, good & present
  values = _decode_dictionary(values)
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


def is_text(kind: pa.DataType) -> bool:
  """Whether the values are texts, of any of the types that hold some."""
  types = pa.types
  is_any = types.is_string(kind) or types.is_large_string(kind)
  return is_any or types.is_string_view(kind)


def _read_ids(values, kind, ids):
  if pa.types.is_integer(kind):
    whole = _to_numpy(values.fill_null(0), kind.to_pandas_dtype())
    good = whole <= np.iinfo(np.int64).max  # uint64 reaches further
    whole = whole.astype(np.int64)
    return (whole.astype(str) if ids == 'str' else whole), good
  if pa.types.is_floating(kind):  # whole numbers beside missing ones
    numbers = _to_numpy(values.fill_null(0), np.float64)
    whole, good = fields.read_whole_floats(numbers)
    return (whole.astype(str) if ids == 'str' else whole), good
  if not is_text(kind):
    return None
  words = list_texts(values)
  read, good = fields.parse_ids(words, 'int' if ids == 'int' else 'str')
  if '\0' in ''.join(words):  # NumPy leaves those at the end off
    good &= np.array(['\0' not in word for word in words])
  return read, good


def _is_worth_its_codes(values: pa.Array) -> bool:
  """Whether a dictionary of ids is quicker to read than its rows."""
  if not pa.types.is_dictionary(values.type):
    return False
  texts = values.dictionary
  return (
    is_text(texts.type)
    and 0 < len(texts) <= len(values)
    and not texts.null_count
    and pc.max(pc.utf8_length(texts)).as_py() <= text_arrays.LONGEST_ID
  )


def _read_coded_ids(values: pa.DictionaryArray, ids: str):
  """As `_read_ids`: what a text is found out once, not in every row."""
  rows = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
  read, good = _read_ids(values.dictionary, values.type.value_type, ids)
  if text_arrays.is_text(read):
    return text_arrays.take_rows(read, rows), good[rows]
  return read[rows], good[rows]


def _read_times(values, kind, unit):
  if pa.types.is_date(kind):
    values, kind = values.cast(pa.timestamp('s')), pa.timestamp('s')
  if pa.types.is_timestamp(kind):
    unit, kind, values = kind.unit, pa.int64(), values.cast(pa.int64())
  if pa.types.is_integer(kind):
    return fields.from_integers(_to_numpy(values.fill_null(0), np.int64), unit)
  if pa.types.is_floating(kind):
    return fields.from_floats(_to_numpy(values.fill_null(0), np.float64), unit)
  if is_text(kind):
    return fields.parse_times(list_texts(values), unit)
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
  if is_text(kind) and column.kind == 'category':
    return extras_lib.read_texts(column, list_texts(values))
  if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
    raise TypeError(f'type {kind} is not of kind {column.kind}')
  numbers = _to_numpy(values.fill_null(0), kind.to_pandas_dtype())
  return extras_lib.read_numbers(column, numbers, present)


def read_whole_numbers(
  values: pa.Array, where: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
  """Whole numbers `[N]` int64 of a column, and which rows are good.

  Args:
    values: `[N]` the column; nulls are not good.
    where: names its place, for a type that does not fit.
    name: of the column.
  """
  present = values.is_valid().to_numpy(zero_copy_only=False)
  if not pa.types.is_integer(values.type):
    raise ValueError(
      f'{where}: the column {name!r} is of type {values.type}, not of whole '
      'numbers; give the published file'
    )
  numbers = _to_numpy(values.fill_null(0), values.type.to_pandas_dtype())
  present &= numbers <= np.iinfo(np.int64).max  # uint64 reaches further
  return numbers.astype(np.int64), present


def read_finite_numbers(
  values: pa.Array, where: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
  """As `read_whole_numbers`, for numbers of any kind, as float64."""
  kind = values.type
  if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
    raise ValueError(
      f'{where}: the column {name!r} is of type {kind}, not of numbers; give '
      'the published file'
    )
  present = values.is_valid().to_numpy(zero_copy_only=False)
  numbers = _to_numpy(values.fill_null(0), np.float64)
  return numbers, present & np.isfinite(numbers)


def read_coded_texts(
  values: pa.Array, where: str, name: str
) -> tuple[list[str], np.ndarray]:
  """Distinct texts, and of each row which one it is; -1 for a null.

  Args:
    values: `[N]` the column.
    where: names its place, for a type that does not fit.
    name: of the column.
  """
  kind = values.type
  if not pa.types.is_dictionary(kind):
    if not is_text(kind):
      raise ValueError(
        f'{where}: the column {name!r} is of type {kind}, not of texts; give '
        'the published file'
      )
    values = values.dictionary_encode()
  if not is_text(values.type.value_type):
    raise ValueError(
      f'{where}: the column {name!r} is of type {kind}, not of texts; give the '
      'published file'
    )
  codes = _to_numpy(values.indices.fill_null(-1), np.int64)
  return list_texts(values.dictionary), codes
