"""All metrics of a ranking model, of one label or of several."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.tasks.ranking_metrics.auc import BinnedAuc, ExactAuc, GroupedAuc
from genrec_jax.tasks.ranking_metrics.means import WeightedMeans

# See `tasks.directions`.
DIRECTIONS = {
  'auc': 'higher',
  'gauc': 'higher',
  'logloss': 'lower',
  'ne': 'lower',
  'calibration': 1.0,
}
NAMES = tuple(DIRECTIONS)


@dataclasses.dataclass(frozen=True)
class LabelMetrics:
  """The metrics of one label; `update` and `merge` give a new one.

  Attributes:
    auc: `ExactAuc` or `BinnedAuc`.
    means: log loss and what comes with it.
    grouped: for gAUC, None without groups.
  """

  auc: ExactAuc | BinnedAuc = ExactAuc()
  means: WeightedMeans = WeightedMeans()
  grouped: GroupedAuc | None = None

  def update(self, logits, labels, weights=None, group=None) -> 'LabelMetrics':
    """With `[N]` more examples."""
    more = (logits, labels, weights, group)
    return LabelMetrics(
      self.auc.update(*more),
      self.means.update(*more),
      self.grouped and self.grouped.update(*more),
    )

  def merge(self, other: 'LabelMetrics') -> 'LabelMetrics':
    """With the examples of both."""
    return LabelMetrics(
      self.auc.merge(other.auc),
      self.means.merge(other.means),
      self.grouped and self.grouped.merge(other.grouped),
    )

  def result(self) -> dict[str, float]:
    """{'auc', 'gauc' (with groups), 'logloss', 'ne', 'calibration'}."""
    values = {'auc': self.auc.result()}
    if self.grouped is not None:
      values['gauc'] = self.grouped.result()
    return values | self.means.result()


def measure_labels(
  logits: np.ndarray,
  labels: np.ndarray,
  weights: np.ndarray | None = None,
  group: np.ndarray | None = None,
  names: Sequence[str] = ('label',),
) -> dict[str, float]:
  """Every metric of N examples of L labels, exact.

  Args:
    logits: `[N, L]`.
    labels: `[N, L]`.
    weights: `[N]`, 0 for padding; all 1 if None.
    group: `[N]` for gAUC, or None.
    names: of the L labels.

  Returns:
    As `of_labels` does.
  """
  if logits.shape[1] != len(names) or labels.shape[1] != len(names):
    raise ValueError(
      f'{len(names)} labels ({", ".join(names)}), but logits are '
      f'{logits.shape} and labels {labels.shape}'
    )
  fresh = LabelMetrics(grouped=None if group is None else GroupedAuc())
  return of_labels(
    {
      name: fresh.update(logits[:, i], labels[:, i], weights, group).result()
      for i, name in enumerate(names)
    }
  )


def of_labels(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """Names for the metrics of several labels.

  Args:
    results: label -> metric -> value.

  Returns:
    One label's as they are. Of several 'auc/<label>' and so on, behind 'auc',
    the mean over the labels that have one (it is NaN for a label without
    positives), and so on.
  """
  if len(results) == 1:
    return dict(*results.values())
  by_name = {}
  for name in next(iter(results.values())):
    known = [r[name] for r in results.values() if not math.isnan(r[name])]
    by_name[name] = float(np.mean(known)) if known else math.nan
  for label, result in results.items():
    by_name |= {f'{name}/{label}': value for name, value in result.items()}
  return by_name
