"""The Triton kernel for the gradients of k and v.

Importing this file imports triton; `gpu.py` does so when a kernel is called.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.triton_ranges import (
  masked_row,
  masked_rows,
  rows_of_keys,
)
from pallas_kernels.hstu_attention.triton_tiles import (
  bias_of,
  load_rows,
  make_filled,
  row_sums,
  score_gradient,
  scores_of,
  sequence,
  store_rows,
  times_of,
  zeros,
)


@triton.jit
def _keys_tile(
  dk_acc,
  dv_acc,
  target_acc,
  k_tile,
  v_tile,
  q,
  dout,
  place,
  key,
  key_times,
  row0,
  query_time,
  normaliser,
  lse,
  delta,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Adds what one tile of queries gives to a block of keys."""
  start, query_base, length, skipped, history, head = place
  row = row0 + tl.arange(0, s.block_q)
  real = (row >= skipped) & (row < length)
  # Keys by queries, so that neither product below needs a transposition.
  bias = bias_of(
    row[None, :],
    key[:, None],
    times_of(query_time, query_base, row, real, True, s)[None, :],
    key_times[:, None],
    place,
    tables,
    masked,
    s,
  )
  q_tile = load_rows(
    q, query_base, row, real, head, s.heads, s.dqk, s.width_qk, True
  )
  do_tile = load_rows(
    dout, query_base, row, real, head, s.heads, s.dv, s.width_v, True
  )
  weight, gradient = score_gradient(
    scores_of(k_tile, q_tile, bias, s),
    tl.dot(v_tile, tl.trans(do_tile), input_precision=s.precision),
    row[None, :],
    key[:, None],
    row_sums(lse, query_base, row, real, head, float('inf'), s)[None, :],
    row_sums(delta, query_base, row, real, head, 0.0, s)[None, :],
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

  A program is a block of keys of one head of one sequence; the first blocks,
  which are seen most, come first.
  """
  program = tl.program_id(0)
  place = sequence(sequences, program // s.blocks, s)
  start, query_base, length, skipped, history, head = place
  key0 = program % s.blocks * s.block_k
  # As in `forward`; here the programs are those of the keys.
  if key0 >= length:
    return
  key = key0 + tl.arange(0, s.block_k)
  real = key < length
  k_tile = load_rows(
    k, start, key, real, head, s.heads, s.dqk, s.width_qk, True
  )
  v_tile = load_rows(v, start, key, real, head, s.heads, s.dv, s.width_v, True)
  key_times = times_of(key_time, start, key, real, True, s)
  tables = (position_table, time_cells, seed)
  dk_acc = zeros(s.block_k, s.width_qk)
  dv_acc = zeros(s.block_k, s.width_v)
  target_acc = make_filled(s.block_k, 0.0)
  ranges = rows_of_keys(key0, length, skipped, history, s)
  for row0 in range(ranges[3], ranges[4], s.block_q):
    dk_acc, dv_acc, target_acc = _keys_tile(
      dk_acc,
      dv_acc,
      target_acc,
      k_tile,
      v_tile,
      q,
      dout,
      place,
      key,
      key_times,
      row0,
      query_time,
      normaliser,
      lse,
      delta,
      tables,
      False,
      s,
    )
  for tile in range(0, masked_rows(ranges, s)):
    dk_acc, dv_acc, target_acc = _keys_tile(
      dk_acc,
      dv_acc,
      target_acc,
      k_tile,
      v_tile,
      q,
      dout,
      place,
      key,
      key_times,
      masked_row(ranges, tile, s),
      query_time,
      normaliser,
      lse,
      delta,
      tables,
      True,
      s,
    )
  # The weights do not contain alpha, so dv does without it.
  dk_acc *= s.alpha * s.scale
  store_rows(dk, start, key, real, head, dk_acc, s.heads, s.dqk, s.width_qk)
  dv_acc *= s.scale
  store_rows(dv, start, key, real, head, dv_acc, s.heads, s.dv, s.width_v)
  if s.targets and s.zero >= 0:
    at = dtargets + (start + key) * s.heads + head
    tl.store(at, target_acc * s.scale, mask=real)
