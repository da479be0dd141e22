"""`hstu_attention` on NVIDIA and AMD GPUs: Triton kernels called from JAX.

This file prepares what the kernels read, launches them by the plans of
`gpu_plan.py`, and finishes the gradients of the tables. Nothing of the size of
the scores is ever kept.

Float32 is multiplied as float32. Set `jax_default_matmul_precision` to
'tensorfloat32' for the tensor cores' faster, coarser products. jax-triton has
no rule for `jax.vmap`; with sharded arrays, call this inside `jax.shard_map`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import dispatch, triton_call
from pallas_kernels.hstu_attention import gpu_plan
from pallas_kernels.hstu_attention.reference import time_bucket
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors
from pallas_kernels.jagged import api as jagged


def attention(spec: Spec, tensors: Tensors, context: Context) -> jax.Array:
  """Computes `api.hstu_attention` with the Triton kernels.

  Heads are filled up with zeros to a multiple of 16 bytes. A GPU loads so many
  at once, where rows begin at multiples of them: heads of 50 bfloat16 would be
  loaded by 4 bytes, heads of 25 by 2 and not ahead of their use.
  """
  width = tensors.v.shape[2]
  q, k, v = map(_pad_heads, tensors[:3])
  out = _attention(spec, Tensors(q, k, v, *tensors[3:]), context)
  return out[..., :width]


def _pad_heads(x: jax.Array) -> jax.Array:
  more = gpu_plan.pad_width(x.shape[2], x.dtype.itemsize) - x.shape[2]
  return jnp.pad(x, ((0, 0), (0, 0), (0, more))) if more else x


def kernel_of(name: str):
  """The `triton.jit` function; triton is imported when one is asked for."""
  from pallas_kernels.hstu_attention import (
    triton_bias_kernel,
    triton_kernels,
    triton_keys_kernel,
  )

  if name == 'backward_bias':
    return triton_bias_kernel.backward_bias
  if name == 'backward_keys':
    return triton_keys_kernel.backward_keys
  return getattr(triton_kernels, name)


def _launch(name: str, spec: Spec, call: gpu_plan.CallShapes, *inputs):
  launch = gpu_plan.launch_here(name, spec, call)
  return triton_call.run(kernel_of(name), launch, *inputs)


def inputs_of(spec: Spec, tensors: Tensors, context: Context) -> tuple:
  """The arguments that every kernel begins with, in their order.

  An array that a call does not have is replaced by one that is never read.

  Args:
    spec: options of the call.
    tensors: arrays with gradients.
    context: arrays without.
  """
  q, k, v, position_bias, time_bias = tensors
  # Before anything is launched: it also keeps wrong lengths inside the arrays.
  sequences = sequence_table(spec, context, q.shape[0], k.shape[0])
  float32 = jnp.float32
  # A kernel has a fixed number of arguments; its constants say which of them it
  # may read.
  nothing = jnp.zeros(1, float32)
  no_time = jnp.zeros(1, jnp.int32)
  timed = time_bias is not None
  seed = context.dropout_seed
  cuda = dispatch.platform() == 'cuda'
  half = 0.5 if gpu_plan.is_halved(spec, q.dtype.name, cuda) else 1.0
  return (
    q,
    k,
    v,
    sequences,
    nothing if position_bias is None else position_pairs(half * position_bias),
    time_cells(half * time_bias, is_ordered(context)) if timed else nothing,
    time_pairs(context.query_time) if timed else no_time,
    time_pairs(context.time) if timed else no_time,
    nothing if context.normaliser is None else context.normaliser,
    (no_time if seed is None else seed.reshape(1)).astype(jnp.uint32),
  )


def sequence_table(
  spec: Spec, context: Context, queries: int, keys: int
) -> jax.Array:
  """What the programs need to know of each sequence, the longest one first.

  The columns are: number of the first key token; number that the query at
  position 0 would have; tokens; position of the first query; position of the
  first target. Values are clipped so that wrong lengths, for which the output
  is NaN anyway, never lead beyond the arrays.

  Args:
    spec: options of the call.
    context: lengths of the call.
    queries: capacity Tq.
    keys: capacity T.

  Returns:
    `[B, 5]` int32.
  """
  lengths = context.lengths.astype(jnp.int32)
  # The length is bounded by what is left of the array after the start.
  start = jnp.clip(jagged.offsets(lengths), 0, keys)
  length = jnp.clip(lengths, 0, jnp.minimum(spec.max_len, keys - start))
  if context.query_lengths is None:
    first, asking = start, length
  else:
    asking = context.query_lengths.astype(jnp.int32)
    first = jnp.clip(jagged.offsets(asking), 0, queries)
    asking = jnp.clip(asking, 0, jnp.minimum(spec.max_queries, queries - first))
    asking = jnp.minimum(asking, length)
  # How many keys come before the first query.
  skipped = length - asking
  targets = jnp.zeros_like(length)
  if context.targets is not None:
    targets = jnp.clip(context.targets.astype(jnp.int32), 0, length)
  # `first - skipped` is where position 0 would be, so that a kernel finds
  # queries and keys by one position. It may be negative, the numbers of
  # real queries are not.
  table = [start, first - skipped, length, skipped, length - targets]
  # The longest first: programs started last should be the short ones.
  return jnp.stack(table, axis=1).astype(jnp.int32)[jnp.argsort(-length)]


def position_pairs(position_bias: jax.Array) -> jax.Array:
  """The position table as the kernels read it: neighbours by one load.

  Tiles reach beyond the table where they reach beyond a sequence, so its ends
  are repeated.

  Args:
    position_bias: `[entries]`.

  Returns:
    `[entries + 2 room - 1, 2]` float32: entries j - room and j - room + 1.
  """
  return _pairs(position_bias.astype(jnp.float32))


def time_pairs(times: jax.Array) -> jax.Array:
  """The times of tokens, laid out like `position_pairs`, as int32."""
  return _pairs(times.astype(jnp.int32))


def _pairs(values):
  line = jnp.pad(values, gpu_plan.ROOM, mode='edge')
  return jnp.stack([line[:-1], line[1:]], 1)


def time_cells(time_bias: jax.Array, ordered: jax.Array) -> jax.Array:
  """The time table as the kernels read it: one load for each pair of tokens.

  A bucket is a logarithm. Exponent and two bits of the mantissa of a time
  difference, as a float32, are nearly one: in such a cell at most one bucket
  begins. So its row says where that is, and what holds below and above.

  Args:
    time_bias: `[buckets]`.
    ordered: whether the times are, from `is_ordered`.

  Returns:
    `[640 + buckets + steps, 4]` float32. A row for each value of exponent and
    bits: where the upper bucket begins, the lower bucket's entry, the upper
    bucket's entry, the lower bucket's number, as an int32. Then one for each
    bucket, and a few that never begin: the least difference in it, as an int32;
    its entry; whether the times are ordered.
  """
  buckets = time_bias.shape[0]
  limit, bucket = cell_boundaries(buckets)
  entries = time_bias.astype(jnp.float32)
  upper = np.minimum(bucket + 1, buckets - 1)
  number = bucket.astype(np.int32).view(np.float32)  # its bits
  cells = jnp.stack([limit, entries[bucket], entries[upper], number], 1)
  starts = bucket_starts(buckets).view(np.float32)
  starts = np.pad(starts, (0, gpu_plan.STEPS), mode='edge')
  steps = [
    jnp.asarray(starts),
    jnp.pad(entries, (0, gpu_plan.STEPS), mode='edge'),
    jnp.broadcast_to(ordered.astype(jnp.float32), starts.shape),
    jnp.zeros(starts.shape, jnp.float32),
  ]
  return jnp.concatenate([cells, jnp.stack(steps, 1)])


def is_ordered(context: Context) -> jax.Array:
  """Whether the times of keys and of queries grow in every sequence."""
  asking = context.query_lengths
  asking = context.lengths if asking is None else asking
  keys = _grows(context.time, context.lengths)
  return keys & _grows(context.query_time, asking)


def _grows(times, lengths):
  tokens = times.shape[0]
  starts = jnp.clip(jagged.offsets(lengths.astype(jnp.int32)), 0, tokens)
  # Padding follows the last sequence, and is not looked at.
  number = jnp.arange(tokens, dtype=jnp.int32)
  free = (number >= jnp.sum(lengths)).at[starts].set(True, mode='drop')
  return jnp.all(free | (times >= jnp.roll(times, 1)))


@functools.cache
def cell_boundaries(buckets: int) -> tuple[np.ndarray, np.ndarray]:
  """`[640]` float32 and int32: where a cell's upper bucket begins; its lower.

  The reference is asked for the bucket of every boundary, so that its rounding
  is kept. Where no bucket begins in a cell, the boundary is infinite.

  Args:
    buckets: entries of the time table.
  """
  cells = np.arange(gpu_plan.CELLS + 1, dtype=np.uint32)
  # The least number of each cell, as the bits of a float32.
  first = cells << 21
  # A difference of 0 is one of 1; none lies between, none beyond 2**31.
  low = np.clip(first, _bits(1.0), _bits(2.0**31))
  bucket = _bucket_of(low, buckets)
  last = np.maximum(low[1:], low[:-1] + 1) - 1
  begins = _bucket_of(last, buckets) > bucket[:-1]
  high, low = last, low[:-1].copy()
  # Bisection of all cells at once: buckets only grow with the difference.
  while np.any(low < high):
    middle = low + (high - low) // 2
    reached = _bucket_of(middle, buckets) > bucket[:-1]
    high = np.where(reached, middle, high)
    low = np.where(reached, low, np.minimum(middle + 1, high))
  limit = np.where(begins, high.view(np.float32), np.float32(np.inf))
  return limit, bucket[:-1]


@functools.cache
def bucket_starts(buckets: int) -> np.ndarray:
  """`[buckets]` int32: the least time difference in each bucket.

  The largest int32 where there is none.

  Args:
    buckets: entries of the time table.
  """
  wanted = np.arange(buckets)
  low = np.zeros(buckets, np.int64)
  high = np.full(buckets, np.iinfo(np.int32).max, np.int64)
  while np.any(low < high):
    middle = (low + high) // 2
    reached = _bucket_of(_bits(middle), buckets) >= wanted
    high = np.where(reached, middle, high)
    low = np.where(reached, low, middle + 1)
  return low.astype(np.int32)


def _bits(number: float) -> np.uint32:
  return np.float32(number).view(np.uint32)


def _bucket_of(bits: np.ndarray, buckets: int) -> np.ndarray:
  """The reference's bucket of float32 differences, given as their bits."""
  # Also while a jit is traced, since the numbers become a constant.
  with jax.ensure_compile_time_eval():
    differences = jnp.asarray(bits.view(np.float32))
    return np.asarray(time_bucket(differences, buckets))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(spec, tensors, context):
  return _forward(spec, tensors, context)[0]


