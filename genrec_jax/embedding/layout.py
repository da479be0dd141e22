"""Gives every row of every table of a plan an address.

A table may be cut into pieces, each with some of its columns. Pieces that agree
in width, dtype and optimizer share one array, a stack, of which each device of
a replica group holds `depth` rows. An address is the number of a device and a
row of it: a stack is one long table cut into runs, and a sharding scheme is
nothing but the arithmetic from ids to addresses. What moves rows between
devices (exchange.py) knows only addresses. They are two numbers, since one for
all rows of a thousand devices would not be an int32.

The last row of each device is spare and holds zeros. An address on the device
W, which there is not, is that of no row. On the host, row r of device d has the
index d * depth + r in the array of all devices.
"""

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan

MOST_ROWS = 2**31 - 2  # of a device: int32, with one row to spare


@dataclasses.dataclass(frozen=True)
class Piece:
  """Some columns of a table, in a stack.

  Attributes:
    table: name of the table.
    stack: name of the stack.
    spread: which devices hold its rows, see `plan.TablePlan.spread`.
    owners: the numbers of these devices, which are consecutive.
    offset: first row of the piece on each owner.
    depth: number of rows of the piece on each owner.
    first_column: first column of the table in this piece.
    columns: number of columns of the piece.
    rows: number of rows of the whole table.
    split: 'mod' deals rows round-robin, 'block' gives each owner a run of them.
  """

  table: str
  stack: str
  spread: str
  owners: tuple[int, ...]
  offset: int
  depth: int
  first_column: int
  columns: int
  rows: int
  split: str

  def place(self, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The number of the owner of each id, and the row on it.

    >>> piece = Piece('t', 's', 'all', (0, 1), 10, 3, 0, 4, 6, 'mod')
    >>> owner, row = piece.place(np.array([0, 1, 2, 5]))
    >>> owner.tolist(), row.tolist()
    ([0, 1, 0, 1], [10, 10, 11, 12])
    """
    # In the dtype of the ids: dtypes do not mix under strict promotion.
    count = ids.dtype.type(len(self.owners))
    offset = ids.dtype.type(self.offset)
    if self.split == 'mod':
      return ids % count, offset + ids // count
    depth = ids.dtype.type(self.depth)
    # Negative ids and those beyond the table give nonsense, which
    # `Stack.locate` replaces.
    return ids // depth, offset + ids % depth


class Addresses(NamedTuple):
  """Where rows lie; `[N]` each.

  Attributes:
    device: number of the device in the replica group; one more than the last
      of them for no row.
    row: of that device.
  """

  device: jax.Array
  row: jax.Array


class _Fields:
  """What pieces say, `[N]` each: of those with some numbers."""

  def __init__(self, pieces: Sequence[Piece], number: jax.Array):
    xp = _numpy_of(number)

    def take(values, dtype=xp.int32):
      return xp.asarray(values, dtype)[number]

    self.count = take([len(p.owners) for p in pieces])
    self.owner = take([p.owners[0] for p in pieces])
    self.depth = take([p.depth for p in pieces])
    self.rows = take([p.rows for p in pieces])
    self.offset = take([p.offset for p in pieces])
    self.mod = take([p.split == 'mod' for p in pieces], bool)


@dataclasses.dataclass(frozen=True)
class Stack:
  """One array `[devices * depth, columns]`, a run of rows on each device.

  Attributes:
    name: key of the array in the state.
    depth: rows on each device, including the spare one at the end.
    devices: number of devices of a replica group.
    columns: width of a row.
    dtype: dtype of the rows.
    optimizer: name of the row optimizer.
    pieces: the pieces of tables in it.
  """

  name: str
  depth: int
  devices: int
  columns: int
  dtype: str
  optimizer: str
  pieces: tuple[Piece, ...]

  @property
  def size(self) -> int:
    """Rows of all devices."""
    return self.devices * self.depth

  def locate(self, piece: Piece, ids: jax.Array) -> Addresses:
    """The addresses of ids, on no device for what is no row of the table.

    Here and in `identify`, a NumPy array is computed on the host.
    """
    number, row = piece.place(ids)
    real = (ids >= 0) & (ids < piece.rows)
    xp = _numpy_of(ids)
    # Owners are consecutive, so the first one and a number name each.
    device = xp.where(real, number + piece.owners[0], self.devices)
    return Addresses(device, xp.where(real, row, 0))

  def index(self, piece: Piece, ids: np.ndarray) -> np.ndarray:
    """Where rows lie in the array of all devices, on the host; int64.

    Args:
      piece: of this stack.
      ids: rows of the table.
    """
    device, row = self.locate(piece, np.asarray(ids, np.int64))
    return device * self.depth + row

  def identify(self, device, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The piece and the id that each of some rows of a device belongs to.

    This is the inverse of `locate`.

    Args:
      device: number of the device in the replica group.
      rows: `[N]` rows of that device.

    Returns:
      `[N]` numbers of pieces in `pieces`, -1 for rows that hold nothing, and
      `[N]` ids.
    """
    xp = _numpy_of(rows)
    # The runs of this device; `device` may be traced, so all devices have
    # equally many.
    starts, numbers = (xp.asarray(x)[device] for x in self._device_runs)
    # The last run that begins at or before the row.
    run = xp.searchsorted(starts, rows, side='right') - 1
    number = numbers[run]
    within = rows - starts[run]

    # Rows that hold nothing have the number -1, which reads the last piece;
    # what they compute is not used.
    of = _Fields(self.pieces, number)
    place = device - of.owner
    ids = xp.where(of.mod, within * of.count + place, place * of.depth + within)
    # A run may end before the next one begins, and the last owner of a table
    # may hold fewer rows than the others.
    real = (within < of.depth) & (ids < of.rows)
    return xp.where(real, number, -1), ids

  def find_first(self, device, rows: jax.Array) -> Addresses:
    """Where the first piece lies of what each of some rows is a piece of.

    Args:
      device: number of the device in the replica group.
      rows: `[N]` rows of that device.

    Returns:
      `[N]` addresses, of no row for rows that hold nothing.
    """
    xp = _numpy_of(rows)
    number, ids = self.identify(device, rows)
    of = _Fields([self.pieces[i] for i in self._first_pieces], number)
    place = xp.where(of.mod, ids % of.count, ids // of.depth)
    within = xp.where(of.mod, ids // of.count, ids % of.depth)
    real = number >= 0
    return Addresses(
      xp.where(real, of.owner + place, self.devices),
      xp.where(real, of.offset + within, 0),
    )

  @functools.cached_property
  def _first_pieces(self) -> list[int]:
    """Number of the first piece of the table of each piece."""
    first = {}
    for number, piece in enumerate(self.pieces):
      if not piece.first_column:
        first[piece.table] = number
    return [first[piece.table] for piece in self.pieces]

  @functools.cached_property
  def most_alike(self) -> int:
    """How many rows of a device may have first pieces with one row number.

    These are pieces of one row, and of rows that begin on other devices.
    """
    numbers = self._first_pieces
    cut = {p.table for p, n in zip(self.pieces, numbers) if self.pieces[n] != p}
    counts = {}  # device -> (that of the first piece, table) -> pieces on it
    for piece, number in zip(self.pieces, numbers, strict=True):
      if piece.table not in cut:
        continue
      for device, first in zip(
        piece.owners, self.pieces[number].owners, strict=True
      ):
        of_device = counts.setdefault(device, {})
        key = first, piece.table
        of_device[key] = of_device.get(key, 0) + 1
    most = 1
    for device, of_device in counts.items():
      alike = {device: 1}  # of rows that begin here, whole ones among them
      for (first, _), count in of_device.items():
        alike[first] = max(alike.get(first, 0), count)
      most = max(most, sum(alike.values()))
    return most

  @functools.cached_property
  def _device_runs(self) -> tuple[np.ndarray, np.ndarray]:
    """Each device's pieces in order: first rows and numbers, `[W, K]`."""
    # Something begins at row 0 of every device, so that each search has a
    # result.
    runs = [[(0, -1)] for _ in range(self.devices)]
    for number, piece in enumerate(self.pieces):
      for device in piece.owners:
        runs[device].append((piece.offset, number))
    most = max(len(r) for r in runs)
    # What is missing begins after the last row, where nothing is found.
    starts = np.full((self.devices, most), self.depth, np.int32)
    numbers = np.full((self.devices, most), -1, np.int32)
    for device, run in enumerate(runs):
      starts[device, : len(run)], numbers[device, : len(run)] = zip(*run)
    return starts, numbers


@dataclasses.dataclass(frozen=True)
class StackLayout:
  """The stacks of a plan.

  Attributes:
    plan: the plan that was laid out.
    stacks: name -> stack.
    whole: tables that every device holds completely, name -> plan.
  """

  plan: ShardingPlan
  stacks: dict[str, Stack]
  whole: dict[str, TablePlan]

  @functools.cached_property
  def pieces(self) -> dict[str, list[Piece]]:
    """Table -> its pieces, from the first column to the last."""
    by_table = {name: [] for name in self.plan.tables if name not in self.whole}
    for stack in self.stacks.values():
      for piece in stack.pieces:
        by_table[piece.table].append(piece)
    for pieces in by_table.values():
      pieces.sort(key=lambda p: p.first_column)
    return by_table

  @functools.cached_property
  def name(self) -> str:
    """The number of devices, and a checksum of the places of all rows."""
    if not self.stacks:
      return 'whole_tables'  # in the same order on any number of devices
    places = sorted(map(dataclasses.astuple, self.stacks.values()))
    checksum = zlib.crc32(repr(places).encode())
    return f'rows_of_{self.plan.group_size}_devices_{checksum:08x}'

  @functools.cached_property
  def optimizers(self) -> dict[str, str]:
    """Array of the state -> its row optimizer."""
    stacks = {name: s.optimizer for name, s in self.stacks.items()}
    return stacks | {name: t.optimizer for name, t in self.whole.items()}

  def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of every array on one device."""
    by_array = {
      name: jax.ShapeDtypeStruct((s.depth, s.columns), s.dtype)
      for name, s in self.stacks.items()
    }
    for name, table in self.whole.items():
      shape = (table.rows, table.dim)
      by_array[name] = jax.ShapeDtypeStruct(shape, table.dtype)
    return by_array


def _numpy_of(array):
  return np if isinstance(array, np.ndarray) else jnp


def lay_out(plan: ShardingPlan) -> StackLayout:
  """Assigns every piece of every table to rows of a stack.

  Pieces that are on all devices come first, then those of hosts, then those of
  single devices. So all owners of a piece are filled equally when it is placed,
  and no gap is left below it.

  Raises:
    PlanError: a table has more rows on a device than an int32 can count.
  """
  waiting = {}  # (columns, dtype, optimizer) -> pieces to assign
  whole = {}
  for name, table in plan.tables.items():
    if table.spread is None:
      whole[name] = table
      continue
    key = (table.columns, table.dtype, table.optimizer)
    for number in range(table.pieces):
      waiting.setdefault(key, []).append((name, number))
  stacks = {}
  order = (plan_lib.ALL, plan_lib.HOST, plan_lib.ONE)
  for key, pieces in waiting.items():
    # Stable: within a kind the order of the plan stays, on which checkpoints
    # rely.
    pieces.sort(key=lambda p: order.index(plan.tables[p[0]].spread))
    for stack in _stacks_of(plan, key, pieces):
      stacks[stack.name] = stack
  return StackLayout(plan, stacks, whole)


def _stacks_of(plan, key, waiting) -> list[Stack]:
  """The stacks of one kind; several if one would be too deep to count."""
  columns, dtype, optimizer = key
  filled = []  # (fill of each device, pieces)
  for name, number in waiting:
    table, owners = plan.tables[name], plan.owners(name, number)
    depth = plan_lib.rows_per_owner(table.rows, len(owners))
    if depth > MOST_ROWS:
      raise PlanError(
        f'table {name!r} puts {depth:,} rows on a device, which can count '
        f'{MOST_ROWS:,}; spread it over more devices'
      )
    # The first stack with room; a later table may still fit an earlier one.
    for place, (fill, pieces) in enumerate(filled):
      if max(fill[d] for d in owners) + depth <= MOST_ROWS:
        break
    else:
      place, fill, pieces = len(filled), [0] * plan.group_size, []
      filled.append((fill, pieces))
    title = f'{dtype}_{columns}_{optimizer}'
    piece = Piece(
      table=name,
      stack=f'{title}_{place + 1}' if place else title,
      spread=table.spread,
      owners=owners,
      # The same row on all owners, so that one number says where it begins.
      offset=max(fill[d] for d in owners),
      depth=depth,
      first_column=number * table.columns,
      columns=table.columns,
      rows=table.rows,
      split=table.split,
    )
    for device in owners:
      fill[device] = piece.offset + depth
    pieces.append(piece)
  return [
    Stack(
      name=pieces[0].stack,
      depth=max(fill) + 1,
      devices=plan.group_size,
      columns=columns,
      dtype=dtype,
      optimizer=optimizer,
      pieces=tuple(pieces),
    )
    for fill, pieces in filled
  ]
