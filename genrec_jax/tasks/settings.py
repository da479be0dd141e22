"""Settings of a config that every built-in task uses in the same way."""

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions


def task_settings(config, extensions: Extensions | None = None) -> dict:
  """The keyword arguments that `Retrieval` and `Ranking` have in common.

  Args:
    config: of the experiment.
    extensions: what is used from outside the library.
  """
  return {
    'table_update': config.optimizer.rows.name,
    'table_dtype': config.optimizer.rows.dtype,
    'init_std': config.data.init_std,
    'settings': config_lib.table_settings(config),
    'policy': config.numerics.policy,
    'extra_products': extensions.products if extensions else None,
  }
