"""Which token sees which, in closed form, and the position of each token.

A sequence is [contextual tokens][history][targets]. Every token gets an order:
0 for all contextual ones, 1, 2, ... for the history (0, 1, ... without
context), and `target_limit` for all targets. A token sees itself and all tokens
of a smaller order, so a target never sees another one; in addition, contextual
tokens see each other and the whole history. These functions are elementwise and
work on any shapes: the XLA path, the Pallas kernels and the tests all call
them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.hstu_attention.spec import Context, Spec
from pallas_kernels.jagged import api as jagged


class TokenPositions(NamedTuple):
  """The positions of some tokens, all `[T]` int32.

  Attributes:
    segment: number of the sequence; B for padding.
    position: position in the sequence; 0 for padding.
    order: see the top of this file.
    limit: order of the targets of the sequence.
    anchor: position for the position bias; all targets have that of the first
      one, since they are candidates for the same position.
    token: number among the packed keys; for padding, the number of the query.
  """

  segment: jax.Array
  position: jax.Array
  order: jax.Array
  limit: jax.Array
  anchor: jax.Array
  token: jax.Array


def target_limit(length, targets, contextual: int):
  """The order of the targets of a sequence.

  Args:
    length: tokens of the sequence.
    targets: how many of them are targets.
    contextual: how many are context.
  """
  return length - max(contextual - 1, 0) - targets


def order(position, limit, contextual: int):
  """The order of a token.

  >>> order(jnp.arange(6), limit=3, contextual=2).tolist()
  [0, 0, 1, 2, 3, 3]

  Args:
    position: position in its sequence.
    limit: order of the targets of the sequence.
    contextual: number of contextual tokens.
  """
  # Contextual tokens share order 0, and the history begins at 1.
  if contextual:
    position = jnp.maximum(position - (contextual - 1), 0)
  # All targets share the order that follows the history.
  return jnp.minimum(position, limit)


def is_visible(spec: Spec, same_token, query_order, key_order, limit):
  """Whether a query sees a key of its own sequence.

  Args:
    spec: window, full_tail, prefix and contextual are read.
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
    if spec.prefix:
      near |= key_order < prefix_end(spec)
    seen &= near
  if spec.contextual:
    # After the window, which does not bind contextual tokens. They see each
    # other and the history both ways, and no target.
    seen |= (query_order == 0) & (key_order < limit)
  return seen


def prefix_end(spec: Spec) -> int:
  """The order from which on keys are no longer of the prefix."""
  # Context has order 0 and belongs to it, if there is a prefix.
  return spec.prefix + (1 if spec.contextual else 0)


def prefix_tokens(spec: Spec) -> int:
  """How many tokens at the head of a sequence are seen from everywhere."""
  return spec.contextual + spec.prefix if spec.prefix else 0


def key_places(spec: Spec, context: Context, capacity: int) -> TokenPositions:
  """The positions of the packed keys.

  Args:
    spec: options of the call.
    context: lengths of the call.
    capacity: T, number of keys including padding.
  """
  lengths = context.lengths
  segment = jagged.segment_ids(lengths, capacity)
  position = jagged.positions(lengths, capacity)
  token = jnp.arange(capacity, dtype=jnp.int32)
  return _places(spec, context, segment, position, token)


def query_places(spec: Spec, context: Context, capacity: int) -> TokenPositions:
  """The positions of the packed queries, the last tokens of their sequences.

  Args:
    spec: options of the call.
    context: lengths of the call.
    capacity: Tq, number of queries including padding.
  """
  if context.query_lengths is None:
    return key_places(spec, context, capacity)
  lengths, queries = context.lengths, context.query_lengths
  segment = jagged.segment_ids(queries, capacity)
  # The keys before the queries; counted into their positions.
  skipped = _gather_of_segment(segment, lengths - queries)
  real = segment < lengths.shape[0]
  position = jagged.positions(queries, capacity) + skipped
  token = jnp.arange(capacity, dtype=jnp.int32)
  start = _gather_of_segment(segment, jagged.offsets(lengths))
  # Dropout hashes the number a query would have among all tokens, so that a
  # cached call drops what a full one does.
  token = jnp.where(real, start + position, token).astype(jnp.int32)
  return _places(spec, context, segment, position, token)


def _gather_of_segment(segment, values):
  # Padding belongs to sequence B, which has no entry: it reads zero.
  return values.at[segment].get(mode='fill', fill_value=0)


def _places(spec, context, segment, position, token) -> TokenPositions:
  lengths = context.lengths
  targets = context.targets
  targets = jnp.zeros_like(lengths) if targets is None else targets
  end = _gather_of_segment(
    segment, target_limit(lengths, targets, spec.contextual)
  )
  return TokenPositions(
    segment,
    position,
    order(position, end, spec.contextual),
    end,
    # Targets all compete for the position of the first one.
    jnp.minimum(position, _gather_of_segment(segment, lengths - targets)),
    token,
  )
