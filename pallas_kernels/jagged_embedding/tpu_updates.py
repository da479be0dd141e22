"""The TPU kernel that adds up the gradients of rows and moves these rows.

A grid step has `SEGMENTS` units of the table (`tpu_lists.Places`). It asks for
them and for the rows of their slots, adds up gradients while these are on their
way, moves all rows as `rules` says, and sends them back; the copies back are
waited for when their memory is needed again, two steps later. Units are
distinct, so no step reads what another one writes. Table and slots are changed
where they lie.

What there is of each row in numbers, such as a mean square or the settings of
its group, XLA brings and takes away as vectors. They run along the lanes; in
the kernel a matrix of up to 128 of them is turned once, so that each is a
column, as the rules want it.
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
  tpu_room,
  tpu_walk,
)
from pallas_kernels.jagged_embedding.tpu_lists import SEGMENTS, Visits

TILE = 8  # rows that the rules move together, as many as a register has
SEED = 3  # of the scalars; before it the learning rate and two corrections


class Moves(NamedTuple):
  """What the kernel is compiled for.

  Attributes:
    optimizer: a name in `rules.OPTIMIZERS`.
    numbers: of each field of `RuleNumbers` its value, or where it is: the name
      of a vector, or the place of a scalar as an int.
    slots: 'element' or 'row' of each slot that the rule sees.
    vectors: names of the vectors, in their order. 'row', 'number' and 'column'
      are numbers of rows and columns, 'slot0', ... slots of rows.
    planes: rows of a unit.
    stochastic: whether rows are rounded by chance.
  """

  optimizer: str
  numbers: tuple[float | int | str, ...]
  slots: tuple[str, ...]
  vectors: tuple[str, ...]
  planes: int
  stochastic: bool

  @property
  def row_slots(self) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(self.slots) if kind == 'row')

  @property
  def copied_slots(self) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(self.slots) if kind == 'element')


def move_rows(
  moves: Moves,
  scalars,
  rows,
  vectors,
  visits: Visits,
  grads,
  state,
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
    state: table and slots of elements.
    interpret: as in `tpu.Kernels`.

  Returns:
    (table and slots of elements, `[steps, S * planes, SEGMENTS]` float32 new
    slots of rows, or None if there are none).
  """
  steps, planes, _ = rows.shape
  dim = grads.shape[1]
  anywhere = pl.BlockSpec(memory_space=pltpu.HBM)

  def by_step(count, **options):
    shape = (pl.Squeezed(), count, SEGMENTS)
    return pl.BlockSpec(shape, lambda step, *_: (step, 0, 0), **options)

  # In the order of their names, as JAX flattens them: the state is the fourth.
  inputs = {'grads': grads, 'numbers': visits.numbers, 'rows': rows}
  in_specs = {
    'grads': anywhere,
    'numbers': anywhere,
    'rows': by_step(planes, memory_space=pltpu.SMEM),
  }
  prefetched = visits.bounds, scalars
  first = len(prefetched) + len(inputs)
  inputs['state'], in_specs['state'] = state, (anywhere,) * len(state)
  outputs = {'state': tuple(_shape_of(x) for x in state)}
  out_specs = {'state': in_specs['state']}
  if vectors is not None:
    inputs['vectors'] = vectors
    in_specs['vectors'] = by_step(vectors.shape[1])
  if moves.row_slots:
    count = len(moves.row_slots) * planes
    outputs['values'] = jax.ShapeDtypeStruct(
      (steps, count, SEGMENTS), jnp.float32
    )
    out_specs['values'] = by_step(count)
  scratch = _make_scratch(moves, visits, grads, state[0])
  blocks = 4 * SEGMENTS * (len(moves.vectors) + len(moves.row_slots)) * planes
  tpu_room.check_memory(scratch, blocks, dim, interpret)
  tpu_room.check_bounds(visits.bounds, interpret)
  made = pl.pallas_call(
    functools.partial(_kernel, moves),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(prefetched),
      grid=(steps,),
      in_specs=[in_specs],
      out_specs=out_specs,
      scratch_shapes=[scratch],
    ),
    out_shape=outputs,
    input_output_aliases={first + i: i for i in range(len(state))},
    compiler_params=tpu_room.compiler_params(),
    cost_estimate=_estimate_cost(moves, rows, vectors, visits, grads),
    interpret=interpret,
    name='jagged_embedding_moves',
  )(*prefetched, inputs)
  return made['state'], made.get('values')


