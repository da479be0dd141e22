"""What a loss sees of a table: all of it, or only the rows a step touches.

Both views answer `take(ids)`; only a dense table can show itself `whole()`.
Gradients flow into `DenseRows.table` or into `TouchedRows.values`. The latter
arrive merged: one gradient row for each distinct id, however often it occurs.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.features import TableSpec


def init_table(spec: TableSpec, key: jax.Array) -> jax.Array:
  """A truncated normal table `[rows, dim]` (cut at two deviations)."""
  shape = (spec.rows, spec.dim)
  return spec.init_std * jax.random.truncated_normal(key, -2.0, 2.0, shape)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DenseRows:
  """The whole table `[V, D]`, updated as a dense parameter."""

  table: jax.Array

  def take(self, ids: jax.Array) -> jax.Array:
    """Rows of `ids`, `[..., D]`."""
    return self.table[ids]

  def table_and_index(self):
    """The rows there are and the function from ids to places among them."""
    return self.table, lambda ids: ids

  def whole(self) -> jax.Array:
    """`[V, D]`."""
    return self.table


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TouchedRows:
  """The rows of `ids` `[K]` (sorted, distinct), `values` `[K, D]`."""

  ids: jax.Array
  values: jax.Array

  def take(self, ids: jax.Array) -> jax.Array:
    """Rows of `ids`, which must be among the touched ones, `[..., D]`."""
    return self.values[jnp.searchsorted(self.ids, ids)]

  def table_and_index(self):
    """The rows there are and the function from ids to places among them."""
    return self.values, lambda ids: jnp.searchsorted(self.ids, ids)

  def whole(self) -> jax.Array:
    raise ValueError(
      'this loss reads the whole item table, which only a table with '
      "update='dense' allows; choose a sampled loss with loss.sampler="
      "'shared' or 'in_batch', or set data.table_update='dense'."
    )


def distinct(ids: list[jax.Array], rows: int) -> jax.Array:
  """The distinct ids, sorted, at static size; spare places hold `rows`."""
  flat = jnp.concatenate([x.reshape(-1) for x in ids])
  return pallas_kernels.distinct_rows(flat, rows)


def touch(table: jax.Array, ids: jax.Array) -> jax.Array:
  """Values of the distinct `ids` (spare places read zeros), `[K, D]`."""
  return pallas_kernels.gather(table, ids, spare=True)
