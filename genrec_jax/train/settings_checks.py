"""Refuses, before the first step, settings that make no run."""

import logging
import math
from collections.abc import Iterator
from typing import Any

from genrec_jax import config as config_lib
from genrec_jax.config.loading import flatten
from genrec_jax.contracts import Extensions
from genrec_jax.embedding.stores import host_tables
from genrec_jax.runtime.unused_settings import find_unused
from genrec_jax.train.monitor import Monitor, parse_monitor

LOG = logging.getLogger('genrec_jax')

# The least value of numbers, those in tuples too, in a config that has them.
LEAST = {
  'seed': 0,
  'model.dim': 1,
  'model.max_len': 1,
  'eval.ks': 1,
  'eval.batch_size': 1,
  'train.batch_size': 1,
  'train.epochs': 0,
  'train.steps': 0,
  'train.log_every': 1,
  'train.eval_every': 0,
  'train.checkpoint_every': 0,
  'train.keep_checkpoints': 1,
  'train.patience': 0,
  'train.min_delta': 0,
  'train.nan_every': 1,
  'optimizer.warmup_steps': 0,
  'optimizer.decay_steps': 0,
  'compile_cache.max_gb': 0,
  'data.init_std': 0,
  'data.token_capacities': 0,
  'loss.table_l2': 0,
  'loss.task_weights': 0,
  'optimizer.clip_norm': 0,
  'optimizer.plateau_min_rate': 0,
  'checkpoint.expected_restores': 0,
  'checkpoint.keep_hours': 0,
  'checkpoint.keep_gb': 0,
  'parallel.memory_gb': 0,
}
# The same of keys that stand in several places: in `optimizer`, in its `rows`
# and `groups`, and in `tables`.
LEAST_OF_RATES = {
  'learning_rate': 0,
  'rate': 0,
  'weight_decay': 0,
  'eps': 0,
  'init': 0,
  'l2': 0,
}
BELOW_ONE = ('b1', 'b2', 'momentum')
AT_MOST_ONE = ('end_factor', 'plateau_factor', 'plateau_min')
ABOVE_ZERO = (
  'loss.temperature',
  'parallel.bucket_mb',
  'parallel.exchange.capacity',
  'parallel.heartbeat_s',
  'parallel.join_s',
)


def check_settings(config) -> None:
  """Refuses numbers that make no run, before any data are read."""
  train, settings = config.train, flatten(config.to_dict())
  for key, value in settings.items():
    for name, shown, number in _list_numbers(key, value):
      _check_number(key, name, shown, number)
  if config.seed >= 2**32:  # jax.random.key drops the bits above
    raise config_lib.ConfigError(f'seed is {config.seed}, must be below 2^32')
  if not train.steps and not train.epochs:
    raise config_lib.ConfigError('train.steps and train.epochs are both 0')
  window = train.profile_steps
  if window and (len(window) != 2 or not 0 <= window[0] < window[1]):
    raise config_lib.ConfigError(
      f'train.profile_steps is {window}, must be (first, last), as in (10, 15)'
    )
  o = config.optimizer
  if o.plateau_min_rate > o.learning_rate:
    raise config_lib.ConfigError(
      f'optimizer.plateau_min_rate is {o.plateau_min_rate}, must not be above '
      f'optimizer.learning_rate, which is {o.learning_rate}'
    )


def check_unused(config, *, continues: bool) -> None:
  """Refuses settings that an optimizer ignores; warns where a run goes on.

  Args:
    config: of the run.
    continues: whether the run has begun, with this setting and without effect.
  """
  if not (unused := find_unused(config)):
    return
  if not continues:
    raise config_lib.ConfigError('; '.join(unused))
  for sentence in unused:
    LOG.warning('%s. This run goes on without it, as it began.', sentence)


def check_evaluation(
  config, evaluators, extensions: Extensions | None
) -> Monitor | None:
  """Refuses what would be missed after the last step.

  Returns:
    What compares evaluations; None without a validation split.
  """
  train, stores = config.train, extensions.stores if extensions else {}
  if config.eval.splits and not evaluators:
    raise config_lib.ConfigError(
      'nothing to evaluate: the data have none of the splits in eval.splits; '
      'eval.splits=() trains without evaluations'
    )
  if evaluators and (names := host_tables(stores)):
    raise config_lib.ConfigError(
      f'the stores of {", ".join(names)} work on the host, and evaluations '
      'read whole tables from the device: set eval.splits=()'
    )
  warn_of_undefined(evaluators)
  if 'valid' in evaluators:
    evaluator = evaluators['valid']
    monitor = parse_monitor(
      _fit_to_catalogue(train.monitor, evaluator.names(), config.eval),
      evaluator.names(),
      getattr(evaluator, 'directions', {}),
      train.min_delta,
    )
    if causes := explain_nan(monitor, evaluator):
      LOG.warning(
        'train.monitor is %s, and it will be NaN: %s. No step can become the '
        'best by it; choose another, such as logloss.',
        train.monitor,
        causes,
      )
    return monitor
  if train.patience:
    raise config_lib.ConfigError(
      'train.patience waits for better validation metrics, and nothing is '
      'held out for validation (split.*, eval.splits); set train.patience=0'
    )
  return None


