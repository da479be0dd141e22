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
def load_block(
  values,
  first,
  row0,
  least,
  last,
  head,
  rows: tl.constexpr,
  heads: tl.constexpr,
  d: tl.constexpr,
  width: tl.constexpr,
):
  """Loads a block of tokens of one head; any others stand where none is.

  Takes fewer instructions than `load_rows`, since all blocks of a turn share
  the distances inside them.

  Args:
    values: `[T, heads, d]`.
    first: number of the token at position 0.
    row0: position of the first token.
    least: position of the first token that exists.
    last: position of the last one.
    head: the head.
    rows: tokens of the block.
    heads: number of heads.
    d: width of a token.
    width: the width padded to a power of two.
  """
  column = tl.arange(0, width)
  row = tl.minimum(tl.maximum(tl.arange(0, rows), least - row0), last - row0)
  at = values + ((first + row0).to(tl.int64) * heads + head) * d
  at = at + (row[:, None] * (heads * d) + column[None, :])
  if d < width:
    tile = tl.load(at, mask=(column < d)[None, :], other=0.0)
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
def halve(tile, s: tl.constexpr):
  """A factor of the scores as `scores_of` takes it."""
  if s.halved and s.zero < 0 and s.buckets == 0:
    # Exact, but for numbers far too small to count.
    tile = (tile * 0.5).to(tile.dtype)
  return tile


@triton.jit
def scores_of(a, b, bias, s: tl.constexpr):
  """The products of all rows of two tiles, times alpha, and a bias.

  Where `s.halved`, so are the biases, and with them the scores: so `sigmoid`
  wants them. With a bias both products are one instruction of each score, which
  waits for the bias while the matrix unit works. Without, one of the tiles has
  been halved.
  """
  x = tl.dot(a, tl.trans(b), input_precision=s.precision)
  if s.zero >= 0 or s.buckets > 0:
    if s.halved:
      x = x * (0.5 * s.alpha) + bias
    else:
      x = x * s.alpha + bias
  elif s.alpha != 1.0:
    x *= s.alpha
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
def tanh(x):
  """The hyperbolic tangent, by one special-function operation."""
  return tl.inline_asm_elementwise(
    'tanh.approx.f32 $0, $1;',
    '=f,f',
    [x],
    dtype=tl.float32,
    is_pure=True,
    pack=1,
  )


@triton.jit
def silu(x, s: tl.constexpr):
  """x sigmoid(x); from x / 2 where `s.halved`."""
  if s.halved:
    # sigmoid(x) = (1 + tanh(x / 2)) / 2.
    y = x * tanh(x) + x
  else:
    y = x / (1.0 + tl.exp2(x * -LOG2E))
  return y


@triton.jit
def weight_and_slope(x, lse, s: tl.constexpr):
  """The weight of each score and its derivative; of softmax the weight twice.

  Args:
    x: scores; halved where `s.halved`, and then the derivative is doubled.
    lse: the softmax's log2-sums, or anything.
    s: constants.
  """
  if s.halved:
    signed = tanh(x)
    weight = x * signed + x
    # With t = tanh(x / 2), the derivative of x sigmoid(x) is
    # (1 + t) (1 + x / 2 (1 - t)) / 2; both products are one instruction.
    gate = 1.0 + signed
    slope = gate * (x - x * signed) + gate
  elif s.silu:
    gate = 1.0 / (1.0 + tl.exp2(x * -LOG2E))
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
  seen,
  place,
  tables,
  masked: tl.constexpr,
  s: tl.constexpr,
):
  """Weights, and the gradient of the scores but for `s.slope`, of one tile.

  Args:
    x: scores.
    dot_ov: products of the output's gradient and the values.
    row: positions of the queries, on their axis, as all numbers of a query.
    key: positions of the keys, on the other axis.
    lse: the softmax's log2-sums, or anything.
    delta: rowsum(out * gradient of out) times the share kept, or anything.
    seen: which queries see which keys, or anything if not `masked`.
    place: from `sequence`, with the head.
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
    # kept; `s.slope` puts it back for both.
    gradient = (gradient - delta) * slope
  if s.drop_below:
    # After the slope has been taken: it is that of the weight as it was.
    weight = tl.where(keep, weight, 0.0)
  if masked:
    # Last, so that whatever lies beyond the sequence is dropped.
    weight = tl.where(seen, weight, 0.0)
    gradient = tl.where(seen, gradient, 0.0)
  return weight, gradient
