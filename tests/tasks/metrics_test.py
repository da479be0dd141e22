"""Metrics against their formulas, by hand."""

import math

import numpy as np
import pytest

from genrec_jax.tasks import metrics


def test_values_by_hand():
  found = metrics.ranking_metrics(np.array([1, 2, 3, 11, 50]), (1, 2, 10, 50))
  log = math.log2
  expected = {
    'hr@1': 1 / 5,
    'hr@2': 2 / 5,
    'hr@10': 3 / 5,
    'hr@50': 5 / 5,
    'ndcg@1': 1 / 5,
    'ndcg@2': (1 + 1 / log(3)) / 5,
    'ndcg@10': (1 + 1 / log(3) + 1 / 2) / 5,
    'ndcg@50': (1 + 1 / log(3) + 1 / 2 + 1 / log(12) + 1 / log(51)) / 5,
    'mrr': (1 + 1 / 2 + 1 / 3 + 1 / 11 + 1 / 50) / 5,
  }
  assert found == pytest.approx(expected, rel=1e-12)


def test_perfect_and_hopeless():
  perfect = metrics.ranking_metrics(np.ones(7, np.int32), (1, 10))
  assert set(perfect.values()) == {1.0}
  hopeless = metrics.ranking_metrics(np.full(7, 10**6), (1, 10))
  assert hopeless.pop('mrr') == pytest.approx(1e-6)
  assert set(hopeless.values()) == {0.0}


def test_miss_rank_is_the_rank_of_all_misses():
  ranks = np.array([1, 2500, 2501, 2502, 3884])
  found = metrics.ranking_metrics(ranks, (2500, 3000), miss_rank=2501)
  assert found['mrr'] == pytest.approx((1 + 1 / 2500 + 3 / 2501) / 5)
  assert found['hr@2500'] == pytest.approx(2 / 5)
  assert found['hr@3000'] == pytest.approx(2 / 5)  # a miss is not a hit
  plain = metrics.ranking_metrics(ranks, (2500, 3000))
  assert plain['hr@3000'] == pytest.approx(4 / 5)


def test_ranks_of_ties_and_of_misses():
  """Places that are shared are not whole; a miss is none for any k."""
  found = metrics.ranking_metrics([1.5, 10.5, np.inf], (1, 2, 10, 10**6))
  log = math.log2
  expected = {
    'hr@1': 0.0,
    'ndcg@1': 0.0,
    'hr@2': 1 / 3,
    'ndcg@2': 1 / log(2.5) / 3,
    'hr@10': 1 / 3,
    'ndcg@10': 1 / log(2.5) / 3,
    'hr@1000000': 2 / 3,
    'ndcg@1000000': (1 / log(2.5) + 1 / log(11.5)) / 3,
    'mrr': (1 / 1.5 + 1 / 10.5) / 3,
  }
  assert found == pytest.approx(expected, rel=1e-12)
  for miss_rank in (3, 2501):
    found = metrics.ranking_metrics([np.inf], (1, 10**6), miss_rank)
    assert found.pop('mrr') == pytest.approx(1 / miss_rank)
    assert set(found.values()) == {0.0}


def test_nothing_to_average_is_nan():
  found = metrics.ranking_metrics(np.zeros(0, np.int32), (1, 10))
  assert set(found) == {'hr@1', 'ndcg@1', 'hr@10', 'ndcg@10', 'mrr'}
  assert all(math.isnan(v) for v in found.values())
