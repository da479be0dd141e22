"""Which rows have changed, and since when: a byte for each row, in the step.

A bit a question, so that several may be asked of one run: every step sets all
of a changed row's bits, and whoever has saved the rows clears its own.

Of replica groups, the first is saved, and the mean of the groups changes rows
that it may have saved already, or never moved itself. So a bit that no save
clears says what a group has moved since the last mean, and the mean sets all
bits of the rows that any group has moved (`ShardedTables.mark_rows`).
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

SINCE_SAVE, SINCE_BASE, SINCE_PUBLISHED, SINCE_MEAN = 1, 2, 4, 8
ALL = SINCE_SAVE | SINCE_BASE | SINCE_PUBLISHED | SINCE_MEAN


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
          jnp.uint8(ALL),
          mode='drop',
          unique_indices=True,
          indices_are_sorted=True,
        )
      )
  return dirty_rows


def mark_means(dirty_rows: jax.Array, axis: str) -> jax.Array:
  """The dirty rows of an array after groups along `axis` took their mean."""
  moved = lax.pmax(dirty_rows & jnp.uint8(SINCE_MEAN), axis) > 0
  # From here on the groups are equal: nothing has moved since.
  marks = jnp.where(moved, jnp.uint8(ALL), dirty_rows)
  return marks & jnp.uint8(ALL & ~SINCE_MEAN)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def clear_bits(
  dirty_rows: dict[str, jax.Array], bits: int
) -> dict[str, jax.Array]:
  """The dirty rows without some bits, where they lie."""
  return {n: x & jnp.uint8(ALL & ~bits) for n, x in dirty_rows.items()}
