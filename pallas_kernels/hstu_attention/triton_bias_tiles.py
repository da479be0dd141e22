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
from pallas_kernels.hstu_attention.triton_tiles import zeros

# Logarithms to base 2 into buckets.
_BUCKETS_OF_LOG2 = tl.constexpr(0.6931471805599453 / BUCKET_WIDTH)
# Which buckets a tile meets is told by an approximate logarithm: rather one
# more than one too few, since their boundaries are exact. No difference that is
# an int32 needs more than half of this (tests/kernels/triton_call_test.py).
_MARGIN = tl.constexpr(1e-4)
_LONGEST = tl.constexpr(1 << 30)  # so that sums of two times are int32


@triton.jit
def load_pair(at, s: tl.constexpr):
  """The numbers of four bytes at each of some addresses, and those after them.

  Triton would copy each entry of a `tl.load` to shared memory by itself, to
  have it early, and read it back in another layout: with two such loads a tile
  the attention took seven times as long on an H100. An instruction of PTX it
  leaves where it is. It is pure, so entries that a thread needs for two places
  of a tile are loaded once. And it may run before the branch or the loop that
  it stands in: each address must exist, whether or not that is taken, and
  nothing that a kernel writes may be read so.
  """
  if s.ptx:
    if at.dtype.element_ty == tl.float32:
      first, second = tl.inline_asm_elementwise(
        'ld.global.nc.v2.f32 {$0, $1}, [$2];',
        '=f,=f,l',
        [at.to(tl.int64)],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=1,
      )
    else:
      first, second = tl.inline_asm_elementwise(
        'ld.global.nc.v2.b32 {$0, $1}, [$2];',
        '=r,=r,l',
        [at.to(tl.int64)],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
      )
  else:
    first = tl.load(at)
    second = tl.load(at + 1)
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
def times_of(
  times,
  first,
  place0,
  block: tl.constexpr,
  column: tl.constexpr,
  s: tl.constexpr,
):
  """The times of a block of tokens, on their axis of a tile.

  Whatever lies beyond the sequence has any number.

  Args:
    times: `gpu.time_pairs`.
    first: number of the token at position 0.
    place0: position of the first token of the block.
    block: how many they are.
    column: whether they are the rows of a tile, and the result is `[block, 1]`.
    s: constants.
  """
  if s.buckets:
    at = times + (first + place0 + s.room).to(tl.int64) * 2
    if column:
      value = tl.load(at + 2 * tl.arange(0, block)[:, None])
    else:
      pair = load_pair(at + 4 * tl.arange(0, block // 2)[None, :], s)
      value = tl.reshape(tl.join(pair[0], pair[1]), [1, block])
  else:
    value = place0
  return value


@triton.jit
def time_span(times, first, begin, end, s: tl.constexpr):
  """Times of the first and the last of the tokens at begin .. end - 1.

  Args:
    times: `gpu.time_pairs`.
    first: number of the token at position 0.
    begin: position of the first.
    end: position after the last.
    s: constants.
  """
  if s.buckets:
    last = end - 1
    at = times + (first + s.room).to(tl.int64) * 2
    # By `load_pair`, too: a `tl.load` of four bytes would be copied ahead.
    early, _ = load_pair(at + 2 * tl.minimum(begin, last), s)
    late, _ = load_pair(at + 2 * last, s)
    span = early, late
  else:
    span = begin, end
  return span


@triton.jit
def rows_span(place, row0, query_time, s: tl.constexpr):
  """Times of the first and the last of a tile's queries."""
  start, query_base, length, skipped, history, head = place
  first = tl.maximum(row0, skipped)
  # A block before the first query, of which nothing is used, has one too: it
  # may lie before the array by more than there is room.
  end = tl.maximum(tl.minimum(row0 + s.block_q, length), first + 1)
  return time_span(query_time, query_base, first, end, s)


@triton.jit
def keys_span(place, key0, key_time, s: tl.constexpr):
  """Times of the first and the last of a tile's keys."""
  start, query_base, length, skipped, history, head = place
  end = tl.minimum(key0 + s.block_k, length)
  return time_span(key_time, start, key0, end, s)


@triton.jit
def step_of(steps, bucket):
  """Where a bucket begins, and its entry; see `gpu.time_cells`."""
  start = tl.load(steps + bucket * 4).to(tl.int32, bitcast=True)
  return start, tl.load(steps + bucket * 4 + 1)


@triton.jit
def _log2(x, s: tl.constexpr):
  """The logarithm of a number that is not below 1."""
  if s.ptx:
    # Triton's own takes 25 instructions, for zeros, infinities and the like.
    y = tl.inline_asm_elementwise(
      'lg2.approx.ftz.f32 $0, $1;',
      '=f,f',
      [x],
      dtype=tl.float32,
      is_pure=True,
      pack=1,
    )
  else:
    y = tl.log2(x)
  return y


@triton.jit
def buckets_of(row_span, key_span, cells, s: tl.constexpr):
  """Which buckets the pairs of a tile may lie in.

  Args:
    row_span: from `time_span`, of the queries.
    key_span: of the keys.
    cells: `gpu.time_cells`.
    s: constants.

  Returns:
    The greatest difference, the lowest bucket and the highest; a far higher
    one if that cannot be told.
  """
  if s.buckets:
    found = _buckets_of(row_span, key_span, cells + s.cells * 4, s)
  else:
    found = 0, 0, 0
  return found


@triton.jit
def _buckets_of(row_span, key_span, steps, s: tl.constexpr):
  least = row_span[0] - key_span[1]
  most = row_span[1] - key_span[0]
  # Not if a query comes before a key, nor if a difference may not be an int32.
  ordered = tl.load(steps + 2) > 0
  known = ordered & (least >= 0) & (key_span[0] >= 0)
  known = known & (row_span[1] < _LONGEST)
  low = _log2(tl.maximum(least, 1).to(tl.float32), s) * _BUCKETS_OF_LOG2
  high = _log2(tl.maximum(most, 1).to(tl.float32), s) * _BUCKETS_OF_LOG2
  low = tl.maximum(low - _MARGIN, 0.0).to(tl.int32)
  high = (high + _MARGIN).to(tl.int32)
  last: tl.constexpr = s.buckets - 1
  high = tl.where(known, tl.minimum(high, last), _LONGEST)
  return most, tl.minimum(low, last), high


@triton.jit
def _add_steps(
  bias, row_time, key_time, most, low, steps, boundaries: tl.constexpr
):
  """Adds the time bias of a tile of so many boundaries of buckets, or fewer."""
  of_time = tl.load(steps + low * 4 + 1)
  for one in tl.static_range(boundaries):
    start, higher = step_of(steps, low + (one + 1))
    # A boundary out of reach is put where nothing reaches it, either.
    reach = row_time - tl.minimum(start, most + 1)
    of_time = tl.where(reach >= key_time, higher, of_time)
  return bias + of_time


@triton.jit
def times_of_tile(
  row0, key0, down, place, tables, rows_first: tl.constexpr, s: tl.constexpr
):
  """The times of a tile's queries and keys, on their axes; see `bias_of`."""
  _, _, _, query_time, key_time = tables
  if rows_first:
    across = times_of(key_time, place[0], key0, s.block_k, False, s)
    times = down, across
  else:
    across = times_of(query_time, place[1], row0, s.block_q, False, s)
    times = across, down
  return times


@triton.jit
def add_time_bias(
  bias,
  row0,
  key0,
  down,
  buckets,
  place,
  tables,
  rows_first: tl.constexpr,
  s: tl.constexpr,
):
  """Adds the time bias of a tile; arguments as of `bias_of`."""
  cells = tables[1]
  steps = cells + s.cells * 4
  most, low, high = buckets
  # Most tiles lie in one bucket, and no time of a token is read for them.
  if high == low:
    bias += tl.load(steps + low * 4 + 1)
  else:
    row_time, key_time = times_of_tile(
      row0, key0, down, place, tables, rows_first, s
    )
    if high - low == 1:
      bias = _add_steps(bias, row_time, key_time, most, low, steps, 1)
    elif high - low <= s.steps:
      bias = _add_steps(bias, row_time, key_time, most, low, steps, s.steps)
    else:
      reached, below, above, bucket = load_cell(cells, row_time, key_time, s)
      bias += tl.where(reached, above, below)
  return bias


@triton.jit
def _load_diagonals(
  at,
  rows: tl.constexpr,
  columns: tl.constexpr,
  sign: tl.constexpr,
  s: tl.constexpr,
):
  """A tile whose entries depend on column minus row alone.

  A thread of the matrix unit holds pairs of neighbouring columns, eight columns
  apart, in two rows that are eight apart. So all of them are of one line of
  pairs, each eight entries from the next, and one address serves them all.

  Args:
    at: address of the pair of row 0 and column 0, or 1 if that comes first.
    rows: of the tile, a multiple of 16.
    columns: of the tile, a power of two of at least 16.
    sign: whether the table's entries grow with the column, or else -1.
    s: constants.
  """
  sixteen = tl.reshape(tl.arange(0, rows // 16), [rows // 16, 1, 1])
  one = tl.reshape(tl.arange(0, 8), [1, 8, 1])
  two = tl.reshape(tl.arange(0, 4), [1, 1, 4])
  lane = at + (2 * two - one - 16 * sixteen) * (2 * sign)
  line = ()
  for place in tl.static_range(-1, columns // 8):
    first, second = load_pair(lane + place * (16 * sign), s)
    if sign < 0:
      line = line + (tl.join(second, first),)
    else:
      line = line + (tl.join(first, second),)
  # Of the upper rows, of the lower: one place back.
  both = tl.join(
    _join_all(line, 1, columns // 8), _join_all(line, 0, columns // 8)
  )
  # Axes: sixteen, one, two, pair, bits of the place from the lowest, lower.
  if columns == 128:
    tile = tl.permute(both, (0, 8, 1, 7, 6, 5, 4, 2, 3))
  elif columns == 64:
    tile = tl.permute(both, (0, 7, 1, 6, 5, 4, 2, 3))
  elif columns == 32:
    tile = tl.permute(both, (0, 6, 1, 5, 4, 2, 3))
  else:
    tile = tl.permute(both, (0, 5, 1, 4, 2, 3))
  return tl.reshape(tile, [rows, columns])


@triton.jit
def _join_all(line, first: tl.constexpr, count: tl.constexpr):
  """Tiles of a tuple as one, with an axis at the end for each bit."""
  if count == 2:
    tile = tl.join(line[first], line[first + 1])
  else:
    half: tl.constexpr = count // 2
    tile = tl.join(
      _join_all(line, first, half), _join_all(line, first + half, half)
    )
  return tile


@triton.jit
def position_bias_of(
  row0, key0, place, pairs, rows_first: tl.constexpr, s: tl.constexpr
):
  """The position bias of a tile; what is beyond the sequence gets any number.

  Args:
    row0: position of the first query.
    key0: position of the first key.
    place: from `sequence`.
    pairs: `gpu.position_pairs`.
    rows_first: whether the tile is queries by keys, and not the other way.
    s: constants.
  """
  if s.targets:
    row = row0 + tl.arange(0, s.block_q)
    key = key0 + tl.arange(0, s.block_k)
    # All targets have the position of the first one. Where a sequence has none,
    # the table is read up to the last token, also for what lies beyond it.
    last = tl.minimum(place[4], place[2] - 1)
    row, key = tl.minimum(row, last), tl.minimum(key, last)
    if rows_first:
      index = key[None, :] - row[:, None]
    else:
      index = key[:, None] - row[None, :]
    entry, _ = load_pair(pairs + (index + (s.zero + s.room)) * 2, s)
  else:
    # Two neighbours are read at once, and what several rows share by one load:
    # so the address is one of the tile, and distances in it that the compiler
    # knows. The table has room for tokens beyond the sequence.
    at = pairs + (key0 - row0 + (s.zero + s.room)) * 2
    if rows_first:
      entry = _load_diagonals(at, s.block_q, s.block_k, 1, s)
    else:
      entry = _load_diagonals(at - 2, s.block_k, s.block_q, -1, s)
  return entry


@triton.jit
def bias_of(
  row0,
  key0,
  down,
  buckets,
  place,
  tables,
  rows_first: tl.constexpr,
  s: tl.constexpr,
):
  """The sum of both biases; what is beyond the sequence gets any number.

  Args:
    row0: position of the first query.
    key0: position of the first key.
    down: from `times_of`, the times of the tokens down the tile.
    buckets: from `buckets_of`.
    place: from `sequence`.
    tables: from the kernel: position table, cells of the time table, seed,
      times of the queries and of the keys.
    rows_first: whether the tile is queries by keys, and not the other way.
    s: constants.

  Returns:
    A tile, or 0 without any table.
  """
  if s.zero >= 0:
    bias = position_bias_of(row0, key0, place, tables[0], rows_first, s)
  elif s.buckets:
    if rows_first:
      bias = zeros(s.block_q, s.block_k)
    else:
      bias = zeros(s.block_k, s.block_q)
  else:
    bias = 0.0
  if s.buckets:
    bias = add_time_bias(
      bias, row0, key0, down, buckets, place, tables, rows_first, s
    )
  return bias
