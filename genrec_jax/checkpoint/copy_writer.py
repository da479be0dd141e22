"""Updates a serving copy: by a delta in place, or by building its tables anew.

A whole delta is copied to `incoming` and verified before its first row is
written into a table. If the follower is killed in between, rows of two steps
remain; the next follower applies the same delta again, to its end, even if the
source is gone. Tables that are built anew get a directory of their own, which
POSITION.json names once they are complete; readers that have mapped the old
ones keep them.

The checksums of the blocks of a table that a delta changes are written after
its rows, and before POSITION.json names the step. A kill in between therefore
leaves checksums that the next application of the same delta renews.

Files are created where nothing is, in directories that were made here; a link
that somebody has put into the copy is not followed.

Nothing here knows of JAX.
"""

import collections
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from genrec_jax.checkpoint import (
  chain,
  manifest,
  row_files,
  serving_copy,
  storage,
)
from genrec_jax.checkpoint.errors import (
  CheckpointError,
  CopyDamagedError,
  DamagedError,
)
from genrec_jax.checkpoint.serving_copy import (
  GENERATION,
  INCOMING,
  POSITION,
  TABLES,
  CopyPosition,
)
from genrec_jax.checkpoint.staged_tables import RowWriter, StagedTables
from genrec_jax.numerics.formats import FORMATS, Formats

