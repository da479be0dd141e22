"""Draws of architectures by the Gumbel-softmax trick.

    m = softmax((theta + g) / tau),   tau(t) = tau_0 exp(-eta t)

g is drawn for each example and each option of each choice: from a key of the
step, folded with the number of the example, so that no two choices agree, and
every mesh draws the same.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np


def find_temperature(
  epochs: jax.Array | float, start: float = 1.0, decay: float = 0.1
) -> jax.Array:
  """tau(t), where t are the epochs in which theta has learned.

  Below 0.001 it does not fall: draws are hard by then, and less than that
  overflows.

  >>> round(float(find_temperature(2, 1.0, 0.1)), 4)
  0.8187
  """
  found = start * jnp.exp(-decay * jnp.asarray(epochs, jnp.float32))
  return jnp.maximum(found, 1e-3)


def draw_weights(
  theta: Mapping[str, jax.Array],
  key: jax.Array,
  numbers: jax.Array,
  temperature: jax.Array | float,
  *,
  hard: bool = False,
) -> dict[str, jax.Array]:
  """Weights `[B, options]` of each choice.

  Args:
    theta: choice -> `[options]` logits.
    key: of the step.
    numbers: `[B]` numbers of the examples in the whole batch; equal numbers
      draw alike.
    temperature: tau.
    hard: whether an example takes one option, with the gradient of the soft
      weights (straight through).
  """
  # One draw for all choices: a draw for each would be most of the program.
  sizes = [logits.shape[0] for logits in theta.values()]
  noise = jax.vmap(
    lambda number: jax.random.gumbel(
      jax.random.fold_in(key, number), (sum(sizes),)
    )
  )(numbers)
  parts = jnp.split(noise, np.cumsum(sizes)[:-1], axis=1)
  drawn = {}
  for (name, logits), part in zip(theta.items(), parts, strict=True):
    soft = jax.nn.softmax((logits[None] + part) / temperature, axis=-1)
    drawn[name] = _harden(soft) if hard else soft
  return drawn


def _harden(soft: jax.Array) -> jax.Array:
  best = jnp.argmax(soft, axis=-1)
  one = jax.nn.one_hot(best, soft.shape[-1], dtype=soft.dtype)
  return one + (soft - jax.lax.stop_gradient(soft))


def expect_weights(theta: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """Weights `[options]` of each choice: softmax(theta)."""
  return {name: jax.nn.softmax(logits) for name, logits in theta.items()}
