"""Really kills processes that save, and looks at what they leave."""

import contextlib
import multiprocessing
import os
import random
import signal
import time

import pytest

from genrec_jax.checkpoint import manifest, retention
from genrec_jax.checkpoint.manager import CheckpointManager
from tests import killing
from tests.checkpoint import checkpoint_content as content

ROWS = 20_000  # 2.2 MB a checkpoint: a few milliseconds in every phase


@pytest.fixture(scope='module')
def processes():
  """Starts processes in milliseconds: forks of one that has the imports."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(['grain', 'genrec_jax.checkpoint.manager'])
  return context


def open_and_restore(directory):
  """The run's state as a restart would find it: step, iterator, manager."""
  checkpoints = CheckpointManager(directory, keep=2, log=lambda message: None)
  it = content.iterator()
  if checkpoints.latest() is None:
    return 0, it, checkpoints
  step, state, host = checkpoints.restore(content.state(0, ROWS), data=it)
  content.assert_is_step(step, state, host)
  return step, it, checkpoints


def train(directory, pipe, last):
  """Saves every step from where it left; tells which are complete."""
  start, it, checkpoints = open_and_restore(directory)
  for step in range(start + 1, last + 1):
    state = content.state(step, ROWS)
    next(it)
    checkpoints.save(step, state, data=it, host=content.host(step))
    pipe.send(step - 1)  # the save before is complete by now
  checkpoints.close()


def run_and_kill(processes, directory, messages, delay):
  """Trains until `delay` seconds after so many saves; what it told last."""
  parent, child = processes.Pipe(duplex=False)
  process = processes.Process(
    target=train, args=(directory, child, 100_000), daemon=True
  )
  process.start()
  child.close()
  for _ in range(messages):
    assert parent.poll(60), 'the process does not save anything'
    saved = parent.recv()
  time.sleep(delay)
  process.kill()
  process.join()
  assert process.exitcode == -signal.SIGKILL
  try:
    while True:
      saved = parent.recv()
  except EOFError:
    return saved


def check_after_kill(directory, saved):
  """A restart finds a whole step, none of those reported saved is lost."""
  step, it, _ = open_and_restore(directory)
  assert step >= saved
  assert (next(it) == next(content.iterator(step))).all()
  for other in manifest.list_steps(
    directory
  ):  # whole or half-written, not damaged
    with contextlib.suppress(manifest.IncompleteError):
      manifest.verify(directory / str(other))
  return step


@pytest.mark.parametrize(
  'trials, seed',
  [(8, 0), pytest.param(60, 1, marks=pytest.mark.slow)],
)
def test_killed_at_random_moments_of_a_save(processes, tmp_path, trials, seed):
  rng = random.Random(seed)
  reached = 0
  for trial in range(trials):  # each goes on where the one before ended
    messages = 1 + trial % 2  # in or after the first save of a process
    saved = run_and_kill(processes, tmp_path, messages, rng.uniform(0, 0.2))
    step = check_after_kill(tmp_path, saved)
    assert step >= reached
    reached = step
  assert reached >= trials // 2


def kill_at(phase):
  """Makes this process kill itself at the nth call of a function."""
  module, name, nth, _ = PHASES[phase]
  killing.at_call(module, name, nth)


def train_to_death(directory, pipe, phase):
  kill_at(phase)
  train(directory, pipe, last=20)


# What a save does, in order; killed in the third save (the first removal is
# that of step 1, when step 3 is complete).
PHASES = {
  'Orbax is done, no manifest': (manifest, 'write', 3, 2),
  'manifest not yet renamed': (os, 'replace', 3, 2),
  'complete, nothing removed yet': (retention, 'remove_superfluous', 3, 3),
  'in the middle of a removal': (os, 'rmdir', 1, 3),
}


@pytest.mark.parametrize('phase', PHASES)
def test_killed_in_a_phase_of_a_save(processes, tmp_path, phase):
  expected = PHASES[phase][-1]
  parent, child = processes.Pipe(duplex=False)
  process = processes.Process(
    target=train_to_death, args=(tmp_path, child, phase), daemon=True
  )
  process.start()
  process.join(60)
  assert process.exitcode == -signal.SIGKILL
  assert check_after_kill(tmp_path, saved=0) == expected
  # And the next process goes on, over what was left.
  train(tmp_path, child, last=expected + 2)
  parent.close()
  assert manifest.list_steps(tmp_path) == [expected + 1, expected + 2]
  left = [p for p in tmp_path.iterdir() if p.name != '.writer']
  assert len(left) == 2
