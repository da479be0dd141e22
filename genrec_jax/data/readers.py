"""Raw interaction files -> chunks of events, in constant memory.

Every reader is a generator of `Events`, in file order; the files are never
held whole. What cannot be read is an error that names the file and the line.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data import csv_layout, decimals, fields, text, text_arrays
from genrec_jax.data import extras as extras_lib
from genrec_jax.data.quoting import list_names, quote

CHUNK_ROWS = 1 << 18


@dataclasses.dataclass(frozen=True)
class Events:
  """Some consecutive events of a log.

  Attributes:
    user: `[N]` int64 or str ids.
    item: `[N]` int64 or str ids.
    time: `[N]` int64 seconds, or None when the log has no times.
    fraction: `[N]` int32 nanoseconds after `time`, by which events of one
      second are sorted; None where all are 0.
    rating: `[N]` float32, or None when the log has no ratings.
    extras: name -> `[N]` values of each extra column that was asked for, those
      of a category as text.
    where: names the origin of row i for messages ('log.csv, line 7').
  """

  user: np.ndarray
  item: np.ndarray
  time: np.ndarray | None = None
  rating: np.ndarray | None = None
  extras: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  where: Callable[[int], str] = 'event {}'.format
  fraction: np.ndarray | None = None

  def __len__(self) -> int:
    return len(self.user)


class EmptyFileError(ValueError):
  """A file without a single event."""


def _explain_refusal(
  where: str, value, role: str, kind: str | None, column: str = ''
) -> ValueError:
  if role == 'time' and (problem := fields.explain_date(value)):
    return ValueError(f'{where}, column {column!r}: {problem}')
  hint = 'mend or remove the line'
  if kind == 'int':
    hint += ", or read ids as text (data.id_type='str')"
  problem = f'{quote(value)} is not {fields.WANTED[role]}'
  if role in ('time', 'rating') and (comma := decimals.hint_comma(value)):
    return ValueError(f'{where}, column {column!r}: {problem}{comma}')
  if role in ('user', 'item') and len(str(value)) > text_arrays.LONGEST_ID:
    problem += f', which has at most {text_arrays.LONGEST_ID:,} characters'
  return ValueError(f'{where}: {problem}; {hint}')


def _refuse_extra(
  where: str, extra: extras_lib.ExtraColumn, value
) -> ValueError:
  problem = extras_lib.explain_value(extra, value)
  return ValueError(f'{where}, column {extra.source!r}: {problem}')


def _from_blocks(
  path: pathlib.Path,
  blocks: Iterator[text.TextBlock],
  index: Mapping[str, int],
  kinds: dict[str, str],
  time_unit: str,
  extras: Mapping[int, Sequence[extras_lib.ExtraColumn]],
  names: Mapping[str, str] = {},
) -> Iterator[Events]:
  """Events of one text file.

  Args:
    path: for messages.
    blocks: the rows of the file.
    index: column of each role ('user', 'item', maybe 'time', 'rating').
    kinds: 'int', 'str' or 'auto' for the ids of 'user' and 'item'; 'auto' is
      replaced here by what the first block shows.
    time_unit: of numeric times.
    extras: the extra columns that read each column of the file.
    names: role -> name of the column, where columns have names.
  """
  empty = True
  for block in blocks:
    empty = False
    with text.explain_memory(path):
      yield _read_block(path, block, index, kinds, time_unit, extras, names)
  if empty:
    raise EmptyFileError(f'{path}: the file holds no events')


def _read_block(path, block, index, kinds, time_unit, extras, names) -> Events:
  """The events of a block; arguments as of `_from_blocks`."""
  columns = {}
  for role, position in index.items():
    words = block.columns[position]
    if role in kinds:
      if kinds[role] == 'auto':
        whole = fields.parse_ids(words, 'int')[1].all()
        kinds[role] = 'int' if whole else 'str'
      values, good = fields.parse_ids(words, kinds[role])
    elif role == 'time':
      (values, columns['fraction']), good = fields.parse_times(words, time_unit)
    else:
      values, good = fields.parse_ratings(words)
    if not good.all():
      bad = int(np.argmin(good))
      where = f'{path}, line {block.lines[bad]}'
      kind, name = kinds.get(role), names.get(role, str(position))
      raise _explain_refusal(where, words[bad], role, kind, name)
    columns[role] = values
  beside = {}
  for position, readers in extras.items():
    words = block.columns[position]
    for extra in readers:
      values, good = extras_lib.read_texts(extra, words)
      if not good.all():
        bad = int(np.argmin(good))
        where = f'{path}, line {block.lines[bad]}'
        raise _refuse_extra(where, extra, words[bad])
      beside[extra.name] = values
  return Events(
    **columns,
    extras=beside,
    where=lambda i, lines=block.lines: f'{path}, line {lines[i]}',
  )


def _read_fixed(
  delimiter: str,
  roles: Sequence[str],
  path: str | pathlib.Path,
  chunk_rows: int = CHUNK_ROWS,
  extras: Sequence[extras_lib.ExtraColumn] = (),
) -> Iterator[Events]:
  """Lines without a header whose fields have the given roles, in order."""
  path = text.require_file(path)
  blocks = text.read_blocks(
    path, delimiter, encoding='latin-1', rows=chunk_rows, width=len(roles)
  )
  index = {role: i for i, role in enumerate(roles)}
  kinds = {'user': 'int', 'item': 'int'}
  there = _extra_positions(path, extras, roles)
  return _from_blocks(path, blocks, index, kinds, 's', there)


_RATED = ('user', 'item', 'rating', 'time')
# MovieLens 100K `u.data`; MovieLens 1M and 10M `ratings.dat`.
movielens_tab = functools.partial(_read_fixed, '\t', _RATED)
movielens_dat = functools.partial(_read_fixed, '::', _RATED)
# SASRec text: "user item" a line, in the order of time, no times.
sasrec_text = functools.partial(_read_fixed, ' ', ('user', 'item'))


def movielens_csv(
  path,
  chunk_rows: int = CHUNK_ROWS,
  extras: Sequence[extras_lib.ExtraColumn] = (),
) -> Iterator[Events]:
  """MovieLens 20M/25M/32M/latest `ratings.csv`."""
  columns = dict(
    user='userId', item='movieId', time='timestamp', rating='rating'
  )
  options = dict(delimiter=',', header='yes', chunk_rows=chunk_rows)
  return read_csv([path], columns, ids='int', extras=extras, **options)


def read_catalogue(path: str | pathlib.Path) -> tuple[np.ndarray, list[str]]:
  """Item ids `[C]` int64 and titles of a MovieLens catalogue, in file order.

  Args:
    path: `movies.dat` (::), `movies.csv` (header) or `u.item` (|).
  """
  path = text.require_file(path)
  if path.suffix == '.csv':
    options = dict(delimiter=',', quotes=True, skip=1)
  else:
    delimiter = '::' if path.suffix == '.dat' else '|'
    options = dict(delimiter=delimiter, encoding='latin-1')
  ids, titles = [], []
  for block in text.read_blocks(path, rows=CHUNK_ROWS, **options):
    if len(block.columns) < 2:
      raise ValueError(
        f'{path}, line {block.lines[0]}: one field '
        f'{quote(block.columns[0][0])}; the lines of a catalogue hold an item '
        f'id, {options["delimiter"]!r} and a title'
      )
    values, good = fields.parse_ids(block.columns[0], 'int')
    if not good.all():
      bad = int(np.argmin(good))
      where = f'{path}, line {block.lines[bad]}'
      raise _explain_refusal(where, block.columns[0][bad], 'item', None)
    ids.append(values)
    titles += block.columns[1]
  if not ids:
    raise ValueError(f'{path}: the catalogue is empty')
  unique, counts = np.unique(np.concatenate(ids), return_counts=True)
  if (counts > 1).any():
    raise ValueError(
      f'{path}: item {unique[np.argmax(counts)]} appears '
      f'{counts.max()} times; a catalogue has one line for each item'
    )
  return np.concatenate(ids), titles


def read_titles(path: str | pathlib.Path) -> tuple[list[str], list[str]]:
  """Ids, as text, and titles of a CSV file with the columns item and title."""
  path = text.require_file(path)
  names = text.read_header(path, ',')
  index = _find_positions(path, {'item': 'item', 'title': 'title'}, names)
  ids, texts = [], []
  for block in text.read_blocks(
    path, ',', quotes=True, skip=1, rows=CHUNK_ROWS, width=len(names)
  ):
    ids += block.columns[index['item']]
    texts += block.columns[index['title']]
  return ids, texts


def _named_roles(columns: Mapping[str, str]) -> dict[str, str]:
  """The roles that have a column name; 'user' and 'item' must have one."""
  unknown = set(columns) - set(fields.WANTED)
  if unknown:
    raise ValueError(
      f'columns: unknown key {sorted(unknown)[0]!r}; the keys are '
      f'{", ".join(fields.WANTED)}'
    )
  named = {role: columns[role] for role in fields.WANTED if columns.get(role)}
  for role in ('user', 'item'):
    if role not in named:
      raise ValueError(f'columns: name the column of the {role} ids')
  return named


def _find_positions(
  path, named: dict[str, str], names: list[str]
) -> dict[str, int]:
  """Where the named columns are, or an error with the nearest name."""
  for role, name in named.items():
    if name not in names:
      hint = csv_layout.hint_column(name, names)
      raise ValueError(
        f'{path}: no column {name!r} for the {role}; the columns are '
        f'{list_names(names)}{_hint_numbers(named, names) or hint}'
      )
    if names.count(name) > 1:
      raise ValueError(f'{path}: column {name!r} appears twice')
  return {role: names.index(name) for role, name in named.items()}


def _hint_numbers(named: Mapping[str, str], names: Sequence[str]) -> str:
  """What to do where some columns are given by number and some by name."""
  numbers = [f'{r}={n}' for r, n in named.items() if n.isdecimal()]
  words = [f'{r}={n}' for r, n in named.items() if not n.isdecimal()]
  if not numbers or not words or any(n in names for n in named.values()):
    return ''
  role = words[0].partition('=')[0]
  none = ' (or to nothing, if there is none)' * (role in ('time', 'rating'))
  return (
    f'; a file without a header needs all its columns by number, and '
    f'data.columns has {", ".join(numbers)} beside {", ".join(words)}: set '
    f'--config.data.columns.{role}= to a number from 0 on{none}'
  )


def _extra_positions(
  path, extras: Sequence[extras_lib.ExtraColumn], names: Sequence[str]
) -> dict[int, list[extras_lib.ExtraColumn]]:
  """Column of the file -> the extra columns that read it."""
  out = {}
  for extra in extras:
    role = f'extra {extra.name!r}'
    position = _find_positions(path, {role: extra.source}, list(names))[role]
    out.setdefault(position, []).append(extra)
  return out


def _check_options(ids: str, time_unit: str) -> None:
  if ids not in ('auto', 'int', 'str'):
    raise ValueError(f"ids must be 'auto', 'int' or 'str', not {ids!r}")
  if time_unit not in fields.UNITS:
    raise ValueError(
      f'time_unit must be one of {", ".join(fields.UNITS)}, not {time_unit!r}'
    )


def read_csv(
  paths: Sequence[str | pathlib.Path],
  columns: Mapping[str, str],
  *,
  delimiter: str = '',
  header: str = 'auto',
  decimal: str = '.',
  ids: str = 'auto',
  time_unit: str = 's',
  extras: Sequence[extras_lib.ExtraColumn] = (),
  chunk_rows: int = CHUNK_ROWS,
  layouts: Sequence[csv_layout.CsvLayout] = (),
) -> Iterator[Events]:
  """Events of CSV files (also `.gz`), by the names of columns.

  Args:
    paths: the files, read one after the other as one log.
    columns: name of the 'user', 'item', 'time' and 'rating' column, or number
      in files without a header; a time or rating that is '' or absent is not
      read.
    delimiter: between fields; '' is that of each file, as in
      `csv_layout.find_layout`.
    header: whether files have one, as there.
    decimal: the mark in numbers, as in `decimals.read_points`.
    ids: 'int', 'str', or 'auto': integers if the whole first chunk is.
    time_unit: unit of numeric times: 's', 'ms', 'us' or 'ns'; ISO dates
      without a zone are UTC.
    extras: columns to read beside those; one may read the column of a role.
    chunk_rows: most rows of a chunk.
    layouts: of all files, where they are known; () looks at the files.

  Yields:
    `Events` of at most `chunk_rows` rows.
  """
  _check_options(ids, time_unit)
  csv_layout.read_delimiter(delimiter)
  named = _named_roles(columns)
  wanted = [*named.values(), *(extra.source for extra in extras)]
  kinds = {'user': ids, 'item': ids}
  paths = [*map(text.require_file, paths)]
  layouts = layouts or csv_layout.find_layouts(paths, wanted, delimiter, header)
  for path, layout in zip(paths, layouts, strict=True):
    blocks = text.read_blocks(
      path,
      layout.delimiter,
      quotes=True,
      skip=int(layout.has_header),
      rows=chunk_rows,
      width=len(layout.names),
    )
    index = _find_positions(path, named, layout.names)
    there = _extra_positions(path, extras, layout.names)
    blocks = (decimals.read_points(block, decimal) for block in blocks)
    yield from _from_blocks(path, blocks, index, kinds, time_unit, there, named)


def read_parquet(
  paths: Sequence[str | pathlib.Path],
  columns: Mapping[str, str],
  *,
  ids: str = 'auto',
  time_unit: str = 's',
  extras: Sequence[extras_lib.ExtraColumn] = (),
  chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Events]:
  """Events of Parquet files, by column names.

  Args:
    paths: the files, read one after the other as one log.
    columns: as in `read_csv`.
    ids: 'int' or 'str' converts, 'auto' takes the type of the column.
    time_unit: unit of numeric times; dates and timestamps have their own.
    extras: as in `read_csv`.
    chunk_rows: most rows of a chunk.

  Yields:
    `Events` of at most `chunk_rows` rows.
  """
  _check_options(ids, time_unit)
  named = _named_roles(columns)
  from genrec_jax.data import parquet  # which needs pyarrow

  for path in paths:
    path = text.require_file(path)
    names = parquet.read_schema(path).names
    _find_positions(path, named, names)
    _extra_positions(path, extras, names)
    column_names = dict.fromkeys([*named.values(), *(e.source for e in extras)])
    first = 1
    coded = [named['user'], named['item']]
    for table in parquet.read_batches(
      path, list(column_names), chunk_rows, coded
    ):
      with parquet.explain_damage(path, first - 1):
        yield _read_table(path, table, named, ids, time_unit, extras, first)
      first += table.num_rows
    if first == 1:
      raise EmptyFileError(f'{path}: the file holds no events')


def _read_table(path, table, named, ids, time_unit, extras, first) -> Events:
  """The events of a batch of a Parquet file.

  Args:
    path: of the file.
    table: the batch.
    named: role -> column.
    ids: as in `read_parquet`.
    time_unit: likewise.
    extras: likewise.
    first: number of the first row, from 1.
  """
  from genrec_jax.data import parquet

  columns = {}
  for role, name in named.items():
    where = f'{path}, row {{}}, column {name!r}'
    values, good = parquet.read_column(table[name], role, ids, time_unit, where)
    if role == 'time':
      values, columns['fraction'] = values
    if not good.all():
      bad = int(np.argmin(good))
      value = parquet.show_value(table[name], bad)
      raise _explain_refusal(where.format(first + bad), value, role, None)
    columns[role] = values
  beside = {}
  for extra in extras:
    try:
      values, good = parquet.read_extra(table[extra.source], extra)
    except TypeError as e:
      raise ValueError(
        f'{path}, column {extra.source!r}: {e}; choose another '
        f'{extras_lib.KEY}.{extra.name}.kind'
      ) from None
    if not good.all():
      bad = int(np.argmin(good))
      value = parquet.show_value(table[extra.source], bad)
      raise _refuse_extra(f'{path}, row {first + bad}', extra, value)
    beside[extra.name] = values
  return Events(
    **columns,
    extras=beside,
    where=lambda i: f'{path}, row {first + i}',
  )
