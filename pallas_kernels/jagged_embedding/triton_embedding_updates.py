"""Triton kernels that add up the gradients of each row, and move rows by them.

As `triton_embedding_kernels.py`, whose kernels list the runs: importing this
file imports triton, `s` is a `gpu_plan.Constants`, and results never vary.
"""

import triton
import triton.language as tl

from pallas_kernels.jagged_embedding.triton_embedding_rules import (
  round_rows,
  shrink,
  take_step,
)
from pallas_kernels.jagged_embedding.triton_embedding_tiles import (
  addresses,
  columns_of,
  load_index,
  mask_of,
  sum_segments,
)


@triton.jit
def merge_runs(
  keys,
  starts,
  runs,
  index,
  bags,
  weights,
  grads,
  pieces1,
  pieces2,
  pieces3,
  out_ids,
  out_grads,
  s: tl.constexpr,
):
  """The id of each run and the sum of its gradients, as `MergedRows`.

  Args:
    keys: `[K]`, as in `list_runs`.
    starts: `[N + 1]`, from `list_runs`.
    runs: `[1]`.
    index: as in `sum_segments`, as all up to `pieces3`.
    bags: likewise.
    weights: likewise.
    grads: its sources.
    pieces1: likewise.
    pieces2: likewise.
    pieces3: likewise.
    out_ids: `[N]` int32.
    out_grads: `[N, D]` float32.
    s: constants.
  """
  block = tl.program_id(0) % s.column_blocks
  columns = columns_of(block, s)
  first = tl.program_id(0) // s.column_blocks * s.segments
  lane = first + tl.arange(0, s.lanes) // s.ahead
  count = tl.load(runs)
  begin, end = _load_run(starts, lane, count, s)
  total = sum_segments(
    grads,
    index,
    bags,
    weights,
    (pieces1, pieces2, pieces3),
    begin,
    end,
    columns,
    s,
  )
  run = first + tl.arange(0, s.segments)
  real = run < s.runs
  tl.store(
    addresses(out_grads, run, columns, s),
    total,
    mask=mask_of(real, columns, s),
  )
  if block == 0:
    start, _ = _load_run(starts, run, count, s)
    key = load_index(keys, start, s)
    tl.store(out_ids + run, tl.where(run < count, key, s.rows), mask=real)


@triton.jit
def _load_run(starts, run, count, s: tl.constexpr):
  """Where each run starts and ends; 0 and 0 for those that do not exist."""
  real = run < count
  run = tl.where(real, run, 0)
  begin = load_index(starts, run, s)
  end = load_index(starts, run + 1, s)
  return tl.where(real, begin, 0), tl.where(real, end, 0)


@triton.jit
def _load_slot(slot, row, live, columns, kind: tl.constexpr, s: tl.constexpr):
  # Every row is read once, so that the cache may forget it.
  if kind == 'element':
    value = tl.load(
      addresses(slot, row, columns, s),
      mask=mask_of(live, columns, s),
      other=0.0,
      eviction_policy='evict_first',
    )
  elif kind == 'row':
    value = tl.load(slot + row, mask=live, other=0.0)
  else:
    value = 0.0
  return value


@triton.jit
def _store_slot(
  slot, row, live, columns, value, kind: tl.constexpr, s: tl.constexpr
):
  if kind == 'element':
    tl.store(
      addresses(slot, row, columns, s),
      value,
      mask=mask_of(live, columns, s),
      eviction_policy='evict_first',
    )
  elif kind == 'row':
    tl.store(slot + row, value, mask=live)


@triton.jit
def _load_state(state, row, live, columns, s: tl.constexpr):
  """Rows of the table in float32, and those of three slots."""
  table, first, second, third = state
  w = tl.load(
    addresses(table, row, columns, s),
    mask=mask_of(live, columns, s),
    other=0.0,
    eviction_policy='evict_first',
  ).to(tl.float32)
  # Of a text Triton 3.6 has to be told that it is a constant.
  slots = (
    _load_slot(first, row, live, columns, tl.constexpr(s.first), s),
    _load_slot(second, row, live, columns, tl.constexpr(s.second), s),
    _load_slot(third, row, live, columns, tl.constexpr(s.third), s),
  )
  return w, slots


