"""Files that are not as they were written, and disks that are full."""

import contextlib
import errno
import os
import pathlib
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator

from benchmarks.checkpoint_faults_kill import (
  LAST,
  OTHERWISE,
  POLICIES,
  REFUSED,
  WRONG,
  Outcome,
  judged,
)
from benchmarks.checkpoint_faults_run import Run, newest
from benchmarks.checkpoint_faults_watch import SAVE, Watch
from genrec_jax.checkpoint import chain, manifest, storage
from genrec_jax.checkpoint.manifest import CheckpointError

STEPS = 4  # in the directory that is damaged
FLIPS, CUTS = 2, 1  # of a file
DISK_BYTES = 1 << 20
MOUNT = ['mount', '-t', 'tmpfs', '-o', f'size={DISK_BYTES}', 'tmpfs']


# --- Damage


def damage_trials(root, policy: str, rng, share: float = 1.0) -> list[Outcome]:
  """Damages every file of a directory in every way, one at a time.

  After each the newest checkpoint is restored, and the damaged step by name.

  Args:
    root: directory for that of the checkpoints.
    policy: of the saves.
    rng: chooses places, and what is tried.
    share: of all there is to try.
  """
  directory = pathlib.Path(root) / f'{policy}-damaged'
  full_every = POLICIES[policy].get('full_every', 0)
  run = Run(directory, life=1, keep=99, policy=policy, full_every=full_every)
  for _ in range(STEPS):
    run.train()
    run.save()
  run.checkpoints.close()
  found = []
  for name, path in storage.list_files(directory):
    for fault, change in _changes(directory, name, rng):
      if rng.random() >= share:
        continue
      before = path.read_bytes()
      undo = change(path, before)
      step = name.partition('/')[0]
      if step.isdecimal():
        trials = [(fault, None), (f'{fault}, step by name', int(step))]
      else:
        trials = [(f'{name}: {fault}', None)]
      for told, wanted in trials:
        outcome = _restored(directory, wanted, [1] * STEPS, wanted or STEPS)
        found.append(Outcome(told, policy, *outcome))
      undo()
  assert _restored(directory, None, [1] * STEPS, STEPS)[0] == LAST
  shutil.rmtree(directory)
  return found


def _restored(directory, step: int | None, made, last) -> tuple[str, str]:
  """(outcome, why) of a restore by a new object.

  Args:
    directory: of checkpoints.
    step: to restore; None for the newest.
    made: lives that its steps were made in.
    last: the step that was committed last.
  """
  run = Run(directory)
  try:
    error = run.restore(step)
  except (CheckpointError, FileNotFoundError) as e:
    return REFUSED, str(e)
  except Exception as e:
    return OTHERWISE, repr(e)
  if step is not None and run.state.step != step:
    return WRONG, f'step {run.state.step} instead of {step}'
  return judged(error, run.state.lives, made, last)


