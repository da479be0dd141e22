"""Logistic regression, as FuxiCTR has it.

| formula                  | here                                      |
|--------------------------|-------------------------------------------|
| sum of w_i over values   | `Inputs.linear`, rows of width 1 of a     |
|                          | table for each feature, never a mean      |
| sum of w_j x_j           | `numeric`, a weight for each number       |
| b                        | `bias`, one for each output               |

Several outputs share the weights of the values. With `first_order='table'`,
features that share a table share its weights, which are pooled as vectors are;
that is not FuxiCTR's.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.models import LR as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, layers
from genrec_jax.numerics import products


class LR(fields.Ranker):
  """First-order weights alone."""

  Config = Config
  linear = True
  number_weights = 'numeric'
  numeric_site = products.Site()

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    count = len(fields.numeric_features(features))
    init = jax.nn.initializers.normal(1.0)  # Xavier of a 1 x 1 matrix
    shape = count, outputs
    self.numeric = layers.optional_param(count > 0, init, rngs, shape)
    self.bias = nnx.Param(jnp.zeros(outputs))

  @staticmethod
  def widths(config: Config, features) -> dict[str, int]:
    """No feature has a vector."""
    return {}

  def __call__(self, x: Inputs, key=None) -> jax.Array:
    """Logits `[B, outputs]`; `key` changes nothing."""
    y = x.linear[:, None] + self.bias[...][None]
    if self.numeric is not None:
      y += products.dot(x.numbers, self.numeric[...], site=self.numeric_site)
    return y
