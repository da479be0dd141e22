"""Refuses, before the first step, settings that make no run."""

import logging
import math
import os

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import signing
from genrec_jax.config.checks import check_sections, check_values
from genrec_jax.config.model_choice import MODELS_OF
from genrec_jax.contracts import Extensions
from genrec_jax.data import datasets
from genrec_jax.data.capacities import share_of
from genrec_jax.data.quoting import quote
from genrec_jax.data.ranking import (
  annotations,
  growing,
  schema,
  split_rules,
)
from genrec_jax.distill.distilled_ranking import check_columns
from genrec_jax.distill.heads import DistillSettings
from genrec_jax.embedding.stores import host_tables
from genrec_jax.numerics import policy, row_formats
from genrec_jax.runtime import optimizer, planning
from genrec_jax.runtime.unused_settings import find_unused
from genrec_jax.tasks import metrics as retrieval_metrics
from genrec_jax.tasks import ranking_metrics
from genrec_jax.train import (
  part_ends,
  progressive_validation,
  request_checks,
  tower_choice,
)
from genrec_jax.train.experiment import SPLITS
from genrec_jax.train.monitor import Monitor, parse_monitor
from genrec_jax.train.ranking_data import refuse_float_labels

LOG = logging.getLogger('genrec_jax')


def check_settings(config, extensions: Extensions | None = None) -> None:
  """Refuses settings that make no run, before any data are read.

  Args:
    config: of the run.
    extensions: what it uses from outside the library.

  Raises:
    ConfigError: names the keys, and says what they must be.
  """
  named = bool(config.get('extensions')) or extensions not in (
    None,
    Extensions(),
  )
  check_values(config, extended=named)
  check_sections(config)
  train = config.train
  if config.seed >= 2**32:  # jax.random.key drops the bits above
    raise config_lib.ConfigError(f'seed is {config.seed}, must be below 2^32')
  if not train.steps and not train.epochs:
    raise config_lib.ConfigError('train.steps and train.epochs are both 0')
  window = train.profile_steps
  if window and (len(window) != 2 or not 0 <= window[0] < window[1]):
    raise config_lib.ConfigError(
      f'train.profile_steps is {quote(window)}, must be (first, last), '
      'as in (10, 15)'
    )
  o = config.optimizer
  if o.plateau_min_rate > o.learning_rate:
    raise config_lib.ConfigError(
      f'optimizer.plateau_min_rate is {o.plateau_min_rate}, must not be above '
      f'optimizer.learning_rate, which is {o.learning_rate}'
    )
  _check_splits(config)
  refuse_host_tables(config, extensions)
  progressive_validation.check_settings(config)
  part_ends.check_settings(config)
  try:
    _check_batch(config)
    _read_sections(config, extensions or Extensions(), named)
  except config_lib.ConfigError:
    raise
  except ValueError as error:
    raise config_lib.ConfigError(str(error)) from None


def _check_batch(config) -> None:
  """Refuses a batch that cannot be shared, before data are prepared for it."""
  p = config.parallel
  parts = p.replicas * p.hosts * p.devices * p.microbatches
  if p.determinism == 'mesh_invariant':
    parts = p.reduction_blocks
  if parts and config.task in MODELS_OF:  # 0 is all devices that there are
    share_of(config.train.batch_size, parts, 'train.batch_size')


def _check_splits(config) -> None:
  """Refuses to wait for evaluations that no data can bring."""
  splits, train = config.eval.get('splits', ()), config.train
  if wrong := [split for split in splits if split not in SPLITS]:
    raise config_lib.ConfigError(
      f'eval.splits holds {quote(wrong[0])}, must be among {", ".join(SPLITS)}'
    )
  if train.patience and 'valid' not in splits:
    raise config_lib.ConfigError(
      f'train.patience is {train.patience} and waits for better validation '
      f"metrics, and eval.splits is {quote(splits)}, without 'valid': set "
      'train.patience=0, or evaluate the valid split too'
    )
  if config.task != 'retrieval':
    return
  split, why = config.split, ''
  if split.name == 'leave_last_out' and split.holdout == 1:
    why = 'split.holdout=1 holds out a test item alone'
  elif split.name == 'global_time':
    for key in ('valid_from', 'test_from'):
      if split[key] == 0:
        raise config_lib.ConfigError(
          f'split.{key} is {split[key]}, must be seconds since 1970 or a share '
          'of the events, above 0 and below 1'
        )
    first, last = split.valid_from, split.test_from
    if first is None or first == last:
      why = f'split.valid_from={first} leaves nothing before split.test_from'
    # Of a share and a time only the data can say which is the later.
    elif (first < 1) == (last < 1) and first > last:
      raise config_lib.ConfigError(
        f'split.valid_from is {first}, after split.test_from, which is {last}'
      )
  if why and train.patience:
    raise config_lib.ConfigError(
      f'train.patience is {train.patience} and waits for better validation '
      f'metrics, and {why}: set train.patience=0'
    )


def refuse_host_tables(config, extensions: Extensions | None) -> None:
  """Refuses evaluations of tables that no device has as a whole."""
  stores = extensions.stores if extensions else {}
  if config.eval.get('splits', ()) and (names := host_tables(stores)):
    raise config_lib.ConfigError(
      f'the stores of {", ".join(names)} work on the host, and evaluations '
      'read whole tables from the device: set eval.splits=()'
    )


