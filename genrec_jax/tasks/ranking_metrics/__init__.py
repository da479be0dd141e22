"""Metrics of predicted probabilities, gathered part by part."""

from genrec_jax.tasks.ranking_metrics.auc import Binned, Exact, Grouped
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
  'measure',
  'of_labels',
)
