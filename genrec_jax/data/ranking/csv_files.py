"""CSV files with a header, as FuxiCTR and BARS lay them out."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text
from genrec_jax.data.ranking import raw

SUFFIXES = ('.csv', '.csv.gz', '.tsv', '.tsv.gz')
BARE = False


def names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file."""
  delimiter = reading['delimiter']
  if len(delimiter) != 1:
    raise ValueError(f'data.delimiter must be one character, not {delimiter!r}')
  columns = text.read_header(text.require_file(path), delimiter)
  for name in columns:
    if columns.count(name) > 1:
      raise ValueError(
        f'{path}: column {name!r} stands twice in the header; rename one'
      )
  return columns


def positions(
  path: pathlib.Path, wanted: Sequence[str], found: Sequence[str]
) -> dict[str, int]:
  """Where the wanted columns are, or an error with the nearest name."""
  for name in wanted:
    if name not in found:
      raise ValueError(
        f'{path}: no column {name!r}; the columns are {", ".join(found)}'
        + (text.hint_delimiter(found) or hint_nearest(name, found))
      )
  return {name: found.index(name) for name in wanted}


def chunks(
  path: pathlib.Path, wanted: Sequence[str], reading: Mapping[str, str]
) -> Iterator[raw.RawChunk]:
  """Rows of a file (also `.gz`), the columns `wanted` alone.

  Cells may be quoted; rows may end in LF or CR LF; blank lines are left out.
  """
  header = names(path, reading)
  index = positions(path, wanted, header)
  options = dict(quotes=True, skip=1, rows=raw.CHUNK_ROWS, width=len(header))
  for block in text.read_blocks(path, reading['delimiter'], **options):
    yield from_block(path, block, index)


def defaults(path: pathlib.Path, reading: Mapping[str, str]) -> dict[str, dict]:
  """Every column is a category."""
  return {name: {'kind': 'categorical'} for name in names(path, reading)}


def from_block(
  path, block: text.TextBlock, index: dict[str, int]
) -> raw.RawChunk:
  """Columns of a block of text fields, by name."""
  return raw.RawChunk(
    {name: block.columns[i] for name, i in index.items()},
    len(block.lines),
    lambda i: f'{path}, line {block.lines[i]}',
  )
