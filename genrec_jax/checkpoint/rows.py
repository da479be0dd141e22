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
from genrec_jax.checkpoint.array_rows import ArrayRows, find_sharding
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding
from genrec_jax.checkpoint.errors import CheckpointError
from genrec_jax.checkpoint.row_files import (
  BASE,
  decode_chunk,
  file_name,
  file_names,
  verify_file,
)
from genrec_jax.checkpoint.snapshot import Snapshot
from genrec_jax.embedding.layout import Stack
from genrec_jax.numerics.formats import FORMATS, Formats


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
    found = ArrayRows(
      stack, arrays[name], slots_like, fresh and _arrays_of(fresh, name)
    )
    for body in bodies:
      for table in dict.fromkeys(p.table for p in stack.pieces):
        for file in file_names(body, table):
          raw = verify_file(directory / str(body['step']), file, body)
          chunk = decode_chunk(raw, table, body['rows']['tables'], formats)
          found.put(chunk, body)
      if body['rows']['kind'] == BASE and fresh is None:
        found.check_whole(body)
    loaded.arrays[name] = found.array('')
    loaded.dirty_rows[name] = found.make_dirty_rows()
    scalars = bodies[-1]['rows']['tables'][stack.pieces[0].table]['scalars']
    loaded.slots[name] = {
      slot: found.array(slot)
      if x.ndim
      else jax.device_put(np.asarray(scalars[slot], x.dtype), find_sharding(x))
      for slot, x in slots_like.items()
    }
  return loaded


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
