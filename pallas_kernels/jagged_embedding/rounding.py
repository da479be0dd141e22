"""Stochastic rounding to 16 bits, with the same random bits everywhere.

A number between two neighbours becomes the upper one with a probability of its
share of the way, so that the expected result is the number itself. The chance
comes from a hash of (seed, row, column): it depends neither on the backend nor
on which other rows are updated nor, where the caller numbers the rows, on where
a row lies.

Beyond the largest finite number of the dtype there is no upper neighbour to
take a chance on: such numbers go, as in rounding to the nearest, to that number
or to infinity (from half a step above it). float16 is subnormal below 2 ** -14,
where its neighbours are 2 ** -24 apart; they are rounded like any others.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.hashing import element_bits
from pallas_kernels.jagged_embedding.spec import RoundingChance

DTYPES = ('bfloat16', 'float16')


def rounding_noise(
  chance: RoundingChance, rows: jax.Array, dim: int
) -> jax.Array:
  """Random bits for each element, `[N, dim]` uint32.

  Args:
    chance: the seed and the numbers.
    rows: `[N]` the numbers of rows that have no others.
    dim: elements of a row.
  """
  # A shard numbers its rows as the whole table does.
  rows = rows if chance.rows is None else chance.rows
  columns = jnp.arange(dim, dtype=jnp.uint32)[None]
  if chance.first_columns is not None:
    columns += chance.first_columns[:, None]
  return element_bits(chance.seed, rows[:, None], columns)


def round_stochastically(x: jax.Array, dtype, random: jax.Array) -> jax.Array:
  """Rounds each number up or down, by chance and without bias.

  Args:
    x: float32.
    dtype: bfloat16 or float16.
    random: uint32 bits in the shape of `x`.
  """
  if dtype == jnp.bfloat16:
    # Adds a uniform number below the last bit that stays, then cuts: it carries
    # with the probability of the remainder. A carry into the exponent is right
    # as well, since neighbouring numbers have neighbouring bits.
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + (random >> 16)
    rounded = _float(bits & jnp.uint32(0xFFFF0000))
  else:
    rounded = _to_float16(x, random)
  # NaN compares false, and takes the ordinary conversion too.
  finite = jnp.abs(x) <= jnp.finfo(dtype).max.astype(jnp.float32)
  return jnp.where(finite, rounded.astype(dtype), x.astype(dtype))


def _to_float16(x, random):
  """Neighbours of `x` in float16, as float32; ten bits behind the leading one,
  or multiples of 2 ** -24."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  # The power of two of the number, or 2 ** -14, below which the distance of
  # neighbours is constant.
  power = jnp.maximum(bits & jnp.uint32(0x7F800000), jnp.uint32(113 << 23))
  one = _float(power - jnp.uint32(10 << 23))  # distance of the neighbours
  places = jnp.abs(x) * _float(jnp.uint32(264 << 23) - power)  # exact: / one
  return jnp.copysign(round_to_whole(places, random) * one, x)


def round_to_whole(x: jax.Array, random: jax.Array) -> jax.Array:
  """The whole number below or above, by chance and without bias.

  >>> round_to_whole(jnp.float32([1.25, 1.25]), jnp.uint32([2**29, 2**31]))
  Array([2., 1.], dtype=float32)

  Args:
    x: float32.
    random: uint32 bits in the shape of `x`.
  """
  # 24 random bits, as many as a float32 holds exactly.
  below = jnp.floor(x)
  upper = (random >> 8).astype(jnp.float32) < (x - below) * 2.0**24
  return below + upper.astype(jnp.float32)


def _float(bits):
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def to_dtype(
  x: jax.Array, dtype, chance: RoundingChance | None, rows: jax.Array
):
  """Rounds rows to a table's dtype.

  Args:
    x: `[N, D]` float32.
    dtype: dtype of the table.
    chance: what stochastic rounding depends on; None to round to the nearest.
    rows: `[N]` numbers of the rows, if `chance` has none.
  """
  if chance is None or dtype == jnp.float32:
    return x.astype(dtype)
  return round_stochastically(
    x, dtype, rounding_noise(chance, rows, x.shape[1])
  )
