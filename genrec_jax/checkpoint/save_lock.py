"""Lets only one process at a time save in a directory, and refuses others.

On a disk a lock keeps a second process out; it disappears with its process,
however that ends. An object store has no locks: there, the process that comes
last writes its name, and the earlier one sees it when it is about to complete a
checkpoint, and stops.
"""

import os
import uuid
import weakref

from genrec_jax.checkpoint import storage
from genrec_jax.checkpoint.manifest import CheckpointError

NAME = '.writer'
_locks = weakref.WeakValueDictionary()  # path -> the lock of this process


class SupersededError(CheckpointError):
  """Another process has begun to save in the same directory of a store."""


class SaveLock:
  """The right to save in a directory."""

  def __init__(self, directory):
    self._directory, self._name = directory, uuid.uuid4().hex
    self._lock, self._claimed = None, False

  def claim_directory(self) -> None:
    """Before anything is written; raises if another process is saving here."""
    if self._claimed:
      self.check()
      return
    if storage.is_disk(self._directory):
      self._lock = _find_lock(self._directory)
    else:
      (self._directory / NAME).write_text(self._name)
    self._claimed = True

  def check(self) -> None:
    """Before a checkpoint is completed; raises if another has begun to save."""
    if storage.is_disk(self._directory):
      return
    if (self._directory / NAME).read_text() != self._name:
      raise SupersededError(
        f'another process has begun to save in {self._directory}; this one '
        'must not go on there'
      )

  def release(self) -> None:
    self._lock, self._claimed = None, False


class _Lock:
  """An open, locked file; the objects of one process share it."""

  def __init__(self, path):
    self._file = storage.open_lock(path)
    if not storage.lock_file(self._file):
      self._file.close()
      raise CheckpointError(
        f'another process is saving in {path.parent}; use another directory, '
        'or wait until it has ended'
      )
    weakref.finalize(self, self._file.close)


def _find_lock(directory) -> _Lock:
  path = os.path.realpath(directory / NAME)
  lock = _locks.get(path)
  if lock is None:
    lock = _locks[path] = _Lock(directory / NAME)
  return lock
