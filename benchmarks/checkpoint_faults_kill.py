"""Processes that save, follow or write beside each other, and are killed.

A trial is a process and its end. What it has left is judged by the process that
comes next, which restores, compares, goes on, and is killed in turn.
"""

import collections
import dataclasses
import hashlib
import itertools
import pathlib
import random
import shutil
import time

import numpy as np

from benchmarks.checkpoint_faults_run import (
  SPECS,
  Run,
  State,
  newest,
  share_programs,
)
from benchmarks.checkpoint_faults_watch import PHASES, RESTORE, SAVE, Watch
from genrec_jax.checkpoint import manifest, storage
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.serving_copy import ServingCopy

LAST, EARLIER = 'last', 'earlier'
REFUSED, WRONG, OTHERWISE = 'refused', 'wrong', 'otherwise'
OUTCOMES = LAST, EARLIER, REFUSED, WRONG, OTHERWISE

CLOCK = 'any moment'
AIMS = CLOCK, *PHASES
POLICIES = {
  'full': {'keep': 1},
  'one_shot': {'keep': 2},
  'consecutive': {'keep': 1, 'full_every': 3},
  'intermittent': {'keep': 2},
}
SAVES = 3  # of a process that is not killed
FRESH_AFTER = 20  # trials, a new directory
_PATIENCE_S = 300.0


@dataclasses.dataclass
class Outcome:
  """How a trial ended.

  Attributes:
    fault: what was done.
    policy: of the saves.
    outcome: of OUTCOMES.
    why: in words.
  """

  fault: str
  policy: str
  outcome: str
  why: str = ''


def judged(error: str | None, lives, wanted, last: int) -> tuple[str, str]:
  """(outcome, why) of a restore that was not refused.

  Args:
    error: what differs from what the checkpoint says it is.
    lives: that it says.
    wanted: lives that steps were made in, in their order.
    last: the newest step that was committed.
  """
  if error:
    return WRONG, error
  if lives != wanted[: len(lives)]:
    return WRONG, f'lives {lives} are not those of the steps'
  if len(lives) < last:
    return EARLIER, f'step {len(lives)} instead of {last}'
  return LAST, ''


# --- Kills of a training


def live(directory, options, life, saves, aim, pipe):
  """A process: restores, tells what it has found, and saves."""
  share_programs(directory.parent)
  watch = Watch(directory, *aim)
  try:
    run = Run(directory, life=life, policy=options['policy'], **options['more'])
    watch.stage = RESTORE
    error = run.restore()
    watch.stage = SAVE
    pipe.send(('restored', run.state.lives, error))
    rng = random.Random(life)
    for _ in range(saves):
      run.train(rng.randint(1, 2))
      run.save()
      pipe.send(('saving', run.state.step))
      if rng.random() < 0.5:  # else the next save waits for this one
        run.checkpoints.wait()
        pipe.send(('saved', run.state.step))
    run.checkpoints.close()
    pipe.send(('ended', watch.counts))
  except CheckpointError as e:
    pipe.send(('refused', str(e)))
  except Exception as e:
    pipe.send(('failed', repr(e)))


