"""The dense optimizer as configured.

Running statistics (of batch norms) are leaves whose names start with
`running_`. By construction their gradient is what they are off by, see
`models.batch_norm`: they go the `MOMENTUM`-th part of that way in every step,
whatever the optimizer and its rate, and no clipping sees them.
"""

import jax
import jax.numpy as jnp
import optax

from genrec_jax.parallel import rules

MOMENTUM = 0.1  # of running statistics

OPTIMIZERS = {
  'adamw': lambda lr, c: optax.adamw(
    lr, b1=c.b1, b2=c.b2, eps=c.eps, weight_decay=c.weight_decay
  ),
  'adam': lambda lr, c: optax.adam(lr, b1=c.b1, b2=c.b2, eps=c.eps),
  'sgd': lambda lr, c: optax.sgd(lr),
}


def learning_rate(c) -> optax.Schedule:
  """Constant, after a linear warm-up of `warmup_steps`."""
  return _warmed_up(c.learning_rate, c.warmup_steps)


def row_rate(c) -> optax.Schedule:
  """The rate of the row optimizers, warmed up as the dense one is."""
  return _warmed_up(c.row_learning_rate, c.warmup_steps)


def _warmed_up(rate: float, steps: int) -> optax.Schedule:
  if steps:
    return optax.linear_schedule(rate / steps, rate, steps)
  return optax.constant_schedule(rate)


def build(c) -> optax.GradientTransformationExtraArgs:
  """The optax transformation of `config.optimizer`.

  It works element by element, so that devices can share its state; gradients
  are clipped by the step, which sees all of them. `update` takes the state's
  `lr_scale`, which multiplies what it says.
  """
  if c.name not in OPTIMIZERS:
    raise ValueError(
      f'optimizer.name is {c.name!r}, must be one of {sorted(OPTIMIZERS)}'
    )
  inner = OPTIMIZERS[c.name](learning_rate(c), c)

  def update(grads, state, params=None, *, lr_scale=1.0):
    updates, state = inner.update(grads, state, params)

    def finish(path, update, grad):
      if rules.is_statistic(rules.path_name(path)):
        return -MOMENTUM * grad
      return update * jnp.asarray(lr_scale, update.dtype)

    return jax.tree_util.tree_map_with_path(finish, updates, grads), state

  return optax.GradientTransformationExtraArgs(inner.init, update)
