"""Updates a serving copy: by a delta in place, or by building its tables anew.

A whole delta is copied to `incoming` and verified before its first row is
written into a table. If the follower is killed in between, rows of two steps
remain; the next follower applies the same delta again, to its end, even if the
source is gone. Tables that are built anew get a directory of their own, which
POSITION.json names once they are complete; readers that have mapped the old
ones keep them.

Nothing here knows of JAX.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from genrec_jax.checkpoint import (
  chain,
  manifest,
  row_files,
  serving_copy,
  storage,
)
from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.manifest import CheckpointError, DamagedError
from genrec_jax.checkpoint.serving_copy import POSITION, CopyPosition
from genrec_jax.numerics.formats import FORMATS, Formats

INCOMING, LOCK = 'incoming', 'LOCK'
_TABLES = re.compile(r'\d+-(\d+)')


class StagedTables:
  """Tables that nobody sees yet.

  Attributes:
    directory: of the tables.
    tables: name -> {'rows', 'dim', 'dtype', 'file'}.
  """

  def __init__(self, directory: pathlib.Path, tables: Mapping[str, dict]):
    self.directory = directory
    self.tables = {
      name: {key: about[key] for key in ('rows', 'dim', 'dtype')}
      | {'file': f'{directory.name}/{row_files.file_name(name)}.npy'}
      for name, about in tables.items()
    }
    self._arrays = {
      name: _create_table(directory.parent / about['file'], about)
      for name, about in self.tables.items()
    }
    self._columns = {  # of each row that are there
      name: np.zeros(len(array), np.int32)
      for name, array in self._arrays.items()
    }

  def put(self, chunk: RowChunk) -> None:
    _write_chunk(self._arrays, chunk)
    if self._columns:
      self._columns[chunk.table][chunk.ids] += chunk.values.shape[1]

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
    """Forces all to the disk."""
    for array in self._arrays.values():
      array.flush()
    storage.sync_path(self.directory)


class ReplicaWriter:
  """A copy as its follower sees it.

  Attributes:
    position: what it holds; None for nothing.
  """

  def __init__(
    self,
    copy: str | os.PathLike,
    log: Callable[[str], object],
    formats: Formats = FORMATS,
  ):
    """Locks a copy, made if need be, and ends what a kill has interrupted.

    Args:
      copy: the directory.
      log: receives a line about what is unusual.
      formats: the number formats in which rows may come.
    """
    self._formats = formats
    if '://' in os.fspath(copy):
      raise CheckpointError(f'{copy}: a copy is mapped, and so lies on a disk')
    self._copy = pathlib.Path(copy).absolute()
    self._log = log
    self._copy.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in self._copy.iterdir()} - {'lost+found'}
    if names and LOCK not in names:
      raise CheckpointError(
        f'{self._copy} is not empty, and no serving copy; give a new directory'
      )
    self._lock = _lock_copy(self._copy)
    try:
      self._open_generation()
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Gives the lock back."""
    self._lock.close()

  def table(self, name: str) -> np.ndarray:
    """The rows `[rows, dim]`, mapped, for reading."""
    rows = serving_copy.find_table(self._arrays, name).view()
    rows.flags.writeable = False
    return rows

  @contextlib.contextmanager
  def stage_tables(
    self, base: int, tables: Mapping[str, dict]
  ) -> Iterator[StagedTables]:
    """New tables, removed again unless they were swapped in."""
    numbers = [
      int(_TABLES.fullmatch(name)[1]) for name in self._table_directories()
    ]
    directory = self._copy / f'{base}-{1 + max(numbers, default=0)}'
    directory.mkdir()
    try:
      yield StagedTables(directory, tables)
    finally:
      if not self.position or self.position.directory != directory.name:
        shutil.rmtree(directory)

  def swap_tables(self, building: StagedTables, **position) -> None:
    """New tables take the place of the old ones.

    Args:
      building: the tables.
      **position: the attributes of `CopyPosition` that do not follow from them.
    """
    building.sync()
    position = CopyPosition(
      **position, directory=building.directory.name, tables=building.tables
    )
    arrays = serving_copy.map_tables(self._copy, position.tables, 'r+')
    with self._change_generation(position.step):
      self._write_position(position)
    self._arrays = arrays
    self._remove_others()

  def receive(self, step: int) -> pathlib.Path:
    """A directory for the files of a delta."""
    self._remove_incoming()
    directory = self._copy / INCOMING / str(step)
    directory.mkdir(parents=True)
    return directory

  def apply(self, step: int, about: bytes) -> None:
    """Brings what was received into the tables.

    Args:
      step: which was received.
      about: its manifest.

    Raises:
      DamagedError: what was received has changed. As rows of it may be in the
        tables, the copy then holds nothing any more.
    """
    directory = self._copy / INCOMING / str(step)
    # After a power cut the tables may hold rows of it, and this must tell so;
    # the rest need not be on the disk, as it would be found damaged.
    storage.write_file(directory / manifest.NAME, about)
    storage.sync_path(directory.parent)
    storage.sync_path(self._copy)
    self._apply_delta(step)

  def _apply_delta(self, step: int) -> None:
    directory = self._copy / INCOMING / str(step)
    body, identity = manifest.read(directory), chain.read_identity(directory)
    tables = self.position.tables
    try:
      with self._change_generation(step):
        for name, table in row_files.of_tables(body, tables):
          raw = row_files.verify_file(directory, name, body)
          chunk = row_files.decode_chunk(raw, table, tables, self._formats)
          _write_chunk(self._arrays, chunk)
    except DamagedError as e:
      self._forget_position(f'incoming step {step} is {e}')
      raise
    for array in self._arrays.values():
      array.flush()
    self._write_position(
      dataclasses.replace(self.position, step=step, identity=identity)
    )
    self._remove_incoming()

  def _open_generation(self) -> None:
    self.position, self._arrays = None, {}
    path = self._copy / serving_copy.GENERATION
    if not path.exists():  # and never again: services have it mapped
      temporary = path.with_suffix('.tmp')
      with temporary.open('wb') as f:
        np.save(f, np.zeros(2, np.int64))
      temporary.rename(path)
    self._generation = np.load(path, mmap_mode='r+')
    if (self._copy / POSITION).exists():
      try:
        position = serving_copy.read_position(self._copy)
        self._arrays = serving_copy.map_tables(
          self._copy, position.tables, 'r+'
        )
        self.position = position
      except (OSError, ValueError) as e:
        self._forget_position(str(e))
    self._remove_others()
    self._end_delta()
    if self.position:
      with self._change_generation(self.position.step):
        pass  # whatever a kill has left there

  def _end_delta(self) -> None:
    """Applies a delta once more whose follower was killed meanwhile."""
    for step in manifest.list_steps(self._copy / INCOMING):
      try:
        body = manifest.read(self._copy / INCOMING / str(step))
        at = self.position and (self.position.step, self.position.identity)
        if chain.read_parents(body)[-1:] == [at]:
          self._apply_delta(step)
          self._log(f'step {step}: applied to its end after an interruption')
      except manifest.IncompleteError:
        pass  # nothing of it is in the tables
      except DamagedError as e:
        if self.position:
          self._forget_position(f'incoming step {step} is {e}')
    self._remove_incoming()

  @contextlib.contextmanager
  def _change_generation(self, step: int) -> Iterator[None]:
    """What services see of a change: an odd generation, until it is done."""
    self._generation[0] += 1 - self._generation[0] % 2
    yield
    self._generation[1] = step
    self._generation[0] += 1

  def _write_position(self, position: CopyPosition) -> None:
    storage.write_file(self._copy / POSITION, position.to_bytes())
    self.position = position

  def _forget_position(self, why: str) -> None:
    self._log(f'the tables will be built anew: {why}')
    self.position = None
    (self._copy / POSITION).unlink(missing_ok=True)

  def _table_directories(self) -> list[str]:
    """Of tables, in use or not."""
    return [p.name for p in self._copy.iterdir() if _TABLES.fullmatch(p.name)]

  def _remove_others(self) -> None:
    for name in self._table_directories():
      if not self.position or name != self.position.directory:
        shutil.rmtree(self._copy / name)

  def _remove_incoming(self) -> None:
    shutil.rmtree(self._copy / INCOMING, ignore_errors=True)


