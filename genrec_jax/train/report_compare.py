"""Arranges the metrics of a run beside its baselines."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

_FAMILIES = ('hr', 'ndcg', 'recall', 'mrr')  # shown first, in this order


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Metrics beside baselines, the most telling columns first.

  Attributes:
    part: the part of the data the lift is about: 'test' if there is one.
    columns: headers of the values of a row.
    rows: (metric name, one value a column or None).
  """

  part: str
  columns: tuple[str, ...]
  rows: tuple[tuple[str, tuple[float | None, ...]], ...]

  def value(self, metric: str, column: str) -> float | None:
    """Returns one value, None where there is none."""
    values = dict(self.rows).get(metric)
    if values is None or column not in self.columns:
      return None
    return values[self.columns.index(column)]


def compare(report: Mapping) -> Comparison:
  """Returns the metrics of a report (see `report`) beside its baselines."""
  metrics = {p: m for p, m in report.get('metrics', {}).items() if m}
  if not metrics:
    raise ValueError(
      "The report has no metrics: report['metrics'] must hold the values of"
      " one part of the data at least, such as {'test': {'ndcg@10': 0.17}}."
    )
  part = 'test' if 'test' in metrics else next(reversed(metrics))
  baselines = {
    name: _of_part(values, part)
    for name, values in report.get('baselines', {}).items()
  }
  last = report.get('last_epoch', {})
  # Where nothing was chosen the last evaluation is the one that is shown.
  last = {p: m for p, m in last.items() if m and m != metrics.get(p)}

  columns = {part: metrics[part]} | baselines
  if baselines:
    columns['lift'] = {
      name: _lift(value, [b.get(name) for b in baselines.values()])
      for name, value in metrics[part].items()
    }
  if part in last:
    columns[f'{part}, last epoch'] = last[part]
  for other in (p for p in metrics if p != part):
    columns[other] = metrics[other]
    if other in last:
      columns[f'{other}, last epoch'] = last[other]
  names = sorted({n for m in metrics.values() for n in m}, key=_order)
  return Comparison(
    part=part,
    columns=tuple(columns),
    rows=tuple(
      (name, tuple(values.get(name) for values in columns.values()))
      for name in names
    ),
  )


def _of_part(values: Mapping, part: str) -> Mapping:
  if any(isinstance(v, Mapping) for v in values.values()):
    return values.get(part, {})
  return values


def _lift(value: float, baselines: Sequence[float | None]) -> float | None:
  """How many times the strongest baseline `value` is."""
  known = [b for b in baselines if b is not None and math.isfinite(b)]
  if not known or max(known) <= 0:
    return None
  return value / max(known)


def _order(metric: str) -> tuple:
  """hr@1, hr@10, hr@100, ndcg@1, ..., mrr, then the others by name."""
  family, _, k = metric.partition('@')
  place = _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES)
  return place, family, int(k) if k.isdigit() else 0, metric
