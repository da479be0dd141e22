"""Metrics of predicted probabilities, gathered part by part."""

from genrec_jax.tasks.ranking_metrics.auc import Binned, Exact, Grouped
from genrec_jax.tasks.ranking_metrics.curves import (
  calibration_curve,
  calibration_error,
  score_histogram,
)
from genrec_jax.tasks.ranking_metrics.means import Means
from genrec_jax.tasks.ranking_metrics.metrics import (
  NAMES,
  Metrics,
  measure,
  of_labels,
)

__all__ = (
  'NAMES',
  'Binned',
  'Exact',
  'Grouped',
  'Means',
  'Metrics',
  'calibration_curve',
  'calibration_error',
  'measure',
  'of_labels',
  'score_histogram',
)