class Kills:
  """Trials on one directory after another, of one policy."""

  def __init__(self, processes, root, policy: str, rng: random.Random):
    """Kills nothing yet.

    Args:
      processes: multiprocessing context.
      root: directory for those of the checkpoints.
      policy: of `POLICIES`.
      rng: chooses the moments.
    """
    self._processes, self._root, self._rng = processes, root, rng
    self._policy = policy
    self._options = {'policy': policy, 'more': POLICIES[policy]}
    self._life = 0
    self._calls = dict.fromkeys(PHASES, 0)  # of a process that is not killed
    self._gap_s = 0.3  # between two messages
    self._pending = []  # faults whose trace nobody has looked at
    self.found = []
    self._fresh()

  def run(self, trials: int) -> list[Outcome]:
    """So many kills in each phase, and at any moment."""
    left = [aim for aim in AIMS for _ in range(trials)]
    self._rng.shuffle(left)
    for _ in range(2):  # counts the calls, those of a restore too
      self._next(None)
    on_this = 0
    while left:
      if on_this >= FRESH_AFTER:
        self._next(None, saves=0)
        self._fresh()
        self._next(None, saves=1)
        on_this = 0
      if self._next(left[-1]):
        left.pop()
        on_this += 1
    self._next(None, saves=0)
    shutil.rmtree(self._directory)
    return self.found

  def _fresh(self) -> None:
    assert not self._pending
    self._directory = self._root / f'{self._policy}-{self._life}'
    self._told = self._last = 0
    # Lives of the steps that the newest process has begun with, and its own.
    self._begun, self._by = [], 0

  def _next(self, aim: str | None, saves: int = SAVES) -> bool:
    """A process, and perhaps its end; whether it was killed."""
    self._life += 1
    before = _contents(self._directory) if aim == RESTORE else None
    call = self._rng.randint(1, self._calls[aim]) if aim in PHASES else 0
    last = max(newest(self._directory), self._told)
    killed, told = self._process(aim, call, saves)
    if restored := [m for m in told if m[0] == 'restored']:
      _, lives, error = restored[0]
      # As many as any process could have made: each step is of one life.
      wanted = [*self._begun, *itertools.repeat(self._by, 1000)]
      self._judge(*judged(error, lives, wanted, last))
      self._begun, self._by = lives, self._life
      if error:
        self._fresh()
        return False
    for what, *more in told:
      if what in ('refused', 'failed'):
        outcome = REFUSED if what == 'refused' else OTHERWISE
        # While saving, it is this process that has failed for no reason.
        self._pending += [] if self._pending else [aim or CLOCK]
        self._judge(outcome if not restored else OTHERWISE, more[0])
        self._fresh()
        return False
      if what == 'saved':
        self._told = more[0]
      if what == 'ended':
        self._calls = {p: max(n, more[0][p]) for p, n in self._calls.items()}
    if killed:
      self._pending.append(aim)
      if before is not None and before != _contents(self._directory):
        self._judge(WRONG, 'a restore has changed the directory')
    return killed

  def _judge(self, outcome: str, why: str) -> None:
    for aim in self._pending:
      fault = f'killed: {aim}' if aim == CLOCK else f'killed in {aim}'
      self.found.append(Outcome(fault, self._policy, outcome, why))
    self._pending = []

  def _process(self, aim, call, saves):
    """(whether it was killed, its messages)."""
    receiver, sender = self._processes.Pipe(duplex=False)
    exact = (aim, call) if aim in PHASES else (None, 0)
    process = self._processes.Process(
      target=live,
      args=(self._directory, self._options, self._life, saves, exact, sender),
      daemon=True,
    )
    process.start()
    sender.close()
    told = []
    if aim == CLOCK:
      # From the first restore to after the last save.
      _receive(receiver, told, self._rng.randint(0, 2 * SAVES))
      time.sleep(self._rng.uniform(0, self._gap_s))
      process.kill()
    start = time.monotonic()
    _receive(receiver, told)
    process.join(_PATIENCE_S)
    if aim is None and len(told) > 2:
      self._gap_s = (time.monotonic() - start) / len(told)
    killed = process.exitcode != 0
    process.close()
    return killed, told


def _receive(receiver, told: list, count: float = float('inf')) -> None:
  """Appends so many messages, or all until the process ends."""
  while len(told) < count:
    if not receiver.poll(_PATIENCE_S):
      raise TimeoutError('a process neither goes on nor ends')
    try:
      told.append(receiver.recv())
    except (EOFError, OSError):
      return


def _contents(directory) -> str:
  """What would be another text if any file were another."""
  found = hashlib.sha256()
  for name, path in storage.list_files(directory):
    found.update(f'{name} {path.stat().st_mtime_ns}\n'.encode())
    found.update(path.read_bytes())
  return found.hexdigest()


# --- A follower of what is published

_PUBLISHED = 24
_BASES = 4


def follow(source, copy, aim, pipe):
  """A process: resumes, updates, and tells what its copy is each time."""
  from genrec_jax.checkpoint.follow import Follower

  watch = Watch(pathlib.Path(source).parent, *aim)
  watch.stage = SAVE
  try:
    with Follower(source, copy, log=lambda line: None) as follower:
      pipe.send(('resumed', follower.step, _differs(follower, follower.step)))
      follower.update()
      pipe.send(('updated', follower.step, _differs(follower, follower.step)))
    pipe.send(('ended', watch.counts))
  except CheckpointError as e:
    pipe.send(('refused', str(e)))
  except Exception as e:
    pipe.send(('failed', repr(e)))


def _differs(follower, step: int | None) -> str | None:
  wanted = State([1] * (step or 0)).arrays
  for name in SPECS if step else ():
    if not np.array_equal(follower.table(name), wanted[name]):
      return f'step {step}: {name} is not what was published'
  return None


def follower_trials(processes, root, trials: int, rng) -> list[Outcome]:
  """Kills a follower while a run publishes one step after another."""
  run = Run(
    root / 'run',
    life=1,
    keep=99,
    published=True,
    policy='consecutive',
    full_every=_BASES,
  )
  for _ in range(_PUBLISHED):
    run.train()
    run.save()
  run.checkpoints.close()
  found, pending, calls = [], 0, 12
  source, copy = root / 'published', root / 'copy'
  shown = reached = _PUBLISHED
  while len(found) < trials:
    if shown == _PUBLISHED:
      for used in source, copy:
        shutil.rmtree(used, ignore_errors=True)
      source.mkdir()
      shown = reached = 0
    if not pending or rng.random() < 0.5:
      shown += 1
      _publish(run.checkpoints.directory, source, shown)
    enough = len(found) + pending >= trials or shown == _PUBLISHED
    aim = (None, 0) if enough else (SAVE, rng.randint(1, calls))
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(
      target=follow, args=(source, copy, aim, sender), daemon=True
    )
    process.start()
    sender.close()
    told = []
    _receive(receiver, told)
    process.join(_PATIENCE_S)
    outcome, why = None, ''
    for what, *more in told:
      if what in ('refused', 'failed'):
        outcome, why = (REFUSED if what == 'refused' else OTHERWISE), more[0]
        break
      if what == 'ended':
        calls = max(calls, more[0][SAVE])
        continue
      step, error = more
      if error or (step is not None and step < reached):
        outcome, why = WRONG, error or f'step {step} after {reached}'
        break
      reached = step or reached
      if what == 'updated':
        outcome = LAST if step == shown else EARLIER
    if outcome:
      found += [Outcome('follower killed', 'published', outcome, why)] * pending
      pending = 0
    if process.exitcode:
      pending += 1
      if error := _read_wrongly(copy):
        found.append(Outcome('follower killed', 'published', WRONG, error))
        pending -= 1
  return found[:trials]


