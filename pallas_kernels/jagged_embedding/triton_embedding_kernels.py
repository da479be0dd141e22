"""Triton kernels of embeddings: lookups, lists of bags and runs, pieces.

Importing this file imports triton; `gpu.py`, which prepares the arguments, does
so when a kernel is called. `s`, a `gpu_plan.Constants`, is what a kernel is
compiled for. Nothing is added by atomics, and every sum has one order, so that
results never vary.
"""

import triton
import triton.language as tl

from pallas_kernels.jagged_embedding.triton_embedding_tiles import (
  add_direct,
  add_sources,
  addresses,
  columns_of,
  load_index,
  make_filled,
  mask_of,
  sum_lanes,
  sum_segments,
  zeros,
)


@triton.jit
def _load_counted(numbers, place, s: tl.constexpr):
  """What is added up: lengths, or ones where another id begins."""
  real = place < s.count
  number = tl.load(numbers + place, mask=real, other=0).to(tl.int32)
  if s.heads:
    # The first id is other than the one before it, which does not exist.
    before = tl.load(numbers + place - 1, mask=real & (place > 0), other=0)
    other = (number != before.to(tl.int32)) | (place == 0)
    number = (real & other).to(tl.int32)
  return number


@triton.jit
def sum_blocks(numbers, sums, s: tl.constexpr):
  """`[blocks]` int32: sums of the numbers of each block."""
  block = tl.program_id(0)
  place = block * s.block + tl.arange(0, s.block)
  tl.store(sums + block, tl.sum(_load_counted(numbers, place, s), 0))


@triton.jit
def _add_up(numbers, sums, s: tl.constexpr):
  """Places of this block; what is counted of each; all up to and with it."""
  block = tl.program_id(0)
  part = make_filled(s.block, 0)
  # Every program adds up the sums before it, which a few loads bring.
  for first in range(0, block, s.block):
    other = first + tl.arange(0, s.block)
    part += tl.load(sums + other, mask=other < block, other=0)
  place = block * s.block + tl.arange(0, s.block)
  number = _load_counted(numbers, place, s)
  return place, number, tl.sum(part, 0) + tl.cumsum(number, 0)


@triton.jit
def list_ends(lengths, sums, ends, s: tl.constexpr):
  """`[B]` int32: where each bag ends, inside the ids also for wrong lengths."""
  place, _, total = _add_up(lengths, sums, s)
  total = tl.minimum(tl.maximum(total, 0), s.capacity)
  tl.store(ends + place, total, mask=place < s.count)


@triton.jit
def list_runs(keys, sums, starts, runs, s: tl.constexpr):
  """Where each run of equal keys starts, and how many runs are rows.

  Args:
    keys: `[K]` uint32, sorted; `s.rows` at the end where there is no row.
    sums: `[blocks]`, from `sum_blocks`.
    starts: `[min(K, rows) + 1]`, also the end of the last run that is a row.
    runs: `[1]`.
    s: constants.
  """
  place, head, total = _add_up(keys, sums, s)
  tl.store(starts + total - 1, place, mask=head == 1)
  if tl.program_id(0) == tl.num_programs(0) - 1:
    count = tl.max(total, 0)
    # Keys that are no rows make a run of their own, whose start is an end.
    spare = tl.load(keys + s.count - 1).to(tl.int32) == s.rows
    count = count - spare.to(tl.int32)
    tl.store(runs, count)
    tl.store(starts + count, s.count, mask=spare == 0)


@triton.jit
def _find_bag(ends, place, count: tl.constexpr, s: tl.constexpr):
  """The bag of each place, by bisection; the number of bags for padding."""
  low = make_filled(count, 0)
  high = make_filled(count, s.bags)
  for _ in range(s.steps):
    middle = (low + high) // 2
    end = load_index(ends, tl.minimum(middle, s.bags - 1), s)
    right = (end <= place) & (middle < high)
    low = tl.where(right, middle + 1, low)
    high = tl.where(right, high, middle)
  return low


@triton.jit
def find_bags(ids, ends, keys, bags, s: tl.constexpr):
  """The bag of each id, and what it is sorted by.

  Args:
    ids: `[K]` int32.
    ends: `[B]`, from `list_ends`.
    keys: `[K]` uint32: the id, or `s.rows` for padding and what is no row.
    bags: `[K]` int32: the bag; the last one for padding.
    s: constants.
  """
  place = tl.program_id(0) * s.block + tl.arange(0, s.block)
  real = place < s.count
  bag = _find_bag(ends, place, s.block, s)
  key = tl.load(ids + place, mask=real, other=0)
  is_row = (bag < s.bags) & (key >= 0) & (key < s.rows)
  tl.store(keys + place, tl.where(is_row, key, s.rows), mask=real)
  tl.store(bags + place, bag, mask=real)


