"""FinalMLP (arXiv 2304.00902): two MLPs whose outputs are multiplied.

| paper (section 3)                         | here                           |
|-------------------------------------------|--------------------------------|
| two streams o_1, o_2                      | `stream_1`, `stream_2`         |
| feature selection g = 2 sigmoid(gate(x_c))| `Selection`                    |
| x_c, features that set the gate           | `context1`, `context2`         |
| bilinear fusion b + w_1 o_1 + w_2 o_2     | `Fusion.first`, `.second`      |
|   + o_1 W_3 o_2, in heads                 | `Fusion.product`               |

Differences from the paper: as FuxiCTR has it, a context feature has another
vector for its gate than for the streams (its table is so much wider), the gate
without features is that of a learned vector, which is zero at first, and batch
norm is an option.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.models import FinalMLP as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, layers, mlp
from genrec_jax.numerics import products


def widths(config: Config, features) -> dict[str, int]:
  """A vector for the streams, and one for each gate the feature sets."""
  names = [f.name for f in features]
  for context in config.contexts:
    for name in context:
      if name not in names:
        raise ValueError(
          f'model.context1 or context2 names {name!r}, but the features are '
          f'{names}'
        )
  return {
    f.name: config.dim * (1 + sum(f.name in c for c in config.contexts))
    for f in fields.table_features(features)
  }


class Selection(nnx.Module):
  """The gate of one stream."""

  def __init__(
    self,
    context: Sequence[str],
    config: Config,
    features: Features,
    rngs: nnx.Rngs,
  ):
    c = config
    numbers = [f.name for f in fields.numeric_features(features)]
    self.numbers = tuple(i for i, n in enumerate(numbers) if n in context)
    self.own = None if context else nnx.Param(jnp.zeros(c.dim))
    init = layers.normal((2 / (1 + c.dim)) ** 0.5)
    shape = len(self.numbers), c.dim
    self.kernel = layers.optional_param(shape[0] > 0, init, rngs, shape)
    self.gate = mlp.MLP(
      max(len(context), 1) * c.dim,
      c.selection_hidden,
      len(features) * c.dim,
      rngs=rngs,
    )

  def __call__(self, flat: jax.Array, vectors: list[jax.Array], x: Inputs):
    """`[B, F d]`, each element times its gate.

    Args:
      flat: `[B, F d]`.
      vectors: `[B, d]` of each context feature that has a table.
      x: the examples.
    """
    if self.own is not None:  # all examples have the same gate
      h = self.own[...].astype(flat.dtype)[None]
    else:
      number_vectors = fields.embed_numbers(
        x.numbers, self.kernel, self.numbers
      )
      h = fields.concatenate_vectors([*vectors, *number_vectors], flat.dtype)
    return flat * (2 * jax.nn.sigmoid(self.gate(h, x)))


class Fusion(nnx.Module):
  """Linear in each stream, bilinear in both, head by head."""

  product_site = products.Site()

  def __init__(
    self, dim1: int, dim2: int, outputs: int, heads: int, rngs: nnx.Rngs
  ):
    self.first = mlp.make_linear(dim1, outputs, rngs)
    self.second = mlp.make_linear(dim2, outputs, rngs)
    shape = heads, dim1 // heads, outputs, dim2 // heads
    # Xavier of all its elements for one output as one column.
    column = dim1 * dim2 // heads
    init = layers.normal((2 / (column + outputs)) ** 0.5)
    self.product = nnx.Param(init(rngs.params(), shape))

  def __call__(self, one: jax.Array, two: jax.Array) -> jax.Array:
    """`[B, dim1]`, `[B, dim2]` -> `[B, outputs]`."""
    weights = self.product[...]
    heads, size1, _, size2 = weights.shape
    crossed = products.dot(
      one.reshape(-1, heads, size1),
      weights,
      site=self.product_site,
      spec='bhi,hioj->bhoj',
    )
    product = crossed * two.reshape(-1, heads, 1, size2)
    return self.first(one) + self.second(two) + jnp.sum(product, axis=(1, 3))


class FinalMLP(fields.Ranker):
  """Two gated streams and their fusion."""

  Config = Config
  outer_sites = (
    ('select_1/gate/linear_0/kernel', 'stream_1/linear_0/kernel'),
    ('fusion/second/kernel',),
  )
  widths = staticmethod(widths)
  number_weights = r'(fields|select_\d)/kernel'

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    self.tabled = tuple(f.name for f in fields.table_features(features))
    self.fields = fields.Fields(c.dim, features, rngs)
    for i, context in enumerate(c.contexts, 1):
      setattr(self, f'select_{i}', Selection(context, c, features, rngs))
    width = self.fields.count * c.dim
    for i, hidden, rate in (
      (1, c.hidden1, c.dropout1),
      (2, c.hidden2, c.dropout2),
    ):
      stream = mlp.MLP(
        width, hidden, batch_norm=c.batch_norm, dropout=rate, rngs=rngs
      )
      setattr(self, f'stream_{i}', stream)
    self.fusion = Fusion(c.hidden1[-1], c.hidden2[-1], outputs, c.heads, rngs)
    self.hidden_width = c.hidden1[-1] + c.hidden2[-1]

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    """Both streams, side by side; the head that serves is their fusion."""
    c = self.config
    own = [vector[:, : c.dim] for vector in x.vectors]
    flat = fields.concatenate_vectors(
      self.fields.with_numeric_vectors(own, x), c.dtype
    )
    inputs = [flat, flat]
    for i, vectors in enumerate(self._gate_inputs(x)):
      inputs[i] = getattr(self, f'select_{i + 1}')(flat, vectors, x)
    keys = layers.split_key(key, 2)
    one = self.stream_1(inputs[0], x, keys[0])
    two = self.stream_2(inputs[1], x, keys[1])
    return fields.Backbone(jnp.concatenate([one, two], axis=1))

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    width = self.config.hidden1[-1]
    one, two = backbone.hidden[:, :width], backbone.hidden[:, width:]
    return mlp.to_logits(self.fusion(one, two))

  def _gate_inputs(self, x: Inputs) -> list[list[jax.Array]]:
    """The vectors that set each gate."""
    dim = self.config.dim
    contexts = [[] for _ in self.config.contexts]
    for name, vector in zip(self.tabled, x.vectors, strict=True):
      place = dim
      for context, vectors in zip(self.config.contexts, contexts, strict=True):
        if name in context:
          vectors.append(vector[:, place : place + dim])
          place += dim
    return contexts
