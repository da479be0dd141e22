"""The Triton kernel for the gradients of the two bias tables.

Importing this file imports triton; `gpu.py` does so when a kernel is called.
Tile (i, j) of any sequence and head uses the same entries of the position table
as every other tile of the same difference i - j. So a program takes one
difference, adds up the score gradients of a share of all such tiles in
registers, and writes one tile; XLA adds up its diagonals. Targets, which all
share one position, are left to `triton_keys_kernel`. The heads share
both tables: their gradients are added up before anything is done with them.

Buckets are logarithms, so those of one tile are close together, except near the
diagonal: one masked sum for each of them costs little on long histories.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.triton_tiles import (
  bias_of,
  load_rows,
  make_filled,
  row_sums,
  score_gradient,
  scores_of,
  sequence,
  time_bucket,
  times_of,
  visibility_mask,
  zeros,
)


@triton.jit
def _rows(difference, place, s: tl.constexpr):
  """Blocks of queries of a difference: [first, gap) and [after, last)."""
  start, query_base, length, skipped, history, head = place
  block: tl.constexpr = s.block_q
  blocks = (length + block - 1) // block
  # Row block i meets key block i - difference, which must not be negative.
  first = tl.maximum(skipped // block, difference)
  last = blocks
  gap = first
  if s.contextual:
    # Only contextual tokens look ahead.
    ahead: tl.constexpr = (s.contextual + block - 1) // block
    # Key block i - difference must exist, too.
    behind = tl.minimum(blocks + difference, ahead)
    last = tl.where(difference < 0, behind, blocks)
  if s.window:
    shift: tl.constexpr = max(s.contextual - 1, 0)
    # Beyond the window only the latest tokens and targets look back.
    far = (difference - 1) * block + 1 - shift > s.window
    # The block in which the full tail begins, or else the targets.
    exempt = tl.maximum(history - s.full_tail, 0) // block
    after = tl.where(far, tl.maximum(first, exempt), first)
    if s.prefix:
      # And the rows whose keys are of the prefix.
      heads: tl.constexpr = (s.prefix + block - 1) // block
      gap = tl.minimum(tl.maximum(difference + heads, first), last)
      after = tl.maximum(after, gap)
    return first, gap, after, last
  return first, first, first, last


@triton.jit
def backward_bias(
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
  dposition,
  dtime,
  s: tl.constexpr,
):
  """`[differences, shares, block, block]` and `[programs, time_width]` sums.

  A program is a difference and a share of all sequences.
  """
  program = tl.program_id(0)
  difference = program // s.shares - s.ahead
  tables = (position_table, time_cells, seed)
  inside = tl.arange(0, s.block_q)
  slot = tl.arange(0, s.time_width)
  acc = zeros(s.block_q, s.block_q)
  time_acc = make_filled(s.time_width, 0.0)
  # Every program walks its sequences in the same order each time, so the sums
  # are the same from run to run.
  for item in range(program % s.shares, s.items, s.shares):
    # The heads are walked below.
    place = sequence(sequences, item * s.heads, s)
    start, query_base, length, skipped, history, _ = place
    first, gap, after, last = _rows(difference, place, s)
    for step in range(first, last - (after - gap)):
      block = tl.where(step < gap, step, step + (after - gap))
      row = block * s.block_q + inside
      key = (block - difference) * s.block_q + inside
      real = (row >= skipped) & (row < length)
      there = key < length
      row_time = times_of(query_time, query_base, row, real, True, s)[:, None]
      key_times = times_of(key_time, start, key, there, True, s)[None, :]
      bias = bias_of(
        row[:, None],
        key[None, :],
        row_time,
        key_times,
        place,
        tables,
        True,
        s,
      )
      # The heads share the tables, and so all that follows this loop.
      gradient = zeros(s.block_q, s.block_q)
      for head in range(0, s.heads):
        gradient += _head_gradient(
          q,
          k,
          v,
          dout,
          lse,
          delta,
          (start, query_base, length, skipped, history, head),
          row,
          key,
          real,
          there,
          bias,
          tables,
          s,
        )
      # Last, so that whatever lies beyond the sequence is dropped.
      seen = visibility_mask(row[:, None], key[None, :], history, s)
      seen = seen & real[:, None]
      gradient = tl.where(seen, gradient, 0.0)
      # The rows end up in one sum, so each is divided before.
      if s.per_query:
        at = normaliser + (query_base + row)
        gradient /= tl.load(at, mask=real, other=1.0)[:, None]
      if s.zero >= 0:
        if s.targets:
          # Targets read the table elsewhere than their distance says.
          acc += tl.where((row < history)[:, None], gradient, 0.0)
        else:
          acc += gradient
      if s.buckets:
        # Masked pairs have a gradient of zero but any bucket: they would make
        # the range of buckets longer.
        bucket = time_bucket(row_time, key_times, time_cells, s)
        lowest = tl.min(tl.where(seen, bucket, s.buckets))
        highest = tl.max(tl.where(seen, bucket, -1))
        for one in range(lowest, highest + 1):
          part = tl.sum(tl.where(bucket == one, gradient, 0.0))
          time_acc += tl.where(slot == one, part, 0.0)
  if s.zero >= 0:
    tile = inside[:, None] * s.block_q + inside[None, :]
    # Tiles of all programs together may have more numbers than int32 counts.
    at = dposition + program.to(tl.int64) * (s.block_q * s.block_q)
    tl.store(at + tile, acc * s.scale)
  if s.buckets:
    at = dtime + program * s.time_width
    tl.store(at + slot, time_acc * s.scale)


@triton.jit
def _head_gradient(
  q,
  k,
  v,
  dout,
  lse,
  delta,
  place,
  row,
  key,
  real,
  there,
  bias,
  tables,
  s: tl.constexpr,
):
  """The gradient of one head's scores but for `s.scale`, without a mask."""
  start, query_base, length, skipped, history, head = place
  q_tile = load_rows(
    q, query_base, row, real, head, s.heads, s.dqk, s.width_qk, True
  )
  k_tile = load_rows(
    k, start, key, there, head, s.heads, s.dqk, s.width_qk, True
  )
  do_tile = load_rows(
    dout, query_base, row, real, head, s.heads, s.dv, s.width_v, True
  )
  v_tile = load_rows(v, start, key, there, head, s.heads, s.dv, s.width_v, True)
  _, gradient = score_gradient(
    scores_of(q_tile, k_tile, bias, s),
    tl.dot(do_tile, tl.trans(v_tile), input_precision=s.precision),
    row[:, None],
    key[None, :],
    row_sums(lse, query_base, row, real, head, float('inf'), s)[:, None],
    row_sums(delta, query_base, row, real, head, 0.0, s)[:, None],
    place,
    tables,
    False,
    s,
  )
  return gradient
