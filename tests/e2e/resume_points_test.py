"""A run killed with SIGKILL and started again is the run it would have been.

Compared are metrics.jsonl without timings, the report, the weights at the end
and the best ones, all to the last bit. Damaged checkpoints and disks that are
full: tests/train/loop_test.py.
"""

import json
import random
import signal
import subprocess

import pytest

from tests.e2e.commands import STEPS, wait_for_steps
from tests.e2e.dying import POINTS
from tests.train.tiny_run import assert_same_run, curve

KILLS = [p for p in POINTS if 'SIGTERM' not in p and 'Ctrl-C' not in p]
# In each duty of a step, and behind a step with and without a checkpoint.
FEW_KILLS = [
  'before the first checkpoint',
  'after the best, before its checkpoint',
  'while Orbax writes',
  'before the manifest',
  'during an evaluation',
  'after step 41',
  'before the report',
]


def assert_as_whole(workdir, commands):
  assert_same_run(workdir, commands.whole)
  reports = [
    json.loads((w / 'report.json').read_text())
    for w in (workdir, commands.whole)
  ]
  for key in ('metrics', 'last_epoch', 'baselines', 'best_step', 'steps'):
    assert reports[0][key] == reports[1][key]
  assert (workdir / 'report.html').exists()


@pytest.mark.parametrize(
  'points',
  [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.slow)],
  ids=['seven', 'every'],
)
def test_killed_at_points_one_after_the_other(commands, tmp_path, points):
  """One run that dies of all of them, and is started again each time."""
  for point in points:
    status, said = commands.run_fork(tmp_path, point)
    assert status == -signal.SIGKILL, (point, said)
  status, said = commands.run(tmp_path)
  assert status == 0, said
  assert f'continuing from the checkpoint of step {STEPS}' in said
  assert_as_whole(tmp_path, commands)


def kill_at_random(commands, workdir, kills, seed, **kwargs):
  """Kills so many processes at moments of their training, then lets it end."""
  rng = random.Random(seed)
  killed = 0
  while True:
    lines = curve(workdir) if (workdir / 'metrics.jsonl').exists() else []
    reached = max((row['step'] for row in lines), default=0)
    process = commands.start(workdir, **kwargs)
    if killed < kills:
      wait_for_steps(process, workdir, min(reached, STEPS - 1))
      try:
        process.wait(rng.uniform(0.0, 0.4))
      except subprocess.TimeoutExpired:
        process.kill()
    said, _ = process.communicate(timeout=500)
    if process.returncode == 0:
      return killed
    assert process.returncode == -signal.SIGKILL, said
    killed += 1


@pytest.mark.slow  # the points are chosen where it is hard
@pytest.mark.parametrize('seed', range(6))
def test_killed_at_random_moments(commands, tmp_path, seed):
  killed = kill_at_random(commands, tmp_path, kills=2, seed=seed)
  assert killed >= 1
  assert_as_whole(tmp_path, commands)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(10, 14))
def test_killed_often_and_compiled_every_time(commands, tmp_path, seed):
  """Without a compilation cache: also the compiler must repeat itself."""
  kill_at_random(commands, tmp_path, kills=6, seed=seed, compile_again=True)
  assert_as_whole(tmp_path, commands)


@pytest.mark.slow
@pytest.mark.parametrize('point', KILLS)
def test_killed_at_one_point(commands, tmp_path, point):
  status, said = commands.run(tmp_path, point)
  assert status == -signal.SIGKILL, said
  assert commands.run(tmp_path)[0] == 0
  assert_as_whole(tmp_path, commands)
