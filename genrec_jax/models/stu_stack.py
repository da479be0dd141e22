"""A stack of HSTU layers over requests, some of them truncated or skipped.

| published code (spec 2.2)  | here                                     |
|----------------------------|------------------------------------------|
| STULayer                   | `hstu.Block`                             |
| L2STU, max_l2_len          | `truncated_layers`, `truncated_to`       |
| prefix_b                   | `count_bypassed`                         |
| SDSTU                      | `skipped_layers`, `skip_rate`            |
| 1/N                        | `normaliser`, see `STU.longest`          |

Differences from the paper: the attention is divided by one number, in truncated
layers too; the published code divides by the longest sequence of the batch
(`reference_compat`: 'batch_normaliser').
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config.models import HSTU as BlockConfig
from genrec_jax.config.request_models import STU as Config
from genrec_jax.models import hstu, layers
from genrec_jax.models.request_sequences import Sequences


def block_config(config: Config, contextual: int) -> BlockConfig:
  """The layer of a model with `contextual` tokens of context."""
  c = config
  longest = c.longest(contextual)
  return BlockConfig(
    dim=c.dim,
    blocks=c.blocks,
    heads=c.heads,
    dqk=c.dqk,
    dv=c.dv,
    max_len=longest,
    extra_positions=0,
    dropout=c.dropout,
    silu_on='u',
    concat='u_x_ux',
    uvqk_bias=True,
    out_bias=False,
    ln_affine=True,
    alpha=c.dqk**-0.5 if c.alpha is None else c.alpha,
    normaliser=longest if c.normaliser is None else c.normaliser,
    position_bias=c.position_bias,
    time_bias=c.time_bias,
    dtype=c.dtype,
    remat=c.remat,
    implementation=c.implementation,
  )


def count_bypassed(
  sequences: Sequences, contextual: int, truncated_to: int
) -> jax.Array:
  """`[B]` tokens of the history that truncated layers do not see."""
  history = sequences.lengths - sequences.candidates - contextual
  return jnp.maximum(history - truncated_to, 0)


def _make_init(config: Config):
  """How the matrix of U, V, the queries and the keys starts, in this order."""
  keys = config.heads * config.dqk

  def init_tied(key, shape, dtype=jnp.float32):
    matrix = layers.xavier_uniform(key, shape, dtype)
    return matrix.at[:, -keys:].set(matrix[:, -2 * keys : -keys])

  return init_tied if config.tied_start else layers.xavier_uniform


def _count_prefix(config: Config, contextual: int) -> int:
  if not config.prefix or config.context_mask == 'both':
    return config.prefix
  return contextual + config.prefix


class Stack(nnx.Module):
  """layer_0, layer_1, ... of `[T, D]` tokens."""

  def __init__(self, config: Config, contextual: int, rngs: nnx.Rngs):
    c = self.config = config
    self.contextual = contextual
    whole = block_config(c, contextual)
    options = hstu.Options(
      uvqk_init=_make_init(c),
      norm_eps=c.norm_eps,
      group_norm=c.group_norm,
      gate=c.gate,
      contextual=contextual if c.context_mask == 'both' else 0,
      window=c.window,
      full_tail=c.full_tail,
      # A causal context is the head of the history to the attention.
      prefix=_count_prefix(c, contextual),
      max_targets=c.tokens_of_event * c.max_candidates,
    )
    self.first_truncated = c.blocks - c.truncated_layers
    self.first_skipped = c.blocks - c.skipped_layers
    candidates = c.tokens_of_event * c.max_candidates
    short = min(whole.max_len, contextual + c.truncated_to + candidates)
    for i in range(c.blocks):
      config = whole
      if i >= self.first_truncated:
        # A bound of the lengths alone: what is divided by stays.
        config = dataclasses.replace(whole, max_len=short)
      setattr(self, f'layer_{i}', hstu.Block(config, rngs, options))

  def __call__(
    self, x: jax.Array, sequences: Sequences, key=None, listwise: bool = False
  ) -> jax.Array:
    """`[T, D]` -> `[T, D]`.

    Args:
      x: the tokens.
      sequences: where they stand.
      key: random key; None for evaluation, in which no layer is skipped.
      listwise: whether candidates see those in front of them.
    """
    c = self.config
    keys = layers.split_key(key, c.blocks + 1)
    skip = None
    if c.skipped_layers and key is not None:
      skip = jax.random.bernoulli(keys[-1], c.skip_rate)
    bypass = None
    for i in range(c.blocks):
      if i == self.first_truncated:
        x, sequences, bypass = self.truncate(x, sequences)
      run = functools.partial(self._apply, i, key=keys[i], listwise=listwise)
      if skip is None or i < self.first_skipped:
        x = run(x, sequences)
      else:
        # A branch rather than a choice: a skipped layer costs nothing.
        x = jax.lax.cond(skip, lambda x, _: x, run, x, sequences)
    return x if bypass is None else self.restore(x, sequences, *bypass)

  def _apply(self, i: int, x, sequences: Sequences, *, key, listwise: bool):
    c = self.config
    normaliser = None
    if 'batch_normaliser' in c.reference_compat:
      longest = jnp.max(sequences.lengths, initial=1).astype(jnp.float32)
      normaliser = jnp.broadcast_to(longest, x.shape[:1])
    layer = layers.maybe_remat(getattr(self, f'layer_{i}'), c.remat)
    return layer(
      x,
      sequences.as_events(),
      key,
      None if listwise else sequences.candidates,
      sequences.number,
      normaliser,
    )

  def truncate(self, x, sequences: Sequences):
    """Tokens that truncated layers see, and (the others, their lengths)."""
    c, contextual = self.config, self.contextual
    bypassed = count_bypassed(sequences, contextual, c.truncated_to)
    kept = sequences.lengths - bypassed
    size = kept.shape[0]
    # Most that can be kept; candidates are not cut, and all tokens may be.
    room = size * (contextual + c.truncated_to) + sequences.candidate_capacity
    room = min(sequences.tokens, room)

    def take(values):
      return pallas_kernels.split(
        values, bypassed, kept, sequences.tokens, room, prefix=contextual
      )

    others, x = take(x)
    sequences = dataclasses.replace(
      sequences,
      lengths=kept,
      age=take(sequences.age)[1],
      number=take(sequences.number)[1],
    )
    return x, sequences, (others, bypassed)

  def restore(self, x, sequences: Sequences, others, bypassed) -> jax.Array:
    """Puts the tokens that were passed by where they stood."""
    return pallas_kernels.concat(
      others,
      bypassed,
      x,
      sequences.lengths,
      others.shape[0],
      prefix=self.contextual,
    )