def refuse_packed_rows(config) -> None:
  """Refuses a training with `numerics.rows`, which is of what comes after."""
  if config.numerics.rows:
    raise config_lib.ConfigError(
      'numerics.rows is for evaluations and predictions: train without it, and '
      'give it to `genrec eval` or `genrec predict`'
    )


def check_files(config, *, continues: bool) -> None:
  """Refuses files that are not there, before any data are read.

  Args:
    config: of the run.
    continues: whether the run has begun, and no longer needs its first weights.
  """
  path = config.train.init_from
  if path and not continues and not os.path.exists(path):
    raise config_lib.ConfigError(
      f'train.init_from is {quote(path)}, and there is no such file'
    )
  if not continues:
    tower_choice.check_words(config)
  try:
    signing.read_key(config.checkpoint.sign_key_file, lambda *_: None)
  except ValueError as error:
    raise config_lib.ConfigError(f'checkpoint.sign_key_file: {error}') from None


def _read_sections(config, extensions: Extensions, named: bool) -> None:
  """Reads, without the data, what is read anew with them.

  Args:
    config: of the run.
    extensions: what it uses from outside the library.
    named: whether there are such parts, maybe ones that are not loaded here.
  """
  longest = config.train.steps or 2**31 - 1  # epochs are as long as the data
  c = optimizer.resolve_decay(config, longest).optimizer
  optimizer.build_optimizer(c)
  optimizer.row_rate(c)
  config_lib.table_settings(config)
  for rule in config.numerics.policy:
    policy.check_rule(rule)
  for rule in config.numerics.rows:
    row_formats.check_rule(rule)
  p = config.parallel
  planning.check_parallel(p, p.replicas * p.hosts * max(1, p.devices))
  if not named:
    planning.pooling_rule(config, extensions)
  if config.task == 'ranking':
    _check_ranking(config)
  elif config.task == 'retrieval':
    _check_retrieval(config)
  elif config.task == 'request_ranking':
    request_checks.check_requests(config)


def _check_ranking(config) -> None:
  data = config.data
  labels = schema.label_names(data)
  beside = annotations.build_annotations(data, labels)
  refuse_float_labels(beside)
  _check_teacher(config, labels, beside)
  part_ends.check_stream(config, optimizer.needs_total(config.optimizer))
  if part_ends.name_stream(config):
    growing.refuse_row_numbers(data.get('example_id', ''))
  schema.build_columns(data)
  cut = data.split
  if not any(data.files.values()):
    split_rules.SplitRule(
      cut.by, cut.valid_fraction, cut.test_fraction, cut.seed, cut.column
    )
  fresh = ranking_metrics.LabelMetrics(grouped=ranking_metrics.GroupedAuc())
  names = ranking_metrics.of_labels(dict.fromkeys(labels, fresh.result()))
  _check_monitor(config, list(names), ranking_metrics.DIRECTIONS)


def _check_teacher(config, labels, beside) -> None:
  if config.distill.method == 'none':
    return
  teacher = DistillSettings.of_config(config)
  if config.data.name != 'prepared':  # which knows its columns itself
    check_columns(teacher, labels, {x.name: x for x in beside.extras})
  if teacher.has_heads and config.model.name in ('lr', 'fm'):
    teacher.refuse_headless(config.model.name)


def _check_retrieval(config) -> None:
  data, reads_times = config.data, config.model.get('time_bias', False)
  datasets.build_extras(data)
  has_times = data.name not in ('sasrec_text', 'synthetic') and (
    data.name not in ('csv', 'parquet') or data.columns.time != ''
  )
  if reads_times and not has_times:
    raise config_lib.ConfigError(
      f'model.time_bias needs timestamps and {data.name} has none; set '
      '--config.model.time_bias=false'
    )
  if config.split.name == 'global_time' and not has_times:
    raise config_lib.ConfigError(
      f"split.name='global_time' needs timestamps and {data.name} has none; "
      "set split.name='leave_last_out'"
    )
  if data.stream.directory:
    for key in ('steps', 'eval_every', 'checkpoint_every'):
      if not config.train[key]:
        raise config_lib.ConfigError(
          f'train.{key} must be set where data.stream.directory is '
          f'{quote(data.stream.directory)}: a stream has no epochs'
        )
  if config.eval.get('request_time', 'target') != 'target' and not reads_times:
    raise config_lib.ConfigError(
      f'eval.request_time is {config.eval.request_time!r}, and a model without '
      'model.time_bias reads no times: leave the key out'
    )
  names = retrieval_metrics.ranking_metrics(np.zeros(0), config.eval.ks)
  _check_monitor(config, list(names), retrieval_metrics.DIRECTIONS)


def _check_monitor(config, names: list[str], directions) -> None:
  """Refuses a monitor of what is not measured, whatever the data are."""
  if 'valid' in config.eval.splits:
    train = config.train
    parse_monitor(train.monitor, names, directions, train.min_delta)


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


def check_evaluation(config, evaluators) -> Monitor | None:
  """Refuses what would be missed after the last step.

  Returns:
    What compares evaluations; None without a validation split, and where it is
    measured but chooses nothing.
  """
  train = config.train
  if config.eval.splits and not evaluators:
    raise config_lib.ConfigError(
      'nothing to evaluate: the data have none of the splits in eval.splits; '
      'eval.splits=() trains without evaluations'
    )
  warn_of_undefined(evaluators)
  evaluator = evaluators.get('valid')
  if evaluator is not None and getattr(evaluator, 'chooses', True):
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
