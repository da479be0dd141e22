"""DNN: one MLP over all vectors of an example.

| FuxiCTR, DNN             | here                      |
|--------------------------|---------------------------|
| flattened embeddings     | `fields.concatenate_vectors`             |
| MLP, then one logit      | `mlp`                     |
"""

import dataclasses

import jax
from flax import nnx

from genrec_jax.features import FeatureSpec, Inputs
from genrec_jax.models import fields, mlp


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
    mlp.check(self, dtype=mlp.DTYPES)


class DNN(nnx.Module):
  """Vectors -> MLP -> logits."""

  Config = Config
  linear = False
  widths = staticmethod(fields.same_width)

  def __init__(
    self,
    config: Config,
    features: tuple[FeatureSpec, ...],
    outputs: int,
    rngs: nnx.Rngs,
  ):
    c = self.config = config
    self.fields = fields.Fields(c.dim, features, rngs)
    self.mlp = mlp.MLP(
      self.fields.count * c.dim,
      c.hidden,
      outputs,
      batch_norm=c.batch_norm,
      dropout=c.dropout,
      rngs=rngs,
    )

  def __call__(self, x: Inputs, key=None) -> jax.Array:
    """Logits `[B, outputs]`.

    Args:
      x: the examples.
      key: random key; None for evaluation.
    """
    h = fields.concatenate_vectors(self.fields(x), self.config.dtype)
    return mlp.to_logits(self.mlp(h, x, key))
