"""CSV files with a header, as FuxiCTR and BARS lay them out."""

import collections
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import raw

SUFFIXES = ('.csv', '.csv.gz', '.tsv', '.tsv.gz')
BARE = False


def read_names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file."""
  delimiter = reading['delimiter']
  text.check_delimiter(delimiter)
  columns = text.read_header(text.require_file(path), delimiter)
  name = find_twin(columns)
  if name is not None:
    raise ValueError(
      f'{path}: column {quote(name)} stands twice in the header; rename one'
    )
  return columns


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
        + (text.hint_delimiter(known) or hint_nearest(name, known))
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
  options = dict(quotes=True, skip=1, rows=raw.CHUNK_ROWS, width=len(header))
  for block in text.read_blocks(path, reading['delimiter'], **options):
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