@triton.jit
def gather_rows(table, ids, count, out, s: tl.constexpr):
  """The row of each id, as `spec.gather`."""
  columns = columns_of(tl.program_id(0) % s.column_blocks, s)
  place = tl.program_id(0) // s.column_blocks * s.lanes
  place += tl.arange(0, s.lanes)
  row = load_index(ids, tl.minimum(place, s.count - 1), s)
  real = place < tl.minimum(tl.load(count), s.count)
  known = real & (row >= 0) & (row < s.sources)
  tile = tl.load(
    addresses(table, row, columns, s),
    mask=mask_of(known, columns, s),
    other=0.0,
  )
  wrong = real & (known == 0)
  if s.spare:
    wrong = wrong & (row != s.sources)
  tile = tl.where(wrong[:, None], float('nan'), tile.to(tl.float32))
  tl.store(
    addresses(out, place, columns, s),
    tile.to(out.dtype.element_ty),
    mask=mask_of(place < s.count, columns, s),
  )


@triton.jit
def weight_gradient(table, ids, bags, grads, out, s: tl.constexpr):
  """`[K]`: products of the row of each id with the gradient of its bag."""
  place = tl.program_id(0) * s.lanes + tl.arange(0, s.lanes)
  at = tl.minimum(place, s.count - 1)
  row = load_index(ids, at, s)
  bag = load_index(bags, at, s)
  # Padding may hold any id.
  real = (place < s.count) & (bag < s.bags)
  known = real & (row >= 0) & (row < s.sources)
  total = tl.sum(zeros(s.lanes, s.width), 1)
  for block in range(s.column_blocks):
    columns = columns_of(block, s)
    mask = mask_of(known, columns, s)
    a = tl.load(addresses(table, row, columns, s), mask=mask, other=0.0)
    b = tl.load(addresses(grads, bag, columns, s), mask=mask, other=0.0)
    total += tl.sum(a.to(tl.float32) * b, 1)
  total = tl.where(real & (known == 0), float('nan'), total)
  tl.store(out + place, total, mask=place < s.count)


@triton.jit
def sum_pieces(
  keys, sources, index, bags, weights, below, sums, s: tl.constexpr
):
  """The sum of each piece of `s.span` places that is of one segment.

  Other pieces are left as they are, and nobody reads them.

  Args:
    keys: sorted ids of the places, or, by bag, the ends of the bags.
    sources: rows that the places stand for.
    index: as in `sum_segments`.
    bags: as in `sum_segments`.
    weights: as in `sum_segments`.
    below: sums of `s.span // s.piece` places each; not read if those are 1.
    sums: `[pieces, D]`.
    s: constants.
  """
  piece = tl.program_id(0) // s.column_blocks
  columns = columns_of(tl.program_id(0) % s.column_blocks, s)
  begin = piece * s.span
  last = begin + (s.span - 1)
  if s.by_bag:
    first = tl.max(_find_bag(ends=keys, place=begin, count=1, s=s), 0)
    if first >= s.bags:
      return
    if tl.load(keys + first) <= last:
      return
  else:
    key = tl.load(keys + begin).to(tl.int32)
    if key >= s.rows:
      return
    if tl.load(keys + last).to(tl.int32) != key:
      return
  acc = zeros(s.lanes, s.width)
  if s.span == s.piece:
    start = make_filled(s.lanes, 0) + begin
    acc = add_sources(
      acc, sources, index, bags, weights, start, start + s.piece, columns, s
    )
  else:
    start = make_filled(s.lanes, 0) + piece * s.piece
    acc = add_direct(acc, below, start, start + s.piece, columns, s)
  row = make_filled(s.segments, 0) + piece
  tl.store(
    addresses(sums, row, columns, s),
    sum_lanes(acc, s),
    mask=mask_of(row >= 0, columns, s),
  )


@triton.jit
def sum_bags(table, ids, ends, weights, pieces, out, s: tl.constexpr):
  """`[B, D]`: the sum of the rows of each bag."""
  columns = columns_of(tl.program_id(0) % s.column_blocks, s)
  first = tl.program_id(0) // s.column_blocks * s.segments
  bag = first + tl.arange(0, s.lanes) // s.ahead
  real = bag < s.bags
  end = load_index(ends, tl.minimum(bag, s.bags - 1), s)
  begin = load_index(ends, tl.minimum(tl.maximum(bag - 1, 0), s.bags - 1), s)
  begin = tl.where(bag == 0, 0, begin)
  end = tl.where(real, end, begin)
  every = pieces, pieces, pieces  # of the same length: there is one level
  total = sum_segments(table, ids, ids, weights, every, begin, end, columns, s)
  row = first + tl.arange(0, s.segments)
  tl.store(
    addresses(out, row, columns, s),
    total,
    mask=mask_of(row < s.bags, columns, s),
  )
