"""Which values of a metric are good.

A metric's direction is 'higher', 'lower', a number that good values are near
(1.0 for calibration), or 'none' where no value is better than another. An
evaluator says them in an attribute:

    directions = {'rmse': 'lower', 'bias': 0.0, 'examples': 'none'}

under the whole name of a metric or under its family. A metric that is not among
them is shown without a verdict; where it is `train.monitor`, higher values
count as better.
"""

import math
from collections.abc import Mapping

Direction = str | float

HIGHER, LOWER, NONE = 'higher', 'lower', 'none'


def metric_family(metric: str) -> str:
  """Returns the kind of a metric: 'hr' of 'hr@10', 'auc' of 'auc/click'."""
  return metric.partition('@')[0].partition('/')[0]


def find_direction(
  metric: str, directions: Mapping[str, Direction]
) -> Direction | None:
  """Returns the direction of a metric, None where nothing is said of it.

  >>> said = {'logloss': 'lower', 'calibration': 1.0}
  >>> find_direction('logloss/click', said), find_direction('auc', said)
  ('lower', None)

  Raises:
    ValueError: the direction is none.
  """
  direction = directions.get(metric, directions.get(metric_family(metric)))
  known = direction in (None, HIGHER, LOWER, NONE)
  if not known and (
    not isinstance(direction, int | float) or not math.isfinite(direction)
  ):
    raise ValueError(
      f'the direction of metric {metric!r} is {direction!r}, must be '
      f'{HIGHER!r}, {LOWER!r}, {NONE!r} or the number that it should be near'
    )
  return direction
