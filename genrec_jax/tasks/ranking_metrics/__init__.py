"""Metrics of predicted probabilities, gathered part by part."""

from genrec_jax.tasks.ranking_metrics.auc import BinnedAuc, ExactAuc, GroupedAuc
from genrec_jax.tasks.ranking_metrics.curves import (
  calibration_curve,
  calibration_error,
  describe_labels,
  score_histogram,
)
from genrec_jax.tasks.ranking_metrics.means import WeightedMeans
from genrec_jax.tasks.ranking_metrics.metrics import (
  DIRECTIONS,
  NAMES,
  LabelMetrics,
  measure_labels,
  of_labels,
)

__all__ = (
  'DIRECTIONS',
  'NAMES',
  'BinnedAuc',
  'ExactAuc',
  'GroupedAuc',
  'WeightedMeans',
  'LabelMetrics',
  'calibration_curve',
  'calibration_error',
  'describe_labels',
  'measure_labels',
  'of_labels',
  'score_histogram',
)
