"""What a run below a baseline is told."""

import doctest

import pytest

from genrec_jax.report import shortfall
from genrec_jax.report.comparison import compare_metrics
from genrec_jax.report.shortfall import describe_shortfall, find_shortfalls


def test_examples():
  assert doctest.testmod(shortfall).failed == 0


def test_other_cuts_than_ten_are_judged_too():
  metrics = {'hr@5': 0.01, 'hr@20': 0.02, 'ndcg@20': 0.01, 'mrr': 0.011}
  popular = {'hr@5': 0.02, 'hr@20': 0.08, 'ndcg@20': 0.04, 'mrr': 0.010}
  report = {
    'metrics': {'test': metrics},
    'baselines': {'popularity': {'test': popular}},
  }
  said = describe_shortfall(report, compare_metrics(report))[0]
  assert 'NDCG@20' in said and 'HR@5' in said and 'MRR' not in said


def test_a_random_split_is_not_advised_where_there_is_one():
  report = {
    'metrics': {'test': {'auc': 0.6, 'logloss': 0.8}},
    'baselines': {'mean': {'test': {'auc': 0.5, 'logloss': 0.7}}},
    'config': {'task': 'ranking', 'data': {'split': {'by': 'time'}}},
  }
  hint = describe_shortfall(report, compare_metrics(report))[1]
  assert 'data.split.by=random' in hint
  report['config']['data']['split']['by'] = 'random'
  hint = describe_shortfall(report, compare_metrics(report))[1]
  assert 'data.split.by' not in hint and 'table_l2' in hint


@pytest.mark.parametrize(
  'config',
  [None, {}, {'train': None}, {'train': {}}, {'train': {'monitor': ''}}],
  ids=repr,
)
def test_without_a_monitor_the_main_metrics_are_judged(config):
  worse = {'hr@10': 0.2, 'mrr': 0.3, 'hr@1': 0.1}
  report = {
    'metrics': {'test': {name: value / 2 for name, value in worse.items()}},
    'baselines': {'popularity': {'test': worse}},
    'config': config,
  }
  beside = compare_metrics(report)
  headlines = [found.metric for found in find_shortfalls(report, beside)]
  assert headlines == beside.headlines == ['hr@10', 'mrr']
  report['config'] = {'train': {'monitor': 'hr@1:1,hr@10:-2'}}
  found = [found.metric for found in find_shortfalls(report, beside)]
  assert found == ['hr@1', 'hr@10', 'mrr']
