"""The backend of XLA's sort, gather and scatter, which runs on every device.

On the CPU, XLA writes bfloat16 rows, and sums them to bags, by way of a float32
copy of the table; the 'cpu' backend does not, nor does XLA with other dtypes.
"""

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch, manual_axes
from pallas_kernels.jagged.api import offsets, segment_ids
from pallas_kernels.jagged_embedding import rounding, rules
from pallas_kernels.jagged_embedding.settings import numbers_of_rows
from pallas_kernels.jagged_embedding.spec import MergedRows

# Ids are sorted and distinct but for the spare ones, which are dropped.
_WRITE = dict(mode='drop', indices_are_sorted=True, unique_indices=True)
_READ = dict(
  mode='fill', fill_value=0, indices_are_sorted=True, unique_indices=True
)


def _no_row_if_wrong(ids, rows):
  """Ids that are not rows become `rows`: JAX would count negative ones back."""
  return jnp.where((ids < 0) | (ids > rows), rows, ids)


def _weighted(rows, weights):
  return rows if weights is None else rows * weights[:, None]


def bag(table, ids, lengths, weights):
  """Sums bags. See `spec`."""
  if not ids.shape[0] or dispatch.platform() != 'cpu':
    return _bag_by_segment(table, ids, lengths, weights)
  # On the CPU the [K, D] rows of all ids cost more than their sums; the loop
  # does without them, unless a few long bags would make it walk empty places.
  return jax.lax.cond(
    jnp.max(lengths, initial=0) * lengths.shape[0] <= 3 * ids.shape[0],
    _bag_by_place,
    _bag_by_segment,
    *(table, ids, lengths, weights),
  )


def _bag_by_segment(table, ids, lengths, weights):
  # Segments rise, which spares the sum a sort.
  bags = segment_ids(lengths, ids.shape[0])
  # Padding reads row 0 and is dropped; what it holds may be anything.
  ids = jnp.where(bags < lengths.shape[0], ids, 0)
  return jax.ops.segment_sum(
    _weighted(_rows_of(table, ids), weights),
    bags,
    num_segments=lengths.shape[0],
    indices_are_sorted=True,
  )


def _bag_by_place(table, ids, lengths, weights):
  """Adds the first row of all bags, then the second, ..."""
  start = offsets(lengths)

  def add(place, out):
    # Bags that are shorter than the longest one add nothing.
    live = place < lengths
    # Place 0 is safe to read for any bag.
    token = jnp.where(live, start + place, 0)
    rows = _rows_of(table, jnp.where(live, ids[token], 0))
    rows = _weighted(rows, None if weights is None else weights[token])
    return out + jnp.where(live[:, None], rows, 0.0)

  empty = jnp.zeros((lengths.shape[0], table.shape[1]), jnp.float32)
  axes = manual_axes.varying_axes(table, ids, lengths, weights)
  empty = manual_axes.vary_over(axes, empty)
  return jax.lax.fori_loop(0, jnp.max(lengths, initial=0), add, empty)


def _rows_of(table, ids):
  """`[N, D]` float32, NaN where an id is not a row."""
  rows = table.at[_no_row_if_wrong(ids, table.shape[0])].get(
    mode='fill', fill_value=jnp.nan
  )
  return rows.astype(jnp.float32)


def gather(table, ids, count, spare):
  """Reads rows. See `spec`."""
  out = table.at[_no_row_if_wrong(ids, table.shape[0])].get(
    mode='fill', fill_value=jnp.nan
  )
  # After the read: padding and unused entries give zeros, not NaN.
  empty = jnp.arange(ids.shape[0], dtype=jnp.int32) >= count
  if spare:
    empty |= ids == table.shape[0]
  return jnp.where(empty[:, None], jnp.zeros((), table.dtype), out)


def weight_gradient(table, ids, lengths, grads):
  """Multiplies rows with gradients of bags. See `spec`."""
  bags = segment_ids(lengths, ids.shape[0])
  # Padding may hold any id; it must not bring in NaN.
  real = bags < lengths.shape[0]
  rows = gather(table, jnp.where(real, ids, 0), ids.shape[0], False)
  dots = rows.astype(jnp.float32) * grads.at[bags].get(mode='clip')
  return jnp.where(real, jnp.sum(dots, axis=-1), 0.0)


def merge(ids, lengths, weights, grads, rows):
  """Sorts the ids and adds up the rows of equal ones."""
  count = ids.shape[0]
  source = jnp.arange(count, dtype=jnp.int32)
  if lengths is not None:
    # The gradient of an id is that of its bag.
    source = segment_ids(lengths, count)
    ids = jnp.where(source < lengths.shape[0], ids, rows)
  ids = _no_row_if_wrong(ids, rows)
  place = jnp.arange(count, dtype=jnp.int32)
  # Stable, so that the gradients of equal ids are added in the order they
  # occur, whatever the backend.
  ids, order = jax.lax.sort((ids, place), num_keys=1, is_stable=True)
  # Cut to the count, since there may be no ids at all.
  new = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])[:count]
  group = jnp.cumsum(new, dtype=jnp.int32) - 1
  size = min(count, rows)
  # Ids that are not rows come last; their group is of no interest.
  group = jnp.where(ids < rows, group, size)
  if not grads.shape[0]:
    # Without bags all ids are padding, which still reads a row.
    grads = jnp.zeros((1, *grads.shape[1:]), grads.dtype)
  # One row for each id is written out here; the C++ backend avoids it.
  spread = grads.at[source[order]].get(mode='clip')
  return MergedRows(
    jnp.full(size, rows, jnp.int32).at[group].set(ids, mode='drop'),
    jax.ops.segment_sum(
      _weighted(spread, None if weights is None else weights[order]),
      group,
      num_segments=size,
      indices_are_sorted=True,
    ),
  )


def update(settings, chance, table, slots, ids, grads):
  """Updates rows. See `spec`."""
  ids = _no_row_if_wrong(ids, table.shape[0])
  # Unused entries read zeros; what is computed of them is dropped.
  old = table.at[ids].get(**_READ).astype(jnp.float32)
  rows = tuple(slot.at[ids].get(**_READ) for slot in slots)
  numbers = numbers_of_rows(settings)
  off, rows = rules.step(settings.rule.optimizer, numbers, old, rows, grads)
  if table.dtype == jnp.float32 and rules.only_subtracts(numbers):
    table = table.at[ids].add(-off, **_WRITE)  # most rules need not read it
  else:
    new = rules.shrink(numbers, old - off)
    new = rounding.to_dtype(new, table.dtype, chance, ids)
    table = table.at[ids].set(new, **_WRITE)
  slots = tuple(
    slot.at[ids].set(row, **_WRITE)
    for slot, row in zip(slots, rows, strict=True)
  )
  return table, slots


def bag_update(settings, chance, table, slots, ids, lengths, weights, grads):
  """Adds up gradients by row and updates the rows. See `spec`."""
  merged = merge(ids, lengths, weights, grads, table.shape[0])
  return update(settings, chance, table, slots, *merged)
