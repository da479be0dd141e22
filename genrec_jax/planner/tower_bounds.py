"""What a tower may hold, and what of that cannot be kept."""

import dataclasses
from collections.abc import Sequence

import numpy as np


class TowerBoundsError(ValueError):
  """No partition keeps the bounds."""


@dataclasses.dataclass(frozen=True)
class Item:
  """Features that move together, because they read one table.

  Attributes:
    features: their names.
    table: the table.
    bytes: of its rows.
    load: bytes of rows that an example reads, over all of the features.
  """

  features: tuple[str, ...]
  table: str = ''
  bytes: float = 0.0
  load: float = 0.0

  @property
  def text(self) -> str:
    if len(self.features) == 1:
      return f'feature {self.features[0]!r}'
    return f'features {", ".join(self.features)} of the table {self.table!r}'


@dataclasses.dataclass(frozen=True)
class Bounds:
  """What a tower may hold.

  Attributes:
    least: features of a tower, at least.
    most: features of a tower, at most.
    max_bytes: of the rows of its tables; None for any number.
    max_load: bytes of rows that an example reads of it; None for any number.
  """

  least: int
  most: int
  max_bytes: float | None = None
  max_load: float | None = None

  @classmethod
  def even(cls, features: int, towers: int, **limits) -> 'Bounds':
    """As many features in every tower, but for one.

    >>> Bounds.even(26, 4)
    Bounds(least=6, most=7, max_bytes=None, max_load=None)
    """
    return cls(features // towers, -(-features // towers), **limits)

  @property
  def text(self) -> str:
    words = f'{self.least} to {self.most} features'
    if self.least == self.most:
      words = f'{self.least} features'
    if self.max_bytes is not None:
      words += f', {self.max_bytes:,.0f} bytes at most'
    if self.max_load is not None:
      words += f', a load of {self.max_load:,.0f} at most'
    return words

  def limits(self, items: Sequence[Item]) -> list[tuple[np.ndarray, float]]:
    """(weights `[I]`, the most of them in a tower) of bytes and of load."""
    found = []
    for name, most in (('bytes', self.max_bytes), ('load', self.max_load)):
      if most is not None:
        found.append((np.array([getattr(i, name) for i in items], float), most))
    return found

  def hold(
    self, items: Sequence[Item], labels: np.ndarray, towers: int
  ) -> bool:
    """Whether a partition keeps them."""
    counts = np.bincount(labels, count_features(items), towers)
    return bool(
      (counts >= self.least).all()
      and (counts <= self.most).all()
      and all(
        (np.bincount(labels, weights, towers) <= most).all()
        for weights, most in self.limits(items)
      )
    )


def count_features(items: Sequence[Item]) -> np.ndarray:
  """`[I]` features of each item."""
  return np.array([len(item.features) for item in items])


def check_bounds(items: Sequence[Item], towers: int, bounds: Bounds) -> None:
  """Refuses bounds that cannot be kept, where counting shows it.

  Raises:
    TowerBoundsError: the message has names and numbers.
  """
  features = int(count_features(items).sum())
  if towers < 1:
    raise TowerBoundsError(f'there must be at least 1 tower, not {towers}')
  if towers > len(items):
    raise TowerBoundsError(
      f'{towers} towers need as many tables, but the {features} features read '
      f'{len(items)}: {", ".join(item.table for item in items[:8])}'
      + (f' and {len(items) - 8} more' if len(items) > 8 else '')
    )
  if bounds.least < 1 or bounds.most < bounds.least:
    raise TowerBoundsError(
      f'a tower cannot have {bounds.least} to {bounds.most} features'
    )
  if not towers * bounds.least <= features <= towers * bounds.most:
    raise TowerBoundsError(
      f'{features} features do not make {towers} towers of {bounds.text}'
    )
  for item in items:
    if len(item.features) > bounds.most:
      raise TowerBoundsError(
        f'{item.text} belong to one tower, which may have {bounds.most} '
        f'features; allow {len(item.features)} or more'
      )
  for name, most in (('bytes', bounds.max_bytes), ('load', bounds.max_load)):
    if most is None:
      continue
    largest = max(items, key=lambda item: getattr(item, name))
    if getattr(largest, name) > most:
      raise TowerBoundsError(
        f'{largest.text} has {getattr(largest, name):,.0f} {name}, and a tower '
        f'may have {most:,.0f} at most'
      )
    total = sum(getattr(item, name) for item in items)
    if total > towers * most:
      raise TowerBoundsError(
        f'all features have {total:,.0f} {name}, and {towers} towers of '
        f'{most:,.0f} at most hold {towers * most:,.0f}'
      )


def make_refusal(
  items: Sequence[Item], towers: int, bounds: Bounds, proven: bool
) -> TowerBoundsError:
  """The error of a search that ended without a partition.

  Args:
    items: the items.
    towers: how many.
    bounds: of a tower.
    proven: whether there is none, or the search gave up.
  """
  key = 'load' if bounds.max_bytes is None else 'bytes'
  if bounds.max_bytes is None and bounds.max_load is None:
    largest = sorted(items, key=lambda i: -len(i.features))[:3]
    sizes = [f'{i.text} ({len(i.features)})' for i in largest]
  else:
    largest = sorted(items, key=lambda i: -getattr(i, key))[:3]
    sizes = [f'{i.text} ({getattr(i, key):,.0f} {key})' for i in largest]
  how = 'there is no partition' if proven else 'no partition was found'
  features = int(count_features(items).sum())
  return TowerBoundsError(
    f'{how} of {features} features into {towers} towers of {bounds.text}; the '
    f'largest are {"; ".join(sizes)}'
  )
