"""Which token sees which, in closed form, and where each token stands.

A sequence is [contextual tokens][history][targets]. Its tokens get an order:
all contextual ones 0, the history 1, 2, ... (0, 1, ... without context), all
targets the same, `target_limit`. A token sees itself and what is earlier in
that order, so a target never sees another; contextual tokens see context and
history both ways. These functions are elementwise and free of shapes: the XLA
path, the Pallas kernels and the tests all call them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.hstu_attention.spec import Context, Spec
from pallas_kernels.jagged import api as jagged


class TokenPositions(NamedTuple):
  """Where each of some tokens stands, all `[T]` int32.

  Attributes:
    segment: its sequence; B for padding.
    position: its place in the sequence; 0 for padding.
    order: see the top of this file.
    limit: order of the targets of its sequence.
    anchor: its place for the position bias: targets stand where the first one
      does, since all of them are candidates for the same place.
    token: its number among the packed keys, or its own number for padding.
  """

  segment: jax.Array
  position: jax.Array
  order: jax.Array
  limit: jax.Array
  anchor: jax.Array
  token: jax.Array


def target_limit(length, targets, contextual: int):
  """Order of the targets of a sequence of `length` tokens."""
  return length - max(contextual - 1, 0) - targets


def order(position, limit, contextual: int):
  """Order of the token at `position`."""
  # Contextual tokens share order 0, and the history begins at 1.
  if contextual:
    position = jnp.maximum(position - (contextual - 1), 0)
  # All targets share the order that follows the history.
  return jnp.minimum(position, limit)


def is_visible(spec: Spec, same_token, query_order, key_order, limit):
  """Whether a query sees a key of its own sequence.

  Args:
    spec: window, full_tail and contextual are read.
    same_token: whether both are the same token.
    query_order: order of the query.
    key_order: order of the key.
    limit: order of the targets of the sequence.
  """
  # `>` keeps targets, which share an order, from seeing each other.
  seen = same_token | (query_order > key_order)
  if spec.window is not None:
    near = query_order - key_order <= spec.window
    if spec.full_tail:
      # Targets have the order `limit`, so they are exempt too.
      near |= query_order >= limit - spec.full_tail
    seen &= near
  if spec.contextual:
    # After the window, which does not bind contextual tokens. They see each
    # other and the history both ways, and no target.
    seen |= (query_order == 0) & (key_order < limit)
  return seen


def key_places(spec: Spec, context: Context, capacity: int) -> TokenPositions:
  """Of the packed keys, `[T]`."""
  lengths = context.lengths
  segment = jagged.segment_ids(lengths, capacity)
  position = jagged.positions(lengths, capacity)
  token = jnp.arange(capacity, dtype=jnp.int32)
  return _places(spec, context, segment, position, token)


def query_places(spec: Spec, context: Context, capacity: int) -> TokenPositions:
  """Of the packed queries, `[Tq]`: the last tokens of their sequences."""
  if context.query_lengths is None:
    return key_places(spec, context, capacity)
  lengths, queries = context.lengths, context.query_lengths
  segment = jagged.segment_ids(queries, capacity)
  # The keys before the queries; counted into their positions.
  skipped = _of(segment, lengths - queries)
  real = segment < lengths.shape[0]
  position = jagged.positions(queries, capacity) + skipped
  token = jnp.arange(capacity, dtype=jnp.int32)
  start = _of(segment, jagged.offsets(lengths))
  # Dropout hashes the number a query would have among all tokens, so that a
  # cached call drops what a full one does.
  token = jnp.where(real, start + position, token).astype(jnp.int32)
  return _places(spec, context, segment, position, token)


def _of(segment, values):
  # Padding belongs to sequence B, which has no entry: it reads zero.
  return values.at[segment].get(mode='fill', fill_value=0)


def _places(spec, context, segment, position, token) -> TokenPositions:
  lengths = context.lengths
  targets = context.targets
  targets = jnp.zeros_like(lengths) if targets is None else targets
  end = _of(segment, target_limit(lengths, targets, spec.contextual))
  return TokenPositions(
    segment,
    position,
    order(position, end, spec.contextual),
    end,
    # Targets all compete for the position of the first one.
    jnp.minimum(position, _of(segment, lengths - targets)),
    token,
  )
