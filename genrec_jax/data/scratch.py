"""Directories that appear whole or not at all, whatever is killed."""

import contextlib
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def staged_directory(out: pathlib.Path, last: str) -> Iterator[pathlib.Path]:
  """A fresh directory that becomes `out` when the block ends without an error.

  What killed processes of this host have left beside it is removed.

  Args:
    out: the directory to make; its parents are made too.
    last: the file that is written last. Where `out` has it already, another
      process was faster with the same, and what is there stays.
  """
  stem = f'{out.name}.partial-'
  with scratch_directory(out.parent, stem) as work:
    work.mkdir(parents=True)
    yield work
    try:
      work.rename(out)
    except OSError:
      if not (out / last).exists():
        raise


@contextlib.contextmanager
def replaced_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """The place of a directory that takes the one of `path` when the block ends.

  The block makes the directory. A reader sees all of the new one or nothing.
  """
  partial = path.with_name(f'.{path.name}.{os.getpid()}')
  shutil.rmtree(partial, ignore_errors=True)
  yield partial
  shutil.rmtree(path, ignore_errors=True)
  partial.rename(path)


@contextlib.contextmanager
def scratch_directory(
  parent: pathlib.Path, stem: str = ''
) -> Iterator[pathlib.Path]:
  """The path of a directory of this process, removed when the block ends.

  Those of processes of this host that have ended are removed first.
  """
  stem = f'{stem}{socket.gethostname()}-'
  for old in parent.glob(f'{stem}*'):
    pid = old.name.removeprefix(stem)
    if pid.isdigit() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
      shutil.rmtree(old, ignore_errors=True)
  work = parent / f'{stem}{os.getpid()}'
  try:
    yield work
  finally:
    shutil.rmtree(work, ignore_errors=True)


def _is_alive(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return True
