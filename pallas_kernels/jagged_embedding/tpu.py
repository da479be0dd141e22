"""The Pallas TPU (Mosaic) backend: rows come and go by one copy each.

Tables stay in HBM. A kernel reads the numbers of its rows by chunks into the
memory for scalars, and has some tens of rows under way at once (`tpu_walk`):

- lookups, and gradients that are merged: `tpu_sums`;
- updates, with the sums of gradients in the same pass: `tpu_updates`.

XLA sorts the ids and makes the lists (`tpu_lists`). It also computes the
gradients of weights. Sums are in the order in which ids occur.

What the compiler takes decides which tables there can be (`tpu_room`). Two rows
of 16 bits share words of 32 bits, so one copy has both, and an update writes a
row's neighbour as it was.

Inside `jax.shard_map`, `check_vma=False` is needed.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels.jagged_embedding import (
  tpu_lists,
  tpu_moves,
  tpu_room,
  tpu_sums,
  tpu_updates,
  tpu_walk,
  xla,
)
from pallas_kernels.jagged_embedding.spec import MergedRows


@dataclasses.dataclass(frozen=True)
class Kernels:
  """The functions of a backend, as `spec` describes them.

  Attributes:
    interpret: False for the TPU; True, or `pltpu.InterpretParams()`, to run the
      kernels' steps on any device.
  """

  interpret: object = False

  def bag(self, table, ids, lengths, weights):
    tpu_room.check_rows('table', table, self.interpret)
    bags = lengths.shape[0]
    if not ids.shape[0] or not bags:
      return jnp.zeros((bags, table.shape[1]), jnp.float32)
    visits = tpu_lists.visit_ids(
      ids,
      tpu_lists.find_segments(lengths, ids.shape[0]),
      tpu_lists.count_steps(bags),
      jnp.sum(lengths, dtype=jnp.int32),
      weights,
      table.shape[0],
    )
    return tpu_sums.sum_segments(table, visits, bags, interpret=self.interpret)

  def gather(self, table, ids, count, spare):
    tpu_room.check_rows('table', table, self.interpret)
    size = ids.shape[0]
    if not size:
      return jnp.zeros((0, table.shape[1]), table.dtype)
    visits = tpu_lists.visit_ids(
      ids,
      jnp.arange(size, dtype=jnp.int32),
      tpu_lists.count_steps(size),
      count,
      None,
      table.shape[0],
      spare,
    )
    return tpu_sums.sum_segments(
      table,
      visits,
      size,
      alone=True,
      dtype=table.dtype,
      interpret=self.interpret,
    )

  def weight_gradient(self, table, ids, lengths, grads):
    return xla.weight_gradient(table, ids, lengths, grads)

  def merge(self, ids, lengths, weights, grads, rows):
    size = min(ids.shape[0], rows)
    if not size or not grads.size:  # without columns the ids are wanted
      return xla.merge(ids, lengths, weights, grads, rows)
    tpu_room.check_rows('grads', grads, self.interpret)
    ids, source, weights = _sort(ids, lengths, weights, rows)
    places = tpu_lists.list_places(ids, rows, 1)
    visits = tpu_lists.list_visits(source, places.codes, weights, places.bounds)
    merged = tpu_sums.sum_segments(
      grads, visits, size, interpret=self.interpret
    )
    listed = places.rows.reshape(-1)[:size]
    return MergedRows(jnp.where(listed < 0, rows, listed), merged)

  def update(self, settings, chance, table, slots, ids, grads):
    if not ids.shape[0]:
      return table, slots
    source, order = jnp.arange(ids.shape[0], dtype=jnp.int32), None
    crowded = ids.shape[0] > table.shape[0]
    if tpu_walk.rows_of_unit(table.dtype) > 1 or crowded:
      # Wrong ids, which are not sorted, must not move a unit in two steps, nor
      # be more units than there are.
      ids, source, _ = _sort(ids, None, None, table.shape[0])
      order = source
    return self._move(
      settings, chance, table, slots, ids, source, None, grads, order
    )

  def bag_update(
    self, settings, chance, table, slots, ids, lengths, weights, grads
  ):
    if not ids.shape[0] or not grads.shape[0]:
      return table, slots
    ids, source, weights = _sort(ids, lengths, weights, table.shape[0])
    return self._move(
      settings, chance, table, slots, ids, source, weights, grads, None
    )

  def _move(
    self, settings, chance, table, slots, ids, source, weights, grads, order
  ):
    """Moves the rows of ids; what is given for ids is put into `order`."""
    tpu_room.check_rows('table', table, self.interpret)
    planes = tpu_walk.rows_of_unit(table.dtype)
    places = tpu_lists.list_places(ids, table.shape[0], planes)
    visits = tpu_lists.list_visits(source, places.codes, weights, places.bounds)
    done = tpu_moves.prepare(settings, chance, places, order)
    return tpu_updates.move_rows(
      done.moves,
      done.scalars,
      places.rows,
      done.vectors,
      visits,
      grads,
      table,
      slots,
      self.interpret,
    )


COMPILED = Kernels()
INTERPRETED = Kernels(interpret=True)


def _sort(ids, lengths, weights, rows: int):
  """Sorts ids by row.

  Args:
    ids: `[K]` int32.
    lengths: `[B]`, or None where every id has a gradient of its own.
    weights: `[K]` or None.
    rows: rows of the table.

  Returns:
    `[K]` ids, `rows` where they are no rows; `[K]` the gradient of each; and
    the weights in this order.
  """
  count = ids.shape[0]
  source, is_row = jnp.arange(count, dtype=jnp.int32), (ids >= 0) & (ids < rows)
  if lengths is not None:
    source = tpu_lists.find_segments(lengths, count)
    is_row &= source < lengths.shape[0]
  # What is no row reads none, but its number must be one.
  values = (jnp.where(is_row, source, 0),)
  if weights is not None:
    values += (weights.astype(jnp.float32),)
  # Stable, so that gradients of equal ids are added in the order they occur.
  # The sort carries the values: a TPU looks up numbers one by one.
  ids, source, *weights = jax.lax.sort(
    (jnp.where(is_row, ids, rows), *values), num_keys=1, is_stable=True
  )
  return ids, source, weights[0] if weights else None
