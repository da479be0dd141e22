"""All Wukongs of a space at once; compare models/wukong.py line by line.

Layers have the largest sizes. Rows, columns of Y and units of MLPs beyond a
size are multiplied by the weight of the sizes that have them; norms take the
mean over what is there. Where the weights are 0 and 1, that is the smaller
model. A layer that is left out hands on its rows.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.features import Inputs
from genrec_jax.models import layers, mlp
from genrec_jax.models.wukong import (
  Embedding,
  Mix,
  flatten_rows,
  multiply_optimised,
)
from genrec_jax.search.choices import Weights
from genrec_jax.search.supernet import Supernet, make_mask, read_choice
from genrec_jax.search.wukong_space import WukongSpace


def mask_rows(x: jax.Array, mask: jax.Array) -> jax.Array:
  """`[n, B, d]` by `[B or 1, n]`."""
  return x * mask.T[:, :, None].astype(x.dtype)


class MaskedNorm(nnx.Module):
  """Layer norm over what is there of the last axis; zeros elsewhere."""

  def __init__(self, dim: int, eps: float):
    self.eps = eps
    self.scale = nnx.Param(jnp.ones(dim))
    self.shift = nnx.Param(jnp.zeros(dim))

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """`[B, dim]`, `[B or 1, dim]` -> `[B, dim]`."""
    wide = x.astype(jnp.float32)
    total = jnp.sum(mask, axis=-1, keepdims=True)
    mean = jnp.sum(wide * mask, axis=-1, keepdims=True) / total
    centred = wide - mean
    square = jnp.sum(jnp.square(centred) * mask, axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(square / total + self.eps)
    y = y * self.scale[...][None] + self.shift[...][None]
    return (y * mask).astype(x.dtype)


class MaskedMLP(nnx.Module):
  """An MLP whose hidden layers have one width, which is to be chosen."""

  def __init__(self, dim_in: int, width: int, count: int, outputs: int, rngs):
    self.count = count
    for i in range(count):
      setattr(self, f'linear_{i}', mlp.make_linear(dim_in, width, rngs))
      dim_in = width
    self.out = mlp.make_linear(dim_in, outputs, rngs)

  def __call__(self, h, mask, dropout: float, first, key) -> jax.Array:
    keys = layers.split_key(key, max(self.count, 1))
    for i in range(self.count):
      h = jax.nn.relu(getattr(self, f'linear_{i}')(h)) * mask.astype(h.dtype)
      h = layers.apply_dropout(h, dropout, keys[i], first)
    return self.out(h)


class SuperLayer(nnx.Module):
  """A layer with the largest sizes.

  Args:
    n: rows that it reads.
    is_first: whether these are X_0; other layers read as many as they make.
    space: which Wukongs.
    rngs: random keys.
  """

  def __init__(self, n: int, is_first: bool, space: WukongSpace, rngs):
    c = self.config = space.config
    self.space = space
    fmb, lcb, rank, width = (
      max(space.sizes[name]) for name in ('fmb', 'lcb', 'rank', 'hidden')
    )
    self.compress = Mix(n, c.compress, rngs) if c.attentive else None
    self.attention = (
      mlp.MLP(c.compress * c.dim, c.attention_hidden, n * rank, rngs=rngs)
      if c.attentive
      else None
    )
    self.y = layers.optional_param(
      not c.attentive, jax.random.normal, rngs, (n, rank)
    )
    self.norm_products = MaskedNorm(n * rank, c.norm_eps)
    self.mlp = MaskedMLP(n * rank, width, len(c.fmb_hidden), fmb * c.dim, rngs)
    self.lcb = Mix(n, lcb, rngs)
    self.residual = (
      Mix(n, fmb + lcb, rngs, c.residual_bias) if is_first else None
    )
    self.norm = layers.LayerNorm(c.dim, eps=c.norm_eps, affine=True)

  def __call__(self, x, there, weights: Weights, batch: Inputs, key=None):
    """Rows `[n, B, d]` -> `[n_F + n_L, B, d]`, and which of them are there.

    Args:
      x: zeros where no row is.
      there: `[B or 1, n]` weights of the rows.
      weights: `[B or 1, options]` of each choice.
      batch: the examples.
      key: for dropout; None for evaluation.
    """
    space = self.space
    masks = {
      name: make_mask(weights, space.choose_size(name))
      for name in ('fmb', 'lcb', 'rank', 'hidden')
    }
    examples, n = x.shape[1], x.shape[0]
    wide = x.astype(jnp.float32)
    if self.y is not None:
      dots = multiply_optimised(wide, self.y[...])
    else:
      y = self.attention(flatten_rows(self.compress(x)), batch)
      y = y.reshape(examples, n, -1).astype(jnp.float32)
      y = y * there[:, :, None]
      dots = multiply_optimised(wide, y)
    # Columns beyond the rank are of no model.
    columns = there[:, :, None] * masks['rank'][:, None, :]
    columns = columns.reshape(columns.shape[0], -1)
    h = self.norm_products(dots.reshape(examples, -1), columns)
    h = self.mlp(
      h.astype(x.dtype),
      masks['hidden'],
      self.config.dropout,
      batch.first,
      key,
    )
    fmb = jnp.swapaxes(h.reshape(examples, -1, x.shape[2]), 0, 1)
    made = jnp.concatenate([masks['fmb'], masks['lcb']], axis=1)
    rows = jnp.concatenate([fmb, self.lcb(x)])
    rows = rows + self._add_residual(x, weights)
    normed = self.norm(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)
    return mask_rows(normed, made), made

  def _add_residual(self, x: jax.Array, weights: Weights) -> jax.Array:
    """R(X): a matrix, or the rows themselves where their number stays."""
    if self.residual is None:
      return x
    mixed, share, kept = self.residual(x), 0.0, 0.0
    for fmb, lcb, own in self._list_kept(x.shape[0], weights):
      share = share + own
      kept = kept + own * self._place_rows(x, fmb, lcb)
    return (1.0 - share) * mixed + kept

  def _list_kept(self, n: int, weights: Weights):
    """(n_F, n_L, weight `[1, B or 1, 1]`) of models without a matrix here."""
    fmb, lcb = (self.space.choose_size(name) for name in ('fmb', 'lcb'))
    for i, of_fmb in enumerate(fmb.options):
      for j, of_lcb in enumerate(lcb.options):
        if of_fmb + of_lcb == n:
          own = read_choice(weights, fmb, i) * read_choice(weights, lcb, j)
          yield of_fmb, of_lcb, own[None]

  def _place_rows(self, x: jax.Array, fmb: int, lcb: int) -> jax.Array:
    """`[n_F + n_L, B, d]` rows where the largest model has them."""
    most_fmb, most_lcb = (max(self.space.sizes[n]) for n in ('fmb', 'lcb'))
    pads = [(0, most_fmb - fmb), (0, most_lcb - lcb)]
    return jnp.concatenate(
      [
        jnp.pad(part, (pad, (0, 0), (0, 0)))
        for part, pad in zip((x[:fmb], x[fmb:]), pads, strict=True)
      ]
    )


class SuperWukong(Supernet):
  """All Wukongs of a space.

  Args:
    space: which Wukongs.
    budgets: names of the costs that have a multiplier.
    rngs: random keys.
  """

  def __init__(self, space: WukongSpace, budgets, rngs: nnx.Rngs):
    super().__init__(space, budgets)
    c = space.config
    self.embedding = Embedding(c, space.features, rngs)
    n = self.embedding.count
    made = max(space.sizes['fmb']) + max(space.sizes['lcb'])
    for i in range(max(space.sizes['layers'])):
      layer = SuperLayer(made if i else n, i == 0, space, rngs)
      setattr(self, f'layer_{i}', layer)
    self.top = mlp.MLP(
      made * c.dim, c.top, space.outputs, dropout=c.top_dropout, rngs=rngs
    )

  def mix(self, x: Inputs, weights: Weights, key=None) -> jax.Array:
    c, space = self.config, self.space
    most = max(space.sizes['layers'])
    keys = layers.split_key(key, most + 2)
    vectors = tuple(self.mix_tables(x, weights))
    rows = self.embedding(dataclasses.replace(x, vectors=vectors), c.dtype)
    rows = layers.apply_dropout(
      rows.swapaxes(0, 1), c.embedding_dropout, keys[-1], x.first
    ).swapaxes(0, 1)
    there = jnp.ones((1, rows.shape[0]))
    # Of layer i, the weight of all depths that have it.
    depths = make_mask(weights, space.choose_size('layers'))
    for i in range(most):
      layer = getattr(self, f'layer_{i}')
      made, there = layer(rows, there, weights, x, keys[i])
      share = depths[None, :, i, None].astype(rows.dtype)
      rows = made if i == 0 else share * made + (1.0 - share) * rows
    hidden = self.top(flatten_rows(rows), x, keys[-2])
    return mlp.to_logits(hidden)
