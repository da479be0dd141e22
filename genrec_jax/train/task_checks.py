"""Checks whether a task follows its config, before a device does anything.

Tasks of the library apply `config.tables` and `config.numerics.policy`. A
task from outside may forget to do so, and its run would then not train as its
config says. Names that only a mesh looks up would pass unnoticed on one device.
"""

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions, Task
from genrec_jax.embedding import row_settings, several_rows
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.scheme import add_to_schemes, find_scheme
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.runtime import optimizer as optimizer_lib
from genrec_jax.runtime import planning
from genrec_jax.runtime import state as state_lib


def check_task(config, task: Task, extensions: Extensions) -> None:
  """Refuses settings of tables and products that nothing would follow.

  Args:
    config: of the experiment.
    task: made from it.
    extensions: what is used from outside the library.

  Raises:
    ConfigError: names the table, the key and the remedy.
  """
  settings = config_lib.table_settings(config)
  specs = task.tables()
  planning.check_scheme(config.parallel, state_lib.row_specs(task))
  reads = task.expected_reads()
  # What config.tables calls a table that a task has in several sizes.
  name_table = getattr(task, 'name_in_config', str)
  named = {name_table(name): spec for name, spec in specs.items()}
  settings.check(named, {name: read.table for name, read in reads.items()})
  settings.check_applied(named)
  for name, spec in specs.items():
    if several_rows.has_two(spec) and not any(
      x.table == name and n.endswith(several_rows.SECOND)
      for n, x in reads.items()
    ):
      raise ConfigError(
        f'config.tables: ids of table {name!r} have two rows '
        f'(id_map={spec.id_map!r}), of which {type(task).__name__} reads the '
        "first one alone; take another id_map, 'hash' say"
      )
  _check_names(config, task, extensions)
  policy = [tuple(rule) for rule in config.numerics.policy]
  applied = [tuple(rule) for rule in getattr(task, 'policy', ())]
  if policy != applied:
    raise ConfigError(
      f'numerics.policy is {policy}, and {type(task).__name__} does not '
      'apply it: a task of your own passes it to '
      'numerics.products.assign_products and keeps it as its attribute '
      '`policy`'
    )


def _check_names(config, task: Task, extensions: Extensions) -> None:
  """Schemes, codecs and row optimizers, whether they are used here or not."""
  schemes = add_to_schemes(extensions.schemes)
  exchange = Exchange(formats=extend_formats(extensions.formats))
  options = optimizer_lib.row_options(config.optimizer)
  for name, spec in state_lib.row_specs(task).items():
    try:
      row_settings.optimizer_of(spec, options, extensions.row_optimizers)
      exchange.with_codecs(spec.codec)
      if spec.scheme:
        find_scheme(spec.scheme, schemes)
    except (TypeError, ValueError) as e:
      raise ConfigError(f'table {name!r} (config.tables): {e}') from None