def _changes(directory, name: str, rng) -> Iterator:
  """(fault, function that does it, of path and content, and gives an undo)."""

  def writing(raw):
    def change(path, before):
      path.write_bytes(raw)
      return lambda: path.write_bytes(before)

    return change

  def deleting(path, before):
    path.unlink()
    return lambda: path.write_bytes(before)

  def adding(path, before):
    other = path.with_name(f'{path.name}.npz')
    other.write_bytes(before)
    return other.unlink

  def swapping(other):
    def change(path, before):
      there = other.read_bytes()
      path.write_bytes(there)
      other.write_bytes(before)

      def undo():
        path.write_bytes(before)
        other.write_bytes(there)

      return undo

    return change

  raw = (directory / name).read_bytes()
  yield 'file deleted', deleting
  yield 'bytes appended', writing(raw + rng.randbytes(rng.randint(1, 99)))
  step, _, rest = name.partition('/')
  if step.isdecimal():
    yield 'a file more', adding
  if not raw:
    return
  for _ in range(FLIPS):
    flipped = bytearray(raw)
    flipped[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    yield 'bit flipped', writing(bytes(flipped))
  for length in {0, *(rng.randrange(len(raw)) for _ in range(CUTS))}:
    yield 'cut short', writing(raw[:length])
  start = rng.randrange(len(raw))
  zeros = raw[:start] + bytes(len(raw[start : start + 64]))
  zeros += raw[len(zeros) :]
  if zeros != raw:
    yield 'zeros', writing(zeros)
  others = [
    directory / str(s) / rest
    for s in manifest.list_steps(directory)
    if str(s) != step and rest
  ]
  others = [o for o in others if o.exists() and o.read_bytes() != raw]
  if others:
    yield 'exchanged with that of another step', swapping(rng.choice(others))


# --- A disk that is full

REAL, LIMIT, INJECTED = (
  'disk full (a small tmpfs)',
  'no file may grow (RLIMIT_FSIZE)',
  'no space at the nth call (injected)',
)
HOWS = REAL, LIMIT, INJECTED


def full_trials(processes, root, policy: str, trials: int, rng):
  """(outcomes, saves that failed) of each way to have no room."""
  found, failed = [], {}
  for how in HOWS:
    with _disk(pathlib.Path(root) / 'disk', real=how == REAL) as disk:
      if disk is None:
        print(f'{how} is left out: mounting is not permitted here')
        continue
      receiver, sender = processes.Pipe(duplex=False)
      process = processes.Process(
        target=_fill,
        args=(disk, policy, how, trials, rng.random(), sender),
        daemon=True,
      )
      process.start()
      sender.close()
      with contextlib.suppress(EOFError):
        while True:
          outcome, why, failures = receiver.recv()
          found.append(Outcome(how, policy, outcome, why))
          failed[how, policy] = failed.get((how, policy), 0) + failures
      process.join()
      if process.exitcode:
        raise RuntimeError(f'{how}: the process has ended by itself')
  return found, failed


@contextlib.contextmanager
def _disk(path, real: bool):
  path.mkdir()
  mounted = real and shutil.which('mount')
  if mounted:
    mounted = not subprocess.run([*MOUNT, path], capture_output=True).returncode
  try:
    yield path if mounted or not real else None
  finally:
    if mounted:
      subprocess.run(['umount', path], check=True)
    shutil.rmtree(path)


def _fill(disk, policy: str, how: str, trials: int, seed: float, pipe):
  """A process: saves without room, looks, saves with room, looks again."""
  rng, life = random.Random(seed), 1
  directory = disk / 'checkpoints'
  watch = Watch(directory)
  run = _saved(Run(directory, life=life, policy=policy, **POLICIES[policy]))
  used = sum(p.stat().st_size for _, p in storage.list_files(directory / '1'))
  calls = 40
  for _ in range(trials):
    failures, problem, last = 0, None, newest(directory)
    run.train(rng.randint(1, 2))
    with _no_room(disk, how, watch, used, rng.randint(1, calls), rng):
      watch.stage = SAVE
      try:
        run.save()
        run.checkpoints.wait()
      except CheckpointError:
        failures = 1
      except OSError as e:
        failures = 1
        if e.errno not in (errno.ENOSPC, errno.EFBIG):
          problem = OTHERWISE, repr(e)
      except Exception as e:
        problem = OTHERWISE, repr(e)
      watch.stage = None
    made = run.state.lives
    last = max(last, newest(directory))
    outcome = problem or _restored(directory, None, made, last)
    if outcome[0] == LAST and failures and newest(directory) == len(made):
      outcome = OTHERWISE, 'a save that has failed is there'
    if outcome[0] == LAST:  # what was lost is in the next
      with contextlib.suppress(CheckpointError):
        _saved(run)
      if newest(directory) != run.state.step:
        outcome = OTHERWISE, 'the next save failed too'
      else:
        outcome = _restored(directory, None, made, run.state.step)
    pipe.send((*outcome, failures))
    if outcome[0] != LAST or rng.random() < 0.2:  # a new process, so to speak
      life += 1
      run.checkpoints.close()
      if outcome[0] != LAST:
        shutil.rmtree(directory)
      run = Run(directory, life=life, policy=policy, **POLICIES[policy])
      run.restore()
  pipe.close()
  # Threads of Orbax would wait some minutes for what a failed save never did.
  os._exit(0)


def _saved(run: Run) -> Run:
  run.train()
  run.save()
  run.checkpoints.wait()
  return run


@contextlib.contextmanager
def _no_room(disk, how: str, watch: Watch, used: int, call: int, rng):
  """Something is missing that a save needs, early or late in it."""
  if how == REAL:
    filler = disk / 'filler'
    left = rng.randint(0, 3 * used)
    with filler.open('wb') as f:
      room = shutil.disk_usage(disk).free - left
      f.truncate(0)
      f.write(bytes(max(room, 0)))
    try:
      yield
    finally:
      filler.unlink()
  elif how == LIMIT:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Small files are more than large ones.
    limit = int(2 ** rng.uniform(4, 14))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
      yield
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  else:
    watch.fill(call, once=rng.random() < 0.5)
    try:
      yield
    finally:
      watch.fill(None)


def between_trials(root, policy: str, rng, trials: int) -> list[Outcome]:
  """A bit of a file of rows flips after it was compared, before it is read."""
  directory = pathlib.Path(root) / f'{policy}-between'
  run = Run(directory, life=1, keep=99, policy=policy)
  for _ in range(STEPS):
    run.train()
    run.save()
  run.checkpoints.close()
  files = [p for name, p in storage.list_files(directory) if '/rows/' in name]
  found, verify = [], chain.verify_chain
  for _ in range(trials):
    path = rng.choice(files)
    before = path.read_bytes()

    def flipping(*args, path=path, before=before, **more):
      bodies = verify(*args, **more)
      flipped = bytearray(before)
      flipped[rng.randrange(len(before))] ^= 1 << rng.randrange(8)
      path.write_bytes(bytes(flipped))
      return bodies

    chain.verify_chain = flipping
    try:
      outcome = _restored(directory, STEPS, [1] * STEPS, STEPS)
    finally:
      chain.verify_chain = verify
    path.write_bytes(before)
    found.append(
      Outcome('rows: bit flipped after the comparison', policy, *outcome)
    )
  shutil.rmtree(directory)
  return found
