"""Lists of the pairs of blocks that a TPU kernel takes one after the other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MAX_BLOCKS = 1 << 15  # of either side, so that a pair is one number


class Pairs(NamedTuple):
  """The pairs of blocks that a kernel takes one after the other, int32.

  Attributes:
    codes: `[P]` pairs, see `decode`, by their own block; those behind the last
      one are never read.
    bounds: `[parts + 1]` where the pairs of each part of the own blocks begin:
      cores take a part each.
  """

  codes: jax.Array
  bounds: jax.Array


def list_pairs(first, last, blocks: int, capacity: int) -> tuple[Pairs, Pairs]:
  """All pairs of a query block and a key block that it sees.

  A block that meets none is there once all the same, since its output must be
  written.

  Args:
    first: first key block of each run of a query block, from
      `tpu_layout.find_ranges`.
    last: the last one.
    blocks: number of key blocks.
    capacity: the most pairs there can be, from `tpu_layout.bound_pairs`.

  Returns:
    The pairs by query block, and by key block.
  """
  rows = first.shape[0]
  counts = jnp.maximum(last - first + 1, 0)
  # int32 throughout: with 64-bit numbers switched on, sums would be wider, and
  # a TPU has no room for that.
  seen = jnp.sum(counts, 1, dtype=jnp.int32)
  steps = jnp.maximum(seen, 1)
  begin = jnp.cumsum(steps, dtype=jnp.int32) - steps
  query = jnp.repeat(
    jnp.arange(rows, dtype=jnp.int32), steps, total_repeat_length=capacity
  )
  step = jnp.arange(capacity, dtype=jnp.int32) - begin[query]
  is_seen = step < seen[query]
  key = first[query, 0] + step
  if first.shape[1] > 1:
    ahead = counts[query, 0]
    key = jnp.where(step < ahead, key, first[query, 1] + step - ahead)
  key = jnp.where(is_seen, key, 0)
  by_query = Pairs(
    _encode(query, key, is_seen),
    _cut_in_two(query, rows, jnp.sum(steps, dtype=jnp.int32)),
  )
  # The same pairs by key block, and each block that nobody sees.
  number = jnp.arange(blocks, dtype=jnp.int32)
  alone = jnp.zeros(blocks, bool)
  alone = ~alone.at[jnp.where(is_seen, key, blocks)].set(True, mode='drop')
  own = jnp.concatenate(
    (jnp.where(is_seen, key, blocks), jnp.where(alone, number, blocks))
  )
  other = jnp.concatenate((query, jnp.zeros(blocks, jnp.int32)))
  # Stable, so that the queries of a key block keep their order.
  own, other, is_seen = lax.sort(
    (own, other, jnp.concatenate((is_seen, jnp.zeros(blocks, bool)))),
    num_keys=1,
    is_stable=True,
  )
  by_key = Pairs(
    _encode(own, other, is_seen),
    _cut_in_two(own, blocks, jnp.sum(own < blocks, dtype=jnp.int32)),
  )
  return by_query, by_key


def _encode(own, other, is_seen):
  """Pairs as numbers of 32 bits, negative where nothing is to be computed."""
  code = own.astype(jnp.int32) << 16 | other.astype(jnp.int32)
  return jnp.where(is_seen, code, ~code)


def decode(code):
  """Own block, other block, and whether there is something to compute.

  >>> own, other, is_seen = decode(jnp.array([5 << 16 | 2, ~(7 << 16)]))
  >>> own.tolist(), other.tolist(), is_seen.tolist()
  ([5, 7], [2, 0], [True, False])

  Args:
    code: number of a pair.
  """
  is_seen = code >= 0
  code = jnp.where(is_seen, code, ~code)
  return code >> 16, code & 0xFFFF, is_seen


def _cut_in_two(own, blocks: int, end) -> jax.Array:
  """Where the pairs of each part begin, and their end; none is empty.

  Two parts, since no chip has more cores that share a call. They are cut
  between two own blocks, as near to half of the pairs as that can be.

  Args:
    own: `[P]` own block of each pair, in order.
    blocks: number of own blocks.
    end: how many of the pairs there are.
  """
  if blocks == 1:
    return jnp.stack([jnp.zeros_like(end), end])
  half = end // 2
  middle = own[half]
  begin = jnp.sum(own < middle, dtype=jnp.int32)
  after = jnp.minimum(jnp.sum(own <= middle, dtype=jnp.int32), end)
  is_nearer = half - begin <= after - half
  is_begin = (begin > 0) & (is_nearer | (after == end))
  cut = jnp.where(is_begin, begin, after)
  return jnp.stack([jnp.zeros_like(end), cut, end])
