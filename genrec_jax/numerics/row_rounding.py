"""Rows that a table of few bits can keep: rounding while training.

A row of `tbe_int4` has 16 evenly spaced levels between its least and its
greatest number. Packing a trained row moves each number to the nearest of them;
here a row is moved onto its levels after every update, so that training sees
what serving will read, and packing afterwards changes nothing.

Rounded to the nearest, a step shorter than half the distance of two levels is
lost, always. Rounded by chance it counts on average: a number becomes the upper
of its two levels with the probability of its share of the way.
"""

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.numerics.number_format import flush_subnormals
from pallas_kernels.hashing import mix
from pallas_kernels.jagged_embedding.rounding import (
  round_stochastically,
  round_to_whole,
)

# Their scales have 11 bits and their codes 8 at most, so that `code * scale` is
# exact and every program, fused or not, makes the same numbers of them.
BITS = {'tbe_int8': 8, 'tbe_int4': 4, 'tbe_int2': 2}


def round_rows(
  rows: jax.Array, name: str, random: jax.Array | None = None
) -> jax.Array:
  """Moves each row onto the levels of its range.

  >>> rows = jnp.float32([[0, 1.4, 3]])
  >>> round_rows(rows, 'tbe_int2').tolist()
  [[0.0, 1.0, 3.0]]
  >>> round_rows(rows, 'tbe_int2', jnp.uint32([[0, 0, 0]])).tolist()
  [[0.0, 2.0, 3.0]]

  Args:
    rows: `[N, D]` float32.
    name: of the format, one of `BITS`.
    random: uniform uint32 in the shape of `rows`; None rounds to the nearest.

  Returns:
    `[N, D]` float32. Packing in that format leaves them as they are, but where
    float32 or FBGEMM's rules have no digits for their levels: ranges below
    1/2,000 of the numbers themselves or, with 8 bits, below 1e-5. A row with
    NaN, an infinity or numbers that float16 cannot hold is NaN.
  """
  top = np.float32(2 ** BITS[name] - 1)
  rows = flush_subnormals(rows, jnp)
  low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
  # Bias and scale, which float16 keeps, are rounded in the same way: to the
  # nearest, the ends of a row would never move by short steps.
  bias = _to_half(low, None if random is None else mix(random[:, :1] + 1))
  span = jnp.maximum(high - bias, 0)
  scale = _to_half(
    span * np.float32(1 / top),  # not a division, which XLA makes this of
    None if random is None else mix(random[:, :1] + 2),
  )
  flat = scale == 0
  places = (rows - bias) * jnp.where(flat, 0, 1 / jnp.where(flat, 1, scale))
  if random is None:
    codes = jnp.round(places)
  else:
    codes = round_to_whole(places, random)
  # The ends stay the ends: were they left to chance, the range would shrink at
  # every update, and the next packing would find other levels. A row of equal
  # numbers has one end, which is the lower.
  codes = jnp.where(rows == high, top, jnp.clip(codes, 0, top))
  codes = jnp.where(rows == low, 0, codes)
  finite = jnp.isfinite(rows).all(-1, keepdims=True) & jnp.isfinite(bias)
  finite &= jnp.isfinite(scale)
  return jnp.where(finite, codes * scale + bias, jnp.nan)


def _to_half(x, random):
  """float16 of numbers, as float32."""
  if random is None:
    return x.astype(jnp.float16).astype(jnp.float32)
  half = round_stochastically(x, jnp.float16, random)
  return half.astype(jnp.float32)
