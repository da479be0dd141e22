"""Slots with one number a row, in the TPU kernel that moves rows.

Such a slot is copied by lines of `LINE` numbers, the fewest that a copy can
have. Units of the table come sorted by row, so a line is wanted by units that
are next to each other: it is asked for once, and sent back when it is left.

A line may be wanted by units of two grid steps. So the last line of a step is
held back in fast memory. The next step takes it over, if it begins in that
line, or else sends it back: no line is asked for while it is on its way back,
or on its way back twice. Ids that are not sorted, which `api.update_rows`
forbids, may break this. Of the rows they name, which become NaN, a number of
the slot may then be lost; all others are alike in each copy of a line.

The last line of a slot may be a part of one, which cannot be copied. XLA brings
it as an array of its own (a tail), and puts it back.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.jagged_embedding import tpu_room, tpu_walk
from pallas_kernels.jagged_embedding.tpu_lists import SEGMENTS, TILE

LINE = tpu_room.LANES
# What is known of the line that is held back: its number, -1 for none; and
# where it lies.
HELD_LINE, HELD_PLACE, HELD_HALF = range(3)


class Slots(NamedTuple):
  """Slots with one number a row, as the kernel takes them.

  Attributes:
    whole: `[rows]` float32 each.
    tails: `[LINE]` each, the last line, filled up; none if it is a whole one.
  """

  whole: tuple[jax.Array, ...]
  tails: tuple[jax.Array, ...]


class Lines(NamedTuple):
  """The references of a kernel that its lines need.

  Attributes:
    before: the slots that are read.
    after: the slots that are written, which lie where these lie.
    near: scratch, of `make_scratch`, as the next ones: of each slot the lines
      of both halves.
    places: of each unit of the step, which line of `near` it wants.
    numbers: of each line of `near` its number.
    held: what is known of the line that is held back.
    arrivals: semaphores.
    departures: semaphores.
    departed: how many copies of each half are on their way back.
  """

  before: Slots
  after: Slots
  near: list[jax.Ref]
  places: jax.Ref
  numbers: jax.Ref
  held: jax.Ref
  arrivals: jax.Ref
  departures: jax.Ref
  departed: jax.Ref


def cut_tails(slots) -> Slots:
  """Slots with the last line of each, where it is a part of one.

  Args:
    slots: `[rows]` float32 each.
  """
  slots, tails = tuple(slots), ()
  if slots and (rest := slots[0].shape[0] % LINE):
    tails = tuple(jnp.pad(x[-rest:], (0, LINE - rest)) for x in slots)
  return Slots(slots, tails)


def join_tails(slots: Slots) -> tuple[jax.Array, ...]:
  """The slots with their tails put back."""
  if not slots.tails:
    return slots.whole
  rest = slots.whole[0].shape[0] % LINE
  return tuple(
    whole.at[-rest:].set(tail[:rest])
    for whole, tail in zip(slots.whole, slots.tails, strict=True)
  )


def count_bytes(slots: Slots, units: int) -> int:
  """Bytes of the lines that so many units want, there and back.

  Args:
    slots: of the table.
    units: which all differ, and lie in as many lines as they can.
  """
  if not slots.whole:
    return 0
  lines = min(units, -(-slots.whole[0].shape[0] // LINE))
  return 2 * 4 * LINE * lines * len(slots.whole)


def make_scratch(count: int) -> dict:
  """The memory of lines; the names are fields of `Lines`.

  Args:
    count: number of slots.
  """
  return {
    'near': [
      pltpu.VMEM((2, SEGMENTS, LINE), jnp.float32) for _ in range(count)
    ],
    'places': pltpu.SMEM((SEGMENTS,), jnp.int32),
    'numbers': pltpu.SMEM((SEGMENTS,), jnp.int32),
    'held': pltpu.SMEM((3,), jnp.int32),
    'arrivals': pltpu.SemaphoreType.DMA((2,)),
    'departures': pltpu.SemaphoreType.DMA((2,)),
    'departed': pltpu.SMEM((2,), jnp.int32),
  }


def begin(lines: Lines) -> None:
  """Holds no line; in the first grid step alone."""
  lines.held[HELD_LINE] = -1
  lines.departed[0], lines.departed[1] = 0, 0


def ask(lines: Lines, half, rows):
  """Starts the copies of a step's lines, and counts them.

  Args:
    lines: the references.
    half: which half of the memory the step uses.
    rows: reference to `[planes, SEGMENTS]`, the rows of its units.
  """
  wait(lines, lines.departures, half, lines.departed[half])
  _pass_on(lines, half, _find_line(rows, 0))
  slots, held = len(lines.near), lines.held[HELD_LINE]

  def visit_unit(lane, carry):
    last, place, count = carry
    line = _find_line(rows, lane)
    new = (line >= 0) & (line != last)
    place += new.astype(jnp.int32)
    lines.places[lane] = place

    @pl.when(new)
    def _():
      lines.numbers[place] = line
      _start(lines, line, half, place, here=True)

    count += slots * new.astype(jnp.int32)
    return jnp.where(new, line, last), place, count

  # The first place is taken if the step before has passed its line on.
  place = jnp.where(held < 0, jnp.int32(-1), jnp.int32(0))
  last, place, count = tpu_walk.repeat(
    SEGMENTS, visit_unit, (held, place, jnp.int32(0))
  )
  lines.held[HELD_LINE] = last
  lines.held[HELD_PLACE] = place
  lines.held[HELD_HALF] = half
  return count


def _pass_on(lines: Lines, half, first) -> None:
  """Takes over the line that is held back, or sends it off.

  Args:
    lines: the references.
    half: of the step that begins.
    first: number of the line with which it begins.
  """
  line, place = lines.held[HELD_LINE], lines.held[HELD_PLACE]
  other = 1 - half

  @pl.when(line == first)
  def _():
    at = pl.ds(place, 1)
    for near in lines.near:
      near[half, pl.ds(0, 1), :] = near[other, at, :]
    lines.numbers[0] = line

  @pl.when(line != first)
  def _():
    _send_held(lines)


def _send_held(lines: Lines) -> None:
  """Sends off the line that is held back, if one is."""
  line, half = lines.held[HELD_LINE], lines.held[HELD_HALF]

  @pl.when(line >= 0)
  def _():
    _start(lines, line, half, lines.held[HELD_PLACE], here=False)
    lines.departed[half] += len(lines.near)
    lines.held[HELD_LINE] = -1


def send(lines: Lines, half) -> None:
  """Starts the copies back of all lines of a step but its last one.

  Args:
    lines: the references.
    half: of the step.
  """
  count = lines.held[HELD_PLACE]

  def send_line(place, _):
    _start(lines, lines.numbers[place], half, place, here=False)

  tpu_walk.repeat(count, send_line, None)
  lines.departed[half] = count * len(lines.near)


def end(lines: Lines) -> None:
  """Sends off what is left, and waits for it; in the last grid step alone."""
  _send_held(lines)
  for half in range(2):
    wait(lines, lines.departures, jnp.int32(half), lines.departed[half])


def wait(lines: Lines, semaphores, half, count) -> None:
  """Waits for so many copies.

  Args:
    lines: the references.
    semaphores: `arrivals` or `departures`.
    half: of the step that has started them.
    count: how many.
  """
  line = lines.near[0].at[half, jnp.int32(0)]
  tpu_walk.wait_for(count, line, semaphores.at[half])


def _start(lines: Lines, line, half, place, here: bool) -> None:
  """Starts the copy of a line of each slot."""
  slots = lines.before if here else lines.after
  semaphore = (lines.arrivals if here else lines.departures).at[half]

  def start(slot, far):
    near = lines.near[slot].at[half, place]
    ends = (far, near) if here else (near, far)
    pltpu.make_async_copy(*ends, semaphore).start()

  whole = slots.whole[0].shape[0] // LINE
  at = pl.ds(pl.multiple_of(line * LINE, LINE), LINE)
  for slot, array in enumerate(slots.whole):
    if whole:  # or a slice would be longer than the array
      pl.when(line < whole)(functools.partial(start, slot, array.at[at]))
  for slot, tail in enumerate(slots.tails):
    pl.when(line >= whole)(functools.partial(start, slot, tail))


def _find_line(rows, lane):
  """The line that a unit wants; -1 if there is no unit."""
  planes = [rows[plane, lane] for plane in range(rows.shape[0])]
  # Rows of a unit lie in one line, for it has an even number of them.
  return functools.reduce(jnp.maximum, planes) >> (LINE.bit_length() - 1)


def find(lines: Lines, first, rows) -> list:
  """Where the numbers of `TILE` units lie.

  Args:
    lines: the references.
    first: which unit of the step is the first one.
    rows: as in `ask`.

  Returns:
    Of each unit which of the step's lines it wants, and of each plane where in
    the line its number is; -1 if there is no row.
  """

  def find_lane(row):
    return jnp.where(row < 0, -1, row & (LINE - 1))

  return [
    (
      lines.places[first + i],
      [find_lane(rows[plane, first + i]) for plane in range(rows.shape[0])],
    )
    for i in range(TILE)
  ]


def load(lines: Lines, half, found) -> list:
  """The numbers of `TILE` units: of each plane, of each slot, `[TILE]`.

  Args:
    lines: the references.
    half: of the step.
    found: of `find`.
  """
  shape = TILE, LINE
  unit, lane = (
    jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1)
  )
  planes, slots = range(len(found[0][1])), range(len(lines.near))
  numbers = [[jnp.zeros(shape, jnp.float32) for _ in slots] for _ in planes]
  for i, (place, lanes) in enumerate(found):
    of_unit = [near[half, pl.ds(place, 1), :] for near in lines.near]
    for plane, at in enumerate(lanes):
      chosen = (unit == i) & (lane == at)
      numbers[plane] = [
        jnp.where(chosen, line, others)
        for line, others in zip(of_unit, numbers[plane], strict=True)
      ]
  # All numbers of a unit but one are zero.
  return [[jnp.sum(x, axis=1) for x in of_plane] for of_plane in numbers]


def store(lines: Lines, half, found, numbers) -> None:
  """Puts back what `load` has found, changed; what is no row stays.

  Args:
    lines: as in `load`, as the next ones.
    half: likewise.
    found: likewise.
    numbers: of each plane, of each slot, `[TILE]`.
  """
  lane = jax.lax.broadcasted_iota(jnp.int32, (1, LINE), 1)
  numbers = [
    [jnp.broadcast_to(x[:, None], (TILE, LINE)) for x in of_plane]
    for of_plane in numbers
  ]
  # One after the other: units next to each other have the same line.
  for i, (place, lanes) in enumerate(found):
    for slot, near in enumerate(lines.near):
      line = near[half, pl.ds(place, 1), :]
      for of_plane, at in zip(numbers, lanes, strict=True):
        line = jnp.where(lane == at, of_plane[slot][i : i + 1], line)
      near[half, pl.ds(place, 1), :] = line
