"""How far metrics of a ranking model may be off, as examples are few."""

import math
from collections.abc import Sequence

import numpy as np

from genrec_jax.tasks.wilson import Z


def label_intervals(
  logits: np.ndarray,
  labels: np.ndarray,
  weights: np.ndarray,
  names: Sequence[str],
  values: dict[str, float],
) -> dict[str, tuple[float, float]]:
  """95 % intervals of AUC and log loss, as if examples were drawn at random.

  The AUC's is that of Hanley and McNeil (1982), which needs the numbers of
  positive and negative examples alone. Examples of one user are more alike than
  that, so that true intervals are rather wider.

  Args:
    logits: `[N, L]`.
    labels: `[N, L]`, 0 or 1; a label with other values has no interval.
    weights: `[N]`, above 0; with unequal ones there are no intervals.
    names: of the L labels.
    values: of the metrics, which the AUC is taken from.

  Returns:
    name of the metric -> (low, high).
  """
  intervals = {}
  if len(weights) < 2 or (weights != weights[0]).any():
    return {}
  for i, name in enumerate(names):
    suffix = f'/{name}' if len(names) > 1 else ''
    y = labels[:, i].astype(np.float64)
    if ((y != 0) & (y != 1)).any():
      continue
    positives = float(y.sum())
    auc = values.get(f'auc{suffix}', math.nan)
    if 0 < positives < len(y) and math.isfinite(auc):
      half = Z * _auc_deviation(auc, positives, len(y) - positives)
      intervals[f'auc{suffix}'] = max(0.0, auc - half), min(1.0, auc + half)
    x = logits[:, i].astype(np.float64)
    losses = np.logaddexp(0.0, np.where(y > 0, -x, x))
    mean = values.get(f'logloss{suffix}', math.nan)
    half = Z * float(np.std(losses, ddof=1)) / math.sqrt(len(y))
    if math.isfinite(mean) and math.isfinite(half):
      intervals[f'logloss{suffix}'] = max(0.0, mean - half), mean + half
  return intervals


def _auc_deviation(auc: float, positives: float, negatives: float) -> float:
  """The standard error of an AUC."""
  both_positive = auc / (2 - auc) - auc**2
  both_negative = 2 * auc**2 / (1 + auc) - auc**2
  variance = auc * (1 - auc) + (positives - 1) * both_positive
  variance += (negatives - 1) * both_negative
  return math.sqrt(max(variance, 0.0) / (positives * negatives))
