"""Random bits as a hash of where they are used, the same on every backend."""

import jax
import jax.numpy as jnp


def mix(x: jax.Array) -> jax.Array:
  """The finalizer of MurmurHash3, a bijection of uint32."""
  u32 = jnp.uint32
  # Xor-shifts and odd factors can each be undone, so no two inputs collide.
  x = (x ^ (x >> u32(16))) * u32(0x85EBCA6B)
  x = (x ^ (x >> u32(13))) * u32(0xC2B2AE35)
  return x ^ (x >> u32(16))


def element_bits(
  seed: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
  """Random bits for the elements of a matrix.

  They depend on the seed and on the numbers of row and column alone, so that a
  part of a matrix gets the bits it has as part of the whole matrix.

  Args:
    seed: uint32 scalar.
    rows: numbers of the rows.
    columns: numbers of the columns, in a shape that broadcasts against `rows`.

  Returns:
    uint32 in the broadcast shape.
  """
  # Mixed between the two numbers: rows and columns that differ by one would
  # otherwise share most of their bits.
  row = mix(seed ^ mix(rows.astype(jnp.uint32)))
  return mix(row + columns.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))


# The query enters as a multiple of this number, which `offset_seed` adds.
_QUERY = 0x9E3779B1


def keep_mask(seed, head, query, key, rate) -> jax.Array:
  """Which attention weights, or other numbers, dropout keeps.

  Because these are hashes of numbers, every backend and every block size drops
  the same weights. Of the key only its distance from the query counts, so that
  `offset_seed` can renumber both.

  Args:
    seed: uint32 scalar.
    head: numbers of the heads; head, query and key broadcast.
    query: token numbers of the queries.
    key: token numbers of the keys.
    rate: share to drop, a Python number.

  Returns:
    Booleans in the broadcast shape.
  """
  u32 = jnp.uint32
  # uint32 wraps around, which is defined; a signed overflow would not be.
  query = query.astype(u32)
  distance = query - key.astype(u32)
  x = seed.astype(u32) + query * u32(_QUERY)
  x = x ^ (distance * u32(0x85EBCA77) + head.astype(u32) * u32(747796405))
  # The hash is uniform, so a share of `rate` lies below the threshold.
  return mix(x) >= u32(int(rate * 2**32))


def offset_seed(seed: jax.Array, tokens: jax.Array) -> jax.Array:
  """The seed with which token i gets the dropout of token `tokens + i`."""
  # Exact because the query is multiplied before the seed is added, and only the
  # distance of the key enters, which renumbering leaves as it is.
  return seed + tokens.astype(jnp.uint32) * jnp.uint32(_QUERY)
