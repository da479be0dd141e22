"""Runs the variants of a sweep on this machine, some at a time."""

import collections
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence

from genrec_jax import formatting, interruption, progress
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import children, notes
from genrec_jax.processes.children import Bounds, Child
from genrec_jax.sweep import curves, live_table, run_states
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.variants import Variant

_POLL_S = 0.1
_LOOK_S = 2.0  # between two looks at the curves of running runs


@dataclasses.dataclass(frozen=True)
class LocalOptions:
  """How runs are run here.

  Attributes:
    jobs: at a time.
    bounds: of each; its `gpu` is set by `gpus`.
    gpus: devices, which jobs take in turn; () leaves all to every job.
    retries: how often a run that fails is tried again.
    stop_bad: whether runs that fall behind are stopped, see
      `curves.falls_behind`.
    revive: whether runs that were stopped so go on.
    grace_s: how long runs may take to save after a signal.
  """

  jobs: int = 1
  bounds: Bounds = Bounds()
  gpus: tuple[str, ...] = ()
  retries: int = 0
  stop_bad: bool = False
  revive: bool = False
  grace_s: float = 600.0

  def __post_init__(self):
    if self.jobs < 1:
      raise ConfigError(f'--jobs is {self.jobs}, must be at least 1')
    if self.retries < 0 or self.bounds.threads < 0:
      raise ConfigError('--retries and --threads must be at least 0')
    if not (self.bounds.memory_gb >= 0 and self.grace_s >= 0):
      raise ConfigError('--memory_gb and --grace_s must be at least 0')