def _forward(spec, tensors, context):
  call = gpu_plan.call_of(tensors, context)
  inputs = inputs_of(spec, tensors, context)
  out, sums = _launch('forward', spec, call, *inputs)
  asking = context.query_lengths
  # An output holds garbage where no program writes.
  out = _only_real(out, context.lengths if asking is None else asking)
  # SiLU needs no output on the way back: its weights do not depend on one
  # another.
  if spec.mode == 'silu':
    return out, (tensors, context, None, sums)
  return out, (tensors, context, out, sums)


def _only_real(values, lengths):
  """Zeros in the padding tokens, which no kernel writes."""
  real = jnp.arange(values.shape[0], dtype=jnp.int32) < jnp.sum(lengths)
  real = real.reshape(-1, *[1] * (values.ndim - 1))
  return jnp.where(real, values, jnp.zeros((), values.dtype))


def _backward(spec, saved, dout):
  tensors, context, out, sums = saved
  call = gpu_plan.call_of(tensors, context)
  dout = dout.astype(tensors.v.dtype)
  delta = sums
  if out is not None:
    # What the softmax subtracts from each gradient of its weights; the kernels
    # multiply by the scale, which contains 1 / (1 - dropout), later.
    delta = jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), -1)
    delta *= 1.0 - spec.dropout
  inputs = (*inputs_of(spec, tensors, context), dout, sums, delta)
  (dq,) = _launch('backward_queries', spec, call, *inputs)
  dk, dv, dtargets = _launch('backward_keys', spec, call, *inputs)
  asking = context.query_lengths
  dq = _only_real(dq, context.lengths if asking is None else asking)
  dk, dv = (_only_real(x, context.lengths) for x in (dk, dv))
  dposition = dtime = None
  # Without a table there is no third kernel to run.
  if call.positions or call.buckets:
    tiles, times = _launch('backward_bias', spec, call, *inputs)
  if call.positions:
    dposition = sum_of_diagonals(tiles, call.positions, bool(spec.contextual))
    if call.targets:
      dposition += _sum_of_targets(spec, context, dtargets, call.positions)
    dposition = dposition.astype(tensors.position_bias.dtype)
  if call.buckets:
    dtime = jnp.sum(times, 0)[: call.buckets].astype(tensors.time_bias.dtype)
  return Tensors(dq, dk, dv, dposition, dtime), None


