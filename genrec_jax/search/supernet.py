"""A model that is every architecture of a space at once.

| paper (arXiv 2110.14812), public code   | here                              |
|-----------------------------------------|-----------------------------------|
| theta, a logit for each option          | `choices`, all begin with 0       |
| super layer: a matrix for each pair of  | `SuperMLP`: one array for each    |
| input and output size                   | input size, outputs side by side  |
| one table of the largest width, masked  | `mask_columns`                    |
| a table for each number of rows         | a vector for each, mixed          |

Differences from the paper: none of the published faults, unless asked for
(`search.shared_optimizer`, `search.drop_skips`). There is no batch norm, whose
statistics would be of no architecture: a model that was found has what its
config says. ReLU and dropout are those of `mlp.MLP`. A Wukong, which the paper
does not search, is in super_wukong.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from genrec_jax.features import Inputs
from genrec_jax.models import fields, layers, mlp
from genrec_jax.models.dlrm import dot_products, pad_vectors
from genrec_jax.search import gumbel
from genrec_jax.search.architecture import DIM, ROWS, ArchitectureSpace
from genrec_jax.search.choices import SKIP, Choice, Weights, read_weights
from genrec_jax.search.dlrm_space import DlrmSpace
from genrec_jax.search.mlp_space import MlpSpace

MULTIPLIER = 'multiplier.'  # begins the names of multipliers of budgets


class Choices(nnx.Module):
  """Theta, and multipliers of budgets where there are any.

  Args:
    choices: those with more than one option.
    budgets: names of the costs that have one.
  """

  def __init__(self, choices, budgets=()):
    for choice in choices:
      setattr(self, choice.name, nnx.Param(jnp.zeros(len(choice.options))))
    for name in budgets:
      setattr(self, MULTIPLIER + name, nnx.Param(jnp.zeros(())))


def read_choice(weights: Weights, choice: Choice, number: int):
  """`[B or 1, 1]` weight of an option."""
  found = jnp.asarray(read_weights(weights, choice), jnp.float32)
  return found[..., number].reshape(-1, 1)


class SuperMLP(nnx.Module):
  """All MLPs of a space.

  Args:
    dim_in: width of the input.
    space: which MLPs.
    dropout: rate after each hidden layer.
    init: as in `mlp.make_linear`.
    rngs: random keys.
  """

  def __init__(
    self, dim_in: int, space: MlpSpace, dropout: float, init: str, rngs
  ):
    self.space, self.dropout = space, dropout
    if not space.widths:
      self.out = mlp.make_linear(dim_in, space.outputs, rngs, init)
      return
    self.first = _make_side_by_side(dim_in, space.widths[0], rngs, init)
    for layer in range(2, space.layers + 1):
      for size in space.widths[layer - 2]:
        outputs = _make_side_by_side(size, space.widths[layer - 1], rngs, init)
        setattr(self, f'layer_{layer}_of_{size}', outputs)
    for size in space.widths[-1]:
      out = mlp.make_linear(size, space.outputs, rngs, init)
      setattr(self, f'out_of_{size}', out)

  def __call__(
    self, x: jax.Array, weights: Weights, first=None, key=None
  ) -> jax.Array:
    """`[B, outputs]`.

    Args:
      x: `[B, dim_in]`.
      weights: `[B or 1, options]` of each choice.
      first: number of the first example, `Inputs.first`.
      key: for dropout; None for evaluation.
    """
    space = self.space
    if not space.widths:
      return self.out(x)
    keys = layers.split_key(key, space.layers)

    def finish(parts, sizes, number):
      return {
        size: layers.apply_dropout(part, self.dropout, keys[number], first)
        for size, part in zip(sizes, parts, strict=True)
      }

    made = jax.nn.relu(self.first(x))
    hidden = finish(_split(made, space.widths[0]), space.widths[0], 0)
    for layer in range(2, space.layers + 1):
      sizes = space.widths[layer - 1]
      made = {
        size: _split(
          jax.nn.relu(getattr(self, f'layer_{layer}_of_{size}')(h)), sizes
        )
        for size, h in hidden.items()
      }
      mixed = []
      for place, size in enumerate(sizes):
        choice = space.choose_input(layer, size)
        # What is left out has had its dropout.
        mixed.append(
          sum(
            read_choice(weights, choice, number) * made[option][place]
            for number, option in enumerate(choice.options)
            if option != SKIP
          )
        )
      dropped = finish(mixed, sizes, layer - 1)
      for size in sizes:
        choice = space.choose_input(layer, size)
        if SKIP in choice.options:
          number = choice.options.index(SKIP)
          share = read_choice(weights, choice, number)
          dropped[size] += share * hidden[size]
      hidden = dropped
    return sum(
      read_choice(weights, space.last, number)
      * getattr(self, f'out_of_{size}')(hidden[size])
      for number, size in enumerate(space.last.options)
    )


def _make_side_by_side(dim_in: int, sizes, rngs, init: str) -> layers.Linear:
  """Linear layers on one input, as one; each starts as it would alone."""

  def init_kernels(key, shape):
    keys = jax.random.split(key, len(sizes))
    kernels = [
      mlp.xavier_normal(k, (shape[0], size))
      for k, size in zip(keys, sizes, strict=True)
    ]
    return jnp.concatenate(kernels, axis=1)

  def init_biases(key, shape):
    if init == 'xavier_normal':
      return jnp.zeros(shape)
    deviations = np.repeat(np.array(sizes, np.float32) ** -0.5, sizes)
    return jax.random.normal(key, shape) * deviations

  return layers.Linear(
    dim_in,
    sum(sizes),
    kernel_init=init_kernels,
    bias_init=init_biases,
    rngs=rngs,
  )


def _split(made: jax.Array, sizes) -> list[jax.Array]:
  return jnp.split(made, np.cumsum(sizes)[:-1], axis=1)


def make_mask(weights: Weights, choice: Choice) -> jax.Array:
  """`[B or 1, largest size]`: of place j the weight of all sizes above j.

  >>> make_mask({'d': jnp.array([[0.25, 0.75]])}, Choice('d', (1, 3))).tolist()
  [[1.0, 0.75, 0.75]]

  Args:
    weights: of each choice.
    choice: of a size.
  """
  sizes = np.array(choice.options)[:, None]
  masks = (np.arange(max(choice.options))[None] < sizes).astype(np.float32)
  found = jnp.asarray(read_weights(weights, choice), jnp.float32)
  return found.reshape(-1, len(choice.options)) @ masks


def mask_columns(
  vector: jax.Array, weights: Weights, choice: Choice
) -> jax.Array:
  """`[B, width]`, each column by its place in `make_mask`.

  Args:
    vector: of the largest width.
    weights: of each choice.
    choice: of the width.
  """
  if len(choice.options) == 1:
    return vector
  return vector * make_mask(weights, choice)


class Supernet(fields.Ranker):
  """All models of a space; what `mix` makes of an example is the model's own.

  Args:
    space: which models.
    budgets: names of the costs that have a multiplier.
  """

  def __init__(self, space: ArchitectureSpace, budgets):
    self.space, self.config = space, space.config
    self.choices = Choices(space.choices, budgets)

  def mix(self, x: Inputs, weights: Weights, key=None) -> jax.Array:
    """Logits `[B, outputs]` of a mixture.

    Args:
      x: of `vectors` it has one for each number of rows of a table, feature by
        feature.
      weights: `[B or 1, options]` of each choice.
      key: for dropout; None for evaluation.
    """
    raise NotImplementedError

  def mix_tables(self, x: Inputs, weights: Weights) -> list[jax.Array]:
    """A vector of each feature with a table; arguments as `mix`."""
    space, vectors, rest = self.space, [], list(x.vectors)
    for table in space.tables_of_vectors:
      choice = Choice(ROWS + table, space.rows[table])
      own = [rest.pop(0).astype(self.config.dtype) for _ in choice.options]
      vector = own[0]
      if len(own) > 1:
        vector = sum(
          read_choice(weights, choice, number) * v
          for number, v in enumerate(own)
        )
      width = Choice(DIM + table, space.dims[table])
      vector = mask_columns(vector, weights, width)
      for name, extra in space.extra.items():
        if table in space.extra_tables:
          found = read_weights(weights, space.choose_extra(name, table))
          vector = extra.mix(vector, jnp.atleast_2d(found))
      vectors.append(vector)
    return vectors

  def __call__(self, x: Inputs, key=None) -> jax.Array:
    """Logits with the probabilities that theta says."""
    weights = gumbel.expect_weights(self.read_theta())
    return self.mix(x, {n: w[None] for n, w in weights.items()}, key)

  def read_theta(self) -> dict[str, jax.Array]:
    """Choice -> logits."""
    return {
      choice.name: getattr(self.choices, choice.name)[...]
      for choice in self.space.choices
    }

  def read_multipliers(self) -> dict[str, jax.Array]:
    """Cost -> what its multiplier is made of."""
    found = nnx.to_pure_dict(nnx.state(self.choices, nnx.Param))
    return {
      name.removeprefix(MULTIPLIER): value
      for name, value in found.items()
      if name.startswith(MULTIPLIER)
    }


class SuperDLRM(Supernet):
  """All DLRMs of a space.

  Args:
    space: which DLRMs.
    budgets: names of the costs that have a multiplier.
    rngs: random keys.
  """

  def __init__(self, space: DlrmSpace, budgets, rngs: nnx.Rngs):
    super().__init__(space, budgets)
    c = space.config
    self.bottom = (
      SuperMLP(space.numbers, space.bottom, c.dropout, c.init, rngs)
      if space.bottom is not None
      else None
    )
    width = space.find_width({t: max(s) for t, s in space.dims.items()})
    self.top = SuperMLP(width, space.top, c.dropout, c.init, rngs)

  def mix(self, x: Inputs, weights: Weights, key=None) -> jax.Array:
    c = self.config
    below, above = layers.split_key(key, 2)
    vectors = self.mix_tables(x, weights)
    dense = []
    if self.bottom is not None:
      made = self.bottom(x.numbers.astype(c.dtype), weights, x.first, below)
      dense = [jax.nn.relu(made)]
    if self.space.interaction == 'cat':
      r = fields.concatenate_vectors(dense + vectors, c.dtype)
    else:
      dots = dot_products(pad_vectors(dense + vectors, c.dim), c.itself)
      r = fields.concatenate_vectors([*dense, dots], c.dtype)
    return mlp.to_logits(self.top(r, weights, x.first, above))
