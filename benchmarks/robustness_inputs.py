"""Fuzzed inputs: is every file read as an oracle reads it, or refused?

python -m benchmarks.robustness_inputs --count 10000

A case is a file of one layout, good or mutated: bytes flipped, lines cut,
doubled or blank, quotes, mixed line ends, NUL, byte order marks, wrong UTF-8,
cut or flipped gzip, odd numbers, very long fields. Each is read in blocks of 1,
2, 7 and 2^18 rows. The outcomes are

  equal      accepted, and every field is the oracle's
  sentence   refused by a ValueError or OSError that names the file
  wrong      accepted with other values, or block by block differently, or a
             good file refused
  silent     accepted where the oracle refuses
  traceback  any other exception, or one that does not name the file
  crash      the process died
"""

import argparse
import collections
import dataclasses
import gzip
import io
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import result
from benchmarks import robustness_oracles as oracles
from benchmarks.robustness_oracles import Refusal
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import readers, stream
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.ranking import annotations, formats, raw, transform

OUTCOMES = ('equal', 'sentence', 'wrong', 'silent', 'traceback', 'crash')
BLOCKS = (1, 2, 7, 1 << 18)
BATCH = 1000  # cases of one process
LONGEST_SENTENCE = 1500  # characters, with the path


@dataclasses.dataclass(frozen=True)
class Layout:
  """A kind of file.

  Attributes:
    name: of the file, by which some readers know it.
    make: a good one.
    read: (path, rows of a block) -> its rows, by the library.
    expect: its bytes -> its rows, by the oracle.
    packed: whether it is compressed by gzip.
    binary: whether it is no text.
  """

  name: str
  make: Callable[[random.Random], bytes]
  read: Callable[[pathlib.Path, int], list]
  expect: Callable[[bytes], list]
  packed: bool = False
  binary: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
  """A file to read; `is_good` where nothing was done to it."""

  layout: str
  content: bytes
  is_good: bool = False


# --- good files

_WORDS = ('a', 'b7', 'Zoë', '漢字', 'x y', "o'neil", '-', '007', '1e5', 'a::b')


def _pick_id(rng, as_text: bool) -> str:
  if as_text:
    return rng.choice([*_WORDS, str(rng.randrange(50))])
  return str(rng.choice([rng.randrange(9), rng.randrange(10**6), -3, 2**62]))


def _pick_time(rng) -> str:
  return str(rng.choice([0, rng.randrange(2**31), 978300760]))


def _pick_rating(rng) -> str:
  return rng.choice(['1', '4.5', '5.0', '3', '0', '-1e-3'])


def _quote(field: str, rng) -> str:
  if any(mark in field for mark in ',"\n\r') or rng.random() < 0.05:
    return '"' + field.replace('"', '""') + '"'
  return field


def _join_csv(rng, header: list[str], rows: list[list[str]]) -> bytes:
  end = rng.choice(['\n', '\n', '\r\n'])
  lines = [','.join(_quote(x, rng) for x in row) for row in [header, *rows]]
  return (end.join(lines) + rng.choice(['', end])).encode()


_EXTRAS = (
  extras_lib.ExtraColumn('tag', 'category'),
  extras_lib.ExtraColumn('seen', 'float'),
  extras_lib.ExtraColumn('count', 'int'),
)
_COLUMNS = dict(user='u', item='i', time='t', rating='r')


def _make_events_csv(as_text: bool, packed: bool = False):
  def make(rng):
    header = ['u', 'i', 't', 'r', 'tag', 'seen', 'count', 'note']
    rng.shuffle(header)
    rows = []
    for _ in range(rng.randrange(1, 12)):
      row = dict(
        u=_pick_id(rng, as_text),
        i=_pick_id(rng, as_text),
        t=_pick_time(rng),
        r=_pick_rating(rng),
        tag=rng.choice(_WORDS),
        seen=_pick_rating(rng),
        count=str(rng.randrange(-5, 99)),
        note=rng.choice(['', 'a, b', 'say "x"', 'two\nlines', ' ']),
      )
      rows.append([row[name] for name in header])
    content = _join_csv(rng, header, rows)
    return gzip.compress(content) if packed else content

  return make


