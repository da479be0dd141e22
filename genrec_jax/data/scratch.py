"""Directories that appear whole or not at all, whatever is killed."""

import contextlib
import glob
import itertools
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Iterator

# A later process may get the number of one that was killed, as in containers.
_STARTED = time.time_ns()
_COUNTER = itertools.count()
_FORGOTTEN_S = 86400  # after which nobody writes to a directory any more


@contextlib.contextmanager
def staged_directory(
  out: pathlib.Path, last: str = ''
) -> Iterator[pathlib.Path]:
  """A fresh directory that becomes `out` when the block ends without an error.

  What killed processes of this host have left beside it is removed.

  Args:
    out: the directory to make; its parents are made too.
    last: the file that is written last. Where `out` has it already, another
      process was faster with the same, and what is there stays. '' where what
      others have made there is not the same.

  Raises:
    FileExistsError: `out` came to be during the block, and there is no `last`.
  """
  stem = f'{out.name}.partial-'
  with scratch_directory(out.parent, stem) as work:
    work.mkdir(parents=True)
    yield work
    try:
      work.rename(out)
    except OSError:
      if last and (out / last).exists():
        return
      if not os.path.lexists(out):
        raise
      raise FileExistsError(
        f'{out} exists already; choose another path, or remove it first'
      ) from None


@contextlib.contextmanager
def replaced_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """The place of a directory that takes the one of `path` when the block ends.

  The block makes the directory. A reader sees all of the new one or nothing.
  """
  with scratch_directory(path.parent, f'.{path.name}.') as partial:
    yield partial
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)


@contextlib.contextmanager
def replaced_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """The place of a file that takes the one of `path` when the block ends.

  The block makes the file, in a directory that nobody else can write to, so
  that no link planted there is followed. What killed processes of this host
  have left is removed.
  """
  with scratch_directory(path.parent, f'.{path.name}.') as work:
    work.mkdir(mode=0o700)
    partial = work / path.name
    yield partial
    with open(partial, 'rb') as written:
      os.fsync(written.fileno())
    os.replace(partial, path)


@contextlib.contextmanager
def scratch_directory(
  parent: pathlib.Path, stem: str = ''
) -> Iterator[pathlib.Path]:
  """The path of a directory of this block, removed when the block ends.

  Those of processes of this host that have ended are removed first. Containers
  may share the name of a host, where none sees whether the processes of the
  others live; what those have left is removed after a day.
  """
  stem = f'{stem}{socket.gethostname()}-'
  for old in parent.glob(f'{glob.escape(stem)}*'):
    # Earlier versions wrote less.
    owner = re.fullmatch(
      r'(\d+)(?:_(\d+)_\d+(?:_(\d+))?)?', old.name.removeprefix(stem)
    )
    if owner and not (
      _is_in_use(int(owner[1]), owner[2])
      if owner[3] in (None, _NAMESPACE)
      else _is_fresh(old)
    ):
      shutil.rmtree(old, ignore_errors=True)
  name = f'{os.getpid()}_{_STARTED}_{next(_COUNTER)}_{_NAMESPACE}'
  work = parent / f'{stem}{name}'
  try:
    yield work
  finally:
    shutil.rmtree(work, ignore_errors=True)


def _name_namespace() -> str:
  """The number of the namespace that gives this process its number."""
  try:
    return str(os.stat('/proc/self/ns/pid').st_ino)
  except OSError:
    return '0'


_NAMESPACE = _name_namespace()


def _is_fresh(directory: pathlib.Path) -> bool:
  """Whether something in a directory has changed within the last day."""
  try:
    paths = [directory, *directory.iterdir()]
    changed = max(path.lstat().st_mtime for path in paths)
  except OSError:  # its process is at work
    return True
  return time.time() - changed < _FORGOTTEN_S


def _is_in_use(pid: int, started: str | None) -> bool:
  """Whether the process lives that has made a directory."""
  if pid == os.getpid():
    return started == str(_STARTED)
  try:
    os.kill(pid, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except PermissionError:
    pass
  return True
