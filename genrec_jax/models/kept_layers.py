"""HSTU layers over new tokens, where keys and values of the others are kept.

A row of what is kept has the keys and values of one token in all layers, one
behind the other. `kept_requests` (rankers of candidates) and `kept_histories`
(retrieval) say what the tokens are.
"""

import jax
import jax.numpy as jnp

from genrec_jax.features import Jagged
from genrec_jax.models.hstu import Block, find_queries


def row_width(config) -> int:
  """Numbers that are kept of a token, of a config with HSTU's sizes.

  >>> from genrec_jax.config.models import HSTU
  >>> row_width(HSTU(blocks=2, heads=4, dqk=8, dv=16))
  192
  """
  return config.blocks * config.heads * (config.dqk + config.dv)


def join_keys(k: jax.Array, v: jax.Array) -> jax.Array:
  """`[T, H (dqk + dv)]`, what is kept of a layer."""
  return jnp.concatenate(
    [k.reshape(k.shape[0], -1), v.reshape(v.shape[0], -1)], axis=1
  )


def run_layer(
  layer: Block,
  x: jax.Array,
  kept: jax.Array,
  events: Jagged,
  fresh: jax.Array,
  targets: jax.Array | None,
  max_new: int,
) -> tuple[jax.Array, jax.Array]:
  """New tokens behind a layer, `[Q, D]`, and what to keep of them.

  Args:
    layer: the layer.
    x: `[Q, D]` the new tokens, packed.
    kept: `[T, H (dqk + dv)]` of all tokens in this layer, with room for the new
      ones at the ends of their sequences.
    events: lengths of the whole sequences, and their times.
    fresh: `[B]` how many tokens of each are new.
    targets: `[B]` how many of them are candidates; None for none.
    max_new: static bound of `fresh`.
  """
  c = layer.config
  u, q, k, v = layer.project(x)
  own = join_keys(k, v)
  at = find_queries(events.lengths, fresh, x.shape[0], kept.shape[0])
  kept = kept.at[at].set(own, mode='drop')
  keys, values = jnp.split(kept, [c.heads * c.dqk], axis=1)
  attended = layer.attend(
    q,
    keys.reshape(-1, c.heads, c.dqk),
    values.reshape(-1, c.heads, c.dv),
    events,
    targets,
    query_lengths=fresh,
    max_queries=max_new,
  )
  return layer.combine(x, u, attended), own
