"""`train.monitor` knows which values of a metric are good."""

import math
import pathlib

import jax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from genrec_jax.train.monitor import parse_monitor
from tests.marks import slow
from tests.train import tiny_run

CONFIG = str(
  pathlib.Path(__file__).parents[2] / 'configs/frappe.py:deepfm,smoke'
)
NAMES = ('auc', 'logloss', 'ne', 'calibration', 'rmse', 'examples')
DIRECTIONS = {
  'auc': 'higher',
  'logloss': 'lower',
  'ne': 'lower',
  'calibration': 1.0,
  'examples': 'none',
}


@pytest.mark.parametrize(
  'monitor, distance',
  [
    ('auc', lambda m: -m['auc']),
    slow('logloss', lambda m: m['logloss']),
    slow('ne', lambda m: m['ne']),
    ('calibration', lambda m: abs(m['calibration'] - 1)),
    ('auc:1,logloss:-2', lambda m: 2 * m['logloss'] - m['auc']),
  ],
)
def test_a_run_keeps_its_best_step(tmp_path, monitor, distance):
  overrides = [
    f'train.monitor={monitor}',
    'train.steps=40',
    'train.patience=2',
    'optimizer.learning_rate=0.03',
    'report.importance_rows=0',
  ]
  config = config_lib.load(CONFIG, overrides)
  with jax.numpy_dtype_promotion('standard'):
    report = loop.train_and_evaluate(config, tmp_path, TASK_KINDS)
  far, waited = {}, 0
  for row in read_jsonl(tmp_path / 'metrics.jsonl'):
    values = {k[6:]: v for k, v in row.items() if k.startswith('valid/')}
    if values:
      waited = (
        0 if distance(values) < min(far.values(), default=9) else 1 + waited
      )
      far[row['step']] = distance(values)
  assert report['best_step'] == min(far, key=far.get)
  assert distance(report['metrics']['valid']) == min(far.values())
  assert report['steps'] == max(far) and (waited == 2 or max(far) == 40)
  assert report['directions']['calibration'] == 1


def test_nan_is_never_the_best(scripted, tmp_path):
  nan = math.nan
  scripted(nan, 0.2, nan, 0.1)
  report = tiny_run.train(tmp_path, 'train.steps=16')
  assert report['best_step'] == 8
  scripted(nan)
  report = tiny_run.train(tmp_path / 'none', 'train.steps=4')
  assert report['best_step'] == 4
  assert 'No step is the best by ndcg@10' in report['notes'][0]


def test_what_gains_too_little_is_not_better(scripted, tmp_path):
  scripted(0.1, 0.105, 0.109, 0.12)
  report = tiny_run.train(
    tmp_path, 'train.steps=16', 'train.patience=3', 'train.min_delta=0.01'
  )
  assert report['best_step'] == 16


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('name', ['auc', 'logloss', 'calibration', 'rmse'])
def test_only_finite_values_are_better(name, value):
  monitor = parse_monitor(name, NAMES, DIRECTIONS)
  assert not monitor.is_better(value, None)
  assert not monitor.is_better(value, 0.5)
  assert monitor.is_better(0.5, value)  # as earlier versions kept them


@pytest.mark.parametrize(
  'text, message',
  [
    ('examples', "no value of 'examples' is better .* auc, logloss, ne, cal"),
    ('acu', "is 'acu'; measured are auc, .* set --config.train.monitor=auc$"),
    ('loglos', 'set --config.train.monitor=logloss$'),
    ('ndcg@10', 'set --config.train.monitor=auc$'),
    (None, 'is None; measured are'),
    ('auc-logloss', "is 'auc-logloss'; measured are"),
    ('auc,logloss', 'measured are'),
    ('auc:1,logloss', "'logloss' in it is not NAME:WEIGHT"),
    ('auc:1,', 'is not NAME:WEIGHT'),
    ('auc:0', 'with a weight other than 0'),
    ('auc:nan', 'with a weight other than 0'),
    ('auc:1,auc:2', "has 'auc' twice"),
    ('auc:1,acu:2', "there is no 'acu'; measured are"),
    ('auc:1,logloss:1', 'must be below 0: logloss:-1'),
    ('auc:-2', 'must be above 0: auc:2'),
    ('calibration:1', r'values near 1.0 of .* must be below 0'),
    ('auc:1,examples:1', "no value of 'examples'"),
  ],
)
def test_monitors_that_choose_nothing_are_refused(text, message):
  with pytest.raises(ConfigError, match=message):
    parse_monitor(text, NAMES, DIRECTIONS)


def test_a_metric_that_says_nothing():
  """Higher counts as better, and a weight may say otherwise."""
  assert parse_monitor('rmse', NAMES, DIRECTIONS).is_better(2.0, 1.0)
  lower = parse_monitor('rmse:-1', NAMES, DIRECTIONS)
  before, now = (lower.measure({'rmse': x}) for x in (2.0, 1.0))
  assert lower.is_better(now, before)
  with pytest.raises(ValueError, match="'rmse' is 'low', must be 'higher'"):
    parse_monitor('rmse', NAMES, {'rmse': 'low'})