def _estimate_cost(moves: Moves, rows, vectors, visits, grads):
  """What the kernel moves, if all visits and units have a row."""
  units = rows.shape[0] * SEGMENTS
  # Words of units, and rows of slots, which are as long; there and back.
  copies = 1 + len(moves.copied_slots) * moves.planes
  size = 2 * 4 * units * grads.shape[1] * copies
  numbers = rows.size + (0 if vectors is None else vectors.size)
  numbers += units * moves.planes * len(moves.row_slots)
  return tpu_room.estimate(
    tpu_walk.count_bytes(grads, visits) + size + 4 * numbers
  )


def _shape_of(x):
  return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _make_scratch(moves: Moves, visits, grads, table) -> dict:
  dim, places = grads.shape[1], moves.planes * SEGMENTS
  square = SEGMENTS, SEGMENTS
  scratch = {
    'walk': tpu_walk.make_scratch(grads, visits.numbers.shape[1]),
    'sums': pltpu.VMEM((places, dim), jnp.float32),
    'units': pltpu.VMEM((2, places, dim), table.dtype),
    'slots': [
      pltpu.VMEM((2, places, dim), jnp.float32) for _ in moves.copied_slots
    ],
    'arrivals': pltpu.SemaphoreType.DMA((2,)),
    'departures': pltpu.SemaphoreType.DMA((2,)),
    'departed': pltpu.SMEM((2,), jnp.int32),
  }
  if moves.vectors:
    scratch['columns'] = pltpu.VMEM(square, jnp.int32)
  if moves.row_slots:
    scratch['values'] = pltpu.VMEM(square, jnp.float32)
  return scratch


def _kernel(moves: Moves, bounds, scalars, inputs, outputs, scratch):
  step, steps = pl.program_id(0), pl.num_programs(0)
  walk = tpu_walk.Walk(
    bounds, inputs['numbers'], inputs['grads'], **scratch['walk']
  )
  departed = scratch['departed']

  @pl.when(step == 0)
  def _():
    departed[0], departed[1] = 0, 0
    tpu_walk.begin(walk)

  # Steps are as many as units could be; the last ones may have none.
  @pl.when(bounds[step] < bounds[step + 1])
  def _():
    _move_step(moves, step, walk, scalars, inputs, outputs, scratch)

  @pl.when(step == steps - 1)
  def _():
    for half in range(2):
      _wait(scratch, 'departures', jnp.int32(half), departed[half])


