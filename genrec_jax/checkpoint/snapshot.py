"""Copies the rows of a checkpoint from the devices to the host.

The training waits for this copy. Only dirty rows are gathered, a chunk at a
time, on the device that holds them; several chunks are copied at once. The
result does not depend on how tables lie on devices: rows are identified by
table, first column and number.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.embedding.layout import Stack

CHUNK_ROWS = 65_536
_ON_THE_WAY = 4  # chunks between a device and the host

# (array, first row of the shard) -> rows of the shard, ascending.
Rows = dict[tuple[str, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Rows on the host, copied by this process.

  Attributes:
    copied: (where it lay, rows of there, name -> their values) of each chunk.
    rows: where all of it lay.
  """

  copied: list[tuple['_Place', np.ndarray, dict[str, np.ndarray]]]
  rows: Rows

  @property
  def chunks(self) -> Iterator[RowChunk]:
    """The chunks by table, first column and id, computed in the background."""
    for place, rows, values in self.copied:
      yield from place.chunks(rows, values)


def take_snapshot(
  stacks: Mapping[str, Stack],
  arrays: Mapping[str, jax.Array],
  slots: Mapping[str, Mapping[str, jax.Array]],
  dirty_rows: Mapping[str, jax.Array] | None = None,
  bit: int = 0,
  *,
  also: Rows | None = None,
  chunk_rows: int = CHUNK_ROWS,
  gather: bool | None = None,
) -> Snapshot:
  """Copies rows of every array; returns when the devices' may be overwritten.

  Each process copies what lies on its devices, and of what several hold alike
  one of them does. Of replicas, the first counts.

  Args:
    stacks: array -> what lies in it.
    arrays: array -> `[replicas * devices * depth, C]`.
    slots: array -> slots of its optimizer; scalars are not rows.
    dirty_rows: array -> `[replicas * devices * depth]` uint8, see
      `embedding.dirty_rows`; None for all rows.
    bit: which bit of a row counts.
    also: rows beside the marked ones.
    chunk_rows: at most so many at a time.
    gather: whether devices collect the rows of a chunk before it travels; None
      for what suits them.
  """
  copied, row_numbers = [], {}
  for name, stack in stacks.items():
    for first, shard in _own_shards(arrays[name], stack):
      place = _Place(stack, first)
      rows = np.arange(stack.depth)
      if dirty_rows is not None:
        rows = _select_dirty(_select_shard(shard.device, dirty_rows[name]), bit)
        if (name, first) in (also or {}):
          rows = np.union1d(rows, also[name, first])
      row_numbers[name, first] = rows
      columns = {'': shard.data} | {
        slot: _select_shard(shard.device, x)
        for slot, x in slots.get(name, {}).items()
        if x.ndim
      }
      for part, values in _fetch_rows(columns, rows, chunk_rows, gather):
        copied.append((place, part, values))
  return Snapshot(copied, row_numbers)


@dataclasses.dataclass(frozen=True)
class _Place:
  """A device's part of a stack, which begins at row `first` of the array."""

  stack: Stack
  first: int

  def chunks(self, rows: np.ndarray, found: dict) -> Iterator[RowChunk]:
    """The rows of this place, one chunk for each table and piece."""
    device = self.first // self.stack.depth % self.stack.devices
    number, ids = self.stack.identify(device, rows.astype(np.int32))
    for present in np.unique(number[number >= 0]):
      piece = self.stack.pieces[present]
      mine = slice(None) if (number == present).all() else number == present
      yield RowChunk(
        piece.table,
        piece.first_column,
        ids[mine].astype(np.int64),
        found[''][mine],
        {slot: x[mine] for slot, x in found.items() if slot},
      )


def _own_shards(array: jax.Array, stack: Stack) -> Iterator:
  """(first row, shard) of what this process is to copy."""
  for shard in array.addressable_shards:
    first = shard.index[0].start or 0
    if shard.replica_id == 0 and first < stack.size:
      yield first, shard


def _select_shard(device: jax.Device, array: jax.Array) -> jax.Array:
  """The part of an array that lies on a device."""
  return next(s.data for s in array.addressable_shards if s.device == device)


def _select_dirty(dirty_rows: jax.Array, bit: int) -> np.ndarray:
  packed = np.asarray(_pack_bit(dirty_rows, bit))
  return np.flatnonzero(np.unpackbits(packed, count=dirty_rows.shape[0]))


@jax.jit
def _pack_bit(dirty_rows: jax.Array, bit: jax.Array) -> jax.Array:
  return jnp.packbits((dirty_rows & jnp.asarray(bit, jnp.uint8)) > 0)


def _fetch_rows(
  columns: dict, rows: np.ndarray, size: int, gather: bool | None
):
  """(rows, name -> their values), a chunk at a time."""
  if gather is None:  # the memory of a CPU is the host's
    gather = next(iter(columns.values())).device.platform != 'cpu'
  parts = [rows[i : i + size] for i in range(0, len(rows), size)]
  if not gather:
    views = {name: np.asarray(x) for name, x in columns.items()}
    for part in parts:
      yield part, {n: np.take(x, part, axis=0) for n, x in views.items()}
    return
  waiting = collections.deque()
  for part in [*parts, *[None] * _ON_THE_WAY]:
    if part is not None:
      padded = np.pad(part, (0, size - len(part)), mode='edge')
      values = _gather_rows(columns, padded.astype(np.int32))
      for x in values.values():
        x.copy_to_host_async()
      waiting.append((part, values))
    if waiting and (part is None or len(waiting) > _ON_THE_WAY):
      part, values = waiting.popleft()
      yield part, {n: np.array(x)[: len(part)] for n, x in values.items()}


@jax.jit
def _gather_rows(columns: dict, rows: jax.Array) -> dict:
  return {n: jnp.take(x, rows, axis=0) for n, x in columns.items()}
