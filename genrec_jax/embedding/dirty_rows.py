"""Which rows have changed, and since when: a byte for each row, in the step.

A bit a question, so that several may be asked of one run: every step sets all
of a changed row's bits, and whoever has saved the rows clears its own.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

SINCE_SAVE, SINCE_BASE, SINCE_PUBLISHED = 1, 2, 4
_ALL = SINCE_SAVE | SINCE_BASE | SINCE_PUBLISHED


def init_dirty_rows(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """`[rows]` uint8 for each array: no row has changed."""
  return {n: jnp.zeros(x.shape[0], jnp.uint8) for n, x in arrays.items()}


def mark_rows(
  dirty_rows: Mapping[str, jax.Array], rows: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """The dirty rows after a step.

  Args:
    dirty_rows: array -> `[rows]` uint8; none where nobody asks.
    rows: array -> `[N]` sorted, distinct rows; those out of range are nothing.
  """
  dirty_rows = dict(dirty_rows)
  for name, changed in rows.items():
    if name in dirty_rows:
      dirty_rows[name] = (
        dirty_rows[name]
        .at[changed]
        .set(
          jnp.uint8(_ALL),
          mode='drop',
          unique_indices=True,
          indices_are_sorted=True,
        )
      )
  return dirty_rows


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def clear_bits(
  dirty_rows: dict[str, jax.Array], bits: int
) -> dict[str, jax.Array]:
  """The dirty rows without some bits, where they lie."""
  return {n: x & jnp.uint8(_ALL & ~bits) for n, x in dirty_rows.items()}
