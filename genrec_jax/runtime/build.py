"""Builds the runtime that a config describes.

The loop, the evaluators and the checkpoints use one of two objects with the
same interface (`contracts.Runtime`) and do not know which. `MeshRuntime` runs
the same functions as `SingleDeviceRuntime`, inside one `jax.shard_map`.
"""

from collections.abc import Callable

import jax
import optax

from genrec_jax.config import ConfigError
from genrec_jax.contracts import EvalRuntime, Extensions, Task
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.parallel import job
from genrec_jax.runtime import planning
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from genrec_jax.runtime.state import find_dense_towers, find_towers


def plan_eval_runtime(
  config, extensions: Extensions | None = None
) -> Callable[[Task], EvalRuntime] | None:
  """What makes the runtime of a task that predicts as `config.parallel` says.

  Args:
    config: of the experiment; `parallel` says where.
    extensions: what is used from outside the library.

  Returns:
    A function of the task; None where `parallel` means one device of any size.
  """
  p = config.parallel
  if not _is_one_device(p):
    # Nothing is trained: there is no optimizer whose state could matter.
    tx = optax.identity()
    return lambda task: MeshRuntime(config, task, tx, extensions, trains=False)
  if not (p.topology or p.memory_gb):
    return None

  def make_runtime(task: Task) -> SingleDeviceEvalRuntime:
    plan = planning.plan_one_device(task)
    planning.check_memory(config, task, plan, trains=False)
    return SingleDeviceEvalRuntime.of(extensions)

  return make_runtime


def plan_own_runtime(
  config, extensions: Extensions | None = None
) -> Callable[[Task], EvalRuntime] | None:
  """As `plan_eval_runtime`, of a run whose devices need not be there any more.

  Args:
    config: of the run, as it was trained.
    extensions: what is used from outside the library.
  """
  p = config.parallel
  if p.replicas * p.hosts * max(p.devices, 1) > jax.device_count():
    return None  # a model of a mesh predicts anywhere, if it fits
  config = config.copy_and_resolve_references().unlock()
  # Where rows lie does not matter now, and the file need not be there; these
  # devices may be others.
  config.parallel.update(plan='', scheme='', topology='', memory_gb=0.0)
  return plan_eval_runtime(config.lock(), extensions)


def build_runtime(
  config,
  task,
  tx,
  extensions: Extensions | None = None,
  *,
  trains: bool = True,
):
  """What `config.parallel` describes.

  Args:
    config: of the experiment.
    task: what is trained.
    tx: optimizer of everything dense.
    extensions: what is used from outside the library.
    trains: whether there are steps, for which there must be memory.
  """
  p, extensions = config.parallel, extensions or Extensions()
  towers = find_towers(task, extensions) or find_dense_towers(task)
  if towers is not None and config.optimizer.average:
    raise ConfigError(
      'optimizer.average keeps averages of the parameters of the model, and '
      'none of those of towers (model.towers), so that evaluations would mix '
      'both; leave one of the keys out'
    )
  plain = (
    p.microbatches == 1 and p.determinism == 'per_mesh' and p.pipeline == 'none'
  )
  if _is_one_device(p) and plain:
    planning.check_one_device(config, task, extensions)
    return SingleDeviceRuntime(config, task, tx, extensions, trains=trains)
  return MeshRuntime(config, task, tx, extensions, trains=trains)


def _is_one_device(p) -> bool:
  """Whether `config.parallel` means one device; refuses several processes."""
  if p.replicas * p.hosts * p.devices != 1:
    return False
  count = job.process_count()
  if count > 1:
    raise ConfigError(
      f'{count} processes have been started, and parallel.replicas, hosts and '
      f'devices make one device: set parallel.hosts={count}, and '
      'parallel.devices to the devices of each (docs/parallel.md)'
    )
  return True
