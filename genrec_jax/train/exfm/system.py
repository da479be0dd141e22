"""Runs the processes of a system to their ends.

All of them may be started at once: each waits for what it needs to appear in a
directory. A process that a signal has ended is started again, and goes on where
it was; one that tells of an error ends the run, for the others would wait for
it forever.
"""

import collections
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from genrec_jax import interruption
from genrec_jax.config.errors import ConfigError
from genrec_jax.data.growing import END
from genrec_jax.processes import notes
from genrec_jax.processes.children import Bounds, Child
from genrec_jax.train.exfm.commands import (
  SERVICE,
  WRITER,
  Layout,
  list_processes,
  load_config,
  name_run,
)
from genrec_jax.train.exfm.settings import TEACHER, Record, check_config
from genrec_jax.train.exfm.status import Status

_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """How a system is run; nothing of it changes what comes out.

  Attributes:
    threads: of each process; 0 sets no bound.
    jobs: students at a time; 0 for all.
    retries: how often a process that a signal has ended is started again.
    status_s: seconds between two lines about how far all are.
    grace_s: how long processes may take to save after a signal.
    most_lost: share of the labels that may be lost; with more, the run ends.
  """

  threads: int = 1
  jobs: int = 0
  retries: int = 5
  status_s: float = 5.0
  grace_s: float = 600.0
  most_lost: float = 0.5

  def __post_init__(self):
    for name in (f.name for f in dataclasses.fields(self)):
      if not getattr(self, name) >= 0:
        raise ConfigError(
          f'--{name} is {getattr(self, name)}, must be at least 0'
        )


