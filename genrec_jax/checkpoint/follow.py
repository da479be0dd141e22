"""Keeps a serving copy of the tables that a run publishes.

    python -m genrec_jax.checkpoint.follow SOURCE COPY [--tables a,b]
        [--packed a=tbe_int4] [--poll 10] [--once] [--verify] [--key-file KEY]

SOURCE is the workdir of a run that publishes (config.checkpoint.publish), or a
directory of checkpoints that were saved by rows. COPY is a directory that only
this follower writes (serving_copy.py) and services map, as docs/publishing.md
explains. Prints a line for every step applied. Needs neither JAX nor a device.

Exits with status 130 on Ctrl-C; with 0 on SIGTERM, and after --once if COPY
holds the newest complete step; with 1 after --once if it does not, because that
step is damaged or nothing is published; with 2 if it cannot continue (no such
table, another follower, no space); with 70 on a bug, whose traceback is in
COPY/error.log.
"""

import signal

from genrec_jax import interruption

if __name__ == '__main__':  # other imports take the time of a Ctrl-C
  # SIGTERM is how a service ends. Ctrl-C too: shells start what runs in the
  # background without it.
  interruption.install(
    {signal.SIGINT: 130, signal.SIGTERM: interruption.DONE}, heed_ignored=True
  )
  interruption.keep(lambda: 'to go on, start it again')

import argparse
import contextlib
import os
import pathlib
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax import last_resort
from genrec_jax.checkpoint import (
  chain,
  copy_writer,
  manifest,
  row_files,
  signing,
  storage,
)
from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.manifest import (
  CheckpointError,
  DamagedError,
  IncompleteError,
)
from genrec_jax.numerics.formats import FORMATS, Formats
from genrec_jax.numerics.packed_formats import PACKED_FORMATS

PUBLISHED = 'published'
_LOOKS = 5  # of an update, at a directory where something is in the way
_SLICE_S = 0.2

Line = list[tuple[int, int]]  # (step, identity), each made from those before


