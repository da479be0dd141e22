"""What the Triton kernels of embeddings do with one tile of rows.

Importing this file imports triton; `gpu.py` does so when a kernel is called. A
segment is a range of places, such as the ids of a bag, or the places of equal
ids once they are sorted; each place stands for a row of a matrix. A tile has
several lanes: `s.ahead` lanes walk one segment together, and a program has
`s.segments` segments. `s` is a `gpu_plan.Constants`.
"""

import triton
import triton.language as tl


# Some versions of Triton take no field of `s` in the list of a shape.
@triton.jit
def zeros(rows: tl.constexpr, columns: tl.constexpr):
  """A tile of zeros."""
  return tl.zeros([rows, columns], tl.float32)


@triton.jit
def make_filled(count: tl.constexpr, value):
  """A vector of one whole number."""
  return tl.full([count], value, tl.int32)


@triton.jit
def load_index(numbers, at, s: tl.constexpr):
  """The whole number at each place, all of which must exist, as int32.

  Triton would move what a `tl.load` of so few numbers brings to another layout
  before it is used. An instruction of PTX stays where it is.
  """
  if s.ptx:
    number = tl.inline_asm_elementwise(
      """{
        .reg .u64 at;
        mad.wide.u32 at, $1, 4, $2;
        ld.global.nc.b32 $0, [at];
      }""",
      '=r,r,l',
      [at, numbers.to(tl.int64)],
      dtype=tl.int32,
      is_pure=True,
      pack=1,
    )
  else:
    number = tl.load(numbers + at).to(tl.int32)
  return number


@triton.jit
def load_factor(numbers, at, s: tl.constexpr):
  """As `load_index`, of float32."""
  if s.ptx:
    number = tl.inline_asm_elementwise(
      """{
        .reg .u64 at;
        mad.wide.u32 at, $1, 4, $2;
        ld.global.nc.f32 $0, [at];
      }""",
      '=f,r,l',
      [at, numbers.to(tl.int64)],
      dtype=tl.float32,
      is_pure=True,
      pack=1,
    )
  else:
    number = tl.load(numbers + at)
  return number


@triton.jit
def columns_of(block, s: tl.constexpr):
  """Numbers of the columns of a tile."""
  return block * s.width + tl.arange(0, s.width)


@triton.jit
def mask_of(live, columns, s: tl.constexpr):
  """Which elements of a tile exist, from which of its rows do."""
  if s.dim % s.width == 0:
    mask = live[:, None]
  else:
    mask = live[:, None] & (columns < s.dim)[None, :]
  return mask


@triton.jit
def addresses(matrix, row, columns, s: tl.constexpr):
  """Where the elements of a tile lie; 64 bits, since tables are large."""
  return matrix + row.to(tl.int64)[:, None] * s.dim + columns[None, :]


@triton.jit
def _find_source(place, index, bags, weights, s: tl.constexpr):
  """The row of the matrix and the weight that a place stands for."""
  row = load_index(index, place, s)
  weight = 0.0
  if s.weighted:
    if s.by_bag:
      weight = load_factor(weights, place, s)
    else:
      # The sorted numbers are those of the unsorted places.
      weight = load_factor(weights, row, s)
      if s.bagged:
        row = load_index(bags, row, s)
  return row, weight


@triton.jit
def add_sources(
  acc, matrix, index, bags, weights, begin, end, columns, s: tl.constexpr
):
  """Adds the rows that the places of each lane's segment stand for.

  Where a row is none of the matrix, NaN is added.

  Args:
    acc: `[lanes, width]`, what was summed so far.
    matrix: `[s.sources, s.dim]`.
    index: `[s.count]`, row of each place; if the sum is weighted and not by
      bag, the number of the place before it was sorted.
    bags: row of each place before it was sorted, if `s.bagged`.
    weights: of each id, if `s.weighted`.
    begin: `[lanes]` first place of the lane's segment.
    end: `[lanes]` the place after its last one.
    columns: from `columns_of`.
    s: constants.
  """
  place = begin + tl.arange(0, s.lanes) % s.ahead
  row, weight = _find_source(
    tl.minimum(place, s.count - 1), index, bags, weights, s
  )
  for _ in range(0, tl.max(end - begin, 0), s.ahead):
    live = place < end
    known = live
    other = 0.0
    if s.by_bag:
      known = live & (row >= 0) & (row < s.sources)
      # Given to the load, not chosen afterwards, which would make Triton load
      # the numbers of the rows once more, for another layout.
      other = tl.where(live & (known == 0), float('nan'), 0.0)[:, None]
    tile = tl.load(
      addresses(matrix, row, columns, s),
      mask=mask_of(known, columns, s),
      other=other,
    ).to(tl.float32)
    if s.weighted:
      # A place that is not live may have any weight, also NaN.
      tile *= tl.where(live, weight, 0.0)[:, None]
    place += s.ahead
    # Before the rows are needed: their addresses come from memory themselves.
    row, weight = _find_source(
      tl.minimum(place, s.count - 1), index, bags, weights, s
    )
    acc += tile
  return acc


