"""Delimited text files -> blocks of fields, column by column, with lines."""

import codecs
import contextlib
import csv
import dataclasses
import gzip
import io
import itertools
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from genrec_jax.data import remote_files
from genrec_jax.data.quoting import quote

# What one row may ask for; a file without line ends, or one that a few bytes
# were compressed from, must not fill the memory.
LONGEST_LINE = 1 << 24  # characters
MOST_COLUMNS = 1 << 16
_BLOCK = 1 << 25  # characters, about
_PIECE = 1 << 16  # bytes
_WORKBOOKS = (b'PK\x03\x04', b'\xd0\xcf\x11\xe0')  # .xlsx, .ods; .xls


@dataclasses.dataclass(frozen=True)
class TextBlock:
  """N consecutive rows of a file.

  Attributes:
    columns: one sequence of N fields a column.
    lines: `[N]` number of the line on which each row ends, from 1.
  """

  columns: Sequence[Sequence[str]]
  lines: Sequence[int]


def require_file(path: str | pathlib.Path) -> pathlib.Path:
  """The file at a path or URL, or an error that names it."""
  path = remote_files.locate(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file')
  return path


@contextlib.contextmanager
def explain_memory(path: str | pathlib.Path) -> Iterator[None]:
  """Turns a lack of memory while `path` is read into an error that names it."""
  try:
    yield
  except MemoryError as e:
    raise ValueError(
      f'{path}: reading it needs more memory than there is ({str(e)[:200]}); '
      'the file is damaged, or its rows are too long for this machine'
    ) from None


def check_width(path: pathlib.Path, count: int) -> None:
  """Refuses more columns than a table has."""
  if count > MOST_COLUMNS:
    raise ValueError(
      f'{path}: the first row has {count:,} columns, at most {MOST_COLUMNS:,} '
      'are read; is it a table with one record a line? Leave out columns'
    )


def read_header(path: pathlib.Path, delimiter: str) -> list[str]:
  """The cells of the first row of a CSV file, such as its columns' names."""
  for block in read_blocks(path, delimiter, quotes=True, rows=1):
    check_width(path, len(block.columns))
    return [column[0].strip() for column in block.columns]
  raise ValueError(f'{path}: the file is empty, it has not even a header')


def read_blocks(
  path: pathlib.Path,
  delimiter: str,
  *,
  quotes: bool = False,
  encoding: str = 'utf-8-sig',
  skip: int = 0,
  rows: int,
  width: int | None = None,
) -> Iterator[TextBlock]:
  """Reads a file (maybe .gz) in blocks of rows; blank lines are left out.

  Args:
    path: the file.
    delimiter: between fields; without `quotes`, ' ' stands for any number of
      spaces and tabs.
    quotes: fields may be quoted as in CSV, over several lines too, unless the
      delimiter is of several characters.
    encoding: of the text.
    skip: rows at the top to leave out.
    rows: most rows of a block.
    width: fields of every row; None takes what the first row has.

  Yields:
    The blocks; never an empty one.
  """
  first = 1  # number of the next line
  quotes = quotes and len(delimiter) == 1  # csv knows no other delimiter
  try:
    with contextlib.ExitStack() as stack:
      f = stack.enter_context(path.open('rb'))
      if path.suffix.lower() == '.gz':
        f = stack.enter_context(gzip.open(f))
      stack.enter_context(explain_memory(path))
      source = _Lines(path, f, encoding)
      while lines := source.take(rows):
        text = ''.join(lines)
        if '\0' in text:
          bad = first + next(i for i, x in enumerate(lines) if '\0' in x)
          raise ValueError(
            f'{path}, line {bad}: zero bytes; it is damaged, or '
            'text of another encoding, which is to be saved as UTF-8'
          )
        quoted = quotes and '"' in text
        block = None
        if width and not skip and not quoted:
          spaced = delimiter == ' ' and not quotes
          block = _split_fast(
            text, len(lines), delimiter, width, first, spaced=spaced
          )
        if block is not None:
          first += len(lines)
          yield block
          continue
        # A quoted field may end many lines later: csv takes over for good.
        rest = source.iterate() if quoted else ()
        counter = _Counter(itertools.chain(lines, rest), first)
        table = _read_rows(path, counter, delimiter, quotes)
        while rows_read := _take_rows(table, rows):
          rows_read, skip = rows_read[skip:], max(0, skip - len(rows_read))
          if rows_read:
            width = width or len(rows_read[0][1])
            yield _check_width(path, rows_read, width)
        first = counter.line + 1
  except (EOFError, zlib.error, gzip.BadGzipFile) as e:
    raise ValueError(
      f'{path}, line {first} or later: the compressed file is damaged ({e})'
    ) from None
  except OSError as e:
    if e.filename is not None:
      raise
    raise OSError(e.errno, e.strerror or str(e), str(path)) from None


class _Lines:
  """The lines of a file, with their ends; holds a piece of it at a time."""

  def __init__(self, path: pathlib.Path, file: BinaryIO, encoding: str):
    self._path, self._file, self._encoding = path, file, encoding
    self._pieces = self._read_pieces()
    self._piece, self._next = [], 0
    self._size = 0  # characters of this piece

  def take(self, rows: int) -> list[str]:
    """The next lines: `rows` of them, fewer where they are long or end."""
    lines, characters = [], 0
    while len(lines) < rows and characters < _BLOCK:
      if self._next == len(self._piece):
        self._piece, self._next = next(self._pieces, []), 0
        if not self._piece:
          break
      some = self._piece[self._next : self._next + rows - len(lines)]
      self._next += len(some)
      lines += some
      is_whole = len(some) == len(self._piece)
      characters += self._size if is_whole else sum(map(len, some))
    return lines

  def iterate(self) -> Iterator[str]:
    """All lines that are left, one by one."""
    rest, self._piece = self._piece[self._next :], []
    self._next = 0
    return itertools.chain(rest, itertools.chain.from_iterable(self._pieces))

  def _read_pieces(self) -> Iterator[list[str]]:
    decoder = codecs.getincrementaldecoder(self._encoding)()
    done, rest, data = 0, '', b'-'
    while data:
      data = self._file.read(max(_PIECE, len(rest)))
      if not done and not rest:
        _refuse_workbook(self._path, data)
      try:
        text = rest + decoder.decode(data, final=not data)
      except UnicodeDecodeError as e:
        before = rest + e.object[: e.start].decode(self._encoding)
        line = done + len(_split_lines(before + '.'))
        raise ValueError(
          f'{self._path}, line {line}: not '
          f'{self._encoding.removesuffix("-sig")} text ({e.reason}); save the '
          'file as UTF-8'
        ) from None
      end = len(text)
      if data:  # what is after the last line end; a CR may still get its LF
        last = end - text.endswith('\r')
        end = 1 + max(text.rfind(mark, 0, last) for mark in '\r\n')
      lines, rest = _split_lines(text[:end]), text[end:]
      done += len(lines)
      if len(rest) > LONGEST_LINE:
        raise ValueError(
          f'{self._path}, line {done + 1}: more than {LONGEST_LINE:,} '
          'characters without a line end; is it a text file with one record a '
          'line?'
        )
      if lines:
        self._size = end
        yield lines


def _refuse_workbook(path: pathlib.Path, data: bytes) -> None:
  """Raises a ValueError if a file begins as those of spreadsheets do."""
  if data.startswith(_WORKBOOKS):
    raise ValueError(
      f'{path}: this is an Excel workbook or a zip archive, not a table of '
      'text; save the sheet, or what the archive holds, as CSV or Parquet'
    )


def _split_lines(text: str) -> list[str]:
  """The lines with their ends: LF, CR or CR LF, and nothing else."""
  return list(io.StringIO(text, newline=''))


def _take_rows(table: Iterator[tuple[int, list[str]]], rows: int) -> list:
  """The next rows of a table: `rows` of them, fewer where they are long."""
  batch, characters = [], 0
  for pair in table:
    batch.append(pair)
    characters += sum(map(len, pair[1])) + len(pair[1])
    if len(batch) == rows or characters > _BLOCK:
      break
  return batch


def _split_fast(
  text, count, delimiter, width, first, *, spaced
) -> TextBlock | None:
  """A block cut by three string operations; None when a row is irregular."""
  text = text.replace('\r\n', '\n').removesuffix('\n')
  if '\r' in text:  # ends lines as well
    return None
  if spaced:
    text = text.replace('\t', ' ')
  # Line ends become words of their own: in a regular block they are every
  # (width + 1)-th word.
  words = text.replace('\n', f'{delimiter}\n{delimiter}').split(delimiter)
  if len(words) != count * (width + 1) - 1:
    return None
  if words[width :: width + 1].count('\n') != count - 1:
    return None
  columns = [words[i :: width + 1] for i in range(width)]
  if width == 1 and not all(map(str.strip, words[::2])):  # maybe blank
    return None
  if spaced and any('' in column for column in columns):
    return None
  return TextBlock(columns, range(first, first + count))


class _Counter:
  """Iterates over lines and knows the number of the last one taken."""

  def __init__(self, lines, first: int):
    self._lines = iter(lines)
    self.line = first - 1
    self.row_length = 0  # characters since the row began

  def __iter__(self):
    return self

  def __next__(self) -> str:
    line = next(self._lines)
    self.line += 1
    if '\0' in line:
      raise csv.Error('zero bytes')
    self.row_length += len(line)
    if self.row_length > LONGEST_LINE:
      raise csv.Error(f'longer than {LONGEST_LINE:,} characters')
    return line


def _read_rows(
  path, counter: _Counter, delimiter: str, quotes: bool
) -> Iterator[tuple[int, list[str]]]:
  """Pairs (number of the last line, fields) of the rows that are not blank."""
  if quotes:
    # A cell may be as long as its row, which `_Counter` bounds.
    csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))
    reader = csv.reader(counter, delimiter=delimiter, strict=True)
  else:
    reader = (_split_line(line.rstrip('\r\n'), delimiter) for line in counter)
  while True:
    start, counter.row_length = counter.line + 1, 0
    try:
      row = next(reader, None)
    except csv.Error as e:
      raise ValueError(
        f'{path}, line {start}: the row that begins here is damaged ({e})'
      ) from None
    if row is None:
      return
    if row:
      yield counter.line, row


def _split_line(line: str, delimiter: str) -> list[str]:
  """The fields of a line without quotes, none of a blank one."""
  if delimiter == ' ':
    return [word for word in line.replace('\t', ' ').split(' ') if word]
  # Delimiters alone are a row whose fields are empty.
  return line.split(delimiter) if line.strip() or delimiter in line else []


def _check_width(path, rows, width: int) -> TextBlock:
  for line, row in rows:
    if len(row) != width:
      raise ValueError(
        f'{path}, line {line}: {len(row)} fields instead of {width}: '
        f'{quote(row)}; mend or remove the line'
      )
  columns = list(zip(*(row for _, row in rows), strict=True))
  return TextBlock(columns, [line for line, _ in rows])