def _make_fixed(mark: str, roles: str):
  def make(rng):
    kinds = dict(u=_pick_id, i=_pick_id, r=_pick_rating, t=_pick_time)
    lines = [
      mark.join(
        kinds[r](rng, False) if r in 'ui' else kinds[r](rng) for r in roles
      )
      for _ in range(rng.randrange(1, 12))
    ]
    end = rng.choice(['\n', '\r\n'])
    return (end.join(lines) + rng.choice(['', end])).encode()

  return make


def _make_catalogue(mark: str):
  def make(rng):
    ids = rng.sample(range(1, 99), rng.randrange(1, 9))
    rows = [[str(i), rng.choice(_WORDS[:3]), 'Drama'] for i in ids]
    if mark == ',':
      return _join_csv(rng, ['movieId', 'title', 'genres'], rows)
    lines = [mark.join(row) for row in rows]
    return ('\n'.join(lines) + '\n').encode('latin-1')

  return make


def _make_titles(rng):
  rows = [[_pick_id(rng, True), rng.choice(_WORDS), 'x'] for _ in range(5)]
  return _join_csv(rng, ['item', 'title', 'more'], rows)


def _make_examples(rng):
  rows = [
    [
      rng.choice('01'),
      rng.choice([*_WORDS, '']),
      rng.choice(['1.5', '', '-2', '7']),
    ]
    for _ in range(rng.randrange(1, 12))
  ]
  return _join_csv(rng, ['label', 'user', 'price'], rows)


def _make_criteo(rng):
  lines = []
  is_labelled = rng.random() < 0.7
  for _ in range(rng.randrange(1, 5)):
    numbers = [rng.choice(['', '0', '-2', '15']) for _ in range(13)]
    words = [rng.choice(['', '68fd1e64', 'a']) for _ in range(26)]
    lines.append('\t'.join([rng.choice('01')] * is_labelled + numbers + words))
  return ('\n'.join(lines) + '\n').encode()


def _make_libsvm(rng):
  lines = []
  for _ in range(rng.randrange(1, 9)):
    pairs = [
      f'{rng.randrange(99)}:{rng.choice(["1", "0.5", "-2"])}'
      for _ in range(rng.randrange(0, 4))
    ]
    lines.append(' '.join([rng.choice(['-1', '+1', '0', '1']), *pairs]))
  return ('\n'.join(lines) + '\n').encode()


# --- reading, and what the oracle says


def _list_events(chunks) -> list:
  rows = []
  for chunk in chunks:
    columns = [chunk.user, chunk.item, chunk.time, chunk.rating]
    columns += [chunk.extras[name] for name in chunk.extras]
    there = [column.tolist() for column in columns if column is not None]
    rows += zip(*there, strict=True)
  return rows


def _read_csv(ids: str):
  def read(path, rows):
    options = dict(ids=ids, extras=_EXTRAS, chunk_rows=rows)
    return _list_events(readers.read_csv([path], _COLUMNS, **options))

  return read


def _expect_csv(as_text: bool, packed: bool = False):
  read_id = oracles.text_id if as_text else oracles.whole_id
  names = ['u', 'i', 't', 'r', 'tag', 'seen', 'count']

  def expect(content):
    rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', packed), ',')
    out = []
    for row in oracles.by_names(rows, names):
      user, item, time, rating, tag, seen, count = row
      whole = oracles.number(count)
      if whole != math.floor(whole) or abs(whole) >= 2**31:
        raise Refusal('count')
      out.append(
        (
          read_id(user),
          read_id(item),
          oracles.moment(time),
          oracles.rating(rating),
          oracles.text_id(tag),
          oracles.rating(seen),
          int(whole),
        )
      )
    return out

  return expect


def _read_fixed(reader):
  return lambda path, rows: _list_events(reader(path, chunk_rows=rows))


def _expect_fixed(mark: str, roles: str):
  kinds = dict(
    u=oracles.whole_id, i=oracles.whole_id, t=oracles.moment, r=oracles.rating
  )

  def expect(content):
    text = oracles.decode(content, 'latin-1', False)
    rows = oracles.check_widths(oracles.split_plain(text, mark), len(roles))
    order = [roles.index(x) for x in 'uitr' if x in roles]
    return [tuple(kinds[roles[i]](row[i]) for i in order) for row in rows]

  return expect


def _read_catalogue(path, rows):
  with _Rows(readers, rows):
    ids, titles = readers.read_catalogue(path)
  return list(zip(ids.tolist(), titles, strict=True))