class System:
  """The processes of a system; `run` does all of it."""

  def __init__(
    self,
    record: Record,
    layout: Layout,
    options: RunOptions,
    say: Callable[[str], object],
    commands: Mapping[str, Sequence[str]] | None = None,
  ):
    """Starts nothing yet.

    Args:
      record: of the directory.
      layout: of the system.
      options: how it is run.
      say: receives lines for the user.
      commands: name -> command line of each process; None for those of the
        layout.
    """
    self._record, self._layout = record, layout
    self._options, self._say = options, say
    self._commands = dict(commands or list_processes(layout))
    self._are_others = commands is not None  # which make no workdirs
    if not self._are_others:
      self._commands[SERVICE] = [
        *self._commands[SERVICE], f'--most_lost={options.most_lost}',
      ]  # fmt: skip
    self._running: dict[str, Child] = {}
    self._waiting: list[str] = []
    self._elsewhere: set[str] = set()
    self._deaths: collections.Counter = collections.Counter()

  def run(self) -> bool:
    """Runs all to their ends, or until a signal.

    Returns:
      Whether all are done; False if one has failed, which was said.

    Raises:
      interruption.Stopped: a signal came; every process has saved and ended.
    """
    self._layout.log('').parent.mkdir(exist_ok=True)
    # A run on a directory that is not there ends with an error, and the service
    # may be killed before it has made any.
    for name in (TEACHER, *(x.name for x in self._layout.settings.students)):
      (self._layout.annotated / name).mkdir(parents=True, exist_ok=True)
    for name in self._commands:
      note = notes.read_note(self._layout.note(name))
      if notes.is_alive(note, self._layout.log(name)):
        # Of a driver that was killed: it has been sent a signal, and saves.
        self._elsewhere.add(name)
      elif note.state != notes.DONE or not self._is_there(name):
        self._waiting.append(name)
      elif name == WRITER:  # a driver may have been killed before it wrote it
        (self._layout.events / END).touch()
    if self._elsewhere:
      self._say(
        f'{", ".join(sorted(self._elsewhere))}: still there from before; '
        'waiting until they have saved'
      )
    status = Status(self._layout)
    with interruption.SafePoints(listen=True) as points:
      points.hold()
      shown, line = time.monotonic(), ''
      try:
        while self._running or self._waiting or self._elsewhere:
          if points.reach():
            raise interruption.Stopped(points.number)
          self._start_due()
          if not self._poll():
            self._stop_all(signal.SIGTERM, 'the system ends')
            return False
          now = time.monotonic()
          if now >= shown + self._options.status_s:
            former, line, shown = line, status.describe(), now
            if line != former:
              self._say(line)
          time.sleep(_POLL_S)
      except BaseException as error:
        number = getattr(error, 'number', signal.SIGTERM)
        name = interruption.NAMES.get(number, 'an error')
        self._stop_all(signal.SIGTERM, f'stopped by {name} of the driver')
        raise
    self._say(status.describe())
    return True

  def _start_due(self) -> None:
    jobs = self._options.jobs
    for name in list(self._waiting):
      busy = sum(self._is_student(x) for x in self._running)
      if jobs and self._is_student(name) and busy >= jobs:
        continue
      if (config := load_config(self._layout, name)) is not None:
        # Its file may have changed since; a student may start late.
        check_config(self._record, name, config)
      self._waiting.remove(name)
      self._running[name] = Child(
        self._commands[name],
        directory=os.getcwd(),
        log=self._layout.log(name),
        note=self._layout.note(name),
        bounds=Bounds(self._options.threads),
      )

  def _is_there(self, name: str) -> bool:
    """Whether what a process had to make has not been removed since."""
    if self._are_others:
      return True
    if name == TEACHER:
      return (self._layout.teacher / 'config.json').exists()
    for student, method in self._layout.settings.runs():
      if name == name_run(student, method):
        return (self._layout.student(student, method) / 'config.json').exists()
    return True

  def _is_student(self, name: str) -> bool:
    return '-' in name  # between student and method, and in no other name

  def _poll(self) -> bool:
    """Looks at all processes; False once the system cannot go on."""
    for name in list(self._elsewhere):
      note = notes.read_note(self._layout.note(name))
      if not notes.is_alive(note, self._layout.log(name)):
        self._elsewhere.discard(name)
        self._waiting.append(name)
    for name, child in list(self._running.items()):
      note = child.poll()
      if note is None:
        continue
      del self._running[name]
      if note.state == notes.DONE:
        if name == WRITER:
          (self._layout.events / END).touch()
        continue
      if not self._start_again(name, note, child.read_last_lines()):
        return False
    return True

  def _start_again(self, name: str, note: notes.Note, lines) -> bool:
    """Whether a process that has not come to its end goes on; says so."""
    self._deaths[name] += 1
    was_signal = note.status is None or note.status < 0
    was_signal |= note.status in interruption.STATUSES.values()
    if was_signal and self._deaths[name] <= self._options.retries:
      self._say(
        f'{name}: {note.why}; it is started again '
        f'({self._deaths[name]} of {self._options.retries} times)'
      )
      self._waiting.append(name)
      return True
    self._say(f'{name}: {note.why}')
    for line in lines:
      self._say(f'    {line}')
    self._say(f'    all of it: {self._layout.log(name)}')
    if was_signal:
      self._say(
        f'{name}: was ended by signals {self._deaths[name]} times, which is '
        'more than --retries'
      )
    return False

  def _stop_all(self, number: int, why: str) -> None:
    """Sends a signal to all, and waits until they have saved and ended."""
    if not self._running:
      return
    self._say(
      f'{", ".join(self._running)}: save and end; the same command continues'
    )
    for child in self._running.values():
      child.stop(number, why)
    deadline = time.monotonic() + self._options.grace_s
    while self._running:
      for name, child in list(self._running.items()):
        if child.poll() is not None:
          del self._running[name]
        elif time.monotonic() > deadline and child.asked != signal.SIGKILL:
          child.stop(
            signal.SIGKILL,
            f'ended {self._options.grace_s:g} s after SIGTERM (--grace_s)',
          )
      time.sleep(_POLL_S)
