"""Arranges the metrics of a run beside its baselines."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from genrec_jax.formatting import is_finite
from genrec_jax.tasks import metrics as retrieval_metrics
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.directions import (
  HIGHER,
  LOWER,
  NONE,
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
# Large above the table of a page, and what a run is judged by.
HEADLINES = 'ndcg@10 hr@10 mrr auc gauc logloss calibration'.split()
_AREAS = ('auc', 'gauc')  # whose differences count
_LEAST = 1e-6  # a baseline nearer to zero makes no meaningful ratio
# Of the library's own metrics, for reports that say nothing of theirs.
DIRECTIONS = retrieval_metrics.DIRECTIONS | ranking_metrics.DIRECTIONS

BETTER, EQUAL, WORSE = 'better', 'equal', 'worse'


class Verdict(NamedTuple):
  """How a value compares with the best baseline, in words without a sign.

  Whether a plus is good depends on the metric, so that the word says it alone.

  Attributes:
    word: 'better', 'equal' or 'worse'.
    amount: by how much, '3.81x', '3.9%' or '0.1557'; '' for equal values.
    baseline: name of that baseline.
    value: its value.
  """

  word: str
  amount: str
  baseline: str
  value: float

  def __str__(self) -> str:
    return f'{self.amount} {self.word}'.lstrip()


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Metrics beside baselines, the most telling columns first.

  Attributes:
    split: the part of the data the verdicts are about: 'test' if there is one.
    columns: headers of the values of a row.
    rows: (metric name, one value a column or None).
    against: the column of the verdicts, 'vs popularity', whose values are
      `Verdict` or None; '' without baselines.
  """

  split: str
  columns: tuple[str, ...]
  rows: tuple[tuple[str, tuple[float | Verdict | None, ...]], ...]
  against: str = ''

  def value(self, metric: str, column: str) -> float | Verdict | None:
    """Returns one value, None where there is none."""
    values = dict(self.rows).get(metric)
    if values is None or column not in self.columns:
      return None
    return values[self.columns.index(column)]

  def verdict(self, metric: str) -> Verdict | None:
    """Returns how a metric compares with the best baseline."""
    return self.value(metric, self.against)

  @property
  def headlines(self) -> list[str]:
    """The metrics that say most, in the order of their weight."""
    names = [name for name, _ in self.rows]
    return list(filter(None, (_find(m, names) for m in HEADLINES))) or names


def _find(headline: str, names: Sequence[str]) -> str | None:
  """The metric itself, or the one of its family whose k is the nearest."""
  family, at, k = headline.partition('@')
  if headline in names or not at:
    return headline if headline in names else None
  start = f'{family}@'
  ks = [n.removeprefix(start) for n in names if n.startswith(start)]
  ks = sorted((abs(int(own) - int(k)), own) for own in ks if own.isdecimal())
  return f'{start}{ks[0][1]}' if ks else None


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

  columns, against = {split: metrics[split]} | baselines, ''
  if baselines:
    directions = DIRECTIONS | dict(report.get('directions', {}))
    only = next(iter(baselines)) if len(baselines) == 1 else 'best baseline'
    against = f'vs {only}'
    columns[against] = {
      metric: compare_value(
        metric,
        value,
        {name: values.get(metric) for name, values in baselines.items()},
        directions,
      )
      for metric, value in metrics[split].items()
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
    against=against,
  )


def compare_value(
  metric: str,
  value: float | None,
  baselines: Mapping[str, float | None],
  directions: Mapping[str, Direction] = DIRECTIONS,
) -> Verdict | None:
  """Compares a value with the best of some baselines.

  The amount is a difference for areas under curves, for metrics that should be
  near a number, and where a baseline of zero or a sign makes a ratio
  meaningless. For the others it is the share that is more or less, or how many
  times as much if that is twice or more.

  >>> print(compare_value('logloss', 0.7124, {'mean': 0.6855}))
  3.9% worse
  >>> print(compare_value('hr@10', 0.3097, {'popularity': 0.0812}))
  3.81x better

  Args:
    metric: its name.
    value: that of the model.
    baselines: name -> value.
    directions: metric or family -> its direction, see `tasks.directions`.

  Returns:
    None where nothing can be compared: no finite value, no finite baseline, no
    value of the metric is better than another, or nobody has said which are.
  """
  direction = find_direction(metric, directions)
  known = {n: b for n, b in baselines.items() if is_finite(b)}
  if not known or not is_finite(value) or direction in (None, NONE):
    return None

  def score(x: float) -> float:
    if direction == LOWER:
      return -x
    return x if direction == HIGHER else -abs(x - direction)

  name = max(known, key=lambda n: score(known[n]))
  best = known[name]
  ahead = score(value) - score(best)
  if math.isclose(value, best, rel_tol=1e-9, abs_tol=1e-12) or not ahead:
    return Verdict(EQUAL, '', name, best)
  amount = f'{abs(ahead):.4f}'
  is_near = direction not in (HIGHER, LOWER)
  if metric_family(metric) in _AREAS or is_near or best < _LEAST or value < 0:
    # Digits enough to see that it is not nothing.
    amount = amount if float(amount) else f'{abs(ahead):.1e}'
  elif direction != LOWER and value >= 2 * best:
    amount = f'{value / best:.2f}x'
  else:
    share = 100 * abs(value / best - 1)
    amount = f'{share:.1f}%' if share >= 0.05 else f'{share:.1g}%'
  return Verdict(BETTER if ahead > 0 else WORSE, amount, name, best)


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


def _values_of_split(values: Mapping, split: str) -> Mapping:
  if any(isinstance(v, Mapping) for v in values.values()):
    return values.get(split, {})
  return values


def _sort_key(metric: str) -> tuple:
  """hr@1, hr@10, ndcg@1, ..., mrr, auc, ..., then others; label by label."""
  kind, (_, _, k) = metric_family(metric), metric.partition('@')
  place = _FAMILIES.index(kind) if kind in _FAMILIES else len(_FAMILIES)
  label = metric.partition('/')[2]
  return label, place, kind, int(k) if k.isdigit() else 0, metric