def _move_step(moves, step, walk, scalars, inputs, outputs, scratch):
  half, sums = step & 1, scratch['sums']
  departed = scratch['departed']
  _wait(scratch, 'departures', half, departed[half])
  count = _copy_units(moves, inputs, inputs['state'], scratch, half, here=True)

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

  def move_tile(tile, _):
    first = pl.multiple_of(tile * TILE, TILE)
    _move_tile(moves, first, half, scalars, scratch)

  _repeat(SEGMENTS // TILE, move_tile, None)
  if moves.row_slots:
    values = outputs['values']
    values[...] = scratch['values'][...].T[: values.shape[0]]
  departed[half] = _copy_units(
    moves, inputs, outputs['state'], scratch, half, here=False
  )


def _copy_units(moves: Moves, inputs, state, scratch, half, here: bool):
  """Starts the copies of a step's units and slots, and counts them.

  Args:
    moves: what to do.
    inputs: of the kernel.
    state: references to the table and the slots in HBM.
    scratch: of the kernel.
    half: which half of the scratch memory the step uses.
    here: whether they come or go.
  """
  (table, *slots), units = state, scratch['units']
  semaphore = scratch['arrivals' if here else 'departures'].at[half]

  def copy(far, near):
    ends = (far, near) if here else (near, far)
    pltpu.make_async_copy(*ends, semaphore).start()

  def copy_unit(lane, count):
    rows = [inputs['rows'][plane, lane] for plane in range(moves.planes)]
    unit = tpu_walk.find_unit(functools.reduce(jnp.maximum, rows), table.dtype)

    @pl.when(unit >= 0)
    def _():
      copy(
        table.at[tpu_walk.slice_unit(unit, table.dtype), :],
        units.at[half, tpu_walk.slice_unit(lane, table.dtype), :],
      )

    count += (unit >= 0).astype(jnp.int32)
    for plane, row in enumerate(rows if slots else ()):
      # A row without a gradient, beside one with, keeps its slots.
      @pl.when(row >= 0)
      def _(plane=plane, row=row):
        at = pl.ds(plane * SEGMENTS + lane, 1)
        for far, near in zip(slots, scratch['slots'], strict=True):
          copy(far.at[pl.ds(row, 1), :], near.at[half, at, :])

      count += len(slots) * (row >= 0).astype(jnp.int32)
    return count

  return _repeat(SEGMENTS, copy_unit, jnp.int32(0))


def _repeat(count: int, body, start):
  # Of plain numbers the loop would count in 64 bits where these are switched
  # on, which the compiler does not take.
  return jax.lax.fori_loop(jnp.int32(0), jnp.int32(count), body, start)


def _wait(scratch, semaphores: str, half, count) -> None:
  """Waits for so many copies, which are all of one size."""
  row = scratch['sums'].at[pl.ds(0, 1), :]
  copy = pltpu.make_async_copy(row, row, scratch[semaphores].at[half])
  jax.lax.fori_loop(0, count, lambda *_: copy.wait(), None)


def _move_tile(moves: Moves, first, half, scalars, scratch) -> None:
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
  if moves.row_slots:
    values = jnp.zeros((TILE, SEGMENTS), jnp.float32)
    lane = jax.lax.broadcasted_iota(jnp.int32, values.shape, 1)
  bits = []
  for plane in range(moves.planes):

    def column(name, plane=plane):
      at = moves.vectors.index(name) * moves.planes + plane
      return columns[:, at : at + 1]

    own = pl.ds(pl.multiple_of(plane * SEGMENTS + first, TILE), TILE)
    old = olds[plane]
    slots = _load_slots(moves, scratch, half, own, column)
    numbers = _find_numbers(moves, scalars, column)
    off, new_slots = rules.step(
      moves.optimizer, numbers, old, slots, scratch['sums'][own, :]
    )
    new = rules.shrink(numbers, old - off)
    for place, i in enumerate(moves.copied_slots):
      scratch['slots'][place][half, own, :] = new_slots[i]
    for place, i in enumerate(moves.row_slots):
      value = new_slots[i][:, None]
      if moves.planes > 1:
        value = jnp.where(column('row') >= 0, value, slots[i][:, None])
      values = jnp.where(lane == place * moves.planes + plane, value, values)
    if moves.planes == 1:
      units[half, at_units, :] = new
    else:
      chosen = column('row') >= 0
      rounded = _round_to_bits(moves, new, scalars[SEED], column)
      bits.append(jnp.where(chosen, rounded, _bits_of(old)))
  if bits:
    lower = jax.lax.shift_right_logical(bits[0], jnp.uint32(16))
    units[half, at_units, :] = pltpu.bitcast(lower | bits[1], jnp.bfloat16)
  if moves.row_slots:
    scratch['values'][at, :] = values


def _split_planes(units):
  """The planes of `[TILE * planes, D]` rows, in float32."""
  if units.dtype == jnp.float32:
    return [units]
  # In a word the first row lies in the lower half; a bfloat16 is the upper half
  # of a float32.
  words = pltpu.bitcast(units, jnp.uint32)
  upper = words & jnp.uint32(0xFFFF0000)
  return [_float(words << jnp.uint32(16)), _float(upper)]


def _load_slots(moves: Moves, scratch, half, own, column):
  """The slots of a tile, as `rules.step` takes them."""
  slots, copied = [], iter(scratch['slots'])
  for i, kind in enumerate(moves.slots):
    if kind == 'element':
      slots.append(next(copied)[half, own, :])
    else:
      slots.append(_float(column(f'slot{i}'))[:, 0])
  return tuple(slots)


def _find_numbers(moves: Moves, scalars, column) -> rules.RuleNumbers:
  def find(number):
    if isinstance(number, str):
      return _float(column(number))
    return _float(scalars[number]) if isinstance(number, int) else number

  return rules.RuleNumbers(*map(find, moves.numbers))


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
