"""SASRec (arXiv 1808.09781), as the HSTU paper's baseline and as gSASRec.

| paper (section III)   | here                                              |
|-----------------------|---------------------------------------------------|
| E-hat = M + P         | `hstu.embed_tokens`                               |
| SA(E) (eq. 4, 5)      | `Block.query, key, value` + softmax attention     |
| FFN (eq. 6)           | `Block.hidden`, `Block.out`, ReLU between         |
| x + Dropout(g(LN(x))) | see the differences                               |

Differences from the paper, all as in the published code of the HSTU baseline:
the residual of the attention is the *normed* query, keys and values are not
normed, the second layer norm stands before the residual is taken
(h = LN(Qn + m); x' = FFN(h) + h), no norm at the end (`final_norm` adds it).
"""

import jax
from flax import nnx

import pallas_kernels
from genrec_jax.config.models import SASRec as Config
from genrec_jax.features import Jagged
from genrec_jax.models import hstu, layers


class Block(nnx.Module):
  """Self-attention and feed-forward."""

  def __init__(self, config: Config, rngs: nnx.Rngs):
    c = self.config = config
    # PyTorch initialises query, key and value as one [D, 3D] matrix.
    fused = layers.normal((2.0 / (4 * c.dim)) ** 0.5)

    def make_linear(dim_in, dim_out, kernel_init, bias_init=layers.zeros):
      if c.init == 'fan_in_uniform':
        kernel_init = bias_init = layers.fan_in_uniform(dim_in)
      return layers.Linear(
        dim_in, dim_out, kernel_init=kernel_init, bias_init=bias_init, rngs=rngs
      )

    def make_norm():
      return layers.LayerNorm(c.dim, eps=c.norm_eps, affine=c.norm_affine)

    self.norm_query, self.norm_ffn = make_norm(), make_norm()
    self.query = make_linear(c.dim, c.dim, fused)
    self.key = make_linear(c.dim, c.dim, fused)
    self.value = make_linear(c.dim, c.dim, fused)
    self.project = (
      make_linear(c.dim, c.dim, layers.xavier_normal) if c.project else None
    )
    self.hidden = make_linear(
      c.dim, c.ffn_dim, layers.xavier_normal, layers.fan_in_uniform(c.dim)
    )
    self.out = make_linear(
      c.ffn_dim, c.dim, layers.xavier_normal, layers.fan_in_uniform(c.ffn_dim)
    )

  def __call__(self, x: jax.Array, events: Jagged, key) -> jax.Array:
    c = self.config
    keys = layers.split_key(key, 3)
    normed = self.norm_query(x)
    shape = (x.shape[0], c.heads, c.dim // c.heads)
    attended = pallas_kernels.hstu_attention(
      self.query(normed).reshape(shape),
      self.key(x).reshape(shape),
      self.value(x).reshape(shape),
      events.lengths,
      max_len=c.max_len,
      mode='softmax',
      alpha=shape[-1] ** -0.5,
      dropout=0.0 if key is None else c.dropout,
      dropout_seed=layers.dropout_seed(keys[0], events.first),
      implementation=c.implementation,
    ).reshape(x.shape)
    if self.project is not None:
      attended = self.project(attended)
    h = self.norm_ffn(normed + attended)
    y = self.hidden(h)
    if c.activation == 'relu':
      y = jax.nn.relu(y)
    y = layers.apply_dropout(y, c.dropout, keys[1], events.first)
    return h + layers.apply_dropout(
      self.out(y), c.dropout, keys[2], events.first
    )


class SASRec(nnx.Module):
  """Item rows -> one representation a token."""

  Config = Config

  def __init__(self, config: Config, rngs: nnx.Rngs):
    self.config = config
    shape = (config.max_len + config.extra_positions, config.dim)
    std = config.position_std
    init = layers.truncated_normal(config.dim**-0.5 if std is None else std)
    self.position = nnx.Param(init(rngs.params(), shape))
    layers.stack_blocks(self, Block, config, rngs)
    self.norm = (
      layers.LayerNorm(
        config.dim, eps=config.norm_eps, affine=config.norm_affine
      )
      if config.final_norm
      else None
    )

  @property
  def outer_sites(self) -> tuple[tuple[str, ...], ...]:
    """The first and the last product, see `products.assign_products`."""
    last = f'layer_{self.config.blocks - 1}'
    return ('layer_0/query/kernel',), (f'{last}/out/kernel',)

  def __call__(self, rows: jax.Array, events: Jagged, key=None) -> jax.Array:
    """Encodes a batch; arguments and result as `hstu.HSTU`."""
    c = self.config
    keys = layers.split_key(key, c.blocks + 1)
    if not c.scale_rows:
      rows = rows * (c.dim**-0.5)
    newest = c.positions_from == 'newest'
    x = hstu.embed_tokens(
      rows, self.position, events, c.embedding_dropout, keys[-1], newest
    )
    x = x.astype(c.dtype)
    for i in range(c.blocks):
      layer = layers.maybe_remat(getattr(self, f'layer_{i}'), c.remat)
      x = layer(x, events, keys[i])
    return x if self.norm is None else self.norm(x)
