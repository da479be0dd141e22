"""Tests of the script for machines with an accelerator."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

from benchmarks import gpu_all


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')


def test_every_step_is_a_command_there_is():
  for command, minutes in gpu_all.STEPS.values():
    module = command.split()[0].replace('.', '/')
    assert (
      command.startswith('pytest') or (gpu_all.ROOT / f'{module}.py').exists()
    ), command
    assert 0 < minutes <= 9
  assert sum(gpu_all.STEPS[step][1] for step in gpu_all.USUAL) <= 30


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


def test_a_step_ends_with_its_workers(monkeypatch, tmp_path):
  """Those of the kit are in sessions of their own, and would hold the GPU."""
  words = f'--out {tmp_path} --only hangs --limit 100'
  module = 'tests.benchmarks.gpu_kit_cases'
  monkeypatch.setattr(gpu_all, 'STEPS', {'slow': (f'{module} {words}', 1)})
  monkeypatch.setattr(gpu_all, 'LEAST_S', 0.0)
  monkeypatch.setenv('GPU_KIT_PID', str(tmp_path / 'pid'))
  outcome = gpu_all.run('slow', tmp_path, gpu_all.time.monotonic() + 8)
  assert outcome.startswith('stopped'), outcome
  _wait_for_the_end_of(int((tmp_path / 'pid').read_text()))


def test_what_a_worker_leaves_behind_ends_too(monkeypatch, tmp_path):
  """A compiler that outlives the worker that began it would hold the GPU."""
  monkeypatch.setenv('GPU_KIT_LEFT', str(tmp_path / 'pid'))
  words = ('--out', str(tmp_path), '--only', 'dies')
  module = 'tests.benchmarks.gpu_kit_cases'
  done = subprocess.run([sys.executable, '-m', module, *words], timeout=60)
  assert done.returncode == 0
  assert 'status 7' in (tmp_path / 'gpu_kit_cases.jsonl').read_text()
  _wait_for_the_end_of(int((tmp_path / 'pid').read_text()))


def _wait_for_the_end_of(pid: int) -> None:
  for _ in range(100):
    try:
      os.kill(pid, 0)
      with open(f'/proc/{pid}/stat') as file:
        # One that nobody has waited for yet is dead, too.
        if file.read().rpartition(')')[2].split()[0] == 'Z':
          return
    except (ProcessLookupError, FileNotFoundError):
      return
    time.sleep(0.1)
  pytest.fail(f'the process {pid} still runs')


BARE = (
  'absl', 'array_record', 'grain', 'hypothesis', 'jax_triton',
  'ml_collections', 'tensorboardX', 'torch', 'triton', 'xdist',
)  # fmt: skip


def block_imports(folder) -> dict[str, str]:
  """The environment of a machine that lacks these modules."""
  (folder / 'sitecustomize.py').write_text(
    textwrap.dedent(f'''
      import sys

      class Blocked:
        def find_spec(self, name, path=None, target=None):
          if name.partition('.')[0] in {BARE}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)

      sys.meta_path.insert(0, Blocked())
    ''')
  )
  return {**os.environ, 'PYTHONPATH': f'{folder}{os.pathsep}{gpu_all.ROOT}'}


def test_what_is_missing_is_named(tmp_path):
  done = subprocess.run(
    [
      *(sys.executable, '-c'),
      'from benchmarks import gpu_all\nprint(gpu_all.find_missing())',
    ],
    env=block_imports(tmp_path),
    capture_output=True,
    text=True,
    cwd=tmp_path,
  )
  assert done.returncode == 0, done.stderr
  assert "'jax-triton==0.3.1': 'smoke" in done.stdout
  assert 'optax' not in done.stdout


@pytest.mark.parametrize(
  'module, only',
  [
    ('smoke', 'machine|bfloat16, both'),
    ('kernels', 'kernel backward_bias|64.*layer'),
    ('tune', 'both 64 backward_keys 32|none 128 forward 64-32'),
    ('embedding', 'xla: bag.*64, zipf'),
  ],
)
def test_a_bare_machine_rehearses_the_kit(tmp_path, module, only):
  words = ('--out', str(tmp_path), '--rehearse', '--workers', '1')
  done = subprocess.run(
    [sys.executable, '-m', f'benchmarks.gpu.{module}', *words, '--only', only],
    env=block_imports(tmp_path),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'failed or left: none' in done.stdout, done.stdout
