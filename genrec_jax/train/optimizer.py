"""The dense optimizer as configured."""

import optax

OPTIMIZERS = {
  'adamw': lambda lr, c: optax.adamw(
    lr, b1=c.b1, b2=c.b2, eps=c.eps, weight_decay=c.weight_decay
  ),
  'adam': lambda lr, c: optax.adam(lr, b1=c.b1, b2=c.b2, eps=c.eps),
  'sgd': lambda lr, c: optax.sgd(lr),
}


def learning_rate(c) -> optax.Schedule:
  """Constant, after a linear warm-up of `warmup_steps`."""
  if c.warmup_steps:
    return optax.linear_schedule(
      c.learning_rate / c.warmup_steps, c.learning_rate, c.warmup_steps
    )
  return optax.constant_schedule(c.learning_rate)


def build(c) -> optax.GradientTransformation:
  """The optax transformation of `config.optimizer`.

  It works element by element, so that devices can share its state; gradients
  are clipped by the step, which sees all of them.
  """
  if c.name not in OPTIMIZERS:
    raise ValueError(
      f'optimizer.name is {c.name!r}, must be one of {sorted(OPTIMIZERS)}'
    )
  return OPTIMIZERS[c.name](learning_rate(c), c)
