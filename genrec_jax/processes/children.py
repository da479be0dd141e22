"""A run as a process of its own, with bounds, in a group of its own."""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from genrec_jax import formatting, interruption
from genrec_jax.processes.notes import (
  DONE,
  FAILED,
  STOPPED,
  Note,
  describe_this_process,
  read_note,
  write_note,
)

_PR_SET_PDEATHSIG = 1
_LAST_LINES, _LAST_BYTES = 6, 1 << 14
_MB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Bounds:
  """What a run may have of the machine.

  Attributes:
    threads: of XLA and of the libraries below NumPy; 0 sets no bound.
    memory_gb: of all its processes; a run with more is ended. 0: no bound.
    gpu: the device that it sees, as CUDA counts; '' for all.
  """

  threads: int = 0
  memory_gb: float = 0.0
  gpu: str = ''

  def environment(self) -> dict[str, str]:
    """What is added to the variables of the launcher."""
    found = {'PYTHONUNBUFFERED': '1'}
    if self.threads:
      number = str(self.threads)
      # NPROC is what XLA takes for the number of processors.
      for name in ('NPROC', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'):
        found[name] = number
    if self.gpu:
      found['CUDA_VISIBLE_DEVICES'] = self.gpu
    return found


class Child:
  """A run that has been started.

  Attributes:
    began: by the monotonic clock.
    asked: the signal that it was sent by `stop`; None before.
    why: what it was stopped for, in words.
  """

  def __init__(
    self,
    command: Sequence[str],
    *,
    directory: str,
    log: pathlib.Path,
    note: pathlib.Path,
    bounds: Bounds,
  ):
    """Starts it.

    Args:
      command: its words, the program first.
      directory: where it is started.
      log: gets what it prints, behind what is there.
      note: see notes.py.
      bounds: what it may have.
    """
    self.began, self.asked, self.why = time.monotonic(), None, ''
    self._state = STOPPED  # of a run that is stopped
    self._note_path, self._log, self._bounds = note, log, bounds
    self._before = read_note(note)
    self._kills = count_memory_kills()
    self._peak, self._looked_at = 0, 0.0
    # A child counts what its parent had as its own, until it is the run.
    self._of_parent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with open(log, 'ab') as output:
      self._from = output.tell()
      self._process = subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **bounds.environment()},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # A Ctrl-C on the terminal is for the launcher, which passes it on.
        start_new_session=True,
        preexec_fn=lambda: _become_run(note, self._before),
      )

  @property
  def pid(self) -> int:
    return self._process.pid

  def poll(self) -> Note | None:
    """How the run ended; None while it has not."""
    try:
      pid, status, usage = os.wait4(self.pid, os.WNOHANG)
    except ChildProcessError:
      pid, status, usage = self.pid, 0, None
    if not pid:
      self._watch_memory()
      return None
    self._process.returncode = os.waitstatus_to_exitcode(status)
    self._end_group()
    return self._describe_end(self._process.returncode, usage)

  def stop(
    self, number: int = signal.SIGTERM, why: str = '', state: str = STOPPED
  ) -> None:
    """Sends a signal to the run and to all that it has started.

    Args:
      number: of the signal.
      why: in words.
      state: in which the run is then.
    """
    self.asked, self.why, self._state = number, why or self.why, state
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self.pid, number)

  def read_last_lines(self) -> list[str]:
    """The last lines of what this try has printed."""
    return read_last_lines(self._log, self._from)

  def _end_group(self) -> None:
    """Nothing that the run has left behind goes on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self.pid, signal.SIGKILL)

  def _watch_memory(self) -> None:
    now = time.monotonic()
    if now < self._looked_at + 1.0:
      return
    self._looked_at = now
    self._peak = max(self._peak, read_peak_bytes(self.pid))
    if not self._bounds.memory_gb:
      return
    used = measure_group_bytes(self.pid)
    self._peak = max(self._peak, used)
    if used > self._bounds.memory_gb * 1e9 and self.asked != signal.SIGKILL:
      self.stop(
        signal.SIGKILL,
        f'it had {formatting.format_bytes(used)} of memory, and may have '
        f'{self._bounds.memory_gb:g} GB (--memory_gb)',
        FAILED,
      )

  def _describe_end(self, status: int, usage) -> Note:
    # What `_become_run` wrote; its number of tries counts this one.
    note = read_note(self._note_path)
    peak = usage.ru_maxrss * 1024 if usage else 0
    peak = max(self._peak, peak if peak > 1.05 * self._of_parent else 0)
    core_s = usage.ru_utime + usage.ru_stime if usage else 0.0
    state, why = self._judge(status, peak)
    note = dataclasses.replace(
      note,
      state=state,
      tries=max(note.tries, self._before.tries + 1),
      status=status,
      peak_bytes=peak,
      wall_s=self._before.wall_s + time.monotonic() - self.began,
      core_s=self._before.core_s + core_s,
      why=why,
    )
    write_note(self._note_path, note)
    return note

  def _judge(self, status: int, peak: int) -> tuple[str, str]:
    """(state, why), by an exit status."""
    if status in interruption.STATUSES.values():
      return self._state, self.why or 'it was sent a signal, and saved'
    if status >= 0:
      if status == 0:
        return DONE, ''
      return FAILED, f'exit status {status}'
    name = signal.Signals(-status).name
    if self.asked:
      return self._state, self.why or f'ended by {name}'
    size = formatting.format_bytes(peak)
    if -status == signal.SIGKILL and count_memory_kills() > self._kills:
      return FAILED, (
        f'the system ran out of memory and killed it; it had {size} at most'
      )
    hint = ''
    if -status == signal.SIGKILL:
      hint = ', as a system does whose memory runs out'
    return FAILED, f'killed by {name}{hint}; it had {size} at most'


def command_of(words: Sequence[str]) -> list[str]:
  """The command line of a run in this environment."""
  return [sys.executable, '-m', 'genrec_jax.main', *words]


def read_last_lines(path: pathlib.Path, start: int = 0) -> list[str]:
  """The last lines of a log that are not empty."""
  try:
    with open(path, 'rb') as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(max(start, size - _LAST_BYTES))
      text = file.read().decode(errors='replace')
  except OSError:
    return []
  lines = [line.rstrip() for line in text.splitlines() if line.strip()]
  return lines[-_LAST_LINES:]


def read_peak_bytes(pid: int) -> int:
  """The most memory that a process has had (Linux; 0 elsewhere)."""
  try:
    text = pathlib.Path(f'/proc/{pid}/status').read_text()
    return int(text.partition('VmHWM:')[2].split()[0]) * 1024
  except (OSError, IndexError, ValueError):
    return 0


def measure_group_bytes(group: int) -> int:
  """Memory of all processes of a group (Linux; 0 elsewhere)."""
  total = 0
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      fields = (folder / 'stat').read_text().rpartition(')')[2].split()
      if int(fields[2]) == group:
        total += int(fields[21]) * os.sysconf('SC_PAGE_SIZE')
    except (OSError, IndexError, ValueError):
      continue
  return total


def count_memory_kills() -> int:
  """How many processes this system has killed for want of memory so far."""
  for path in ('/proc/vmstat', '/sys/fs/cgroup/memory.events'):
    with contextlib.suppress(OSError, ValueError):
      for line in pathlib.Path(path).read_text().splitlines():
        name, _, number = line.partition(' ')
        if name == 'oom_kill' and int(number):
          return int(number)
  return 0


def _become_run(path: pathlib.Path, before: Note) -> None:
  """In the child, before it becomes the run.

  The note is there before the run is, whenever the launcher is killed; and with
  the launcher ends the run, which saves first.
  """
  with contextlib.suppress(Exception):
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  with contextlib.suppress(Exception):
    write_note(path, describe_this_process(before))
