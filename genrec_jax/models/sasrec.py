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

import dataclasses

import jax
from flax import nnx

import pallas_kernels
from genrec_jax.features import Jagged
from genrec_jax.models import hstu, layers


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes; `genrec_jax.config.sasrec` holds the defaults.

  Attributes:
    dim: width D of an item row and of a token.
    blocks: number of layers.
    heads: attention heads; must divide `dim`.
    ffn_dim: hidden width of the feed-forward net.
    max_len: longest sequence S; of a longer one the latest tokens count.
    extra_positions: rows of the position table beyond `max_len`.
    dropout: rate on the attention weights and in the feed-forward net.
    embedding_dropout: rate on the input tokens.
    norm_eps: epsilon of the layer norms.
    norm_affine: whether the layer norms learn scale and shift.
    final_norm: whether a layer norm follows the last block.
    scale_rows: whether item rows are multiplied by sqrt(dim) at the input.
    positions_from: the token that has position 0, 'oldest' or 'newest'.
    position_std: deviation of the position table; None is 1/sqrt(dim).
    project: whether the attention ends with an output projection.
    activation: 'relu' or 'none', in the feed-forward net.
    init: how matrices start, 'xavier_normal', or 'fan_in_uniform' as in
      PyTorch's layers.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
    remat: whether the backward pass computes each layer anew instead of keeping
      its activations.
    implementation: backend of the attention; None is the best one here.
  """

  dim: int
  blocks: int
  heads: int
  ffn_dim: int
  max_len: int
  extra_positions: int
  dropout: float
  embedding_dropout: float
  norm_eps: float
  norm_affine: bool
  final_norm: bool
  scale_rows: bool
  positions_from: str
  position_std: float | None
  project: bool
  activation: str
  init: str
  dtype: str
  remat: bool
  implementation: str | None

  def __post_init__(self):
    if self.dim % self.heads:
      raise ValueError(
        f'model.dim={self.dim} is not a multiple of model.heads={self.heads}'
      )
    layers.check(
      self,
      positions_from=('oldest', 'newest'),
      activation=('relu', 'none'),
      init=('xavier_normal', 'fan_in_uniform'),
      dtype=layers.DTYPES,
    )

  @property
  def time_bias(self) -> bool:
    return False


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
