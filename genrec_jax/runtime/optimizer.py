"""The dense optimizer of a config, and the rates of the row optimizers.

Running statistics (of batch norms) are leaves whose names start with
`running_`. By construction their gradient is their error (see
`models.batch_norm`): every step removes the share `MOMENTUM` of it, whatever
the optimizer, its rate and their group, and clipping ignores them.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from genrec_jax.config import ConfigError
from genrec_jax.parallel import rules
from genrec_jax.runtime import parameter_groups, schedules
from genrec_jax.runtime.parameter_groups import REST, Settings

MOMENTUM = 0.1  # of running statistics

OPTIMIZERS = {
  'adamw': lambda lr, c: optax.adamw(
    lr, b1=c.b1, b2=c.b2, eps=c.eps, weight_decay=c.weight_decay
  ),
  'adam': lambda lr, c: optax.adam(lr, b1=c.b1, b2=c.b2, eps=c.eps),
  'sgd': lambda lr, c: optax.sgd(lr),
  # Sums of squares begin with 0, as in PyTorch and as those of rows do.
  'adagrad': lambda lr, c: optax.adagrad(
    lr, initial_accumulator_value=0.0, eps=c.eps
  ),
}
# What row optimizers call the keys of `optimizer.rows` that have other names.
ROW_OPTIONS = {'b1': 'beta1', 'b2': 'beta2'}
# Of tables, or of rates: row optimizers are not built with them.
NO_ROW_OPTIONS = ('name', 'dtype', 'learning_rate', 'schedule')


def learning_rate(c) -> optax.Schedule:
  """The rate of dense parameters in no group."""
  return _make_schedule(Settings.of_section(c), 'optimizer.')


def row_rate(c) -> optax.Schedule:
  """The rate of the row optimizers.

  It has the warm-up and the end of the dense one, and its shape unless
  `rows.schedule` names another.
  """
  return schedules.build_schedule(
    c.rows.learning_rate,
    c.rows.schedule or c.schedule,
    warmup_steps=c.warmup_steps,
    decay_steps=c.decay_steps,
    end_factor=c.end_factor,
    where='optimizer.rows.' if c.rows.schedule else 'optimizer.',
  )


def row_rates(c, specs) -> dict[str, optax.Schedule]:
  """Table -> its rate; tables of equal rates share the very schedule.

  Args:
    c: `config.optimizer`.
    specs: table -> its spec, of tables that are updated by rows.
  """
  rates = {None: row_rate(c)}
  for spec in specs.values():
    if spec.rate not in rates:
      own = c.copy_and_resolve_references()
      own.rows.learning_rate = float(spec.rate)
      rates[spec.rate] = row_rate(own)
  return {name: rates[spec.rate] for name, spec in specs.items()}


def row_options(c) -> dict:
  """`optimizer.rows` as `embedding.row_optimizers` names the options."""
  return {
    ROW_OPTIONS.get(key, key): value
    for key, value in c.rows.items()
    if key not in NO_ROW_OPTIONS
  }


def needs_total(c) -> bool:
  """Whether some rate falls until the end of the run, wherever that is."""
  overrides = [o for o in map(_group_settings, c.groups) if o is not None]
  named = [c.schedule, c.rows.schedule, *(o.get('schedule') for o in overrides)]
  open_ended = not c.decay_steps or any(
    o.get('decay_steps') == 0 for o in overrides
  )
  return open_ended and any(map(schedules.needs_end, named))


def resolve_decay(config, total_steps: int):
  """The config with the length of the run for every `decay_steps` of 0.

  Args:
    config: of an experiment; it stays as it is.
    total_steps: of the run.
  """
  config = config.copy_and_resolve_references()
  c = config.optimizer
  c.decay_steps = c.decay_steps or total_steps
  groups = []
  for entry in c.groups:
    overrides = _group_settings(entry)
    if overrides and overrides.get('decay_steps') == 0:
      entry = (entry[0], {**overrides, 'decay_steps': total_steps})
    groups.append(entry)
  c.groups = tuple(groups)
  return config


def _group_settings(entry) -> dict | None:
  """The settings of a group; None for an entry that is refused later."""
  return entry[1] if parameter_groups.is_pair(entry) else None


def build_optimizer(c) -> optax.GradientTransformationExtraArgs:
  """The optax transformation of `config.optimizer`.

  It works element by element, so that devices can share its state; gradients
  are clipped by the step, which sees all of them. `update` takes the state's
  `lr_scale`, which multiplies what it says.

  Without groups its state is that of one optimizer. With them it is
  `optax.partition`'s, and `init` refuses groups without parameters.
  """
  section = Settings.of_section(c)
  inner = _make_transformation(section, 'optimizer.')
  if c.groups:
    groups = parameter_groups.parse_groups(c.groups, section)
    transformations = {
      parameter_groups.label_of(i): _make_transformation(g.settings, g.where)
      for i, g in enumerate(groups)
    }
    inner = optax.partition(
      {**transformations, REST: inner},
      functools.partial(parameter_groups.label_parameters, groups),
    )

  def update_scaled(grads, state, params=None, *, lr_scale=1.0):
    updates, state = inner.update(grads, state, params)

    def scale_update(path, update, grad):
      if rules.is_statistic(rules.path_name(path)):
        return -MOMENTUM * grad
      return update * jnp.asarray(lr_scale, update.dtype)

    return jax.tree_util.tree_map_with_path(scale_update, updates, grads), state

  return optax.GradientTransformationExtraArgs(inner.init, update_scaled)


def _make_transformation(settings: Settings, where: str):
  if settings.frozen:
    return optax.set_to_zero()
  if settings.name not in OPTIMIZERS:
    raise ConfigError(
      f'{where}name is {settings.name!r}, must be one of {sorted(OPTIMIZERS)}'
    )
  return OPTIMIZERS[settings.name](_make_schedule(settings, where), settings)


def _make_schedule(settings: Settings, where: str) -> optax.Schedule:
  return schedules.build_schedule(
    settings.learning_rate,
    settings.schedule,
    warmup_steps=settings.warmup_steps,
    decay_steps=settings.decay_steps,
    end_factor=settings.end_factor,
    where=where,
  )
