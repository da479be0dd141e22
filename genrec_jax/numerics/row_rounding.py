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

from genrec_jax.numerics.fused_rows import FUSED_ROWS
from genrec_jax.numerics.number_format import flush_subnormals

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
    `[N, D]` float32, which packing in that format leaves as they are. A row
    with NaN or an infinity is NaN.
  """
  number_format, top = FUSED_ROWS[name], jnp.float32(2 ** BITS[name] - 1)
  rows = flush_subnormals(rows, jnp)
  packed = number_format.encode(rows, jnp)
  if random is None:
    return number_format.decode(packed, rows.shape[-1], jnp)
  scale, bias = (
    packed[part].astype(jnp.float32)[:, None] for part in ('scale', 'bias')
  )
  flat = scale == 0
  places = (rows - bias) * jnp.where(flat, 0, 1 / jnp.where(flat, 1, scale))
  # 24 random bits, as many as a float32 holds exactly.
  below = jnp.floor(places)
  upper = (random >> 8).astype(jnp.float32) < (places - below) * 2.0**24
  codes = jnp.clip(below + upper.astype(jnp.float32), 0, top)
  # The ends stay the ends: were they left to chance, the range would shrink at
  # every update, and the next packing would find other levels. They lie beside
  # their levels only because a scale is rounded.
  codes = jnp.where(rows == rows.min(-1, keepdims=True), 0, codes)
  # A row of equal numbers has one end, which is the lower.
  highest = rows.max(-1, keepdims=True)
  is_top = (rows == highest) & (highest > rows.min(-1, keepdims=True))
  return jnp.where(is_top, top, codes) * scale + bias
