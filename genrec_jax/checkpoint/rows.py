"""The rows of a checkpoint: written in the background, read onto any layout.

    CHECKPOINTS/1400/rows/<table>/<process>-<number>.npz      chunks.py

A checkpoint identifies its rows by table, first column and number, never by
device, so any mesh and plan can read what another one has written.
"""

import asyncio
import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from genrec_jax.checkpoint import chunks
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding
from genrec_jax.checkpoint.errors import CheckpointError, DamagedError
from genrec_jax.checkpoint.row_files import (
  BASE,
  DELTA,
  decode_chunk,
  file_name,
  file_names,
  verify_file,
)
from genrec_jax.checkpoint.snapshot import Snapshot
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding.layout import Stack
from genrec_jax.numerics.formats import FORMATS, Formats

_IN = {BASE: 1, DELTA: dirty_lib.SINCE_BASE}  # bits of where a row was found


@dataclasses.dataclass(frozen=True)
class ProcessRows:
  """A process's rows of a save, as Orbax takes them (StatefulCheckpointable).

  Attributes:
    taken: what is copied of them.
    encoding: how they are written.
    about: entry of the manifest (see docs/checkpoint_format.md).
    meet: called with what went wrong, or None, when all is written: returns
      when every process is there. Orbax would not wait for the others.
  """

  taken: Snapshot
  encoding: RowEncoding
  about: dict
  meet: Callable[[Exception | None], object] = lambda error: None

  async def save(self, directory):
    return self._write(directory)

  async def load(self, directory):
    raise NotImplementedError('rows are read by load_rows, whatever the layout')

  async def _write(self, directory) -> None:
    directory = await directory.await_creation()
    error = None
    try:
      await asyncio.to_thread(
        write_chunks, directory, self.taken.chunks, self.encoding
      )
    except Exception as e:
      error = e
    await asyncio.to_thread(self.meet, error)
    if error:
      raise error


def write_chunks(
  directory, row_chunks: Iterable[RowChunk], encoding: RowEncoding
) -> None:
  """Writes chunks below a directory, one while the next is encoded."""
  numbers = {}
  process = jax.process_index()

  def put_file(name: str, raw: bytes) -> None:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)

  with concurrent.futures.ThreadPoolExecutor(1) as writer:
    writing = None
    for chunk in row_chunks:
      count = numbers.setdefault(chunk.table, itertools.count())
      name = f'{file_name(chunk.table)}/{process}-{next(count):05d}.npz'
      raw = chunks.to_bytes(chunk, encoding)
      if writing:
        writing.result()
      writing = writer.submit(put_file, name, raw)
    if writing:
      writing.result()


