"""Raw interaction files -> chunks of events, in constant memory.

Every reader is a generator of `Events`, in file order; the files are never
held whole. What cannot be read is an error that names the file and the line.
"""

import csv
import dataclasses
import datetime
import difflib
import gzip
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from genrec_jax.data import vocab as vocab_lib

CHUNK_ROWS = 1 << 18
UNITS = {'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': 10**9}


@dataclasses.dataclass(frozen=True)
class Events:
  """Some consecutive events of a log.

  Attributes:
    user: `[N]` int64 or str ids.
    item: `[N]` int64 or str ids.
    time: `[N]` int64 seconds, or None when the log has no times.
    rating: `[N]` float32, or None when the log has no ratings.
    where: names the origin of row i for messages ('log.csv, line 7').
  """

  user: np.ndarray
  item: np.ndarray
  time: np.ndarray | None = None
  rating: np.ndarray | None = None
  where: Callable[[int], str] = 'event {}'.format

  def __len__(self) -> int:
    return len(self.user)


@dataclasses.dataclass(frozen=True)
class _Text:
  """One text file as rows of fields; knows the line of each row."""

  path: pathlib.Path
  split: Callable[[Iterator[str]], Iterator[list[str]]]
  encoding: str = 'utf-8-sig'
  skip: int = 0  # header rows

  def rows(self) -> Iterator[tuple[int, list[str]]]:
    """Pairs (last line number of the row, fields), blank lines left out."""
    opener = gzip.open if self.path.suffix == '.gz' else open
    count = [0]

    def counted(lines):
      for line in lines:
        count[0] += 1
        yield line

    kept = 0
    try:
      with opener(self.path, 'rt', encoding=self.encoding, newline='') as f:
        for row in self.split(counted(f)):
          if row:
            kept += 1
            if kept > self.skip:
              yield count[0], row
    except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as e:
      raise ValueError(
        f'{self.path}, after line {count[0]}: the file is damaged or not a '
        f'text file ({e})'
      ) from None


def _delimited(delimiter: str | None):
  def split(lines):
    for line in lines:
      line = line.rstrip('\r\n')
      yield line.split(delimiter) if line.strip() else []

  return split


def _existing(path) -> pathlib.Path:
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file')
  return path


def _ids(text: Sequence[str], kind: str) -> tuple[np.ndarray, np.ndarray]:
  """Ids of the wanted kind ('int' or 'str') and which of them are good."""
  words = np.array(text)
  if kind == 'int':
    return vocab_lib.parse_ints(words)
  return words, words != ''


def _one_time(word: str) -> float:
  """Seconds since 1970 of one field; NaN when it is not a time."""
  try:
    return float(word)
  except ValueError:
    pass
  try:
    moment = datetime.datetime.fromisoformat(word.strip())
  except ValueError:
    return float('nan')
  if moment.tzinfo is None:
    moment = moment.replace(tzinfo=datetime.UTC)
  return moment.timestamp()


def _times(text: Sequence[str], unit: str) -> tuple[np.ndarray, np.ndarray]:
  """Whole seconds `[N]` int64 and which of them are good."""
  try:
    values = np.array(text).astype(np.int64)
    return values // UNITS[unit], values >= 0
  except (ValueError, OverflowError):
    pass
  try:
    values = np.array(text).astype(np.float64) / UNITS[unit]
  except ValueError:
    # Dates carry their own unit; a column of numbers with one bad word in it
    # lands here too, and only which fields are good matters then.
    values = np.array([_one_time(word) for word in text])
  good = (values >= 0) & (values < 2.0**62)
  return np.where(good, values, 0).astype(np.int64), good


