"""Stochastic rounding to bfloat16, with the same random bits everywhere.

A number between two neighbours in bfloat16 becomes the upper one with a
probability of its share of the way, so that the expected result is the number
itself. The chance comes from a hash of (seed, row, column): it depends neither
on the backend nor on which other rows are updated.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.hashing import mix


def noise(seed: jax.Array, rows: jax.Array, dim: int) -> jax.Array:
  """Sixteen random bits for each element, `[N, dim]` uint32.

  Args:
    seed: uint32 scalar.
    rows: `[N]` the number of each row.
    dim: elements of a row.
  """
  row = mix(seed ^ mix(rows.astype(jnp.uint32)))
  column = jnp.arange(dim, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
  return mix(row[:, None] + column[None, :]) >> 16


def stochastic(x: jax.Array, seed: jax.Array, rows: jax.Array) -> jax.Array:
  """`[N, D]` float32 -> bfloat16; NaN stays NaN."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  up = (bits + noise(seed, rows, x.shape[1])) & jnp.uint32(0xFFFF0000)
  rounded = jax.lax.bitcast_convert_type(up, jnp.float32)
  return jnp.where(jnp.isnan(x), x, rounded).astype(jnp.bfloat16)


def to_dtype(x: jax.Array, dtype, seed: jax.Array | None, rows: jax.Array):
  """`x` `[N, D]` as a table's dtype, stochastically where there is a seed."""
  if seed is None or dtype != jnp.bfloat16:
    return x.astype(dtype)
  return stochastic(x, seed, rows)