def _expect_catalogue(mark: str):
  def expect(content):
    if mark == ',':
      rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
      rows = rows[1:]
    else:
      rows = oracles.split_plain(
        oracles.decode(content, 'latin-1', False), mark
      )
    rows = oracles.check_widths(rows, len(rows[0]) if rows else 0)
    if len(rows[0]) < 2:
      raise Refusal('one field')
    out = [(oracles.whole_id(row[0]), row[1]) for row in rows]
    if len({i for i, _ in out}) < len(out):
      raise Refusal('twice')
    return out

  return expect


def _read_titles(path, rows):
  with _Rows(readers, rows):
    return list(zip(*readers.read_titles(path), strict=True))


def _expect_titles(content):
  text = oracles.decode(content, 'utf-8-sig', False)
  rows = oracles.split_csv(text, ',')
  if len(rows) == 1:  # a file without a title is fine
    oracles.by_names(rows + [rows[0]], ['item', 'title'])
    return []
  return oracles.by_names(rows, ['item', 'title'])


class _Rows:
  """Sets the rows of a block where a module says them."""

  def __init__(self, module, rows: int):
    self._module, self._rows = module, rows

  def __enter__(self):
    self._before = self._module.CHUNK_ROWS
    self._module.CHUNK_ROWS = self._rows

  def __exit__(self, *error):
    self._module.CHUNK_ROWS = self._before


def _read_part(path, rows):
  """A growing directory with this part, as sequences of items."""
  with _Rows(readers, rows):
    batches = stream.stream_batches(
      path.parent,
      path.name,
      columns=dict(user='u', item='i', time='t'),
      item_vocab=vocab_lib.Vocab(np.array(_WORDS)),
      batch_size=4,
      max_len=10**6,
      ids='str',
      idle_s=0,
      log=lambda line: None,
    )
    out = []
    for batch in batches:
      events = batch.jagged['events']
      first = 0
      for length in events.lengths[np.asarray(batch.weights) > 0].tolist():
        items = np.asarray(events['item'])[first : first + length]
        last = np.asarray(events['next_item'])[first + length - 1]
        out.append((*items.tolist(), int(last)))
        first += length
  return sorted(out)


def _expect_part(content):
  rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
  known = {word: i for i, word in enumerate(_WORDS, 1)}
  if len(rows) == 1:  # an empty part is fine
    oracles.by_names(rows + [rows[0]], ['u', 'i', 't'])
    return []
  events = [
    (oracles.text_id(u), oracles.text_id(i), oracles.moment(t))
    for u, i, t in oracles.by_names(rows, ['u', 'i', 't'])
  ]
  sequences = {}
  for user, item, _ in sorted(events, key=lambda event: event[2]):
    if item in known:
      sequences.setdefault(user, []).append(known[item])
  return sorted(tuple(x) for x in sequences.values() if len(x) > 1)


def _read_examples(format_: str, names: list[str]):
  """Labels and numbers as an encoder reads them, other columns as texts."""

  def read(path, rows):
    reading = {'format': format_, 'delimiter': ','}
    module = formats.find_format(format_)
    there = [x for x in names if x in module.read_names(path, reading)]
    if format_ == 'csv':
      there = names  # which are asked for
    out = []
    with _Rows(raw, rows):
      for chunk in formats.read_files([path], there, reading):
        columns = [_list_cells(chunk, name) for name in there]
        out += zip(*columns, strict=True)
    return out

  return read


def _list_cells(chunk, name: str) -> list:
  if name == 'label':
    return annotations.read_labels(chunk, ['label'], ())[:, 0].tolist()
  if name in ('price', 'I1'):
    try:
      numbers = transform.parse_numbers(chunk.columns[name])
    except transform.NumberError as e:  # as the encoder says it
      raise ValueError(chunk.quote_cell(e.at, name, e.value)) from None
    return transform.transform_numbers(numbers, 'as_is').tolist()
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    cuts = np.cumsum(column.lengths)[:-1]
    parts = np.split(np.array(column.values, object), cuts)
    return [tuple(part.tolist()) for part in parts]
  return list(column)


def _expect_examples(content):
  rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
  if rows and len(set(map(str.strip, rows[0]))) < len(rows[0]):
    raise Refusal('columns')
  return [
    (oracles.label(a), b, oracles.feature_number(c))
    for a, b, c in oracles.by_names(rows, ['label', 'user', 'price'])
  ]