_attention.defvjp(_forward, _backward)


def sum_of_diagonals(
  tiles: jax.Array, positions: int, both_ways: bool
) -> jax.Array:
  """`[positions]`: the position table's gradient from the sums of its tiles.

  Args:
    tiles: `[differences, shares, b, b]`; tile (i, j) of queries and keys has
      difference i - j. The least difference is 0, or one minus the largest.
    positions: entries of the table.
    both_ways: whether there are negative differences.
  """
  # In a fixed order, unlike atomic additions of the programs.
  tiles = jnp.sum(tiles, 1)
  differences, block, _ = tiles.shape
  # Then `ahead` of the differences are negative, and as many positive.
  ahead = differences // 2 if both_ways else 0
  # Row r of 2b, flipped and read again as rows of 2b - 1, moves r to the left:
  # column c lands in c - r + b - 1.
  wide = jnp.pad(tiles[:, ::-1], ((0, 0), (0, 0), (0, block)))
  wide = wide.reshape(differences, -1)[:, : block * (2 * block - 1)]
  sums = jnp.sum(wide.reshape(differences, block, 2 * block - 1), 1)
  # A difference d holds keys at distances -d * b + (1 - b .. b - 1).
  # Each difference touches two runs of b entries: its own and the one before.
  # The largest difference is the most negative distance.
  behind = jnp.pad(sums[::-1, : block - 1], ((0, 1), (1, 0)))
  before = jnp.pad(sums[::-1, block - 1 :], ((1, 0), (0, 0)))
  line = (behind + before).reshape(-1)
  least = -(differences - ahead) * block  # distance of the first entry
  low = positions // 2 + least
  high = positions - low - line.size
  return jax.lax.pad(line, jnp.float32(0), ((low, high, 0),))


