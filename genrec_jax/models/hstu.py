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
fields of `Config` and of `Options` reach the other published variants one by
one. `models.stu` stacks the same block over requests.

Differences from the paper: the softmax mode (`attention='softmax'`, the
ablation) masks before the softmax, scales by 1/sqrt(dqk) and keeps the heads;
the published code masks after it and fuses the heads.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config.models import HSTU as Config
from genrec_jax.features import Jagged
from genrec_jax.models import layers

TIME_BUCKETS = 129


GATES = {'none': lambda u: u, 'sigmoid': jax.nn.sigmoid, 'silu': jax.nn.silu}


@dataclasses.dataclass(frozen=True)
class Options:
  """What a layer can do beside its `Config`; the defaults are retrieval's.

  Attributes:
    uvqk_init: how the matrix of the input projection starts.
    norm_eps: epsilon of both norms.
    group_norm: whether each head is normed by itself, with one scale and one
      shift a head.
    gate: what is applied to the U that multiplies, and to no other: 'none',
      'sigmoid' or 'silu'.
    contextual: tokens at the head of a sequence that see, and are seen by, all
      of the history.
    window: how far a token sees; None is any distance.
    full_tail: latest history tokens that the window does not bind.
    prefix: oldest history tokens that are seen from beyond the window.
    max_targets: bound of the candidates of a sequence; None for none known.
  """

  uvqk_init: Callable = layers.normal(0.02)
  norm_eps: float = 1e-6
  group_norm: bool = False
  gate: str = 'none'
  contextual: int = 0
  window: int | None = None
  full_tail: int = 0
  prefix: int = 0
  max_targets: int | None = None


RETRIEVAL = Options()


