"""Gradients of the Pallas TPU backend: two kernels that recompute the scores.

One walks the key blocks of each query block and sums dq and the gradients of
both tables; the other walks the query blocks of each key block and sums dk and
dv. Sums follow the order of the grid, so they are the same every time.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.hstu_attention import (
  tpu_grid,
  tpu_heads,
  tpu_layout,
  tpu_tile,
)
from pallas_kernels.hstu_attention.spec import Spec
from pallas_kernels.hstu_attention.tpu_heads import LANES
from pallas_kernels.hstu_attention.tpu_layout import KernelPlan, TokenPlaces
from pallas_kernels.hstu_attention.tpu_tile import SUBLANES, Tile


def backward(
  spec: Spec,
  plan: KernelPlan,
  operands: dict,
  call: TokenPlaces,
  out,
  lse,
  grad,
) -> dict:
  """The gradient of each operand.

  Args:
    spec: options of the call.
    plan: block sizes.
    operands: as given to `tpu.forward`.
    call: as given to `tpu.forward`.
    out: output of softmax, packed like the values; None for SiLU.
    lse: logarithms of the sums of softmax, as from `tpu.forward`; None for
      SiLU.
    grad: gradient of the output, packed.
  """
  # Rows of the fields fill a block, those of the arrays need not.
  queries = call.queries[:, : len(grad)]
  real = (queries[tpu_layout.SEGMENT] > 0)[:, None]
  # NaN in padding rows would reach the sums over queries.
  grad = jnp.where(real, grad.astype(jnp.float32), 0.0)
  scale = queries[tpu_layout.SCALE]
  scale = lax.bitcast_convert_type(scale, jnp.float32)[:, None]
  stats = None
  if spec.mode == 'softmax':
    # The gradient of a softmax subtracts, for each query, the sum of its
    # weights times their gradients, which equals dout . out.
    heads = plan.heads
    shape = (-1, heads.groups, heads.together, heads.dv)
    delta = jnp.sum((grad * out.astype(jnp.float32)).reshape(shape), 3)
    stats = jnp.concatenate([lse, jnp.swapaxes(delta, 0, 1)], 2)
  # The scale is the same for all weights of a query: as well here as there.
  dout = (grad * scale).astype(operands['v'].dtype)
  return _by_query(spec, plan, operands, call, dout, stats) | _by_key(
    spec, plan, operands, call, dout, stats
  )


def _by_query(spec, plan, operands, call, dout, stats) -> dict:
  # The tiles, and twice their gradient: outputs have two buffers.
  tpu_grid.check_room(plan, operands, copies=3)
  side = tpu_grid.by_query(plan, operands, call)
  q = operands['q']
  heads = plan.heads
  # The own side of this kernel is the queries: blocks of dout follow those of
  # q.
  inputs, in_specs = _add_output_gradient(plan, side, dout, stats)
  out_shape = {'q': jax.ShapeDtypeStruct(q.shape, q.dtype)}
  out_specs = {'q': side.in_specs['q']}
  groups, parts, _ = side.grid

  def table(name, *shape):
    shape = (1, *shape)
    own = (groups * parts, *shape[1:])
    out_shape[name] = jax.ShapeDtypeStruct(own, jnp.float32)
    # The same block for all steps of a part of a group of heads: it stays in
    # VMEM and is written once.
    zeros = (0,) * (len(shape) - 1)
    out_specs[name] = pl.BlockSpec(
      shape, lambda g, part, *_: (g * parts + part, *zeros)
    )

  if 'position' in operands:
    table('position', *operands['position'].shape)
  if 'time' in operands:
    table('time', LANES, SUBLANES, min(LANES, plan.block_k))
  grads = pl.pallas_call(
    functools.partial(_by_query_kernel, spec, plan),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(side.scalars),
      grid=side.grid,
      in_specs=[in_specs],
      out_specs=out_specs,
      scratch_shapes=[pltpu.VMEM(side.in_specs['q'].block_shape, jnp.float32)],
    ),
    out_shape=out_shape,
    compiler_params=tpu_grid.compiler_params(),
    cost_estimate=tpu_grid.estimate_cost(
      plan, side, inputs, in_specs, out_shape, 2 * heads.dqk + heads.dv
    ),
    interpret=plan.interpret,
    name='hstu_attention_backward_by_query',
  )(*side.scalars, inputs)
  if 'position' in grads:
    # Groups of heads and parts run in parallel and have a table each.
    grads['position'] = grads['position'].sum(0)
  if 'time' in grads:
    grads['time'] = grads['time'].sum((0, 2, 3))[None]
  return grads


def _add_output_gradient(plan, side, dout, stats) -> tuple[dict, dict]:
  """The inputs of a call, with those that backward adds, and their blocks."""
  inputs = side.inputs | {'dout': dout}
  lanes = plan.heads.together * plan.heads.dv
  in_specs = side.in_specs | {'dout': side.query_spec(lanes)}
  if stats is not None:
    inputs['stats'] = stats
    in_specs['stats'] = side.stats_spec(2 * plan.heads.together)
  return inputs, in_specs


def _by_query_kernel(
  spec, plan, codes, bounds, shift, ends, seed, inputs, outputs, total
):
  group, step = pl.program_id(0), tpu_grid.read_step(codes, bounds)
  tables = [outputs[name] for name in ('position', 'time') if name in outputs]

  # The tables collect over the whole part, dq over one query block.
  @pl.when(pl.program_id(2) == 0)
  def _():
    for table in tables:
      table[...] = jnp.zeros_like(table)

  @pl.when(step.is_first)
  def _():
    total[...] = jnp.zeros_like(total)

  @pl.when(step.is_seen)
  def _():
    distance = tpu_grid.distance(plan, step.own, step.other, shift)
    tile = tpu_tile.build(
      spec,
      plan,
      inputs,
      inputs['queries'][...],
      inputs['keys'][...],
      distance,
      turned=False,
    )
    # Both biases are shared by the heads, so their gradients are, too.
    shared = None
    real = tpu_grid.find_real(plan.block_k, step.other, ends[1])
    for h in range(plan.heads.together):
      of_keys, of_values = plan.lanes(h)
      q, k = (tpu_heads.read(inputs[name], of_keys) for name in 'qk')
      s = tpu_tile.scores(spec, tile, tpu_heads.isolate(of_keys, q), k)
      # By the chain: out = weights . v, dropout between them.
      dout, v = (
        tpu_heads.read(inputs[name], of_values) for name in ('dout', 'v')
      )
      dweights = tpu_tile.dot(tpu_heads.isolate(of_values, dout), v, 1, 1)
      head = group * plan.heads.together + h
      dweights = tpu_tile.apply_dropout(spec, tile, seed[0], head, dweights)
      stats = ()
      if spec.mode == 'softmax':
        stats = [
          inputs['stats'][0, :, n : n + 1] for n in (h, plan.heads.together + h)
        ]
      _, ds = _weights_and_gradient(tile, s, dweights, *stats)
      # alpha is left to the end: once for a block, not for each tile.
      k = tpu_heads.isolate(of_keys, k, rows=real)
      dq = tpu_tile.dot(ds.astype(k.dtype), k, 1, 0)
      tpu_heads.add(total, of_keys, dq)
      if tables:
        shared = ds if shared is None else shared + ds
    if 'position' in outputs:
      tpu_tile.add_position_gradient(
        spec, plan, outputs['position'], tile, shared, distance
      )
    if 'time' in outputs:
      tpu_tile.add_time_gradient(outputs['time'], tile, shared)

  @pl.when(step.is_last)
  def _():
    outputs['q'][...] = (spec.alpha * total[...]).astype(outputs['q'].dtype)


def _by_key(spec, plan, operands, call, dout, stats) -> dict:
  side = tpu_grid.by_key(plan, operands, call)
  k, v = operands['k'], operands['v']
  heads = plan.heads
  if stats is not None:
    # Queries run along the lanes here, and so do their numbers.
    stats = jnp.swapaxes(stats, 1, 2)
  inputs, in_specs = _add_output_gradient(plan, side, dout, stats)
  out_shape = {
    n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in (('k', k), ('v', v))
  }
  out_specs = {n: side.in_specs[n] for n in 'kv'}
  scratch = {
    n: pltpu.VMEM(spec.block_shape, jnp.float32)
    for n, spec in out_specs.items()
  }
  if plan.targets:
    shape = (heads.groups, 1, call.keys.shape[1])
    out_shape['targets'] = jax.ShapeDtypeStruct(shape, jnp.float32)
    own = side.in_specs['keys'].index_map
    out_specs['targets'] = pl.BlockSpec(
      (1, 1, plan.block_k), lambda g, *rest: (g, *own(g, *rest))
    )
    lanes = min(LANES, plan.block_q)
    scratch['targets'] = pltpu.VMEM((plan.block_k, lanes), jnp.float32)
  grads = pl.pallas_call(
    functools.partial(_by_key_kernel, spec, plan),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(side.scalars),
      grid=side.grid,
      in_specs=[in_specs],
      out_specs=out_specs,
      scratch_shapes=[scratch],
    ),
    out_shape=out_shape,
    compiler_params=tpu_grid.compiler_params(),
    cost_estimate=tpu_grid.estimate_cost(
      plan, side, inputs, in_specs, out_shape, 2 * (heads.dqk + heads.dv)
    ),
    interpret=plan.interpret,
    name='hstu_attention_backward_by_key',
  )(*side.scalars, inputs)
  if plan.targets:
    grads['targets'] = grads['targets'][:, 0].sum(0)
  return grads


def _by_key_kernel(
  spec, plan, codes, bounds, shift, ends, seed, inputs, outputs, total
):
  group, step = pl.program_id(0), tpu_grid.read_step(codes, bounds)

  @pl.when(step.is_first)
  def _():
    for name in total:
      total[name][...] = jnp.zeros_like(total[name])

  @pl.when(step.is_seen)
  def _():
    tile = tpu_tile.build(
      spec,
      plan,
      inputs,
      inputs['queries'][...],
      inputs['keys'][...],
      tpu_grid.distance(plan, step.other, step.own, shift),
      turned=True,
    )
    shared = None
    real = tpu_grid.find_real(plan.block_q, step.other, ends[0])
    for h in range(plan.heads.together):
      of_keys, of_values = plan.lanes(h)
      q = tpu_heads.read(inputs['q'], of_keys)
      q = tpu_heads.isolate(of_keys, q, rows=real)
      k = tpu_heads.read(inputs['k'], of_keys)
      dout = tpu_heads.read(inputs['dout'], of_values)
      dout = tpu_heads.isolate(of_values, dout, rows=real)
      v = tpu_heads.read(inputs['v'], of_values)
      s = tpu_tile.scores(spec, tile, k, q)
      head = group * plan.heads.together + h
      dweights = tpu_tile.dot(v, dout, 1, 1)
      dweights = tpu_tile.apply_dropout(spec, tile, seed[0], head, dweights)
      stats = ()
      if spec.mode == 'softmax':
        stats = [
          inputs['stats'][0, n : n + 1] for n in (h, plan.heads.together + h)
        ]
      weights, ds = _weights_and_gradient(tile, s, dweights, *stats)
      # dv needs the weights as the forward pass used them, ds those before.
      weights = tpu_tile.apply_dropout(spec, tile, seed[0], head, weights)
      dv = tpu_tile.dot(weights.astype(v.dtype), dout, 1, 0)
      tpu_heads.add(total['v'], of_values, dv)
      dk = tpu_tile.dot(ds.astype(q.dtype), q, 1, 0)
      tpu_heads.add(total['k'], of_keys, dk)
      if plan.targets:
        shared = ds if shared is None else shared + ds
    if plan.targets:
      # Queries that are targets share one bias for each key.
      asked = jnp.where(tile.target, shared, 0.0)
      lanes = total['targets'].shape[1]
      # Whole vectors are added; their lanes once, at the end.
      total['targets'][...] += sum(
        asked[:, at : at + lanes] for at in range(0, plan.block_q, lanes)
      )

  # Also where nobody sees the block, whose gradients are zero.
  @pl.when(step.is_last)
  def _():
    dk = spec.alpha * total['k'][...]
    outputs['k'][...] = dk.astype(outputs['k'].dtype)
    outputs['v'][...] = total['v'][...].astype(outputs['v'].dtype)
    if plan.targets:
      # A row: as a column, each number would take 128 lanes.
      sums = jnp.sum(total['targets'][...].T, axis=0, keepdims=True)
      outputs['targets'][0] = sums


def _weights_and_gradient(tile: Tile, s, dweights, lse=None, delta=None):
  """The weights and the gradient of the scores `s`, zero for masked pairs.

  Args:
    tile: the tile, of which the mask is used.
    s: scores.
    dweights: gradient of the weights.
    lse: for softmax, the logarithm of the sum of each query.
    delta: for softmax, the sum of dout * out of each query.
  """
  if lse is None:
    # silu(s) = s sigmoid(s), so silu'(s) = sigmoid(s) + silu(s) (1 -
    # sigmoid(s)).
    gate = jax.nn.sigmoid(s)
    weights = s * gate
    ds = dweights * (gate + weights * (1.0 - gate))
    return jnp.where(tile.mask, weights, 0.0), jnp.where(tile.mask, ds, 0.0)
  weights = jnp.where(tile.mask, jnp.exp(s - lse), 0.0)
  # Where nothing is seen, dweights and delta may be anything.
  return weights, jnp.where(tile.mask, weights * (dweights - delta), 0.0)
