"""Blocked attention in plain XLA: the CPU path and the fallback everywhere.

Query blocks are grouped by their index inside the sequence: block number i of
any sequence reads exactly the keys 0 .. (i+1) * block of that sequence, so each
group is dense, and its members are the sequences longer than i * block. They
are walked in chunks that fit the cache, by a loop whose trip count is that
number of sequences: work follows the lengths, no T x T and no B x N x N exists.
The backward pass recomputes each chunk (nothing but q, k, v is kept).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.hstu_attention.reference import keep_mask, time_bucket
from pallas_kernels.jagged import api as jagged

MAX_BLOCKS = 8  # groups a program unrolls into; bounds the compile time
MIN_BLOCK = 40
CHUNK_ELEMENTS = 1 << 17  # scores alive at once, per head


def block_size(max_len: int) -> int:
  """Query rows of a block: a multiple of 8, at most MAX_BLOCKS a sequence."""
  smallest = -(-max_len // MAX_BLOCKS)
  return max(MIN_BLOCK, -(-smallest // 8) * 8)


def attention(
  q,
  k,
  v,
  lengths,
  position_bias,
  time_bias,
  query_time,
  time,
  dropout_seed,
  *,
  max_len,
  mode,
  alpha,
  normaliser,
  dropout,
):
  """See `api.hstu_attention`."""
  static = (max_len, mode, alpha, normaliser, dropout)
  out = _attention(
    static,
    (q, k, v, position_bias, time_bias),
    (lengths, query_time, time, dropout_seed),
  )
  # A length beyond max_len would lose tokens in silence.
  return jnp.where(jnp.any(lengths > max_len), jnp.nan, out).astype(v.dtype)


def _scores_to_output(
  static, mask, buckets, kept, q, k, v, position, time_bias
):
  """One chunk: q `[c, b, H, dqk]`, k, v `[c, w, H, d]`, mask `[c, b, w]`."""
  _, mode, alpha, normaliser, dropout = static
  f32 = jnp.float32
  scores = jnp.einsum('cihd,cjhd->chij', q, k, preferred_element_type=f32)
  scores *= alpha
  if position is not None:
    scores += position.astype(f32)[None, None]
  if time_bias is not None:
    scores += time_bias.astype(f32)[buckets][:, None]
  mask = mask[:, None]
  if mode == 'silu':
    weights = jnp.where(mask, jax.nn.silu(scores) / normaliser, 0.0)
  else:
    scores = jnp.where(mask, scores, -1e30)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0.0)
  if kept is not None:
    weights = jnp.where(kept, weights / (1.0 - dropout), 0.0)
  return jnp.einsum(
    'chij,cjhd->cihd', weights.astype(v.dtype), v, preferred_element_type=f32
  )


def _groups(max_len, batch):
  """Static plan: (index, block, keys, sequences a chunk) of each group."""
  block = block_size(max_len)
  for i in range(-(-max_len // block)):
    width = (i + 1) * block
    chunk = max(1, min(batch, CHUNK_ELEMENTS // (block * width)))
    yield i, block, width, chunk


def _trips(group, lengths):
  """Chunks the group has work for."""
  index, block, _, chunk = group
  members = jnp.sum(lengths > index * block)
  return (members + chunk - 1) // chunk


def _group_positions(group, position_bias):
  """The group's `[block, width]` position bias and its rows in the table."""
  if position_bias is None:
    return None, None
  index, block, width, _ = group
  n = (position_bias.shape[0] + 1) // 2
  row = index * block + jnp.arange(block)
  relative = jnp.arange(width)[None] - row[:, None] + n - 1
  relative = jnp.clip(relative, 0, 2 * n - 2)
  return position_bias[relative], relative


def _chunk_tokens(group, step, order, starts, lengths, capacity):
  """Token numbers of a chunk's queries and keys, and the causal mask.

  Tokens that do not exist have the number `capacity`: scatters drop them,
  gathers read another token instead, which the mask keeps out of every sum.
  """
  index, block, width, chunk = group
  member = step * chunk + jnp.arange(chunk)
  user = order.at[member].get(mode='clip')
  length = lengths[user]
  length = jnp.where(member < order.shape[0], length, 0)
  row = index * block + jnp.arange(block)
  column = jnp.arange(width)

  def number(position):
    token = starts[user][:, None] + position[None]
    return jnp.where(position[None] < length[:, None], token, capacity)

  mask = column[None] <= row[:, None]
  mask = mask[None] & (row[None, :, None] < length[:, None, None])
  return number(row), number(column), mask


