"""The TPU kernel that reads rows, or adds them up: lookups, merged gradients.

A grid step makes `SEGMENTS` sums in fast memory (VMEM), in float32, and Pallas
writes them as one block. The order of a sum is that of its visits.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.jagged_embedding import tpu_lists, tpu_room, tpu_walk
from pallas_kernels.jagged_embedding.tpu_lists import Visits


def sum_segments(
  source,
  visits: Visits,
  segments: int,
  *,
  alone: bool = False,
  dtype=jnp.float32,
  interpret: object = False,
):
  """Adds up rows.

  Args:
    source: `[rows, D]` float32 or bfloat16.
    visits: its rows and where they go.
    segments: how many sums there are.
    alone: whether each is of one row at most, which stays as it is.
    dtype: of the result.
    interpret: as in `tpu.Kernels`.

  Returns:
    `[segments, D]`.
  """
  dim, steps = source.shape[1], tpu_lists.count_steps(segments)
  block = tpu_lists.SEGMENTS, dim
  scratch = {
    'walk': tpu_walk.make_scratch(source, visits.numbers.shape[1]),
    'sums': pltpu.VMEM(block, jnp.float32),
  }
  out = jax.ShapeDtypeStruct((segments, dim), dtype)
  blocks = math.prod(block) * out.dtype.itemsize
  tpu_room.check_memory(scratch, blocks, dim, interpret)
  tpu_room.check_bounds(visits.bounds, interpret)
  return pl.pallas_call(
    functools.partial(_kernel, alone),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(steps,),
      in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)] * 2,
      out_specs=pl.BlockSpec(block, lambda step, _: (step, jnp.int32(0))),
      scratch_shapes=[scratch],
    ),
    out_shape=out,
    compiler_params=tpu_room.compiler_params(),
    cost_estimate=estimate_cost(source, visits, segments, out.dtype),
    interpret=interpret,
    name='jagged_embedding_sums',
  )(visits.bounds, visits.numbers, source)


def estimate_cost(source, visits: Visits, segments: int, dtype):
  """What the kernel moves, if all visits have a row.

  Args:
    source: as in `sum_segments`, as the others.
    visits: likewise.
    segments: likewise.
    dtype: likewise.
  """
  size = segments * source.shape[1] * jnp.dtype(dtype).itemsize
  return tpu_room.estimate(tpu_walk.count_bytes(source, visits) + size)


def _kernel(alone, bounds, numbers, source, out, scratch):
  step, sums = pl.program_id(0), scratch['sums']
  walk = tpu_walk.Walk(bounds, numbers, source, **scratch['walk'])

  @pl.when(step == 0)
  def _():
    tpu_walk.begin(walk)

  def add(row, place):
    at = pl.ds(place, 1)
    # 0 + -0 would be 0.
    sums[at, :] = row if alone else sums[at, :] + row

  sums[...] = jnp.zeros_like(sums)
  tpu_walk.visit_rows(walk, step, add)
  out[...] = sums[...].astype(out.dtype)
