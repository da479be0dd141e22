"""Notices that somebody deletes the workdir of a run that is under way."""

import contextlib
import os
import pathlib
from collections.abc import Sequence


class WorkdirGoneError(FileNotFoundError):
  """What the run writes to is not what its paths name any more."""


class WorkdirWatch(contextlib.AbstractContextManager):
  """Remembers which directory and files the run began with.

  As a context it also explains errors of other code that come of it: of a save,
  for instance, that finds no directory.
  """

  def __init__(self, paths: Sequence[pathlib.Path], step: int):
    """Begins with what is there.

    Args:
      paths: the workdir and files in it, the workdir first; () watches nothing.
      step: the run begins or continues there.
    """
    self._step = step
    # While a file is open nothing else can have its inode.
    self._opened = {path: os.open(path, os.O_RDONLY) for path in paths}

  def check(self, step: int) -> None:
    """Raises `WorkdirGoneError` if the run writes to nowhere."""
    for path, opened in self._opened.items():
      try:
        status = os.stat(path)
      except (FileNotFoundError, NotADirectoryError):
        happened = 'was deleted'
      else:
        if os.path.samestat(status, os.fstat(opened)):
          continue
        happened = 'was replaced by another'
      lost = 'its lines since then are lost'
      remedy = 'the same command continues from the last checkpoint'
      if path == next(iter(self._opened)):
        lost = 'what was in it is gone, and nothing was saved since then'
        remedy = (
          'if it was moved, move it back, and the same command continues from '
          'its last checkpoint; otherwise the run must begin anew'
        )
      raise WorkdirGoneError(
        f'{path} {happened} during the run, after step {self._step}: {lost}. '
        f'The training ends here; {remedy}'
      )
    self._step = step

  def __exit__(self, kind, error, trace) -> None:
    try:
      if isinstance(error, Exception) and not isinstance(
        error, WorkdirGoneError
      ):
        self.check(self._step)
    except WorkdirGoneError as explanation:
      raise explanation from error
    finally:
      while self._opened:
        os.close(self._opened.popitem()[1])
