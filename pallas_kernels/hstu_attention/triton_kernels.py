"""Triton kernels over queries: the output, and the gradient of q.

They take the arguments of `gpu.inputs_of`. Importing this file imports triton;
`gpu.py` does so when a kernel is called. Every program finds its sequence in a
table of offsets and walks the tiles that its block sees, so the work grows with
the sum of the squared lengths. Scores are computed again in the backward pass.
Without atomics, results never vary.

The heads share both bias tables. So a program takes `s.group` heads, and what a
tile needs of the tables it computes once. Arrays of the heads are tuples.

`s`, a `gpu_plan.Constants`, is what a kernel is compiled for. Blocks of queries
are cut by the position in the sequence, not by the number of the query, so that
the diagonal is at the same place in all of them, even if q holds only the last
tokens of each sequence.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.triton_bias_tiles import (
  bias_of,
  buckets_of,
  keys_span,
  rows_span,
  times_of,
)
from pallas_kernels.hstu_attention.triton_ranges import (
  keys_of_rows,
  masked_key,
  masked_keys,
)
from pallas_kernels.hstu_attention.triton_tiles import (
  LOG2E,
  dropout_mask,
  halve,
  load_rows,
  make_filled,
  row_sums,
  score_gradient,
  scores_of,
  sequence,
  silu,
  store_rows,
  visibility_mask,
  zeros,
)


@triton.jit
def _forward_head(
  state,
  q_tile,
  k,
  v,
  place,
  row,
  key,
  real,
  bias,
  seen,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of keys gives to a block of queries of one head."""
  start, query_base, length, skipped, history, head = place
  acc, peak, total = state
  k_tile = load_rows(
    k, start, key, real, head, s.heads, s.dqk, s.width_qk, masked
  )
  x = scores_of(q_tile, k_tile, bias, s)
  if s.silu:
    weight = silu(x, s)
    if masked:
      weight = tl.where(seen, weight, 0.0)
  else:
    x *= LOG2E
    if masked:
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
def _forward_tile(
  states,
  q_tiles,
  k,
  v,
  place,
  rows,
  key0,
  buckets,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of keys gives to a block of queries."""
  group: tl.constexpr = s.group
  row, key, real, bias, seen = _shared_by_heads(
    place, rows, key0, buckets, tables, masked, s
  )
  start, query_base, length, skipped, history, head = place
  found = ()
  for one in tl.static_range(group):
    state = _forward_head(
      states[one],
      q_tiles[one],
      k,
      v,
      (start, query_base, length, skipped, history, head + one),
      row,
      key,
      real,
      bias,
      seen,
      tables,
      masked,
      s,
    )
    found = found + (state,)
  return found


@triton.jit
def _shared_by_heads(
  place, rows, key0, buckets, tables, masked: tl.constexpr, s: tl.constexpr
):
  """Positions, bias and mask of a tile."""
  start, query_base, length, skipped, history, head = place
  row0, row, row_time, row_span = rows
  key = key0 + tl.arange(0, s.block_k)
  real = key < length
  # First, so that the last tile's product is still being computed.
  bias = bias_of(row0, key0, row_time, buckets, place, tables, True, s)
  if masked:
    seen = visibility_mask(row[:, None], key[None, :], history, s)
  else:
    seen = real
  return row, key, real, bias, seen


@triton.jit
def _rows_of(place, row0, query_time, s: tl.constexpr):
  """A block of queries: which, their times, and the first and last of these."""
  start, query_base, length, skipped, history, head = place
  row = row0 + tl.arange(0, s.block_q)
  real = (row >= skipped) & (row < length)
  times = times_of(query_time, place[1], row0, s.block_q, True, s)
  return real, (row0, row, times, rows_span(place, row0, query_time, s))


@triton.jit
def _buckets_of_tile(place, rows, key0, tables, s: tl.constexpr):
  """Which buckets the pairs of a tile of keys may lie in."""
  return buckets_of(rows[3], keys_span(place, key0, tables[4], s), tables[1], s)


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

  A program is a block of queries of some heads of one sequence; the latest
  blocks, which see most, come first.
  """
  group: tl.constexpr = s.group
  program = tl.program_id(0)
  place = sequence(sequences, program // s.blocks * s.group, s)
  start, query_base, length, skipped, history, head = place
  # Blocks count from that of the first query; a tail may touch one more.
  block = skipped // s.block_q + s.blocks - 1 - program % s.blocks
  row0 = block * s.block_q
  # Programs are as many as the longest sequence needs.
  if row0 >= length:
    return
  real, rows = _rows_of(place, row0, query_time, s)
  row = rows[1]
  tables = (position_table, time_cells, seed, query_time, key_time)
  q_tiles = ()
  states = ()
  for one in tl.static_range(group):
    q_tile = load_rows(
      q, query_base, row, real, head + one, s.heads, s.dqk, s.width_qk, True
    )
    q_tiles = q_tiles + (halve(q_tile, s),)
    # The peak is finite, since the difference of two infinities is NaN.
    peak = make_filled(s.block_q, -1e30)
    total = make_filled(s.block_q, 0.0)
    states = states + ((zeros(s.block_q, s.width_v), peak, total),)
  ranges = keys_of_rows(row0, length, history, s)
  # Two loops, one body: tiles visible as a whole are compiled without masks.
  buckets = _buckets_of_tile(place, rows, ranges[2], tables, s)
  for key0 in range(ranges[2], ranges[3], s.block_k):
    # Found ahead: a tile's work is chosen by them.
    later = _buckets_of_tile(place, rows, key0 + s.block_k, tables, s)
    states = _forward_tile(
      states, q_tiles, k, v, place, rows, key0, buckets, tables, False, s
    )
    buckets = later
  for tile in range(0, masked_keys(ranges, s)):
    key0 = masked_key(ranges, tile, s)
    buckets = _buckets_of_tile(place, rows, key0, tables, s)
    states = _forward_tile(
      states, q_tiles, k, v, place, rows, key0, buckets, tables, True, s
    )
  for one in tl.static_range(group):
    acc, peak, total = states[one]
    scale = make_filled(s.block_q, s.scale)
    if s.silu:
      if s.per_query:
        scale /= tl.load(normaliser + (query_base + row), mask=real, other=1.0)
    else:
      total = tl.maximum(total, 1e-30)  # rows of no query may have seen nothing
      scale /= total
      sums = lse + (query_base + row) * s.heads + (head + one)
      tl.store(sums, peak + tl.log2(total), mask=real)
    store_rows(
      out,
      query_base,
      row,
      real,
      head + one,
      acc * scale[:, None],
      s.heads,
      s.dv,
      s.width_v,
    )


@triton.jit
def _queries_tile(
  accs,
  tiles,
  k,
  v,
  place,
  rows,
  key0,
  buckets,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of keys gives to the gradients of a block of queries."""
  group: tl.constexpr = s.group
  row, key, real, bias, seen = _shared_by_heads(
    place, rows, key0, buckets, tables, masked, s
  )
  start, query_base, length, skipped, history, head = place
  found = ()
  for one in tl.static_range(group):
    q_tile, do_tile, row_lse, row_delta = tiles[one]
    k_tile = load_rows(
      k, start, key, real, head + one, s.heads, s.dqk, s.width_qk, masked
    )
    v_tile = load_rows(
      v, start, key, real, head + one, s.heads, s.dv, s.width_v, masked
    )
    _, gradient = score_gradient(
      scores_of(q_tile, k_tile, bias, s),
      tl.dot(do_tile, tl.trans(v_tile), input_precision=s.precision),
      row[:, None],
      key[None, :],
      row_lse[:, None],
      row_delta[:, None],
      seen,
      (start, query_base, length, skipped, history, head + one),
      tables,
      masked,
      s,
    )
    acc = tl.dot(
      gradient.to(k_tile.dtype), k_tile, accs[one], input_precision=s.precision
    )
    found = found + (acc,)
  return found


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
  group: tl.constexpr = s.group
  program = tl.program_id(0)
  place = sequence(sequences, program // s.blocks * s.group, s)
  start, query_base, length, skipped, history, head = place
  block = skipped // s.block_q + s.blocks - 1 - program % s.blocks
  row0 = block * s.block_q
  if row0 >= length:
    return
  real, rows = _rows_of(place, row0, query_time, s)
  row = rows[1]
  tables = (position_table, time_cells, seed, query_time, key_time)
  tiles = ()
  accs = ()
  for one in tl.static_range(group):
    q_tile = load_rows(
      q, query_base, row, real, head + one, s.heads, s.dqk, s.width_qk, True
    )
    do_tile = load_rows(
      dout, query_base, row, real, head + one, s.heads, s.dv, s.width_v, True
    )
    # Rows that are not queries: exp2(x - inf) makes their weights zero.
    row_lse = row_sums(lse, query_base, row, real, head + one, float('inf'), s)
    row_delta = row_sums(delta, query_base, row, real, head + one, 0.0, s)
    tiles = tiles + ((halve(q_tile, s), do_tile, row_lse, row_delta),)
    accs = accs + (zeros(s.block_q, s.width_qk),)
  ranges = keys_of_rows(row0, length, history, s)
  buckets = _buckets_of_tile(place, rows, ranges[2], tables, s)
  for key0 in range(ranges[2], ranges[3], s.block_k):
    # Found ahead: a tile's work is chosen by them.
    later = _buckets_of_tile(place, rows, key0 + s.block_k, tables, s)
    accs = _queries_tile(
      accs, tiles, k, v, place, rows, key0, buckets, tables, False, s
    )
    buckets = later
  for tile in range(0, masked_keys(ranges, s)):
    key0 = masked_key(ranges, tile, s)
    buckets = _buckets_of_tile(place, rows, key0, tables, s)
    accs = _queries_tile(
      accs, tiles, k, v, place, rows, key0, buckets, tables, True, s
    )
  for one in tl.static_range(group):
    # The gradient is linear in both factors, so they wait for the end.
    acc = accs[one] * (s.alpha * s.slope)
    if s.per_query:
      divisor = tl.load(normaliser + (query_base + row), mask=real, other=1.0)
      acc /= divisor[:, None]
    store_rows(
      dq, query_base, row, real, head + one, acc, s.heads, s.dqk, s.width_qk
    )