class Launcher:
  """Starts runs, watches them, and ends with them."""

  def __init__(
    self,
    sweep: Sweep,
    wanted: Sequence[Variant],
    options: LocalOptions,
    table: live_table.LiveTable,
    command_of: Callable[[Sequence[str]], list[str]] = children.command_of,
  ):
    """Starts nothing yet.

    Args:
      sweep: in its directory.
      wanted: the variants to run, unless they are done.
      options: how.
      table: shows them.
      command_of: words of a run -> its command line.
    """
    self._sweep, self._options, self._table = sweep, options, table
    self._command_of = command_of
    self._wanted = list(wanted)
    self._queue = collections.deque()
    self._running: dict[Variant, Child] = {}
    self._slots: dict[Variant, int] = {}
    self._elsewhere: set[Variant] = set()
    self._failures: collections.Counter = collections.Counter()
    self._readers: dict[Variant, curves.CurveReader] = {}
    self._curves: dict[Variant, curves.Curve] = {}
    self._looked_at = 0.0
    self._states: dict[Variant, str] = {}

  def run(self) -> dict[str, int]:
    """Runs all to their ends, or until a signal.

    Returns:
      State -> how many of the wanted runs ended in it.

    Raises:
      interruption.Stopped: a signal came; every run has saved and ended.
    """
    (self._sweep.root / 'logs').mkdir(exist_ok=True)
    for variant in self._wanted:
      state, _ = run_states.find_state(self._sweep, variant)
      self._states[variant] = state
      if state == notes.RUNNING:  # of a launcher that was killed
        self._elsewhere.add(variant)
      elif state != notes.DONE and (state != notes.BAD or self._options.revive):
        self._states[variant] = notes.WAITING
        self._queue.append(variant)
    for variant in sorted(self._elsewhere, key=lambda v: v.number):
      self._table.say(f'{variant.name}: runs already; waiting for its end')
    with interruption.SafePoints(listen=True) as points:
      points.hold()
      try:
        while self._queue or self._running or self._elsewhere:
          if points.reach():
            raise interruption.Stopped(points.number)
          self._fill_slots()
          self._poll()
          self._look_at_curves()
          if self._table.is_due:
            self.draw()
          time.sleep(_POLL_S)
      except BaseException as error:
        is_signal = isinstance(error, interruption.Stopped)
        self._stop_all(error.number if is_signal else signal.SIGTERM)
        raise
      finally:
        self.draw()
    return collections.Counter(self._states.values())

  def draw(self) -> None:
    """Shows where the runs are."""
    self._table.draw([self._make_row(variant) for variant in self._wanted])

  def _fill_slots(self) -> None:
    used = {*self._slots.values()}
    free = [n for n in range(self._options.jobs) if n not in used]
    for slot in free[: max(len(free) - len(self._elsewhere), 0)]:
      if not self._queue:
        return
      self._start(self._queue.popleft(), slot)

  def _start(self, variant: Variant, slot: int) -> None:
    bounds = self._options.bounds
    if self._options.gpus:
      gpu = self._options.gpus[slot % len(self._options.gpus)]
      bounds = dataclasses.replace(bounds, gpu=gpu)
    try:
      child = Child(
        self._command_of(self._sweep.words(variant)),
        directory=self._sweep.directory,
        log=self._sweep.log(variant),
        note=self._sweep.note(variant),
        bounds=bounds,
      )
    except OSError as error:  # a full disk, too many processes
      self._end(variant, notes.Note(notes.FAILED, why=str(error)), [])
      return
    self._running[variant], self._slots[variant] = child, slot
    self._states[variant] = notes.RUNNING
    self._table.note(f'{variant.name}: started')

  def _poll(self) -> None:
    for variant, child in list(self._running.items()):
      note = child.poll()
      if note is not None:
        del self._running[variant], self._slots[variant]
        self._end(variant, note, child.read_last_lines())
    for variant in list(self._elsewhere):
      state, _ = run_states.find_state(self._sweep, variant)
      if state != notes.RUNNING:
        self._elsewhere.discard(variant)
        self._states[variant] = state
        if state != notes.DONE:  # it ended with its launcher
          self._states[variant] = notes.WAITING
          self._queue.appendleft(variant)

  def _end(self, variant: Variant, note: notes.Note, lines) -> None:
    """Says how a try ended, and queues another one if there is to be one."""
    state = note.state
    # The file decides, whatever the status is.
    if run_states.is_whole(self._sweep.workdir(variant) / 'report.json'):
      state = notes.DONE
    elif state == notes.DONE:
      state = notes.FAILED
      note = dataclasses.replace(note, why='it ended without a report')
    if state != note.state:
      note = dataclasses.replace(note, state=state)
      notes.write_note(self._sweep.note(variant), note)
    self._states[variant] = state
    self._curves.pop(variant, None)  # the last evaluation may be new
    took = formatting.format_duration(note.wall_s)
    if state == notes.DONE:
      self._table.note(f'{variant.name}: done, {took}')
      return
    self._table.say(f'{variant.name}: {state}: {note.why}')
    if state != notes.FAILED:
      return
    self._failures[variant] += 1
    if self._failures[variant] <= self._options.retries:
      self._states[variant] = notes.WAITING
      self._queue.append(variant)
      self._table.say(f'{variant.name}: is tried again')
      return
    for line in lines:
      self._table.say(f'    {line}')
    self._table.say(f'    all of it: {self._sweep.log(variant)}')

  def _look_at_curves(self) -> None:
    """Reads what is new of the curves, and stops who falls behind."""
    now = time.monotonic()
    if now < self._looked_at + _LOOK_S:
      return
    self._looked_at = now
    if self._options.stop_bad:
      watched = list(self._wanted)
    else:
      watched = list(self._running) if self._table.is_due else []
    for variant in watched:
      self._curves[variant] = self._reader_of(variant).read()
    if not self._options.stop_bad:
      return
    for variant, child in self._running.items():
      reader, own = self._readers[variant], self._curves[variant]
      others = [c for v, c in self._curves.items() if v is not variant]
      if (
        reader.monitor
        and child.asked is None
        and curves.falls_behind(own, others, reader.monitor)
        # After its last step a run has but its report to make.
        and not self._is_trained(variant, own.steps[-1])
      ):
        child.stop(
          why=f'behind the median of the others at step {own.steps[-1]:,}',
          state=notes.BAD,
        )

  def _is_trained(self, variant: Variant, step: int) -> bool:
    reading = self._read_progress(variant)
    return bool(reading and reading.total and step >= reading.total)

  def _read_progress(self, variant: Variant) -> progress.Reading | None:
    """The last line of progress that a run has printed."""
    lines = children.read_last_lines(self._sweep.log(variant))
    readings = list(filter(None, map(progress.read_line, lines)))
    return readings[-1] if readings else None

  def _reader_of(self, variant: Variant) -> curves.CurveReader:
    if variant not in self._readers:
      self._readers[variant] = curves.CurveReader(
        self._sweep.workdir(variant) / 'metrics.jsonl',
        self._sweep.find_monitor(variant),
      )
    return self._readers[variant]

  def _make_row(self, variant: Variant) -> live_table.Row:
    state = self._states[variant]
    row = live_table.Row(variant.name, state)
    if state == notes.RUNNING:
      if last := self._read_progress(variant):
        total = f'/{last.total:,}' if last.total else ''
        row = dataclasses.replace(
          row, step=f'{last.step:,}{total}', rate=last.rate, left=last.left
        )
    curve = self._curves.get(variant)
    if state == notes.DONE and variant not in self._curves:
      curve = self._curves[variant] = self._reader_of(variant).read()
    monitor = variant in self._readers and self._readers[variant].monitor
    if curve and monitor and (at := curve.find_best(monitor)) is not None:
      text = formatting.format_value(curve.values[at])
      name = ''
      if len(monitor.weights) == 1:
        name = f'{curves.SPLIT}/{next(iter(monitor.weights))}'
      row = dataclasses.replace(row, metric=text, monitored=name)
    return row

  def _stop_all(self, number: int) -> None:
    """Passes a signal on as SIGTERM, and waits until all have saved."""
    running = dict(self._running)
    if not running:
      return
    name = interruption.NAMES.get(number, 'a signal')
    self._table.say(
      f'{name}: {len(running)} runs save and end; the same command continues'
    )
    for child in running.values():
      child.stop(why=f'stopped by {name} of the launcher')
    deadline = time.monotonic() + self._options.grace_s
    while self._running:
      for variant, child in list(self._running.items()):
        note = child.poll()
        if note is not None:
          del self._running[variant]
          self._end(variant, note, [])
        elif time.monotonic() > deadline and child.asked != signal.SIGKILL:
          child.stop(
            signal.SIGKILL,
            f'ended {self._options.grace_s:g} s after SIGTERM (--grace_s)',
          )
      time.sleep(_POLL_S)


def choose_jobs(
  jobs: int | None, threads: int | None, gpus: str | None
) -> tuple[int, int, tuple[str, ...]]:
  """(jobs, threads of each, devices) of flags, some of which are not given.

  >>> choose_jobs(None, 3, '0,1'), choose_jobs(None, None, None)
  ((2, 3, ('0', '1')), (1, 0, ()))

  Args:
    jobs: at a time; None is one, or one for each device.
    threads: of each; None is its share of the processors, and no bound of a
      single one, which may have all, as a run by hand has.
    gpus: their numbers, with commas between them.
  """
  devices = tuple(filter(None, (gpus or '').split(',')))
  jobs = len(devices) or 1 if jobs is None else jobs
  if threads is None:
    threads = max(count_processors() // jobs, 1) if jobs > 1 else 0
  return jobs, threads, devices


def count_processors() -> int:
  """How many this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
