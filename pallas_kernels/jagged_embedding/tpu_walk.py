"""Rows on their way from HBM, one copy each, while earlier ones are used.

The kernels of this backend walk a list of visits (`tpu_lists.Visits`). Up to
`RING` rows are under way at any time, also from one grid step to the next: what
a step has asked for, the next one uses. So a grid must run in its order, on one
core, and its scratch memory must stay as it is between steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.jagged_embedding import tpu_lists

# Rows under way: a power of two, and fewer than visits in a chunk.
RING = 32
CHUNKS = 4  # of numbers in SMEM: one read ahead, one behind; a power of two


class Walk(NamedTuple):
  """The references of a kernel that a walk needs.

  Attributes:
    bounds: of `Visits`, in SMEM.
    numbers: of `Visits`, in HBM.
    source: `[rows, D]` in HBM, float32 or bfloat16.
    chunks: scratch, of `make_scratch`, as the next ones.
    ring: units.
    chunk_copies: semaphores.
    row_copies: semaphores.
  """

  bounds: jax.Ref
  numbers: jax.Ref
  source: jax.Ref
  chunks: jax.Ref
  ring: jax.Ref
  chunk_copies: jax.Ref
  row_copies: jax.Ref


def rows_of_unit(dtype) -> int:
  """Rows that one copy moves: two of 16 bits share words of 32 bits."""
  return 4 // jnp.dtype(dtype).itemsize


def find_unit(row, dtype):
  """The number of the unit that a row lies in."""
  return row >> (rows_of_unit(dtype) - 1)


def make_scratch(source, fields: int) -> dict:
  """The memory of a walk; the names are fields of `Walk`.

  Args:
    source: `[rows, D]`, the array that is read.
    fields: numbers of a visit.
  """
  shape = CHUNKS, fields, tpu_lists.CHUNK
  unit = rows_of_unit(source.dtype), source.shape[1]
  return {
    'chunks': pltpu.SMEM(shape, jnp.int32),
    'ring': pltpu.VMEM((RING, *unit), source.dtype),
    'chunk_copies': pltpu.SemaphoreType.DMA((CHUNKS,)),
    'row_copies': pltpu.SemaphoreType.DMA((RING,)),
  }


def count_bytes(source, visits: tpu_lists.Visits) -> int:
  """Bytes that a walk brings from HBM: a unit and the numbers of each visit."""
  chunks, fields, size = visits.numbers.shape
  return chunks * size * 4 * (source.shape[1] + fields)


def slice_unit(unit, dtype):
  """The rows of a unit, to index a table, or scratch memory, with."""
  size = rows_of_unit(dtype)
  # Said aloud, because two rows that share words must not be parted.
  return pl.ds(pl.multiple_of(unit * size, size), size)


def repeat(count, body, start):
  """A loop; of plain numbers JAX would count in 64 bits where it has these,
  which the compiler does not take."""
  count = jnp.asarray(count, jnp.int32)
  return jax.lax.fori_loop(jnp.int32(0), count, body, start)


def wait_for(count, like, semaphore) -> None:
  """Waits for so many copies, each of the size of `like`."""
  copy = pltpu.make_async_copy(like, like, semaphore)
  repeat(count, lambda *_: copy.wait(), None)


def begin(walk: Walk) -> None:
  """Asks for the first rows; in the first grid step alone."""
  total = _total(walk)

  @pl.when(total > 0)
  def _():
    _chunk_copy(walk, jnp.int32(0)).start()
    jax.lax.fori_loop(
      0, jnp.minimum(total, RING), lambda visit, _: _ask(walk, visit), None
    )


def visit_rows(walk: Walk, step, use) -> None:
  """Walks the visits of a grid step.

  Args:
    walk: the references.
    step: number of the step.
    use: function of (row `[1, D]` float32, place), called in the order of the
      visits; it returns nothing.
  """
  total = _total(walk)
  weighted = walk.chunks.shape[1] > 2

  def visit_row(visit, _):
    _row_copy(walk, jnp.int32(0), visit).wait()
    read = _reader(walk, visit)
    number, code = read(0), read(1)
    row = walk.ring[visit & (RING - 1)].astype(jnp.float32)
    if len(row) > 1:
      row = jnp.where(number & 1 == 1, row[1:], row[:1])
    if weighted:
      row *= jax.lax.bitcast_convert_type(read(2), jnp.float32)
    kind = code & 3
    row = jnp.where(kind == tpu_lists.WRONG, jnp.nan, row)
    use(jnp.where(kind == tpu_lists.SKIP, 0.0, row), code >> 2)

    # Into the memory of the row that was just used.
    @pl.when(visit + RING < total)
    def _():
      _ask(walk, visit + RING)

  jax.lax.fori_loop(walk.bounds[step], walk.bounds[step + 1], visit_row, None)


def _total(walk: Walk):
  return walk.bounds[walk.bounds.shape[0] - 1]


def _reader(walk: Walk, visit):
  slot, at = _chunk_of(visit) & (CHUNKS - 1), visit & (tpu_lists.CHUNK - 1)
  return lambda field: walk.chunks[slot, field, at]


def _chunk_of(visit):
  # Shifts and masks: a division of scalars takes many instructions.
  return visit >> (tpu_lists.CHUNK.bit_length() - 1)


def _ask(walk: Walk, visit) -> None:
  """Starts the copy of a visit's row; visits are asked for in their order."""
  chunk = _chunk_of(visit)

  @pl.when(visit & (tpu_lists.CHUNK - 1) == 0)
  def _():
    _chunk_copy(walk, chunk).wait()

    @pl.when((chunk + 1) * tpu_lists.CHUNK < _total(walk))
    def _():
      _chunk_copy(walk, chunk + 1).start()

  unit = find_unit(_reader(walk, visit)(0), walk.source.dtype)
  _row_copy(walk, unit, visit).start()


def _chunk_copy(walk: Walk, chunk):
  slot = chunk & (CHUNKS - 1)
  return pltpu.make_async_copy(
    walk.numbers.at[chunk], walk.chunks.at[slot], walk.chunk_copies.at[slot]
  )


def _row_copy(walk: Walk, unit, visit):
  """The copy of a unit; who waits for it need not know which unit it is."""
  slot = visit & (RING - 1)
  return pltpu.make_async_copy(
    walk.source.at[slice_unit(unit, walk.source.dtype), :],
    walk.ring.at[slot],
    walk.row_copies.at[slot],
  )
