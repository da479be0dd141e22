"""What a run below a baseline is told."""

import doctest
import itertools
import re

import pytest

from genrec_jax import config as config_lib
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


def make_report(config, metrics=('auc', 'logloss', 'ne'), candidates=50_000):
  """One whose `metrics` are all worse than those of a baseline."""
  better = {'auc': 0.7, 'logloss': 0.5, 'ne': 0.8, 'hr@10': 0.5}
  worse = {'auc': 0.6, 'logloss': 0.6, 'ne': 0.9, 'hr@10': 0.4}
  return {
    'metrics': {'test': {m: worse[m] for m in metrics}},
    'baselines': {'popularity': {'test': {m: better[m] for m in metrics}}},
    'config': config.to_dict(),
    'splits': {'train': {'examples': candidates}},
  }


def advise(config, *args, **more) -> str:
  report = make_report(config, *args, **more)
  return describe_shortfall(report, compare_metrics(report))[1]


def list_configs():
  """Configs whose advice differs."""
  yield config_lib.retrieval()
  for by in ('order', 'random'):
    config = config_lib.ranking()
    config.data.split.by = by
    yield config
  for order, name in itertools.product(
    ('stream', 'shuffled'), ('streaming', 'yambda')
  ):
    config = config_lib.request_ranking()
    config.data.order, config.data.name = order, name
    yield config


@pytest.mark.parametrize('metrics', [('auc',), ('logloss', 'auc'), ('hr@10',)])
def test_every_key_that_is_named_is_one_of_the_task(metrics):
  for config in list_configs():
    hint = advise(config, metrics, candidates=100)
    hint = hint.replace(shortfall.GUIDE, '')
    named = re.findall(
      r'\b(?:train|optimizer|model|data|loss|eval)\.[a-z][a-z0-9_.]*[a-z0-9]',
      hint.replace('config.model', ''),
    )
    assert named, hint
    for key in named:
      section = config
      for part in key.split('.'):
        assert part in section, (config.task, key)
        section = section[part]


def test_stu_is_told_what_makes_it_quick():
  config = config_lib.request_ranking()
  hint = advise(config)
  for text in ('quicken_stu', 'model.tied_start', 'model.head_inputs'):
    assert text in hint
  config.model.tied_start = True
  assert 'model.tied_start' not in advise(config)
  config_lib.quicken_stu(config.model)
  assert 'quicken_stu' not in advise(config)
  config_lib.set_model(config, 'dlrm')
  assert 'quicken_stu' not in advise(config)


def test_a_stream_is_told_of_no_epochs():
  config = config_lib.request_ranking()
  assert 'train.epochs' in advise(config)
  config.data.order = 'stream'
  hint = advise(config)
  assert 'epoch' not in hint and 'patience' not in hint
  assert 'data.streaming.users' in hint
  config.data.name = 'yambda'
  assert 'data.streaming' not in advise(config) and 'more data' in hint


def test_little_is_expected_of_few_data():
  config = config_lib.request_ranking()
  few, many = advise(config, candidates=768), advise(config)
  assert 'expected' in few and '768 candidates' in few and ':smoke' in few
  assert 'expected' not in many


@pytest.mark.parametrize(
  ('steps', 'told'), [(16, 'The run had 16 steps'), (50, 'too sure of itself')]
)
def test_a_run_of_few_steps_is_not_called_too_sure(steps, told):
  report = {
    'metrics': {'test': {'auc': 0.6, 'logloss': 0.8}},
    'baselines': {'mean': {'test': {'auc': 0.5, 'logloss': 0.7}}},
    'config': {'task': 'ranking'},
    'steps': steps,
  }
  hint = describe_shortfall(report, compare_metrics(report))[1]
  assert told in hint
  assert ('too sure' in hint) == (steps == 50)


@pytest.mark.parametrize(
  ('auc', 'monitor', 'best', 'steps', 'told'),
  [
    (0.49, 'auc', 83, 83, 'hardly trained. Train longer'),
    (0.49, 'auc', 40, 83, 'Try fewer epochs'),
    (0.49, 'auc', 5000, 5000, 'Try fewer epochs'),
    (0.6, 'logloss', 83, 83, 'hardly trained. Train longer'),
    (0.6, 'auc', 83, 83, 'too sure of itself'),
  ],
)
def test_a_run_that_ends_at_its_best_is_not_told_to_end_earlier(
  auc, monitor, best, steps, told
):
  report = {
    'metrics': {'test': {'auc': auc, 'logloss': 0.8}},
    'baselines': {'mean': {'test': {'auc': 0.5, 'logloss': 0.7}}},
    'config': {'task': 'ranking', 'train': {'monitor': monitor}},
    'steps': steps,
    'best_step': best,
  }
  hint = describe_shortfall(report, compare_metrics(report))[1]
  assert told in hint
  assert ('fewer epochs' in hint) == ('hardly' not in hint)
