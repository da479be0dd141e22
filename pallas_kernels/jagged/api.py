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