_CRITEO = ['label', 'I1', 'I13', 'C1', 'C26']


def _expect_criteo(content):
  text = oracles.decode(content, 'utf-8-sig', False)
  rows = oracles.split_plain(text, '\t')
  width = len(rows[0]) if rows else 0
  if width not in (39, 40):
    raise Refusal('fields')
  out = []
  for row in oracles.check_widths(rows, width):
    head = (oracles.label(row[0]),) if width == 40 else ()
    row = row[width - 39 :]
    numbers = (oracles.feature_number(row[0]), row[12])
    out.append((*head, *numbers, row[13], row[38]))
  return out


def _expect_libsvm(content):
  rows = oracles.libsvm(oracles.decode(content, 'utf-8-sig', False))
  return [
    (*([] if head is None else [oracles.label(head)]), tuple(i for i, _ in row))
    for head, row in rows
  ]


# --- Parquet

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


def _make_column(rng, kind: pa.DataType, rows: int) -> pa.Array:
  if pa.types.is_dictionary(kind):
    return _make_column(rng, kind.value_type, rows).dictionary_encode()
  if pa.types.is_string(kind) or pa.types.is_large_string(kind):
    values = [rng.choice([*_WORDS, '12', '1700000000']) for _ in range(rows)]
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


def _write_table(rng, columns: dict) -> bytes:
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


def _make_parquet(rng):
  rows = rng.randrange(1, 30)
  kinds = dict(
    u=rng.choice(_ID_TYPES),
    i=rng.choice(_ID_TYPES),
    t=rng.choice(_TIME_TYPES[:-1] if rng.random() < 0.9 else _TIME_TYPES),
    r=rng.choice(_NUMBER_TYPES),
  )
  columns = {name: _make_column(rng, k, rows) for name, k in kinds.items()}
  return _write_table(rng, columns)


def _read_parquet(path, rows):
  return _list_events(readers.read_parquet([path], _COLUMNS, chunk_rows=rows))


def _load_table(content: bytes, names) -> pa.Table:
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


def _list_values(table: pa.Table, name: str) -> list:
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


def _expect_parquet(content):
  table = _load_table(content, 'uitr')
  of_role = dict(u=_id_of, i=_id_of, t=_seconds_of, r=_number_of)
  columns = []
  for name, read in of_role.items():
    values = _list_values(table, name)
    kind = table.schema.field(name).type
    columns.append([read(value, kind) for value in values])
  rows = list(zip(*columns, strict=True))
  if not rows:
    raise Refusal('no rows')
  return rows


def _make_example_parquet(rng):
  rows = rng.randrange(1, 30)
  lists = [
    [rng.choice(_WORDS) for _ in range(rng.randrange(3))] for _ in range(rows)
  ]
  return _write_table(
    rng,
    {
      'label': pa.array([rng.randrange(2) for _ in range(rows)], pa.int8()),
      'user': _make_column(rng, rng.choice(_ID_TYPES[:-1]), rows),
      'price': _make_column(rng, rng.choice(_NUMBER_TYPES), rows),
      'tags': pa.array(lists, pa.list_(pa.string())),
    },
  )


def _read_example_parquet(path, rows):
  names, out = ['label', 'user', 'price', 'tags'], []
  with _Rows(raw, rows):
    for chunk in formats.read_files([path], names, {'format': 'parquet'}):
      columns = [_list_cells(chunk, 'label')]
      user = chunk.columns['user']
      if isinstance(user, raw.NumberColumn):
        present = user.present
        user = [
          str(x) if present is None or present[i] else ''
          for i, x in enumerate(user.values.tolist())
        ]
      columns += [list(user), _list_cells(chunk, 'price')]
      columns.append(_list_cells(chunk, 'tags'))
      out += zip(*columns, strict=True)
  return out


def _expect_example_parquet(content):
  table = _load_table(content, ['label', 'user', 'price', 'tags'])
  columns = [_list_values(table, x) for x in ('label', 'user', 'price', 'tags')]
  most, out = float(np.finfo(np.float32).max), []
  for label, user, price, tags in zip(*columns, strict=True):
    if label not in (0, 1):
      raise Refusal('label')
    if price is not None and not abs(price) <= most:
      raise Refusal('price')
    words = tuple('' if tag is None else tag for tag in tags or ())
    text = '' if user is None else str(user)
    out.append((label, text, float(np.float32(price or 0)), words))
  if not out:
    raise Refusal('no rows')
  return out


