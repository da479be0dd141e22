"""The TPU kernel that adds up the gradients of rows and moves these rows.

A grid step has `SEGMENTS` units of the table (`tpu_lists.Places`). It asks for
them and for the rows of their slots, adds up gradients while these are on their
way, moves all rows as `rules` says, and sends them back; the copies back are
waited for when their memory is needed again, two steps later. Units are
distinct, so no step reads what another one writes. Table and slots are changed
where they lie. Slots with one number a row come by lines (`tpu_lines`).

What is given for each row in numbers, such as the settings of its group, XLA
brings as vectors. They run along the lanes; in the kernel a matrix of up to 128
of them is turned once, so that each is a column, as the rules want it.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import hashing
from pallas_kernels.jagged_embedding import (
  rounding,
  rules,
  tpu_lines,
  tpu_room,
  tpu_walk,
)
from pallas_kernels.jagged_embedding.tpu_lists import SEGMENTS, TILE, Visits

SEED = 3  # of the scalars; before it the learning rate and two corrections


class Moves(NamedTuple):
  """What the kernel is compiled for.

  Attributes:
    optimizer: a name in `rules.OPTIMIZERS`.
    numbers: of each field of `RuleNumbers` its value, or where it is: the name
      of a vector, or the place of a scalar as an int.
    slots: 'element' or 'row' of each slot.
    row_count: whether the last slot counts the updates of each row.
    vectors: names of the vectors, in their order. 'row', 'number' and 'column'
      are numbers of rows and columns.
    planes: rows of a unit.
    stochastic: whether rows are rounded by chance.
  """

  optimizer: str
  numbers: tuple[float | int | str, ...]
  slots: tuple[str, ...]
  row_count: bool
  vectors: tuple[str, ...]
  planes: int
  stochastic: bool

  def part(self, slots) -> tuple[tuple, tuple]:
    """What there is of each slot: of those of elements, and of rows."""
    return tuple(
      tuple(x for x, kind in zip(slots, self.slots, strict=True) if kind == of)
      for of in ('element', 'row')
    )

  def join(self, of_elements, of_rows) -> tuple:
    """The opposite of `part`."""
    parts = {'element': iter(of_elements), 'row': iter(of_rows)}
    return tuple(next(parts[kind]) for kind in self.slots)


class State(NamedTuple):
  """What is changed where it lies.

  Attributes:
    table: `[rows, D]`.
    elements: slots of elements, `[rows, D]` float32 each.
    numbers: slots with one number a row.
  """

  table: jax.Array
  elements: tuple[jax.Array, ...]
  numbers: tpu_lines.Slots


def move_rows(
  moves: Moves,
  scalars,
  rows,
  vectors,
  visits: Visits,
  grads,
  table,
  slots,
  interpret: object = False,
):
  """Moves rows by the sums of their gradients.

  Args:
    moves: what to do.
    scalars: `[4]` int32 bits: learning rate, two corrections, seed.
    rows: of `Places`.
    vectors: `[steps, V * planes, SEGMENTS]` int32 bits; those of one name are
      next to each other. None if there are none.
    visits: rows of `grads` and where they go.
    grads: `[N, D]` float32.
    table: `[rows, D]`.
    slots: `[rows, D]` or `[rows]` float32 each.
    interpret: as in `tpu.Kernels`.

  Returns:
    The new table and slots.
  """
  steps, planes, _ = rows.shape
  dim = grads.shape[1]
  anywhere = pl.BlockSpec(memory_space=pltpu.HBM)

  def by_step(count, **options):
    shape = (pl.Squeezed(), count, SEGMENTS)

    def index(step, *_):
      zero = jnp.int32(0)  # or it would have 64 bits where JAX has these
      return step, zero, zero

    return pl.BlockSpec(shape, index, **options)

  # In the order of their names, as JAX flattens them: the state is the fourth.
  inputs = {'grads': grads, 'numbers': visits.numbers, 'rows': rows}
  in_specs = {
    'grads': anywhere,
    'numbers': anywhere,
    'rows': by_step(planes, memory_space=pltpu.SMEM),
  }
  prefetched = visits.bounds, scalars
  first = len(prefetched) + len(inputs)
  elements, numbers = moves.part(slots)
  state = State(table, elements, tpu_lines.cut_tails(numbers))
  inputs['state'] = state
  in_specs['state'] = jax.tree.map(lambda _: anywhere, state)
  if vectors is not None:
    inputs['vectors'] = vectors
    in_specs['vectors'] = by_step(vectors.shape[1])
  scratch = _make_scratch(moves, visits, grads, state)
  blocks = 4 * SEGMENTS * len(moves.vectors) * planes
  tpu_room.check_memory(scratch, blocks, dim, interpret)
  tpu_room.check_bounds(visits.bounds, interpret)
  call = pl.pallas_call(
    functools.partial(_kernel, moves),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(prefetched),
      grid=(steps,),
      in_specs=[in_specs],
      out_specs={'state': in_specs['state']},
      scratch_shapes=[scratch],
    ),
    # A tuple by itself would come to the kernel in pieces.
    out_shape={'state': jax.tree.map(_shape_of, state)},
    input_output_aliases={
      first + i: i for i in range(len(jax.tree.leaves(state)))
    },
    compiler_params=tpu_room.compiler_params(),
    cost_estimate=_estimate_cost(state, rows, vectors, visits, grads),
    interpret=interpret,
    name='jagged_embedding_moves',
  )
  if not interpret:
    # Outside of a program the constraint cannot be evaluated.
    call = jax.jit(functools.partial(_keep_numbers, call))
  state = call(*prefetched, inputs)['state']
  numbers = tpu_lines.join_tails(state.numbers)
  return state.table, moves.join(state.elements, numbers)


def _keep_numbers(call, *arguments):
  """Runs the kernel, and keeps XLA from bringing slots to the fast memory.

  It would bring those that fit there, all of them. It also takes such a
  constraint for a table, but not if that is all that the kernel returns.
  """
  *prefetched, inputs = arguments
  state = inputs['state']
  numbers = jax.tree.map(_keep_in_hbm, state.numbers)
  made = call(*prefetched, inputs | {'state': state._replace(numbers=numbers)})
  # As results of a program, the constraint would be at odds with arguments that
  # are given away for them: libtpu refuses it.
  return jax.lax.optimization_barrier(made)


@jax.custom_batching.custom_vmap
def _keep_in_hbm(x):
  return pltpu.with_memory_space_constraint(x, pltpu.HBM)


@_keep_in_hbm.def_vmap
def _(axis_size, in_batched, x):
  # JAX has no rule of its own for it.
  del axis_size
  return _keep_in_hbm(x), in_batched[0]


def _estimate_cost(state: State, rows, vectors, visits, grads):
  """What the kernel moves, if all visits and units have a row."""
  steps, planes, _ = rows.shape
  units = steps * SEGMENTS
  # Words of units, and rows of slots, which are as long; there and back.
  copies = 1 + len(state.elements) * planes
  size = 2 * 4 * units * grads.shape[1] * copies
  size += tpu_lines.count_bytes(state.numbers, units)
  numbers = rows.size + (0 if vectors is None else vectors.size)
  return tpu_room.estimate(
    tpu_walk.count_bytes(grads, visits) + size + 4 * numbers
  )


def _shape_of(x):
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _make_scratch(moves: Moves, visits, grads, state: State) -> dict:
  dim, places = grads.shape[1], moves.planes * SEGMENTS
  scratch = {
    'walk': tpu_walk.make_scratch(grads, visits.numbers.shape[1]),
    'sums': pltpu.VMEM((places, dim), jnp.float32),
    'units': pltpu.VMEM((2, places, dim), state.table.dtype),
    'slots': [
      pltpu.VMEM((2, places, dim), jnp.float32) for _ in state.elements
    ],
    'arrivals': pltpu.SemaphoreType.DMA((2,)),
    'departures': pltpu.SemaphoreType.DMA((2,)),
    'departed': pltpu.SMEM((2,), jnp.int32),
  }
  if moves.vectors:
    scratch['columns'] = pltpu.VMEM((SEGMENTS, SEGMENTS), jnp.int32)
  if state.numbers.whole:
    scratch['lines'] = tpu_lines.make_scratch(len(state.numbers.whole))
  return scratch


def _kernel(moves: Moves, bounds, scalars, inputs, outputs, scratch):
  step, steps = pl.program_id(0), pl.num_programs(0)
  walk = tpu_walk.Walk(
    bounds, inputs['numbers'], inputs['grads'], **scratch['walk']
  )
  lines, departed = None, scratch['departed']
  before, after = inputs['state'], outputs['state']
  if 'lines' in scratch:
    lines = tpu_lines.Lines(before.numbers, after.numbers, **scratch['lines'])

  @pl.when(step == 0)
  def _():
    departed[0], departed[1] = 0, 0
    tpu_walk.begin(walk)
    if lines:
      tpu_lines.begin(lines)

  # Steps are as many as units could be; the last ones may have none.
  @pl.when(bounds[step] < bounds[step + 1])
  def _():
    _move_step(moves, step, walk, lines, scalars, inputs, after, scratch)

  @pl.when(step == steps - 1)
  def _():
    for half in range(2):
      _wait(scratch, 'departures', jnp.int32(half), departed[half])
    if lines:
      tpu_lines.end(lines)


def _move_step(moves, step, walk, lines, scalars, inputs, after, scratch):
  half, sums, rows = step & 1, scratch['sums'], inputs['rows']
  departed = scratch['departed']
  _wait(scratch, 'departures', half, departed[half])
  count = _copy_units(moves, rows, inputs['state'], scratch, half, here=True)
  if lines:
    line_count = tpu_lines.ask(lines, half, rows)

  def add(row, place):
    at = pl.ds(place, 1)
    sums[at, :] += row

  sums[...] = jnp.zeros_like(sums)
  tpu_walk.visit_rows(walk, step, add)
  if moves.vectors:
    columns = scratch['columns']
    columns[pl.ds(0, inputs['vectors'].shape[0]), :] = inputs['vectors'][...]
    columns[...] = columns[...].T
  _wait(scratch, 'arrivals', half, count)
  if lines:
    tpu_lines.wait(lines, lines.arrivals, half, line_count)

  def move_tile(tile, _):
    first = pl.multiple_of(tile * TILE, TILE)
    _move_tile(moves, first, half, rows, lines, scalars, scratch)

  tpu_walk.repeat(SEGMENTS // TILE, move_tile, None)
  departed[half] = _copy_units(moves, rows, after, scratch, half, here=False)
  if lines:
    tpu_lines.send(lines, half)


def _copy_units(moves: Moves, rows, state, scratch, half, here: bool):
  """Starts the copies of a step's units and slots, and counts them.

  Args:
    moves: what to do.
    rows: reference to the rows of the units.
    state: references to the table and the slots in HBM.
    scratch: of the kernel.
    half: which half of the scratch memory the step uses.
    here: whether they come or go.
  """
  table, slots, units = state.table, state.elements, scratch['units']
  semaphore = scratch['arrivals' if here else 'departures'].at[half]

  def copy(far, near):
    ends = (far, near) if here else (near, far)
    pltpu.make_async_copy(*ends, semaphore).start()

  def copy_unit(lane, count):
    of_unit = [rows[plane, lane] for plane in range(moves.planes)]
    unit = functools.reduce(jnp.maximum, of_unit)
    unit = tpu_walk.find_unit(unit, table.dtype)

    @pl.when(unit >= 0)
    def _():
      copy(
        table.at[tpu_walk.slice_unit(unit, table.dtype), :],
        units.at[half, tpu_walk.slice_unit(lane, table.dtype), :],
      )

    count += (unit >= 0).astype(jnp.int32)
    for plane, row in enumerate(of_unit if slots else ()):
      # A row without a gradient, beside one with, keeps its slots.
      @pl.when(row >= 0)
      def _(plane=plane, row=row):
        at = pl.ds(plane * SEGMENTS + lane, 1)
        for far, near in zip(slots, scratch['slots'], strict=True):
          copy(far.at[pl.ds(row, 1), :], near.at[half, at, :])

      count += len(slots) * (row >= 0).astype(jnp.int32)
    return count

  return tpu_walk.repeat(SEGMENTS, copy_unit, jnp.int32(0))


def _wait(scratch, semaphores: str, half, count) -> None:
  """Waits for so many copies, which are all of one size."""
  row = scratch['sums'].at[pl.ds(0, 1), :]
  tpu_walk.wait_for(count, row, scratch[semaphores].at[half])


def _move_tile(moves, first, half, rows, lines, scalars, scratch) -> None:
  """Moves the rows of `TILE` units, of which `first` is the first one."""
  at = pl.ds(first, TILE)
  units = scratch['units']
  # The rows of units are next to each other, those of a plane are not.
  at_units = pl.ds(
    pl.multiple_of(first * moves.planes, TILE * moves.planes),
    TILE * moves.planes,
  )
  olds = _split_planes(units[half, at_units, :])
  columns = scratch['columns'][at, :] if moves.vectors else None
  old_numbers = [()] * moves.planes
  if lines:
    found = tpu_lines.find(lines, first, rows)
    old_numbers = tpu_lines.load(lines, half, found)
  new_numbers, bits = [], []
  for plane in range(moves.planes):

    def column(name, plane=plane):
      at = moves.vectors.index(name) * moves.planes + plane
      return columns[:, at : at + 1]

    own = pl.ds(pl.multiple_of(plane * SEGMENTS + first, TILE), TILE)
    old = olds[plane]
    elements = [slot[half, own, :] for slot in scratch['slots']]
    slots = moves.join(elements, old_numbers[plane])
    numbers, counts = _find_numbers(moves, scalars, column), ()
    if moves.row_count:
      # The rule sees two corrections a row in place of the count.
      *slots, count = slots
      counts = (count + 1,)
      numbers = numbers._replace(
        correct1=find_correction(numbers.log1, counts[0]),
        correct2=find_correction(numbers.log2, counts[0]),
      )
    off, new_slots = rules.step(
      moves.optimizer, numbers, old, slots, scratch['sums'][own, :]
    )
    new = rules.shrink(numbers, old - off)
    elements, new_number = moves.part((*new_slots, *counts))
    for slot, x in zip(scratch['slots'], elements, strict=True):
      slot[half, own, :] = x
    new_numbers.append(new_number)
    if moves.planes == 1:
      units[half, at_units, :] = new
    else:
      chosen = column('row') >= 0
      rounded = _round_to_bits(moves, new, scalars[SEED], column)
      bits.append(jnp.where(chosen, rounded, _bits_of(old)))
  if bits:
    lower = jax.lax.shift_right_logical(bits[0], jnp.uint32(16))
    units[half, at_units, :] = pltpu.bitcast(lower | bits[1], jnp.bfloat16)
  if lines:
    tpu_lines.store(lines, half, found, new_numbers)


def _split_planes(units):
  """The planes of `[TILE * planes, D]` rows, in float32."""
  if units.dtype == jnp.float32:
    return [units]
  # In a word the first row lies in the lower half; a bfloat16 is the upper half
  # of a float32.
  words = pltpu.bitcast(units, jnp.uint32)
  upper = words & jnp.uint32(0xFFFF0000)
  return [_float(words << jnp.uint32(16)), _float(upper)]


def _find_numbers(moves: Moves, scalars, column) -> rules.RuleNumbers:
  def find(number):
    if isinstance(number, str):
      return _float(column(number))
    return _float(scalars[number]) if isinstance(number, int) else number

  return rules.RuleNumbers(*map(find, moves.numbers))


def find_correction(log, counts):
  """-1 / expm1(counts * log), which Mosaic does not have, as a column.

  Args:
    log: of a beta, one number or `[TILE, 1]`.
    counts: `[TILE]`.
  """
  x = counts[:, None] * log
  # A series where exp(x) - 1 would lose digits: x^12 / 12! is below 2^-24.
  series = jnp.ones_like(x)
  for i in range(11, 1, -1):
    series = series * x * (1 / i) + 1
  return -1 / jnp.where(x > -0.7, series * x, jnp.exp(x) - 1)


def _round_to_bits(moves: Moves, x, seed, column):
  """Rows rounded to bfloat16, as uint32 whose lower halves are zero."""
  bits = _bits_of(x)
  # To the nearest, to the even one if there are two. In whole numbers: XLA, of
  # which the interpreter is made, leaves out a conversion there and back.
  even = jax.lax.shift_right_logical(bits, jnp.uint32(16)) & jnp.uint32(1)
  nearest = bits + (even + jnp.uint32(0x7FFF))
  # A sum could carry a NaN over into a number.
  nearest = jnp.where(jnp.isnan(x), bits | jnp.uint32(0x00400000), nearest)
  if moves.stochastic:
    row = column('number' if 'number' in moves.vectors else 'row')
    place = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    if 'column' in moves.vectors:
      place += column('column')
    random = hashing.element_bits(
      seed.astype(jnp.uint32), row.astype(jnp.uint32), place.astype(jnp.uint32)
    )
    chance = rounding.round_stochastically(x, jnp.bfloat16, random)
    # Beyond the largest number it rounds to the nearest, as above.
    within = jnp.abs(x) <= float(jnp.finfo(jnp.bfloat16).max)
    chance = _bits_of(chance.astype(jnp.float32))
    nearest = jnp.where(within, chance, nearest)
  return nearest & jnp.uint32(0xFFFF0000)


def _bits_of(x):
  return jax.lax.bitcast_convert_type(x, jnp.uint32)


def _float(x):
  return jax.lax.bitcast_convert_type(x, jnp.float32)