class Follower(contextlib.AbstractContextManager):
  """Brings a copy to the newest step of a directory, again and again.

  Attributes:
    source: the workdir or directory that is followed.
    refused: step -> what is wrong with it, of the last update: steps newer than
      the copy's that could not be applied.
  """

  def __init__(
    self,
    source: str | os.PathLike,
    copy: str | os.PathLike,
    *,
    tables: Sequence[str] | None = None,
    packed: Mapping[str, str] | None = None,
    log: Callable[[str], object] = print,
    formats: Formats = FORMATS,
    key_file: str | os.PathLike = '',
    verify: bool = False,
  ):
    """Locks the copy; nothing is read of the source before `update`.

    Args:
      source: the workdir of a run, or a directory of checkpoints; it need not
        be there yet.
      copy: a directory of this follower alone, made if need be.
      tables: names of those to copy; None for all.
      packed: table -> the format in which the copy has its rows, a key of
        `packed_formats.PACKED_FORMATS`, such as 'tbe_int8', 'tbe_int4' or
        'tbe_int2'; others keep the numbers they come in.
      log: receives a line about every step applied and all that is unusual.
      formats: the number formats in which rows may come, see
        `numerics.formats.extend_formats`.
      key_file: file with the key with which the run signs what it publishes;
        steps that are not signed with it are refused. '' accepts all steps.
      verify: read the whole copy and compare it with its checksums, however
        large it is. Otherwise a large copy is compared as it is used.
    """
    if tables is not None and (isinstance(tables, str) or not tables):
      raise ValueError(f'tables must be a list of names, not {tables!r}')
    self.source = storage.absolute_path(source)
    self.refused: dict[int, str] = {}
    self._tables = tables and tuple(dict.fromkeys(tables))
    self._packed = _check_packed(packed or {}, self._tables)
    self._log = log
    self._said = set()  # lines that are not to be repeated
    self._half = set()  # steps that were half-written at the last look
    self._bad = {}  # step -> (its files, what is wrong with them)
    self._formats = formats
    self._key = signing.read_key(key_file, log)
    self._copy = copy_writer.ReplicaWriter(
      copy, log, formats, verify=verify, key=self._key
    )

  @property
  def step(self) -> int | None:
    """What the copy holds, to the last row; None for nothing."""
    return self._copy.position and self._copy.position.step

  @property
  def step_dir(self) -> pathlib.Path | None:
    """The directory of that step in the source, with its dense part.

    A run that has published a newer base removes it.
    """
    return (
      None if self.step is None else self._find_directory() / str(self.step)
    )

  @property
  def tables(self) -> dict[str, dict]:
    """Name -> 'rows', 'dim', 'dtype', 'file' and 'checksums' of each."""
    return self._copy.position.tables if self._copy.position else {}

  def table(self, name: str) -> np.ndarray:
    """The rows `[rows, dim]` of the copy, mapped for reading.

    Ask again after each update: a new base is another array. A copy of more
    than 256 MB was not compared with its checksums; `rows` compares what it
    reads, and a follower with `verify` all of it when it is made.
    """
    return self._copy.table(name)

  def rows(self, name: str, ids: np.ndarray) -> np.ndarray:
    """Rows `[n, dim]` of a table, compared with the checksums of their blocks.

    Args:
      name: of the table.
      ids: `[n]` whole numbers from 0 to the last row.

    Raises:
      CheckpointError: they are damaged; the next update builds the copy anew.
      ValueError: an id is no row of the table.
    """
    return self._copy.read_rows(name, ids)

  def update(self) -> list[int]:
    """Applies what is new, up to the newest whole step; returns the steps.

    A step is applied after its files were compared with its manifest, and only
    to the step that it was made from. This waits for a half-written step; a
    damaged step is logged once and skipped until its files change.
    """
    directory, applied = self._find_directory(), []
    for _ in range(_LOOKS):
      at = self._copy_position()
      line = self._find_line(directory, at)
      if not line:
        break
      try:
        if line[0] == at:
          for step, identity in line[1:]:
            self._apply_delta(directory, step, identity)
            applied.append(step)
        else:
          self._build_copy(directory, line)
          applied += [step for step, _ in line]
        break
      except (DamagedError, IncompleteError):
        continue  # it has been told, or is not there any more
    return applied

  def follow(
    self, poll_s: float = 10.0, stop: Callable[[], bool] = lambda: False
  ) -> None:
    """Updates until `stop()`, looking every `poll_s` seconds."""
    while not stop():
      if self.update():
        continue
      until = time.monotonic() + poll_s
      while (left := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(_SLICE_S, left))

  def close(self) -> None:
    """Lets another follower have the copy."""
    self._copy.close()

  def __exit__(self, kind, error, trace):
    self.close()

  def _find_directory(self):
    published = self.source / PUBLISHED
    return published if published.is_dir() else self.source

  def _copy_position(self) -> tuple[int, int] | None:
    """(step, identity) of the copy, if its tables are those wanted."""
    position = self._copy.position
    if position is None:
      return None
    if self._tables is None:
      as_wanted = position.every
    else:
      as_wanted = set(self._tables) == set(position.tables)
    for name, about in position.tables.items():
      as_wanted &= about.get('packed') == self._packed.get(name)
    return (position.step, position.identity) if as_wanted else None

  def _find_line(self, directory, at) -> Line | None:
    """What leads to the newest whole step, if the copy does not hold it."""
    self.refused, before, self._half = {}, self._half, set()
    there = manifest.list_steps(directory)
    if not there:
      self._say_once(
        f'nothing is published in {self.source} yet; a run publishes with '
        'config.checkpoint.publish.every'
      )
    for step in reversed(there):
      if at and step <= at[0] and self._is_still(directory, at):
        break
      try:
        return self._leading_to(directory, step, at)
      except IncompleteError as e:
        self._half.add(step)
        if step in before:  # no save that is just ending
          self._say_once(f'step {step} is waited for, it is {e}')
      except DamagedError as e:
        self.refused[step] = str(e)
        # One that needs a step that is damaged, or is not there any more.
        if (directory / str(step) / manifest.NAME).exists():
          self._say_once(f'step {step} is passed over, {e}')
    return None

  def _is_still(self, directory, at: tuple[int, int]) -> bool:
    """Whether the source has the step of the copy, in whatever condition."""
    step_dir = directory / str(at[0])
    if not step_dir.is_dir():
      return False
    try:
      manifest.read(step_dir, self._key)
      return chain.read_identity(step_dir) == at[1]
    except (CheckpointError, OSError):
      return True

  def _leading_to(self, directory, step: int, at) -> Line:
    """From where the copy is, if that is on the way; else from the base."""
    with self._report_faults(directory, step):
      body = manifest.read(directory / str(step), self._key)
      line = [
        *chain.read_parents(body),
        (step, chain.read_identity(directory / str(step))),
      ]
    after = line.index(at) + 1 if at in line else 0
    for other, identity in line[after:]:
      try:
        with self._report_faults(directory, other):
          manifest.verify(directory / str(other), quick=True, key=self._key)
          _open_manifest(directory / str(other), identity, self._key)
      except CheckpointError as e:
        if other == step:
          raise
        raise DamagedError(
          f'damaged: it needs step {other}, which is {e}'
        ) from e
    return line[max(after - 1, 0) :]

  @contextlib.contextmanager
  def _report_faults(self, directory, step: int) -> Iterator[None]:
    """Tells once what is wrong with a step, and remembers it."""
    step_dir = directory / str(step)
    files, wrong = self._bad.get(step, (None, None))
    if wrong and files == storage.stat_files(step_dir):
      raise DamagedError(wrong)
    try:
      yield
    except DamagedError as e:
      path = step_dir / manifest.NAME
      if storage.is_present(path):  # not just being removed
        if str(e) != wrong:
          line = f'step {step} is passed over, {e}'
          self._said.add(line)
          self._log(line)
        self._bad[step] = storage.stat_files(step_dir), str(e)
      raise

  def _apply_delta(self, directory, step: int, identity: int) -> None:
    start, rows = time.monotonic(), 0
    step_dir, tables = directory / str(step), self._copy.position.tables
    with self._report_faults(directory, step):
      body, raw = _open_manifest(step_dir, identity, self._key)
      incoming = self._copy.receive(step)
      for name, content, chunk in row_files.read_contents(
        step_dir, body, tables, self._formats
      ):
        path = incoming / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.create_file(path) as file:
          file.write(content)
        rows += _count_rows(chunk)
    self._copy.apply(step, raw)
    self._log_progress(directory, body, tables, rows, start)

  def _build_copy(self, directory, line: Line) -> None:
    base, identity = line[0]
    with self._report_faults(directory, base):
      body, _ = _open_manifest(directory / str(base), identity, self._key)
      tables = self._select_tables(body)
      row_files.check_sizes(body, tables)
    if self.step is not None and self._copy_position() is None:
      self._log(f'other tables are wanted: all are built from step {base}')
    elif self.step is not None and base <= self.step:  # no newer base
      self._log(
        f'step {line[-1][0]} is not made from step {self.step} as it is here: '
        f'the tables are built anew from step {base}'
      )
    with self._copy.stage_tables(base, tables) as building:
      for step, identity in line:
        start, rows = time.monotonic(), 0
        step_dir = directory / str(step)
        with self._report_faults(directory, step):
          body, _ = _open_manifest(step_dir, identity, self._key)
          for _, _, chunk in row_files.read_contents(
            step_dir, body, tables, self._formats
          ):
            building.put(chunk)
            rows += _count_rows(chunk)
          building.finish_step()
          if step == base:
            building.check_whole()
        self._log_progress(directory, body, tables, rows, start)
      self._copy.swap_tables(
        building,
        source=str(directory),
        step=step,
        identity=identity,
        base=base,
        every=self._tables is None,
      )

  def _select_tables(self, body: dict) -> dict[str, dict]:
    """The tables to copy, of the manifest of a base."""
    if 'rows' not in body:
      raise CheckpointError(
        f'step {body["step"]} of {self._find_directory()} was not saved by '
        'rows; follow what a run publishes with config.checkpoint.publish.every'
      )
    there = body['rows']['tables']
    for name in [*(self._tables or there), *self._packed]:
      if name not in there:
        raise CheckpointError(
          f'{self._find_directory()} has no table {name!r}; there are: '
          + ', '.join(there)
        )
    return {
      name: there[name]
      | ({'packed': self._packed[name]} if name in self._packed else {})
      for name in self._tables or there
    }

  def _log_progress(
    self, directory, body, tables, rows: int, start: float
  ) -> None:
    step = body['step']
    size = sum(
      body['files'][name][0] for name, _ in row_files.of_tables(body, tables)
    )
    newer = sum(other > step for other in manifest.list_steps(directory))
    age = max(time.time() - body.get('time', time.time()), 0.0)
    self._log(
      f'step {step}: {body["rows"]["kind"]}, {rows:,} rows, {size:,} bytes, '
      f'{time.monotonic() - start:.2f} s; published {age:.1f} s ago, '
      f'{newer} newer'
    )

  def _say_once(self, line: str) -> None:
    if line not in self._said:
      self._said.add(line)
      self._log(line)