@triton.jit
def add_direct(acc, matrix, begin, end, columns, s: tl.constexpr):
  """Adds the rows `begin` to `end` of a matrix of sums, by lane."""
  row = begin + tl.arange(0, s.lanes) % s.ahead
  for _ in range(0, tl.max(end - begin, 0), s.ahead):
    acc += tl.load(
      addresses(matrix, row, columns, s),
      mask=mask_of(row < end, columns, s),
      other=0.0,
    )
    row += s.ahead
  return acc


@triton.jit
def sum_lanes(acc, s: tl.constexpr):
  """`[segments, width]`: the sums of the lanes of each segment."""
  if s.ahead == 1:
    total = acc
  else:
    total = _sum_middle(acc, s.segments, s.ahead, s.width)
  return total


@triton.jit
def _sum_middle(
  acc, segments: tl.constexpr, ahead: tl.constexpr, width: tl.constexpr
):
  return tl.sum(tl.reshape(acc, [segments, ahead, width]), 1)


@triton.jit
def _round_up(number, span: tl.constexpr):
  return (number + (span - 1)) // span


@triton.jit
def _add_level(acc, sums, begin, end, span: tl.constexpr, columns, s):
  """Adds what a segment has of one level of sums and not of the next.

  Args:
    acc: what was summed so far.
    sums: the sums of this level, each of `span` places.
    begin: `[lanes]` first place of the segment.
    end: `[lanes]` the place after its last one.
    span: a power of `s.piece`.
    columns: from `columns_of`.
    s: constants.
  """
  low = _round_up(begin, span)
  high = tl.maximum(end // span, low)
  if span * s.piece <= s.top:
    inner_low = _round_up(begin, span * s.piece)
    inner_high = end // (span * s.piece)
    whole = inner_low < inner_high
    middle = tl.where(whole, inner_low * s.piece, high)
    acc = add_direct(acc, sums, low, middle, columns, s)
    low = tl.where(whole, inner_high * s.piece, high)
  return add_direct(acc, sums, low, high, columns, s)


@triton.jit
def sum_segments(
  sources, index, bags, weights, pieces, begin, end, columns, s: tl.constexpr
):
  """`[segments, width]`: the sum over each segment, in a fixed order.

  What lies in whole pieces was summed before, by `sum_pieces`: whatever its
  length, a segment has at most 2 (piece - 1) places of its own, and as many
  sums of each level but the last.

  Args:
    sources: the matrix.
    index: as in `add_sources`.
    bags: as in `add_sources`.
    weights: as in `add_sources`.
    pieces: three matrices of sums, over piece, piece^2, piece^3 places; those
      with more places than `s.top` are not read.
    begin: `[lanes]`, as in `add_sources`.
    end: `[lanes]`.
    columns: from `columns_of`.
    s: constants.
  """
  acc = zeros(s.lanes, s.width)
  if s.top == 0:
    acc = add_sources(
      acc, sources, index, bags, weights, begin, end, columns, s
    )
  else:
    low = _round_up(begin, s.piece)
    high = end // s.piece
    whole = low < high
    # Up to the first piece; nearly always there is none, and this is all.
    head = tl.where(whole, low * s.piece, end)
    acc = add_sources(
      acc, sources, index, bags, weights, begin, head, columns, s
    )
    if tl.max(whole.to(tl.int32), 0) > 0:
      tail = tl.where(whole, high * s.piece, end)
      acc = add_sources(
        acc, sources, index, bags, weights, tail, end, columns, s
      )
      first, second, third = pieces
      acc = _add_level(acc, first, begin, end, s.piece, columns, s)
      if s.top > s.piece:
        acc = _add_level(acc, second, begin, end, s.piece * s.piece, columns, s)
      if s.top > s.piece * s.piece:
        acc = _add_level(
          acc, third, begin, end, s.piece * s.piece * s.piece, columns, s
        )
  return sum_lanes(acc, s)
