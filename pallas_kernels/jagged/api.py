"""Packed (jagged) sequences: where each token belongs, and dense views.

A jagged array is `values [T, ...]` with `lengths [B]`: sequences stand one
behind the other, padding at the end. These are thin index computations which
XLA fuses well, so there is one implementation for every backend.
"""

import jax
import jax.numpy as jnp


def offsets(lengths: jax.Array) -> jax.Array:
  """First token of each sequence, `[B]`."""
  return jnp.cumsum(lengths) - lengths


def segment_ids(lengths: jax.Array, capacity: int) -> jax.Array:
  """The sequence each token belongs to, `[T]`; B for padding tokens."""
  ends = jnp.cumsum(lengths)
  tokens = jnp.arange(capacity, dtype=ends.dtype)
  return jnp.searchsorted(ends, tokens, side='right').astype(jnp.int32)


def positions(lengths: jax.Array, capacity: int) -> jax.Array:
  """Position of each token in its sequence, `[T]`; 0 for padding tokens."""
  segment = segment_ids(lengths, capacity)
  start = offsets(lengths).at[segment].get(mode='fill', fill_value=0)
  tokens = jnp.arange(capacity, dtype=start.dtype)
  return jnp.where(segment < lengths.shape[0], tokens - start, 0)


def to_dense(values: jax.Array, lengths: jax.Array, max_len: int) -> jax.Array:
  """`[T, ...] -> [B, max_len, ...]`, zeros behind each sequence."""
  column = jnp.arange(max_len, dtype=lengths.dtype)
  token = offsets(lengths)[:, None] + column[None, :]
  token = jnp.where(column[None, :] < lengths[:, None], token, values.shape[0])
  return values.at[token].get(mode='fill', fill_value=0)


def to_jagged(dense: jax.Array, lengths: jax.Array, capacity: int) -> jax.Array:
  """`[B, max_len, ...] -> [T, ...]`, zeros in the padding tokens."""
  segment = segment_ids(lengths, capacity)
  position = positions(lengths, capacity)
  return dense.at[segment, position].get(mode='fill', fill_value=0)


def last_tokens(values: jax.Array, lengths: jax.Array) -> jax.Array:
  """The last token of each sequence, `[B, ...]`; zeros for empty ones."""
  token = offsets(lengths) + lengths - 1
  token = jnp.where(lengths > 0, token, values.shape[0])
  return values.at[token].get(mode='fill', fill_value=0)


def concat(
  left: jax.Array,
  left_lengths: jax.Array,
  right: jax.Array,
  right_lengths: jax.Array,
  capacity: int,
  *,
  prefix: int = 0,
) -> jax.Array:
  """Each sequence of `left` followed by the same user's sequence of `right`.

  With a prefix, the first `prefix` tokens of `right` come before `left`:
  right[:prefix], left, right[prefix:]. A dense side `[B, L, ...]` is a packed
  one of equal lengths: `dense.reshape(-1, ...)`.

  Args:
    left: `[T1, ...]`.
    left_lengths: `[B]`.
    right: `[T2, ...]`.
    right_lengths: `[B]`.
    capacity: tokens of the result, of lengths left_lengths + right_lengths;
      what does not fit is cut off.
    prefix: tokens of `right` that come first.

  Returns:
    `[capacity, ...]`, zeros in the padding tokens.
  """
  is_left, token = _sources(left_lengths, right_lengths, capacity, prefix)
  from_left = jnp.where(is_left, token, left.shape[0])
  from_right = jnp.where(is_left, right.shape[0], token)
  return left.at[from_left].get(mode='fill', fill_value=0) + right.at[
    from_right
  ].get(mode='fill', fill_value=0)


def split(
  values: jax.Array,
  left_lengths: jax.Array,
  right_lengths: jax.Array,
  left_capacity: int,
  right_capacity: int,
  *,
  prefix: int = 0,
) -> tuple[jax.Array, jax.Array]:
  """The inverse of `concat`: `[T1, ...]` and `[T2, ...]`."""
  is_left, token = _sources(
    left_lengths, right_lengths, values.shape[0], prefix
  )

  def take(mine, capacity):
    target = jnp.where(mine, token, capacity)
    empty = jnp.zeros((capacity, *values.shape[1:]), values.dtype)
    return empty.at[target].set(values, mode='drop', unique_indices=True)

  return take(is_left, left_capacity), take(~is_left, right_capacity)


def _sources(left_lengths, right_lengths, capacity, prefix):
  """Of each token of the concatenation: from the left? and its number there."""
  lengths = left_lengths + right_lengths
  segment = segment_ids(lengths, capacity)
  position = positions(lengths, capacity)

  def mine(values):
    return values.at[segment].get(mode='fill', fill_value=0)

  head = jnp.minimum(mine(right_lengths), prefix)
  left = mine(left_lengths)
  is_left = (position >= head) & (position < head + left)
  from_right = jnp.where(position < head, position, position - left)
  token = jnp.where(
    is_left,
    mine(offsets(left_lengths)) + position - head,
    mine(offsets(right_lengths)) + from_right,
  )
  # Padding has a number beyond both sides.
  beyond = jnp.iinfo(jnp.int32).max
  real = segment < lengths.shape[0]
  return is_left & real, jnp.where(real, token, beyond).astype(jnp.int32)
