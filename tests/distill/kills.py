"""Kills a piece of work at each of its calls of the file system.

The work ends by an error that nothing in it catches; files that were not forced
to the disk lose their second half. What runs in a `finally` runs nevertheless,
which a real kill would not let it: code under test has none there.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

CALLS = ('replace', 'unlink', 'fsync', 'rename')


class KilledError(BaseException):
  """The process is gone."""


@contextlib.contextmanager
def at_call(nth: int) -> Iterator[list[str]]:
  """Kills before the nth call, which is just after the one before.

  Yields:
    The names of the calls that were made.
  """
  made, originals = [], {name: getattr(os, name) for name in CALLS}

  def wrap(name):
    def call(*args, **kwargs):
      made.append(name)
      if len(made) != nth:
        return originals[name](*args, **kwargs)
      if name == 'fsync':
        _halve(args[0])
      raise KilledError(name)

    return call

  for name in CALLS:
    setattr(os, name, wrap(name))
  try:
    yield made
  finally:
    for name, original in originals.items():
      setattr(os, name, original)


def _halve(descriptor: int) -> None:
  """Half of a file that nobody has forced to the disk."""
  path = os.readlink(f'/proc/self/fd/{descriptor}')
  if os.path.isfile(path):
    os.truncate(path, os.path.getsize(path) // 2)


def walk(
  parent: pathlib.Path,
  prepare: Callable[[pathlib.Path], None],
  work: Callable[[pathlib.Path], None],
  every: int = 1,
) -> Iterator[pathlib.Path]:
  """Directories that were prepared, each killed at another moment of the work.

  Args:
    parent: of the directories.
    prepare: makes what the work begins with.
    work: what is killed.
    every: how many calls are between two moments.
  """
  nth, killed = 1 - every, True
  while killed:
    nth, killed = nth + every, False
    path = parent / str(nth)
    prepare(path)
    with at_call(nth):
      try:
        work(path)
      except KilledError:
        killed = True
    if killed:
      yield path
  assert nth > 8, 'there was hardly anything to kill'