def _write_chunk(arrays: Mapping[str, np.ndarray], chunk: RowChunk) -> None:
  array = arrays[chunk.table]
  width = chunk.values.shape[1]
  if width == array.shape[1]:
    array[chunk.ids] = chunk.values
  else:
    columns = slice(chunk.first_column, chunk.first_column + width)
    array[chunk.ids, columns] = chunk.values


def _create_table(path: pathlib.Path, about: dict) -> np.ndarray:
  """A new table on the disk, mapped."""
  dtype = np.dtype(about['dtype'])
  stored = dtype if dtype.isbuiltin == 1 else np.dtype(f'u{dtype.itemsize}')
  shape = about['rows'], about['dim']
  array = np.lib.format.open_memmap(path, 'w+', stored, shape)
  # Where a disk is full, writing to a mapping would end the process.
  if hasattr(os, 'posix_fallocate'):
    with path.open('r+b') as f:
      os.posix_fallocate(f.fileno(), 0, path.stat().st_size)
  return array if stored == dtype else array.view(dtype)


def _lock_copy(copy: pathlib.Path):
  """LOCK, open: it is free again when this process ends, however it does."""
  lock = (copy / LOCK).open('a+')
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    lock.seek(0)
    other = lock.read()
    lock.close()
    raise CheckpointError(
      f'{copy} has a follower already, {other}; each follower needs a copy of '
      'its own'
    ) from None
  lock.truncate(0)
  lock.write(f'process {os.getpid()} of {socket.gethostname()}')
  lock.flush()
  return lock