@triton.jit
def _move(
  state, scalars, row, live, w, slots, grads, seed, numbers, s: tl.constexpr
):
  """Moves rows by their gradients and writes them and their slots.

  Args:
    state: table and three slots.
    scalars: learning rate and the two corrections.
    row: `[segments]`.
    live: `[segments]`, whether there is such a row.
    w: the rows, from `_load_state`.
    slots: likewise.
    grads: `[segments, width]`.
    seed: of stochastic rounding.
    numbers: of the rows `[segments]` and columns that it hashes.
    s: constants.
  """
  columns = columns_of(0, s)
  rates = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
  off, slots = take_step(w, grads, slots, rates, columns, s)
  new = shrink(w - off, columns, s)
  table, first, second, third = state
  new = round_rows(new, table.dtype.element_ty, seed, numbers[0], numbers[1], s)
  tl.store(
    addresses(table, row, columns, s),
    new,
    mask=mask_of(live, columns, s),
    eviction_policy='evict_first',
  )
  _store_slot(first, row, live, columns, slots[0], tl.constexpr(s.first), s)
  _store_slot(second, row, live, columns, slots[1], tl.constexpr(s.second), s)
  _store_slot(third, row, live, columns, slots[2], tl.constexpr(s.third), s)


@triton.jit
def update_runs(
  scalars,
  seed,
  keys,
  starts,
  runs,
  index,
  bags,
  weights,
  grads,
  pieces1,
  pieces2,
  pieces3,
  old_table,
  old_first,
  old_second,
  old_third,
  table,
  first,
  second,
  third,
  s: tl.constexpr,
):
  """Sums the gradients of each run and moves its row.

  Args:
    scalars: `[3]` learning rate and the two corrections.
    seed: `[1]` uint32.
    keys: as in `merge_runs`, as all up to `pieces3`.
    starts: likewise.
    runs: likewise.
    index: likewise.
    bags: likewise.
    weights: likewise.
    grads: likewise.
    pieces1: likewise.
    pieces2: likewise.
    pieces3: likewise.
    old_table: the memory of `table`; never read by this name.
    old_first: that of `first`.
    old_second: that of `second`.
    old_third: that of `third`.
    table: `[rows, D]`, changed in place.
    first: its first slot, or anything.
    second: its second slot, or anything.
    third: its third slot, or anything.
    s: constants.
  """
  begin_run = tl.program_id(0) * s.segments
  count = tl.load(runs)
  # Programs are as many as runs could be.
  if begin_run >= count:
    return
  columns = columns_of(0, s)
  run = begin_run + tl.arange(0, s.segments)
  live = run < count
  start, _ = _load_run(starts, run, count, s)
  row = load_index(keys, start, s)
  state = table, first, second, third
  # Asked for before the gradients are, which come by way of their numbers.
  w, slots = _load_state(state, row, live, columns, s)
  lane = begin_run + tl.arange(0, s.lanes) // s.ahead
  begin, end = _load_run(starts, lane, count, s)
  total = sum_segments(
    grads,
    index,
    bags,
    weights,
    (pieces1, pieces2, pieces3),
    begin,
    end,
    columns,
    s,
  )
  numbers = row.to(tl.uint32), columns.to(tl.uint32)[None, :]
  _move(state, scalars, row, live, w, slots, total, tl.load(seed), numbers, s)


@triton.jit
def update_rows(
  scalars,
  seed,
  ids,
  row_numbers,
  first_columns,
  grads,
  old_table,
  old_first,
  old_second,
  old_third,
  table,
  first,
  second,
  third,
  s: tl.constexpr,
):
  """Moves the row of each id by its gradient.

  Args:
    scalars: `[3]` learning rate and the two corrections.
    seed: `[1]` uint32.
    ids: `[N]` int32, distinct but for those that are no rows.
    row_numbers: `[N]` uint32 that stochastic rounding hashes, if `s.numbered`.
    first_columns: `[N]` uint32, number of each row's first column, if
      `s.shifted`.
    grads: `[N, D]` float32.
    old_table: as in `update_runs`, as the others.
    old_first: likewise.
    old_second: likewise.
    old_third: likewise.
    table: likewise.
    first: likewise.
    second: likewise.
    third: likewise.
    s: constants.
  """
  place = tl.program_id(0) * s.segments + tl.arange(0, s.segments)
  at = tl.minimum(place, s.count - 1)
  columns = columns_of(0, s)
  row = load_index(ids, at, s)
  live = (place < s.count) & (row >= 0) & (row < s.rows)
  state = table, first, second, third
  w, slots = _load_state(state, row, live, columns, s)
  total = tl.load(
    addresses(grads, at, columns, s), mask=mask_of(live, columns, s), other=0.0
  )
  number = row
  if s.numbered:
    number = load_index(row_numbers, at, s)
  column = columns.to(tl.uint32)[None, :]
  if s.shifted:
    shift = load_index(first_columns, at, s).to(tl.uint32)
    column = column + shift[:, None]
  numbers = number.to(tl.uint32), column
  _move(state, scalars, row, live, w, slots, total, tl.load(seed), numbers, s)
