"""The biases of one tile of the Triton kernels; the heads share them.

Importing this file imports triton; `gpu.py` does so when a kernel is called.

A bucket of the time table is a logarithm, so a tile whose tokens lie far apart
meets two or three of them. Where the times of a batch are sorted, the first and
the last one of both sides say which, and a comparison or two for each pair of
tokens stand for a look into the table.
"""

import triton
import triton.language as tl

from pallas_kernels.hstu_attention.reference import BUCKET_WIDTH

# Logarithms to base 2 into buckets.
_BUCKETS_OF_LOG2 = tl.constexpr(0.6931471805599453 / BUCKET_WIDTH)
# Which buckets a tile meets is told by an approximate logarithm: rather one
# more than one too few, since their boundaries are exact.
_MARGIN = tl.constexpr(0.01)
_LONGEST = tl.constexpr(1 << 30)  # so that sums of two times are int32


@triton.jit
def load_pair(pairs, index, s: tl.constexpr):
  """Entries `index` and `index + 1` of `gpu.position_pairs`.

  Triton would copy each entry of a `tl.load` to shared memory by itself, to
  have it early, and read it back in another layout: with two such loads a tile
  the attention took seven times as long on an H100. An instruction of PTX it
  leaves where it is.
  """
  if s.ptx:
    first, second = tl.inline_asm_elementwise(
      """{
        .reg .u64 at;
        mad.wide.u32 at, $2, 8, $3;
        ld.global.nc.v2.f32 {$0, $1}, [at];
      }""",
      '=f,=f,r,l',
      [index, pairs.to(tl.int64)],
      dtype=(tl.float32, tl.float32),
      is_pure=True,
      pack=1,
    )
  else:
    first = tl.load(pairs + index * 2)
    second = tl.load(pairs + index * 2 + 1)
  return first, second


@triton.jit
def load_cell(cells, row_time, key_time, s: tl.constexpr):
  """The row of `gpu.time_cells` that each time difference lies in.

  Args:
    cells: that table.
    row_time: times of the queries.
    key_time: times of the keys, on the other axis.
    s: constants.

  Returns:
    Whether the difference reaches the boundary inside the cell; then, as in the
    table: entry below the boundary, entry above it, bucket below it.
  """
  difference = (row_time - key_time).to(tl.float32)
  bits = difference.to(tl.int32, bitcast=True)
  # The exponent and two bits of the mantissa, without the sign.
  cell = (bits >> 21) & 0x3FF
  if s.ptx:
    limit, below, above, bucket = tl.inline_asm_elementwise(
      """{
        .reg .u64 at;
        mad.wide.u32 at, $4, 16, $5;
        ld.global.nc.v4.b32 {$0, $1, $2, $3}, [at];
      }""",
      '=f,=f,=f,=r,r,l',
      [cell, cells.to(tl.int64)],
      dtype=(tl.float32, tl.float32, tl.float32, tl.int32),
      is_pure=True,
      pack=1,
    )
  else:
    limit = tl.load(cells + cell * 4)
    below = tl.load(cells + cell * 4 + 1)
    above = tl.load(cells + cell * 4 + 2)
    bucket = tl.load(cells + cell * 4 + 3).to(tl.int32, bitcast=True)
  return tl.abs(difference) >= limit, below, above, bucket


@triton.jit
def time_bucket(row_time, key_time, cells, s: tl.constexpr):
  """The same bucket as `reference.time_bucket`."""
  reached, _, _, bucket = load_cell(cells, row_time, key_time, s)
  return bucket + reached.to(tl.int32)


@triton.jit
def times_of(times, first, place, real, checked: tl.constexpr, s: tl.constexpr):
  """The times of some tokens, or any numbers if there is no time bias."""
  if s.buckets:
    if checked:
      value = tl.load(times + (first + place), mask=real, other=0)
    else:
      value = tl.load(times + (first + place))
  else:
    value = place
  return value


@triton.jit
def time_span(times, first, begin, end, s: tl.constexpr):
  """Times of the first and the last of the tokens at begin .. end - 1.

  Args:
    times: of all tokens.
    first: number of the token at position 0.
    begin: position of the first.
    end: position after the last.
    s: constants.
  """
  if s.buckets:
    last = end - 1
    at = times + first
    span = tl.load(at + tl.minimum(begin, last)), tl.load(at + last)
  else:
    span = begin, end
  return span


@triton.jit
def times_of_rows(place, row0, query_time, s: tl.constexpr):
  """Times of a tile's queries, and those of the first and the last."""
  start, query_base, length, skipped, history, head = place
  row = row0 + tl.arange(0, s.block_q)
  real = (row >= skipped) & (row < length)
  first = tl.maximum(row0, skipped)
  end = tl.minimum(row0 + s.block_q, length)
  times = times_of(query_time, query_base, row, real, True, s)
  return times, time_span(query_time, query_base, first, end, s)


@triton.jit
def times_of_keys(place, key0, key_time, s: tl.constexpr):
  """Times of a tile's keys, and those of the first and the last."""
  start, query_base, length, skipped, history, head = place
  key = key0 + tl.arange(0, s.block_k)
  end = tl.minimum(key0 + s.block_k, length)
  times = times_of(key_time, start, key, key < length, True, s)
  return times, time_span(key_time, start, key0, end, s)


@triton.jit
def step_of(steps, bucket):
  """Where a bucket begins, and its entry; see `gpu.time_cells`."""
  start = tl.load(steps + bucket * 4).to(tl.int32, bitcast=True)
  return start, tl.load(steps + bucket * 4 + 1)


