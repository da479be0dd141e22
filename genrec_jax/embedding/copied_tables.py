"""Gradients of tables of which every device holds a copy.

All devices must move the same rows by the same numbers, to the bit. Either all
of them get the gradients of every shard, row by row, and add them up in the
order of the shards; or a table of gradients is summed on its way, which costs
the same however many devices there are. The shorter way is taken.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from genrec_jax.embedding import lookup
from genrec_jax.embedding.lookup import BagGradients
from genrec_jax.parallel import mesh as mesh_lib
from pallas_kernels import MergedRows

LANES = 128  # numbers in a row of a TPU's register


def sum_gradients(
  gradients: Sequence[MergedRows | BagGradients],
  rows: int,
  *,
  in_order: bool = False,
) -> MergedRows:
  """The gradients of all shards, added up, on every device.

  Args:
    gradients: of this shard, at least one.
    rows: number of rows of the table.
    in_order: add those of a row in the order of the shards, however long the
      way is.
  """
  # Row by row, since bags of different shards have different lengths.
  parts = [lookup.expand_bags(part, rows) for part in gradients]
  shards = lax.axis_size(mesh_lib.AXES)
  if in_order or not travels_as_table(
    sum(ids.shape[0] for ids, _ in parts), rows, shards
  ):
    gathered = [
      BagGradients(_gather(ids), None, _gather(grads)) for ids, grads in parts
    ]
    return lookup.merge_row_gradients(gathered, rows)
  merged = lookup.merge_row_gradients(
    [BagGradients(ids, None, grads) for ids, grads in parts], rows
  )
  columns, height = merged.grads.shape[1], rows + -rows % shards

  def spread(values):
    """The table's height of entries, those of `merged` at their rows."""
    empty = jnp.zeros((height, *values.shape[1:]))
    at = jnp.where(merged.ids < rows, merged.ids, height)
    return empty.at[at].set(values, mode='drop', unique_indices=True)

  # Behind the table, how many shards have read each row. As one line: a block
  # of some rows for each shard would be padded in a TPU's memory.
  line = jnp.concatenate(
    [spread(merged.grads).reshape(-1), spread(jnp.ones(merged.ids.shape))]
  )
  part = count_entries(rows, columns, shards)
  line = jnp.pad(line, (0, part * shards - line.shape[0]))
  # Not an all-reduce: each number is added up in one place, and all get that
  # sum.
  parts = lax.all_to_all(line.reshape(shards, part), mesh_lib.AXES, 0, 0)
  own = jnp.sum(parts, axis=0)
  if part % LANES == 0:
    own = own.reshape(-1, LANES)
  line = _gather(own).reshape(-1)
  table, readers = line[: height * columns], line[height * columns :]
  (ids,) = jnp.nonzero(readers[:rows], size=rows, fill_value=height)
  table = table.reshape(height, columns)
  grads = table.at[ids].get(mode='fill', fill_value=0)
  ids = jnp.minimum(ids, rows)
  return MergedRows(ids.astype(jnp.int32), grads)


def count_entries(rows: int, columns: int, shards: int) -> int:
  """Numbers that a shard adds up of a table of gradients that travels.

  >>> count_entries(rows=1000, columns=64, shards=16)
  4096

  Args:
    rows: of the table.
    columns: of the table.
    shards: number of shards.
  """
  # A column more counts the shards that have read a row. What is longer than a
  # register of a TPU is made of whole ones: XLA makes an all-reduce, of twice
  # the bytes, of an all-gather whose parts do not begin at one.
  entries = -(-rows // shards) * (columns + 1)
  return entries if entries <= LANES else entries + -entries % LANES


def travels_as_table(entries: int, rows: int, shards: int) -> bool:
  """Whether a table of gradients is shorter than all gradients of rows.

  >>> travels_as_table(entries=100, rows=1000, shards=8)
  False
  >>> travels_as_table(entries=100, rows=1000, shards=64)
  True

  Args:
    entries: gradients of rows of a shard.
    rows: of the table.
    shards: number of shards.
  """
  # A table travels twice: while it is summed, and back.
  return entries * shards > 2 * rows


def _gather(x: jax.Array) -> jax.Array:
  return lax.all_gather(x, mesh_lib.AXES, tiled=True)
