"""Learning rates by the number of the step."""

import jax.numpy as jnp
import optax

from genrec_jax.config import ConfigError

CONSTANT, LINEAR, COSINE, INVERSE_SQRT, EXPONENTIAL = SCHEDULES = (
  'constant',
  'linear',
  'cosine',
  'inverse_sqrt',
  'exponential',
)


def needs_end(schedule: str) -> bool:
  """Whether a schedule has no shape until `decay_steps` is known."""
  return schedule in (LINEAR, COSINE, EXPONENTIAL)


def build_schedule(
  rate: float,
  schedule: str = CONSTANT,
  *,
  warmup_steps: int = 0,
  decay_steps: int = 0,
  end_factor: float = 0.0,
  where: str = 'optimizer.',
) -> optax.Schedule:
  """Step, counted from 0 -> learning rate.

  The rate rises on a line: step i of n = `warmup_steps` has the share
  (i + 1) / n, so that the last of these steps has all of it. From step n on it
  falls as `schedule` says: 'linear', 'cosine' and 'exponential' reach
  `end_factor * rate` at step `decay_steps` and stay there, 'exponential' by the
  same factor in every step; 'inverse_sqrt' is
  `rate * sqrt(warmup_steps / step)`, nowhere below `end_factor * rate`, and
  from step `decay_steps` on it stays what it is.

  >>> rate = build_schedule(1.0, 'linear', warmup_steps=2, decay_steps=6)
  >>> [float(rate(step)) for step in range(8)]
  [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
  >>> rate = build_schedule(1.0, 'inverse_sqrt', warmup_steps=4)
  >>> [float(rate(step)) for step in (4, 16, 64)]
  [1.0, 0.5, 0.25]
  >>> rate = build_schedule(1.0, 'exponential', decay_steps=2, end_factor=0.25)
  >>> [float(rate(step)) for step in range(4)]
  [1.0, 0.5, 0.25, 0.25]

  Args:
    rate: the highest one.
    schedule: one of `SCHEDULES`.
    warmup_steps: 0 is no warm-up.
    decay_steps: steps until the end, those of the warm-up included.
      'inverse_sqrt' has no end with 0.
    end_factor: of `rate`, 0 to 1.
    where: what the keys are called in errors.

  Raises:
    ConfigError: for an unknown schedule and for steps that make none.
  """
  if schedule not in SCHEDULES:
    raise ConfigError(
      f'{where}schedule is {schedule!r}, must be one of {", ".join(SCHEDULES)}'
    )
  if not 0 <= end_factor <= 1:
    raise ConfigError(f'{where}end_factor is {end_factor}, must be in [0, 1]')
  for key, steps in (
    ('warmup_steps', warmup_steps),
    ('decay_steps', decay_steps),
  ):
    if steps < 0:
      raise ConfigError(f'{where}{key} is {steps}, must not be negative')
  if schedule == CONSTANT:
    return _rise_linearly(rate, warmup_steps)
  if needs_end(schedule) and not decay_steps:
    raise ConfigError(
      f'{where}decay_steps is 0, the length of the run, which is not known '
      f'here: set it to the steps over which schedule={schedule!r} falls'
    )
  falling_steps = decay_steps - warmup_steps
  if decay_steps and falling_steps <= 0:
    raise ConfigError(
      f'{where}decay_steps is {decay_steps} (0 in a config is the length of '
      f'the run), must be more than warmup_steps, which are {warmup_steps} '
      'of them'
    )
  if schedule == LINEAR:
    fall = optax.linear_schedule(rate, end_factor * rate, falling_steps)
  elif schedule == EXPONENTIAL:
    if not end_factor:
      raise ConfigError(
        f"{where}end_factor is 0, which schedule='exponential' never reaches: "
        'set it to the share of the rate that is left at the end'
      )
    fall = optax.exponential_decay(
      rate, falling_steps, end_factor, end_value=end_factor * rate
    )
  elif schedule == COSINE:
    fall = optax.cosine_decay_schedule(rate, falling_steps, end_factor)
  else:
    # Without an end `falling_steps` is not a number of steps.
    last = falling_steps if decay_steps else None
    fall = _fall_by_root(rate, warmup_steps, last, end_factor)
  if not warmup_steps:
    return fall
  return optax.join_schedules(
    [_rise_linearly(rate, warmup_steps), fall], [warmup_steps]
  )


def _rise_linearly(rate: float, steps: int) -> optax.Schedule:
  """Constant, after a linear warm-up."""
  if steps > 1:
    return optax.linear_schedule(rate / steps, rate, steps - 1)
  return optax.constant_schedule(rate)


def _fall_by_root(rate, warmup_steps, last, end_factor) -> optax.Schedule:
  scale = float(max(warmup_steps, 1))

  def fall_with_root(count):
    # Negative during the warm-up, when nobody looks at the result.
    count = jnp.clip(jnp.asarray(count, jnp.float32), 0.0, last)
    return rate * jnp.maximum(jnp.sqrt(scale / (scale + count)), end_factor)

  return fall_with_root
