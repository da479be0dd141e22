"""Trainings as processes, started by the command a user types."""

import functools
import os
import pathlib
import subprocess
import sys
import time

from tests.train.tiny_run import CONFIG, OVERRIDES, curve

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60


class Commands:
  """The tiny run with more steps, whole or ended at some point."""

  def __init__(self, directory: pathlib.Path):
    self._directory = directory

  def start(self, workdir, point=None, compile_again=False, **popen):
    """A process that trains; it ends at `point` (see dying.py)."""
    module = (
      ['genrec_jax.main'] if point is None else ['tests.e2e.dying', point]
    )
    overrides = [f'--config.{o}' for o in (*OVERRIDES, f'train.steps={STEPS}')]
    env = os.environ.copy()
    for name in ('JAX_NUM_CPU_DEVICES', 'NPROC'):  # those of the tests
      env.pop(name, None)
    if compile_again:
      del env['JAX_COMPILATION_CACHE_DIR']
    return subprocess.Popen(
      [sys.executable, '-m', *module]
      + [f'--config={CONFIG}', f'--workdir={workdir}', *overrides],
      cwd=ROOT,
      env=env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      **popen,
    )

  def run(self, workdir, point=None, **kwargs) -> tuple[int, str]:
    """(exit status, what it said) of a process that ends by itself."""
    process = self.start(workdir, point, **kwargs)
    said, _ = process.communicate(timeout=500)
    return process.returncode, said

  @functools.cached_property
  def whole(self) -> pathlib.Path:
    """Workdir of a run that nothing disturbed."""
    workdir = self._directory / 'whole'
    status, said = self.run(workdir)
    assert status == 0, said
    return workdir


def wait_for_steps(process, workdir, more_than: int) -> None:
  """Returns when metrics.jsonl has a line of a later step, or the end came."""
  path = pathlib.Path(workdir) / 'metrics.jsonl'
  while process.poll() is None:
    if path.exists() and any(r['step'] > more_than for r in curve(workdir)):
      return
    time.sleep(0.005)
