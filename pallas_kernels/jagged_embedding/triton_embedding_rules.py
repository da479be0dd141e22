"""The arithmetic of `rules.py` and `rounding.py` on a tile of Triton.

Importing this file imports triton. Tiles are `[segments, width]` and hold zeros
beyond the columns of the table; slots that are one number a row are vectors.
`s` is a `gpu_plan.Constants`.
"""

import triton
import triton.language as tl


@triton.jit
def _divide(a, b):
  # As the other backends do; Triton's `/` is off by up to two last digits.
  return tl.div_rn(a, b)


@triton.jit
def _inside(x, columns, s: tl.constexpr):
  """The tile with zeros beyond the last column."""
  if s.dim < s.width:
    x = tl.where((columns < s.dim)[None, :], x, 0.0)
  return x


@triton.jit
def _norm(x, columns, s: tl.constexpr):
  x = _inside(x, columns, s)
  return tl.sqrt_rn(tl.sum(x * x, 1))


@triton.jit
def _ratio(a, b):
  # Divided by one where the quotient is not chosen.
  some = (a > 0.0) & (b > 0.0)
  return tl.where(some, _divide(a, tl.where(some, b, 1.0)), 1.0)


@triton.jit
def _correction(log: tl.constexpr, count):
  """-1 / expm1(count * log), which Triton does not have."""
  x = count * log
  # A series where exp(x) - 1 would lose digits: x^12 / 12! is below 2^-24.
  series = x * (1 / 11) + 1.0
  series = series * x * (1 / 10) + 1.0
  series = series * x * (1 / 9) + 1.0
  series = series * x * (1 / 8) + 1.0
  series = series * x * (1 / 7) + 1.0
  series = series * x * (1 / 6) + 1.0
  series = series * x * (1 / 5) + 1.0
  series = series * x * (1 / 4) + 1.0
  series = series * x * (1 / 3) + 1.0
  series = series * x * (1 / 2) + 1.0
  small = x > -0.7
  difference = tl.where(small, series * x, tl.exp(x) - 1.0)
  return -1.0 / difference


@triton.jit
def _direction(w, g, slots, numbers, columns, s: tl.constexpr):
  """Adam's step before the learning rate, and its slots."""
  mean, square, count = slots
  rate, correct1, correct2 = numbers
  mean = s.beta1 * mean + s.rest1 * g
  if s.row_wise:
    size = tl.sum(_inside(g * g, columns, s), 1) / s.dim
  else:
    size = g * g
  square = s.beta2 * square + s.rest2 * size
  if s.row_count:
    count += 1.0
    u = _correction(s.log1, count)[:, None] * mean
    if s.row_wise:
      corrected = _correction(s.log2, count) * square
    else:
      corrected = _correction(s.log2, count)[:, None] * square
  else:
    u = correct1 * mean
    corrected = correct2 * square
  root = tl.sqrt_rn(corrected) + s.eps
  if s.row_wise:
    root = root[:, None]
  return _divide(u, root), (mean, square, count)


@triton.jit
def take_step(w, grads, slots, numbers, columns, s: tl.constexpr):
  """What to take off the rows, and the new slots, as `rules.step`.

  Args:
    w: the rows.
    grads: their gradients.
    slots: three; those that an optimizer does not have may be anything.
    numbers: learning rate and the two corrections of Adam's means.
    columns: numbers of the columns.
    s: constants.
  """
  rate, correct1, correct2 = numbers
  first, second, third = slots
  g = grads
  if s.l2 != 0.0:
    g = grads + s.l2 * w
  if s.optimizer == 'sgd':
    off = rate * g
  elif s.optimizer == 'momentum':
    first = s.momentum * first + g
    off = rate * first
  elif s.optimizer == 'lars':
    size = _norm(w, columns, s)
    ratio = _ratio(s.trust * size, _norm(grads, columns, s) + s.l2 * size)
    first = s.momentum * first + (rate * ratio)[:, None] * g
    off = first
  elif s.optimizer == 'row_adagrad':
    first = first + tl.sum(_inside(g * g, columns, s), 1) / s.dim
    root = (tl.sqrt_rn(first) + s.eps)[:, None]
    off = _divide(rate * g, root)
  elif s.optimizer == 'adagrad':
    first = first + g * g
    off = _divide(rate * g, tl.sqrt_rn(first) + s.eps)
  else:
    # In two steps: Triton 3.6 knows no tuple among the targets.
    u, slots = _direction(w, g, slots, numbers, columns, s)
    first, second, third = slots
    if s.decoupled != 0.0:
      u = u + s.decoupled * w
    off = rate * u
    if s.lamb:
      length = _ratio(_norm(w, columns, s), _norm(u, columns, s))
      off = (rate * length)[:, None] * u
  if s.decay_apart:
    off = off + rate * s.decoupled * w
  return off, (first, second, third)


