"""The grids of the TPU kernels, and the blocks that each step gets."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.hstu_attention import tpu_layout, tpu_pairs
from pallas_kernels.hstu_attention.tpu_layout import KernelPlan, TokenPlaces
from pallas_kernels.hstu_attention.tpu_pairs import Pairs

# Of 64 MB at least (v5p and 7x have the least); the compiler's own limit is 16.
VMEM_BYTES = 56 << 20
TABLE_BYTES = 36 << 20  # of them, for the position bias and its gradient
PAIRS_BYTES = 768 << 10  # of the megabyte that holds scalars


class Side(NamedTuple):
  """A kernel call, but for its outputs.

  Attributes:
    grid: groups of heads, parts of the own blocks, pairs of blocks.
    scalars: what the kernel gets first, in SMEM.
    inputs: name -> array.
    in_specs: name -> its blocks.
    query_spec: blocks of `[R, groups * lanes]`, for lanes of a group of heads.
    stats_spec: blocks of `[groups, R, numbers]` for the queries, or of
      `[groups, numbers, R]` if queries run along the lanes.
    pairs: the most pairs of blocks that there may be.
    others: inputs that each pair reads a block of, whatever was there before.
  """

  grid: tuple
  scalars: tuple[jax.Array, ...]
  inputs: dict[str, jax.Array]
  in_specs: dict[str, pl.BlockSpec]
  query_spec: Callable[[int], pl.BlockSpec]
  stats_spec: Callable[[int], pl.BlockSpec]
  pairs: int
  others: tuple[str, ...]


def check_room(plan: KernelPlan, operands: dict, copies: int) -> None:
  """Refuses a position bias that does not fit into VMEM.

  Args:
    plan: block sizes; an interpreted kernel is never refused.
    operands: arrays of the call.
    copies: how many arrays of the size of the bias must be there at once.
  """
  # An interpreted kernel has all the memory of the machine.
  if 'position' not in operands or plan.interpret:
    return
  size = copies * operands['position'].size * 4
  if size > TABLE_BYTES:
    raise ValueError(
      f'position_bias takes {size >> 20} MB of fast memory on a TPU at this '
      f'max_len, {TABLE_BYTES >> 20} MB are there for it: lower max_len, leave '
      "out position_bias, or ask for implementation='xla'."
    )


class Step(NamedTuple):
  """What a step of a grid does.

  Attributes:
    own: the block whose output is made.
    other: the block that meets it.
    is_seen: whether there is something to compute.
    is_first: whether it is the first step of its own block.
    is_last: whether it is the last one.
  """

  own: jax.Array
  other: jax.Array
  is_seen: jax.Array
  is_first: jax.Array
  is_last: jax.Array


def by_query(plan: KernelPlan, operands: dict, call: TokenPlaces) -> Side:
  """A kernel call that walks the key blocks which each query block sees.

  Args:
    plan: block sizes.
    operands: arrays of the call.
    call: positions and pairs of the tokens.
  """
  inputs = _inputs(operands, call)
  return _side(
    plan, call.by_query, call, inputs, query=_own, key=_other, turned=False
  )


def by_key(plan: KernelPlan, operands: dict, call: TokenPlaces) -> Side:
  """A kernel call that walks the query blocks which see each key block.

  Its tiles are `[keys, queries]`.

  Args:
    plan: block sizes.
    operands: arrays of the call.
    call: positions and pairs of the tokens.
  """
  inputs = _inputs(operands, call)
  if 'position' in inputs:
    # Tiles are turned in this kernel, see `tpu_tile`.
    inputs['position'] = jnp.swapaxes(inputs['position'], 1, 2)
  return _side(
    plan, call.by_key, call, inputs, query=_other, key=_own, turned=True
  )


def read_step(codes, bounds) -> Step:
  """What the present step of a grid does.

  Args:
    codes: of `Pairs`.
    bounds: of `Pairs`.
  """
  part, step = pl.program_id(1), pl.program_id(2)
  at, end = _place(part, step, bounds)
  own, other, is_seen = tpu_pairs.decode(codes[at])
  # A part may have fewer pairs than the other one: the rest does nothing.
  alive = bounds[part] + step < end
  before, _, _ = tpu_pairs.decode(codes[jnp.maximum(at - 1, 0)])
  after, _, _ = tpu_pairs.decode(codes[jnp.minimum(at + 1, end - 1)])
  return Step(
    own,
    other,
    alive & is_seen,
    alive & ((step == 0) | (before != own)),
    # Not the last step of the grid, for which `pl.num_programs` is wrong in
    # vmap.
    alive & ((at == end - 1) | (after != own)),
  )


def _place(part, step, bounds):
  """The number of a pair, and that behind the last one of the part."""
  end = bounds[part + 1]
  # Steps beyond the last pair read it again, which costs no copy.
  return jnp.minimum(bounds[part] + step, end - 1), end


def _own(part, step, codes, bounds, *_):
  return tpu_pairs.decode(codes[_place(part, step, bounds)[0]])[0]


def _other(part, step, codes, bounds, *_):
  return tpu_pairs.decode(codes[_place(part, step, bounds)[0]])[1]


def _check_pairs(plan: KernelPlan, pairs: Pairs, call: TokenPlaces) -> None:
  """Refuses more pairs of blocks than the scalars of a kernel may be."""
  size = 4 * len(pairs.codes)
  if not plan.interpret and size > PAIRS_BYTES:
    raise ValueError(
      f'there may be {len(pairs.codes):,} pairs of blocks, whose list takes '
      f'{size >> 10} kB of the memory for scalars of a TPU, and '
      f'{PAIRS_BYTES >> 10} kB are there for it: pass fewer tokens in a call, '
      "lower max_len, or ask for implementation='xla'."
    )
  most = max(
    call.queries.shape[1] // plan.block_q, call.keys.shape[1] // plan.block_k
  )
  if most > tpu_pairs.MAX_BLOCKS:
    raise ValueError(
      f'there are {most:,} blocks of tokens, and {tpu_pairs.MAX_BLOCKS:,} can '
      'be counted: pass fewer tokens in a call.'
    )


def distance(plan: KernelPlan, i, j, shift):
  """Key block j minus query block i, in tiles of the position bias.

  Args:
    plan: block sizes.
    i: query block.
    j: key block.
    shift: as in `TokenPlaces`.
  """
  per_query, per_key = plan.block_q // plan.tile, plan.block_k // plan.tile
  # Blocks of a tail start later in the sequence than in the rows.
  return j * per_key - i * per_query - shift[i]


def find_real(block: int, number, end) -> jax.Array:
  """Which rows of a block hold numbers, `[block, 1]`.

  Whatever a caller left in its padding, and whatever memory holds behind the
  end of an array, would reach sums as 0 * NaN.

  Args:
    block: rows of a block.
    number: of the block.
    end: rows of the array that hold numbers, the first ones.
  """
  row = jax.lax.broadcasted_iota(jnp.int32, (block, 1), 0)
  return row < end - number * block


def estimate_cost(
  plan: KernelPlan,
  side: Side,
  inputs: dict,
  in_specs: dict,
  outputs,
  lanes: int,
) -> pl.CostEstimate:
  """What a kernel computes and moves, for XLA to plan what is around it.

  How many pairs of blocks meet is known at run time alone. Taken is half of
  what the list has room for, which is nearly what there is if all sequences are
  as long as they may be. Of shorter ones fewer meet, with a window more.

  Args:
    plan: block sizes.
    side: the call.
    inputs: all of its inputs.
    in_specs: their blocks.
    outputs: their shapes.
    lanes: widths of a head, summed over the products of a pair.
  """
  steps = plan.heads.groups * -(-side.pairs // 2)
  scores = steps * plan.heads.together * plan.block_q * plan.block_k

  def count_bytes(name, x):
    # Blocks of the own side, and the tables, stay until all steps had them.
    if name not in side.others:
      return x.size * x.dtype.itemsize
    return steps * math.prod(in_specs[name].block_shape) * x.dtype.itemsize

  moved = sum(count_bytes(name, x) for name, x in inputs.items())
  moved += sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(outputs))
  return pl.CostEstimate(
    flops=2 * scores * lanes, transcendentals=scores, bytes_accessed=moved
  )


def compiler_params() -> pltpu.CompilerParams:
  """Parameters of the compiler."""
  return pltpu.CompilerParams(
    dimension_semantics=('parallel', 'parallel', 'arbitrary'),
    vmem_limit_bytes=VMEM_BYTES,
  )


def _inputs(operands: dict, call: TokenPlaces) -> dict:
  inputs = {n: x for n, x in operands.items() if n != 'targets'}
  keys = call.keys
  if 'targets' in operands:
    bias = jax.lax.bitcast_convert_type(operands['targets'], jnp.int32)
    # Bits of a float in a field that is unused without targets.
    keys = keys.at[tpu_layout.TARGET_BIAS].set(bias)
  return inputs | {'queries': call.queries, 'keys': keys}


def _side(plan, pairs, call, inputs, query, key, turned) -> Side:
  _check_pairs(plan, pairs, call)
  heads = plan.heads

  def packed(size, block):
    def spec(lanes):
      # Groups of heads are the outermost axis of the grid, tokens depend on
      # the rest.
      return pl.BlockSpec((size, lanes), lambda g, *rest: (block(*rest), g))

    return spec

  def stats_spec(numbers):
    if turned:
      return pl.BlockSpec(
        (1, numbers, plan.block_q), lambda g, *rest: (g, 0, query(*rest))
      )
    return pl.BlockSpec(
      (1, plan.block_q, numbers), lambda g, *rest: (g, query(*rest), 0)
    )

  def fields(size, block):
    return pl.BlockSpec(
      (tpu_layout.FIELDS, size), lambda g, *rest: (0, block(*rest))
    )

  def whole(x):
    # Read once: a second buffer would be in vain.
    return pl.BlockSpec(
      x.shape, lambda *_: (0,) * x.ndim, pipeline_mode=pl.Buffered(1)
    )

  query_spec = packed(plan.block_q, query)
  key_spec = packed(plan.block_k, key)
  in_specs = {
    'q': query_spec(heads.together * heads.dqk),
    'k': key_spec(heads.together * heads.dqk),
    'v': key_spec(heads.together * heads.dv),
    'queries': fields(plan.block_q, query),
    'keys': fields(plan.block_k, key),
  }
  for name in ('position', 'time'):
    if name in inputs:
      in_specs[name] = whole(inputs[name])
  parts = len(pairs.bounds) - 1
  # A number known at run time: as many steps as the longer part has pairs.
  steps = jnp.max(pairs.bounds[1:] - pairs.bounds[:-1])
  return Side(
    (heads.groups, parts, steps),
    (*pairs, call.shift, call.ends, call.seed),
    inputs,
    in_specs,
    query_spec,
    stats_spec,
    len(pairs.codes),
    ('q', 'dout', 'stats', 'queries') if turned else ('k', 'v', 'keys'),
  )
