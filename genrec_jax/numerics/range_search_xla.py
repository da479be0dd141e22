"""The search of `range_search` as one XLA program for blocks of fixed size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.numerics import range_walk
from genrec_jax.numerics.levels import choose_levels

# Elements in the body of the loop: fewer go round the memory more often, more
# take longer to compile.
UNROLL = 32
# min(product, _HUGE) is the product, and no compiler can know it: without it
# products and sums become one instruction that rounds once instead of twice.
_HUGE = 3e38


def search_ranges(
  x: np.ndarray,
  ends: np.ndarray,
  most: int,
  *,
  half: bool,
  to: int,
  device: jax.Device,
) -> np.ndarray:
  """Searches the ranges of rows in a program for a fixed number of them.

  Compiles once for each D (about two seconds), with and without `half`.

  Args:
    x: rows as columns, `[D, R]` float32.
    ends: low, high, step, least range and greatest code, `[5, R]` float32.
    most: largest number of steps.
    half: whether bias and scale will be float16.
    to: number of rows of the program, to which R is padded.
    device: the device it runs on.

  Returns:
    low and high, `[2, R]` float32.
  """
  count = x.shape[1]
  arguments = (x, ends)
  if count < to:  # rows of zeros are at their end at once
    arguments = [np.pad(a, ((0, 0), (0, to - count))) for a in arguments]
  arguments = jax.device_put((*arguments, np.int32(most)), device)
  return np.asarray(_walk_ranges(*arguments, half=half))[:, :count]


@functools.partial(jax.jit, static_argnames='half')
def _walk_ranges(x, ends, most, *, half):
  low, high, step, least, top = ends
  (error,) = _measure_errors(x, [(low, high)], top, half)

  def is_unfinished(carry):
    left, walk = carry
    return (left > 0) & jnp.any(range_walk.unfinished_rows(walk, least))

  def advance_walk(carry):
    left, walk = carry
    errors = _measure_errors(
      x, range_walk.advance_ranges(walk, step), top, half
    )
    return left - 1, range_walk.advance_walk(jnp, walk, step, least, *errors)

  _, walk = jax.lax.while_loop(
    is_unfinished, advance_walk, (most, range_walk.start_walk(error, low, high))
  )
  return jnp.stack(walk[4:])


def _measure_errors(x, ranges, top, half) -> list[jax.Array]:
  """L2 error of each row for each of the ranges, `[R]` each."""
  dim = len(x)
  chosen = [choose_levels(jnp, low, high, top, half) for low, high in ranges]
  huge = jnp.float32(_HUGE)

  def add_errors(totals, elements):
    for element in elements:
      totals = [
        total + _squared_error(element, *level)
        for total, level in zip(totals, chosen, strict=True)
      ]
    return totals

  def _squared_error(element, bias, scale, inverse):
    code = jnp.round((element - bias) * inverse)
    code = jnp.clip(code, jnp.float32(0), top)
    off = element - (jnp.minimum(code * scale, huge) + bias)
    return jnp.minimum(off * off, huge)

  totals = [jnp.zeros_like(top) for _ in ranges]
  whole = dim // UNROLL
  if whole:
    groups = x[: whole * UNROLL].reshape(whole, UNROLL, -1)
    totals = jax.lax.fori_loop(
      0, whole, lambda i, totals: add_errors(totals, list(groups[i])), totals
    )
  return [jnp.sqrt(t) for t in add_errors(totals, list(x[whole * UNROLL :]))]