def _ratings(text: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  try:
    values = np.array(text).astype(np.float32)
  except ValueError:
    values = np.array([_one_float(word) for word in text], np.float32)
  return values, np.isfinite(values)


def _one_float(word: str) -> float:
  try:
    return float(word)
  except ValueError:
    return float('nan')


_WANTED = {
  'user': 'a user id',
  'item': 'an item id',
  'time': 'a time (seconds since 1970, zero or more, or an ISO date)',
  'rating': 'a finite number',
}


def _text_events(
  file: _Text,
  index: dict[str, int],
  width: int,
  kinds: dict[str, str],
  time_unit: str,
  chunk_rows: int,
) -> Iterator[Events]:
  """Events of one file.

  Args:
    file: the rows.
    index: position of each role ('user', 'item', maybe 'time', 'rating').
    width: number of fields of a row.
    kinds: kind of the ids of 'user' and 'item': 'int', 'str', or 'auto', which
      is replaced here by what the first chunk shows.
    time_unit: of numeric times.
    chunk_rows: most rows of a chunk.
  """
  rows = file.rows()
  empty = True
  while chunk := list(itertools.islice(rows, chunk_rows)):
    empty = False
    for line, row in chunk:
      if len(row) != width:
        raise ValueError(
          f'{file.path}, line {line}: {len(row)} fields instead of {width}: '
          f'{row!r}; mend or remove the line'
        )
    lines = [line for line, _ in chunk]
    columns = {}
    for role, position in index.items():
      words = [row[position] for _, row in chunk]
      if role in kinds:
        if kinds[role] == 'auto':
          whole = _ids(words, 'int')[1].all()
          kinds[role] = 'int' if whole else 'str'
        values, good = _ids(words, kinds[role])
      elif role == 'time':
        values, good = _times(words, time_unit)
      else:
        values, good = _ratings(words)
      if not good.all():
        bad = int(np.argmin(good))
        hint = 'mend or remove the line'
        if kinds.get(role) == 'int':
          hint += ", or read ids as text (ids='str')"
        raise ValueError(
          f'{file.path}, line {lines[bad]}: {words[bad]!r} is not '
          f'{_WANTED[role]}; {hint}'
        )
      columns[role] = values
    yield Events(
      **columns,
      where=lambda i, lines=lines: f'{file.path}, line {lines[i]}',
    )
  if empty:
    raise ValueError(f'{file.path}: the file holds no events')


def _fixed(path, split, roles, chunk_rows) -> Iterator[Events]:
  file = _Text(_existing(path), split, encoding='latin-1')
  index = {role: i for i, role in enumerate(roles)}
  kinds = {'user': 'int', 'item': 'int'}
  return _text_events(file, index, len(roles), kinds, 's', chunk_rows)


def movielens_tab(path, chunk_rows: int = CHUNK_ROWS) -> Iterator[Events]:
  """MovieLens 100K `u.data`: user, item, rating, time between tabs."""
  roles = ('user', 'item', 'rating', 'time')
  return _fixed(path, _delimited('\t'), roles, chunk_rows)


def movielens_dat(path, chunk_rows: int = CHUNK_ROWS) -> Iterator[Events]:
  """MovieLens 1M/10M `ratings.dat`: user::item::rating::time."""
  roles = ('user', 'item', 'rating', 'time')
  return _fixed(path, _delimited('::'), roles, chunk_rows)


def movielens_csv(path, chunk_rows: int = CHUNK_ROWS) -> Iterator[Events]:
  """MovieLens 20M/25M/32M/latest `ratings.csv`."""
  columns = dict(
    user='userId', item='movieId', time='timestamp', rating='rating'
  )
  return read_csv([path], columns, ids='int', chunk_rows=chunk_rows)


def sasrec_text(path, chunk_rows: int = CHUNK_ROWS) -> Iterator[Events]:
  """SASRec text: "user item" a line, in the order of time, no times."""
  return _fixed(path, _delimited(None), ('user', 'item'), chunk_rows)


def _named(columns: dict[str, str]) -> dict[str, str]:
  """The roles that have a column name; 'user' and 'item' must have one."""
  unknown = set(columns) - set(_WANTED)
  if unknown:
    raise ValueError(
      f'columns: unknown key {sorted(unknown)[0]!r}; the keys are '
      f'{", ".join(_WANTED)}'
    )
  named = {role: columns[role] for role in _WANTED if columns.get(role)}
  for role in ('user', 'item'):
    if role not in named:
      raise ValueError(f'columns: name the column of the {role} ids')
  return named


def _missing(path, role: str, name: str, header: Sequence[str]) -> ValueError:
  near = difflib.get_close_matches(name, header, 1)
  return ValueError(
    f'{path}: no column {name!r} (columns.{role}); the columns are '
    f'{", ".join(header)}' + (f'; did you mean {near[0]!r}?' if near else '')
  )


def _check(ids: str, time_unit: str) -> None:
  if ids not in ('auto', 'int', 'str'):
    raise ValueError(f"ids must be 'auto', 'int' or 'str', not {ids!r}")
  if time_unit not in UNITS:
    raise ValueError(
      f'time_unit must be one of {", ".join(UNITS)}, not {time_unit!r}'
    )


def read_csv(
  paths: Sequence[str | pathlib.Path],
  columns: dict[str, str],
  *,
  delimiter: str = ',',
  ids: str = 'auto',
  time_unit: str = 's',
  chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Events]:
  """Events of CSV files (also `.gz`) with a header, by column names.

  Args:
    paths: the files, read one after the other as one log.
    columns: name of the 'user', 'item', 'time' and 'rating' column; a time or
      rating that is '' or absent is not read.
    delimiter: between fields.
    ids: 'int', 'str', or 'auto': integers if the whole first chunk is.
    time_unit: unit of numeric times: 's', 'ms', 'us' or 'ns'. Fractions of a
      second are cut off; dates without a zone are UTC.
    chunk_rows: most rows of a chunk.

  Yields:
    `Events` of at most `chunk_rows` rows.
  """
  _check(ids, time_unit)
  named = _named(columns)
  kinds = {'user': ids, 'item': ids}

  def split(lines):
    return csv.reader(lines, delimiter=delimiter, strict=True)

  for path in paths:
    path = _existing(path)
    header = next(_Text(path, split).rows(), None)
    if header is None:
      raise ValueError(f'{path}: the file is empty, it has not even a header')
    names = [name.strip() for name in header[1]]
    for role, name in named.items():
      if name not in names:
        raise _missing(path, role, name, names)
      if names.count(name) > 1:
        raise ValueError(f'{path}: column {name!r} appears twice')
    index = {role: names.index(name) for role, name in named.items()}
    file = _Text(path, split, skip=1)
    yield from _text_events(
      file, index, len(names), kinds, time_unit, chunk_rows
    )


def catalogue(path: str | pathlib.Path) -> tuple[np.ndarray, list[str]]:
  """Item ids `[C]` int64 and titles of a MovieLens catalogue, in file order.

  Args:
    path: `movies.dat` (::), `movies.csv` (header) or `u.item` (|).
  """
  path = _existing(path)
  if path.suffix == '.csv':
    file = _Text(path, lambda lines: csv.reader(lines, strict=True), skip=1)
  else:
    delimiter = '::' if path.suffix == '.dat' else '|'
    file = _Text(path, _delimited(delimiter), encoding='latin-1')
  ids, titles = [], []
  for line, row in file.rows():
    if len(row) < 2 or not row[0].isdecimal():
      raise ValueError(f'{path}, line {line}: {row!r} is no item and title')
    ids.append(int(row[0]))
    titles.append(row[1])
  if not ids:
    raise ValueError(f'{path}: the catalogue is empty')
  return np.array(ids, np.int64), titles