def describe(
  stacks: Mapping[str, Stack], slots: Mapping[str, Mapping[str, jax.Array]]
) -> dict[str, dict]:
  """What the tables are, for the manifest; their scalars are kept here."""
  parts = {}
  for name, stack in stacks.items():
    for piece in stack.pieces:
      own = slots.get(name, {})
      parts.setdefault(
        piece.table,
        {
          'rows': piece.rows,
          'dim': 0,
          'dtype': str(np.dtype(stack.dtype)),
          'optimizer': stack.optimizer,
          'slots': {
            slot: 'row' if x.ndim == 1 else 'element'
            for slot, x in own.items()
            if x.ndim
          },
          'scalars': {s: int(x) for s, x in own.items() if not x.ndim},
        },
      )
      parts[piece.table]['dim'] += piece.columns
  return parts


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Rows where they are wanted.

  Attributes:
    arrays: array -> as asked for.
    slots: array -> slots of its optimizer.
    dirty_rows: array -> uint8, `SINCE_BASE` where a delta held the row.
  """

  arrays: dict[str, jax.Array]
  slots: dict[str, dict[str, jax.Array]]
  dirty_rows: dict[str, jax.Array]


def load_rows(
  directory,
  bodies: Sequence[dict],
  stacks: Mapping[str, Stack],
  arrays: Mapping[str, jax.ShapeDtypeStruct],
  slots: Mapping[str, Mapping[str, jax.ShapeDtypeStruct]],
  *,
  fresh: tuple[Mapping, Mapping] | None = None,
  formats: Formats = FORMATS,
) -> Loaded:
  """Reads a base and its deltas.

  Args:
    directory: where the steps lie.
    bodies: manifests of the base, the deltas in their order.
    stacks: array -> what lies in it; those of some tables, or of all.
    arrays: shapes, dtypes and shardings wanted.
    slots: of the optimizers, likewise; {} for none.
    fresh: (arrays, slots) for rows that the checkpoint does not have, where
      tables may have another number of rows. What has no room is left out.
    formats: the number formats there are; those of the files among them.
  """
  loaded = Loaded({}, {}, {})
  for name, stack in stacks.items():
    _require_same_tables(stack, bodies[-1], resized=fresh is not None)
    slots_like = slots.get(name, {})
    host_rows = _HostRows(
      stack, arrays[name], slots_like, fresh and _arrays_of(fresh, name)
    )
    for body in bodies:
      for table in dict.fromkeys(p.table for p in stack.pieces):
        for file in file_names(body, table):
          raw = verify_file(directory / str(body['step']), file, body)
          chunk = decode_chunk(raw, table, body['rows']['tables'], formats)
          host_rows.put(chunk, body)
      if body['rows']['kind'] == BASE and fresh is None:
        host_rows.check_whole(body)
    loaded.arrays[name] = host_rows.array('', arrays[name])
    loaded.dirty_rows[name] = host_rows.make_dirty_rows(arrays[name])
    scalars = bodies[-1]['rows']['tables'][stack.pieces[0].table]['scalars']
    loaded.slots[name] = {
      slot: host_rows.array(slot, x)
      if x.ndim
      else jax.device_put(np.asarray(scalars[slot], x.dtype), _find_sharding(x))
      for slot, x in slots_like.items()
    }
  return loaded


class _HostRows:
  """The rows of an array that this process's devices hold, on the host."""

  def __init__(self, stack: Stack, array, slots, fresh):
    self.stack = stack
    where = _find_sharding(array).addressable_devices_indices_map(array.shape)
    starts = {index[0].indices(array.shape[0]) for index in where.values()}
    # Replicas hold the same: rows of the array, modulo those of one of them.
    self._runs = sorted({(a % stack.size, b - a) for a, b, _ in starts})
    likes = {'': array} | {n: x for n, x in slots.items() if x.ndim}
    self._values = {
      (slot, first): np.zeros((rows, *x.shape[1:]), x.dtype)
      for slot, x in likes.items()
      for first, rows in self._runs
    }
    if fresh:
      for slot in likes:
        for first, rows in self._runs:
          self._values[slot, first][:] = _read_rows(fresh[slot], first, rows)
    self._seen = {f: np.zeros(rows, np.uint8) for f, rows in self._runs}
    self._columns = {f: np.zeros(rows, np.int32) for f, rows in self._runs}

  def put(self, chunk: RowChunk, body: dict) -> None:
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
          if (slot, first) not in self._values:
            continue
          target = self._values[slot, first]
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

  def array(self, slot: str, like) -> jax.Array:
    """The values as a jax array of a shape and sharding."""
    return self._distribute(
      {f: self._values[slot, f] for f, _ in self._runs}, like.shape, like
    )

  def make_dirty_rows(self, like) -> jax.Array:
    """Bits of the rows that deltas held; nothing has changed since."""
    values = {f: seen & _IN[DELTA] for f, seen in self._seen.items()}
    return self._distribute(values, like.shape[:1], like)

  def _distribute(self, values, shape, like) -> jax.Array:
    sharding = _find_sharding(like)

    def read_part(index):
      first = index[0].indices(shape[0])[0] % self.stack.size
      return values[first]

    return jax.make_array_from_callback(shape, sharding, read_part)


def _require_same_tables(stack: Stack, body: dict, *, resized: bool) -> None:
  """Refuses rows of other tables."""
  saved = body['rows']['tables']
  for piece in stack.pieces:
    table = saved.get(piece.table)
    if table is None:
      raise CheckpointError(
        f'checkpoint of step {body["step"]} has no table {piece.table!r}; '
        f'there are: {", ".join(saved)}'
      )
    dim = sum(p.columns for p in stack.pieces if p.table == piece.table)
    one = [table[k] for k in ('dim', 'dtype', 'optimizer')]
    other = [dim, str(np.dtype(stack.dtype)), stack.optimizer]
    if not resized:
      one, other = [*one, table['rows']], [*other, piece.rows]
    if one != other:
      raise CheckpointError(
        f'table {piece.table!r} was saved as (dim, dtype, optimizer, rows) = '
        f'{one}, but this run expects {other}'
      )


def _arrays_of(fresh, name: str) -> dict:
  arrays, slots = fresh
  return {'': arrays[name], **slots.get(name, {})}


def _read_rows(array: jax.Array, first: int, rows: int) -> np.ndarray:
  """Some rows of an array, from the device that has them."""
  for shard in array.addressable_shards:
    start = shard.index[0].start or 0
    if start == first and shard.data.shape[0] == rows:
      return np.asarray(shard.data)
  return np.asarray(array)[first : first + rows]


def _find_sharding(x):
  sharding = getattr(x, 'sharding', None)
  return sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
