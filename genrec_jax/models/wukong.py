"""Wukong (arXiv 2403.02545): stacked layers of factorisation machines.

| paper (section 3)                      | here                               |
|----------------------------------------|------------------------------------|
| embedding layer, X_0 `[n, d]`          | `Embedding`                        |
| several vectors for important features | `important`, table width m d       |
| small tables, grouped, MLP to d        | `small`, `group`                   |
| bottom MLP of dense features           | `bottom`                           |
| FM(X) = X X^t; X (X^t Y), Y `[n, k]`   | `fm`: 'full'; 'optimised'          |
| attentive Y = MLP(flatten(W_c X))      | `Attention`                        |
| FMB(X) = MLP(LN(flatten(FM(X))))       | `FactorizationBlock`, n_F rows     |
| LCB(X) = W_L X                         | `Mix`, n_L rows                    |
| X' = LN(concat(FMB, LCB) + R(X))       | `Layer`, R the identity or a `Mix` |
| top MLP                                | `top`                              |

Rows come first in memory, X is `[n, B, d]`: mixes of rows, which are most of
the work beside the MLPs, are then one matrix product over the whole batch.

Differences from the paper: none that it states. What it leaves open is an
option: the sizes of the attention's MLP, where dropout stands, the epsilon of
the norms. The published 1e-5 is above the variance of the first FM's output
where embeddings start at 1e-4 (products of 1e-8): the path wakes up late.
FuxiCTR's model has a static Y ~ N(0, 1) (`attentive=False`), a ReLU after the
last layer of the FMB's MLP (`last_relu`) and learned residuals with a bias
(`residual_bias`); `top_batch_norm` normalises the top MLP. `fmb_batch_norm` is
an option of clabrugere/wukong-recommendation.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.models import Wukong as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, layers, mlp
from genrec_jax.numerics import products


def widths(config: Config, features) -> dict[str, int]:
  """Width of each feature's table."""
  names = [f.name for f in fields.table_features(features)]
  for field in ('important', 'small'):
    for name in getattr(config, field):
      if name not in names:
        raise ValueError(
          f'model.{field} names {name!r}, but the features with a table are '
          f'{names}'
        )
  both = set(config.important) & set(config.small)
  if both:
    raise ValueError(
      f'model.important and model.small both name {sorted(both)}'
    )
  return {
    name: config.small.get(name, config.important.get(name, 1) * config.dim)
    for name in names
  }


def mix_rows(x: jax.Array, kernel: jax.Array, site: products.Site) -> jax.Array:
  """`[n, B, d]`, `[n, m]` -> `[m, B, d]`: one product for the whole batch."""
  columns = x.reshape(x.shape[0], -1)
  mixed = products.dot(columns, kernel, site=site, spec='nx,nm->mx')
  return mixed.reshape(-1, *x.shape[1:])


class Mix(nnx.Module):
  """Rows that are sums of rows: W X, without bias unless asked for."""

  kernel_site = products.Site()

  def __init__(self, n_in: int, n_out: int, rngs: nnx.Rngs, use_bias=False):
    self.kernel = nnx.Param(mlp.xavier_normal(rngs.params(), (n_in, n_out)))
    self.bias = nnx.Param(jnp.zeros(n_out)) if use_bias else None

  def __call__(self, x: jax.Array) -> jax.Array:
    """`[n_in, B, d]` -> `[n_out, B, d]`."""
    y = mix_rows(x, self.kernel[...], self.kernel_site)
    if self.bias is not None:
      y += self.bias[...].astype(x.dtype)[:, None, None]
    return y


class Attention(nnx.Module):
  """Y made from the rows it weighs."""

  def __init__(self, n: int, config: Config, rngs: nnx.Rngs):
    c = config
    self.compress = Mix(n, c.compress, rngs)
    self.mlp = mlp.MLP(
      c.compress * c.dim, c.attention_hidden, n * c.rank, rngs=rngs
    )

  def __call__(self, x: jax.Array, batch: Inputs) -> jax.Array:
    """`[n, B, d]` -> `[B, n, k]`."""
    h = flatten_rows(self.compress(x))
    return self.mlp(h, batch).reshape(x.shape[1], x.shape[0], -1)


