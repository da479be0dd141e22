"""Settings of requests that make no run are refused without any data."""

import pytest

from genrec_jax import config as config_lib
from genrec_jax.evaluators.requests import RequestEvaluator
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec
from genrec_jax.tasks.request_ranking import RequestRanking
from genrec_jax.train import request_checks
from genrec_jax.train.request_data import RequestData
from genrec_jax.train.settings_checks import check_settings


@pytest.mark.parametrize(
  'name, overrides, text',
  [
    ('gr_streaming', ['data.stochastic_length.alpha=1'], 'alpha is 1.0, must'),
    ('gr_streaming', ['train.epochs=2'], 'train.epochs is 2, and data.order='),
    ('gr_streaming', ['train.eval_every=9'], 'train.eval_every is 9, and'),
    ('gr_streaming', ['train.shuffle=false'], 'train.shuffle is False, and'),
    ('gr_streaming', ['train.patience=2'], 'validation once, at its end'),
    (
      'gr_streaming',
      ['optimizer.plateau_factor=0.5'],
      'plateau_factor is 0.5, .* once, at its end: set .*plateau_factor=1.0',
    ),
    (
      'gr_streaming',
      ['train.min_delta=0.01'],
      'min_delta is 0.01, .* once, at its end: set train.min_delta=0.0',
    ),
    (
      'gr_ml1m',
      ['eval.splits=next', 'train.patience=0'],
      "no split 'next' to evaluate: set eval.splits=valid,test$",
    ),
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
    (
      'gr_streaming',
      [
        'data.streaming.true_time=true',
        'data.streaming.step_seconds=1000000000',
      ],
      'step_seconds is 1000000000, and with .*steps=100 .*: lower step_seconds',
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
    ('gr_streaming', ['data.order=shuffled', 'train.min_delta=0.01',
                      'optimizer.plateau_factor=0.5']),
    ('gr_streaming', ['data.order=shuffled', 'eval.splits=valid']),
    ('gr_streaming', ['data.streaming.step_seconds=1000000000']),
    ('gr_streaming', ['eval.splits=next']),
    ('gr_streaming', ['eval.splits=()']),
    ('gr_streaming', ['eval.splits=valid,test']),
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


def load_data(tmp_path, *overrides) -> RequestData:
  overrides = [f'data.streaming.{text}' for text in overrides]
  config = config_lib.load('gr_streaming:smoke', overrides)
  return RequestData.load(config, tmp_path, log=lambda line: None)


@pytest.mark.parametrize('order', ['stream', 'shuffled'])
def test_a_stream_of_nobody_is_one_sentence(tmp_path, order):
  config = config_lib.load(
    'gr_streaming:smoke',
    [
      'data.streaming.activity=0.000001',
      'data.streaming.users=3',
      f'data.order={order}',
    ],
  )
  message = (
    'no request to train on, .*: raise data.streaming.activity, '
    'data.streaming.users or data.streaming.steps$'
  )
  with pytest.raises(config_lib.ConfigError, match=message):
    RequestData.load(config, tmp_path, log=lambda line: None)


def test_a_stream_without_a_test_is_told(tmp_path, said):
  data = load_data(tmp_path, 'train_steps=6')
  assert 'test' not in data.splits and 'train' in data.splits
  text = 'there is no test split, and no metric of it; data.streaming.train_ste'
  assert text in said() and 'train_steps is 6, as many as data.str' in said()
  (note,) = data.describe_splits()[1]
  assert note.startswith(text)


def test_a_test_in_which_nobody_takes_part_is_told(tmp_path, said):
  # Of two users with a chance of 0.3, none is there in the last step.
  few = ('users=2', 'activity=0.3', 'train_steps=5')
  for seed in range(9):
    data = load_data(tmp_path, *few, f'seed={seed}')
    if 'test' not in data.splits:
      break
  assert 'nobody takes part in a step of inference: raise data.str' in said()


def test_nothing_is_told_of_a_test_that_is_there_or_not_wanted(tmp_path, said):
  assert load_data(tmp_path).describe_splits()[1] == []
  config = config_lib.load(
    'gr_streaming:smoke', ['data.streaming.train_steps=6', 'eval.splits=next']
  )
  data = RequestData.load(config, tmp_path, log=lambda line: None)
  assert data.describe_splits()[1] == []
  assert 'no test split' not in said()