# --- records of a server, as a text of Python's

_NAMES = ('user', 'price', 'tags')


def _make_records(rng):
  def value():
    return rng.choice(
      [1, 2.5, 'x', '', None, True, -(2**70), 'ü', float('nan')]
    )

  return repr(
    [
      {'user': value(), 'price': value(), 'tags': [value() for _ in range(2)]}
      for _ in range(rng.randrange(1, 5))
    ]
  ).encode()


def _parse_records(content: bytes) -> list:
  """The records, odd ones too; `deep` stands for a list of many levels."""
  deep = []
  for _ in range(10**5):
    deep = [deep]
  names = dict(nan=float('nan'), deep=deep, huge=10**5000, __builtins__={})
  try:
    records = eval(content.decode('latin-1'), names)  # noqa: S307
  except Exception as e:
    raise Refusal(str(e)) from None
  if not isinstance(records, list):
    raise Refusal('no list')
  if not all(isinstance(record, dict) for record in records):
    raise Refusal('no records')
  return records


def _read_records(path, rows):
  try:
    records = _parse_records(path.read_bytes())
  except Refusal as e:  # which is Python's matter, not the reader's
    raise ValueError(f'{path}: {str(e)[:200]}') from None
  try:
    chunk = raw.from_records(records, _NAMES)
  except ValueError as e:
    if not str(e).startswith('row '):
      raise
    raise ValueError(f'{path}: {e}') from None
  columns = []
  for name in _NAMES:
    is_list = isinstance(chunk.columns[name], raw.ListColumn)
    cells = _list_cells(dataclasses.replace(chunk), name) if is_list else None
    columns.append(cells or list(chunk.columns[name]))
  return list(zip(*columns, strict=True))


def _expect_records(content):
  records = _parse_records(content)
  if any(name not in record for record in records for name in _NAMES):
    raise Refusal('names')
  columns = []
  for name in _NAMES:
    try:
      column = oracles.record_column([record[name] for record in records])
    except ValueError as e:  # numbers that Python does not write
      raise Refusal(str(e)) from None
    columns.append([tuple(x) if isinstance(x, list) else x for x in column])
  return list(zip(*columns, strict=True))


LAYOUTS = {
  'csv, whole ids': Layout(
    'log.csv', _make_events_csv(False), _read_csv('int'), _expect_csv(False)
  ),
  'csv, text ids': Layout(
    'log.csv', _make_events_csv(True), _read_csv('str'), _expect_csv(True)
  ),
  'csv.gz': Layout(
    'log.csv.gz',
    _make_events_csv(True, True),
    _read_csv('str'),
    _expect_csv(True, True),
    packed=True,
  ),
  'u.data': Layout(
    'u.data',
    _make_fixed('\t', 'uirt'),
    _read_fixed(readers.movielens_tab),
    _expect_fixed('\t', 'uirt'),
  ),
  'ratings.dat': Layout(
    'ratings.dat',
    _make_fixed('::', 'uirt'),
    _read_fixed(readers.movielens_dat),
    _expect_fixed('::', 'uirt'),
  ),
  'sasrec.txt': Layout(
    'sasrec.txt',
    _make_fixed(' ', 'ui'),
    _read_fixed(readers.sasrec_text),
    _expect_fixed(' ', 'ui'),
  ),
  'movies.dat': Layout(
    'movies.dat',
    _make_catalogue('::'),
    _read_catalogue,
    _expect_catalogue('::'),
  ),
  'u.item': Layout(
    'u.item', _make_catalogue('|'), _read_catalogue, _expect_catalogue('|')
  ),
  'movies.csv': Layout(
    'movies.csv', _make_catalogue(','), _read_catalogue, _expect_catalogue(',')
  ),
  'titles': Layout('titles.csv', _make_titles, _read_titles, _expect_titles),
  'part of a stream': Layout(
    'part.csv', _make_events_csv(True), _read_part, _expect_part
  ),
  'ranking csv': Layout(
    'x.csv',
    _make_examples,
    _read_examples('csv', ['label', 'user', 'price']),
    _expect_examples,
  ),
  'criteo': Layout(
    'train.txt', _make_criteo, _read_examples('criteo', _CRITEO), _expect_criteo
  ),
  'libsvm': Layout(
    'x.libsvm',
    _make_libsvm,
    _read_examples('libsvm', ['label', 'indices']),
    _expect_libsvm,
  ),
  'parquet': Layout(
    'log.parquet', _make_parquet, _read_parquet, _expect_parquet, binary=True
  ),
  'ranking parquet': Layout(
    'x.parquet',
    _make_example_parquet,
    _read_example_parquet,
    _expect_example_parquet,
    binary=True,
  ),
  'records': Layout(
    'records.txt', _make_records, _read_records, _expect_records
  ),
}


