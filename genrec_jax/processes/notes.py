"""What a launcher knows of a run, in a file beside the run's log.

The note is written by the process that becomes the run, before it becomes it,
so that no run is ever there without one; and again when the run has ended.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import time

from genrec_jax import sealed
from genrec_jax.processes.whole_files import replace_file

# States of a run, in the order in which tables have them.
RUNNING, DONE, FAILED, BAD, STOPPED, WAITING = (
  'running',
  'done',
  'failed',
  'stopped as bad',
  'stopped',
  'waiting',
)
STATES = RUNNING, DONE, FAILED, BAD, STOPPED, WAITING
_MOST_BYTES = 1 << 20
_SILENT_S = 900.0  # a run elsewhere that has not printed for so long is lost


@dataclasses.dataclass(frozen=True)
class Note:
  """What is known of the last try of a run.

  Attributes:
    state: RUNNING while it may run, and how it ended.
    host: where it runs.
    pid: of its process.
    started: when that process began, as the system counts; '' where unknown.
    job: its task of Slurm and how often that was started again, '7_3.1'; ''
      elsewhere.
    tries: how many there were.
    status: exit status; minus the number of the signal that ended it.
    peak_bytes: the most memory it has had.
    wall_s: of all tries.
    core_s: of all tries, processor time.
    why: in words, how it ended.
  """

  state: str = WAITING
  host: str = ''
  pid: int = 0
  started: str = ''
  job: str = ''
  tries: int = 0
  status: int | None = None
  peak_bytes: int = 0
  wall_s: float = 0.0
  core_s: float = 0.0
  why: str = ''


def read_note(path: pathlib.Path) -> Note:
  """The note of a run; one of a run that waits where there is none."""
  try:
    body = json.loads(sealed.read_regular(path, _MOST_BYTES))
    note = Note(**body)
    types = {
      field.name: type(field.default)
      for field in dataclasses.fields(Note)
      if field.name != 'status'
    }
    for name, kind in types.items():
      value = getattr(note, name)
      if not isinstance(value, (int, float) if kind is float else kind):
        raise ValueError(f'{name} is {value!r}')
    if note.state not in STATES:
      raise ValueError(f'there is no state {note.state!r}')
    return note
  except (OSError, *sealed.UNREADABLE):  # a damaged note says nothing
    return Note()


def write_note(path: pathlib.Path, note: Note) -> None:
  """Writes it; a full disk must not end the launcher."""
  with contextlib.suppress(OSError):
    replace_file(path, json.dumps(dataclasses.asdict(note)))


def describe_this_process(note: Note) -> Note:
  """The note of a run that this process is about to become."""
  return dataclasses.replace(
    note,
    state=RUNNING,
    host=socket.gethostname(),
    pid=os.getpid(),
    started=_read_start(os.getpid()),
    job=_name_job(),
    tries=note.tries + 1,
    status=None,
    why='',
  )


def is_alive(note: Note, log: pathlib.Path) -> bool:
  """Whether the process of a note still runs.

  Args:
    note: of the run.
    log: what it prints to; of another host nothing else is known, unless it
      was the former self of this task of Slurm, which is dead.
  """
  if note.state != RUNNING or not note.pid:
    return False
  if note.host != socket.gethostname():
    own = _name_job()
    if own != note.job and own.split('.')[0] == note.job.split('.')[0]:
      return False
    try:
      return time.time() - log.stat().st_mtime < _SILENT_S
    except OSError:
      return False
  try:
    os.kill(note.pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    return not note.started
  # The number may be that of another process by now.
  return _read_start(note.pid) == note.started


def _name_job() -> str:
  """The task of Slurm that this is, '7_3.1' once restarted; else ''."""
  names = 'SLURM_ARRAY_JOB_ID', 'SLURM_ARRAY_TASK_ID', 'SLURM_JOB_ID'
  array, task, job = map(os.environ.get, names)
  job = f'{array}_{task}' if array and task else job
  return f'{job}.{os.environ.get("SLURM_RESTART_COUNT") or 0}' if job else ''


def _read_start(pid: int) -> str:
  """When a process began, in ticks since the system did (Linux); else ''."""
  try:
    line = pathlib.Path(f'/proc/{pid}/stat').read_text()
    fields = line.rpartition(')')[2].split()
  except OSError:
    return ''
  return '' if fields[0] == 'Z' else fields[19]
