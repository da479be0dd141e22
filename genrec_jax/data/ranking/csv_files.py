"""CSV files, as FuxiCTR and BARS lay them out, or without a header.

`reading` remembers what was settled for the training file:

  delimiter  between the fields; '' is not settled yet
  columns    how many there are, where no header names them
  decimal    the decimal mark, where it is no point
"""

import collections
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from genrec_jax.data import csv_layout, decimals, text
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import raw

SUFFIXES = ('.csv', '.csv.gz', '.tsv', '.tsv.gz')
BARE = False


def read_names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file."""
  header = 'no' if 'columns' in reading else 'yes'
  layout = csv_layout.find_layout(
    text.require_file(path), (), reading['delimiter'], header
  )
  return _check_names(path, layout, reading.get('columns', len(layout.names)))


def _check_names(path, layout: csv_layout.CsvLayout, count: int) -> list[str]:
  name = find_twin(layout.names)
  if name is not None:
    is_data = csv_layout.looks_like_data(layout.names)
    raise ValueError(
      f'{path}: column {quote(name)} stands twice in the header; rename one'
      + (csv_layout.hint_column(name, layout.names) if is_data else '')
    )
  if count != len(layout.names):
    raise ValueError(
      f'{path}: the first row has {len(layout.names)} fields, those of the '
      f'training file have {count}; columns without a header are known by '
      'their places, so leave the cells of a label that is not known empty'
    )
  return layout.names


def settle_layout(
  path: pathlib.Path,
  reading: Mapping[str, str],
  wanted: Sequence[str],
  header: str,
  log: Callable[[str], None],
) -> dict[str, str]:
  """`reading` with the delimiter of a file, and whether it has a header.

  Args:
    path: the file.
    reading: the format and its options.
    wanted: columns that the file should have.
    header: as in `csv_layout.find_layout`.
    log: called with what the file has decided.
  """
  layout = csv_layout.find_layout(
    text.require_file(path), wanted, reading['delimiter'], header
  )
  if said := layout.describe(path):
    log(said)
  settled = {**reading, 'delimiter': layout.delimiter}
  return settled | ({} if layout.has_header else {'columns': len(layout.names)})


def find_twin(names: Sequence[str]) -> str | None:
  """The first name that two columns have."""
  counts = collections.Counter(names)
  return next((name for name in names if counts[name] > 1), None)


def find_columns(
  path: pathlib.Path, column_names: Sequence[str], known: Sequence[str]
) -> dict[str, int]:
  """Where the wanted columns are, or an error with the nearest name."""
  index = {column: i for i, column in enumerate(known)}
  for name in column_names:
    if name not in index:
      raise ValueError(
        f'{path}: no column {name!r}; the columns are {list_names(known)}'
        + csv_layout.hint_column(name, known)
      )
  return {name: index[name] for name in column_names}


def read_chunks(
  path: pathlib.Path, column_names: Sequence[str], reading: Mapping[str, str]
) -> Iterator[raw.RawChunk]:
  """Rows of a file (also `.gz`), the columns `column_names` alone.

  Cells may be quoted; rows may end in LF or CR LF; blank lines are left out.
  """
  header = read_names(path, reading)
  index = find_columns(path, column_names, header)
  options = dict(
    quotes=True,
    skip=int('columns' not in reading),
    rows=raw.CHUNK_ROWS,
    width=len(header),
  )
  decimal = reading.get('decimal', '.')
  for block in text.read_blocks(path, reading['delimiter'], **options):
    block = decimals.read_points(block, decimal)
    yield from_block(path, block, index)


def default_features(
  path: pathlib.Path, reading: Mapping[str, str]
) -> dict[str, dict]:
  """Text, so that what is in it decides; see `formats.guess_features`."""
  return {name: {'kind': 'categorical'} for name in read_names(path, reading)}


def from_block(
  path, block: text.TextBlock, index: dict[str, int]
) -> raw.RawChunk:
  """Columns of a block of text fields, by name."""
  return raw.RawChunk(
    {name: block.columns[i] for name, i in index.items()},
    len(block.lines),
    lambda i: f'{path}, line {block.lines[i]}',
  )
