"""The Pallas TPU (Mosaic) backend: jagged blocks, forward and backward.

Queries and keys are packed, and a grid step takes one block of each and a few
heads. Which key blocks a query block sees is known before the kernel starts
(`tpu_layout`), and the grid is as long as the list of all pairs, so the work
grows with the sum of the squared lengths, and no step is without work but where
two cores share unequal halves. Heads lie side by side, as models have them
(`tpu_heads`), so nothing is copied for the kernels but odd widths. Scores never
leave VMEM; the backward pass (`tpu_backward`) computes them again. Masks are
those of `masks`, from a few integers for each token. The biases:

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
  tpu_heads,
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
  shape = v.shape[1:]
  plan = make_plan(spec, tensors, context, interpret)
  # Only the tiles of the bias need rows and tokens to agree modulo a tile.
  aligned = position_bias is not None
  where = tpu_layout.layout(spec, plan, context, q.shape[0], aligned)
  keys = tpu_layout.round_up(k.shape[0], plan.block_k)
  call = tpu_layout.call(spec, plan, context, where, keys)
  heads = plan.heads
  q, k = (tpu_heads.pack(heads, x, heads.dqk) for x in (q, k))
  operands = {'q': q, 'k': k, 'v': tpu_heads.pack(heads, v, heads.dv)}
  if where.source is not None:
    operands['q'] = tpu_layout.place_queries(where, q, axis=0)
  if position_bias is not None:
    operands['position'] = tpu_layout.toeplitz(spec, plan, position_bias)
    if plan.targets:
      operands['targets'] = _target_bias(spec, context, position_bias, keys)
  if time_bias is not None:
    # Entries from 128 on belong to differences that cannot occur.
    row = time_bias[: tpu_heads.LANES].astype(jnp.float32)
    operands['time'] = tpu_layout.pad(row, tpu_heads.LANES)[None]
  out = _attention(spec, plan, operands, call)
  return tpu_heads.unpack(tpu_layout.gather(where, out), heads.dv, *shape)


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
  # two sums in float32.
  width = tpu_heads.fill(dqk) + tpu_heads.fill(dv)
  size = (block_q + 2 * block_k) * width * (2 * q.dtype.itemsize + 2)
  packed = tpu_heads.choose(heads, dqk, dv, max(1, HEADS_BYTES // size))
  buckets = 0 if time_bias is None else time_bias.shape[0]
  targets = position_bias is not None and context.targets is not None
  return KernelPlan(block_q, block_k, tile, packed, buckets, targets, interpret)


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
  """`[R, values]`, from `[R, keys]`, `[K, keys]`, `[K, values]` and tables."""
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
    The output, packed like the values, and for softmax the logarithms of the
    sums, `[groups, R, heads at once]`.
  """
  v, heads = operands['v'], plan.heads
  rows = len(operands['q'])
  tpu_grid.check_room(plan, operands, copies=1)
  side = tpu_grid.by_query(plan, operands, call)
  softmax = spec.mode == 'softmax'
  lanes = heads.together * heads.dv
  out_specs = {'out': side.query_spec(lanes)}
  out_shape = {'out': jax.ShapeDtypeStruct((rows, v.shape[1]), v.dtype)}
  scratch = {'sum': pltpu.VMEM((plan.block_q, lanes), jnp.float32)}
  if softmax:
    # One number a row fills all its lanes.
    shape = (heads.together, plan.block_q, tpu_heads.LANES)
    scratch |= {n: pltpu.VMEM(shape, jnp.float32) for n in ('top', 'total')}
    out_specs['lse'] = side.stats_spec(heads.together)
    out_shape['lse'] = jax.ShapeDtypeStruct(
      (heads.groups, rows, heads.together), jnp.float32
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
    cost_estimate=tpu_grid.estimate_cost(
      plan, side, side.inputs, side.in_specs, out_shape, heads.dqk + heads.dv
    ),
    interpret=plan.interpret,
    name='hstu_attention_forward',
  )(*side.scalars, side.inputs)
  return results['out'], results.get('lse')


def _forward_kernel(
  spec, plan, codes, bounds, shift, ends, seed, inputs, outputs, scratch
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
      inputs['queries'][...],
      inputs['keys'][...],
      tpu_grid.distance(plan, step.own, step.other, shift),
      turned=False,
    )
    real = tpu_grid.find_real(plan.block_k, step.other, ends[1])
    for h in range(plan.heads.together):
      of_keys, of_values = plan.lanes(h)
      q = tpu_heads.isolate(of_keys, tpu_heads.read(inputs['q'], of_keys))
      k = tpu_heads.read(inputs['k'], of_keys)
      s = tpu_tile.scores(spec, tile, q, k)
      if spec.mode == 'silu':
        weights = jnp.where(tile.mask, jax.nn.silu(s), 0.0)
      else:
        weights = _softmax_step(tile.mask, s, scratch, h, of_values)
      head = group * plan.heads.together + h
      weights = tpu_tile.apply_dropout(spec, tile, seed[0], head, weights)
      v = tpu_heads.read(inputs['v'], of_values)
      v = tpu_heads.isolate(of_values, v, rows=real)
      # In float32 over all steps; rounded once, when it is written.
      out = tpu_tile.dot(weights.astype(v.dtype), v, 1, 0)
      tpu_heads.add(scratch['sum'], of_values, out)

  @pl.when(step.is_last)
  def _():
    number = tpu_layout.SCALE
    scale = inputs['queries'][...].T[:, number : number + 1]
    scale = lax.bitcast_convert_type(scale, jnp.float32)
    out = scratch['sum'][...] * scale
    if spec.mode == 'softmax':
      out /= _write_sums(plan, scratch, outputs['lse'])
    outputs['out'][...] = out.astype(outputs['out'].dtype)


def _write_sums(plan, scratch, out):
  """Writes the logarithms of the sums; returns the divisors of the output."""
  shape = scratch['top'].shape[1:]
  lane = lax.broadcasted_iota(jnp.int32, shape, 1)
  lse, pieces = jnp.zeros(shape, jnp.float32), {}
  for h in range(plan.heads.together):
    total = scratch['total'][h]
    # Rows without a query have seen nothing.
    total = jnp.where(total > 0.0, total, 1.0)
    # A number is in all lanes of its row, so also where it is wanted.
    lse = jnp.where(lane == h, scratch['top'][h] + jnp.log(total), lse)
    _, lanes = plan.lanes(h)
    divisor = jnp.broadcast_to(
      total[:, :1], (len(total), lanes.end - lanes.first)
    )
    pieces[lanes.first] = tpu_heads.isolate(
      lanes, divisor, pieces.get(lanes.first, 1.0)
    )
  out[0] = lse[:, : plan.heads.together]
  return jnp.concatenate([*pieces.values()], axis=1)


def _softmax_step(mask, s, scratch, h, lanes):
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
  # Of this head alone.
  summed = tpu_heads.read(scratch['sum'], lanes)
  shrink = tpu_heads.isolate(lanes, shrink, 1.0)
  scratch['sum'][:, lanes.first : lanes.end] = summed * shrink
  return weights
