"""What a run below a baseline is told."""

import doctest

from genrec_jax.report import shortfall
from genrec_jax.report.comparison import compare_metrics
from genrec_jax.report.shortfall import describe_shortfall


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
