"""Which steps of a search are whose.

An epoch is a pass of the weights over their share of the training data, and
then one of theta over the rest of it. In epochs of the warm-up the weights have
all steps, on their own share.
"""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Phases:
  """Steps of both parts of an epoch.

  >>> phases = Phases(weight_steps=3, choice_steps=1, warmup=1)
  >>> [bool(phases.is_choosing(step)) for step in range(9)]
  [False, False, False, False, False, False, False, True, False]
  >>> [int(phases.count_epochs(step)) for step in (3, 7, 8, 12)]
  [0, 0, 1, 2]
  >>> phases = Phases(weight_steps=2, choice_steps=2, warmup=1)
  >>> [float(phases.measure_epochs(step)) for step in (3, 5, 6, 7, 8, 11)]
  [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]

  Attributes:
    weight_steps: of a pass of the weights.
    choice_steps: of a pass of theta.
    warmup: epochs in which theta does not learn.
  """

  weight_steps: int
  choice_steps: int
  warmup: int

  @property
  def steps(self) -> int:
    """Of an epoch."""
    return self.weight_steps + self.choice_steps

  def is_choosing(self, step) -> jax.Array:
    """Whether theta learns in a step, counted from 0."""
    epoch, place = jnp.divmod(jnp.asarray(step), self.steps)
    return (epoch >= self.warmup) & (place >= self.weight_steps)

  def count_epochs(self, step) -> jax.Array:
    """Epochs in which theta has learned before a step, t of tau(t)."""
    return jnp.maximum(jnp.asarray(step) // self.steps - self.warmup, 0)

  def measure_epochs(self, step) -> jax.Array:
    """As `count_epochs`, with the part of theta's pass that is over."""
    place = jnp.asarray(step) % self.steps - self.weight_steps
    part = jnp.where(self.is_choosing(step), place / self.choice_steps, 0.0)
    return self.count_epochs(step) + part

  def find_place(self, step: int) -> tuple[bool, int]:
    """(Whether theta learns, number of the batch among those of its part).

    >>> phases = Phases(weight_steps=3, choice_steps=1, warmup=1)
    >>> [phases.find_place(step) for step in (0, 3, 4, 7, 8, 11)]
    [(False, 0), (False, 3), (False, 4), (True, 0), (False, 7), (True, 1)]

    Args:
      step: counted from 0.
    """
    epoch, place = divmod(step, self.steps)
    if epoch < self.warmup:
      return False, step
    passes = epoch - self.warmup
    if place >= self.weight_steps:
      own = place - self.weight_steps
      return True, passes * self.choice_steps + own
    before = self.warmup * self.steps + passes * self.weight_steps
    return False, before + place