class FactorizationBlock(nnx.Module):
  """FMB: products of rows with each other -> LN -> MLP -> rows."""

  y_site = products.Site()

  def __init__(self, n: int, n_out: int, config: Config, rngs: nnx.Rngs):
    c = self.config = config
    weighs = c.fm == 'optimised'
    self.attention = Attention(n, c, rngs) if weighs and c.attentive else None
    self.y = layers.optional_param(
      weighs and not c.attentive, jax.random.normal, rngs, (n, c.rank)
    )
    width = {
      'optimised': n * c.rank,
      'full': n * n,
      'triangular': n * (n + 1) // 2,
    }[c.fm]
    self.norm = layers.LayerNorm(width, eps=c.norm_eps, affine=True)
    self.mlp = mlp.MLP(
      width,
      c.fmb_hidden,
      n_out * c.dim,
      batch_norm=c.fmb_batch_norm,
      dropout=c.dropout,
      rngs=rngs,
    )

  def products(self, x: jax.Array, batch: Inputs) -> jax.Array:
    """`[n, B, d]` -> `[B, width]` float32."""
    wide = x.astype(jnp.float32)
    if self.y is not None:
      dots = multiply_optimised(wide, self.y[...], self.y_site)
    elif self.attention is not None:
      dots = multiply_optimised(
        wide, self.attention(x, batch).astype(jnp.float32)
      )
    else:
      examples = jnp.swapaxes(wide, 0, 1)
      dots = jnp.einsum('bid,bjd->bij', examples, examples)
      if self.config.fm == 'triangular':
        return lower_triangle(dots)
    return dots.reshape(x.shape[1], -1)

  def __call__(self, x: jax.Array, batch: Inputs, key=None) -> jax.Array:
    """`[n, B, d]` -> `[n_F, B, d]`."""
    h = self.norm(self.products(x, batch)).astype(x.dtype)
    h = self.mlp(h, batch, key)
    if self.config.last_relu:
      h = jax.nn.relu(h)
    return jnp.swapaxes(h.reshape(x.shape[1], -1, x.shape[2]), 0, 1)


def flatten_rows(x: jax.Array) -> jax.Array:
  """`[n, B, d]` -> `[B, n d]`."""
  return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1)


def multiply_optimised(
  x: jax.Array, y: jax.Array, site: products.Site = products.Site()
) -> jax.Array:
  """X (X^t Y), from right to left.

  Args:
    x: `[n, B, d]`.
    y: `[B, n, k]`, made from x, or `[n, k]`, a weight.
    site: of y where it is a weight.

  Returns:
    `[B, n, k]`.
  """
  examples = jnp.swapaxes(x, 0, 1)
  if y.ndim == 3:
    y = jnp.einsum('bnk,bnd->bkd', y, examples)
  else:
    y = jnp.swapaxes(mix_rows(x, y, site), 0, 1)
  return jnp.einsum('bnd,bkd->bnk', examples, y)


def lower_triangle(square: jax.Array) -> jax.Array:
  """Entries i >= j of `[B, n, n]`, row by row: `[B, n (n + 1) / 2]`."""
  rows = [square[:, i, : i + 1] for i in range(square.shape[1])]
  return jnp.concatenate(rows, axis=1)


