"""Builds the runtime that a config describes.

The loop, the evaluators and the checkpoints use one of two objects with the
same interface (`contracts.Runtime`) and do not know which. `MeshRuntime` runs
the same functions as `SingleDeviceRuntime`, inside one `jax.shard_map`.
"""

from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.parallel import job
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime


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
  count = job.process_count()
  if count > 1 and p.replicas * p.hosts * p.devices == 1:
    raise ConfigError(
      f'{count} processes have been started, and parallel.replicas, hosts and '
      f'devices make one device: set parallel.hosts={count}, and '
      'parallel.devices to the devices of each (docs/parallel.md)'
    )
  if plain and p.replicas * p.hosts * p.devices == 1:
    return SingleDeviceRuntime(config, task, tx, extensions)
  return MeshRuntime(config, task, tx, extensions)