@triton.jit
def shrink(rows, columns, s: tl.constexpr):
  """Rows longer than `s.max_norm` at that norm; 0 is no limit."""
  if s.max_norm != 0.0:
    norm = _norm(rows, columns, s)
    longer = norm > s.max_norm
    factor = _divide(s.max_norm, tl.where(longer, norm, 1.0))
    rows = tl.where(longer[:, None], rows * factor[:, None], rows)
  return rows


@triton.jit
def _mix(x):
  """The same as `hashing.mix`."""
  x = (x ^ (x >> 16)) * tl.full((), 0x85EBCA6B, tl.uint32)
  x = (x ^ (x >> 13)) * tl.full((), 0xC2B2AE35, tl.uint32)
  return x ^ (x >> 16)


@triton.jit
def _element_bits(seed, row, column):
  """The same as `hashing.element_bits`, of uint32."""
  factor = tl.full((), 0x9E3779B9, tl.uint32)
  return _mix(_mix(seed ^ _mix(row))[:, None] + column * factor)


@triton.jit
def _to_bfloat16(x, random):
  bits = x.to(tl.uint32, bitcast=True) + (random >> 16)
  bits = bits & tl.full((), 0xFFFF0000, tl.uint32)
  return bits.to(tl.float32, bitcast=True)


@triton.jit
def _to_float16(x, random):
  """The same as `rounding._to_float16`."""
  bits = x.to(tl.uint32, bitcast=True)
  power = tl.maximum(
    bits & tl.full((), 0x7F800000, tl.uint32),
    tl.full((), 113 << 23, tl.uint32),
  )
  one = power - tl.full((), 10 << 23, tl.uint32)
  one = one.to(tl.float32, bitcast=True)
  scale = tl.full((), 264 << 23, tl.uint32) - power
  places = tl.abs(x) * scale.to(tl.float32, bitcast=True)
  below = tl.floor(places)
  # 24 random bits, as many as a float32 holds exactly.
  upper = (random >> 8).to(tl.float32) < (places - below) * 16777216.0
  size = (below + upper.to(tl.float32)) * one
  sign = bits & tl.full((), 0x80000000, tl.uint32)
  size = size.to(tl.uint32, bitcast=True) | sign
  return size.to(tl.float32, bitcast=True)


@triton.jit
def round_rows(x, dtype: tl.constexpr, seed, row, column, s: tl.constexpr):
  """Rounds rows to the table's dtype, as `rounding.to_dtype`.

  Args:
    x: the rows.
    dtype: of the table.
    seed: uint32, read if `s.stochastic`.
    row: `[segments]` uint32, numbers of the rows.
    column: uint32, numbers of the columns, in the shape of `x` or `[1, width]`.
    s: constants.
  """
  if s.stochastic:
    random = _element_bits(seed, row, column)
    if dtype == tl.bfloat16:
      rounded = _to_bfloat16(x, random)
      largest = 3.3895313892515355e38
    else:
      rounded = _to_float16(x, random)
      largest = 65504.0
    # NaN compares false, and takes the ordinary conversion too.
    finite = tl.abs(x) <= largest
    y = tl.where(finite, rounded.to(dtype), x.to(dtype))
  else:
    y = x.to(dtype)
  return y
