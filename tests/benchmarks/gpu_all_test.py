"""Tests of the script for machines with an accelerator."""

import sys

import pytest

from benchmarks import gpu_all


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')


def test_every_step_is_a_command_there_is():
  for command, minutes in gpu_all.STEPS.values():
    module = command.split()[0].replace('.', '/')
    assert (
      command.startswith('pytest')
      or (gpu_all.runs.ROOT / f'{module}.py').exists()
    ), command
    assert minutes > 0


def test_a_failing_step_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
  steps = {'bad': ('no_such_module', 1), 'good': ('this', 1)}
  monkeypatch.setattr(gpu_all, 'STEPS', steps)
  out = tmp_path / 'out'
  assert gpu_all.main(['--out', str(out), '--steps', 'bad', 'good']) == 1
  text = capsys.readouterr().out
  assert 'bad: failed with status 1' in text and 'good: done' in text
  assert 'no_such_module' in (out / 'bad.log').read_text()
  assert 'CpuDevice' in text


def test_a_step_that_takes_too_long_is_stopped(monkeypatch, tmp_path):
  monkeypatch.setattr(gpu_all, 'STEPS', {'slow': ('http.server 0', 20 / 60)})
  monkeypatch.setattr(gpu_all, 'LEAST_S', 0.2)
  deadline = gpu_all.time.monotonic() + 1.2
  outcome = gpu_all.run('slow', tmp_path, deadline)
  assert outcome.startswith('stopped after 1'), outcome
  assert gpu_all.run('slow', tmp_path, deadline) == 'no time left'
  assert sys.executable
