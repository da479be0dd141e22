"""Triton kernels over queries: the output, and the gradient of q.

They take the arguments of `gpu.inputs_of`. Importing this file imports triton;
`gpu.py` does so when a kernel is called. Every program finds its sequence in a
table of offsets and walks the tiles that its block sees, so the work grows with
the sum of the squared lengths. Scores are computed again in the backward pass.
Without atomics, results never vary.

`s`, a `gpu_plan.Constants`, is what a kernel is compiled for. Blocks of queries
are cut by the position in the sequence, not by the number of the query, so that
the diagonal is at the same place in all of them, even if q holds only the last
tokens of each sequence.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.triton_ranges import (
  keys_of_rows,
  masked_key,
  masked_keys,
)
from pallas_kernels.hstu_attention.triton_tiles import (
  LOG2E,
  bias_of,
  dropout_mask,
  load_rows,
  make_filled,
  row_sums,
  score_gradient,
  scores_of,
  sequence,
  sigmoid,
  store_rows,
  times_of,
  visibility_mask,
  zeros,
)


@triton.jit
def _forward_tile(
  acc,
  peak,
  total,
  q_tile,
  k,
  v,
  place,
  row,
  row_time,
  key0,
  key_time,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of keys gives to a block of queries."""
  start, query_base, length, skipped, history, head = place
  key = key0 + tl.arange(0, s.block_k)
  real = key < length
  # First, so that the last tile's product is still being computed.
  bias = bias_of(
    row[:, None],
    key[None, :],
    row_time[:, None],
    times_of(key_time, start, key, real, masked, s)[None, :],
    place,
    tables,
    masked,
    s,
  )
  k_tile = load_rows(
    k, start, key, real, head, s.heads, s.dqk, s.width_qk, masked
  )
  x = scores_of(q_tile, k_tile, bias, s)
  if s.silu:
    weight = x * sigmoid(x, s)
    if masked:
      seen = visibility_mask(row[:, None], key[None, :], history, s)
      weight = tl.where(seen, weight, 0.0)
  else:
    x *= LOG2E
    if masked:
      seen = visibility_mask(row[:, None], key[None, :], history, s)
      x = tl.where(seen, x, float('-inf'))
    # Softmax in one pass: rescales what was summed to the new maximum.
    higher = tl.maximum(peak, tl.max(x, 1))
    weight = tl.exp2(x - higher[:, None])
    fade = tl.exp2(peak - higher)
    peak = higher
    total = total * fade + tl.sum(weight, 1)
    acc *= fade[:, None]
  # After the total: dropout does not change what softmax divides by.
  if s.drop_below:
    keep = dropout_mask(
      tables, head, (start + row)[:, None], (start + key)[None, :], s
    )
    weight = tl.where(keep, weight, 0.0)
  value = load_rows(v, start, key, real, head, s.heads, s.dv, s.width_v, masked)
  acc = tl.dot(weight.to(value.dtype), value, acc, input_precision=s.precision)
  return acc, peak, total


