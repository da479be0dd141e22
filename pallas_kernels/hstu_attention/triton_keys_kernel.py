"""The Triton kernel for the gradients of k and v.

Importing this file imports triton; `gpu.py` does so when a kernel is called.
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
  masked_row,
  masked_rows,
  rows_of_keys,
)
from pallas_kernels.hstu_attention.triton_tiles import (
  halve,
  load_rows,
  make_filled,
  row_sums,
  score_gradient,
  scores_of,
  sequence,
  store_rows,
  visibility_mask,
  zeros,
)


@triton.jit
def _keys_head(
  state,
  tiles,
  q,
  dout,
  place,
  row,
  key,
  real,
  bias,
  seen,
  normaliser,
  lse,
  delta,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of queries gives to a block of keys of one head."""
  start, query_base, length, skipped, history, head = place
  dk_acc, dv_acc, target_acc = state
  k_tile, v_tile = tiles
  q_tile = load_rows(
    q, query_base, row, real, head, s.heads, s.dqk, s.width_qk, masked
  )
  do_tile = load_rows(
    dout, query_base, row, real, head, s.heads, s.dv, s.width_v, masked
  )
  weight, gradient = score_gradient(
    scores_of(k_tile, q_tile, bias, s),
    tl.dot(v_tile, tl.trans(do_tile), input_precision=s.precision),
    row[None, :],
    key[:, None],
    row_sums(lse, query_base, row, real, head, float('inf'), s)[None, :],
    row_sums(delta, query_base, row, real, head, 0.0, s)[None, :],
    seen,
    place,
    tables,
    masked,
    s,
  )
  if s.per_query:
    divisor = tl.load(normaliser + (query_base + row), mask=real, other=1.0)
    # The rows are summed over here, and each has a divisor of its own.
    share = (1.0 / divisor)[None, :]
    weight *= share
    gradient *= share
  dv_acc = tl.dot(
    weight.to(do_tile.dtype), do_tile, dv_acc, input_precision=s.precision
  )
  dk_acc = tl.dot(
    gradient.to(q_tile.dtype), q_tile, dk_acc, input_precision=s.precision
  )
  if s.targets and s.zero >= 0:
    # Their bias depends on the key alone; `gpu` moves the sums to the table.
    of_targets = tl.where((row >= history)[None, :], gradient, 0.0)
    target_acc += tl.sum(of_targets, 1)
  return dk_acc, dv_acc, target_acc


@triton.jit
def _keys_tile(
  states,
  tiles,
  q,
  dout,
  place,
  keys,
  row0,
  buckets,
  normaliser,
  lse,
  delta,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of queries gives to a block of keys."""
  group: tl.constexpr = s.group
  start, query_base, length, skipped, history, head = place
  key0, key, key_time, key_span = keys
  row = row0 + tl.arange(0, s.block_q)
  real = (row >= skipped) & (row < length)
  # Keys by queries, so that neither product below needs a transposition.
  bias = bias_of(row0, key0, key_time, buckets, place, tables, False, s)
  if masked:
    seen = visibility_mask(row[None, :], key[:, None], history, s)
  else:
    seen = real
  found = ()
  for one in tl.static_range(group):
    state = _keys_head(
      states[one],
      tiles[one],
      q,
      dout,
      (start, query_base, length, skipped, history, head + one),
      row,
      key,
      real,
      bias,
      seen,
      normaliser,
      lse,
      delta,
      tables,
      masked,
      s,
    )
    found = found + (state,)
  return found


@triton.jit
def _buckets_of_tile(place, keys, row0, tables, s: tl.constexpr):
  """Which buckets the pairs of a tile of queries may lie in."""
  return buckets_of(rows_span(place, row0, tables[3], s), keys[3], tables[1], s)


@triton.jit
def backward_keys(
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
  dk,
  dv,
  dtargets,
  s: tl.constexpr,
):
  """Gradients of k and v, and `[T, H]`: what targets give to each key's bias.

  A program is a block of keys of some heads of one sequence; the first blocks,
  which are seen most, come first.
  """
  group: tl.constexpr = s.group
  program = tl.program_id(0)
  place = sequence(sequences, program // s.blocks * s.group, s)
  start, query_base, length, skipped, history, head = place
  key0 = program % s.blocks * s.block_k
  # As in `forward`; here the programs are those of the keys.
  if key0 >= length:
    return
  key = key0 + tl.arange(0, s.block_k)
  real = key < length
  key_times = times_of(key_time, start, key0, s.block_k, True, s)
  keys = (key0, key, key_times, keys_span(place, key0, key_time, s))
  tables = (position_table, time_cells, seed, query_time, key_time)
  tiles = ()
  states = ()
  for one in tl.static_range(group):
    k_tile = load_rows(
      k, start, key, real, head + one, s.heads, s.dqk, s.width_qk, True
    )
    v_tile = load_rows(
      v, start, key, real, head + one, s.heads, s.dv, s.width_v, True
    )
    tiles = tiles + ((halve(k_tile, s), v_tile),)
    dk_acc = zeros(s.block_k, s.width_qk)
    dv_acc = zeros(s.block_k, s.width_v)
    states = states + ((dk_acc, dv_acc, make_filled(s.block_k, 0.0)),)
  ranges = rows_of_keys(key0, length, skipped, history, s)
  buckets = _buckets_of_tile(place, keys, ranges[3], tables, s)
  for row0 in range(ranges[3], ranges[4], s.block_q):
    # Found ahead: a tile's work is chosen by them.
    later = _buckets_of_tile(place, keys, row0 + s.block_q, tables, s)
    states = _keys_tile(
      states,
      tiles,
      q,
      dout,
      place,
      keys,
      row0,
      buckets,
      normaliser,
      lse,
      delta,
      tables,
      False,
      s,
    )
    buckets = later
  for tile in range(0, masked_rows(ranges, s)):
    row0 = masked_row(ranges, tile, s)
    buckets = _buckets_of_tile(place, keys, row0, tables, s)
    states = _keys_tile(
      states,
      tiles,
      q,
      dout,
      place,
      keys,
      row0,
      buckets,
      normaliser,
      lse,
      delta,
      tables,
      True,
      s,
    )
  for one in tl.static_range(group):
    dk_acc, dv_acc, target_acc = states[one]
    # The weights do not contain alpha, so dv does without it.
    dk_acc *= s.alpha * s.slope
    store_rows(
      dk, start, key, real, head + one, dk_acc, s.heads, s.dqk, s.width_qk
    )
    dv_acc *= s.scale
    store_rows(
      dv, start, key, real, head + one, dv_acc, s.heads, s.dv, s.width_v
    )
    if s.targets and s.zero >= 0:
      at = dtargets + (start + key) * s.heads + (head + one)
      tl.store(at, target_acc * s.slope, mask=real)
