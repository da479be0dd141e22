"""What is chosen in a search, as data.

A net that is searched depends on choices; each has options, and for each option
a weight that says how much of it there is. One weight of 1 is an
architecture; weights between are what a supernet computes.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

SKIP = 'skip'
# Choice -> `[..., options]`, which sum to 1.
Weights = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Choice:
  """One choice.

  Attributes:
    name: such as 'top.2.64', the input of a layer that makes 64 numbers.
    options: what there is to choose from: sizes, or `SKIP`.
  """

  name: str
  options: tuple[int | str, ...]

  def __post_init__(self):
    if len(set(self.options)) != len(self.options) or not self.options:
      raise ValueError(
        f'choice {self.name!r} has the options {self.options}; they must be '
        'different, and one at least'
      )


def list_open(choices: Sequence[Choice]) -> list[Choice]:
  """Those with more than one option."""
  return [choice for choice in choices if len(choice.options) > 1]


def read_weights(weights: Weights, choice: Choice):
  """`[..., options]`; of a choice with one option nobody keeps a weight.

  >>> read_weights({}, Choice('dim.user', (16,))).tolist()
  [1.0]
  """
  if len(choice.options) == 1:
    return np.ones(1)
  return weights[choice.name]


def take_one(choice: Choice, option: int | str) -> np.ndarray:
  """The weights with which a choice is one of its options.

  >>> take_one(Choice('dim.user', (8, 16)), 16).tolist()
  [0.0, 1.0]
  """
  if option not in choice.options:
    raise ValueError(
      f'choice {choice.name!r}: {option!r} is none of {choice.options}'
    )
  return np.array([x == option for x in choice.options], np.float32)


def mean_option(weights: Weights, choice: Choice):
  """The size that weights give in the mean.

  >>> float(mean_option({'d': jnp.array([.25, .75])}, Choice('d', (8, 16))))
  14.0
  """
  found = read_weights(weights, choice)
  return found @ np.array(choice.options, found.dtype)


def measure_entropy(weights: jax.Array) -> jax.Array:
  """Entropy over the last axis, in nats."""
  return -jnp.sum(jax.scipy.special.xlogy(weights, weights), axis=-1)
