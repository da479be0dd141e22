"""Ranks by hand, for the tests of what computes them."""

from collections.abc import Iterable

import numpy as np


def mean_place(costs: Iterable[float], own: float | None = None) -> float:
  """The mean of the places that an item shares with its equals.

  >>> mean_place([1.0, 2.0, 2.0, 5.0], own=2.0), mean_place([1.0])
  (2.5, inf)

  Args:
    costs: of all items, the smallest the best.
    own: the cost of the item; None for one that is not among them, a miss.
  """
  places = [i for i, cost in enumerate(sorted(costs), start=1) if cost == own]
  return float(np.mean(places)) if places else float('inf')
