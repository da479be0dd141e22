"""What the Triton kernels do with one tile: loads, masks, bias, activation.

Importing this file imports triton; `gpu.py` does so when a kernel is called.
Rows are queries and columns keys, or the other way round: everything here is
elementwise, on arrays that the caller has given the right axes. A `place` is
the tuple that `sequence` returns where it stands for a sequence, and otherwise
the positions of some tokens in it. `s` is a `gpu_plan.Constants`.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


# Some versions of Triton take no field of `s` in the list of a shape.
@triton.jit
def zeros(rows: tl.constexpr, columns: tl.constexpr):
  """A tile of zeros."""
  return tl.zeros([rows, columns], tl.float32)


@triton.jit
def make_filled(rows: tl.constexpr, value):
  """A vector of one value."""
  return tl.full([rows], value, tl.float32)


@triton.jit
def sequence(sequences, item, s: tl.constexpr):
  """The sequence and the head of a program.

  Args:
    sequences: the table of `gpu.sequence_table`.
    item: number of the pair, in which heads run faster than sequences.
    s: constants.

  Returns:
    The five numbers of the table, and the head.
  """
  at = sequences + item // s.heads * 5
  return (
    tl.load(at),  # first key token
    tl.load(at + 1),  # token of the query at position 0, were it there
    tl.load(at + 2),  # how many tokens
    tl.load(at + 3),  # position of the first query
    tl.load(at + 4),  # position of the first target
    item % s.heads,
  )


@triton.jit
def load_rows(
  values,
  first,
  place,
  real,
  head,
  heads: tl.constexpr,
  d: tl.constexpr,
  width: tl.constexpr,
  checked: tl.constexpr,
):
  """Loads a tile of tokens of one head, with zeros beyond d and if not real.

  Args:
    values: `[T, heads, d]`.
    first: number of the token at position 0.
    place: positions of the tokens.
    real: which of them exist.
    head: the head.
    heads: number of heads.
    d: width of a token.
    width: the width padded to a power of two.
    checked: whether to look at `real`; if not, all tokens must exist.
  """
  column = tl.arange(0, width)
  # 64 bits for the start alone: a large batch has more numbers than int32
  # counts, a sequence has not.
  at = values + (first.to(tl.int64) * heads + head) * d
  at = at + place[:, None] * (heads * d) + column[None, :]
  # A width that is a power of two, and a tile inside the sequence, need no mask
  # at all.
  if d < width:
    mask = (column < d)[None, :]
    if checked:
      mask = mask & real[:, None]
    tile = tl.load(at, mask=mask, other=0.0)
  else:
    if checked:
      tile = tl.load(at, mask=real[:, None], other=0.0)
    else:
      tile = tl.load(at)
  return tile


@triton.jit
def store_rows(
  values,
  first,
  place,
  real,
  head,
  tile,
  heads: tl.constexpr,
  d: tl.constexpr,
  width: tl.constexpr,
):
  """The counterpart of `load_rows`, in the dtype of `values`."""
  column = tl.arange(0, width)
  at = values + (first.to(tl.int64) * heads + head) * d
  at = at + place[:, None] * (heads * d) + column[None, :]
  mask = (column < d)[None, :] & real[:, None]
  tl.store(at, tile.to(values.dtype.element_ty), mask=mask)


@triton.jit
def order(position, limit, s: tl.constexpr):
  """The same as `masks.order`."""
  if s.contextual > 1:
    # One contextual token has order 0 anyhow.
    position = tl.maximum(position - (s.contextual - 1), 0)
  if s.targets:
    position = tl.minimum(position, limit)
  return position


@triton.jit
def limit_of(history, s: tl.constexpr):
  """Order of the targets, from the position of the first one."""
  return history - max(s.contextual - 1, 0)


@triton.jit
def visibility_mask(row, key, history, s: tl.constexpr):
  """The same as `masks.is_visible`, for positions inside the sequence."""
  limit = limit_of(history, s)
  query_order = order(row, limit, s)
  key_order = order(key, limit, s)
  if s.targets or s.contextual > 1:
    seen = (key == row) | (query_order > key_order)
  else:
    # The common case is one comparison.
    seen = key <= row
  if s.window:
    near = query_order - key_order <= s.window
    if s.full_tail:
      near = near | (query_order >= limit - s.full_tail)
    if s.prefix:
      near = near | (key < s.prefix)
    seen = seen & near
  if s.contextual:
    seen = seen | ((query_order == 0) & (key_order < limit))
  return seen


@triton.jit
def load_entry(table, index, s: tl.constexpr):
  """The entry of a small table of float32 at each index, none negative.

  Triton would copy each entry of a `tl.load` to shared memory by itself, to
  have it early, and read it back in another layout: with two such loads a tile
  the attention took seven times as long on an H100. An instruction of PTX it
  leaves where it is.
  """
  if s.ptx:
    entry = tl.inline_asm_elementwise(
      """{
        .reg .u64 at;
        mad.wide.u32 at, $1, 4, $2;
        ld.global.nc.f32 $0, [at];
      }""",
      '=f,r,l',
      [index, table.to(tl.int64)],
      dtype=tl.float32,
      is_pure=True,
      pack=1,
    )
  else:
    entry = tl.load(table + index)
  return entry


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
def bias_of(
  row,
  key,
  row_time,
  key_time,
  place,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """The sum of both biases; what is beyond the sequence gets any number.

  Args:
    row: positions of the queries.
    key: positions of the keys, on the other axis.
    row_time: times of the queries.
    key_time: times of the keys.
    place: from `sequence`.
    tables: position table, cells of the time table, seed.
    masked: whether the tile needs a mask.
    s: constants.

  Returns:
    A tile, or 0 without any table.
  """
  start, query_base, length, skipped, history, head = place
  position_table, cells, _ = tables
  if s.buckets:
    reached, below, above, _ = load_cell(cells, row_time, key_time, s)
    bias = tl.where(reached, above, below)
  if s.zero >= 0:
    # All targets have the position of the first one.
    # Without targets, history is the length: the table is read up to the last
    # token, also for rows and keys beyond it.
    last = tl.minimum(history, length - 1)
    row = tl.minimum(row, last)
    # A key that all rows see is neither a target nor beyond the sequence.
    if masked or s.targets:
      key = tl.minimum(key, last)
    entry = load_entry(position_table, key - (row - s.zero), s)
    bias = entry + bias if s.buckets else entry
  elif s.buckets == 0:
    bias = 0.0
  return bias


@triton.jit
def scores_of(a, b, bias, s: tl.constexpr):
  """The products of all rows of two tiles, times alpha, and a bias."""
  if s.alpha == 1.0 and (s.zero >= 0 or s.buckets > 0):
    # The matrix unit adds to what is there.
    x = tl.dot(a, tl.trans(b), bias, input_precision=s.precision)
  else:
    x = tl.dot(a, tl.trans(b), input_precision=s.precision) * s.alpha + bias
  return x


@triton.jit
def dropout_mask(tables, head, row_token, key_token, s: tl.constexpr):
  """The same as `hashing.keep_mask`.

  Args:
    tables: the tables of the biases; the last one is the seed.
    head: the head.
    row_token: numbers of the queries among all tokens.
    key_token: numbers of the keys.
    s: constants.
  """
  factor_row = tl.full((), 0x9E3779B1, tl.uint32)
  factor_key = tl.full((), 0x85EBCA77, tl.uint32)
  factor_head = tl.full((), 747796405, tl.uint32)
  # uint32 wraps around as in `hashing`, whose factors these are.
  row_token = row_token.to(tl.uint32)
  of_row = tl.load(tables[2]) + row_token * factor_row
  of_key = (row_token - key_token.to(tl.uint32)) * factor_key
  x = of_row ^ (of_key + tl.cast(head, tl.uint32) * factor_head)
  x = (x ^ (x >> 16)) * tl.full((), 0x85EBCA6B, tl.uint32)
  x = (x ^ (x >> 13)) * tl.full((), 0xC2B2AE35, tl.uint32)
  x = x ^ (x >> 16)
  return x >= tl.full((), s.drop_below, tl.uint32)


@triton.jit
def sigmoid(x, s: tl.constexpr):
  """1 / (1 + exp(-x)); by one special-function operation where s.tanh."""
  if s.tanh:
    half = tl.inline_asm_elementwise(
      'tanh.approx.f32 $0, $1;',
      '=f,f',
      [0.5 * x],
      dtype=tl.float32,
      is_pure=True,
      pack=1,
    )
    # sigmoid(x) = (1 + tanh(x / 2)) / 2.
    y = 0.5 * half + 0.5
  else:
    y = 1.0 / (1.0 + tl.exp2(x * -LOG2E))
  return y


@triton.jit
def weight_and_slope(x, lse, s: tl.constexpr):
  """The weight of each score and its derivative; of softmax the weight twice.

  Args:
    x: scores.
    lse: the softmax's log2-sums, or anything.
    s: constants.
  """
  if s.silu:
    gate = sigmoid(x, s)
    weight = x * gate
    # The derivative of x sigmoid(x).
    slope = gate + weight * (1.0 - gate)
  else:
    # The sums are kept as logarithms of base 2, for which there is an
    # instruction.
    weight = tl.exp2(x * LOG2E - lse)
    slope = weight
  return weight, slope


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
def row_sums(sums, query_base, row, real, head, other, s: tl.constexpr):
  """Loads a number for each of some queries; zeros for SiLU.

  Args:
    sums: `[Tq, H]`.
    query_base: number of the query at position 0.
    row: positions of the queries.
    real: which of them exist.
    head: the head.
    other: the number of those that do not.
    s: constants.
  """
  if s.silu:
    value = make_filled(s.block_q, 0.0)
  else:
    at = sums + (query_base + row) * s.heads + head
    value = tl.load(at, mask=real, other=other)
  return value


@triton.jit
def score_gradient(
  x,
  dot_ov,
  row,
  key,
  lse,
  delta,
  place,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Weights, and the gradient of the scores but for `s.scale`, of one tile.

  Args:
    x: scores.
    dot_ov: products of the output's gradient and the values.
    row: positions of the queries, on their axis, as all numbers of a query.
    key: positions of the keys, on the other axis.
    lse: the softmax's log2-sums, or anything.
    delta: rowsum(out * gradient of out) times the share kept, or anything.
    place: from `sequence`.
    tables: tables of the biases, and the seed of the dropout.
    masked: whether the tile needs a mask.
    s: constants.
  """
  start, query_base, length, skipped, history, head = place
  weight, slope = weight_and_slope(x, lse, s)
  # The gradient of the weights, before the activation.
  gradient = dot_ov
  if s.drop_below:
    keep = dropout_mask(tables, head, start + row, start + key, s)
    gradient = tl.where(keep, gradient, 0.0)
  if s.silu:
    gradient = gradient * slope
  else:
    # Dropout scales the kept weights, so delta was multiplied by the share
    # kept; `s.scale` puts it back for both.
    gradient = (gradient - delta) * slope
  if s.drop_below:
    # After the slope has been taken: it is that of the weight as it was.
    weight = tl.where(keep, weight, 0.0)
  if masked:
    # Last, so that whatever lies beyond the sequence is dropped.
    seen = visibility_mask(row, key, history, s)
    weight = tl.where(seen, weight, 0.0)
    gradient = tl.where(seen, gradient, 0.0)
  return weight, gradient