@triton.jit
def buckets_of(row_span, key_span, steps, s: tl.constexpr):
  """Which buckets the pairs of a tile may lie in.

  Args:
    row_span: from `time_span`, of the queries.
    key_span: of the keys.
    steps: the rows of `gpu.time_cells` about the buckets.
    s: constants.

  Returns:
    Whether that can be told, the greatest difference, the lowest bucket and the
    highest.
  """
  least = row_span[0] - key_span[1]
  most = row_span[1] - key_span[0]
  # Not if a query comes before a key, nor if a difference may not be an int32.
  ordered = tl.load(steps + 2) > 0
  known = ordered & (least >= 0) & (key_span[0] >= 0)
  known = known & (row_span[1] < _LONGEST)
  low = tl.log2(tl.maximum(least, 1).to(tl.float32)) * _BUCKETS_OF_LOG2
  high = tl.log2(tl.maximum(most, 1).to(tl.float32)) * _BUCKETS_OF_LOG2
  low = tl.maximum(low - _MARGIN, 0.0).to(tl.int32)
  high = (high + _MARGIN).to(tl.int32)
  last: tl.constexpr = s.buckets - 1
  return known, most, tl.minimum(low, last), tl.minimum(high, last)


@triton.jit
def _bias_by_steps(
  row_time, key_time, most, low, steps, boundaries: tl.constexpr
):
  """The time bias of a tile with so many boundaries of buckets, or fewer."""
  bias = tl.load(steps + low * 4 + 1)
  for one in tl.static_range(boundaries):
    start, entry = step_of(steps, low + (one + 1))
    # A boundary out of reach is put where nothing reaches it, either.
    reach = row_time - tl.minimum(start, most + 1)
    bias = tl.where(reach >= key_time, entry, bias)
  return bias


@triton.jit
def time_bias_of(
  row_time, key_time, row_span, key_span, cells, s: tl.constexpr
):
  """The time bias of a tile; times on their axes."""
  steps = cells + s.cells * 4
  known, most, low, high = buckets_of(row_span, key_span, steps, s)
  if known & (high - low <= 1):
    bias = _bias_by_steps(row_time, key_time, most, low, steps, 1)
  elif known & (high - low <= s.steps):
    bias = _bias_by_steps(row_time, key_time, most, low, steps, s.steps)
  else:
    reached, below, above, bucket = load_cell(cells, row_time, key_time, s)
    bias = tl.where(reached, above, below)
  return bias


@triton.jit
def position_bias_of(row, key, length, history, pairs, s: tl.constexpr):
  """The position bias where there are targets.

  Args:
    row: positions of the queries.
    key: positions of the keys, on the other axis.
    length: tokens of the sequence.
    history: position of the first target.
    pairs: `gpu.position_pairs`.
    s: constants.
  """
  # All targets have the position of the first one. Where a sequence has none,
  # the table is read up to the last token, also for what lies beyond it.
  last = tl.minimum(history, length - 1)
  row, key = tl.minimum(row, last), tl.minimum(key, last)
  entry, _ = load_pair(pairs, key - row + (s.zero + 1), s)
  return entry


@triton.jit
def bias_of(
  row0,
  key0,
  row_time,
  key_time,
  spans,
  place,
  tables,
  rows_first: tl.constexpr,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """The sum of both biases; what is beyond the sequence gets any number.

  Args:
    row0: position of the first query.
    key0: position of the first key.
    row_time: times of the queries.
    key_time: times of the keys.
    spans: from `time_span`, of the queries and of the keys.
    place: from `sequence`.
    tables: position table, cells of the time table, seed.
    rows_first: whether the tile is queries by keys, and not the other way.
    masked: whether the tile needs a mask.
    s: constants.

  Returns:
    A tile, or 0 without any table.
  """
  start, query_base, length, skipped, history, head = place
  pairs, cells, _ = tables
  if s.buckets:
    if rows_first:
      bias = time_bias_of(
        row_time[:, None], key_time[None, :], spans[0], spans[1], cells, s
      )
    else:
      bias = time_bias_of(
        row_time[None, :], key_time[:, None], spans[0], spans[1], cells, s
      )
  if s.zero >= 0:
    if s.targets:
      row = row0 + tl.arange(0, s.block_q)
      key = key0 + tl.arange(0, s.block_k)
      if rows_first:
        entry = position_bias_of(
          row[:, None], key[None, :], length, history, pairs, s
        )
      else:
        entry = position_bias_of(
          row[None, :], key[:, None], length, history, pairs, s
        )
    else:
      # Two neighbours are read at once. What lies beyond the sequence may have
      # any entry that exists.
      last = length - 1
      if rows_first:
        row = tl.minimum(row0 + tl.arange(0, s.block_q), last)
        key = key0 + 2 * tl.arange(0, s.block_k // 2)
        if masked:
          key = tl.minimum(key, last)
        index = key[None, :] - (row[:, None] - (s.zero + 1))
        first, second = load_pair(pairs, index, s)
      else:
        row = tl.minimum(row0 + 2 * tl.arange(0, s.block_q // 2), last)
        key = key0 + tl.arange(0, s.block_k)
        if masked:
          key = tl.minimum(key, last)
        # The later query is one nearer to the lower end of the table.
        index = key[:, None] - (row[None, :] - s.zero)
        second, first = load_pair(pairs, index, s)
      entry = tl.join(first, second)
      if rows_first:
        entry = tl.reshape(entry, [s.block_q, s.block_k])
      else:
        entry = tl.reshape(entry, [s.block_k, s.block_q])
    bias = entry + bias if s.buckets else entry
  elif s.buckets == 0:
    bias = 0.0
  return bias
