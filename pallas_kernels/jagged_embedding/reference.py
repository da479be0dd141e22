"""Plain statements of the operations: the oracle. Works on whole tables."""

import jax.numpy as jnp

from pallas_kernels.jagged.api import segment_ids
from pallas_kernels.jagged_embedding import rounding, rules
from pallas_kernels.jagged_embedding.settings import numbers_of_rows
from pallas_kernels.jagged_embedding.spec import MergedRows, RoundingChance


def _is_row(ids, rows):
  return (ids >= 0) & (ids < rows)


def _rows_of(table, ids):
  """`[K, D]` float32, NaN where an id is not a row."""
  # Row 0 is read instead of rows that do not exist.
  known = _is_row(ids, table.shape[0])
  rows = table[jnp.where(known, ids, 0)].astype(jnp.float32)
  return jnp.where(known[:, None], rows, jnp.nan)


def bag(table, ids, lengths, weights):
  """Sums bags. See `spec`."""
  rows = _rows_of(table, ids)
  if weights is not None:
    rows *= weights[:, None]
  bags = segment_ids(lengths, ids.shape[0])
  out = jnp.zeros((lengths.shape[0], table.shape[1]), jnp.float32)
  # Padding belongs to bag B, which does not exist.
  return out.at[bags].add(rows, mode='drop')


def gather(table, ids, count, spare):
  """Reads rows. See `spec`."""
  out = _rows_of(table, ids)
  empty = jnp.arange(ids.shape[0], dtype=jnp.int32) >= count
  if spare:
    empty |= ids == table.shape[0]
  return jnp.where(empty[:, None], 0.0, out).astype(table.dtype)


def weight_gradient(table, ids, lengths, grads):
  """Multiplies rows with gradients of bags. See `spec`."""
  bags = segment_ids(lengths, ids.shape[0])
  grads = grads.at[bags].get(mode='fill', fill_value=0)
  dots = jnp.sum(grads * _rows_of(table, ids), axis=-1)
  return jnp.where(bags < lengths.shape[0], dots, 0.0)


def _dense_gradient(ids, lengths, weights, grads, rows):
  """Which rows occur, `[rows]`, and their summed gradients, `[rows, D]`."""
  if lengths is not None:
    bags = segment_ids(lengths, ids.shape[0])
    # Ids of padding become that of no row, which scatters drop.
    ids = jnp.where(bags < lengths.shape[0], ids, rows)
    grads = grads.at[bags].get(mode='fill', fill_value=0)
  if weights is not None:
    grads *= weights[:, None]
  ids = jnp.where(_is_row(ids, rows), ids, rows)
  # A row with a gradient of zeros moves too: what counts is its id.
  seen = jnp.zeros(rows, bool).at[ids].set(True, mode='drop')
  dense = jnp.zeros((rows, grads.shape[1]), jnp.float32)
  return seen, dense.at[ids].add(grads, mode='drop')


def merge(ids, lengths, weights, grads, rows):
  """Adds up gradients by row. See `spec`."""
  seen, dense = _dense_gradient(ids, lengths, weights, grads, rows)
  size = min(ids.shape[0], rows)
  (distinct,) = jnp.nonzero(seen, size=size, fill_value=rows)
  merged = dense.at[distinct].get(mode='fill', fill_value=0)
  return MergedRows(distinct.astype(jnp.int32), merged)


def _move(settings, chance, table, slots, seen, grads):
  """One step of every row; those not `seen` keep what they were."""
  old = table.astype(jnp.float32)
  numbers = numbers_of_rows(settings)
  off, new_slots = rules.step(
    settings.rule.optimizer, numbers, old, slots, grads
  )
  new = rules.shrink(numbers, old - off)
  new = rounding.to_dtype(new, table.dtype, chance, jnp.arange(table.shape[0]))
  table = jnp.where(seen[:, None], new, table)
  slots = tuple(
    jnp.where(seen.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    for new, old in zip(new_slots, slots, strict=True)
  )
  return table, slots


def bag_update(settings, chance, table, slots, ids, lengths, weights, grads):
  """Adds up gradients by row and updates the rows. See `spec`."""
  seen, dense = _dense_gradient(ids, lengths, weights, grads, table.shape[0])
  return _move(settings, chance, table, slots, seen, dense)


def update(settings, chance, table, slots, ids, grads):
  """Updates rows. See `spec`."""
  rows = table.shape[0]
  place = jnp.where(_is_row(ids, rows), ids, rows)

  def of_rows(of_ids):  # from one value for each id to one for each row
    if of_ids is None:
      return None
    return jnp.zeros(rows, of_ids.dtype).at[place].set(of_ids, mode='drop')

  # This backend moves all rows at once, so what is given for the ids is laid
  # out for the rows.
  settings = settings._replace(groups=of_rows(settings.groups))
  if chance is not None:
    chance = RoundingChance(
      chance.seed, of_rows(chance.rows), of_rows(chance.first_columns)
    )
  return bag_update(settings, chance, table, slots, ids, None, None, grads)
