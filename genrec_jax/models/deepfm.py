"""DeepFM (arXiv 1703.04247), as FuxiCTR has it.

| paper                        | here                              |
|------------------------------|-----------------------------------|
| y_FM (eq. 2)                 | `first_order` + `fm.sum_of_pairs`        |
| y_DNN (eq. 3, 4)             | `mlp`                             |
| sigmoid(y_FM + y_DNN)        | logits, by the loss               |

Differences from the paper: batch norm before each ReLU is an option, and a
number is a field with a vector.
"""

import jax
from flax import nnx

from genrec_jax.config.models import DeepFM as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import dnn, fields, fm, mlp


class DeepFM(fm.FM):
  """FM and MLP over the same vectors."""

  Config = Config
  outer_sites = ('mlp/linear_0/kernel',), ('mlp/out/kernel',)

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    super().__init__(config, features, outputs, rngs)
    self.config = config
    self.mlp = dnn.mlp_of(config, self.fields.count, outputs, rngs)

  @property
  def hidden_width(self) -> int:
    return self.mlp.hidden_width

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    """The MLP; y_FM stands beside it, in the head that serves alone."""
    vectors = self.fields(x)
    h = fields.concatenate_vectors(vectors, self.config.dtype)
    hidden = self.mlp.read_hidden(h, x, key)
    y_fm = self.first_order(x) + fm.sum_of_pairs(vectors)
    return fields.Backbone(hidden, y_fm)

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    return backbone.beside + mlp.to_logits(self.mlp.out(backbone.hidden))

  __call__ = fields.Ranker.__call__  # not that of FM