def _prepare(lengths):
  """Sequences by falling length, and where each starts."""
  order = jnp.argsort(-lengths)
  return order, jagged.offsets(lengths)


def _take(values, token):
  return values.at[token].get(mode='clip')


def _chunk_inputs(static, tensors, context, queries, keys):
  """What a chunk's scores need besides q, k, v: time buckets, kept weights."""
  _, query_time, time, seed = context
  time_bias, heads, dropout = tensors[-1], tensors[0].shape[1], static[-1]
  buckets = kept = None
  if time_bias is not None:
    delta = _take(query_time, queries)[:, :, None] - _take(time, keys)[:, None]
    buckets = time_bucket(delta, time_bias.shape[0])
  if dropout:
    head = jnp.arange(heads)[None, :, None, None]
    kept = keep_mask(
      seed, head, queries[:, None, :, None], keys[:, None, None, :], dropout
    )
  return buckets, kept


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static, tensors, context):
  return _forward(static, tensors, context)[0]


def _forward(static, tensors, context):
  q, k, v, position_bias, time_bias = tensors
  lengths = context[0]
  capacity, heads, dv = v.shape
  order, starts = _prepare(lengths)
  out = jnp.zeros((capacity, heads, dv), jnp.float32)
  for group in _groups(static[0], lengths.shape[0]):
    index, block, width, chunk = group
    position, _ = _group_positions(group, position_bias)

    def body(step, out, group=group, position=position):
      queries, keys, mask = _chunk_tokens(
        group, step, order, starts, lengths, capacity
      )
      inputs = _chunk_inputs(static, tensors, context, queries, keys)
      part = _scores_to_output(
        static,
        mask,
        *inputs,
        _take(q, queries),
        _take(k, keys),
        _take(v, keys),
        position,
        time_bias,
      )
      return out.at[queries].set(part, mode='drop')

    out = lax.fori_loop(0, _trips(group, lengths), body, out)
  return out, (tensors, context)


def _backward(static, saved, grad):
  tensors, context = saved
  q, k, v, position_bias, time_bias = tensors
  lengths = context[0]
  capacity = v.shape[0]
  order, starts = _prepare(lengths)
  f32 = jnp.float32
  zeros = [None if x is None else jnp.zeros(x.shape, f32) for x in tensors]
  dq, dk, dv, dposition, dtime = zeros
  for group in _groups(static[0], lengths.shape[0]):
    position, relative = _group_positions(group, position_bias)
    dblock = None if position is None else jnp.zeros(position.shape, f32)

    def body(step, carry, group=group, position=position):
      dq, dk, dv, dblock, dtime = carry
      queries, keys, mask = _chunk_tokens(
        group, step, order, starts, lengths, capacity
      )
      inputs = _chunk_inputs(static, tensors, context, queries, keys)
      _, pullback = jax.vjp(
        functools.partial(_scores_to_output, static, mask, *inputs),
        _take(q, queries),
        _take(k, keys),
        _take(v, keys),
        position,
        time_bias,
      )
      gq, gk, gv, gblock, gtime = pullback(_take(grad, queries))
      dq = dq.at[queries].set(gq.astype(f32), mode='drop')
      dk = dk.at[keys].add(gk.astype(f32), mode='drop')
      dv = dv.at[keys].add(gv.astype(f32), mode='drop')
      if dblock is not None:
        dblock += gblock.astype(f32)
      if dtime is not None:
        dtime += gtime.astype(f32)
      return dq, dk, dv, dblock, dtime

    dq, dk, dv, dblock, dtime = lax.fori_loop(
      0, _trips(group, lengths), body, (dq, dk, dv, dblock, dtime)
    )
    if dposition is not None:
      dposition = dposition.at[relative].add(dblock)
  grads = (dq, dk, dv, dposition, dtime)
  grads = tuple(
    None if x is None else g.astype(x.dtype)
    for g, x in zip(grads, tensors, strict=True)
  )
  return grads, None


_attention.defvjp(_forward, _backward)
