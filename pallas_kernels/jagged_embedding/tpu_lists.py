"""Which rows the TPU kernels read and where they go, as lists; XLA makes them.

A kernel visits rows one after the other: of a table for its ids, or of
gradients for the ids of one row. Of each visit it knows the number of the row,
the place of its sum among those of a grid step, and perhaps a weight. These
numbers lie in HBM, cut into chunks, because the memory for scalars (SMEM) holds
few of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

CHUNK = 512  # visits whose numbers are in SMEM together
SEGMENTS = 128  # sums that a grid step makes, as many as a register has lanes
TILE = 8  # units that are moved together, as many as a register has rows
# What becomes of a row: it is added, or NaN is, or nothing. A code is four
# times the place plus one of these.
ADD, WRONG, SKIP = 0, 1, 2


class Visits(NamedTuple):
  """The rows that a kernel reads, in their order.

  Attributes:
    numbers: `[chunks, 2, CHUNK]` int32: numbers of rows, and codes. With
      weights `[chunks, 3, CHUNK]`; these are bits of float32.
    bounds: `[steps + 1]` int32: a grid step has the visits between two of them.
  """

  numbers: jax.Array
  bounds: jax.Array


class Places(NamedTuple):
  """The rows that an update moves, in the order of the grid's steps.

  A unit is what one copy moves: a row, or in a table of 16 bits the two rows
  that share words of 32 bits. A step has `SEGMENTS` units, and a plane for each
  row of a unit.

  Attributes:
    rows: `[steps, planes, SEGMENTS]` int32 number of the row at each place, -1
      where there is none.
    place: `[K]` int32 place of each visit in `rows`, as one list; beyond it
      where the visit has no row.
    codes: `[K]` int32, as in `Visits`.
    bounds: likewise.
  """

  rows: jax.Array
  place: jax.Array
  codes: jax.Array
  bounds: jax.Array


def count_steps(segments: int) -> int:
  """Steps of a grid with so many sums, or units."""
  return -(-segments // SEGMENTS)


def list_visits(rows, codes, weights, bounds) -> Visits:
  """Cuts the numbers of all visits into chunks.

  Args:
    rows: `[K]` int32; of visits that read nothing, any row that there is.
    codes: `[K]` int32.
    weights: `[K]` float32, or None.
    bounds: as in `Visits`.
  """
  numbers = [rows, codes]
  if weights is not None:
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)
    numbers.append(bits)
  count = rows.shape[0]
  chunks = -(-count // CHUNK)
  numbers = jnp.stack(numbers)
  numbers = jnp.pad(numbers, ((0, 0), (0, chunks * CHUNK - count)))
  numbers = numbers.reshape(-1, chunks, CHUNK).swapaxes(0, 1)
  return Visits(numbers, bounds)


def find_segments(lengths, count: int) -> jax.Array:
  """`[count]`: the bag of each id; the number of bags for padding.

  As `jagged.segment_ids`, which looks each id up: here a bag is counted where
  it ends, because a TPU looks up numbers one by one.

  Args:
    lengths: `[B]` int32.
    count: number of ids.
  """
  ends = jnp.cumsum(lengths, dtype=jnp.int32)
  ended = (
    jnp.zeros(count, jnp.int32)
    .at[ends]
    .add(1, mode='drop', indices_are_sorted=True)
  )
  return jnp.cumsum(ended, dtype=jnp.int32)


def visit_ids(
  ids, segments, steps: int, count, weights, rows: int, spare: bool = False
) -> Visits:
  """Visits of the rows of a table that ids name.

  Args:
    ids: `[K]` int32; what is no row reads NaN.
    segments: `[K]` int32 that rise, the sum to which each id belongs.
    steps: of the grid.
    count: int32 scalar, how many ids count; those after them are padding.
    weights: `[K]` float32, or None.
    rows: rows of the table.
    spare: whether the id `rows` reads zeros.
  """
  is_row = (ids >= 0) & (ids < rows)
  kind = jnp.where(is_row, ADD, WRONG)
  if spare:
    kind = jnp.where(ids == rows, SKIP, kind)
  return list_visits(
    jnp.where(is_row, ids, 0),
    segments % SEGMENTS * 4 + kind,
    weights,
    find_bounds(segments, steps, count),
  )


def find_bounds(segments, steps: int, count) -> jax.Array:
  """`[steps + 1]`: the visits with which each step begins.

  Args:
    segments: `[K]` int32 that rise, as in `visit_ids`.
    steps: of the grid.
    count: visits that count, the first ones.
  """
  first = jnp.arange(steps + 1, dtype=jnp.int32) * SEGMENTS
  found = jnp.searchsorted(segments, first).astype(jnp.int32)
  return jnp.minimum(found, count)


def list_places(ids, rows: int, planes: int) -> Places:
  """The rows that ids name, and to which of them each id belongs.

  Args:
    ids: `[K]` int32; equal ones, and with two planes the ids of a unit, are
      next to each other. What is no row is left out.
    rows: rows of the table.
    planes: rows of a unit.
  """
  count = ids.shape[0]
  is_row = (ids >= 0) & (ids < rows)
  unit = jnp.where(is_row, ids // planes, -1)
  before = jnp.concatenate([jnp.full(1, -1, jnp.int32), unit[:-1]])
  number = jnp.cumsum(is_row & (unit != before), dtype=jnp.int32) - 1
  # What is no row may come first; it is skipped wherever it is counted.
  number = jnp.maximum(number, 0)
  steps = count_steps(min(count, -(-rows // planes)))
  step, lane = number // SEGMENTS, number % SEGMENTS
  plane = ids % planes
  size = steps * planes * SEGMENTS
  place = (step * planes + plane) * SEGMENTS + lane
  place = jnp.where(is_row, place, size)
  listed = jnp.full(size, -1, jnp.int32).at[place].set(ids, mode='drop')
  kind = jnp.where(is_row, ADD, SKIP)
  visits = jnp.arange(count, dtype=jnp.int32) + 1
  # Unused entries at the end are not visited at all.
  last = jnp.max(jnp.where(is_row, visits, 0), initial=0)
  return Places(
    listed.reshape(steps, planes, SEGMENTS),
    place,
    (plane * SEGMENTS + lane) * 4 + kind,
    find_bounds(number, steps, last),
  )