@triton.jit
def forward(
  q,
  k,
  v,
  sequences,
  position_table,
  time_cells,
  query_time,
  key_time,
  normaliser,
  seed,
  out,
  lse,
  s: tl.constexpr,
):
  """Output `[Tq, H, dv]`, and the softmax's log2-sums `[Tq, H]`.

  A program is a block of queries of one head of one sequence; the latest
  blocks, which see most, come first.
  """
  program = tl.program_id(0)
  place = sequence(sequences, program // s.blocks, s)
  start, query_base, length, skipped, history, head = place
  # Blocks count from that of the first query; a tail may touch one more.
  block = skipped // s.block_q + s.blocks - 1 - program % s.blocks
  row0 = block * s.block_q
  # Programs are as many as the longest sequence needs.
  if row0 >= length:
    return
  row = row0 + tl.arange(0, s.block_q)
  real = (row >= skipped) & (row < length)
  q_tile = load_rows(
    q, query_base, row, real, head, s.heads, s.dqk, s.width_qk, True
  )
  row_time = times_of(query_time, query_base, row, real, True, s)
  tables = (position_table, time_cells, seed)
  acc = zeros(s.block_q, s.width_v)
  # Finite, since the difference of two infinities is NaN.
  peak = make_filled(s.block_q, -1e30)
  total = make_filled(s.block_q, 0.0)
  ranges = keys_of_rows(row0, length, history, s)
  # Two loops, one body: tiles visible as a whole are compiled without masks.
  for key0 in range(ranges[2], ranges[3], s.block_k):
    acc, peak, total = _forward_tile(
      acc,
      peak,
      total,
      q_tile,
      k,
      v,
      place,
      row,
      row_time,
      key0,
      key_time,
      tables,
      False,
      s,
    )
  for tile in range(0, masked_keys(ranges, s)):
    acc, peak, total = _forward_tile(
      acc,
      peak,
      total,
      q_tile,
      k,
      v,
      place,
      row,
      row_time,
      masked_key(ranges, tile, s),
      key_time,
      tables,
      True,
      s,
    )
  scale = make_filled(s.block_q, s.scale)
  if s.silu:
    if s.per_query:
      scale /= tl.load(normaliser + (query_base + row), mask=real, other=1.0)
  else:
    total = tl.maximum(total, 1e-30)  # rows of no query may have seen nothing
    scale /= total
    sums = lse + (query_base + row) * s.heads + head
    tl.store(sums, peak + tl.log2(total), mask=real)
  store_rows(
    out,
    query_base,
    row,
    real,
    head,
    acc * scale[:, None],
    s.heads,
    s.dv,
    s.width_v,
  )


@triton.jit
def _queries_tile(
  acc,
  q_tile,
  do_tile,
  k,
  v,
  place,
  row,
  row_time,
  row_lse,
  row_delta,
  key0,
  key_time,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  start, query_base, length, skipped, history, head = place
  key = key0 + tl.arange(0, s.block_k)
  real = key < length
  bias = bias_of(
    row[:, None],
    key[None, :],
    row_time[:, None],
    times_of(key_time, start, key, real, masked, s)[None, :],
    place,
    tables,
    masked,
    s,
  )
  k_tile = load_rows(
    k, start, key, real, head, s.heads, s.dqk, s.width_qk, masked
  )
  v_tile = load_rows(
    v, start, key, real, head, s.heads, s.dv, s.width_v, masked
  )
  _, gradient = score_gradient(
    scores_of(q_tile, k_tile, bias, s),
    tl.dot(do_tile, tl.trans(v_tile), input_precision=s.precision),
    row[:, None],
    key[None, :],
    row_lse[:, None],
    row_delta[:, None],
    place,
    tables,
    masked,
    s,
  )
  return tl.dot(
    gradient.to(k_tile.dtype), k_tile, acc, input_precision=s.precision
  )


@triton.jit
def backward_queries(
  q,
  k,
  v,
  sequences,
  position_table,
  time_cells,
  query_time,
  key_time,
  normaliser,
  seed,
  dout,
  lse,
  delta,
  dq,
  s: tl.constexpr,
):
  """Gradient of q; programs as in `forward`."""
  program = tl.program_id(0)
  place = sequence(sequences, program // s.blocks, s)
  start, query_base, length, skipped, history, head = place
  block = skipped // s.block_q + s.blocks - 1 - program % s.blocks
  row0 = block * s.block_q
  if row0 >= length:
    return
  row = row0 + tl.arange(0, s.block_q)
  real = (row >= skipped) & (row < length)
  q_tile = load_rows(
    q, query_base, row, real, head, s.heads, s.dqk, s.width_qk, True
  )
  do_tile = load_rows(
    dout, query_base, row, real, head, s.heads, s.dv, s.width_v, True
  )
  row_time = times_of(query_time, query_base, row, real, True, s)
  # Rows that are not queries: exp2(x - inf) makes their weights zero.
  row_lse = row_sums(lse, query_base, row, real, head, float('inf'), s)
  row_delta = row_sums(delta, query_base, row, real, head, 0.0, s)
  tables = (position_table, time_cells, seed)
  acc = zeros(s.block_q, s.width_qk)
  ranges = keys_of_rows(row0, length, history, s)
  for key0 in range(ranges[2], ranges[3], s.block_k):
    acc = _queries_tile(
      acc,
      q_tile,
      do_tile,
      k,
      v,
      place,
      row,
      row_time,
      row_lse,
      row_delta,
      key0,
      key_time,
      tables,
      False,
      s,
    )
  for tile in range(0, masked_keys(ranges, s)):
    acc = _queries_tile(
      acc,
      q_tile,
      do_tile,
      k,
      v,
      place,
      row,
      row_time,
      row_lse,
      row_delta,
      masked_key(ranges, tile, s),
      key_time,
      tables,
      True,
      s,
    )
  # The gradient is linear in both factors, so they wait for the end.
  acc *= s.alpha * s.scale
  if s.per_query:
    divisor = tl.load(normaliser + (query_base + row), mask=real, other=1.0)
    acc /= divisor[:, None]
  store_rows(dq, query_base, row, real, head, acc, s.heads, s.dqk, s.width_qk)
