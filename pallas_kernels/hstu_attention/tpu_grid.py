"""The grids of the TPU kernels, and the blocks that each step gets."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.hstu_attention import tpu_layout
from pallas_kernels.hstu_attention.tpu_layout import KernelPlan, TokenPlaces

# Of 64 MB at least (v5p and 7x have the least); the compiler's own limit is 16.
VMEM_BYTES = 56 << 20
TABLE_BYTES = 36 << 20  # of them, for the position bias and its gradient


class Side(NamedTuple):
  """A kernel call, but for its outputs.

  Attributes:
    grid: heads, own blocks, then the other side's blocks that meet them.
    scalars: what the kernel gets first, in SMEM.
    inputs: name -> array.
    in_specs: name -> its blocks.
    query_spec: blocks of `[H, R, width]`, for a width.
    key_spec: blocks of `[H, K, width]`.
  """

  grid: tuple
  scalars: tuple[jax.Array, ...]
  inputs: dict[str, jax.Array]
  in_specs: dict[str, pl.BlockSpec]
  query_spec: Callable[[int], pl.BlockSpec]
  key_spec: Callable[[int], pl.BlockSpec]


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


def by_query(plan: KernelPlan, operands: dict, call: TokenPlaces) -> Side:
  """A kernel call that walks the key blocks which each query block sees.

  Args:
    plan: block sizes.
    operands: arrays of the call.
    call: positions and ranges of the tokens.
  """

  query_blocks = call.queries.shape[0] // plan.block_q
  runs = call.first.shape[0] // query_blocks

  def read_block(i, step, first, last, *_):
    # Steps beyond the last block read it again, which costs no copy.
    end = last_block(i, first, last, runs)
    return jnp.minimum(key_block(i, step, first, last, runs), end)

  inputs = _inputs(operands, call)
  # Keys run along the lanes of a tile, so their fields are rows.
  inputs['keys'] = inputs['keys'].T
  # A number known at run time: the grid is as long as the longest range.
  counts = jnp.maximum(call.last - call.first + 1, 0).reshape(-1, runs).sum(1)
  steps = jnp.max(counts, initial=1)
  return _side(
    plan,
    (query_blocks, steps),
    (call.first, call.last, call.shift, call.seed),
    inputs,
    query=lambda i, step, *scalars: i,
    key=read_block,
    turned=False,
  )


def key_block(i, step, first, last, runs: int):
  """The key block that a query block takes in a step.

  Beyond its last block, a number above `last_block`.

  Args:
    i: the query block.
    step: number of the step.
    first: as in `TokenPlaces`.
    last: as in `TokenPlaces`.
    runs: of `tpu_layout.count_runs`.
  """
  j = first[runs * i] + step
  if runs > 1:
    count = jnp.maximum(last[2 * i] - first[2 * i] + 1, 0)
    j = jnp.where(step < count, j, first[2 * i + 1] + step - count)
  return j


def last_block(i, first, last, runs: int):
  """The last key block of a query block; its first one if it sees none."""
  at = runs * i + runs - 1
  return jnp.maximum(last[at], first[at])


def is_seen(i, j, first, last, runs: int):
  """Whether a query block sees a key block."""
  seen = (first[runs * i] <= j) & (j <= last[runs * i])
  if runs > 1:
    seen |= (first[2 * i + 1] <= j) & (j <= last[2 * i + 1])
  return seen


def by_key(plan: KernelPlan, operands: dict, call: TokenPlaces) -> Side:
  """A kernel call that walks the query blocks which see each key block.

  Its tiles are `[keys, queries]`, so the fields are turned as well.

  Args:
    plan: block sizes.
    operands: arrays of the call.
    call: positions and ranges of the tokens.
  """
  key_blocks = call.keys.shape[0] // plan.block_k
  # A key block is seen by several runs of query blocks, one for each kind of
  # row.
  counts = call.span_count.reshape(-1, key_blocks).sum(0)
  inputs = _inputs(operands, call)
  inputs['queries'] = inputs['queries'].T
  if 'position' in inputs:
    # Tiles are turned in this kernel, see `tpu_tile`.
    inputs['position'] = jnp.swapaxes(inputs['position'], 1, 2)

  def query(j, step, *scalars):
    return query_block(step, j, key_blocks, *scalars[-2:])[0]

  return _side(
    plan,
    (key_blocks, jnp.maximum(jnp.max(counts), 1)),
    (
      call.first,
      call.last,
      call.shift,
      call.seed,
      call.span_start,
      call.span_count,
    ),
    inputs,
    query=query,
    key=lambda j, step, *scalars: j,
    turned=True,
  )


def query_block(step, j, key_blocks: int, span_start, span_count):
  """Which query block a step takes for a key block, and how many there are.

  Args:
    step: number of the step.
    j: the key block.
    key_blocks: number of key blocks.
    span_start: as in `TokenPlaces`.
    span_count: as in `TokenPlaces`.
  """
  number = jnp.int32(0)
  before = jnp.int32(0)
  # Unrolled: there are at most three runs.
  for span in range(span_start.shape[0] // key_blocks):
    start = span_start[span * key_blocks + j]
    count = span_count[span * key_blocks + j]
    # Beyond the last block, that one stays.
    inside = jnp.clip(step - before, 0, count - 1)
    # Runs follow one another; the last one that has begun is right.
    number = jnp.where((step >= before) & (count > 0), start + inside, number)
    before += count
  return number, before


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


def compiler_params(own: str = 'parallel') -> pltpu.CompilerParams:
  """Parameters of the compiler.

  Args:
    own: 'parallel', or 'arbitrary' where the blocks of a kernel's own side add
      to the same output, so that they must run one after another.
  """
  return pltpu.CompilerParams(
    dimension_semantics=('parallel', own, 'arbitrary'),
    vmem_limit_bytes=VMEM_BYTES,
  )


def _inputs(operands: dict, call: TokenPlaces) -> dict:
  inputs = {n: x for n, x in operands.items() if n != 'targets'}
  keys = call.keys
  if 'targets' in operands:
    bias = jax.lax.bitcast_convert_type(operands['targets'], jnp.int32)
    # Bits of a float in a field that is unused without targets.
    keys = keys.at[:, tpu_layout.TARGET_BIAS].set(bias)
  return inputs | {'queries': call.queries, 'keys': keys}


def _side(plan, grid, scalars, inputs, query, key, turned) -> Side:
  heads = inputs['q'].shape[0]

  def per_head(size, block):
    def spec(width):
      return pl.BlockSpec(
        # Head groups are the outermost axis of the grid, tokens depend on the
        # rest.
        (plan.heads, size, width),
        lambda g, *rest: (g, block(*rest), 0),
      )

    return spec

  def fields(size, block, across):
    if across:
      return pl.BlockSpec(
        (tpu_layout.FIELDS, size), lambda g, *rest: (0, block(*rest))
      )
    return pl.BlockSpec(
      (size, tpu_layout.FIELDS), lambda g, *rest: (block(*rest), 0)
    )

  def whole(x):
    # Read once: a second buffer would be in vain.
    return pl.BlockSpec(
      x.shape, lambda *_: (0,) * x.ndim, pipeline_mode=pl.Buffered(1)
    )

  query_spec = per_head(plan.block_q, query)
  key_spec = per_head(plan.block_k, key)
  in_specs = {
    'q': query_spec(inputs['q'].shape[2]),
    'k': key_spec(inputs['k'].shape[2]),
    'v': key_spec(inputs['v'].shape[2]),
    'queries': fields(plan.block_q, query, turned),
    'keys': fields(plan.block_k, key, not turned),
  }
  for name in ('position', 'time'):
    if name in inputs:
      in_specs[name] = whole(inputs[name])
  return Side(
    (heads // plan.heads, *grid),
    scalars,
    inputs,
    in_specs,
    query_spec,
    key_spec,
  )