def _sum_of_targets(spec, context, dtargets, positions):
  """The part of that gradient which comes from queries that are targets.

  Args:
    spec: options of the call.
    context: lengths of the call.
    dtargets: `[T, H]` sums over the targets, for each key.
    positions: entries of the table.
  """
  lengths, history = context.lengths, context.lengths - context.targets
  # The table is shared by the heads.
  values = jnp.sum(dtargets, 1)
  start = jagged.offsets(lengths)
  # Distance r before the first target, in every sequence; 0 are the targets.
  back = jnp.arange(spec.max_len + 1, dtype=lengths.dtype)
  place = history[:, None] - back[None]
  token = jnp.where(place >= 0, start[:, None] + place, values.size)
  line = values.at[token].get(mode='fill', fill_value=0)
  line = jnp.sum(jnp.where(back[None] > 0, line, 0.0), 0)
  itself = jagged.to_dense(values, lengths, spec.max_len)
  place = jnp.arange(spec.max_len, dtype=lengths.dtype)
  targets = place[None] >= history[:, None]
  # The distance 0 is that of each target to itself.
  line = line.at[0].set(jnp.sum(jnp.where(targets, itself, 0.0)))
  # The last entry of the line, once turned, is the distance 0.
  low = positions // 2 + 1 - line.size
  high = positions - low - line.size
  return jax.lax.pad(line[::-1], jnp.float32(0), ((low, high, 0),))
