"""Axes of charts: the values they span, and ticks at round numbers."""

import dataclasses
import math
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Axis:
  """One side of a chart.

  Attributes:
    low: value at its beginning.
    high: value at its end, above `low`.
    ticks: (value, label) of what is labelled, between both ends.
    name: what it counts; '' for nothing.
    logarithmic: equal distances are equal ratios.
    minor: values with a small tick and no label.
  """

  low: float
  high: float
  ticks: Sequence[tuple[float, str]]
  name: str = ''
  logarithmic: bool = False
  minor: Sequence[float] = ()

  def place(self, value: float) -> float:
    """Returns the place of a value: 0 at the beginning, 1 at the end.

    Values beyond an end lie on it, infinite ones too.
    """
    value = min(max(value, self.low), self.high)
    low, high = self.low, self.high
    if self.logarithmic:
      low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def linear_axis(
  low: float,
  high: float,
  name: str = '',
  label: Callable[[float], str] | None = None,
  minor: Sequence[float] = (),
  whole: bool = False,
) -> Axis:
  """Returns an axis with about five round ticks, with `whole` at integers.

  >>> linear_axis(0, 0.31, label='{:.0%}'.format).ticks
  ((0.0, '0%'), (0.1, '10%'), (0.2, '20%'), (0.3, '30%'))
  """
  ticks = round_ticks(low, high, 5)
  if whole:
    ticks = [v for v in ticks if float(v).is_integer()] or [low]
  labels = [label(v) for v in ticks] if label else label_ticks(ticks)
  ticks = tuple(zip(ticks, labels, strict=True))
  return Axis(low, high, ticks, name, minor=minor)


def round_ticks(low: float, high: float, most: int) -> list[float]:
  """Returns round numbers from low to high, about `most` of them.

  >>> round_ticks(0.0, 0.31, 5)
  [0.0, 0.1, 0.2, 0.3]
  """
  raw = (high - low) / most
  power = 10.0 ** math.floor(math.log10(raw))
  step = power * next(m for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
  slack = 1e-6  # a bound that is a tick already, but for rounding
  first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
  digits = 2 - math.floor(math.log10(step))
  return [round(i * step, digits) for i in range(first, last + 1)]


def label_ticks(values: Sequence[float]) -> list[str]:
  """Returns labels of ticks, with as many decimals as tell them apart.

  >>> label_ticks([0, 0.05, 0.1]), label_ticks([0, 25_000, 50_000])
  (['0', '0.05', '0.10'], ['0', '25k', '50k'])
  """
  largest = max(abs(v) for v in values)
  if largest < 1e-3:
    return [f'{v:.4g}' for v in values]
  scales = ((1e9, 'G'), (1e6, 'M'), (1e3, 'k'))
  large = ((s, t) for s, t in scales if largest >= 10 * s)
  scale, suffix = next(large, (1.0, ''))
  slack = 1e-9 * largest
  digits = next(
    (d for d in range(9)
     if all(abs(round(v / scale, d) * scale - v) <= slack for v in values)), 9
  )  # fmt: skip
  return [f'{v / scale:,.{digits}f}{suffix}' if v else '0' for v in values]