def warn_of_undefined(evaluators) -> None:
  """Says which metrics have no value on these data, and why."""
  for evaluator in evaluators.values():
    metrics_of = {}
    for metric, why in getattr(evaluator, 'undefined', {}).items():
      metrics_of.setdefault(why, []).append(metric)
    for why, metrics in metrics_of.items():
      is_alike = any(metric.startswith('auc') for metric in metrics)
      LOG.warning(
        '%s, so that %s not defined (NaN).%s',
        why,
        ', '.join(metrics) + (' is' if len(metrics) == 1 else ' are'),
        ' Are the rows in the order of the label, or are there very few? '
        "data.split.by='random' draws the examples of each split, and the "
        'fractions of data.split say how large it is.'
        if is_alike
        else '',
      )


def explain_nan(monitor: Monitor, evaluator) -> str:
  """Why the monitored value is NaN whatever is predicted; '' if it is not."""
  undefined = getattr(evaluator, 'undefined', {})
  causes = [undefined[name] for name in monitor.weights if name in undefined]
  return '; '.join(dict.fromkeys(causes))


def describe_nan(monitor: Monitor, evaluators, measured) -> str:
  """What is said of an evaluation whose monitored value is NaN."""
  names = [n for n in monitor.weights if math.isnan(measured['valid'][n])]
  cause = explain_nan(monitor, evaluators['valid'])
  return (
    f'{" and ".join(names)} of the valid split, by which train.monitor '
    f'compares evaluations, is NaN{cause and f" ({cause})"}. Evaluations in '
    'which it is are neither better nor worse than others: no such step '
    'becomes the best, and train.patience and optimizer.plateau_factor do not '
    'count them.'
  )


def _fit_to_catalogue(monitor: str, names: list[str], settings) -> str:
  """The monitor, or its like with the largest k that there are items for."""
  family, _, k = monitor.partition('@')
  if monitor in names or k not in map(str, settings.get('ks', ())):
    return monitor
  measured = [n for n in names if n.startswith(f'{family}@')]
  if not measured:
    return monitor
  largest = max(measured, key=lambda n: int(n.partition('@')[2]))
  LOG.warning(
    'train.monitor is %s, and there are fewer items to recommend than %s: %s '
    'is compared instead',
    monitor,
    k,
    largest,
  )
  return largest


def _list_numbers(key: str, value) -> Iterator[tuple[str, Any, int | float]]:
  """The numbers in the value of a key.

  Yields:
    (what an error calls the key, and its value, a number in it).
  """
  if isinstance(value, bool):
    return
  if isinstance(value, int | float):
    yield key, value, value
  elif isinstance(value, dict):
    for name, part in value.items():
      yield from _list_numbers(f'{key}: {name}', part)
  elif isinstance(value, tuple | list):
    # Of ('.*/bias', {'learning_rate': -1}) the pattern says which.
    if len(value) == 2 and isinstance(value[1], dict):
      yield from _list_numbers(f'{key}, {value[0]!r}', value[1])
      return
    for part in value:
      for name, shown, number in _list_numbers(key, part):
        yield name, value if name == key else shown, number


def _check_number(key: str, name: str, shown, number: int | float) -> None:
  """Refuses a number outside of what its key can mean."""
  last = name.rpartition(': ')[2].rpartition('.')[2]
  moves_weights = key.startswith('optimizer.') or key == 'tables'
  least = LEAST.get(key, LEAST_OF_RATES.get(last) if moves_weights else None)
  wanted, fits = '', True
  if (moves_weights and last in BELOW_ONE) or (
    key.startswith('model.') and 'dropout' in last
  ):
    wanted, fits = 'at least 0 and below 1', 0 <= number < 1
  elif moves_weights and last in AT_MOST_ONE:
    wanted, fits = 'from 0 to 1', 0 <= number <= 1
  elif key in ABOVE_ZERO or (moves_weights and last == 'max_norm'):
    wanted, fits = 'a finite number above 0', 0 < number < math.inf
  elif least is not None:
    wanted, fits = f'at least {least}', number >= least
    if number == math.inf:
      wanted, fits = 'a finite number', False
  if math.isnan(number):
    wanted, fits = wanted or 'a number', False
  if not fits:
    raise config_lib.ConfigError(f'{name} is {shown}, must be {wanted}')