def _publish(run, source, step: int) -> None:
  """Moves a step to where readers look, and removes what a run would."""
  whole = source / f'{step}.part'
  shutil.copytree(run / str(step), whole)
  whole.rename(source / str(step))
  if 'base' == manifest.read(source / str(step))['rows']['kind']:
    for old in range(1, step - _BASES):
      shutil.rmtree(source / str(old), ignore_errors=True)


def _read_wrongly(copy) -> str | None:
  """What a service would read of a copy whose follower was killed."""
  try:
    served = ServingCopy(copy)
    for name, spec in SPECS.items():
      rows, step = served.read(name, np.arange(spec.rows))
      if step is not None:
        if not np.array_equal(rows, State([1] * step).arrays[name]):
          return f'a service reads {name} of step {step} wrongly'
  except FileNotFoundError:
    pass  # nothing is built yet, and it says so
  return None


# --- Two writers


def write_beside(directory, options, life, seed, pipe):
  """A process that saves as long as it may, and tries again when it may not."""
  share_programs(directory.parent)
  rng = random.Random(seed)
  run = None
  try:
    for _ in range(3):
      try:
        if run is None or rng.random() < 0.5:  # else on from where it stands
          run = Run(
            directory, life=life, policy=options['policy'], **options['more']
          )
          if error := run.restore():
            pipe.send(('wrong', error))
            return
        for _ in range(rng.randint(1, 3)):
          run.train(rng.randint(1, 2))
          pipe.send(('saving', list(run.state.lives)))
          run.save()
          time.sleep(rng.uniform(0, 0.05))
        run.checkpoints.wait()
        if rng.random() < 0.7:
          run.checkpoints.close()
      except (CheckpointError, FileNotFoundError) as e:
        pipe.send(('refused', str(e)))
      time.sleep(rng.uniform(0, 0.2))
    pipe.send(('ended',))
  except Exception as e:
    pipe.send(('failed', repr(e)))


def writers_trials(
  processes, root, policy: str, trials: int, rng
) -> tuple[list[Outcome], dict[tuple[str, str], int]]:
  """(outcomes, refusals) of two processes that save in one directory."""
  found, refused, life = [], collections.Counter(), 0
  options = {'policy': policy, 'more': POLICIES[policy]}
  for trial in range(trials):
    directory = root / f'{policy}-writers-{trial}'
    pipes, both = [], []
    for _ in range(2):
      life += 1
      receiver, sender = processes.Pipe(duplex=False)
      process = processes.Process(
        target=write_beside,
        args=(directory, options, life, rng.random(), sender),
        daemon=True,
      )
      process.start()
      sender.close()
      pipes.append(receiver)
      both.append(process)
    killed = rng.random() < 0.5
    told = []
    if killed:
      _receive(pipes[0], told, rng.randint(1, 4))
      both[0].kill()
    for receiver, process in zip(pipes, both, strict=True):
      _receive(receiver, told, float('inf'))
      process.join(_PATIENCE_S)
    fault = 'two writers' + (', one killed' if killed else '')
    refused[fault, policy] += sum(m[0] == 'refused' for m in told)
    errors = [m for m in told if m[0] in ('failed', 'wrong')]
    if errors:
      outcome = WRONG if errors[0][0] == 'wrong' else OTHERWISE
      found.append(Outcome(fault, policy, outcome, errors[0][1]))
    else:
      made = [m[1] for m in told if m[0] == 'saving']
      found.append(Outcome(fault, policy, *_of_one(directory, made)))
    shutil.rmtree(directory, ignore_errors=True)
  return found, refused


def _of_one(directory, made: list[list[int]]) -> tuple[str, str]:
  """(outcome, why): every step is refused, or one that a writer has made."""
  last = newest(directory)
  result = LAST, ''
  for step in [None, *manifest.list_steps(directory)]:
    run = Run(directory)
    try:
      error = run.restore(step)
    except CheckpointError as e:
      if step is None:
        result = REFUSED, str(e)
      continue
    lives = run.state.lives
    if error or (lives and lives not in made):
      return WRONG, error or f'lives {lives} are of no writer'
    if step is None and run.state.step < last:
      result = EARLIER, f'step {run.state.step} instead of {last}'
  return result
