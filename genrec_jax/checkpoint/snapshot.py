"""Copies the rows of a checkpoint from the devices to the host.

The training waits for this copy. Only dirty rows are gathered, a chunk at a
time, on the device that holds them; several chunks are copied at once. Where a
host has no room for a copy of all of them, later chunks are copied as earlier
ones are written, and the training waits for that, too. The result does not
depend on how tables lie on devices: rows are identified by table, first column
and number.
"""

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.errors import CheckpointError
from genrec_jax.embedding.layout import Stack

CHUNK_ROWS = 65_536
_ON_THE_WAY = 4  # chunks between a device and the host
_LOOK_S = 0.2  # between two looks whether a save has ended

# (array, first row of the shard) -> rows of the shard, ascending.
Rows = dict[tuple[str, int], np.ndarray]


# Where it lay, rows of there, name -> their values.
_Copied = tuple['_Place', np.ndarray, dict[str, np.ndarray]]


class Snapshot:
  """Rows that this process copies to the host.

  Attributes:
    rows: where all of it lies.
  """

  def __init__(self, copies: Iterator[_Copied], rows: Rows, most_bytes: int):
    """Copies what there is room for.

    Args:
      copies: copies one chunk after another.
      rows: where all of it lies.
      most_bytes: that lie on the host at once, and a chunk more; 0: no limit.
    """
    self.rows = rows
    self._most_bytes = most_bytes
    self._copies = copies  # of those that are not copied yet
    self._copied: collections.deque[_Copied] = collections.deque()
    self._bytes = 0  # of what is copied and not yet taken
    self._lock = threading.Lock()
    self._all_copied = threading.Event()
    self._copy()

  @property
  def chunks(self) -> Iterator[RowChunk]:
    """The chunks by table, first column and id; taken once, by one thread.

    What was taken is not held here any more, and makes room for what comes.
    """
    while self._copied:
      place, rows, values = self._copied.popleft()
      self._bytes -= _count_bytes(values)
      self._copy()
      yield from place.chunks(rows, values)

  def await_copies(self, has_ended: Callable[[], bool]) -> None:
    """Returns when the devices' rows may be overwritten.

    Args:
      has_ended: whether who takes the chunks will take no more.
    """
    while not self._all_copied.wait(_LOOK_S):
      if has_ended():
        with self._lock:  # a writer that was given up may still be at a chunk
          self._copies = _refuse_copies()
        return

  def _copy(self) -> None:
    with self._lock:
      while not self._most_bytes or self._bytes < self._most_bytes:
        copied = next(self._copies, None)
        if copied is None:
          self._all_copied.set()
          return
        self._copied.append(copied)
        self._bytes += _count_bytes(copied[-1])


def _refuse_copies() -> Iterator[_Copied]:
  raise CheckpointError('this save was given up before all rows were copied')
  yield


def _count_bytes(values: Mapping[str, np.ndarray]) -> int:
  return sum(x.nbytes for x in values.values())


def take_snapshot(
  stacks: Mapping[str, Stack],
  arrays: Mapping[str, jax.Array],
  slots: Mapping[str, Mapping[str, jax.Array]],
  dirty_rows: Mapping[str, jax.Array] | None = None,
  bit: int = 0,
  *,
  also: Rows | None = None,
  chunk_rows: int = CHUNK_ROWS,
  most_bytes: int = 0,
  gather: bool | None = None,
) -> Snapshot:
  """Copies rows of every array, or of the first as many as there is room for.

  Without a limit the devices' rows may be overwritten when this returns, with
  one when `await_copies` does.

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
    most_bytes: on the host at once, and a chunk more; 0: no limit.
    gather: whether devices collect the rows of a chunk before it travels; None
      for what suits them.
  """
  found, row_numbers = [], {}
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
      found.append((place, columns, rows))
  copies = _copy_places(found, chunk_rows, gather)
  return Snapshot(copies, row_numbers, most_bytes)


def _copy_places(
  found: list[tuple['_Place', dict, np.ndarray]],
  chunk_rows: int,
  gather: bool | None,
) -> Iterator[_Copied]:
  for place, columns, rows in found:
    for part, values in _fetch_rows(columns, rows, chunk_rows, gather):
      yield place, part, values


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
