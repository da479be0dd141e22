"""Rows that are read from files, in the arrays in which they are wanted.

Where the devices' memory is the host's, rows are written into the very buffers
of the arrays, so that a process that restores holds its share once. Elsewhere
the host has a copy until all rows of an array are there.
"""

import ctypes
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.errors import DamagedError
from genrec_jax.checkpoint.row_files import BASE, DELTA
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding.layout import Stack

_IN = {BASE: 1, DELTA: dirty_lib.SINCE_BASE}  # bits of where a row was found


class ArrayRows:
  """Rows of an array and of its slots, of the devices of this process."""

  def __init__(
    self,
    stack: Stack,
    array: jax.ShapeDtypeStruct,
    slots: Mapping[str, jax.ShapeDtypeStruct],
    fresh: Mapping[str, jax.Array] | None,
  ):
    """All are zero, or those of `fresh`.

    Args:
      stack: what lies in the array.
      array: its shape, dtype and sharding.
      slots: those of its optimizer, likewise.
      fresh: array ('') and slots with the values to begin with.
    """
    self.stack = stack
    self._likes = {'': array} | {n: x for n, x in slots.items() if x.ndim}
    where = find_sharding(array).addressable_devices_indices_map(array.shape)
    self._runs = {}  # (first row, rows) -> devices that have them
    for device, index in where.items():
      start, end, _ = index[0].indices(array.shape[0])
      # Replicas hold the same: rows of the array, modulo those of one of them.
      run = start % stack.size, end - start
      self._runs.setdefault(run, []).append(device)
    self._buffers = {
      (slot, first): _Buffer((rows, *like.shape[1:]), like, devices[0])
      for slot, like in self._likes.items()
      for (first, rows), devices in self._runs.items()
    }
    if fresh:
      for slot in self._likes:
        for first, rows in self._runs:
          values = _read_rows(fresh[slot], first, rows)
          self._buffers[slot, first].values[:] = values
    self._seen = {f: np.zeros(rows, np.uint8) for f, rows in self._runs}
    self._columns = {f: np.zeros(rows, np.int32) for f, rows in self._runs}

  def put(self, chunk: RowChunk, body: dict) -> None:
    """Writes rows over what is there.

    Args:
      chunk: of a file.
      body: manifest of its step.
    """
    kind = body['rows']['kind']
    for piece in self.stack.pieces:
      shift = chunk.first_column - piece.first_column
      start, end = max(shift, 0), shift + chunk.values.shape[1]
      end = min(end, piece.columns)
      if piece.table != chunk.table or start >= end:
        continue
      columns = slice(start - shift, end - shift)
      at = self.stack.index(piece, chunk.ids)
      for first, rows in self._runs:
        mine = (at >= first) & (at < first + rows)
        if not mine.any():
          continue
        here = at[mine] - first
        for slot, values in {'': chunk.values, **chunk.slots}.items():
          if (slot, first) not in self._buffers:
            continue
          target = self._buffers[slot, first].values
          if values.ndim == 1:  # of the whole row, whatever its pieces
            target[here] = values[mine]
          else:
            target[here, start:end] = values[mine][:, columns]
        self._seen[first][here] |= _IN[kind]
        self._columns[first][here] += end - start

  def check_whole(self, body: dict) -> None:
    """Refuses a base that lacks rows; the manifest would not know."""
    depth = self.stack.depth
    columns = np.array([piece.columns for piece in self.stack.pieces])
    every = np.arange(depth, dtype=np.int32)
    for first, rows in self._runs:
      for start in range(first, first + rows, depth):
        number, _ = self.stack.identify(start // depth, every)
        seen = self._columns[first][start - first :][:depth]
        lacking = np.flatnonzero((number >= 0) & (seen != columns[number]))
        if lacking.size:
          table = self.stack.pieces[int(number[lacking[0]])].table
          raise DamagedError(
            f'the base of step {body["step"]} lacks {lacking.size:,} rows, of '
            f'table {table!r} for one'
          )

  def array(self, slot: str) -> jax.Array:
    """What was written, '' for the rows themselves; asked for once."""
    like = self._likes[slot]
    parts = []
    for (first, _), devices in self._runs.items():
      part = self._buffers.pop((slot, first)).finish()
      parts.append(part)
      parts += [jax.device_put(part, _place(like, d)) for d in devices[1:]]
    return jax.make_array_from_single_device_arrays(
      like.shape, find_sharding(like), parts, dtype=like.dtype
    )

  def make_dirty_rows(self) -> jax.Array:
    """Bits of the rows that deltas held; nothing has changed since."""
    like = self._likes['']

    def read_part(index):
      first = index[0].indices(like.shape[0])[0] % self.stack.size
      return self._seen[first] & _IN[DELTA]

    return jax.make_array_from_callback(
      like.shape[:1], find_sharding(like), read_part
    )


class _Buffer:
  """Rows of one device while they are written.

  Attributes:
    values: of NumPy, to write into.
  """

  def __init__(self, shape: tuple[int, ...], like, device: jax.Device):
    """All are zero.

    Args:
      shape: of the rows.
      like: gives the dtype and the kind of memory.
      device: where they are wanted.
    """
    self._place, self._array = _place(like, device), None
    if device.platform != 'cpu' or not np.prod(shape):
      self.values = np.zeros(shape, like.dtype)
      return
    # Nobody else knows this buffer yet, so that it may be written into.
    self._array = jnp.zeros(shape, like.dtype, device=self._place)
    self._array.block_until_ready()
    buffer = (ctypes.c_byte * self._array.nbytes).from_address(
      self._array.unsafe_buffer_pointer()
    )
    self.values = np.frombuffer(buffer, like.dtype).reshape(shape)

  def finish(self) -> jax.Array:
    """The rows on their device; nothing may be written any more."""
    values, self.values = self.values, None
    if self._array is None:
      return jax.device_put(values, self._place)
    return self._array


def _read_rows(array: jax.Array, first: int, rows: int) -> np.ndarray:
  """Some rows of an array, from the device that has them."""
  for shard in array.addressable_shards:
    start = shard.index[0].start or 0
    if start == first and shard.data.shape[0] == rows:
      return np.asarray(shard.data)
  return np.asarray(array)[first : first + rows]


def find_sharding(x) -> jax.sharding.Sharding:
  """Where an array shall lie; on the first device where nothing is said."""
  sharding = getattr(x, 'sharding', None)
  return sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _place(like, device: jax.Device) -> jax.sharding.SingleDeviceSharding:
  """One device, and the kind of its memory in which an array is wanted."""
  return jax.sharding.SingleDeviceSharding(
    device, memory_kind=find_sharding(like).memory_kind
  )
