"""How uneven a load is over the devices."""

from collections.abc import Sequence

import numpy as np


def measure_imbalance(values: Sequence[float]) -> dict[str, float]:
  """Measures of unevenness.

  `max_over_mean` is 1 when it is even; then the distances of its shares p from
  even ones, q = 1 / W, are 0: total variation sum |p - q| / 2, KL
  sum p log(p / q), chi2 sum (p - q)^2 / q.
  """
  values = np.asarray(values, float)
  count = len(values)
  if not values.sum() > 0:
    return dict(max_over_mean=1.0, total_variation=0.0, kl=0.0, chi2=0.0)
  p = values / values.sum()
  logs = np.log(p * count, out=np.zeros(count), where=p > 0)
  return {
    'max_over_mean': float(p.max() * count),
    'total_variation': float(np.abs(p - 1 / count).sum() / 2),
    'kl': float((p * logs).sum()),
    'chi2': float(((p - 1 / count) ** 2).sum() * count),
  }
