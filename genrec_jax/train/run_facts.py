"""What a report says of where a run comes from, and what it took."""

import os
import sys
import time
from collections.abc import Mapping

import jax

from genrec_jax import config as config_lib
from genrec_jax import provenance
from genrec_jax.contracts import TaskKind
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.numerics import policy
from genrec_jax.runtime import planning
from genrec_jax.runtime.compile_clock import compile_seconds


class PhaseClock:
  """Adds the seconds and core-seconds to `run_values`, by what is done.

  It starts with the setup: reading the data, building and restoring the state.
  """

  def __init__(self):
    """Starts; what is measured before `keep_in` is kept until then."""
    self._values, self._phase = {}, 'setup'
    self._wall, self._core = time.monotonic(), time.process_time()
    self._compiled = compile_seconds()

  def keep_in(self, run_values: dict) -> None:
    """Adds to these values from now on, and what was measured so far."""
    self.update()
    for name, seconds in self._values.items():
      run_values[name] = run_values.get(name, 0.0) + seconds
    self._values = run_values

  def switch_phase(self, phase: str) -> None:
    """What follows is another phase, 'train' or 'eval'."""
    self.update()
    self._phase = phase

  def update(self) -> None:
    """Adds what has passed since the last time."""
    wall, core = time.monotonic(), time.process_time()
    compiled = compile_seconds()
    for name, seconds in (
      (f'{self._phase}_s', wall - self._wall),
      (f'{self._phase}_core_s', core - self._core),
      ('compile_s', compiled - self._compiled),
    ):
      self._values[name] = self._values.get(name, 0.0) + seconds
    self._wall, self._core, self._compiled = wall, core, compiled


def describe_run(config, workdir, host: Mapping, kind: TaskKind) -> dict:
  """Where a run comes from, as report.json holds it.

  Args:
    config: of the run.
    workdir: of the run.
    host: what the loop remembers.
    kind: of the task, whose defaults the config is compared with.

  Returns:
    What `report.summary` says of 'run'.
  """
  return {
    'command': provenance.describe_command(),
    'set_keys': provenance.list_set_keys(),
    'changed': provenance.mask_all(
      config_lib.find_changed(config, kind.defaults)
    ),
    'workdir': os.path.abspath(workdir),
    'started': host.get('started'),
    'finished': time.time(),
    'version': provenance.find_version(),
    'commit': provenance.find_commit(),
  }


def describe_memory() -> dict[str, int]:
  """The most bytes that were in use: of 'host', and of a 'device' that says."""
  peaks = {}
  try:
    import resource  # Windows has none
  except ImportError:
    pass
  else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks['host'] = peak * (1 if sys.platform == 'darwin' else 1024)
  statistics = jax.local_devices()[0].memory_stats() or {}
  if 'peak_bytes_in_use' in statistics:
    peaks['device'] = statistics['peak_bytes_in_use']
  return peaks


def describe_parameters(experiment) -> str:
  """How many parameters there are, and where, in words."""
  plan = experiment.runtime.plan
  tables = []
  for name, spec in experiment.task.tables().items():
    tables.append(f'{name} {spec.rows:,} x {spec.dim}')
    if plan:
      held = plan.tables.get(name)
      tables[-1] += f' ({held.scheme if held else "on every device"})'
  model = experiment.parameters()['model']
  text = f'{model:,} model parameters, tables: {", ".join(tables)}'
  if plan:
    text += (
      f'; replicas x hosts x devices = {plan.replicas} x {plan.hosts} x '
      f'{plan.devices}'
    )
  if towers := getattr(experiment.task, 'describe_towers', str)():
    text += f'; {towers}'
  return text


def describe_formats(config, experiment) -> str:
  """In which formats is multiplied, and rows travel, in words.

  Args:
    config: of the run.
    experiment: its pieces.

  Returns:
    '; ' and a text for each of both that a config has chosen; '' for none.
  """
  task, parts = experiment.task, []
  if getattr(task, 'policy', ()):
    chosen = {n: site.product for n, site in task.sites.items()}
    parts.append(policy.describe_products(chosen))
  exchange = planning.pooling_rule(config, experiment.extensions).exchange
  codecs = {name: spec.codec for name, spec in task.tables().items()}
  plan = getattr(experiment.runtime, 'plan', None)
  counts = exchange.count_codecs(plan, codecs) if plan else {}
  chosen = {exchange.with_codecs(own).codec_names for own in codecs.values()}
  if chosen - {Exchange().codec_names}:
    told = ', '.join(f'{names} ({count})' for names, count in counts.items())
    parts.append(
      f'rows/gradients of tables travel as {told}'
      if counts
      else 'parallel.exchange and tables choose formats for rows that travel, '
      'and here none do'
    )
  return ''.join(f'; {part}' for part in parts)
