"""Criteo's logs (Kaggle `train.txt`, Terabyte `day_0` .. `day_23`, also .gz).

Between tabs, without a header: the label, 13 numbers and 26 categories, any of
which may be empty. Files without labels begin with the numbers.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.data import text
from genrec_jax.data.ranking import csv_files, raw

NUMBERS = tuple(f'I{i}' for i in range(1, 14))
CATEGORIES = tuple(f'C{i}' for i in range(1, 27))
FEATURES = {
  **{name: {'kind': 'numeric'} for name in NUMBERS},
  **{name: {'kind': 'categorical'} for name in CATEGORIES},
}
SUFFIXES = ('.txt', '.txt.gz', '.tsv', '.tsv.gz')
BARE = True


def read_names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file, with the label or without it."""
  del reading
  columns = ['label', *NUMBERS, *CATEGORIES]
  path = text.require_file(path)
  for block in text.read_blocks(path, '\t', rows=1):
    fields = len(block.columns)
    if fields == len(columns):
      return columns
    if fields == len(columns) - 1:
      return columns[1:]
    raise ValueError(
      f'{path}, line {block.lines[0]}: {fields} fields between tabs; rows of '
      f'Criteo have {len(columns)}, or {len(columns) - 1} without the label'
    )
  raise ValueError(f'{path}: the file holds no rows')


def read_chunks(
  path: pathlib.Path, column_names: Sequence[str], reading: Mapping[str, str]
) -> Iterator[raw.RawChunk]:
  """Rows of a file, the columns `column_names` alone."""
  columns = read_names(path, reading)
  index = csv_files.find_columns(path, column_names, columns)
  options = dict(rows=raw.CHUNK_ROWS, width=len(columns))
  for block in text.read_blocks(path, '\t', **options):
    yield csv_files.from_block(path, block, index)


def default_features(
  path: pathlib.Path, reading: Mapping[str, str]
) -> dict[str, dict]:
  """Options of all features, the same for every file."""
  del path, reading
  return FEATURES
