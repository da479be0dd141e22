"""Parquet files of many types: good ones, how they are read, oracles."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import robustness_oracles as oracles
from benchmarks.robustness_layouts import (
  COLUMNS,
  WORDS,
  BlockRows,
  list_cells,
  list_events,
)
from benchmarks.robustness_oracles import Refusal
from genrec_jax.data import readers
from genrec_jax.data.ranking import formats, raw

_ID_TYPES = (
  pa.int64(), pa.int32(), pa.uint8(), pa.string(), pa.large_string(),
  pa.dictionary(pa.int32(), pa.string()), pa.uint64(),
)  # fmt: skip
_TIME_TYPES = (
  pa.int64(), pa.int32(), pa.float64(), pa.timestamp('s'), pa.timestamp('ms'),
  pa.timestamp('us'), pa.timestamp('ns'), pa.timestamp('us', 'UTC'),
  pa.date32(), pa.date64(), pa.string(),
)  # fmt: skip
_NUMBER_TYPES = (
  pa.float64(),
  pa.float32(),
  pa.float16(),
  pa.int8(),
  pa.int64(),
)


def make_column(rng, kind: pa.DataType, rows: int) -> pa.Array:
  if pa.types.is_dictionary(kind):
    return make_column(rng, kind.value_type, rows).dictionary_encode()
  if pa.types.is_string(kind) or pa.types.is_large_string(kind):
    values = [rng.choice([*WORDS, '12', '1700000000']) for _ in range(rows)]
  elif pa.types.is_temporal(kind):
    seconds = [86400 * rng.randrange(20000) for _ in range(rows)]
    values = pa.array(seconds, pa.timestamp('s'))
    return values.cast(kind)
  elif pa.types.is_floating(kind):
    values = [np.float16(rng.randrange(99) / 2) for _ in range(rows)]
  else:
    values = [rng.randrange(99) for _ in range(rows)]
  if rng.random() < 0.05:
    values[rng.randrange(rows)] = None
  return pa.array(values, kind)


def write_table(rng, columns: dict) -> bytes:
  sink = io.BytesIO()
  pq.write_table(
    pa.table(columns),
    sink,
    row_group_size=rng.choice([3, 100]),
    compression=rng.choice(['none', 'snappy', 'gzip', 'zstd']),
    use_dictionary=rng.random() < 0.6,
    data_page_version=rng.choice(['1.0', '2.0']),
    write_page_checksum=rng.random() < 0.3,
  )
  return sink.getvalue()


def make_parquet(rng):
  rows = rng.randrange(1, 30)
  kinds = dict(
    u=rng.choice(_ID_TYPES),
    i=rng.choice(_ID_TYPES),
    t=rng.choice(_TIME_TYPES[:-1] if rng.random() < 0.9 else _TIME_TYPES),
    r=rng.choice(_NUMBER_TYPES),
  )
  columns = {name: make_column(rng, k, rows) for name, k in kinds.items()}
  return write_table(rng, columns)


def read_parquet(path, rows):
  return list_events(readers.read_parquet([path], COLUMNS, chunk_rows=rows))


def load_table(content: bytes, names) -> pa.Table:
  try:
    # As the reader: a damaged page of another column is nobody's loss.
    table = pq.read_table(
      io.BytesIO(content),
      columns=list(names),
      use_threads=False,
      page_checksum_verification=True,
    )
    table.validate(full=True)
    return table
  except (pa.ArrowException, OSError, ValueError, KeyError) as e:
    raise Refusal(str(e)) from None


def list_values(table: pa.Table, name: str) -> list:
  """As Python values; moments as whole numbers of their unit."""
  if table.schema.names.count(name) != 1:
    raise Refusal('columns')
  column = table[name]
  if pa.types.is_dictionary(column.type):
    column = column.cast(column.type.value_type)
  if pa.types.is_date64(column.type) or pa.types.is_timestamp(column.type):
    column = column.cast(pa.int64())
  elif pa.types.is_date32(column.type):
    column = column.cast(pa.int32())
  try:
    return column.to_pylist()
  except ValueError as e:  # no UTF-8
    raise Refusal(str(e)) from None


_TICKS = {'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': 10**9}


def _seconds_of(value, kind: pa.DataType) -> int:
  if value is None:
    raise Refusal('null')
  if pa.types.is_timestamp(kind):
    value //= _TICKS[kind.unit]
  elif pa.types.is_date64(kind):
    value //= 1000
  elif pa.types.is_date32(kind):
    value *= 86400
  elif pa.types.is_string(kind):
    return oracles.moment(value)
  if not 0 <= value < 2**62 + pa.types.is_integer(kind) * 2**62:
    raise Refusal('time')
  return int(value)


def _id_of(value, kind: pa.DataType):
  if value is None or (isinstance(value, int) and value >= 2**63):
    raise Refusal('id')
  return value if isinstance(value, int) else oracles.text_id(value)


def _number_of(value, kind: pa.DataType) -> float:
  with np.errstate(over='ignore'):
    if value is None or not np.isfinite(np.float32(value)):
      raise Refusal('number')
    return float(np.float32(value))


def expect_parquet(content):
  table = load_table(content, 'uitr')
  of_role = dict(u=_id_of, i=_id_of, t=_seconds_of, r=_number_of)
  columns = []
  for name, read in of_role.items():
    values = list_values(table, name)
    kind = table.schema.field(name).type
    columns.append([read(value, kind) for value in values])
  rows = list(zip(*columns, strict=True))
  if not rows:
    raise Refusal('no rows')
  return rows


def make_example_parquet(rng):
  rows = rng.randrange(1, 30)
  lists = [
    [rng.choice(WORDS) for _ in range(rng.randrange(3))] for _ in range(rows)
  ]
  return write_table(
    rng,
    {
      'label': pa.array([rng.randrange(2) for _ in range(rows)], pa.int8()),
      'user': make_column(rng, rng.choice(_ID_TYPES[:-1]), rows),
      'price': make_column(rng, rng.choice(_NUMBER_TYPES), rows),
      'tags': pa.array(lists, pa.list_(pa.string())),
    },
  )


def read_example_parquet(path, rows):
  names, out = ['label', 'user', 'price', 'tags'], []
  with BlockRows(raw, rows):
    for chunk in formats.read_files([path], names, {'format': 'parquet'}):
      columns = [list_cells(chunk, 'label')]
      user = chunk.columns['user']
      if isinstance(user, raw.NumberColumn):
        present = user.present
        user = [
          str(x) if present is None or present[i] else ''
          for i, x in enumerate(user.values.tolist())
        ]
      columns += [list(user), list_cells(chunk, 'price')]
      columns.append(list_cells(chunk, 'tags'))
      out += zip(*columns, strict=True)
  return out


def expect_example_parquet(content):
  table = load_table(content, ['label', 'user', 'price', 'tags'])
  columns = [list_values(table, x) for x in ('label', 'user', 'price', 'tags')]
  most, out = float(np.finfo(np.float32).max), []
  for label, user, price, tags in zip(*columns, strict=True):
    if label not in (0, 1):
      raise Refusal('label')
    price = price if price == price else None  # NaN
    if price is not None and not abs(price) <= most:
      raise Refusal('price')
    words = tuple('' if tag is None else tag for tag in tags or ())
    text = '' if user is None else str(user)
    out.append((label, text, float(np.float32(price or 0)), words))
  if not out:
    raise Refusal('no rows')
  return out
