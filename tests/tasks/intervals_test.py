"""95 % intervals of metrics hold the truth about that often."""

import doctest

import numpy as np
import pytest

from genrec_jax.tasks import metrics, wilson
from genrec_jax.tasks.ranking_metrics import measure_labels
from genrec_jax.tasks.ranking_metrics.intervals import label_intervals

DRAWS = 400


def test_examples():
  assert doctest.testmod(wilson).failed == 0


def test_intervals_of_ranks_hold_the_mean_of_all():
  rng = np.random.default_rng(0)
  everyone = np.where(rng.random(100_000) < 0.2, np.inf, 1.0)
  everyone *= rng.integers(1, 60, len(everyone))
  ks = (1, 10, 50)
  truth = metrics.ranking_metrics(everyone, ks)
  held = dict.fromkeys(truth, 0)
  for _ in range(DRAWS):
    some = rng.choice(everyone, 500)
    values = metrics.ranking_metrics(some, ks)
    for name, (low, high) in metrics.metric_intervals(some, ks).items():
      assert 0 <= low <= values[name] <= high <= 1
      held[name] += low <= truth[name] <= high
  assert held.pop('mrr') >= 0.95 * DRAWS  # wider than it need be
  for name, count in held.items():
    assert 0.9 <= count / DRAWS <= 0.98, name


def test_the_interval_of_mrr_holds_where_a_few_targets_make_it():
  rng = np.random.default_rng(1)
  everyone = rng.integers(11, 3000, 100_000)
  everyone[:5000] = rng.integers(1, 11, 5000)
  truth = metrics.ranking_metrics(everyone, ())['mrr']
  for size in (20, 50, 200, 1000):
    held = 0
    for _ in range(DRAWS):
      some = rng.choice(everyone, size)
      low, high = metrics.metric_intervals(some, ())['mrr']
      held += low <= truth <= high
    assert held >= 0.93 * DRAWS, size


def test_targets_of_one_user_are_one_draw():
  rng = np.random.default_rng(2)
  tastes = np.where(rng.random((2000, 1)) < 0.3, 1.0, np.inf)
  everyone = np.repeat(tastes, 20, axis=1)  # the worst case: all alike
  held = 0
  for _ in range(DRAWS):
    some = rng.choice(everyone, 50).ravel()
    low, high = metrics.metric_intervals(some, [10], users=50)['hr@10']
    held += low <= np.mean(tastes == 1.0) <= high
  assert held >= 0.93 * DRAWS


def test_intervals_of_no_hit_and_of_too_few():
  low, high = metrics.metric_intervals(np.full(100, np.inf), [10])['hr@10']
  assert low == 0 and 0.02 < high < 0.05
  assert metrics.metric_intervals(np.ones(1), [10]) == {}
  assert metrics.metric_intervals(np.zeros(0), [10]) == {}


def test_intervals_of_labels_hold_the_truth():
  rng = np.random.default_rng(0)

  def draw(count):
    x = rng.normal(-1, 1.5, (count, 1)).astype(np.float32)
    y = (rng.random(x.shape) < 1 / (1 + np.exp(-x))).astype(np.float32)
    return x, y, np.ones(count, np.float32)

  truth = measure_labels(*draw(200_000))
  held = {'auc': 0, 'logloss': 0}
  for _ in range(DRAWS):
    some = draw(200)
    values = measure_labels(*some)
    intervals = label_intervals(*some, ['label'], values)
    assert set(intervals) == set(held)
    for name, (low, high) in intervals.items():
      assert low <= values[name] <= high
      held[name] += low <= truth[name] <= high
  for name, count in held.items():
    assert 0.89 <= count / DRAWS <= 0.99, name


@pytest.mark.parametrize('labels, names', [
  ([[0, 1], [1, 1], [0, 1]], {'auc/a', 'logloss/a', 'logloss/b'}),
  ([[0.5, 0], [1, 1], [0, 0]], {'auc/b', 'logloss/b'}),
])  # fmt: skip
def test_what_has_no_interval(labels, names):
  y = np.array(labels, np.float32)
  x = np.arange(6, dtype=np.float32).reshape(3, 2)
  weights = np.ones(3, np.float32)
  values = measure_labels(x, y, weights, None, ['a', 'b'])
  assert set(label_intervals(x, y, weights, ['a', 'b'], values)) == names
  weights[0] = 2
  assert label_intervals(x, y, weights, ['a', 'b'], values) == {}
