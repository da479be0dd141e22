"""HSTU, the hierarchical sequential transduction unit (arXiv 2402.17152).

| paper (section 3)     | here                                             |
|-----------------------|--------------------------------------------------|
| X                     | `x` [T, D], packed tokens                        |
| f1, phi1 (eq. 1)      | `Block.uvqk`, SiLU on all or on U (`silu_on`)    |
| U, V, Q, K            | `u, v, q, k`, columns in this order              |
| rab^{p,t} (eq. 2)     | `Block.position_bias`, `Block.time_bias`         |
| phi2(QK^T + rab) V    | `pallas_kernels.hstu_attention`                  |
| Norm(AV) * U (eq. 3)  | `Block.norm_attention`, `gated`                  |
| f2                    | `Block.output`                                   |

The defaults of `genrec_jax.config.hstu` are the published retrieval layer; the
fields of `Config` reach the other published variants one by one.

Differences from the paper: the softmax mode (`attention='softmax'`, the
ablation) masks before the softmax, scales by 1/sqrt(dqk) and keeps the heads;
the published code masks after it and fuses the heads.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config.models import HSTU as Config
from genrec_jax.features import Jagged
from genrec_jax.models import layers

TIME_BUCKETS = 129


class Block(nnx.Module):
  """One HSTU layer."""

  def __init__(self, config: Config, rngs: nnx.Rngs):
    c = self.config = config
    values, keys = c.heads * c.dv, c.heads * c.dqk
    self.norm_input = layers.LayerNorm(c.dim, affine=c.ln_affine)
    self.uvqk = layers.Linear(
      c.dim,
      2 * values + 2 * keys,
      kernel_init=layers.normal(0.02),
      use_bias=c.uvqk_bias,
      rngs=rngs,
    )
    self.norm_attention = layers.LayerNorm(values, affine=c.ln_affine)
    concat = values * (1 if c.concat == 'none' else 3)
    self.output = layers.Linear(
      concat,
      c.dim,
      bias_init=layers.fan_in_uniform(concat),
      use_bias=c.out_bias,
      rngs=rngs,
    )
    self.position_bias = layers.optional_param(
      c.position_bias, layers.normal(0.02), rngs, (2 * c.positions - 1,)
    )
    self.time_bias = layers.optional_param(
      c.time_bias, layers.normal(0.02), rngs, (TIME_BUCKETS,)
    )

  def __call__(self, x: jax.Array, events: Jagged, key) -> jax.Array:
    c = self.config
    tokens = x.shape[0]
    values, keys = c.heads * c.dv, c.heads * c.dqk
    uvqk = self.uvqk(self.norm_input(x))
    if c.silu_on == 'all':
      uvqk = jax.nn.silu(uvqk)
    u, v, q, k = jnp.split(
      uvqk, [values, 2 * values, 2 * values + keys], axis=-1
    )
    if c.silu_on == 'u':
      u = jax.nn.silu(u)
    alpha = c.alpha
    if alpha is None:
      alpha = 1.0 if c.attention == 'silu' else c.dqk**-0.5
    attended = pallas_kernels.hstu_attention(
      q.reshape(tokens, c.heads, c.dqk),
      k.reshape(tokens, c.heads, c.dqk),
      v.reshape(tokens, c.heads, c.dv),
      events.lengths,
      max_len=c.max_len,
      mode=c.attention,
      alpha=alpha,
      normaliser=c.positions if c.normaliser is None else c.normaliser,
      position_bias=None if not c.position_bias else self.position_bias[...],
      time_bias=None if not c.time_bias else self.time_bias[...],
      query_time=events['next_time'],
      time=events['time'],
      implementation=c.implementation,
    ).reshape(tokens, values)
    normed = self.norm_attention(attended)
    gated = u * normed
    if c.concat == 'u_a_ua':
      gated = jnp.concatenate([u, normed, gated], axis=-1)
    elif c.concat == 'u_x_ux':
      gated = jnp.concatenate([u, attended, gated], axis=-1)
    gated = layers.apply_dropout(gated, c.dropout, key, events.first)
    return x + self.output(gated)


class HSTU(nnx.Module):
  """Item rows -> one representation a token."""

  Config = Config

  def __init__(self, config: Config, rngs: nnx.Rngs):
    self.config = config
    shape = (config.positions, config.dim)
    self.position = layers.optional_param(
      config.position_embedding, layers.xavier_normal, rngs, shape
    )
    layers.stack_blocks(self, Block, config, rngs)

  def __call__(self, rows: jax.Array, events: Jagged, key=None) -> jax.Array:
    """Encodes a batch.

    Args:
      rows: `[T, D]` the item row of each token.
      events: the tokens, with columns time and next_time.
      key: random key of the dropouts; None in evaluation.

    Returns:
      `[T, D]` in the dtype of the config.
    """
    c = self.config
    keys = layers.split_key(key, c.blocks + 1)
    x = embed_tokens(rows, self.position, events, c.embedding_dropout, keys[-1])
    x = x.astype(c.dtype)
    for i in range(c.blocks):
      layer = layers.maybe_remat(getattr(self, f'layer_{i}'), c.remat)
      x = layer(x, events, keys[i])
    return x


def embed_tokens(
  rows, position, events: Jagged, rate: float, key, newest: bool = False
) -> jax.Array:
  """sqrt(D) * row + position, dropped out: the input of HSTU and SASRec.

  Positions count from the oldest token, or the `newest`.
  """
  x = rows.astype(jnp.float32) * jnp.float32(rows.shape[-1] ** 0.5)
  if position is not None:
    place = pallas_kernels.positions(events.lengths, rows.shape[0])
    if newest:
      segment = pallas_kernels.segment_ids(events.lengths, rows.shape[0])
      last = events.lengths.at[segment].get(mode='fill', fill_value=1) - 1
      place = last - place
    x += position[...][place]
  return layers.apply_dropout(x, rate, key, events.first)
