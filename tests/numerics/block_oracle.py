"""What a block format says of numbers, one block at a time, in Python floats.

Nothing is shared with `numerics.blocks`: exponents come from `math.frexp`,
roundings from whole numbers of Python, which are exact.
"""

import fractions
import math
from typing import NamedTuple

import numpy as np

F = fractions.Fraction


class Quantised(NamedTuple):
  """Values in float64 (every one of them is exact there), and scale bytes."""

  values: np.ndarray
  scales: np.ndarray


def quantise(x, number_format, rounding='even', scale_mode='') -> Quantised:
  """Quantises the last axis of `x`."""
  size = number_format.block
  values, scales = np.zeros(x.shape), []
  for row, out in zip(x, values, strict=True):
    for start in range(0, len(row), size):
      part = [float(v) for v in row[start : start + size]]
      scale, found = _quantise_block(
        part, number_format, rounding, scale_mode or number_format.scale_mode
      )
      scales.append(scale + 127)
      out[start : start + size] = found
  return Quantised(values, np.array(scales).reshape(len(x), -1))


def _quantise_block(part, f, rounding, mode):
  most = max(abs(v) for v in part)
  scale = -127
  if most:
    exponent = _exponent(most)
    if mode == 'rceil':  # the least power of two that lets nothing saturate
      scale = exponent - f.most_exponent
      scale += F(most) > F(f.most) * F(2) ** scale
    elif mode == 'ceil':
      scale = exponent + (F(most) != F(2) ** exponent) - f.most_exponent
    elif mode in ('even', 'even_below'):
      step = F(2) ** (exponent - f.mantissa_bits)
      half = F(most) / step + F(1, 2)
      up = math.ceil(half) - 1 if mode == 'even_below' else math.floor(half)
      scale = _exponent(float(up * step))
      scale -= f.most_exponent
    else:
      scale = exponent - f.most_exponent
    scale = min(max(scale, -127), 127)
  group, found = f.group or f.block, []
  for start in range(0, len(part), group):
    own = part[start : start + group]
    shift = 0
    if f.group:
      top = max(abs(v) for v in own)
      shift = f.most_shift
      if top:
        shift = min(max(scale - _exponent(top), 0), f.most_shift)
    found += [_round(v, f, scale - shift, rounding) for v in own]
  return scale, found


def _exponent(value: float) -> int:
  return math.frexp(value)[1] - 1


def _round(value, f, scale, rounding) -> float:
  if not value:
    return value
  private = 0
  if f.exponent_bits:
    private = max(_exponent(abs(value)) - scale, f.least_exponent)
  step = F(2) ** (scale + private - f.mantissa_bits)
  steps = abs(F(value)) / step
  whole, rest = math.floor(steps), steps - math.floor(steps)
  if rounding == 'even':
    whole += rest > F(1, 2) or (rest == F(1, 2) and whole % 2 == 1)
  elif rounding == 'away':
    whole += rest >= F(1, 2)
  most = F(f.most) * F(2) ** scale
  return math.copysign(float(min(whole * step, most)), value)


def values_of(encoded, f) -> np.ndarray:
  """Values of blocks along the last axis, in float64."""
  codes = np.asarray(encoded.codes).astype(np.int64)
  scales = np.asarray(encoded.scales).astype(np.int64) - 127
  exponents = np.repeat(scales, f.block, -1)
  if encoded.shifts is not None:
    shifts = np.asarray(encoded.shifts).astype(np.int64)
    flat = shifts.reshape(*shifts.shape[:-2], -1)
    exponents = exponents - np.repeat(flat, f.group, -1)
  exponents = exponents[..., : codes.shape[-1]]
  if f.exponent_bits:
    sign = np.where(codes >> (f.bits - 1), -1.0, 1.0)
    magnitude = codes & ((1 << (f.bits - 1)) - 1)
    field = magnitude >> f.mantissa_bits
    part = (magnitude & ((1 << f.mantissa_bits) - 1)) / 2.0**f.mantissa_bits
    one = np.where(field > 0, 1 + part, part)
    value = sign * one * 2.0 ** (np.maximum(field, 1) - f.bias)
  else:
    signed = codes.astype(np.uint8).astype(np.int8).astype(np.float64)
    value = signed / 2.0**f.mantissa_bits
  return value * 2.0**exponents
