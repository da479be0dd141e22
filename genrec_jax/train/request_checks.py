"""Refuses, before data are read, settings of requests that make no run."""

import numpy as np

from genrec_jax.config import ConfigError
from genrec_jax.data.requests.datasets import SECTIONS
from genrec_jax.data.requests.kuairand import PLAY_TIME
from genrec_jax.data.requests.movielens import LIKED, RATING
from genrec_jax.data.requests.streaming import LABEL
from genrec_jax.data.requests.yambda_files import LISTENED
from genrec_jax.evaluators.requests import DIRECTIONS
from genrec_jax.tasks import ranking_metrics
from genrec_jax.train.monitor import parse_monitor

NUMBERS = (RATING, PLAY_TIME)  # labels that are no probabilities


def check_requests(config) -> None:
  """Refuses settings that contradict each other, whatever the files hold.

  Args:
    config: of the run, whose values are possible one by one.

  Raises:
    ConfigError: names the keys, and says what to change.
  """
  alpha = config.data.stochastic_length.alpha
  if 0 < alpha <= 1:
    raise ConfigError(
      f'data.stochastic_length.alpha is {alpha}, must be above 1 and at most '
      '2, or 0 to cut nothing'
    )
  if config.data.order == 'stream':
    _check_stream(config)
  _check_splits(config)
  _check_inputs(config)
  labels = list_labels(config.data)
  weights = config.loss.task_weights
  if weights and len(weights) != len(labels):
    raise ConfigError(
      f'loss.task_weights is {tuple(weights)}, must be a number for each of '
      f'the labels {", ".join(labels)}'
    )
  binary = [name for name in labels if name not in NUMBERS]
  if config.eval.progressive != 'none' and not binary:
    raise ConfigError(
      f'eval.progressive is {config.eval.progressive!r}, and measures '
      f'probabilities, which {", ".join(labels)} has none of: set '
      "eval.progressive='none'"
    )
  if 'valid' in config.eval.splits:
    train = config.train
    names = list_metrics(labels)
    parse_monitor(train.monitor, names, DIRECTIONS, train.min_delta)


def _check_stream(config) -> None:
  """Refuses what has no meaning where requests come step by step."""
  data, train, why = config.data, config.train, "data.order='stream'"
  if data.name == 'movielens':
    raise ConfigError(
      f'{why} needs steps, and movielens has none: set data.order=shuffled'
    )
  section = SECTIONS.get(data.name, data.name)
  # A data set from outside has no section; what it lacks is seen in its data.
  steps = data.get(section, {}).get('step_s', 1)
  if data.name != 'streaming' and not steps:
    raise ConfigError(
      f'{why} needs steps, and data.{section}.step_s is 0: set the seconds of '
      'a step'
    )
  if not train.steps and train.epochs != 1:
    raise ConfigError(
      f'train.epochs is {train.epochs}, and {why} learns of each step once: '
      'set train.epochs=1'
    )
  if train.eval_every:
    raise ConfigError(
      f'train.eval_every is {train.eval_every}, and {why} evaluates at the end '
      'of each step: set train.eval_every=0'
    )
  if not train.shuffle:
    raise ConfigError(
      f'train.shuffle is False, and {why} draws an order within each step: '
      'set train.shuffle=True'
    )
  if train.patience:
    raise ConfigError(
      f'train.patience is {train.patience} and waits for better validation '
      f'metrics, and {why} measures validation once, at its end: set '
      'train.patience=0'
    )
  for key, value, unset in (
    ('optimizer.plateau_factor', config.optimizer.plateau_factor, 1.0),
    ('train.min_delta', train.min_delta, 0.0),
  ):
    if value != unset:
      raise ConfigError(
        f'{key} is {value}, and acts on validation metrics, which {why} '
        f'measures once, at its end: set {key}={unset}'
      )


def _check_splits(config) -> None:
  """Refuses to evaluate nothing but steps of data that have none."""
  order, splits = config.data.order, tuple(config.eval.splits)
  if order != 'stream' and splits == ('next',):
    raise ConfigError(
      f'eval.splits is {splits}, and with data.order={order!r} there is no '
      "split 'next' to evaluate: set eval.splits=valid,test"
    )


def _check_inputs(config) -> None:
  """Refuses parts of models that read what the data do not have."""
  data, model = config.data, config.model
  if data.name == 'streaming' and not data.streaming.true_time:
    without = "data.name='streaming' has no times: set "
    remedy = ', or data.streaming.true_time=True'
    if model.get('postprocessor') == 'timestamp':
      raise ConfigError(
        f"model.postprocessor is 'timestamp', and {without}"
        f'model.postprocessor=layernorm{remedy}'
      )
    if model.get('time_bias'):
      raise ConfigError(
        f'model.time_bias is True, and {without}model.time_bias=False{remedy}'
      )
  played = data.name == 'kuairand' or (
    data.name == 'yambda' and data.yambda.watch_time
  )
  for key, section in (('', model), ('history.', model.get('history', {}))):
    if section.get('watch_times') and not played:
      raise ConfigError(
        f'model.{key}watch_times is {section["watch_times"]}, and the events '
        f'of data.name={data.name!r} have no watch time'
        + (': set data.yambda.watch_time=True' * (data.name == 'yambda'))
      )


def list_labels(data) -> tuple[str, ...]:
  """Names of the labels that a data set will have.

  Args:
    data: `config.data`.
  """
  if data.name == 'kuairand':
    return tuple(data.kuairand.labels)
  if data.name == 'movielens':
    return (LIKED, RATING) if data.movielens.rating_label else (LIKED,)
  return (LISTENED,) if data.name == 'yambda' else (LABEL,)


def list_metrics(labels) -> list[str]:
  """Names of the metrics of such labels, as `RequestEvaluator` has them."""
  binary = [name for name in labels if name not in NUMBERS]
  none = np.zeros((0, len(binary)), np.float32)
  metrics = []
  if binary:
    group = np.zeros(0, np.int32)
    metrics += ranking_metrics.measure_labels(none, none, None, group, binary)
    metrics += ranking_metrics.of_labels(
      {name: {'accuracy': 0.0} for name in binary}
    )
  for name in labels:
    if name in NUMBERS:
      metrics += [f'mse/{name}', f'mae/{name}']
  return metrics