# --- mutations

_ODD = (
  '1_000', '１２', '٣', '273245533\x0b', '0x10', 'nan', 'inf', '-0', '+5', ' 7',
  '7 ', '1e400', '1e-400', '9' * 25, '9' * 5000, '-', '.', '1,5', '００', '',
  '9007199254740993', '1699999999.9999999', '2024-02-29', '2024-02-30',
  'deep', 'huge', '[deep]', '"', '""', "'", '\\', '\t', '\u2028', '\x1c', '::',
)  # fmt: skip
_PIECES = (
  b'\r', b'\n', b'\r\n', b'\r\r\n', b'\n\n', b'\0', b'\xef\xbb\xbf', b'\xff',
  b'\xc3', b'\xed\xa0\x80', b'"', b'""', b',', b'\t', b' ', b'::', b'|', b':',
  b'   \n', b'\t\t\n', b'\x0b', b'\x0c', b'\x85', b'\xc2\x85', b'\x1a', b'\x01',
)  # fmt: skip


def _mutate_text(rng, content: bytes) -> bytes:
  at = rng.randrange(len(content) + 1)
  kind = rng.randrange(10)
  lines = content.splitlines(True)
  if kind == 0 and content:
    at = rng.randrange(len(content))
    flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
    return content[:at] + flipped + content[at + 1 :]
  if kind == 1:
    return content[:at]
  if kind in (2, 3):
    return content[:at] + rng.choice(_PIECES) + content[at:]
  if kind == 4 and lines:  # a line doubled, dropped, or emptied
    i = rng.randrange(len(lines))
    lines[i : i + 1] = rng.choice([[lines[i]] * 2, [], [b'\n'], [b' \n']])
    return b''.join(lines)
  if kind == 5 and lines:  # other line ends, all or some
    end = rng.choice([b'\r', b'\r\n', b'\n'])
    share = rng.choice([1, 0.3])
    return b''.join(
      line.rstrip(b'\r\n') + end if rng.random() < share else line
      for line in lines
    )
  if kind == 6 and rng.random() < 0.3:
    size = rng.choice([300, 4096, 4097, 20000, 140000])
    return (
      content[:at]
      + rng.choice([b'x', b'7', b'\xc3\xa9']) * size
      + (content[at:])
    )
  if kind == 7 and lines:
    rng.shuffle(lines)
    return b''.join(lines)
  return _replace_field(rng, content)


def _replace_field(rng, content: bytes) -> bytes:
  marks = [i for i, x in enumerate(content) if x in b',\t:| \n\r']
  if not marks:
    return content
  a = rng.choice(marks)
  later = [i for i in marks if i > a]
  b = later[0] if later else len(content)
  return content[: a + 1] + rng.choice(_ODD).encode() + content[b:]


def _mutate_bytes(rng, content: bytes) -> bytes:
  if not content:
    return content
  kind, at = rng.randrange(4), rng.randrange(len(content))
  if kind == 0:
    return content[:at]
  if kind == 1:
    size = rng.randrange(1, 40)
    return content[:at] + rng.randbytes(size) + content[at + size :]
  if kind == 2:
    return content[:at] + bytes(min(20, len(content) - at)) + content[at + 20 :]
  flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
  return content[:at] + flipped + content[at + 1 :]


def make_case(seed: int, number: int) -> Case:
  """Case `number` of a seed; one in eight is a good file."""
  rng = random.Random(f'{seed}/{number}')
  name = list(LAYOUTS)[number % len(LAYOUTS)]
  layout = LAYOUTS[name]
  content = layout.make(rng)
  if rng.random() < 1 / 8:
    return Case(name, content, True)
  if rng.random() < 0.01:
    return Case(name, rng.choice([b'', b'\n', rng.randbytes(50)]))
  for _ in range(rng.choice([1, 1, 2, 3])):
    if layout.binary or (layout.packed and rng.random() < 0.3):
      content = _mutate_bytes(rng, content)
    elif layout.packed:
      try:
        text = gzip.decompress(content)
      except (OSError, EOFError, gzip.zlib.error):
        continue
      content = gzip.compress(_mutate_text(rng, text))
    else:
      content = _mutate_text(rng, content)
  return Case(name, content)


