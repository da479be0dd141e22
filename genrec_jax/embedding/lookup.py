"""What a loss sees of a table: all of it, or only the rows a step touches.

Both views answer `take(ids)`; only a dense table can show itself `whole()`.
Gradients flow into `DenseRows.table` or into `TouchedRows.values`. The latter
arrive merged: one gradient row for each distinct id, however often it occurs.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.features import Bags
from pallas_kernels import MergedRows


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


class Pushed(NamedTuple):
  """What `push` of a step's gradients has changed.

  Attributes:
    arrays: name -> array.
    slots: name -> slots of its optimizer.
    square: squared norm of the gradients of all rows.
    touched: name -> `[N]` sorted rows of the (local) array that were moved;
      spare places hold its number of rows. A delta checkpoint saves these.
  """

  arrays: dict[str, jax.Array]
  slots: dict[str, dict[str, jax.Array]]
  square: jax.Array
  touched: dict[str, jax.Array]


def distinct(ids: list[jax.Array], rows: int) -> jax.Array:
  """The distinct ids, sorted, at static size; spare places hold `rows`."""
  flat = jnp.concatenate([x.reshape(-1) for x in ids])
  return pallas_kernels.distinct_rows(flat, rows)


def touch(table: jax.Array, ids: jax.Array) -> jax.Array:
  """Values of the distinct `ids` (spare places read zeros), `[K, D]`."""
  return pallas_kernels.gather(table, ids, spare=True)


def pool(table: jax.Array, bag: Bags) -> jax.Array:
  """Sums or means of the bags of one device's whole table, `[B, D]` float32."""
  sums = pallas_kernels.embedding_bag(
    table, bag.ids, bag.lengths, weights=bag.weights
  )
  return finish_pool(sums.astype(jnp.float32), bag, table.shape[0])


def finish_pool(sums: jax.Array, bag: Bags, rows: int) -> jax.Array:
  """`[B, D]` sums -> what `bag.mode` says; NaN if an id is no row."""
  real = jnp.arange(bag.ids.shape[0]) < jnp.sum(bag.lengths)
  wrong = jnp.any(real & ((bag.ids < 0) | (bag.ids >= rows)))
  return jnp.where(wrong, jnp.nan, divided(sums, bag))


def divided(x: jax.Array, bag: Bags) -> jax.Array:
  """`[B, D]` by the length of each bag, if its mode is 'mean'."""
  if bag.mode == 'sum':
    return x
  return x / jnp.maximum(bag.lengths, 1).astype(jnp.float32)[:, None]


def each_id(
  bag: Bags, grads: jax.Array, rows: int
) -> tuple[jax.Array, jax.Array]:
  """Gradients of bags -> (`[K]` ids, `[K, D]` theirs); padding is no row."""
  count = bag.ids.shape[0]
  segment = pallas_kernels.segment_ids(bag.lengths, count)
  grads = grads.at[segment].get(mode='clip')
  if bag.weights is not None:
    grads *= bag.weights[:, None]
  return jnp.where(segment < bag.lengths.shape[0], bag.ids, rows), grads


def added(parts: list[MergedRows], rows: int) -> MergedRows:
  """One gradient for each row out of several parts, in their order."""
  if len(parts) == 1:
    return parts[0]
  ids = jnp.concatenate([p.ids for p in parts])
  grads = jnp.concatenate([p.grads for p in parts])
  return pallas_kernels.merge_rows(ids, grads, rows)
