"""DNN: one MLP over all vectors of an example.

| FuxiCTR, DNN             | here                      |
|--------------------------|---------------------------|
| flattened embeddings     | `fields.concatenate_vectors`             |
| MLP, then one logit      | `mlp`                     |
"""

import dataclasses

import jax
from flax import nnx

from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, layers, mlp


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes; `genrec_jax.config.dnn` holds the defaults.

  Attributes:
    dim: width of all vectors.
    hidden: widths of the hidden layers.
    batch_norm: whether hidden layers are normalised over the batch.
    dropout: rate after each hidden layer.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
  """

  dim: int
  hidden: tuple[int, ...]
  batch_norm: bool
  dropout: float
  dtype: str

  def __post_init__(self):
    layers.check(self, dtype=layers.DTYPES)


def mlp_of(c: Config, vectors: int, outputs: int, rngs: nnx.Rngs) -> mlp.MLP:
  """The net over as many vectors as there are, one behind the other."""
  options = dict(batch_norm=c.batch_norm, dropout=c.dropout, rngs=rngs)
  return mlp.MLP(vectors * c.dim, c.hidden, outputs, **options)


class DNN(fields.Ranker):
  """Vectors -> MLP -> logits."""

  Config = Config

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    self.fields = fields.Fields(c.dim, features, rngs)
    self.mlp = mlp_of(c, self.fields.count, outputs, rngs)

  def __call__(self, x: Inputs, key=None) -> jax.Array:
    """Logits `[B, outputs]`.

    Args:
      x: the examples.
      key: random key; None for evaluation.
    """
    h = fields.concatenate_vectors(self.fields(x), self.config.dtype)
    return mlp.to_logits(self.mlp(h, x, key))