LOCK = 'LOCK'


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
    *,
    verify: bool = False,
    key: bytes | None = None,
  ):
    """Locks a copy, made if need be, and ends what a kill has interrupted.

    Args:
      copy: the directory.
      log: receives a line about what is unusual.
      formats: the number formats in which rows may come.
      verify: compare all tables with their checksums, however large they are.
      key: deltas whose application was interrupted must be signed with it.
    """
    self._formats, self._key = formats, key
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
      self._open_tables(verify)
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Gives the lock back."""
    self._lock.close()

  def table(self, name: str) -> np.ndarray:
    """The rows `[rows, dim]`, mapped, for reading; the bytes of packed ones."""
    rows = serving_copy.find_table(self._files, name).array.view()
    rows.flags.writeable = False
    return rows

  def read_rows(self, name: str, ids: np.ndarray) -> np.ndarray:
    """Rows `[n, dim]` of a table, after comparing the blocks they lie in.

    Raises:
      CheckpointError: they are damaged; the copy then holds nothing any more.
      ValueError: an id is no row of the table.
    """
    file = serving_copy.find_table(self._files, name)
    ids = serving_copy.check_ids(ids, name, len(file.array))
    rows = np.asarray(file.array[ids])
    try:
      file.check(file.find_blocks(ids))
    except DamagedError as e:
      self._forget_position(str(e))
      raise CheckpointError(f'{e}; the next update builds it anew') from e
    return file.unpack_rows(rows)

  @contextlib.contextmanager
  def stage_tables(
    self, base: int, tables: Mapping[str, dict]
  ) -> Iterator[StagedTables]:
    """New tables, removed again unless they were swapped in."""
    numbers = [
      int(TABLES.fullmatch(name)[1]) for name in self._table_directories()
    ]
    directory = self._copy / f'{base}-{1 + max(numbers, default=0)}'
    directory.mkdir()
    try:
      yield StagedTables(directory, tables)
    finally:
      if not self.position or self.position.directory != directory.name:
        storage.remove_directory(directory)

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
    files = serving_copy.map_tables(self._copy, position.tables, 'r+')
    for file in files.values():
      file.trust()  # the checksums were computed just now
    with self._change_generation(position.step):
      self._write_position(position)
    self._files = files
    self._remove_others()

  def receive(self, step: int) -> pathlib.Path:
    """A directory for the files of a delta."""
    self._remove_incoming()
    directory = self._copy / INCOMING / str(step)
    directory.parent.mkdir()  # here and now, not where a link might lead
    directory.mkdir()
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

  def _apply_delta(self, step: int, *, again: bool = False) -> None:
    """Writes rows into the tables, and checksums of the blocks they lie in.

    Args:
      step: which was received.
      again: it was interrupted, so the blocks may hold rows of it already.
    """
    directory = self._copy / INCOMING / str(step)
    body = manifest.read(directory, self._key)
    identity = chain.read_identity(directory)
    tables, blocks = self.position.tables, collections.defaultdict(set)
    writer = RowWriter(self._files)
    try:
      with self._change_generation(step):
        for name, table in row_files.of_tables(body, tables):
          raw = row_files.verify_file(directory, name, body)
          chunk = row_files.decode_chunk(raw, table, tables, self._formats)
          file = self._files[table]
          changed = file.find_blocks(chunk.ids)
          # New checksums must not vouch for what was damaged before.
          file.trust(changed) if again else file.check(changed)
          writer.put(chunk)
          blocks[table].update(changed.tolist())
        writer.finish()
    except CopyDamagedError as e:
      self._forget_position(str(e))
      raise
    except DamagedError as e:
      self._forget_position(f'incoming step {step} is {e}')
      raise
    for table, file in self._files.items():
      file.renew_sums(sorted(blocks[table]))
      file.flush()
    self._write_position(
      dataclasses.replace(self.position, step=step, identity=identity)
    )
    self._remove_incoming()

  def _open_generation(self) -> None:
    """Maps the counter; made once, because services have it mapped."""
    path = self._copy / GENERATION
    if not storage.is_present(path):
      self._create_generation([0, 0])
    try:
      self._generation = serving_copy.open_generation(self._copy, 'r+')
    except DamagedError as e:
      self._log(f'{e}; it is made anew')
      values = [time.time_ns() | 1, 0]
      if path.stat().st_nlink > 1:  # what has the other name is not ours
        self._create_generation(values)
      else:
        with storage.open_file(self._copy, GENERATION, write=True) as file:
          np.save(file, np.array(values))
          file.truncate()
      self._generation = serving_copy.open_generation(self._copy, 'r+')

  def _create_generation(self, values: list[int]) -> None:
    """Puts a new file into its place; services still map the old one."""
    temporary = (self._copy / GENERATION).with_suffix('.tmp')
    temporary.unlink(missing_ok=True)
    with storage.create_file(temporary) as file:
      np.save(file, np.array(values))
    temporary.rename(self._copy / GENERATION)

  def _open_tables(self, verify: bool) -> None:
    self.position, self._files = None, {}
    path = self._copy / POSITION
    if storage.is_present(path):
      try:
        position = serving_copy.read_position(self._copy)
        self._files = serving_copy.map_tables(self._copy, position.tables, 'r+')
        self.position = position
      except (OSError, ValueError) as e:
        self._forget_position(str(e))
    self._remove_others()
    self._end_delta()
    if not self.position:
      return
    try:
      self._check_tables(verify)
    except DamagedError as e:
      self._forget_position(str(e))
      return
    with self._change_generation(self.position.step):
      pass  # whatever a kill has left there

  def _check_tables(self, verify: bool) -> None:
    """Compares the tables, if they are few bytes or it is asked for."""
    tables = self.position.tables
    bare = [name for name, about in tables.items() if 'checksums' not in about]
    if bare:  # a copy of an earlier version
      tables = {
        name: about | {'checksums': serving_copy.name_sums(about['file'])}
        for name, about in tables.items()
      }
      for name in bare:
        self._files[name].create_sums(self._copy / tables[name]['checksums'])
      self._files = serving_copy.map_tables(self._copy, tables, 'r+')
      self._write_position(dataclasses.replace(self.position, tables=tables))
    size = sum(file.nbytes for file in self._files.values())
    if verify or size <= serving_copy.WHOLE_BYTES:
      for file in self._files.values():
        file.check()

  def _end_delta(self) -> None:
    """Applies a delta once more whose follower was killed meanwhile."""
    incoming = self._copy / INCOMING
    for step in [] if incoming.is_symlink() else manifest.list_steps(incoming):
      try:
        body = manifest.read(incoming / str(step), self._key)
        at = self.position and (self.position.step, self.position.identity)
        if chain.read_parents(body)[-1:] == [at]:
          self._apply_delta(step, again=True)
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
    self.position, self._files = None, {}
    (self._copy / POSITION).unlink(missing_ok=True)

  def _table_directories(self) -> list[str]:
    """Of tables, in use or not."""
    return [p.name for p in self._copy.iterdir() if TABLES.fullmatch(p.name)]

  def _remove_others(self) -> None:
    for name in self._table_directories():
      if not self.position or name != self.position.directory:
        storage.remove_directory(self._copy / name)

  def _remove_incoming(self) -> None:
    storage.remove_directory(self._copy / INCOMING, ignore_errors=True)


def _lock_copy(copy: pathlib.Path):
  """LOCK, open: it is free again when this process ends, however it does."""
  try:
    lock = storage.open_lock(copy / LOCK)
  except OSError as e:
    raise CheckpointError(
      f'{copy / LOCK} cannot be opened ({e.strerror or e}); give a new '
      'directory'
    ) from e
  if os.fstat(lock.fileno()).st_nlink > 1:  # it would be written to
    lock.close()
    raise CheckpointError(
      f'{copy / LOCK} has another name, too; give a new directory'
    )
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    other = lock.read(200)
    lock.close()
    raise CheckpointError(
      f'{copy} has a follower already, {other}; each follower needs a copy of '
      'its own'
    ) from None
  lock.truncate(0)
  lock.write(f'process {os.getpid()} of {socket.gethostname()}')
  lock.flush()
  return lock
