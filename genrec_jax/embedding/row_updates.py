"""Moves rows of the arrays of a mesh by gradients that have arrived.

This is the part of `sharded_tables.ShardedTables` that applies; it runs inside
`jax.shard_map`, on the rows of this device.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import row_exchange, row_settings
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import Addresses, Stack, StackLayout
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.row_routes import make_keys, route_addresses
from genrec_jax.features import TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from pallas_kernels import MergedRows

GROUP = mesh_lib.DEVICE_GROUP


class Moved(NamedTuple):
  """An array on its way through a step.

  Attributes:
    array: its rows on this device.
    slots: of the row optimizer.
    marks: a byte for each row, see `dirty_rows`, or None where nobody asks.
    square: the sum of squares of all gradients so far.
  """

  array: jax.Array
  slots: dict[str, jax.Array]
  marks: jax.Array | None
  square: jax.Array


@dataclasses.dataclass(frozen=True)
class RowUpdates:
  """Moves rows by their row optimizers.

  Attributes:
    layout: the layout of the plan.
    specs: table -> its spec.
    exchange: how rows travel.
    options: options of the row optimizers.
    extra_optimizers: row optimizers from outside, by name.
  """

  layout: StackLayout
  specs: Mapping[str, TableSpec]
  exchange: Exchange
  options: Mapping
  extra_optimizers: Mapping[str, RowOptimizerLike]

  def optimizer(self, table: str) -> RowOptimizerLike:
    """The row optimizer of a table."""
    return row_settings.optimizer_of(
      self.specs[table], self.options, self.extra_optimizers
    )

  def init_slots(self, arrays) -> dict[str, dict[str, jax.Array]]:
    """What the row optimizers remember of arrays, before the first step."""
    return {
      name: self.optimizer(self._tables_of[name][0]).init(array)
      for name, array in arrays.items()
    }

  @functools.cached_property
  def _tables_of(self) -> dict[str, list[str]]:
    """Array -> the table of each of its pieces."""
    stacks = self.layout.stacks
    tables = {n: [p.table for p in s.pieces] for n, s in stacks.items()}
    return tables | {name: [name] for name in self.layout.whole}

  def move_rows(
    self, name: str, moved: Moved, merged: MergedRows, learning_rate, step
  ) -> Moved:
    """One step of some rows of an array.

    Args:
      name: of the array.
      moved: the array so far.
      merged: its rows on this device and the sums of their gradients.
      learning_rate: one number, or table -> number.
      step: number of the step, for stochastic rounding.
    """
    square = moved.square + jnp.sum(jnp.square(merged.grads))
    tables, groups, of_rows = self._tables_of[name], None, {}
    if name in self.layout.whole:
      numbers = init_lib.hash_table_rows(name, merged.ids)
    else:
      numbers, groups = _number_rows(self.layout.stacks[name], merged.ids)
      # Every replica group takes the step of its own mean.
      merged = merged._replace(
        grads=merged.grads * jnp.float32(self.layout.plan.replicas)
      )
      # Before the rows move: the optimizer needs the norm of the whole row.
      if name in self.cut_rows:
        of_rows['row_squares'] = self._row_squares(name, merged)
    array, slots = row_settings.move_rows(
      moved.array,
      moved.slots,
      merged,
      [self.optimizer(table) for table in tables],
      [row_settings.rate_of(table, learning_rate) for table in tables],
      groups,
      step=step,
      row_numbers=numbers,
      **of_rows,
    )
    marks = moved.marks
    if marks is not None:
      marks = dirty_lib.mark_rows({name: marks}, {name: merged.ids})[name]
    return Moved(array, slots, marks, square)

  @functools.cached_property
  def cut_rows(self) -> set[str]:
    """Stacks with pieces of rows whose optimizer looks at whole rows."""
    return {
      stack.name
      for stack in self.layout.stacks.values()
      if self.optimizer(stack.pieces[0].table).needs_row_squares
      and any(len(self.layout.pieces[p.table]) > 1 for p in stack.pieces)
    }

  def _row_squares(self, name: str, merged: MergedRows) -> jax.Array:
    """Mean squares of the gradients of rows with pieces on several devices.

    Each piece sends its part of the sum of squares to a device that adds them
    up, and gets the whole back. All pieces of a row are here in this round.
    """
    stack, me = self.layout.stacks[name], lax.axis_index(GROUP)
    number, _ = stack.identify(me, merged.ids)
    pieces = [self.layout.pieces[p.table] for p in stack.pieces]
    first = stack.find_first(me, merged.ids)
    # Not where the first piece lies: those of a table may lie on one device,
    # to which each of the others would have to send all that it has. The
    # number of the row says how much further it is, so that rows that begin on
    # several devices do not meet.
    turn = make_keys(first) % stack.devices
    real = first.device < stack.devices
    device = jnp.where(
      real, (first.device + turn) % stack.devices, first.device
    )
    home = Addresses(device, first.row)
    squares = jnp.sum(jnp.square(merged.grads), axis=1, keepdims=True)
    # Exact numbers, whatever format the rows travel in.
    plain = Exchange(self.exchange.kind, self.exchange.capacity)
    routed = route_addresses(plain, stack, home)
    total = row_exchange.sum_over_devices(plain, stack, routed, squares)[:, 0]
    # All pieces of a table are of one width.
    width = jnp.asarray([p[0].columns * len(p) for p in pieces], jnp.float32)
    return total / width[number]


def _number_rows(stack: Stack, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(`init.hash_table_rows`, number of the piece) of rows of this device."""
  number, ids = stack.identify(lax.axis_index(GROUP), rows)
  names = [init_lib.name_bits(p.table, p.first_column) for p in stack.pieces]
  return init_lib.hash_row(jnp.stack(names)[number], ids), number
