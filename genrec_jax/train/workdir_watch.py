"""Notices that somebody deletes the workdir of a run that is under way."""

import contextlib
import os
import pathlib


class WorkdirGoneError(FileNotFoundError):
  """What the run writes to is not what its paths name any more."""


class WorkdirWatch(contextlib.AbstractContextManager):
  """Remembers which directory and files the run began with.

  As a context it also explains errors of other code that come of it: of a save,
  for instance, that finds no directory.
  """

  def __init__(self, workdir: pathlib.Path, step: int, *, watches: bool = True):
    """Begins with what is there.

    Args:
      workdir: of the run.
      step: the run begins or continues there.
      watches: whether to look at anything at all; one process of a job does.
    """
    self._step = step
    paths = workdir, workdir / 'metrics.jsonl', workdir / 'checkpoints'
    self._to_open = list(paths) if watches else []
    self._opened = {}
    self._open()

  def _open(self) -> None:
    """Begins to watch what is there by now: the first save makes its place."""
    for path in [path for path in self._to_open if path.exists()]:
      # While a file is open nothing else can have its inode.
      self._opened[path] = os.open(path, os.O_RDONLY)
      self._to_open.remove(path)

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
      if path.name != 'metrics.jsonl':
        lost = 'what was in it is gone, and nothing was saved since then'
        remedy = (
          'if it was moved, move it back, and the same command continues from '
          'the last checkpoint; otherwise the run must begin anew'
        )
      raise WorkdirGoneError(
        f'{path} {happened} during the run, after step {self._step}: {lost}. '
        f'The training ends here; {remedy}'
      )
    self._step = step
    self._open()

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
