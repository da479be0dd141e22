"""Trainings as processes, started by the command a user types."""

import functools
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time

from tests import processes
from tests.train.tiny_run import CONFIG, OVERRIDES, curve

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60


# Variables of the environment that no command is started with.
OF_TESTS = ('JAX_NUM_CPU_DEVICES', 'NPROC')


def list_arguments(workdir) -> list[str]:
  keys = dict(override.split('=', 1) for override in OVERRIDES)
  keys['train.steps'] = STEPS
  overrides = [f'--config.{key}={value}' for key, value in keys.items()]
  return [f'--config={CONFIG}', f'--workdir={workdir}', *overrides]


def _train(arguments, point, log) -> None:
  with open(log, 'wb', buffering=0) as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  import jax  # by the time of a fork it is there already

  from genrec_jax import main
  from tests.e2e.dying import POINTS

  for name in OF_TESTS:
    os.environ.pop(name, None)
  jax.config.update('jax_num_cpu_devices', 1)
  sys.argv[:] = ['genrec_jax.main', *arguments]
  if point is not None:
    POINTS[point]()
  main.run()


class Commands:
  """The tiny run with more steps, whole or ended at some point."""

  def __init__(self, directory: pathlib.Path):
    self._directory = directory

  def start(self, workdir, point=None, compile_again=False, **popen):
    """A process that trains; it ends at `point` (see dying.py)."""
    module = (
      ['genrec_jax.main'] if point is None else ['tests.e2e.dying', point]
    )
    env = os.environ.copy()
    for name in OF_TESTS:
      env.pop(name, None)
    if compile_again:
      del env['JAX_COMPILATION_CACHE_DIR']
    return subprocess.Popen(
      [sys.executable, '-m', *module, *list_arguments(workdir)],
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

  def run_fork(self, workdir, point=None) -> tuple[int, str]:
    """As `run`, by a process that has its imports already.

    What it does from the first line of `main.run` on is what a command does.
    """
    log = self._directory / f'{workdir.name}.log'
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(processes.PRELOAD)
    arguments = list_arguments(workdir), point, log
    process = context.Process(target=_train, args=arguments, daemon=True)
    process.start()
    process.join(500)
    return process.exitcode, log.read_text(errors='replace')

  @functools.cached_property
  def whole(self) -> pathlib.Path:
    """Workdir of a run that nothing disturbed."""
    workdir = self._directory / 'whole'
    status, said = self.run_fork(workdir)
    assert status == 0, said
    return workdir


def wait_for_steps(process, workdir, more_than: int) -> None:
  """Returns when metrics.jsonl has a line of a later step, or the end came."""
  path = pathlib.Path(workdir) / 'metrics.jsonl'
  while process.poll() is None:
    if path.exists() and any(r['step'] > more_than for r in curve(workdir)):
      return
    time.sleep(0.005)
