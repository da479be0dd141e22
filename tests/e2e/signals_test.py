"""SIGTERM and Ctrl-C save and end with statuses of their own."""

import signal
import time

import pytest

from genrec_jax.checkpoint import manifest
from tests.e2e.commands import STEPS, wait_for_steps
from tests.train.tiny_run import EVAL_EVERY, assert_same_run


def test_sigterm_from_outside(commands, tmp_path):
  process = commands.start(tmp_path)
  wait_for_steps(process, tmp_path, 1)
  process.send_signal(signal.SIGTERM)
  said, _ = process.communicate(timeout=500)
  assert process.returncode == 75, said
  steps = manifest.list_steps(tmp_path / 'checkpoints')
  assert f'stopped by SIGTERM at step {steps[-1]} of {STEPS}' in said
  assert 'the same command continues' in said
  assert 'Traceback' not in said
  status, said = commands.run_fork(tmp_path)
  assert status == 0
  assert f'continuing from the checkpoint of step {steps[-1]}' in said
  assert_same_run(tmp_path, commands.whole)


@pytest.mark.slow  # tests/train/loop_test.py does this within one process
def test_sigterm_at_two_points(commands, tmp_path):
  for point, step in [
    ('SIGTERM after step 5', 5),
    ('SIGTERM during an evaluation', 3 * EVAL_EVERY),
  ]:
    status, said = commands.run(tmp_path, point)
    assert status == 75, said
    assert f'stopped by SIGTERM at step {step} of {STEPS}' in said
    assert manifest.list_steps(tmp_path / 'checkpoints')[-1] == step
    assert not (tmp_path / 'report.json').exists()
  assert commands.run(tmp_path)[0] == 0
  assert_same_run(tmp_path, commands.whole)


def test_ctrl_c(commands, tmp_path):
  status, said = commands.run(tmp_path, 'Ctrl-C after step 6')
  assert status == 130
  assert said.rstrip().endswith(
    f'stopped by Ctrl-C at step 6 of {STEPS}; the same command continues from '
    'there'
  )
  assert 'once more ends at once' in said and 'Traceback' not in said
  assert manifest.list_steps(tmp_path / 'checkpoints') == [4, 6]
  assert commands.run_fork(tmp_path)[0] == 0
  assert_same_run(tmp_path, commands.whole)


@pytest.mark.parametrize('number, status', [('SIGINT', 130), ('SIGTERM', 75)])
def test_a_signal_before_the_first_step(commands, tmp_path, number, status):
  """Nothing is lost, so that nothing is waited for: not even for JAX."""
  process = commands.start(tmp_path, 'from outside')
  while not (tmp_path / 'config.json').exists() and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(signal.Signals[number])
  said, _ = process.communicate(timeout=10)
  assert process.returncode == status, said
  assert said.splitlines()[-1].endswith('the same command starts again')
  assert 'Traceback' not in said


def test_a_second_ctrl_c_ends_at_once(commands, tmp_path):
  process = commands.start(tmp_path, 'from outside')
  wait_for_steps(process, tmp_path, 1)
  process.send_signal(signal.SIGINT)
  time.sleep(0.001)  # two that arrive at once are one
  process.send_signal(signal.SIGINT)
  said, _ = process.communicate(timeout=10)
  assert process.returncode == 130, said
  assert 'Traceback' not in said
