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

A turn of the loop takes `s.group` heads. The gradient of a tile waits in
registers while its heads go by, in one loop, so that loads run ahead of it. The
bias is made anew at each turn: where it waited, too, Triton took it through
shared memory to another layout each time.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.triton_bias_tiles import (
  bias_of,
  buckets_of,
  keys_span,
  rows_span,
  step_of,
  time_bucket,
  times_of,
  times_of_tile,
)
from pallas_kernels.hstu_attention.triton_tiles import (
  load_block,
  make_filled,
  row_sums,
  score_gradient,
  scores_of,
  sequence,
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
  group: tl.constexpr = s.group
  program = tl.program_id(0)
  difference = program // s.shares - s.ahead
  tables = (position_table, time_cells, seed, query_time, key_time)
  inside = tl.arange(0, s.block_q)
  parts: tl.constexpr = s.heads // s.group
  acc = zeros(s.block_q, s.block_q)
  time_acc = make_filled(s.time_width, 0.0)
  gradient = zeros(s.block_q, s.block_q)
  # Every program walks its sequences in the same order each time, so the sums
  # are the same from run to run.
  for item in range(program % s.shares, s.items, s.shares):
    place = sequence(sequences, item * s.heads, s)
    start, query_base, length, skipped, history, _ = place
    rows = _rows(difference, place, s)
    first, gap, after, last = rows
    turns = (last - (after - gap) - first) * parts
    # A sequence that asks nothing has a last block, but no query in it.
    turns = tl.where(skipped < length, turns, 0)
    for turn in range(0, turns):
      part = turn % parts
      row0 = _first_row(rows, turn // parts, s)
      key0 = row0 - difference * s.block_q
      times = times_of(query_time, query_base, row0, s.block_q, True, s)
      row_span = rows_span(place, row0, query_time, s)
      key_span = keys_span(place, key0, key_time, s)
      buckets = buckets_of(row_span, key_span, time_cells, s)
      bias = bias_of(row0, key0, times, buckets, place, tables, True, s)
      row = row0 + inside
      key = key0 + inside
      real = (row >= skipped) & (row < length)
      for one in tl.static_range(group):
        head = part * s.group + one
        gradient += _head_gradient(
          q,
          k,
          v,
          dout,
          lse,
          delta,
          (start, query_base, length, skipped, history, head),
          row0,
          key0,
          real,
          bias,
          tables,
          s,
        )
      if part == parts - 1:
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
          time_acc = _add_by_bucket(
            time_acc,
            gradient,
            seen,
            row0,
            key0,
            times,
            buckets,
            place,
            tables,
            s,
          )
        gradient = zeros(s.block_q, s.block_q)
  if s.zero >= 0:
    tile = inside[:, None] * s.block_q + inside[None, :]
    # Tiles of all programs together may have more numbers than int32 counts.
    at = dposition + program.to(tl.int64) * (s.block_q * s.block_q)
    tl.store(at + tile, acc * s.slope)
  if s.buckets:
    at = dtime + program * s.time_width
    tl.store(at + tl.arange(0, s.time_width), time_acc * s.slope)


@triton.jit
def _first_row(rows, step, s: tl.constexpr):
  """The first query of a difference's tile, from `_rows` and its number."""
  first, gap, after, last = rows
  step += first
  return tl.where(step < gap, step, step + (after - gap)) * s.block_q


@triton.jit
def _add_by_bucket(
  time_acc,
  gradient,
  seen,
  row0,
  key0,
  times,
  buckets,
  place,
  tables,
  s: tl.constexpr,
):
  """Adds a tile's gradients to those of their buckets, `[time_width]`."""
  slot = tl.arange(0, s.time_width)
  cells = tables[1]
  most, low, high = buckets
  if high - low <= s.steps:
    rest = gradient
    if low < high:
      row_time, key_time = times_of_tile(
        row0, key0, times, place, tables, True, s
      )
      for one in range(low, high):
        start, _ = step_of(cells + s.cells * 4, one + 1)
        reach = row_time - tl.minimum(start, most + 1)
        above = tl.where(reach >= key_time, rest, 0.0)
        time_acc += tl.where(slot == one, tl.sum(rest - above), 0.0)
        rest = above
    time_acc += tl.where(slot == high, tl.sum(rest), 0.0)
  else:
    row_time, key_time = times_of_tile(
      row0, key0, times, place, tables, True, s
    )
    # Masked pairs have a gradient of zero but any bucket: they would make the
    # range of buckets longer.
    bucket = time_bucket(row_time, key_time, cells, s)
    lowest = tl.min(tl.where(seen, bucket, s.buckets))
    highest = tl.max(tl.where(seen, bucket, -1))
    for one in range(lowest, highest + 1):
      part = tl.sum(tl.where(bucket == one, gradient, 0.0))
      time_acc += tl.where(slot == one, part, 0.0)
  return time_acc


@triton.jit
def _head_gradient(
  q,
  k,
  v,
  dout,
  lse,
  delta,
  place,
  row0,
  key0,
  real,
  bias,
  tables,
  s: tl.constexpr,
):
  """The gradient of one head's scores but for `s.slope`, without a mask."""
  start, query_base, length, skipped, history, head = place
  row = row0 + tl.arange(0, s.block_q)
  key = key0 + tl.arange(0, s.block_q)
  # Whatever is beyond the sequence is dropped later, so anything will do.
  q_tile = load_block(
    q,
    query_base,
    row0,
    skipped,
    length - 1,
    head,
    s.block_q,
    s.heads,
    s.dqk,
    s.width_qk,
  )
  k_tile = load_block(
    k, start, key0, 0, length - 1, head, s.block_q, s.heads, s.dqk, s.width_qk
  )
  do_tile = load_block(
    dout,
    query_base,
    row0,
    skipped,
    length - 1,
    head,
    s.block_q,
    s.heads,
    s.dv,
    s.width_v,
  )
  v_tile = load_block(
    v, start, key0, 0, length - 1, head, s.block_q, s.heads, s.dv, s.width_v
  )
  _, gradient = score_gradient(
    scores_of(q_tile, k_tile, bias, s),
    tl.dot(do_tile, tl.trans(v_tile), input_precision=s.precision),
    row[:, None],
    key[None, :],
    row_sums(lse, query_base, row, real, head, float('inf'), s)[:, None],
    row_sums(delta, query_base, row, real, head, 0.0, s)[:, None],
    real,
    place,
    tables,
    False,
    s,
  )
  return gradient
