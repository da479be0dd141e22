"""What runs have measured so far, read from their files."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

from genrec_jax.report.comparison import DIRECTIONS
from genrec_jax.train.monitor import Monitor, parse_monitor

SPLIT = 'valid'  # whose metrics are monitored


@dataclasses.dataclass(frozen=True)
class Curve:
  """The monitored metric of a run, evaluation by evaluation.

  Attributes:
    steps: of the evaluations.
    values: of the metric.
    metrics: all metrics of the split at each step.
    last_step: the last one that anything was written of.
  """

  steps: tuple[int, ...] = ()
  values: tuple[float, ...] = ()
  metrics: tuple[Mapping[str, float], ...] = ()
  last_step: int = 0

  def find_best(self, monitor: Monitor) -> int | None:
    """Where the best evaluation is; None without one."""
    best = None
    for at, value in enumerate(self.values):
      if monitor.is_better(value, None if best is None else self.values[best]):
        best = at
    return best


class CurveReader:
  """Reads the metrics of a run, and later only what has been added."""

  def __init__(self, path: pathlib.Path, name: str):
    """Names what is read.

    Args:
      path: of metrics.jsonl.
      name: `train.monitor` of the run.
    """
    self._path, self._name = path, name
    self._at, self._rest = 0, b''
    self._found: dict[int, dict[str, float]] = {}
    self._last = 0
    self.monitor: Monitor | None = None

  def read(self) -> Curve:
    """The curve so far."""
    try:
      with open(self._path, 'rb') as file:
        if file.seek(0, 2) < self._at:  # a run that went back has cut its file
          self._at, self._rest, self._found = 0, b'', {}
        file.seek(self._at)
        new = file.read()
    except OSError:
      new = b''
    self._at += len(new)
    *lines, self._rest = (self._rest + new).split(b'\n')
    for line in lines:
      self._add(line)
    return self._make_curve()

  def _add(self, line: bytes) -> None:
    try:
      row = json.loads(line)
      step = int(row['step'])
    # Half a line of a killed run, or one that no run has written.
    except (ValueError, KeyError, TypeError, OverflowError):
      return
    if step < self._last:  # a run that was resumed measures again
      self._found = {s: v for s, v in self._found.items() if s < step}
    self._last = step
    prefix = f'{SPLIT}/'
    values = {
      name.removeprefix(prefix): value
      for name, value in row.items()
      if name.startswith(prefix) and isinstance(value, int | float)
    }
    if values:
      self._found.setdefault(step, {}).update(values)

  def _make_curve(self) -> Curve:
    steps = sorted(self._found)
    if steps and self.monitor is None:
      self.monitor = make_monitor(self._name, self._found[steps[0]])
    if not steps or self.monitor is None:
      return Curve(last_step=self._last)
    values = []
    for step in steps:
      try:
        values.append(self.monitor.measure(self._found[step]))
      except KeyError:
        values.append(math.nan)
    return Curve(
      tuple(steps),
      tuple(values),
      tuple(self._found[step] for step in steps),
      self._last,
    )


def make_monitor(
  name: str,
  metrics: Mapping[str, float],
  directions: Mapping | None = None,
) -> Monitor | None:
  """The monitor of a run; None where nobody can say which value is better.

  Args:
    name: `train.monitor` of its config.
    metrics: what is measured.
    directions: metric -> direction, of a report; those of the library else.
  """
  directions = {**DIRECTIONS, **(directions or {})}
  try:
    return parse_monitor(name, list(metrics), directions)
  except ValueError:
    return None


def falls_behind(
  own: Curve,
  others: Sequence[Curve],
  monitor: Monitor,
  *,
  least_runs: int = 3,
  least_evaluations: int = 2,
) -> bool:
  """Whether a run should be stopped, by the median rule.

  It should if its best value so far is worse than the median of the means that
  other runs had up to the same step (Golovin et al., Google Vizier, 2017).

  Args:
    own: of the run.
    others: of the others, also of those that have ended.
    monitor: says what is worse.
    least_runs: fewer runs that have come as far stop nobody.
    least_evaluations: nor is a run stopped that has fewer.
  """
  at = own.find_best(monitor)
  if len(own.steps) < least_evaluations or at is None:
    return False
  now, means = own.steps[-1], []
  for other in others:
    if not other.steps or other.steps[-1] < now:
      continue
    values = [
      value
      for step, value in zip(other.steps, other.values, strict=True)
      if step <= now and math.isfinite(value)
    ]
    if values:
      means.append(sum(values) / len(values))
  if len(means) < least_runs:
    return False
  means.sort()
  middle = len(means) // 2
  median = means[middle]
  if len(means) % 2 == 0:
    median = (means[middle - 1] + means[middle]) / 2
  best = own.values[at]
  return not (
    math.isclose(best, median, rel_tol=1e-9) or monitor.is_better(best, median)
  )
