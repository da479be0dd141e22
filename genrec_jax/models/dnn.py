"""DNN: one MLP over all vectors of an example.

| FuxiCTR, DNN             | here                      |
|--------------------------|---------------------------|
| flattened embeddings     | `fields.concatenate_vectors`             |
| MLP, then one logit      | `mlp`                     |
"""

import jax
from flax import nnx

from genrec_jax.config.models import DNN as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, mlp


def mlp_of(c: Config, vectors: int, outputs: int, rngs: nnx.Rngs) -> mlp.MLP:
  """The net over as many vectors as there are, one behind the other."""
  options = dict(batch_norm=c.batch_norm, dropout=c.dropout, rngs=rngs)
  return mlp.MLP(vectors * c.dim, c.hidden, outputs, **options)


class DNN(fields.Ranker):
  """Vectors -> MLP -> logits."""

  Config = Config
  outer_sites = ('mlp/linear_0/kernel',), ('mlp/out/kernel',)

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    self.fields = fields.Fields(c.dim, features, rngs)
    self.mlp = mlp_of(c, self.fields.count, outputs, rngs)

  @property
  def hidden_width(self) -> int:
    return self.mlp.hidden_width

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    h = fields.concatenate_vectors(self.fields(x), self.config.dtype)
    return fields.Backbone(self.mlp.read_hidden(h, x, key))

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    return mlp.to_logits(self.mlp.out(backbone.hidden))
