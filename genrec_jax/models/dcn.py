"""DCN-V2 (arXiv 2008.13535): cross layers beside an MLP.

| paper (section 3)                          | here                           |
|--------------------------------------------|--------------------------------|
| x_0 = [e_1; ...; e_F]                      | `fields.concatenate_vectors`   |
| x_{l+1} = x_0 * (W x_l + b) + x_l (eq. 1)  | `Cross`, `rank` 0              |
| W = U V^t (eq. 2)                          | `LowRankCross`                 |
| E_i = x_0 * (U g(C g(V^t x)) + b) (eq. 4)  | `MixtureCross`, g = tanh       |
| G_i (eq. 3)                                | its `gate`, a softmax          |
| stacked, parallel (figure 1)               | `structure`                    |

Differences from the paper: batch norm and dropout of the deep part, cross
alone ('cross') and both figures at once ('stacked_parallel') are options, as in
FuxiCTR; its layers share one gate (`share_gate`).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.models import DCN as Config
from genrec_jax.features import Features, Inputs
from genrec_jax.models import fields, layers, mlp
from genrec_jax.numerics import products


class Cross(nnx.Module):
  """A layer of full rank."""

  def __init__(self, width: int, config: Config, rngs: nnx.Rngs):
    self.linear = mlp.make_linear(width, width, rngs)

  def __call__(self, x0: jax.Array, x: jax.Array, gate) -> jax.Array:
    return x0 * self.linear(x) + x


class LowRankCross(nnx.Module):
  """A layer whose matrix is a product of two narrow ones."""

  def __init__(self, width: int, config: Config, rngs: nnx.Rngs):
    self.v = mlp.make_linear(width, config.rank, rngs, use_bias=False)
    self.u = mlp.make_linear(config.rank, width, rngs)

  def __call__(self, x0: jax.Array, x: jax.Array, gate) -> jax.Array:
    return x0 * self.u(self.v(x)) + x


class MixtureCross(nnx.Module):
  """A layer of gated low-rank experts.

  The gates sum to one, so that x_0 and the bias stand outside of the sum and
  all experts are one matrix: [U_1 .. U_K] [G_1 h_1; ..; G_K h_K].
  """

  v_site = products.Site()
  c_site = products.Site()
  u_site = products.Site()

  def __init__(self, width: int, config: Config, rngs: nnx.Rngs):
    k, r = config.experts, config.rank

    def draw_weight(rows):  # PyTorch's Xavier of `[K, rows, r]`
      init = jax.nn.initializers.normal((2 / (r * (rows + k))) ** 0.5)
      return nnx.Param(init(rngs.params(), (k, rows, r)))

    self.v, self.c, self.u = (
      draw_weight(width),
      draw_weight(r),
      draw_weight(width),
    )
    self.bias = nnx.Param(jnp.zeros(width))

  def __call__(self, x0: jax.Array, x: jax.Array, gate) -> jax.Array:
    v, c, u = self.v[...], self.c[...], self.u[...]
    h = products.dot(x, v, site=self.v_site, spec='bd,kdr->bkr')
    h = jnp.tanh(h)
    h = products.dot(h, c, site=self.c_site, spec='bks,krs->bkr')
    h = jnp.tanh(h)
    gates = jax.nn.softmax(gate(x).astype(jnp.float32), axis=-1)
    h = h * gates.astype(x.dtype)[:, :, None]
    mixed = products.dot(h, u, site=self.u_site, spec='bkr,kdr->bd')
    return x0 * (mixed + self.bias[...].astype(x.dtype)[None]) + x


class DCN(fields.Ranker):
  """Cross layers and a deep part."""

  Config = Config
  outer_sites = (
    (
      'fields/bottom/linear_0/kernel',
      'cross_0/linear/kernel',
      'cross_0/v/kernel',
      'cross_0/v',
    ),
    ('out/kernel',),
  )

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    options = dict(batch_norm=c.batch_norm, dropout=c.dropout)
    self.fields = fields.Fields(c.dim, features, rngs, c.bottom, **options)
    width = self.fields.count * c.dim
    layer = MixtureCross if c.experts else LowRankCross if c.rank else Cross
    for i in range(c.cross):
      setattr(self, f'cross_{i}', layer(width, c, rngs))
    self.gates = 0
    if c.experts:
      self.gates = min(c.cross, 1) if c.share_gate else c.cross
    for i in range(self.gates):
      gate = layers.Linear(
        width,
        c.experts,
        # Each expert's gate is a matrix of its own, `[width, 1]`.
        kernel_init=layers.normal((2 / (width + 1)) ** 0.5),
        use_bias=False,
        rngs=rngs,
      )
      setattr(self, f'gate_{i}', gate)
    both = c.structure == 'stacked_parallel'
    self.stacked = (
      mlp.MLP(
        width,
        (both and c.stacked_hidden) or c.hidden,
        rngs=rngs,
        **options,
      )
      if c.structure.startswith('stacked')
      else None
    )
    self.parallel = (
      mlp.MLP(width, c.hidden, rngs=rngs, **options)
      if c.structure.endswith('parallel')
      else None
    )
    first = width if self.stacked is None else self.stacked.width
    second = 0 if self.parallel is None else self.parallel.width
    self.out = mlp.make_linear(first + second, outputs, rngs)
    self.hidden_width = first + second

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    """The cross layers and the deep part, side by side."""
    c = self.config
    keys = layers.split_key(key, 3)
    x0 = fields.concatenate_vectors(self.fields(x, keys[0]), c.dtype)
    crossed = x0
    for i in range(c.cross):
      gate = getattr(self, f'gate_{min(i, self.gates - 1)}', None)
      crossed = getattr(self, f'cross_{i}')(x0, crossed, gate)
    parts = [crossed]
    if self.stacked is not None:
      parts = [self.stacked(crossed, x, keys[1])]
    if self.parallel is not None:
      parts.append(self.parallel(x0, x, keys[2]))
    return fields.Backbone(jnp.concatenate(parts, axis=1))

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    return mlp.to_logits(self.out(backbone.hidden))
