"""What the TPU kernels do not take, and how much they need."""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
VMEM_BYTES = 56 << 20  # of 64 MB at least (v5p and 7x have the least)
BOUNDS_BYTES = 512 << 10  # of the megabyte that holds scalars


def compiler_params() -> pltpu.CompilerParams:
  return pltpu.CompilerParams(
    # A step uses what the one before has asked for.
    dimension_semantics=('arbitrary',),
    vmem_limit_bytes=VMEM_BYTES,
  )


def estimate(size: int) -> pl.CostEstimate:
  """What XLA is told of a kernel that moves so many bytes, and does little."""
  return pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=size)


def check_rows(name: str, array, interpret: object) -> None:
  """Refuses rows that a TPU cannot copy one by one.

  Args:
    name: of the argument.
    array: `[rows, D]`.
    interpret: as in `tpu.Kernels`. What runs in the interpreter is what a TPU
      would run, and is refused alike.
  """
  rows, dim = array.shape
  reason = None
  if array.dtype == jnp.float16:
    reason = f'{name} is float16, which TPUs do not compute with: take bfloat16'
  elif dim % LANES:
    reason = (
      f'{name} has {dim} columns, which is no multiple of {LANES}: XLA keeps '
      'such an array turned in the memory of a TPU, and would copy all of it '
      f'for a call; fill it up to {-(-dim // LANES) * LANES} columns'
    )
  elif array.dtype == jnp.bfloat16 and rows % 2:
    reason = (
      f'{name} has {rows} rows, which is odd: rows of 16 bits are copied two '
      'by two; add one'
    )
  if reason:
    implementation = 'interpret' if interpret else 'pallas_tpu'
    raise NotImplementedError(
      f'jagged_embedding: implementation {implementation!r} cannot run: '
      f"{reason}, or ask for implementation='xla'."
    )


def check_memory(scratch, blocks: int, dim: int, interpret: object) -> None:
  """Refuses rows that are too wide for the fast memory.

  Args:
    scratch: shapes of the scratch memory of a kernel.
    blocks: bytes of its blocks, of which there are two each.
    dim: columns of a row, for the message.
    interpret: an interpreted kernel has all the memory of the machine.
  """
  size = count_bytes(scratch, pltpu.VMEM) + 2 * blocks
  # Registers are spilled there, too.
  if not interpret and size > VMEM_BYTES - (8 << 20):
    raise NotImplementedError(
      f'jagged_embedding: rows of {dim} columns take {size >> 20} MB of the '
      f'fast memory of a TPU, {(VMEM_BYTES >> 20) - 8} MB are there for them: '
      "ask for implementation='xla'."
    )


def check_bounds(bounds, interpret: object) -> None:
  """Refuses more grid steps than the memory for scalars can tell of.

  Args:
    bounds: `[steps + 1]` of a call.
    interpret: as in `check_memory`.
  """
  if not interpret and 4 * bounds.shape[0] > BOUNDS_BYTES:
    raise NotImplementedError(
      f'jagged_embedding: {bounds.shape[0] - 1:,} steps of a TPU kernel need '
      f'{4 * bounds.shape[0] >> 10} kB of the memory for scalars, '
      f'{BOUNDS_BYTES >> 10} kB are there for them: pass fewer ids in a call, '
      "or ask for implementation='xla'."
    )


def count_bytes(scratch, space) -> int:
  """Bytes of the scratch memory of one kind, `pltpu.VMEM` or `pltpu.SMEM`."""
  leaves = jax.tree.leaves(scratch, is_leaf=lambda x: hasattr(x, 'shape'))
  return sum(
    math.prod(x.shape) * jnp.dtype(x.dtype).itemsize
    for x in leaves
    if x.memory_space == space
  )
