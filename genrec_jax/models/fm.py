"""Factorisation machine (Rendle 2010), as FuxiCTR has it.

| formula                         | here                                  |
|---------------------------------|---------------------------------------|
| w_0 + sum of w_i x_i            | `LR`                                  |
| v_i                             | `Inputs.vectors`; of a number, `Fields` |
| sum of <v_i, v_j> over i < j    | `sum_of_pairs`                        |

Several outputs share the products.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.models import FM as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, lr


def sum_of_pairs(vectors: Sequence[jax.Array]) -> jax.Array:
  """`[B, 1]` sum of the dot products of all pairs, in linear time."""
  total = sum(vectors)
  squares = sum(jnp.square(v) for v in vectors)
  return 0.5 * jnp.sum(jnp.square(total) - squares, axis=1, keepdims=True)


class FM(fields.Ranker):
  """First order and pairs."""

  Config = Config
  linear = True
  number_weights = 'fields/kernel|first_order/numeric'

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    self.first_order = lr.LR(lr.Config(), features, outputs, rngs)
    self.fields = fields.Fields(config.dim, features, rngs)

  def __call__(self, x: Inputs, key=None) -> jax.Array:
    """Logits `[B, outputs]`; `key` changes nothing."""
    return self.first_order(x) + sum_of_pairs(self.fields(x))
