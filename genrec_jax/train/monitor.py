"""What `train.monitor` says: which of two evaluations is better.

It names a metric, or several with weights, 'auc:1,logloss:-1', as FuxiCTR's
`Monitor({'AUC': 1, 'logloss': -1})` does.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence

from genrec_jax.config import ConfigError
from genrec_jax.tasks.directions import (
  HIGHER,
  LOWER,
  NONE,
  Direction,
  find_direction,
)

_USUAL = ('auc', 'ndcg@10')  # of ranking and of retrieval


@dataclasses.dataclass(frozen=True)
class Monitor:
  """Compares evaluations.

  Attributes:
    weights: metric -> its factor in a sum; of a single metric, which counts as
      it is, 1.
    targets: metric -> the value it should be near; the distance counts.
    direction: of the sum, or of the single metric.
    min_delta: what an evaluation must gain at least to be better.
  """

  weights: Mapping[str, float]
  targets: Mapping[str, float] = dataclasses.field(default_factory=dict)
  direction: Direction = HIGHER
  min_delta: float = 0.0

  def measure(self, metrics: Mapping[str, float]) -> float:
    """The monitored value of an evaluation."""
    total = 0.0
    for name, weight in self.weights.items():
      value = float(metrics[name])
      if name in self.targets:
        value = abs(value - self.targets[name])
      total += weight * value
    return total

  def is_better(self, value: float, best: float | None) -> bool:
    """Whether `value` is better than the best so far, None for none.

    What is not finite is never better. Of equal values the earlier one stays.
    """
    if not math.isfinite(value):
      return False
    if best is None or not math.isfinite(best):
      return True
    gain = self.score(value) - self.score(best)
    return gain > 0 and gain >= self.min_delta

  def score(self, value: float) -> float:
    """A number that is the higher, the better a value is."""
    if self.direction == HIGHER:
      return value
    return -value if self.direction == LOWER else -abs(value - self.direction)


def parse_monitor(
  text: str,
  names: Sequence[str],
  directions: Mapping[str, Direction],
  min_delta: float = 0.0,
) -> Monitor:
  """Makes a monitor of `train.monitor`.

  >>> said = {'auc': 'higher', 'logloss': 'lower', 'calibration': 1.0}
  >>> monitor = parse_monitor('calibration', list(said), said)
  >>> monitor.is_better(0.95, 1.2), monitor.is_better(1.3, 1.2)
  (True, False)
  >>> monitor = parse_monitor('auc:1,logloss:-0.5', list(said), said)
  >>> monitor.measure({'auc': 0.75, 'logloss': 0.5})
  0.5

  Args:
    text: name of a metric, or 'NAME:WEIGHT,NAME:WEIGHT'.
    names: the metrics that are measured.
    directions: metric or family -> its direction, see `tasks.directions`.
    min_delta: see `Monitor`.

  Raises:
    ConfigError: it names no metric, or would choose the worst evaluation.
  """
  if text in names:
    _check_metric(text, text, names, directions)
    direction = find_direction(text, directions)
    if direction is None:
      direction = HIGHER
    return Monitor({text: 1.0}, {}, direction, min_delta)
  if not isinstance(text, str) or ':' not in text:
    raise ConfigError(_explain_unknown(text, text, names))
  weights, targets = {}, {}
  for term in text.split(','):
    name, colon, number = term.strip().rpartition(':')
    try:
      weight = float(number)
    except ValueError:
      weight = math.nan
    if not colon or not math.isfinite(weight) or not weight:
      raise ConfigError(
        f'train.monitor is {text!r}, and {term.strip()!r} in it is not '
        "NAME:WEIGHT with a weight other than 0, as in 'auc:1,logloss:-1'"
      )
    if name in weights:
      raise ConfigError(f'train.monitor is {text!r}, which has {name!r} twice')
    _check_metric(text, name, names, directions)
    direction = find_direction(name, directions)
    weights[name] = weight
    # Of what nothing is said, the weight says which values are good.
    if direction is None:
      continue
    if direction not in (HIGHER, LOWER):
      targets[name] = float(direction)
    if (weight > 0) != (direction == HIGHER):
      why = {HIGHER: 'higher values', LOWER: 'lower values'}.get(
        direction, f'values near {direction}'
      )
      raise ConfigError(
        f'train.monitor is {text!r}; {why} of {name!r} are better, so that its '
        f'weight must be {"above" if direction == HIGHER else "below"} 0: '
        f'{name}:{-weight:g}'
      )
  return Monitor(weights, targets, HIGHER, min_delta)


def _check_metric(text, name, names, directions) -> None:
  if name not in names:
    raise ConfigError(_explain_unknown(text, name, names))
  if find_direction(name, directions) == NONE:
    others = [n for n in names if find_direction(n, directions) != NONE]
    raise ConfigError(
      f'train.monitor is {text!r}, and no value of {name!r} is better than '
      f'another; choose among {", ".join(others)}'
    )


def _explain_unknown(text, name, names: Sequence[str]) -> str:
  family = str(name).split('@')[0]
  kin = [x for x in names if x.split('@')[0] == family]
  said = f'train.monitor is {text!r}'
  if name != text:
    said += f', and there is no {name!r}'
  near = difflib.get_close_matches(str(name), names, n=1)
  usual = [x for x in _USUAL if x in names]
  return (
    f'{said}; measured are {", ".join(names)}; '
    f'set --config.train.monitor={[*kin[-1:], *near, *usual, names[0]][0]}'
  )