class Block(nnx.Module):
  """One HSTU layer."""

  def __init__(
    self, config: Config, rngs: nnx.Rngs, options: Options = RETRIEVAL
  ):
    c, o = config, options
    self.config, self.options = config, options
    values, keys = c.heads * c.dv, c.heads * c.dqk
    self.norm_input = layers.LayerNorm(
      c.dim, eps=o.norm_eps, affine=c.ln_affine
    )
    self.uvqk = layers.Linear(
      c.dim,
      2 * values + 2 * keys,
      kernel_init=o.uvqk_init,
      use_bias=c.uvqk_bias,
      rngs=rngs,
    )
    self.norm_attention = (
      layers.HeadNorm(c.heads, eps=o.norm_eps)
      if o.group_norm
      else layers.LayerNorm(values, eps=o.norm_eps, affine=c.ln_affine)
    )
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

  def __call__(
    self,
    x: jax.Array,
    events: Jagged,
    key,
    targets: jax.Array | None = None,
    numbers: jax.Array | None = None,
    normaliser: jax.Array | None = None,
  ) -> jax.Array:
    """`[T, D]` -> `[T, D]`.

    Args:
      x: the tokens.
      events: their lengths, with columns time and next_time where there is a
        time bias.
      key: random key of the dropout; None in evaluation.
      targets: `[B]` tokens at the end of each sequence that are candidates.
      numbers: `[T]` number of each token in the batch, for the dropout, where
        it is not `events.first` and what follows.
      normaliser: `[T]`, in place of that of the config.
    """
    u, q, k, v = self.project(x)
    attended = self.attend(q, k, v, events, targets, normaliser)
    return self.combine(x, u, attended, key, events.first, numbers)

  def project(self, x: jax.Array):
    """U `[T, H dv]`, Q and K `[T, H, dqk]` and V `[T, H, dv]` of tokens."""
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
    return (
      u,
      q.reshape(tokens, c.heads, c.dqk),
      k.reshape(tokens, c.heads, c.dqk),
      v.reshape(tokens, c.heads, c.dv),
    )

  def attend(
    self,
    q,
    k,
    v,
    events: Jagged,
    targets=None,
    normaliser=None,
    query_lengths=None,
    max_queries: int | None = None,
  ) -> jax.Array:
    """What each query gathers from the tokens that it sees, `[Tq, H dv]`.

    What a candidate gathers from itself is added behind the others, wherever
    it stands among the candidates: their order must not change the last bit of
    a score.

    Args:
      q: `[Tq, H, dqk]`, Tq = T where all tokens have a query.
      k: `[T, H, dqk]` of all tokens.
      v: `[T, H, dv]` of all tokens.
      events: as in `__call__`, of all tokens.
      targets: as in `__call__`.
      normaliser: `[Tq]`, in place of that of the config.
      query_lengths: `[B]` tokens at the end of each sequence that have a query;
        None for all of them. The keys and values of the others may be kept
        from an earlier pass.
      max_queries: static bound of these; None for that of the lengths.
    """
    c, o = self.config, self.options
    at = None
    if query_lengths is not None:
      at = find_queries(events.lengths, query_lengths, q.shape[0], v.shape[0])

    def of_queries(x):
      """Values of all tokens -> those of the queries."""
      return x if at is None else x.at[at].get(mode='fill', fill_value=0)

    alpha = c.alpha
    if alpha is None:
      alpha = 1.0 if c.attention == 'silu' else c.dqk**-0.5
    if normaliser is None:
      normaliser = c.positions if c.normaliser is None else c.normaliser
    if targets is not None and o.max_targets is not None:
      # A sequence with more is refused by who knows what it is; the attention
      # would refuse the whole batch.
      targets = jnp.minimum(targets, o.max_targets)
    apart = targets is not None and c.attention == 'silu'
    if apart:
      is_target = _find_targets(events.lengths, targets, v.shape[0])
    attended = pallas_kernels.hstu_attention(
      q,
      k,
      jnp.where(is_target, 0, v) if apart else v,
      events.lengths,
      max_len=c.max_len,
      mode=c.attention,
      alpha=alpha,
      normaliser=normaliser,
      position_bias=None if not c.position_bias else self.position_bias[...],
      time_bias=None if not c.time_bias else self.time_bias[...],
      query_time=of_queries(events['next_time']) if c.time_bias else None,
      time=events['time'] if c.time_bias else None,
      targets=targets,
      contextual=o.contextual,
      window=o.window,
      full_tail=o.full_tail,
      prefix=o.prefix,
      max_targets=o.max_targets,
      query_lengths=query_lengths,
      max_queries=max_queries,
      implementation=c.implementation,
    )
    if apart:
      own = self._attend_itself(
        q, of_queries(k), of_queries(v), alpha, normaliser
      )
      own = jnp.where(of_queries(is_target), own, 0.0)
      attended = (attended.astype(jnp.float32) + own).astype(v.dtype)
    return attended.reshape(q.shape[0], -1)

  def _attend_itself(self, q, k, v, alpha, normaliser) -> jax.Array:
    """What a token of the time of its query gathers from itself, float32."""
    c = self.config
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    score = alpha * jnp.sum(q * k, axis=-1)
    if c.position_bias:
      score += self.position_bias[...][c.positions - 1]
    if c.time_bias:
      score += self.time_bias[...][0]
    if getattr(normaliser, 'ndim', 0):
      normaliser = normaliser[:, None]
    return (jax.nn.silu(score) / normaliser)[:, :, None] * v

  def combine(
    self, x, u, attended, key=None, first=None, numbers=None
  ) -> jax.Array:
    """The gated output of the attention, projected and added to `x`."""
    c = self.config
    normed = self.norm_attention(attended)
    gated = GATES[self.options.gate](u) * normed
    if c.concat == 'u_a_ua':
      gated = jnp.concatenate([u, normed, gated], axis=-1)
    elif c.concat == 'u_x_ux':
      gated = jnp.concatenate([u, attended, gated], axis=-1)
    gated = layers.apply_dropout(gated, c.dropout, key, first, numbers)
    return x + self.output(gated)


def _find_targets(lengths, targets, tokens: int) -> jax.Array:
  """`[T, 1, 1]`, whether each token is a candidate."""
  segment = pallas_kernels.segment_ids(lengths, tokens)
  first = (lengths - targets).at[segment].get(mode='fill', fill_value=tokens)
  place = pallas_kernels.positions(lengths, tokens)
  return (place >= first)[:, None, None]


def find_queries(lengths, query_lengths, queries: int, tokens: int):
  """`[queries]` which token each query is of; `tokens` for padding."""
  segment = pallas_kernels.segment_ids(query_lengths, queries)
  first = pallas_kernels.offsets(lengths) + lengths - query_lengths
  first = first.at[segment].get(mode='fill', fill_value=tokens)
  place = pallas_kernels.positions(query_lengths, queries)
  return jnp.minimum(first + place, tokens)


class HSTU(nnx.Module):
  """Item rows -> one representation a token."""

  Config = Config

  def __init__(self, config: Config, rngs: nnx.Rngs):
    self.config = config
    shape = (config.positions, config.dim)
    self.position = layers.optional_param(
      config.position_embedding, layers.xavier_normal, rngs, shape
    )
    options = Options(window=config.window, prefix=config.prefix)
    block = functools.partial(Block, options=options)
    layers.stack_blocks(self, block, config, rngs)

  @property
  def outer_sites(self) -> tuple[tuple[str, ...], ...]:
    """The first and the last product, see `products.assign_products`."""
    last = f'layer_{self.config.blocks - 1}/output/kernel'
    return ('layer_0/uvqk/kernel',), (last,)

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
