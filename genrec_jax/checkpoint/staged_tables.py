"""Tables of a serving copy that are being built, and rows written into tables.

Rows may come a few columns at a time, from devices that have these. A packed
row needs all of its numbers: of a base they wait in a file, of a delta in
memory.
"""

import collections
import pathlib
from collections.abc import Mapping

import numpy as np

from genrec_jax.checkpoint import serving_copy, storage
from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.errors import DamagedError
from genrec_jax.checkpoint.table_file import TableFile, create_table

_ABOUT = ('rows', 'dim', 'dtype', 'packed')
_PACKED_ROWS = 1 << 16  # packed at a time


class StagedTables:
  """Tables that nobody sees yet.

  Attributes:
    directory: of the tables.
    tables: name -> {'rows', 'dim', 'dtype', 'file', 'checksums'}, and 'packed'
      of those whose rows are.
  """

  def __init__(self, directory: pathlib.Path, tables: Mapping[str, dict]):
    self.directory = directory
    self.tables = {
      name: {key: about[key] for key in _ABOUT if key in about}
      | serving_copy.name_files(directory.name, name)
      for name, about in tables.items()
    }
    self._files = {}
    for name, about in self.tables.items():
      create_table(directory.parent / about['file'], about)
      unsummed = {key: about[key] for key in about if key != 'checksums'}
      self._files[name] = TableFile(directory.parent, unsummed, 'r+')
    self._writer = RowWriter(self._files)
    # Tables that came in whole rows; the numbers of other packed ones.
    self._whole, self._numbers = set(), {}
    self._columns = {  # of each row that are there
      name: np.zeros(about['rows'], np.int32)
      for name, about in self.tables.items()
    }

  def put(self, chunk: RowChunk) -> None:
    file, width = self._files[chunk.table], chunk.values.shape[1]
    # A row can be packed once all its columns are there.
    part = file.is_packed and width < file.columns
    if part and chunk.table not in self._whole:
      self._keep_numbers(chunk.table)
    if chunk.table in self._numbers:
      columns = slice(chunk.first_column, chunk.first_column + width)
      self._numbers[chunk.table][chunk.ids, columns] = chunk.values
    else:
      self._writer.put(chunk)
      self._whole.add(chunk.table)
    if self._columns:
      self._columns[chunk.table][chunk.ids] += chunk.values.shape[1]

  def finish_step(self) -> None:
    """After all chunks of a step."""
    self._writer.finish()

  def check_whole(self) -> None:
    """After the base: DamagedError if it lacks rows, or columns of them."""
    for name, columns in self._columns.items():
      wrong = np.count_nonzero(columns != self.tables[name]['dim'])
      if wrong:
        raise DamagedError(
          f'damaged: it lacks {wrong:,} rows of table {name!r}'
        )
    self._columns = {}

  def sync(self) -> None:
    """Forces all to the disk, with checksums of what was put."""
    for name, numbers in self._numbers.items():
      for start in range(0, len(numbers), _PACKED_ROWS):
        some = slice(start, start + _PACKED_ROWS)
        self._files[name].write_rows(some, numbers[some])
      self._numbers_path(name).unlink()
    self._numbers = {}
    for name, file in self._files.items():
      file.create_sums(self.directory.parent / self.tables[name]['checksums'])
      file.flush()
    storage.sync_path(self.directory)

  def _keep_numbers(self, table: str) -> None:
    """Begins a file for the numbers of a table, packed by `sync`."""
    if table in self._numbers:
      return
    about = self.tables[table]
    path = self._numbers_path(table)
    plain = {'rows': about['rows'], 'dim': about['dim'], 'dtype': 'float32'}
    create_table(path, plain)
    name = str(path.relative_to(self.directory.parent))
    file = TableFile(self.directory.parent, plain | {'file': name}, 'r+')
    self._numbers[table] = file.array

  def _numbers_path(self, table: str) -> pathlib.Path:
    path = self.directory.parent / self.tables[table]['file']
    return path.with_suffix('.numbers.npy')


class RowWriter:
  """Writes rows, or some columns of rows, into their tables."""

  def __init__(self, files: Mapping[str, TableFile]):
    self._files = files
    self._parts = collections.defaultdict(list)  # of packed rows

  def put(self, chunk: RowChunk) -> None:
    """Writes a chunk; parts of packed rows wait for `finish`."""
    file, width = self._files[chunk.table], chunk.values.shape[1]
    if width == file.columns:
      file.write_rows(chunk.ids, chunk.values)
    elif file.is_packed:
      self._parts[chunk.table].append(chunk)
    else:
      columns = slice(chunk.first_column, chunk.first_column + width)
      file.array[chunk.ids, columns] = chunk.values

  def finish(self) -> None:
    """After all chunks of a step; DamagedError where columns are missing."""
    for table, chunks in self._parts.items():
      file = self._files[table]
      file.write_rows(*join_columns(chunks, file.columns))
    self._parts.clear()


def join_columns(
  chunks: list[RowChunk], columns: int
) -> tuple[np.ndarray, np.ndarray]:
  """Ids and whole rows of chunks that have some of their columns each.

  Raises:
    DamagedError: columns of a row are missing.
  """
  ids = np.unique(np.concatenate([chunk.ids for chunk in chunks]))
  rows = np.zeros((len(ids), columns), np.float32)
  there = np.zeros(len(ids), np.int64)
  for chunk in chunks:
    at, width = np.searchsorted(ids, chunk.ids), chunk.values.shape[1]
    rows[at, chunk.first_column : chunk.first_column + width] = chunk.values
    there[at] += width
  if np.any(there != columns):
    raise DamagedError(
      f'damaged: rows of table {chunks[0].table!r} lack columns'
    )
  return ids, rows