def _check_packed(packed: Mapping[str, str], tables) -> dict[str, str]:
  for name, number_format in packed.items():
    if number_format not in PACKED_FORMATS:
      raise ValueError(
        f'table {name!r} cannot be packed as {number_format!r}; there are: '
        + ', '.join(PACKED_FORMATS)
      )
    if tables is not None and name not in tables:
      raise ValueError(f'table {name!r} is to be packed, and not copied')
  return dict(packed)


def _parse_packed(text: str) -> dict[str, str]:
  """The value of --packed."""
  pairs = [pair.rpartition('=') for pair in text.split(',')]
  if not all(table and number_format for table, _, number_format in pairs):
    raise ValueError('--packed is a list of TABLE=FORMAT, separated by commas')
  tables = [table for table, *_ in pairs]
  if twice := sorted({name for name in tables if tables.count(name) > 1}):
    raise ValueError(f'--packed names the table {twice[0]!r} twice')
  return {table: number_format for table, _, number_format in pairs}


def _open_manifest(
  step_dir, identity: int, key: bytes | None
) -> tuple[dict, bytes]:
  """The manifest of just this checkpoint, read and as it is written."""
  raw = manifest.read_bytes(step_dir)
  body = manifest.parse(raw, step_dir.name, key)
  if zlib.crc32(raw) != identity:
    raise DamagedError(
      'damaged: it is another one than later steps were made from'
    )
  return body, raw


