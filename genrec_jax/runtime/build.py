"""Builds the runtime that a config describes.

The loop, the evaluators and the checkpoints use one of two objects with the
same interface (`contracts.Runtime`) and do not know which. `MeshRuntime` runs
the same functions as `SingleDeviceRuntime`, inside one `jax.shard_map`.
"""

from collections.abc import Callable

import optax

from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions, Task
from genrec_jax.parallel import job
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime


def plan_eval_runtime(
  config, extensions: Extensions | None = None
) -> Callable[[Task], MeshRuntime] | None:
  """What makes the runtime of a task that predicts on a mesh.

  Args:
    config: of the experiment; `parallel` says where.
    extensions: what is used from outside the library.

  Returns:
    A function of the task; None where `parallel` means one device.
  """
  if _is_one_device(config.parallel):
    return None
  # Nothing is trained, so that there is no optimizer whose state could matter.
  tx = optax.identity()
  return lambda task: MeshRuntime(config, task, tx, extensions)


def build_runtime(config, task, tx, extensions: Extensions | None = None):
  """What `config.parallel` describes.

  Args:
    config: of the experiment.
    task: what is trained.
    tx: optimizer of everything dense.
    extensions: what is used from outside the library.
  """
  p = config.parallel
  plain = (
    p.microbatches == 1 and p.determinism == 'per_mesh' and p.pipeline == 'none'
  )
  if _is_one_device(p) and plain:
    return SingleDeviceRuntime(config, task, tx, extensions)
  return MeshRuntime(config, task, tx, extensions)


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
