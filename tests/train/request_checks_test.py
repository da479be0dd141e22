"""Settings of requests that make no run are refused without any data."""

import pytest

from genrec_jax import config as config_lib
from genrec_jax.evaluators.requests import RequestEvaluator
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec
from genrec_jax.tasks.request_ranking import RequestRanking
from genrec_jax.train import request_checks
from genrec_jax.train.settings_checks import check_settings


@pytest.mark.parametrize(
  'name, overrides, text',
  [
    ('gr_streaming', ['data.stochastic_length.alpha=1'], 'alpha is 1.0, must'),
    ('gr_streaming', ['train.epochs=2'], 'train.epochs is 2, and data.order='),
    ('gr_streaming', ['train.eval_every=9'], 'train.eval_every is 9, and'),
    ('gr_streaming', ['train.shuffle=false'], 'train.shuffle is False, and'),
    ('gr_streaming', ['train.patience=2'], 'validation once, at its end'),
    ('gr_streaming', ['data.name=movielens'], 'and movielens has none'),
    ('gr_kuairand', ['data.order=stream'], 'data.kuairand.step_s is 0'),
    ('gr_yambda', ['data.yambda.step_s=0'], 'data.yambda.step_s is 0'),
    (
      'gr_streaming',
      ['model.postprocessor=timestamp'],
      "model.postprocessor is 'timestamp', and data.name='streaming' has no",
    ),
    (
      'gr_streaming',
      ['model.time_bias=true'],
      'set model.time_bias=False, or data.streaming.true_time=True',
    ),
    (
      'gr_yambda',
      ['model.watch_times=((10.0,2),)'],
      'no watch time: set data.yambda.watch_time=True',
    ),
    (
      'gr_ml1m:dlrm',
      ['model.history.watch_times=((10.0,2),)'],
      "model.history.watch_times is .*movielens' have no watch time$",
    ),
    (
      'gr_ml1m',
      ['train.monitor=auc/liked'],
      "monitor is 'auc/liked'; measured",
    ),
    ('gr_ml1m', ['train.monitor=hr@10'], 'measured are auc, gauc, logloss, ne'),
    (
      'gr_kuairand',
      ['data.kuairand.labels=play_time'],
      'measured are mse/play_time, mae/play_time',
    ),
    (
      'gr_kuairand',
      [
        'data.kuairand.labels=play_time',
        'train.monitor=mse/play_time',
        'eval.progressive=window',
      ],
      'which play_time has none of',
    ),
    (
      'gr_kuairand',
      ['loss.task_weights=1.0,2.0'],
      'a number for each of the labels is_click, is_like',
    ),
    (
      'gr_streaming',
      ['data.streaming.train_steps=101'],
      r'data.streaming.train_steps is 101, must be .* 100 at most \(data.str',
    ),
    ('gr_yambda', ['data.yambda.feedback=likes'], "did you mean 'like'"),
    ('gr_ml1m', ['eval.splits=valid,later'], "'valid', 'next', 'test'"),
  ],
)
def test_what_is_refused(name, overrides, text):
  with pytest.raises(config_lib.ConfigError, match=text):
    check_settings(config_lib.load(name, overrides))


@pytest.mark.parametrize(
  'name, overrides',
  [
    ('gr_streaming', ['data.stochastic_length.alpha=0']),
    ('gr_streaming', ['data.stochastic_length.alpha=2']),
    ('gr_streaming', ['data.order=shuffled', 'train.epochs=2']),
    ('gr_streaming', ['data.order=shuffled', 'train.patience=2']),
    ('gr_streaming', ['data.streaming.true_time=true', 'model.time_bias=true']),
    ('gr_kuairand', ['data.order=stream', 'data.kuairand.step_s=86400',
                     'train.epochs=1', 'train.patience=0']),
    ('gr_kuairand', ['train.monitor=auc/is_like']),
    ('gr_kuairand', ['model.watch_times=((10.0,256),)']),
    ('gr_ml1m', ['data.movielens.rating_label=true',
                 'train.monitor=mse/rating', 'loss.task_weights=1.0,0.2']),
  ],
)  # fmt: skip
def test_what_makes_a_run(name, overrides):
  check_settings(config_lib.load(name, overrides))


@pytest.mark.parametrize(
  'labels',
  [['liked'], ['liked', 'rating'], ['a', 'b', 'play_time'], ['rating']],
)
def test_the_metrics_are_those_of_the_evaluator(labels):
  spec = RequestSpec(
    items=(FeatureSpec('item', rows=9),),
    actions=(('seen', 1),),
    labels=tuple(
      LabelSpec(x, 'regression' if x in request_checks.NUMBERS else 'binary')
      for x in labels
    ),
  )
  model = config_lib.pool_history(config_lib.lr()).to_dict()
  task = RequestRanking(
    model.pop('name'), model, {}, spec=spec, max_history=4, max_candidates=2
  )
  evaluator = RequestEvaluator(task, lambda *_: ())
  assert request_checks.list_metrics(labels) == evaluator.names()