def _count_rows(chunk: RowChunk) -> int:
  """Rows of which this chunk has the first column."""
  return len(chunk.ids) if chunk.first_column == 0 else 0


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.checkpoint.follow',
    description='Keeps a serving copy of the tables that a run publishes.',
  )
  parser.add_argument('source', help="a run's workdir")
  parser.add_argument('copy', help='directory of the copy')
  parser.add_argument(
    '--tables', help='names, separated by commas (default: all)'
  )
  parser.add_argument(
    '--packed',
    metavar='TABLE=FORMAT,...',
    help='tables whose rows the copy packs: tbe_int8, tbe_int4, tbe_int2 or '
    'another format of numerics/packed_formats.py',
  )
  parser.add_argument(
    '--poll', type=float, default=10.0, help='seconds between looks'
  )
  parser.add_argument('--once', action='store_true', help='update and end')
  parser.add_argument(
    '--key-file', default='', help='refuse steps not signed with this key'
  )
  parser.add_argument(
    '--verify',
    action='store_true',
    help='read all of the copy, and build it anew if it is damaged',
  )
  args = parser.parse_args(argv)
  tables = args.tables.split(',') if args.tables else None
  try:
    packed = _check_packed(
      _parse_packed(args.packed) if args.packed is not None else {}, tables
    )
  except ValueError as e:
    parser.error(str(e))
  try:
    with Follower(
      args.source,
      args.copy,
      tables=tables,
      packed=packed,
      log=last_resort.print_result,
      key_file=args.key_file,
      verify=args.verify,
    ) as follower:
      if args.once:
        follower.update()
        return int(follower.step is None or bool(follower.refused))
      follower.follow(args.poll)
  except (CheckpointError, OSError) as e:
    print(f'{parser.prog}: {e}', file=sys.stderr)
    return 2
  except Exception as e:
    status, words = last_resort.explain_error(e, 'following', args.copy, ())
    print(f'{parser.prog}: {words}', file=sys.stderr)
    return status


if __name__ == '__main__':
  last_resort.run_command(main)
