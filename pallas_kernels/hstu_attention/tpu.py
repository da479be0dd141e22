"""The Pallas TPU (Mosaic) backend: jagged blocks, forward and backward.

Queries and keys are packed, and a grid step takes one block of each and a few
heads. Which key blocks a query block sees is known before the kernel starts
(`tpu_layout`), and the grid is as long as the list of all pairs, so the work
grows with the sum of the squared lengths, and no step is without work but where
two cores share unequal halves. Scores never leave VMEM; the backward pass
(`tpu_backward`) computes them again. Masks are those of `masks`, from a few
integers for each token. The biases:

- by position: the distance of a query and a key of one sequence is the
  difference of their token numbers, so a tile's bias depends on the distance of
  its blocks alone. All such tiles stay in VMEM, which takes 512 bytes for each
  position of max_len. Targets share a position, so their bias is one number for
  each key.
- by time: a lookup in 128 lanes, which is enough: no difference of two int32
  reaches bucket 72.

XLA differentiates what is around the kernels, which is the layout and the
tables. Inside `jax.shard_map`, `check_vma=False` is needed.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import (
  blocks,
  masks,
  tpu_backward,
  tpu_grid,
  tpu_layout,
  tpu_tile,
)
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors
from pallas_kernels.hstu_attention.tpu_layout import KernelPlan, TokenPlaces

LOWEST = -1e30
HEADS_BYTES = 12 << 20  # of VMEM, for the blocks of all heads of a step


def attention(
  spec: Spec,
  tensors: Tensors,
  context: Context,
  interpret: object = False,
) -> jax.Array:
  """See `api.hstu_attention`.

  Args:
    spec: options of the call.
    tensors: arrays with gradients.
    context: arrays without.
    interpret: False for the TPU; True, or `pltpu.InterpretParams()`, to run
      the kernel's steps on any device.
  """
  q, k, v, position_bias, time_bias = tensors
  plan = make_plan(spec, tensors, context, interpret)
  # Only the tiles of the bias need rows and tokens to agree modulo a tile.
  aligned = position_bias is not None
  where = tpu_layout.layout(spec, plan, context, q.shape[0], aligned)
  keys = tpu_layout.round_up(k.shape[0], plan.block_k)
  call = tpu_layout.call(spec, plan, context, where, keys)
  real = jnp.arange(k.shape[0]) < jnp.sum(context.lengths)
  real = real[:, None, None]
  # What padding tokens hold, be it NaN, is gone before any kernel.
  operands = {
    'q': _head_major(tpu_layout.place_queries(where, q)),
    'k': _head_major(tpu_layout.pad(jnp.where(real, k, 0), keys)),
    'v': _head_major(tpu_layout.pad(jnp.where(real, v, 0), keys)),
  }
  if position_bias is not None:
    operands['position'] = tpu_layout.toeplitz(spec, plan, position_bias)
    if plan.targets:
      operands['targets'] = _target_bias(spec, context, position_bias, keys)
  if time_bias is not None:
    # Entries from 128 on belong to differences that cannot occur.
    row = time_bias[: tpu_tile.LANES].astype(jnp.float32)
    operands['time'] = tpu_layout.pad(row, tpu_tile.LANES)[None]
  out = _attention(spec, plan, operands, call)
  return tpu_layout.gather(where, jnp.swapaxes(out, 0, 1))


def make_plan(
  spec, tensors: Tensors, context: Context, interpret
) -> KernelPlan:
  """Chooses blocks that suit the device and are no larger than the call.

  Args:
    spec: options of the call.
    tensors: arrays of the call, of which the shapes count.
    context: lengths of the call.
    interpret: as in `attention`.
  """
  q, k, v, position_bias, time_bias = tensors
  heads, dqk = q.shape[1:]
  dv = v.shape[2]
  sizes = blocks.lookup(
    'interpret' if interpret else 'pallas_tpu',
    dispatch.device_kind(),
    dqk,
    dv,
  )
  block_q, block_k = sizes['block_q'], sizes['block_k']
  tile = min(tpu_layout.TILE, block_q, block_k)
  if context.query_lengths is not None:
    block_q = tile  # tails are short, and each has blocks of its own
  # A small call is not padded to a large block.
  block_q = min(block_q, tpu_layout.round_up(q.shape[0], tile))
  block_k = min(block_k, tpu_layout.round_up(k.shape[0], tile))
  # Of a head: q, k, v, dk, dv or dout, dq, twice each for the pipeline, and
  # two sums in float32; 128 lanes are taken whatever the width.
  width = sum(tpu_layout.round_up(d, tpu_tile.LANES) for d in (dqk, dv))
  size = (block_q + 2 * block_k) * width * (2 * q.dtype.itemsize + 2)
  fit = max(1, min(8, HEADS_BYTES // size))
  together = max(h for h in range(1, fit + 1) if heads % h == 0)
  buckets = 0 if time_bias is None else time_bias.shape[0]
  targets = position_bias is not None and context.targets is not None
  return KernelPlan(
    block_q, block_k, tile, together, buckets, targets, interpret
  )


def _head_major(x):
  return jnp.swapaxes(x, 0, 1)


def _target_bias(spec: Spec, context: Context, table, keys: int):
  """Position bias of each key for the targets of its sequence, `[keys]`."""
  key = masks.key_places(spec, context, keys)
  first = context.lengths - context.targets
  # The position of the first target, for each key of its sequence.
  first = first.at[key.segment].get(mode='fill', fill_value=0)
  n = (table.shape[0] + 1) // 2
  return table[key.anchor - first + n - 1].astype(jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(spec: Spec, plan: KernelPlan, operands: dict, call: TokenPlaces):
  """`[H, R, dv]`, from `[H, R, dqk]`, `[H, K, d]` and the tables."""
  return _forward(spec, plan, operands, call)[0]


def _forward(spec, plan, operands, call):
  out, lse = forward(spec, plan, operands, call)
  if spec.mode == 'silu':
    return out, (operands, call, None, None)
  # Softmax needs its output and its sums to undo the normalisation; SiLU is
  # recomputed from the scores alone.
  return out, (operands, call, out, lse)


def _backward(spec, plan, saved, grad):
  return tpu_backward.backward(spec, plan, *saved, grad), None


_attention.defvjp(_forward, _backward)


def forward(spec: Spec, plan: KernelPlan, operands: dict, call: TokenPlaces):
  """Runs the forward kernel.

  Args:
    spec: options of the call.
    plan: block sizes.
    operands: name -> array, as `attention` prepares them.
    call: positions and pairs of the tokens.

  Returns:
    `[H, R, dv]`, and for softmax the logarithms of the sums, `[H, R]`.
  """
  q, v = operands['q'], operands['v']
  heads, rows, _ = q.shape
  dv = v.shape[2]
  tpu_grid.check_room(plan, operands, copies=1)
  side = tpu_grid.by_query(plan, operands, call)
  softmax = spec.mode == 'softmax'
  out_specs = {'out': side.query_spec(dv)}
  out_shape = {'out': jax.ShapeDtypeStruct((heads, rows, dv), v.dtype)}
  scratch = {'sum': pltpu.VMEM((plan.heads, plan.block_q, dv), jnp.float32)}
  if softmax:
    # One number a row fills all its lanes.
    shape = (plan.heads, plan.block_q, tpu_tile.LANES)
    scratch |= {n: pltpu.VMEM(shape, jnp.float32) for n in ('top', 'total')}
    out_specs['lse'] = side.query_spec(tpu_tile.LANES)
    out_shape['lse'] = jax.ShapeDtypeStruct(
      (heads, rows, tpu_tile.LANES), jnp.float32
    )
  results = pl.pallas_call(
    functools.partial(_forward_kernel, spec, plan),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(side.scalars),
      grid=side.grid,
      in_specs=[side.in_specs],
      out_specs=out_specs,
      scratch_shapes=[scratch],
    ),
    out_shape=out_shape,
    compiler_params=tpu_grid.compiler_params(),
    interpret=plan.interpret,
    name='hstu_attention_forward',
  )(*side.scalars, side.inputs)
  return results['out'], results['lse'][:, :, 0] if softmax else None


def _forward_kernel(
  spec, plan, codes, bounds, shift, seed, inputs, outputs, scratch
):
  group, step = pl.program_id(0), tpu_grid.read_step(codes, bounds)

  @pl.when(step.is_first)
  def _():
    scratch['sum'][...] = jnp.zeros_like(scratch['sum'])
    if spec.mode == 'softmax':
      scratch['top'][...] = jnp.full_like(scratch['top'], LOWEST)
      scratch['total'][...] = jnp.zeros_like(scratch['total'])

  @pl.when(step.is_seen)
  def _():
    tile = tpu_tile.build(
      spec,
      plan,
      inputs,
      inputs['queries'],
      inputs['keys'],
      tpu_grid.distance(plan, step.own, step.other, shift),
      turned=False,
    )
    for h in range(plan.heads):
      s = tpu_tile.scores(spec, tile, inputs['q'][h], inputs['k'][h])
      if spec.mode == 'silu':
        weights = jnp.where(tile.mask, jax.nn.silu(s), 0.0)
      else:
        weights = _softmax_step(tile.mask, s, scratch, h)
      head = group * plan.heads + h
      weights = tpu_tile.apply_dropout(spec, tile, seed[0], head, weights)
      v = inputs['v'][h]
      # In float32 over all steps; rounded once, when it is written.
      scratch['sum'][h] += tpu_tile.dot(weights.astype(v.dtype), v, 1, 0)

  @pl.when(step.is_last)
  def _():
    number = tpu_layout.SCALE
    scale = inputs['queries'][:, number : number + 1]
    scale = lax.bitcast_convert_type(scale, jnp.float32)
    for h in range(plan.heads):
      out = scratch['sum'][h] * scale
      if spec.mode == 'softmax':
        total = scratch['total'][h]
        # Rows without a query have seen nothing.
        total = jnp.where(total > 0.0, total, 1.0)
        out /= total[:, :1]
        outputs['lse'][h] = scratch['top'][h] + jnp.log(total)
      outputs['out'][h] = out.astype(outputs['out'].dtype)


def _softmax_step(mask, s, scratch, h):
  """Weights against the largest score so far; rescales the sums to it."""
  # Finite, so that the difference of two of them is not NaN.
  s = jnp.where(mask, s, LOWEST)
  before = scratch['top'][h][:, :1]
  top = jnp.maximum(before, jnp.max(s, axis=1, keepdims=True))
  weights = jnp.where(mask, jnp.exp(s - top), 0.0)
  # What was summed before was relative to the old maximum.
  shrink = jnp.exp(before - top)
  total = scratch['total'][h][:, :1] * shrink
  total += jnp.sum(weights, axis=1, keepdims=True)
  shape = scratch['top'].shape[1:]
  scratch['top'][h] = jnp.broadcast_to(top, shape)
  scratch['total'][h] = jnp.broadcast_to(total, shape)
  scratch['sum'][h] = scratch['sum'][h] * shrink
  return weights
