"""Plain statements of the quantisers: one row, one element at a time."""

import numpy as np

F4, F2 = np.float32, np.float16


def packed(codes, bits: int) -> bytes:
  """A row of codes as bytes: one whole number, written from its low end."""
  number = sum(int(code) << (j * bits) for j, code in enumerate(codes))
  return number.to_bytes(-(-len(codes) * bits // 8), 'little')


def half_levels(low, high, bits: int):
  """FBGEMM's bias and scale of 4 and 2 bits (SBHalf), as float32."""
  bias = F4(F2(low))
  span = F4(high) - bias
  scale = F4(F2(F4(1) if span == 0 else span / F4(2**bits - 1)))
  if scale == 0:
    scale = F4(1)
  with np.errstate(over='ignore'):
    inverse = F4(1) / scale
  if np.isinf(inverse):
    scale = inverse = F4(1)
  return bias, scale, inverse


def half_row(row, low, high, bits: int):
  """(codes, scale, bias) of FBGEMM's SBHalf over a given range."""
  bias, scale, inverse = half_levels(low, high, bits)
  top = F4(2**bits - 1)
  codes = [
    int(min(max(np.rint((x - bias) * inverse), F4(0)), top)) for x in row
  ]
  return codes, F2(scale), F2(bias)


def float_row(row):
  """(codes, scale, bias, sure) of FBGEMM's SBFloat, 8 bits.

  `sure[j]`: code j is not so near the middle between two levels that the 1e-8
  in FBGEMM's denominator, which we leave out, decides about it.
  """
  low, high = min(row), max(row)
  span = high - low
  inverse = F4(255) / (span + F4(1e-8))
  exact = [float(x - low) * 255 / max(float(span), 1e-30) for x in row]
  codes = [int(np.rint((x - low) * inverse)) for x in row]
  slack = 1e-4 + 255e-8 / max(float(span), 1e-30)
  sure = [abs(x % 1 - 0.5) > slack for x in exact]
  return codes, span / F4(255), low, sure


def symmetric_row(row, bits: int, dtype):
  """(codes, scale): codes from zero on, the middle one stands for 0."""
  top = 2 ** (bits - 1) - 1
  largest = max(abs(x) for x in row)
  if not largest:
    return [top] * len(row), F4(1 if dtype is F2 else 0)
  scale = F4(dtype(largest / F4(top)))
  inverse = F4(1) / scale if dtype is F2 else F4(top) / largest
  codes = [int(np.clip(np.rint(x * inverse), -top, top)) + top for x in row]
  return codes, scale


def greedy(row, bits: int, bins: int, ratio: float):
  """(low, high) that torch.choose_qparams_optimized finds."""
  low, high = min(row), max(row)
  step = (high - low) / F4(bins)
  kept = F4(bins * (1.0 - ratio)) * step
  now_low, now_high = low, high
  error = best = _loss(row, low, high, bits)
  while now_low + kept < now_high:
    raised = _loss(row, now_low + step, now_high, bits)
    lowered = _loss(row, now_low, now_high - step, bits)
    if error < raised and error < lowered and error < best:
      best, low, high = error, now_low, now_high
    if raised < lowered:
      now_low, error = now_low + step, raised
    else:
      now_high, error = now_high - step, lowered
  return low, high


def _loss(row, low, high, bits: int):
  bias, scale, inverse = half_levels(low, high, bits)
  top, total = F4(2**bits - 1), F4(0)
  for x in row:
    code = max(F4(0), min(np.rint((x - bias) * inverse), top))
    off = x - (code * scale + bias)
    total += off * off
  return np.sqrt(total)


def least_error(row, levels: int) -> float:
  """L2 error of a row with the best levels there are, in float64.

  `best[j]` is the error of the first j numbers in order, with as many clusters
  as rounds have passed.
  """
  x = np.sort(np.asarray(row, np.float64))
  sums, squares = (np.append(0, np.cumsum(y)) for y in (x, x * x))
  begin, end = np.indices((len(x) + 1,) * 2)
  count = np.maximum(end - begin, 1)
  cost = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / count
  cost = np.where(begin < end, np.maximum(cost, 0), np.inf)
  best = np.where(np.arange(len(x) + 1), np.inf, 0)
  for _ in range(levels):
    best = np.minimum(best, (best[:, None] + cost).min(axis=0))
  return best[-1] ** 0.5


def l2(row, levels) -> float:
  """Error of a row when each element takes the nearest of the levels."""
  return sum(min((float(x) - v) ** 2 for v in levels) for x in row) ** 0.5