class Layer(nnx.Module):
  """FMB and LCB side by side, residual, norm over d."""

  def __init__(self, n: int, number: int, config: Config, rngs: nnx.Rngs):
    c = self.config = config
    n_f, n_l = c.rows('fmb', number), c.rows('lcb', number)
    self.count = n_f + n_l
    self.fmb = FactorizationBlock(n, n_f, c, rngs)
    self.lcb = Mix(n, n_l, rngs)
    self.residual = (
      Mix(n, self.count, rngs, c.residual_bias) if n != self.count else None
    )
    self.norm = layers.LayerNorm(c.dim, eps=c.norm_eps, affine=True)

  def __call__(self, x: jax.Array, batch: Inputs, key=None) -> jax.Array:
    """`[n, B, d]` -> `[n_F + n_L, B, d]`."""
    made = {
      'fmb': lambda: self.fmb(x, batch, key),
      'lcb': lambda: self.lcb(x),
      'residual': lambda: x if self.residual is None else self.residual(x),
    }
    for part in self.config.zero:
      shape = jax.eval_shape(made[part])
      made[part] = lambda s=shape: jnp.zeros(s.shape, s.dtype)
    rows = jnp.concatenate([made['fmb'](), made['lcb']()])
    rows += made['residual']()
    return self.norm(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)


class Embedding(nnx.Module):
  """Rows of tables and numbers -> X_0.

  Attributes:
    count: n, rows of X_0: features in the order of the specs, then the group of
      the small ones, then the numbers.
  """

  def __init__(self, config: Config, features, rngs: nnx.Rngs):
    c = config
    self.dim = c.dim
    numbers = len(fields.numeric_features(features))
    tabled = fields.table_features(features)
    width = widths(c, features)
    self.small = tuple(f.name in c.small for f in tabled)
    self.count = sum(
      width[f.name] // c.dim for f in tabled if f.name not in c.small
    )
    self.count += c.group_vectors if c.small else 0
    self.count += c.number_vectors if numbers else 0
    self.group = (
      mlp.MLP(
        sum(c.small.values()),
        c.group_hidden,
        c.group_vectors * c.dim,
        rngs=rngs,
      )
      if c.small
      else None
    )
    self.bottom = (
      mlp.MLP(numbers, c.bottom, c.number_vectors * c.dim, rngs=rngs)
      if numbers
      else None
    )

  def __call__(self, x: Inputs, dtype: str) -> jax.Array:
    """`[n, B, d]`."""
    vectors, small = [], []
    for vector, is_small in zip(x.vectors, self.small, strict=True):
      (small if is_small else vectors).append(vector.astype(dtype))
    if self.group is not None:
      vectors.append(self.group(jnp.concatenate(small, axis=1), x))
    if self.bottom is not None:
      vectors.append(self.bottom(x.numbers.astype(dtype), x))
    rows = [v.reshape(v.shape[0], -1, self.dim).swapaxes(0, 1) for v in vectors]
    return jnp.concatenate(rows)


class Wukong(fields.Ranker):
  """Embedding, layers, top MLP."""

  Config = Config
  outer_sites = (
    (
      'embedding/group/linear_0/kernel',
      'embedding/bottom/linear_0/kernel',
      'layer_0/fmb/attention/compress/kernel',
      'layer_0/fmb/mlp/linear_0/kernel',
    ),
    ('top/out/kernel',),
  )
  widths = staticmethod(widths)

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    self.embedding = Embedding(c, features, rngs)
    n = self.embedding.count
    for i in range(c.layers):
      layer = Layer(n, i, c, rngs)
      setattr(self, f'layer_{i}', layer)
      n = layer.count
    self.top = mlp.MLP(
      n * c.dim,
      c.top,
      outputs,
      batch_norm=c.top_batch_norm,
      dropout=c.top_dropout,
      rngs=rngs,
    )

  @property
  def hidden_width(self) -> int:
    return self.top.hidden_width

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    c = self.config
    keys = layers.split_key(key, c.layers + 2)
    rows = self.embedding(x, c.dtype)
    rows = layers.apply_dropout(
      rows.swapaxes(0, 1), c.embedding_dropout, keys[-1], x.first
    ).swapaxes(0, 1)
    for i in range(c.layers):
      rows = getattr(self, f'layer_{i}')(rows, x, keys[i])
    hidden = self.top.read_hidden(flatten_rows(rows), x, keys[-2])
    return fields.Backbone(hidden)

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    return mlp.to_logits(self.top.out(backbone.hidden))
