"""Moves tables to another layout, to restore a checkpoint of another plan.

The rows that a device is to hold are named by table and id, from which their
addresses in the old arrays follow. They are fetched in short runs, so that no
device and no host ever holds more than its part of both layouts and one run.

A row that used to be cut into other columns is put together. A number that was
kept for each piece of a row (the sum of row-wise AdaGrad) becomes the mean of
the numbers of the old pieces that share columns with the new one: what one
piece would have kept.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.layout import (
  Addresses,
  Piece,
  Stack,
  StackLayout,
  lay_out,
)
from genrec_jax.features import TableSpec
from genrec_jax.parallel import mesh as mesh_lib

# Fetched at a time by all devices together: each holds all requests, and what
# it answers to them.
RUN_BYTES = 1 << 20
FEWEST = 256  # rows of a device, however many devices there are
GROUP = mesh_lib.DEVICE_GROUP


def gather_table(layout: StackLayout, arrays: dict[str, np.ndarray], name: str):
  """Assembles a table on the host.

  Args:
    layout: the layout of the arrays.
    arrays: the complete arrays of one replica group.
    name: name of the table.

  Returns:
    `[rows, D]`.
  """
  if name in layout.whole:
    return np.asarray(arrays[name])
  ids = np.arange(layout.plan.tables[name].rows)
  columns = []
  for piece in layout.pieces[name]:
    at = layout.stacks[piece.stack].index(piece, ids)
    columns.append(np.asarray(arrays[piece.stack])[at])
  return np.concatenate(columns, axis=1)


def find_stacks(layout: StackLayout) -> dict[str, Stack]:
  """The arrays of a layout as stacks.

  A table that every device holds completely becomes a stack of one device.
  """
  stacks = dict(layout.stacks)
  for name, plan in layout.whole.items():
    piece = Piece(
      table=name,
      stack=name,
      spread=plan_lib.ONE,
      owners=(0,),
      offset=0,
      depth=plan.rows,
      first_column=0,
      columns=plan.dim,
      rows=plan.rows,
      split='block',
    )
    stacks[name] = Stack(
      name, plan.rows, 1, plan.dim, plan.dtype, plan.optimizer, (piece,)
    )
  return stacks


def sources_of_whole(specs: dict[str, TableSpec]) -> dict[str, Stack]:
  """The `find_stacks` of tables on one device, where each has its own array."""
  return find_stacks(
    lay_out(single_scheme.plan_with_scheme(specs, 'data_parallel'))
  )


def move_arrays(old: StackLayout, new: StackLayout, arrays, slots):
  """Moves arrays and slots to another layout; runs inside `jax.shard_map`.

  Args:
    old: the layout of the arrays.
    new: the layout to produce, for the replica group of the mesh.
    arrays: the arrays of one replica group of the old layout, each cut into
      equal runs of rows over the devices of the group and padded at the end.
    slots: optimizer slots in the same form; scalars are not cut.

  Returns:
    This device's part of the arrays and slots of the new layout.
  """
  # Before anything is moved: tables of other shapes would be cut off silently.
  require_same_tables(old, new)
  device = lax.axis_index(GROUP).astype(jnp.int32)
  made, made_slots = {}, {}
  for name, stack in find_stacks(new).items():
    # Every device holds all of such a table, as device 0 of a stack of one.
    at = jnp.int32(0) if name in new.whole else device
    moved = _StackMove(find_stacks(old), stack, at)
    made[name] = moved.rows(arrays)
    made_slots[name] = {}
    # All old stacks of a new one have the same optimizer, hence the same slots.
    for slot in slots[moved.names[0]]:
      values = {n: slots[n][slot] for n in moved.names}
      ndim = values[moved.names[0]].ndim
      # A count of updates is the same for all rows of all stacks.
      if ndim == 0:
        made_slots[name][slot] = values[moved.names[0]]
      elif ndim == 1:
        made_slots[name][slot] = moved.row_numbers(values)
      else:
        made_slots[name][slot] = moved.rows(values)
  return made, made_slots


def require_same_tables(old: StackLayout, new: StackLayout) -> None:
  """Refuses layouts of different tables."""
  for name in {**old.plan.tables, **new.plan.tables}:
    one, other = (x.plan.tables.get(name) for x in (old, new))
    what = [(t and (t.rows, t.dim, t.dtype, t.optimizer)) for t in (one, other)]
    if what[0] != what[1]:
      raise plan_lib.PlanError(
        f'table {name!r} was saved as (rows, dim, dtype, optimizer) = '
        f'{what[0]}, but this run expects {what[1]}'
      )


@dataclasses.dataclass(frozen=True)
class _StackMove:
  """What one device will hold of a new stack, and where it is in the old ones.

  Attributes:
    old: name -> old stack.
    stack: the new stack.
    device: number of the device, a traced scalar.
  """

  old: dict[str, Stack]
  stack: Stack
  device: jax.Array

  @property
  def names(self) -> list[str]:
    """The old stacks that hold parts of the new one."""
    return sorted(
      {old.stack for overlaps in self._overlapping_pieces for old in overlaps}
    )

  @property
  def _overlapping_pieces(self) -> list[list[Piece]]:
    """For each new piece the old ones that share columns with it."""
    overlaps = []
    for piece in self.stack.pieces:
      overlaps.append(
        [
          other
          for old in self.old.values()
          for other in old.pieces
          if other.table == piece.table
          # Two ranges of columns overlap if each begins before the other ends.
          and other.first_column < piece.first_column + piece.columns
          and piece.first_column < other.first_column + other.columns
        ]
      )
    return overlaps

  def rows(self, arrays) -> jax.Array:
    """`[depth, C]` from the old arrays."""
    some = arrays[self.names[0]]
    start = jnp.zeros((self.stack.depth, self.stack.columns), some.dtype)
    columns = jnp.arange(self.stack.columns, dtype=jnp.int32)[None]

    def add_values(run, fetched, shift, width):
      # Column j of the new row is column j + shift of the old one.
      at = columns + shift[:, None]
      # The other columns come from other pieces.
      mine = (at >= 0) & (at < width)
      values = jnp.take_along_axis(fetched, jnp.where(mine, at, 0), axis=1)
      return jnp.where(mine, values, run)

    return self._fill_rows(arrays, start, add_values)

  def row_numbers(self, arrays) -> jax.Array:
    """`[depth]`, the means over the pieces a row was cut into."""
    arrays = {name: x[:, None] for name, x in arrays.items()}
    start = jnp.zeros((self.stack.depth, 1), jnp.float32)
    count = jnp.asarray([len(p) for p in self._overlapping_pieces], jnp.float32)
    number, _ = self._identify_rows(jnp.arange(self.stack.depth))

    def add_numbers(run, fetched, shift, width):
      del shift, width
      return run + fetched

    # Rows that hold nothing have the number -1; their sum is zero.
    total = self._fill_rows(arrays, start, add_numbers)[:, 0]
    return total / count[jnp.maximum(number, 0)]

  def _identify_rows(self, rows):
    """(number of the new piece, -1 for none; id) of rows of this device."""
    return self.stack.identify(self.device, rows)

  def _fill_rows(self, arrays, start, add) -> jax.Array:
    """Fills an array run by run.

    Args:
      arrays: old stack -> its array, cut over the devices.
      start: `[depth, C]` what rows hold before anything is added.
      add: (rows so far, fetched rows, column shift, width) -> rows.
    """
    # A loop of static length: a row has at most so many old pieces.
    most = max(len(p) for p in self._overlapping_pieces)
    size = self._count_rows_of_run(arrays)

    def fill_block(i, out):
      # The last run ends with the stack and may repeat some rows.
      first = jnp.minimum(i * size, self.stack.depth - size)
      number, ids = self._identify_rows(first + jnp.arange(size))
      block = lax.dynamic_slice_in_dim(start, first, size)
      for k in range(most):
        for name in self.names:
          addresses, shift = self._find_addresses(name, k, number, ids)
          fetched = _fetch_rows(arrays[name], addresses, self.old[name])
          # A piece of another stack has no address in this one.
          is_there = (addresses.device < self.old[name].devices)[:, None]
          width = self.old[name].columns
          block = jnp.where(is_there, add(block, fetched, shift, width), block)
      return lax.dynamic_update_slice_in_dim(out, block, first, 0)

    return lax.fori_loop(0, -(-self.stack.depth // size), fill_block, start)

  def _count_rows_of_run(self, arrays) -> int:
    """How many rows a device fetches at a time."""
    widest = max(x.dtype.itemsize * x.shape[1] for x in arrays.values())
    rows = RUN_BYTES // (widest * lax.axis_size(GROUP))
    return min(max(rows, FEWEST), self.stack.depth)

  def _find_addresses(self, name, k, number, ids):
    """The address of the k-th old piece of each row.

    Args:
      name: the old stack.
      k: number among the old pieces that share columns with the new one.
      number: `[N]` number of the new piece of each row.
      ids: `[N]` id of each row.

    Returns:
      `[N]` addresses in the old stack, and `[N]` column shifts.
    """
    old = self.old[name]
    device = jnp.full(ids.shape, old.devices, jnp.int32)
    row = jnp.zeros(ids.shape, jnp.int32)
    shift = jnp.zeros(ids.shape, jnp.int32)
    # Tables are few beside rows: one pass for each piece, nothing is stored.
    for new_number, overlaps in enumerate(self._overlapping_pieces):
      if k >= len(overlaps) or overlaps[k].stack != name:
        continue
      part = overlaps[k]
      moved = self.stack.pieces[new_number].first_column - part.first_column
      mine = number == new_number
      of_part = old.locate(part, ids)
      device = jnp.where(mine, of_part.device, device)
      row = jnp.where(mine, of_part.row, row)
      shift = jnp.where(mine, moved, shift)
    return Addresses(device, row), shift


def cut_anew(addresses: Addresses, old: Stack, size: int) -> Addresses:
  """Addresses in an array that is cut anew.

  Args:
    addresses: in a stack of some number of devices.
    old: that stack.
    size: rows of a device now.

  Returns:
    The numbers of the devices that hold the same rows now, and the rows there.
  """
  # Where the rows of each old device begin: on which device, at which row.
  device, row = np.divmod(np.arange(old.devices + 1) * old.depth, size)
  # Two numbers below 2^31 have a sum below 2^32.
  at = jnp.asarray(row, jnp.uint32)[addresses.device]
  at += addresses.row.astype(jnp.uint32)
  further = (at // jnp.uint32(size)).astype(jnp.int32)
  return Addresses(
    jnp.asarray(device, jnp.int32)[addresses.device] + further,
    (at % jnp.uint32(size)).astype(jnp.int32),
  )


def _fetch_rows(
  array: jax.Array, addresses: Addresses, old: Stack
) -> jax.Array:
  """Rows of an array that is cut into runs over the group, bit for bit.

  Args:
    array: this device's run of an old stack, which may have been of another
      number of devices.
    addresses: in that stack.
    old: that stack.
  """
  # Every device answers what it holds of all requests; rows are moved once in
  # the life of a run, so that the simplest exchange will do.
  wanted = cut_anew(addresses, old, array.shape[0])
  wanted = lax.all_gather(wanted, GROUP, tiled=True)
  here = wanted.device == lax.axis_index(GROUP)
  rows = array[jnp.where(here, wanted.row, 0)]
  # Sums of integers, all but one of them zero: -0.0 and NaN keep their bits.
  bits = jax.lax.bitcast_convert_type(rows, f'uint{8 * rows.dtype.itemsize}')
  bits = lax.psum_scatter(jnp.where(here[:, None], bits, 0), GROUP, tiled=True)
  return jax.lax.bitcast_convert_type(bits, array.dtype)
