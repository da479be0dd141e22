"""A training process is really killed, started again, and nothing differs."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.train import tiny_run

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = [
  sys.executable,
  *('-m', 'genrec_jax.main', f'--config={tiny_run.CONFIG}'),
  *(f'--config.{override}' for override in tiny_run.OVERRIDES),
]
# Runs the command line, but kills its own process at a chosen point.
KILLED_AT = """
import os, pathlib, signal, sys
from genrec_jax import main
from genrec_jax.checkpoint import manager, manifest
from genrec_jax import progress
from genrec_jax.train import loop, results

point, number = sys.argv[1], int(sys.argv[2])
sys.argv = sys.argv[2:]

def die():
  os.kill(os.getpid(), signal.SIGKILL)

def wrap(module, name, around):
  setattr(module, name, around(getattr(module, name)))

def after_step(update):
  def wrapped(self, step, **shown):
    update(self, step, **shown)
    if step == number:
      die()
  return wrapped

def after_evaluation(evaluate):
  def wrapped(config, evaluators, state, step, *rest):
    result = evaluate(config, evaluators, state, step, *rest)
    if step == number:
      die()
    return result
  return wrapped

def during_save(save):
  def wrapped(self, step, *args, **kwargs):
    save(self, step, *args, **kwargs)
    if step == number and self.directory.name == 'checkpoints':
      die()
  return wrapped

def after_best(save):
  def wrapped(self, step, *args, **kwargs):
    save(self, step, *args, **kwargs)
    if step == number and self.directory.name == 'best':
      self.wait()
      die()
  return wrapped

def before_manifest(write):
  def wrapped(directory, step, **extra):
    if step == number and pathlib.Path(directory).parent.name == 'checkpoints':
      die()
    return write(directory, step, **extra)
  return wrapped

def in_report(finish):
  return lambda *args, **kwargs: die()

if point == 'step':
  wrap(progress.Progress, 'update', after_step)
elif point == 'evaluation':
  wrap(loop, '_evaluate', after_evaluation)
elif point == 'save':
  wrap(manager.CheckpointManager, 'save', during_save)
elif point == 'best':
  wrap(manager.CheckpointManager, 'save', after_best)
elif point == 'manifest':
  wrap(manifest, 'write', before_manifest)
elif point == 'report':
  wrap(results, 'finish', in_report)
main.run()
"""


ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT)}


def run(workdir, point='', number=0) -> int:
  """The exit status of a training in a process of its own."""
  command = [*COMMAND, f'--workdir={workdir}']
  if point:
    flags = command[3:]
    command = [sys.executable, '-c', KILLED_AT, point, str(number), *flags]
  done = subprocess.run(
    command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, timeout=300
  )
  if done.returncode not in (0, -signal.SIGKILL):
    raise AssertionError(done.stderr.decode())
  return done.returncode


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The workdir of a run that nothing interrupted."""
  workdir = tmp_path_factory.mktemp('whole')
  assert run(workdir) == 0
  return workdir


# Checkpoints and evaluations happen every four steps, twenty steps are a run.
KILLS = [
  ('step', 3),  # before any checkpoint
  ('best', 4),
  ('evaluation', 8),
  ('step', 10),
  ('save', 12),
  ('manifest', 12),
  ('report', 0),
]


@pytest.mark.parametrize(
  'kills',
  [
    KILLS,
    *(pytest.param([kill], marks=pytest.mark.slow) for kill in KILLS),
  ],
  ids=lambda kills: '-'.join(f'{point}{number}' for point, number in kills),
)
def test_killed_and_started_again(whole, tmp_path, kills):
  """One run that dies of all, started again each time; or of one of them."""
  for point, number in kills:
    status = run(tmp_path, point, number)
    assert status == -signal.SIGKILL, f'{point} {number} was not reached'
  assert run(tmp_path) == 0
  tiny_run.assert_same_run(tmp_path, whole)
  assert (tmp_path / 'report.json').exists()


@pytest.mark.slow  # signals_test.py does the same to a longer run
def test_sigterm_saves_and_the_same_command_continues(whole, tmp_path):
  process = subprocess.Popen(
    [*COMMAND, f'--workdir={tmp_path}', '--config.train.steps=100000'],
    env=ENVIRONMENT,
    cwd=ROOT,
    stderr=subprocess.PIPE,
  )
  metrics = tmp_path / 'metrics.jsonl'
  deadline = time.monotonic() + 200
  while not metrics.exists() or not metrics.stat().st_size:
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)
  process.send_signal(signal.SIGTERM)
  _, said = process.communicate(timeout=200)
  assert process.returncode == 0, said.decode()
  assert b'stopped by SIGTERM at step' in said
  assert b'the same command continues' in said
  saved = max(int(p.name) for p in (tmp_path / 'checkpoints').glob('[0-9]*'))
  assert saved >= 2  # the first line of metrics is that of step 2


@pytest.mark.slow
def test_many_kills_at_random_moments(whole, tmp_path):
  rng = random.Random(0)
  trials = 0
  while not (tmp_path / 'report.json').exists():
    process = subprocess.Popen(
      [*COMMAND, f'--workdir={tmp_path}'],
      env=ENVIRONMENT,
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    try:
      process.wait(rng.uniform(3.0, 9.0))
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
    trials += 1
    assert trials < 100
  tiny_run.assert_same_run(tmp_path, whole)
