"""DLRM (arXiv 1906.00091): an MLP over products of all pairs of features.

| paper (section 2), published code    | here                                |
|--------------------------------------|-------------------------------------|
| bottom MLP, x                        | `bottom`, ends with a ReLU          |
| T = [x; e_1 .. e_F]                  | `vectors`, x in front               |
| Z = T T^t, entries i > j             | `dot_products`, row by row of Z     |
| `--arch-interaction-itself`          | `itself`: i >= j                    |
| R = [x, Z] ('dot'), [x, e ..] ('cat')| `top`'s input                       |
| top MLP                              | `top`                               |

Differences from the paper: tables may have widths of their own (`dims`, as
arXiv 2110.14812 finds them); batch norm and dropout are options (FuxiCTR); data
without numbers have no bottom MLP and no x; the last layer gives logits; by
default ('auto') the vectors of a few features are concatenated.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.models import DLRM as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, mlp


def dot_products(vectors: list[jax.Array], itself: bool) -> jax.Array:
  """`[B, pairs]` dot products of vectors (1, 0), (2, 0), (2, 1), ..."""
  stacked = jnp.stack(vectors, axis=1)
  dots = jnp.einsum('bid,bjd->bij', stacked, stacked)
  rows = [dots[:, i, : i + itself] for i in range(len(vectors))]
  return jnp.concatenate(rows, axis=1)


def pad_vectors(vectors: list[jax.Array], dim: int) -> list[jax.Array]:
  """Narrower vectors with zeros behind them, `[B, dim]` each."""
  return [
    v if v.shape[1] == dim else jnp.pad(v, ((0, 0), (0, dim - v.shape[1])))
    for v in vectors
  ]


class DLRM(fields.Ranker):
  """Bottom MLP, interaction, top MLP."""

  Config = Config
  widths = staticmethod(fields.own_widths)
  outer_sites = (
    ('bottom/linear_0/kernel', 'top/linear_0/kernel'),
    ('top/out/kernel',),
  )

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    options = dict(
      batch_norm=c.batch_norm, dropout=c.dropout, init=c.init, rngs=rngs
    )
    numbers = len(fields.numeric_features(features))
    self.bottom = (
      mlp.MLP(numbers, c.bottom, c.dim, **options) if numbers else None
    )
    widths = fields.own_widths(c, fields.table_features(features))
    count = len(widths) + bool(numbers)
    self._interaction = c.choose_interaction(count)
    if self._interaction == 'cat':
      width = sum(widths.values()) + (c.dim if numbers else 0)
    else:
      if wide := {n: w for n, w in c.dims.items() if w > c.dim}:
        raise ValueError(
          f'model.dims={wide} are wider than model.dim={c.dim}, to which '
          "interaction='dot' fills up narrower vectors"
        )
      pairs = count * (count + 1 if c.itself else count - 1) // 2
      width = pairs + (c.dim if numbers else 0)
    if not width:
      raise ValueError(
        "model.interaction='dot' needs two features; take 'cat' for one"
      )
    self.top = mlp.MLP(width, c.top, outputs, **options)

  @property
  def hidden_width(self) -> int:
    return self.top.hidden_width

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    c = self.config
    below, above = (None, None) if key is None else jax.random.split(key)
    vectors = [v.astype(c.dtype) for v in x.vectors]
    dense = []
    if self.bottom is not None:
      dense = [jax.nn.relu(self.bottom(x.numbers.astype(c.dtype), x, below))]
    if self._interaction == 'cat':
      r = fields.concatenate_vectors(dense + vectors, c.dtype)
    else:
      padded = pad_vectors(dense + vectors, c.dim)
      r = fields.concatenate_vectors(
        dense + [dot_products(padded, c.itself)], c.dtype
      )
    return fields.Backbone(self.top.read_hidden(r, x, above))

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    return mlp.to_logits(self.top.out(backbone.hidden))