# --- judging


def judge(case: Case, directory: pathlib.Path) -> tuple[str, str]:
  """The outcome of a case, and what is to be said of it.

  Args:
    case: the file.
    directory: where it may be written.
  """
  layout = LAYOUTS[case.layout]
  path = directory / layout.name
  path.write_bytes(case.content)
  try:
    expected = layout.expect(case.content)
  except Refusal:
    expected = None
  outcomes = {}
  for rows in BLOCKS:
    outcome, said = _judge_reading(layout, path, rows, expected)
    if outcome not in ('equal', 'sentence'):
      return outcome, f'blocks of {rows}: {said}'
    outcomes.setdefault(outcome, said)
  if len(outcomes) > 1:
    return 'wrong', f'by the block: {outcomes}'
  if case.is_good and expected is not None and 'sentence' in outcomes:
    return 'wrong', f'a good file is refused: {outcomes}'
  return outcomes.popitem()


def _judge_reading(layout, path, rows, expected) -> tuple[str, str]:
  try:
    actual = layout.read(path, rows)
  except (ValueError, OSError) as e:
    text = str(e)
    if str(path) not in text:
      return 'traceback', f'names no file: {e!r}'[:500]
    if len(text) - len(str(path)) > LONGEST_SENTENCE:
      return 'traceback', f'{len(text)} characters: {text[:300]}'
    return 'sentence', text
  except Exception as e:
    return 'traceback', f'{e!r}'[:500]
  if expected is None:
    return 'silent', f'{actual}'[:500]
  if repr(actual) != repr(expected):  # NaN, -0.0 and the types count
    return 'wrong', f'{actual} instead of {expected}'[:1000]
  return 'equal', ''


def judge_range(
  seed: int, numbers: range, directory: pathlib.Path
) -> Iterator[tuple[int, str, str, str]]:
  """(number, layout, outcome, what is to be said) of each case."""
  for number in numbers:
    case = make_case(seed, number)
    yield number, case.layout, *judge(case, directory)


def _judge_in_process(seed: int, numbers: range) -> Iterator[tuple]:
  """The same in another process, which a case may bring down."""
  while len(numbers):
    command = [sys.executable, '-m', 'benchmarks.robustness_inputs', '--judge']
    command += map(str, [seed, numbers.start, numbers.stop])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
      for line in child.stdout:
        answer = json.loads(line)
        numbers = range(answer[0] + 1, numbers.stop)
        yield tuple(answer)
    if len(numbers):
      layout = make_case(seed, numbers.start).layout
      yield numbers.start, layout, 'crash', f'status {child.returncode}'
      numbers = range(numbers.start + 1, numbers.stop)


def run(
  count: int, seed: int, log: Callable[[str], None] = lambda line: None
) -> list[dict]:
  """Judges `count` cases.

  Args:
    count: of the cases.
    seed: of the cases; the same seed gives the same.
    log: told about each case that is neither 'equal' nor 'sentence'.

  Returns:
    A row for each layout, with the number of cases by outcome.
  """
  counts = {name: collections.Counter() for name in LAYOUTS}
  for first in range(0, count, BATCH):
    numbers = range(first, min(count, first + BATCH))
    for number, layout, outcome, text in _judge_in_process(seed, numbers):
      counts[layout][outcome] += 1
      if outcome not in ('equal', 'sentence'):
        log(f'{seed}/{number} {layout}: {outcome}: {text}')
  return [
    {'case': name, 'cases': sum(found.values())}
    | {outcome: found[outcome] for outcome in OUTCOMES}
    for name, found in counts.items()
  ]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--count', type=int, default=10_000)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--judge', type=int, nargs=3, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.judge:
    seed, first, stop = args.judge
    with tempfile.TemporaryDirectory() as directory:
      for answer in judge_range(
        seed, range(first, stop), pathlib.Path(directory)
      ):
        print(json.dumps(answer), flush=True)
    return
  rows = run(args.count, args.seed, print)
  for row in rows:
    print(row)
  print(result.write('robustness_inputs', rows))


if __name__ == '__main__':
  main()
