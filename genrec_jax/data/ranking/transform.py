"""Texts of numbers -> float32 values, or buckets of them."""

import dataclasses

import numpy as np

from genrec_jax.data import fields
from genrec_jax.data.ranking import raw

_MOST = float(np.finfo(np.float32).max)


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
  good = np.abs(values) <= _MOST  # NaN is not
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
      return float('inf')
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


@dataclasses.dataclass
class Moments:
  """Mean and deviation of the values met so far; missing ones do not count."""

  count: int = 0
  mean: float = 0.0
  squares: float = 0.0  # sum of (x - mean)^2

  def add(self, values: raw.NumberColumn) -> None:
    x = values.values
    if values.present is not None:
      x = x[values.present]
    if not len(x):
      return
    mean, count = float(x.mean()), self.count + len(x)
    shift = mean - self.mean
    self.squares += float(np.sum((x - mean) ** 2))
    self.squares += shift * shift * self.count * len(x) / count
    self.mean += shift * len(x) / count
    self.count = count

  @property
  def deviation(self) -> float:
    """Of the population; 1 for a column of one value."""
    return (self.squares / self.count) ** 0.5 or 1.0 if self.count else 1.0


def transform_numbers(
  values: raw.NumberColumn,
  transform: str,
  mean: float = 0.0,
  deviation: float = 1.0,
) -> np.ndarray:
  """`[N]` float32; what is missing becomes 0 in every transform.

  Args:
    values: what `parse_numbers` read.
    transform: 'as_is', 'log' (of 1 + x, negative x as 0) or 'standardize'.
    mean: of the training split, for 'standardize'.
    deviation: likewise.
  """
  x = values.values
  if transform == 'log':
    x = np.log1p(np.maximum(x, 0))
  elif transform == 'standardize':
    x = np.clip((x - mean) / deviation, -_MOST, _MOST)
  if values.present is not None:
    x = np.where(values.present, x, 0)
  return x.astype(np.float32)
