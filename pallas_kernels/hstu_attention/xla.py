"""Blocked attention in plain XLA: the CPU path and the fallback everywhere.

Query blocks are grouped by their index inside the sequence: block number i of
any sequence reads exactly the keys 0 .. (i+1) * block of that sequence, so each
group is dense, and its members are the sequences longer than i * block. They
are walked in chunks that fit the cache, by a loop whose trip count is that
number of sequences: work follows the lengths, no T x T and no B x N x N exists.
The backward pass recomputes each chunk (nothing but q, k, v is kept).

Where q holds the last tokens only, the sequences are grouped by their length
instead: a group reads as many keys as its longest member may have.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import manual_axes
from pallas_kernels.hashing import keep_mask
from pallas_kernels.hstu_attention import masks
from pallas_kernels.hstu_attention.reference import time_bucket
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors
from pallas_kernels.hstu_attention.xla_plan import QueryRows, groups
from pallas_kernels.jagged import api as jagged


def attention(spec: Spec, tensors: Tensors, context: Context) -> jax.Array:
  """Computes `api.hstu_attention` block by block."""
  return _attention(spec, tensors, context).astype(tensors.v.dtype)


class _Chunk(NamedTuple):
  """What is computed at once: c sequences, b query rows, w keys.

  queries and keys are token numbers in q and k, `[c, b]` and `[c, w]`, one
  beyond the last where there is no token: scatters drop those, and `mask`
  `[c, b, w]` keeps what gathers read there out of every sum.
  """

  queries: jax.Array
  keys: jax.Array
  mask: jax.Array
  relative: jax.Array | None  # [b, w] or [c, b, w], into the position table
  target: jax.Array | None  # [c, b]
  target_relative: jax.Array | None  # [c, w]
  buckets: jax.Array | None  # [c, b, w]
  kept: jax.Array | None  # [c, H, b, w]
  divisor: jax.Array | None  # [c, b]


class _Walk(NamedTuple):
  """The sequences by falling length, and where each starts in k and q."""

  order: jax.Array
  key_start: jax.Array
  query_start: jax.Array


def _walk(context: Context) -> _Walk:
  start = jagged.offsets(context.lengths)
  queries = context.query_lengths
  return _Walk(
    # The members of a group, those above a length, are then neighbours.
    jnp.argsort(-context.lengths),
    start,
    start if queries is None else jagged.offsets(queries),
  )


def _members(group: QueryRows, row, context: Context):
  """The first member of a group in the walk, and the one after the last."""
  lengths = context.lengths
  if context.query_lengths is None:
    # The longest come first, so the members are a prefix of the walk.
    return 0, jnp.sum(lengths > row)
  first = jnp.sum(lengths > group.longest)
  return first, jnp.sum(lengths > group.shortest)


def _relative(column, row, n: int):
  # Only masked pairs can leave the table.
  return jnp.clip(column - row + n - 1, 0, 2 * n - 2)


def _take(values, token):
  return values.at[token].get(mode='clip')


def _take_vectors(values, token):
  # Zeros where there is no token: a mask would not keep another token's NaN out
  # of a product.
  return values.at[token].get(mode='fill', fill_value=0)


def _chunk(spec, tensors, context, walk, group, row, first, last) -> _Chunk:
  """Members first .. first + chunk, below last; rows row .. row + block."""
  q, k, _, position_bias, time_bias = tensors
  tail = context.query_lengths is not None
  member = first + jnp.arange(group.chunk)
  user = walk.order.at[member].get(mode='clip')
  length = context.lengths[user]
  # The last chunk may run past the group; such members have no tokens.
  length = jnp.where(member < last, length, 0)
  column = group.columns(row, length if tail else None)
  row = row + jnp.arange(group.block)
  if tail:
    queries = jnp.where(member < last, context.query_lengths[user], 0)
    # A row counts from the first query; its position differs from sequence to
    # sequence.
    place = (length - queries)[:, None] + row[None]
  else:
    queries, place = length, row[None]

  def number(start, index, count, capacity):
    # Otherwise a short sequence would go on into the next one.
    token = start[user][:, None] + index
    there = (index >= 0) & (index < count[:, None])
    return jnp.where(there, token, capacity)

  query = number(walk.query_start, row[None], queries, q.shape[0])
  key = number(walk.key_start, column, length, k.shape[0])
  # Rows beyond a sequence would see its last keys. A column below zero is none.
  real = row[None, :, None] < queries[:, None, None]
  real &= column[:, None] >= 0
  anchor, targets = place, None
  if context.targets is not None:
    targets = context.targets[user]
    anchor = jnp.minimum(place, (length - targets)[:, None])
  if spec.window is None and not spec.contextual and targets is None:
    # Plain causal attention needs no orders: a real query comes before the end
    # of its sequence, and so does all that it sees.
    mask = column[:, None] <= place[:, :, None]
    if tail:
      mask &= column[:, None] < length[:, None, None]
  else:
    none = jnp.zeros_like(length) if targets is None else targets
    # Orders follow from the positions, so nothing needs to be gathered.
    end = masks.target_limit(length, none, spec.contextual)[:, None]
    mask = masks.is_visible(
      spec,
      place[:, :, None] == column[:, None],
      masks.order(place, end, spec.contextual)[:, :, None],
      masks.order(column, end, spec.contextual)[:, None],
      end[:, :, None],
    )
    mask &= column[:, None] < length[:, None, None]

  relative = target = target_relative = None
  if position_bias is not None:
    n = (position_bias.shape[0] + 1) // 2
    if tail:
      # Positions differ by member, so each has a bias of its own.
      behind = column
      if targets is not None:
        behind = jnp.minimum(behind, (length - targets)[:, None])
      relative = _relative(behind[:, None], anchor[:, :, None], n)
    else:
      # Row and column are positions: one bias serves all members.
      relative = _relative(column, row[:, None], n)
      if targets is not None:
        # Except for targets, which are as far from a key as the first one is,
        # and at distance zero from each other.
        high = (length - targets)[:, None]
        target = place >= high
        target_relative = _relative(jnp.minimum(column, high), high, n)
  buckets = kept = divisor = None
  if time_bias is not None:
    asked = _take(context.query_time, query)[:, :, None]
    delta = asked - _take(context.time, key)[:, None]
    buckets = time_bucket(delta, time_bias.shape[0])
  if spec.dropout:
    # The number among all tokens, also where only a tail asks.
    number = walk.key_start[user][:, None] + place
    kept = keep_mask(
      context.dropout_seed,
      jnp.arange(q.shape[1])[None, :, None, None],
      number[:, None, :, None],
      key[:, None, None, :],
      spec.dropout,
    )
  if spec.normaliser is None:
    # Not another token's, whose 0 would make gradients of zeros NaN.
    divisor = context.normaliser.at[query].get(mode='fill', fill_value=1.0)
  return _Chunk(
    query,
    key,
    mask & real,
    relative,
    target,
    target_relative,
    buckets,
    kept,
    divisor,
  )


def _output(spec: Spec, chunk: _Chunk, q, k, v, position, table, time_bias):
  """`[c, b, H, dv]` float32 of one chunk, from its rows of q, k and v.

  Args:
    spec: options of the call.
    chunk: masks and indices.
    q: `[c, b, H, dqk]`; k and v `[c, w, H, d]`.
    k: keys.
    v: values.
    position: `[b, w]` position bias of the whole chunk; None where it differs
      from sequence to sequence, or there is none.
    table: the position table `[2n - 1]`, for sequences where the bias differs.
    time_bias: time table `[buckets]`, or None.
  """
  f32 = jnp.float32
  scores = jnp.einsum('cihd,cjhd->chij', q, k, preferred_element_type=f32)
  scores *= spec.alpha
  if position is not None:
    bias = position.astype(f32)[None]
    if chunk.target is not None:
      candidates = table.astype(f32)[chunk.target_relative]
      bias = jnp.where(chunk.target[:, :, None], candidates[:, None], bias)
    scores += bias[:, None]
  elif table is not None:
    scores += table.astype(f32)[chunk.relative][:, None]
  if time_bias is not None:
    scores += time_bias.astype(f32)[chunk.buckets][:, None]
  mask = chunk.mask[:, None]
  if spec.mode == 'silu':
    weights = jnp.where(mask, jax.nn.silu(scores), 0.0)
    if chunk.divisor is None:
      weights /= spec.normaliser
    else:
      weights /= chunk.divisor[:, None, :, None]
  else:
    # Not -inf: rows of padding see nothing and would become NaN.
    scores = jnp.where(mask, scores, -1e30)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0.0)
  if chunk.kept is not None:
    weights = jnp.where(chunk.kept, weights / (1.0 - spec.dropout), 0.0)
  return jnp.einsum(
    'chij,cjhd->cihd', weights.astype(v.dtype), v, preferred_element_type=f32
  )


def _shared_positions(group: QueryRows, row, tensors: Tensors, tail: bool):
  """The `[b, w]` position bias all members share and its rows in the table."""
  # One small matrix for the block, whose gradient is summed in its own shape
  # and scattered into the table once.
  table = tensors.position_bias
  if table is None or tail:
    return None, None
  n = (table.shape[0] + 1) // 2
  column = group.columns(row)
  rows = row + jnp.arange(group.block)
  relative = _relative(column, rows[:, None], n)
  return table[relative], relative


def _for_each_block(plan, context, carry, start, visit, finish):
  """Runs `visit` over the chunks of every block of every group.

  Args:
    plan: groups.
    context: lengths.
    carry: what is passed along.
    start: (group, row) -> state of a block.
    visit: (group, row, first member of the chunk, the one after the last of
      the block, carry, state) -> (carry, state).
    finish: (carry, state) -> carry.
  """
  # Inside `shard_map`, zeros that sums begin with differ as the sums do.
  axes = manual_axes.varying_axes(*context)

  def vary(tree):
    return jax.tree.map(lambda x: manual_axes.vary_over(axes, x), tree)

  carry = vary(carry)
  for group in plan:
    # The group is bound now; the loop variable will have moved on.
    def block(i, carry, group=group):
      row = group.row + i * group.block
      first, last = _members(group, row, context)
      # A number known at run time alone: the work follows the lengths. Such a
      # loop has no transpose, hence the rule of our own below.
      chunks = (last - first + group.chunk - 1) // group.chunk

      def body(step, both):
        return visit(group, row, first + step * group.chunk, last, *both)

      state = vary(start(group, row))
      return finish(*lax.fori_loop(0, chunks, body, (carry, state)))

    # A loop of one step would only hide the block from XLA.
    if group.blocks == 1:
      carry = block(0, carry)
    else:
      carry = lax.fori_loop(0, group.blocks, block, carry)
  return carry


def _plan(spec, context):
  tail = context.query_lengths is not None
  batch = context.lengths.shape[0]
  return tail, groups(spec, batch, tail)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(spec, tensors, context):
  return _forward(spec, tensors, context)[0]


def _forward(spec, tensors, context):
  q, k, v, table, time_bias = tensors
  tail, plan = _plan(spec, context)
  walk = _walk(context)

  def start(group, row):
    return _shared_positions(group, row, tensors, tail)[0]

  def visit(group, row, first, last, out, position):
    chunk = _chunk(spec, tensors, context, walk, group, row, first, last)
    part = _output(
      spec,
      chunk,
      _take_vectors(q, chunk.queries),
      _take_vectors(k, chunk.keys),
      _take_vectors(v, chunk.keys),
      position,
      table,
      time_bias,
    )
    # Every query is in one block of one chunk: nothing is to be added.
    return out.at[chunk.queries].set(part, mode='drop'), position

  out = jnp.zeros((q.shape[0], *v.shape[1:]), jnp.float32)
  out = _for_each_block(
    plan, context, out, start, visit, lambda out, position: out
  )
  return out, (tensors, context)


def _backward(spec, saved, grad):
  tensors, context = saved
  q, k, v, table, time_bias = tensors
  tail, plan = _plan(spec, context)
  walk = _walk(context)
  f32 = jnp.float32

  def start(group, row):
    position, relative = _shared_positions(group, row, tensors, tail)
    zeros = None if position is None else jnp.zeros(position.shape, f32)
    return position, relative, zeros

  def visit(group, row, first, last, total, state):
    position, relative, dposition = state
    chunk = _chunk(spec, tensors, context, walk, group, row, first, last)
    # Computes the scores of the chunk again; only they are alive.
    _, pullback = jax.vjp(
      functools.partial(_output, spec, chunk),
      _take_vectors(q, chunk.queries),
      _take_vectors(k, chunk.keys),
      _take_vectors(v, chunk.keys),
      position,
      table,
      time_bias,
    )
    gq, gk, gv, gposition, gtable, gtime = pullback(
      _take_vectors(grad, chunk.queries)
    )
    dq, dk, dv, dtable, dtime = total
    # A query has one chunk and a key several, one for each block after it.
    dq = dq.at[chunk.queries].set(gq.astype(f32), mode='drop')
    dk = dk.at[chunk.keys].add(gk.astype(f32), mode='drop')
    dv = dv.at[chunk.keys].add(gv.astype(f32), mode='drop')
    if dposition is not None:
      dposition += gposition.astype(f32)
    # Where all members share their bias, nothing reaches the table itself.
    if dtable is not None and (position is None or chunk.target is not None):
      dtable += gtable.astype(f32)
    if dtime is not None:
      dtime += gtime.astype(f32)
    return (dq, dk, dv, dtable, dtime), (position, relative, dposition)

  def finish(total, state):
    _, relative, dposition = state
    if dposition is None:
      return total
    dq, dk, dv, dtable, dtime = total
    return dq, dk, dv, dtable.at[relative].add(dposition), dtime

  zeros = tuple(None if x is None else jnp.zeros(x.shape, f32) for x in tensors)
  grads = _for_each_block(plan, context, zeros, start, visit, finish)
  grads = Tensors(
    *(
      None if x is None else g.astype(x.dtype)
      for g, x in zip(grads, tensors, strict=True)
    )
  )
  return grads, None


_attention.defvjp(_forward, _backward)
