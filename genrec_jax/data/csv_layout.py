"""How the rows of a CSV file are laid out: the delimiter, maybe a header.

Where nobody says it, the first rows do. A file without a header has columns
that are called by their numbers, '0', '1' and so on.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from genrec_jax.config.loading import fold_name, hint_nearest
from genrec_jax.data import fields, text
from genrec_jax.data.quoting import quote

PAIR = '::'  # of MovieLens, between cells without quotes
MARKS = {',': "','", '\t': 'tabs', ';': "';'", '|': "'|'", PAIR: "'::'"}
HEADERS = ('auto', 'yes', 'no')
_LOOKED_AT = 20  # rows whose widths must agree, in a file without a header


@dataclasses.dataclass(frozen=True)
class CsvLayout:
  """The layout of one file.

  Attributes:
    delimiter: between the fields.
    names: of the columns; without a header, their numbers.
    has_header: whether the first row has the names.
  """

  delimiter: str
  names: list[str]
  has_header: bool

  def describe(self, path) -> str:
    """For the log; '' for the usual layout, a header with commas."""
    said = []
    if self.delimiter != ',':
      mark = MARKS.get(self.delimiter, repr(self.delimiter))
      said.append(f'fields are separated by {mark}')
    if not self.has_header:
      count = len(self.names)
      said.append(f'no header, so the {count} columns count from 0')
    return f'{path}: {"; ".join(said)}' if said else ''


def read_delimiter(word: str) -> str:
  r"""The delimiter that a setting means; '' is that of the file.

  >>> read_delimiter('tab'), read_delimiter('\\t'), read_delimiter(';')
  ('\t', '\t', ';')

  Raises:
    ValueError: it cannot stand between the fields of a CSV file.
  """
  mark = {'tab': '\t', '\\t': '\t'}.get(word.lower(), word)
  if mark not in ('', PAIR) and (len(mark) != 1 or mark in '"\r\n\0'):
    raise ValueError(
      f"data.delimiter must be {PAIR!r} or one character, and no quote or line "
      f"end, not {word!r}; '' takes that of the file"
    )
  return mark


def find_layout(
  path: pathlib.Path,
  wanted: Sequence[str],
  delimiter: str = '',
  header: str = 'auto',
  usual: str = ',',
) -> CsvLayout:
  """The layout of a file (maybe .gz), by what is wanted of it.

  Args:
    path: the file.
    wanted: columns that the file should have.
    delimiter: of `config.data`; '' chooses the one that gives these columns.
    header: of `config.data`, one of HEADERS: whether there is one; 'auto' where
      the columns that are wanted are not all numbers. If they are, a header is
      only what numbers all columns: 0,1,2 and so on.
    usual: delimiter that is preferred where several are possible.

  Raises:
    ValueError: the file cannot be read, or several delimiters are possible.
  """
  word = {'true': 'yes', 'false': 'no'}.get(header.lower(), header.lower())
  if word not in HEADERS:
    raise ValueError(
      f'data.header is {header!r}, must be one of {", ".join(HEADERS)}'
      + hint_nearest(header, HEADERS)
    )
  layout = _find_layout(path, wanted, read_delimiter(delimiter), word, usual)
  if word == 'auto' and not layout.has_header:
    _refuse_header(path, layout)
  return layout


def find_layouts(
  paths: Sequence[pathlib.Path],
  wanted: Sequence[str],
  delimiter: str = '',
  header: str = 'auto',
) -> list[CsvLayout]:
  """The layouts of files that are read as one log; arguments as above.

  What the first file shows is looked for in the others, so that each of them is
  opened for a line or two; one that differs is looked at as if it stood alone.

  Raises:
    ValueError: also where a column has not the same place in all files, none of
      which names it.
  """
  options = dict(delimiter=delimiter, header=header)
  first = find_layout(paths[0], wanted, **options)
  layouts = [first]
  for path in paths[1:]:
    layout = _find_alike(path, wanted, header, first)
    if layout is None:
      layout = find_layout(path, wanted, **options)
    _check_alike(paths[0], first, path, layout)
    layouts.append(layout)
  return layouts


def _find_alike(path, wanted, header, first: CsvLayout) -> CsvLayout | None:
  """The layout of a file if it is that of the first one; None if it is not."""
  try:
    layout = find_layout(path, wanted, first.delimiter, header)
  except ValueError:  # which another delimiter may mend
    return None
  if not layout.has_header:
    return layout if len(layout.names) == len(first.names) else None
  return layout if _has_columns(layout, wanted) else None


def _check_alike(path, layout: CsvLayout, other_path, other: CsvLayout) -> None:
  if layout.has_header != other.has_header:
    raise ValueError(
      f'{other_path} and {path}: one has a header and the other none, as far '
      'as their first lines say; set --config.data.header to yes or no'
    )
  width, other_width = len(layout.names), len(other.names)
  if not layout.has_header and width != other_width:
    raise ValueError(
      f'{path} has {width} columns and {other_path} has {other_width}: columns '
      'without a header are known by their places, so give all files of a '
      'directory the same columns'
    )


def _find_layout(path, wanted, mark: str, word: str, usual: str) -> CsvLayout:
  if mark:
    return _cut_header(path, mark, wanted, word)
  layouts, problem = {}, None
  for mark in dict.fromkeys((usual, *MARKS)):
    try:
      layout = layouts[mark] = _cut_header(path, mark, wanted, word)
    except ValueError as e:  # quotes before another delimiter
      problem = problem or e
      continue
    if mark == usual and layout.has_header and _has_columns(layout, wanted):
      return layout
  chosen = layouts[_choose_mark(path, layouts, wanted)] if layouts else None
  if problem and (chosen is None or len(chosen.names) == 1):
    raise problem
  return chosen


def _cut_header(path, mark: str, wanted, header: str) -> CsvLayout:
  names = text.read_header(path, mark)
  numbers = [str(i) for i in range(len(names))]
  if header == 'auto':
    by_number = bool(wanted) and all(name.isdecimal() for name in wanted)
    header = 'no' if by_number and names != numbers else 'yes'
  has_header = header == 'yes'
  return CsvLayout(mark, names if has_header else numbers, has_header)


def _refuse_header(path, layout: CsvLayout) -> None:
  """Raises a ValueError if the first row seems to name columns by words.

  It would be one more event, of a user and an item that nobody knows.
  """
  options = dict(quotes=True, rows=_LOOKED_AT, width=len(layout.names))
  block = next(text.read_blocks(path, layout.delimiter, **options), None)
  for number, column in enumerate(block.columns if block else ()):
    name, *values = column
    if name and values and looks_like_data(values, every=True):
      if not looks_like_data([name]):
        raise ValueError(
          f'{path}, line 1: {quote(name)} seems to be the name of column '
          f'{number}, below which there are numbers or dates: give the columns '
          'by their names, or set --config.data.header=no if this line is data'
        )


def _has_columns(layout: CsvLayout, wanted: Sequence[str]) -> bool:
  return bool(wanted) and set(wanted) <= set(layout.names)


def _choose_mark(path, layouts: dict[str, CsvLayout], wanted) -> str:
  """The delimiter of a file, or where it has none the best one to complain."""
  whole = [m for m, x in layouts.items() if _has_columns(x, wanted)]
  if whole and not layouts[whole[0]].has_header:
    whole = [m for m in whole if _is_regular(path, layouts[m])]
  if len(whole) > 1 and PAIR in whole:
    whole.remove(PAIR)  # it may stand in the cells, as in std::vector
  if len(whole) > 1:
    marks = ' or '.join(MARKS[mark] for mark in whole)
    raise ValueError(
      f'{path}: the fields may be separated by {marks}; set '
      '--config.data.delimiter to the one that is meant'
    )
  # None has all columns, and what is said of them should be of the right ones.
  folded = {fold_name(name) for name in wanted}

  def count_names(mark):
    names = layouts[mark].names
    known = folded & {fold_name(name) for name in names}
    return len(known), len(names) > 1, mark == next(iter(layouts))

  return whole[0] if whole else max(layouts, key=count_names)


def _is_regular(path, layout: CsvLayout) -> bool:
  """Whether the first rows have several fields, and all as many."""
  options = dict(quotes=True, rows=_LOOKED_AT, width=len(layout.names))
  rows = text.read_blocks(path, layout.delimiter, **options)
  try:
    return len(layout.names) > 1 and bool(next(rows))
  except ValueError:
    return False


def hint_column(name: str, names: Sequence[str]) -> str:
  """What may be wrong where a file has no column of a name, or ''.

  >>> hint_column('user', ['17', 'a-5', '2024-03-01'])[:36]
  '; the first line looks like data: if'
  """
  marks = [mark for mark in MARKS if len(names) == 1 and mark in names[0]]
  if marks:
    return (
      f'; are the fields separated by {marks[0]!r}? Set '
      f'--config.data.delimiter={marks[0]!r}'
    )
  if looks_like_data(names):
    return (
      '; the first line looks like data: if the file has no header, give all '
      'columns by number, from 0'
    )
  return hint_nearest(name, names)


def looks_like_data(names: Sequence[str], *, every: bool = False) -> bool:
  """Whether numbers or dates stand where a header has names: any, or all."""
  are_data = fields.parse_times(names, 's')[1] | fields.parse_ratings(names)[1]
  return bool(are_data.all() if every else are_data.any())
