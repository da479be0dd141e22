"""Delimited text files -> blocks of fields, column by column, with lines."""

import csv
import dataclasses
import gzip
import itertools
import pathlib
import zlib
from collections.abc import Iterator, Sequence


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
  """`path`, or an error that names it."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file')
  return path


def read_header(path: pathlib.Path, delimiter: str) -> list[str]:
  """The column names of a CSV file."""
  for block in read_blocks(path, delimiter, quotes=True, rows=1):
    return [column[0].strip() for column in block.columns]
  raise ValueError(f'{path}: the file is empty, it has not even a header')


def hint_delimiter(names: Sequence[str]) -> str:
  """What to set if a header was not cut into its names, or ''.

  >>> hint_delimiter(['user;item;time'])
  "; are the fields separated by ';'? Set --config.data.delimiter=';'"
  """
  marks = [x for x in ';\t|,' if len(names) == 1 and x in names[0]]
  if not marks:
    return ''
  return (
    f'; are the fields separated by {marks[0]!r}? Set '
    f'--config.data.delimiter={marks[0]!r}'
  )


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
    delimiter: between fields; ' ' stands for any white space.
    quotes: fields may be quoted as in CSV, over several lines too.
    encoding: of the text.
    skip: rows at the top to leave out.
    rows: most rows of a block.
    width: fields of every row; None takes what the first row has.

  Yields:
    The blocks; never an empty one.
  """
  opener = gzip.open if path.suffix.lower() == '.gz' else open
  first = 1  # number of the next line
  try:
    with opener(path, 'rt', encoding=encoding, newline='') as f:
      while lines := list(itertools.islice(f, rows)):
        text = ''.join(lines)
        if '\0' in text:
          bad = first + next(i for i, x in enumerate(lines) if '\0' in x)
          raise ValueError(f'{path}, line {bad}: zero bytes; it is damaged')
        quoted = quotes and '"' in text
        block = None
        if width and not skip and not quoted:
          block = _split_fast(text, len(lines), delimiter, width, first)
        if block is not None:
          first += len(lines)
          yield block
          continue
        # A quoted field may end many lines later: csv takes over for good.
        source = itertools.chain(lines, f) if quoted else lines
        counter = _Counter(source, first)
        table = _read_rows(path, counter, delimiter, quotes)
        while rows_read := list(itertools.islice(table, rows)):
          rows_read, skip = rows_read[skip:], max(0, skip - len(rows_read))
          if rows_read:
            width = width or len(rows_read[0][1])
            yield _check_width(path, rows_read, width)
        first = counter.line + 1
  except UnicodeDecodeError as e:
    line = _find_undecodable(path, opener, encoding)
    raise ValueError(
      f'{path}, line {line}: not {encoding} text ({e.reason})'
    ) from None
  except (EOFError, zlib.error, gzip.BadGzipFile) as e:
    raise ValueError(
      f'{path}, line {first} or later: the compressed file is damaged ({e})'
    ) from None


def _find_undecodable(path, opener, encoding: str) -> int:
  """The first line that is not text; decoding reads ahead of the lines."""
  with opener(path, 'rb') as f:
    for number, line in enumerate(f, 1):
      try:
        line.decode(encoding)
      except UnicodeDecodeError:
        return number
  raise AssertionError(f'{path} can be decoded')


def _split_fast(text, count, delimiter, width, first) -> TextBlock | None:
  """A block cut by three string operations; None when a row is irregular."""
  text = text.replace('\r\n', '\n').removesuffix('\n')
  if delimiter == ' ':
    text = text.replace('\t', ' ')
  # Line ends become words of their own: in a regular block they are every
  # (width + 1)-th word.
  words = text.replace('\n', f'{delimiter}\n{delimiter}').split(delimiter)
  if len(words) != count * (width + 1) - 1:
    return None
  if words[width :: width + 1].count('\n') != count - 1:
    return None
  if width == 1 and '' in words:
    return None
  columns = [words[i :: width + 1] for i in range(width)]
  if delimiter == ' ' and any('' in column for column in columns):
    return None
  return TextBlock(columns, range(first, first + count))


class _Counter:
  """Iterates over lines and knows the number of the last one taken."""

  def __init__(self, lines, first: int):
    self._lines = iter(lines)
    self.line = first - 1

  def __iter__(self):
    return self

  def __next__(self) -> str:
    line = next(self._lines)
    self.line += 1
    if '\0' in line:
      raise csv.Error('zero bytes')
    return line


def _read_rows(
  path, counter: _Counter, delimiter: str, quotes: bool
) -> Iterator[tuple[int, list[str]]]:
  """Pairs (number of the last line, fields) of the rows that are not blank."""
  if quotes:
    reader = csv.reader(counter, delimiter=delimiter, strict=True)
  else:
    separator = None if delimiter == ' ' else delimiter
    reader = (
      line.rstrip('\r\n').split(separator) if line.strip() else []
      for line in counter
    )
  while True:
    start = counter.line + 1
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


def _check_width(path, rows, width: int) -> TextBlock:
  for line, row in rows:
    if len(row) != width:
      raise ValueError(
        f'{path}, line {line}: {len(row)} fields instead of {width}: {row!r}; '
        'mend or remove the line'
      )
  columns = list(zip(*(row for _, row in rows), strict=True))
  return TextBlock(columns, [line for line, _ in rows])
