"""All features of an example as vectors of one width."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.features import Features, FeatureSpec, Inputs
from genrec_jax.models import layers
from genrec_jax.models.mlp import MLP

LINEAR = '.linear'  # ends the names of tables of first-order weights


def table_features(features: Features) -> list[FeatureSpec]:
  """Those of `Inputs.vectors`: a vector of a table each, in order."""
  return [f for f in features if f.has_table and not f.history]


def numeric_features(features: Features) -> list[FeatureSpec]:
  """Those of `Inputs.numbers`: a number each, in order."""
  return [f for f in features if f.kind == 'numeric']


def list_histories(features: Features) -> dict[str, list[FeatureSpec]]:
  """Name of each history of `Inputs.histories` -> its columns, in order."""
  names = dict.fromkeys(f.history for f in features if f.history)
  return {h: [f for f in features if f.history == h] for h in names}


def same_width(config, features: Features) -> dict[str, int]:
  """`config.dim` for each feature with a table, also of histories."""
  return {f.name: config.dim for f in features if f.has_table}


def own_widths(config, features: Features) -> dict[str, int]:
  """As `same_width`, but for the features that `config.dims` names."""
  widths = same_width(config, features)
  if unknown := sorted(set(config.dims) - set(widths)):
    raise ValueError(
      f'model.dims names {unknown[0]!r}, but the features with a table are '
      f'{sorted(widths)}'
    )
  return widths | dict(config.dims)


def first_order_table(config, feature: FeatureSpec) -> str:
  """Name of the table of a feature's first-order weights.

  Args:
    config: of a model that wants them.
    feature: one with a table.
  """
  own = config.first_order == 'feature'
  return (feature.name if own else feature.source) + LINEAR


class Backbone(NamedTuple):
  """A model up to its last hidden layer.

  Attributes:
    hidden: `[B, hidden_width]`, what any number of heads may stand on.
    beside: what the model's own head adds to that, if anything.
  """

  hidden: jax.Array
  beside: jax.Array | None = None


class Ranker(nnx.Module):
  """What a ranking model says of itself, unless it says something else.

  A model is a backbone and the head that serves, `read_backbone` and
  `score_backbone`; a training may put more heads on the backbone. Models
  without a hidden layer have neither, and are called as a whole.

  Attributes:
    linear: whether it wants first-order weights of the values.
    widths: (config, features) -> width of the table of each feature with one.
    outer_sites: names of the weights of the first layer and of the last one,
      see `products.assign_products`.
    number_weights: regex of the paths of parameters that make vectors or terms
      of single numbers, as tables do of values: FuxiCTR counts them among the
      embeddings.
    hidden_width: of `Backbone.hidden`; 0 for models without a hidden layer.
    reads_histories: whether it is given histories event by event,
      `Inputs.histories`. To other models their sequences are pooled features,
      and their numbers nothing that can be read.
  """

  linear = False
  reads_histories = False
  hidden_width = 0
  widths = staticmethod(same_width)
  outer_sites: tuple[tuple[str, ...], ...] = ()
  number_weights = 'fields/kernel'

  def read_backbone(self, x: Inputs, key=None) -> Backbone:
    """The model up to its last hidden layer.

    Args:
      x: the examples.
      key: random key; None for evaluation.
    """
    raise NotImplementedError(f'{type(self).__name__} has no hidden layer')

  def score_backbone(self, backbone: Backbone) -> jax.Array:
    """Logits `[B, outputs]` of the head that serves."""
    raise NotImplementedError(f'{type(self).__name__} has no hidden layer')

  def __call__(self, x: Inputs, key=None) -> jax.Array:
    """Logits `[B, outputs]`; arguments as `read_backbone`."""
    return self.score_backbone(self.read_backbone(x, key))


class Fields(nnx.Module):
  """Rows of tables, and behind them what is made of numbers.

  A number becomes a vector by a matrix of its own, without bias, as in FuxiCTR;
  or, with `bottom`, all numbers one vector by an MLP that ends with a ReLU, as
  in DLRM.

  Attributes:
    count: how many vectors.
  """

  def __init__(
    self,
    dim: int,
    features: Features,
    rngs: nnx.Rngs,
    bottom: Sequence[int] = (),
    **options,
  ):
    numbers = len(numeric_features(features))
    self.bottom = (
      MLP(numbers, bottom, dim, rngs=rngs, **options)
      if numbers and bottom
      else None
    )
    init = layers.normal((2 / (1 + dim)) ** 0.5)  # Xavier of `[1, dim]`
    wanted = bool(numbers and not bottom)
    self.kernel = layers.optional_param(wanted, init, rngs, (numbers, dim))
    made = numbers if self.bottom is None else 1
    self.count = len(table_features(features)) + made

  def __call__(self, x: Inputs, key=None) -> list[jax.Array]:
    """`count` vectors `[B, dim]`."""
    return self.with_numeric_vectors(x.vectors, x, key)

  def with_numeric_vectors(
    self, vectors, x: Inputs, key=None
  ) -> list[jax.Array]:
    """As a call, with other vectors of the tables than those of `x`."""
    if self.bottom is not None:
      number_vectors = [jax.nn.relu(self.bottom(x.numbers, x, key))]
    else:
      number_vectors = embed_numbers(x.numbers, self.kernel)
    return [*vectors, *number_vectors]


def embed_numbers(
  numbers: jax.Array, kernel: nnx.Param | None, which: Sequence[int] = ()
) -> list[jax.Array]:
  """Vectors `[B, dim]`, each a number times a row of `kernel`.

  Args:
    numbers: `[B, N]`.
    kernel: `[count, dim]`, or None for no vectors.
    which: columns of `numbers` in the order of the rows; () for all.
  """
  if kernel is None:
    return []
  rows = kernel[...]
  which = which or range(rows.shape[0])
  return [numbers[:, i, None] * rows[None, n] for n, i in enumerate(which)]


def concatenate_vectors(
  vectors: Sequence[jax.Array], dtype: str = 'float32'
) -> jax.Array:
  """`[B, sum of widths]`, vector behind vector."""
  return jnp.concatenate(vectors, axis=1).astype(dtype)
