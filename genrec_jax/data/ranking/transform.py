"""Texts of numbers -> float32 values, or buckets of them."""

import dataclasses

import numpy as np

from genrec_jax.data import fields
from genrec_jax.data.ranking import forms, raw


class NumberError(ValueError):
  """A cell that is not a number of float32's range."""

  def __init__(self, value: str, at: int):
    super().__init__(value)
    self.value, self.at = value, at


def parse_numbers(column: raw.Column, fill: str = '') -> raw.NumberColumn:
  """Reads a column of N cells.

  Args:
    column: texts or numbers; NaN and its text are missing.
    fill: what an empty cell stands for; '' leaves it missing.

  Returns:
    `[N]` float64 finite values within float32's range, 0 where missing.
  """
  if isinstance(column, raw.ListColumn):
    raise TypeError('lists are not numbers')
  if isinstance(column, raw.NumberColumn):
    column = raw.make_numbers(column.values, column.present)
    values, present = column.values.astype(np.float64), column.present
    texts = column.values
  else:
    texts = column
    values = np.fromiter(map(_Numbers().__getitem__, texts), np.float64)
    present = ~np.isnan(values)
    if present.all():
      present = None
  good = np.abs(values) <= fields.LARGEST_FLOAT32  # NaN is not
  if present is not None:
    good |= ~present
  if not good.all():
    at = int(np.argmin(good))
    raise NumberError(str(texts[at]), at)
  if present is None:
    return raw.NumberColumn(values)
  values = np.where(present, values, float(fill or 0))
  return raw.NumberColumn(values, None if fill else present)


class _Numbers(dict):
  """Text -> number; a missing one is NaN, what is not a number infinite.

  A column repeats its texts, and looking one up is faster than reading it.
  """

  def __missing__(self, text: str) -> float:
    number = self[text] = self._parse_number(text)
    return number

  def _parse_number(self, text: str) -> float:
    if not text:
      return float('nan')
    try:
      number = float(text)
    except ValueError:
      # A typed boolean is a number, too.
      number = forms.read_bool(text)
      return float('inf') if number is None else number
    # float() reads 1_0 as ten.
    return number if fields.is_plain(text) else float('inf')


def bucket_counts(values: raw.NumberColumn) -> raw.NumberColumn:
  """Criteo's buckets: floor(ln(x)^2) above 2, the whole part of x below.

  The integers of both halves meet, as in the published preparation: 4 falls
  into bucket 1.
  """
  x = values.values
  large = np.floor(np.log(np.maximum(x, 2)) ** 2)
  out = np.where(x > 2, large, np.trunc(np.maximum(x, -(2.0**62))))
  return raw.NumberColumn(out.astype(np.int64), values.present)


# A column whose values differ by no more than this share of the largest one is
# constant: what differs is how float64 rounds sums of a few terms.
_NOISE = 64 * float(np.finfo(np.float64).eps)


@dataclasses.dataclass
class Moments:
  """Mean and deviation of the values met so far; missing ones do not count.

  >>> moments = Moments()
  >>> moments.add(raw.NumberColumn(np.array([0.1] * 7000)))
  >>> moments.is_constant, moments.mean, moments.deviation
  (True, 0.1, 1.0)

  The mean is held as the sum of two floats, so that merging the chunks of a
  long file does not round away a deviation that is small beside the mean.
  """

  count: int = 0
  high: float = 0.0  # of the mean
  low: float = 0.0
  squares: float = 0.0  # sum of (x - mean)^2
  least: float = float('inf')
  most: float = -float('inf')

  def add(self, values: raw.NumberColumn) -> None:
    x = values.values
    if values.present is not None:
      x = x[values.present]
    if not len(x):
      return
    self.least = min(self.least, float(x.min()))
    self.most = max(self.most, float(x.max()))
    # x - high is nearly exact, so its mean is what rounding took from high.
    high = float(x.mean())
    offsets = x - high
    low = float(offsets.mean())
    squares = float(np.sum(offsets**2)) - low * low * len(x)
    if not self.count:
      self.count, self.high, self.low = len(x), high, low
      self.squares = max(0.0, squares)
      return
    count = self.count + len(x)
    shift = (high - self.high) + (low - self.low)
    self.squares += squares + shift * shift * self.count * len(x) / count
    self.high, self.low = _add_exactly(
      self.high, self.low + shift * len(x) / count
    )
    self.count = count

  @property
  def mean(self) -> float:
    """A constant column has its value as its mean, without rounding."""
    return self.least if self.least == self.most else self.high + self.low

  @property
  def is_constant(self) -> bool:
    """Whether the values differ by no more than rounding noise."""
    if not self.count:
      return False
    magnitude = max(abs(self.least), abs(self.most))
    return self.most - self.least <= _NOISE * magnitude

  @property
  def deviation(self) -> float:
    """Of the population; 1 for a constant column."""
    if not self.count or self.is_constant:
      return 1.0
    return (max(0.0, self.squares) / self.count) ** 0.5 or 1.0


def _add_exactly(a: float, b: float) -> tuple[float, float]:
  """a + b as a rounded sum and what rounding took from it (Knuth)."""
  total = a + b
  added = total - a
  return total, (a - (total - added)) + (b - added)


def transform_numbers(
  values: raw.NumberColumn,
  transform: str,
  mean: float = 0.0,
  deviation: float = 1.0,
  clip: float = 0.0,
) -> np.ndarray:
  """`[N]` float32; what is missing becomes 0 in every transform.

  Args:
    values: what `parse_numbers` read.
    transform: 'as_is', 'log' (of 1 + x, negative x as 0) or 'standardize'.
    mean: of the training split, for 'standardize'.
    deviation: likewise.
    clip: largest size of a z-score; 0 bounds none.
  """
  x = values.values
  if transform == 'log':
    x = np.log1p(np.maximum(x, 0))
  elif transform == 'standardize':
    most = clip or fields.LARGEST_FLOAT32
    x = np.clip((x - mean) / deviation, -most, most)
  if values.present is not None:
    x = np.where(values.present, x, 0)
  return x.astype(np.float32)
