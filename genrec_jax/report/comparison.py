"""Arranges the metrics of a run beside its baselines."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from genrec_jax.tasks import metrics as retrieval_metrics
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.directions import (
  HIGHER,
  LOWER,
  Direction,
  find_direction,
  metric_family,
)

# Shown first, in this order.
_FAMILIES = 'hr ndcg recall mrr auc gauc logloss ne calibration'.split()
# What a page calls them; others are written in capitals.
METRICS = {
  'auc': 'AUC',
  'gauc': 'gAUC',
  'logloss': 'Log loss',
  'ne': 'Normalised entropy',
  'calibration': 'Calibration',
}
_AREAS = ('auc', 'gauc')  # whose differences count
# Of the library's own metrics, for reports that say nothing of theirs.
_DIRECTIONS = retrieval_metrics.DIRECTIONS | ranking_metrics.DIRECTIONS


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Metrics beside baselines, the most telling columns first.

  Attributes:
    split: the part of the data the lift is about: 'test' if there is one.
    columns: headers of the values of a row.
    rows: (metric name, one value a column or None).
    lift: the column that compares with the best baseline, see `format_lift`.
    directions: metric or family -> its direction, see `tasks.directions`.
  """

  split: str
  columns: tuple[str, ...]
  rows: tuple[tuple[str, tuple[float | None, ...]], ...]
  lift: str = 'lift'
  directions: Mapping[str, Direction] = dataclasses.field(
    default_factory=lambda: _DIRECTIONS
  )

  def value(self, metric: str, column: str) -> float | None:
    """Returns one value, None where there is none."""
    values = dict(self.rows).get(metric)
    if values is None or column not in self.columns:
      return None
    return values[self.columns.index(column)]


def compare_metrics(report: Mapping) -> Comparison:
  """Returns the metrics of a report (see `summary`) beside its baselines."""
  metrics = {p: m for p, m in report.get('metrics', {}).items() if m}
  if not metrics:
    raise ValueError(
      "The report has no metrics: report['metrics'] must hold the values of"
      " one split of the data at least, such as {'test': {'ndcg@10': 0.17}}."
    )
  split = 'test' if 'test' in metrics else next(reversed(metrics))
  baselines = {
    name: _values_of_split(values, split)
    for name, values in report.get('baselines', {}).items()
  }
  last = report.get('last_epoch', {})
  # Where nothing was chosen the last evaluation is the one that is shown.
  last = {p: m for p, m in last.items() if m and m != metrics.get(p)}

  columns = {split: metrics[split]} | baselines
  directions = _DIRECTIONS | dict(report.get('directions', {}))
  differs = any(
    metric_family(m) in _AREAS or find_direction(m, directions) == LOWER
    for m in metrics[split]
  )
  lift = 'gain' if differs else 'lift'
  if baselines:
    columns[lift] = {
      name: _measure_lift(
        name,
        value,
        [b.get(name) for b in baselines.values()],
        find_direction(name, directions),
      )
      for name, value in metrics[split].items()
    }
  if split in last:
    columns[f'{split}, last epoch'] = last[split]
  for other in (p for p in metrics if p != split):
    columns[other] = metrics[other]
    if other in last:
      columns[f'{other}, last epoch'] = last[other]
  names = sorted({n for m in metrics.values() for n in m}, key=_sort_key)
  return Comparison(
    split=split,
    columns=tuple(columns),
    rows=tuple(
      (name, tuple(values.get(name) for values in columns.values()))
      for name in names
    ),
    lift=lift,
    directions=directions,
  )


def name_metric(metric: str) -> str:
  """Returns a metric as a heading.

  >>> name_metric('hr@10'), name_metric('logloss/click')
  ('HR@10', 'Log loss of click')
  """
  known = METRICS.get(metric_family(metric))
  if known is None:
    return metric.upper()
  label = metric.partition('/')[2]
  return f'{known} of {label}' if label else known


def format_lift(
  metric: str,
  value: float,
  directions: Mapping[str, Direction] = _DIRECTIONS,
) -> str:
  """Returns what is gained on the strongest baseline, for a reader.

  >>> format_lift('hr@10', 3.814), format_lift('auc', 0.31)
  ('3.81x', '+0.3100')
  >>> format_lift('logloss', 0.142)
  '+14.2%'
  """
  if metric_family(metric) in _AREAS:
    return f'{value:+.4f}'
  if find_direction(metric, directions) == LOWER:
    return f'{value:+.1%}'
  return f'{value:.2f}x'


def is_better(
  metric: str,
  lift: float,
  directions: Mapping[str, Direction] = _DIRECTIONS,
) -> bool:
  """Whether such a value speaks for the model."""
  differs = metric_family(metric) in _AREAS
  differs = differs or find_direction(metric, directions) == LOWER
  return lift > (0 if differs else 1)


def _values_of_split(values: Mapping, split: str) -> Mapping:
  if any(isinstance(v, Mapping) for v in values.values()):
    return values.get(split, {})
  return values


def _measure_lift(
  metric: str,
  value: float,
  baselines: Sequence[float | None],
  direction: Direction | None,
) -> float | None:
  """How far `value` is beyond the strongest baseline.

  A difference for areas under curves, the share that is saved for what should
  be low, how many times as much for the others; None where that means nothing.
  """
  known = [b for b in baselines if b is not None and math.isfinite(b)]
  if not known or value is None or direction not in (HIGHER, LOWER, None):
    return None
  if metric_family(metric) in _AREAS:
    return value - max(known)
  best = min(known) if direction == LOWER else max(known)
  if best < 1e-6:  # labels of one class, say, which a constant predicts
    return None
  return 1 - value / best if direction == LOWER else value / best


def _sort_key(metric: str) -> tuple:
  """hr@1, hr@10, ndcg@1, ..., mrr, auc, ..., then others; label by label."""
  kind, (_, _, k) = metric_family(metric), metric.partition('@')
  place = _FAMILIES.index(kind) if kind in _FAMILIES else len(_FAMILIES)
  label = metric.partition('/')[2]
  return label, place, kind, int(k) if k.isdigit() else 0, metric
