"""Ends this process, or lets a disk be full, at the nth call to the files.

Python tells of every file it opens, renames, removes and so on (PEP 578), in
whatever thread and library; fsync is wrapped. What is written by C++ alone
(TensorStore's files) is not seen: that is for faults by the clock, by a limit
of the system, and by a disk that is really full.
"""

import errno
import os
import pathlib
import signal
import sys

SAVE, COMMIT, RETENTION, RESTORE = 'save', 'commit', 'retention', 'restore'
PHASES = SAVE, COMMIT, RETENTION, RESTORE
# (module, function) -> phase of what happens below it
_BELOW = {
  ('manifest', 'write'): COMMIT,
  ('retention', 'remove_superfluous'): RETENTION,
}
_CALLS = (
  'open', 'os.rename', 'os.remove', 'os.rmdir', 'os.mkdir', 'os.listdir',
  'os.scandir', 'os.fsync',
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
  """Calls to the files of a directory, counted by phase.

  Attributes:
    stage: RESTORE or SAVE, as the process says; None: nothing is counted.
    counts: phase -> calls.
  """

  def __init__(self, directory, phase: str | None = None, call: int = 0):
    """Begins to watch, for as long as the process lives.

    Args:
      directory: what lies below it is watched.
      phase: in which to end the process, before call number `call` of it.
      call: from 1 on.
    """
    self._directory = str(pathlib.Path(directory).absolute())
    self._aim = phase, call
    self.stage = None
    self.counts = dict.fromkeys(PHASES, 0)
    self._full_in = None
    self._once = False
    sys.addaudithook(self._heard)
    fsync = os.fsync

    def watched(descriptor):
      self._heard('os.fsync', (f'{self._directory}/',))
      fsync(descriptor)

    os.fsync = watched

  def fill(self, call: int | None, once: bool = False) -> None:
    """From call `call` that needs room, there is none; None: there is again.

    Args:
      call: from 1 on, counted from now.
      once: only this call fails.
    """
    self._full_in, self._once = call, once

  def _heard(self, event: str, args) -> None:
    if self.stage is None or event not in _CALLS:
      return
    phase, ours = self._place(args[0] if args else None)
    if not ours:
      return
    self.counts[phase] += 1
    if (phase, self.counts[phase]) == self._aim:
      os.kill(os.getpid(), signal.SIGKILL)
    if self._full_in is not None and _needs_room(event, args):
      self._full_in -= 1
      if self._full_in <= 0:
        if self._once:
          self._full_in = None
        raise OSError(errno.ENOSPC, 'No space left on device (injected)')

  def _place(self, path) -> tuple[str, bool]:
    """(phase, whether it is about the directory) of a call."""
    frame, phase = sys._getframe(2), None
    while frame and not phase:
      module = frame.f_globals.get('__name__', '').rpartition('.')[2]
      phase = _BELOW.get((module, frame.f_code.co_name))
      frame = frame.f_back
    # rmtree names files by a descriptor of their directory.
    if phase:
      return phase, True
    if isinstance(path, (str, os.PathLike)):
      return self.stage, os.fspath(path).startswith(self._directory)
    return self.stage, False


def _needs_room(event: str, args) -> bool:
  if event == 'open':
    flags = args[2] if len(args) > 2 else 0
    return bool((flags or 0) & _WRITES)
  return event in ('os.mkdir', 'os.fsync', 'os.rename')
