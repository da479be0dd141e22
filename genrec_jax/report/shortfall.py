"""Says of a run that it is worse than a baseline, which needs no model.

It is the first thing that a reader must know, whatever else went well.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from genrec_jax import config as config_lib
from genrec_jax.formatting import format_number
from genrec_jax.report.comparison import (
  WORSE,
  Comparison,
  Verdict,
  metric_family,
  name_metric,
)

GUIDE = 'docs/training.md#a-run-below-its-baseline'
_MOST = 3  # metrics that are named
_FEW = 10_000  # candidates, of which no ranker of requests learns much
_FEW_STEPS = 50  # after which a loss is still that of the initial weights
# Of a run that ends at its best, steps that may not have been enough.
_SHORT_RUN = 1000
# Of the same labels for all, a constant is calibrated by construction.
_NOT_JUDGED = ('calibration',)


class Shortfall(NamedTuple):
  """What a run is worse in than the best baseline.

  Attributes:
    metric: its name.
    value: that of the run.
    verdict: beside the baseline.
  """

  metric: str
  value: float
  verdict: Verdict


def find_shortfalls(report: Mapping, comparison: Comparison) -> list[Shortfall]:
  """The metrics that say most, and the monitored ones, that are worse.

  Args:
    report: see `summary`.
    comparison: its metrics beside baselines.
  """
  monitor = (report.get('config') or {}).get('train') or {}
  monitored = re.split('[:,]', str(monitor.get('monitor', '')))
  names = dict.fromkeys([*monitored, *comparison.headlines])
  verdicts = {
    m: comparison.verdict(m)
    for m in names
    if metric_family(m) not in _NOT_JUDGED
  }
  return [
    Shortfall(m, comparison.value(m, comparison.split), verdict)
    for m, verdict in verdicts.items()
    if verdict is not None and verdict.word == WORSE
  ]


def describe_shortfall(
  report: Mapping, comparison: Comparison
) -> Sequence[str]:
  """What is worse than which baseline, and what to try.

  >>> from genrec_jax.report.comparison import compare_metrics
  >>> report = {
  ...   'metrics': {'test': {'hr@10': 0.0367}},
  ...   'baselines': {'popularity': {'hr@10': 0.0385}},
  ... }
  >>> print(describe_shortfall(report, compare_metrics(report))[0])
  Below the baseline on the test split: HR@10 is 0.0367, popularity has 0.0385.

  Args:
    report: see `summary`.
    comparison: its metrics beside baselines.

  Returns:
    (sentence, hint), or () of a run that is below no baseline.
  """
  shortfalls = find_shortfalls(report, comparison)
  if not shortfalls:
    return ()
  intervals = (report.get('intervals') or {}).get(comparison.split) or {}
  texts = []
  for metric, value, verdict in shortfalls[:_MOST]:
    texts.append(
      f'{name_metric(metric)} is {value:.4f}, {verdict.baseline} has '
      f'{verdict.value:.4f}'
    )
    low, high = intervals.get(metric) or (value, value)
    if low <= verdict.value <= high:
      texts[-1] += f' (within the 95% interval, {low:.4f} to {high:.4f})'
  if len(shortfalls) > _MOST:
    texts.append(f'{len(shortfalls) - _MOST} more of the main metrics too')
  split = {'valid': 'validation'}.get(comparison.split, comparison.split)
  return (
    f'Below the baseline on the {split} split: {"; ".join(texts)}.',
    f'{_suggest_remedy(report, comparison, shortfalls)} See {GUIDE}.',
  )


def _suggest_remedy(
  report: Mapping, comparison: Comparison, shortfalls: Sequence[Shortfall]
) -> str:
  config = report.get('config') or {}
  if config.get('task') == 'request_ranking':
    return _advise_requests(report, config)
  if config.get('task') == 'retrieval':
    return (
      'Try more steps (train.epochs), another optimizer.learning_rate, or a '
      'smaller model (model.dim) where there are few events.'
    )
  auc = comparison.verdict('auc')
  orders_well = auc is not None and auc.word != WORSE
  if any(metric_family(s.metric) == 'logloss' for s in shortfalls):
    if few := _tell_of_few_steps(report, orders_well):
      return few
    why = (
      'The examples are in a better order, but the probabilities are off: the '
      'model is too sure of itself, or the share of positives changes from '
      'split to split. '
      if orders_well
      else ''
    )
    split = (config.get('data') or {}).get('split') or {}
    look = '; data.split.by=random shows whether time is the cause'
    if split.get('by') == 'random':
      look = ''
    return (
      f'{why}Try fewer epochs (train.monitor=logloss with train.patience), '
      f'more loss.table_l2 or a lower optimizer.learning_rate{look}.'
    )
  return (
    'Try another optimizer.learning_rate, more loss.table_l2 or more steps '
    '(train.epochs).'
  )


def _tell_of_few_steps(report: Mapping, orders_well: bool) -> str:
  """Why probabilities are off after hardly any training; '' for longer ones."""
  steps = report.get('steps')
  if not isinstance(steps, int) or steps >= _SHORT_RUN:
    return ''
  longer = (
    'Train longer (train.epochs), with smaller batches (train.batch_size) or '
    'with more data.'
  )
  if steps < _FEW_STEPS:
    return (
      f'The run had {steps:,} steps, after which probabilities are still near '
      f'those of the initial weights. {longer}'
    )
  # The best order may come long after the best probabilities.
  train = (report.get('config') or {}).get('train') or {}
  by_loss = metric_family(str(train.get('monitor', ''))) in ('logloss', 'ne')
  if report.get('best_step') != steps or (orders_well and not by_loss):
    return ''
  return (
    f'The run had {steps:,} steps and was at its best at the last of them, so '
    f'that it has hardly trained. {longer}'
  )


def _advise_requests(report: Mapping, config: Mapping) -> str:
  said = []
  train = (report.get('splits') or {}).get('train') or {}
  count = train.get('examples')
  if count is not None and count < _FEW:
    said.append(
      f'It is expected of so few data: the run learned from '
      f'{format_number(count)} candidates, as a run with :smoke does, which '
      'shows that everything runs and not how well.'
    )
  model, data = config.get('model') or {}, config.get('data') or {}
  if slow := _list_slow_keys(model):
    said.append(
      'First call config_lib.quicken_stu(config.model) in the config, or set '
      f'what it sets ({", ".join(slow)}): with its published settings, STU '
      'learns little for many thousand steps.'
    )
  rates = 'another optimizer.learning_rate or optimizer.rows.learning_rate'
  if data.get('order') == 'stream':  # each step is learned from once
    users = ' (data.streaming.users)' if data.get('name') == 'streaming' else ''
    said.append(
      f'Try more data{users}, more and smaller batches (train.batch_size), or '
      f'{rates}.'
    )
  else:
    said.append(
      'Try more data, more steps (train.epochs) as long as the validation '
      f'gains (train.monitor with train.patience ends there), or {rates}.'
    )
  return ' '.join(said)


def _list_slow_keys(model: Mapping) -> list[str]:
  """What `quicken_stu` would change of a model, and nobody has."""
  if model.get('name') != 'stu':
    return []
  published, quick = config_lib.stu(), config_lib.stu()
  config_lib.quicken_stu(quick)
  return [
    f'model.{key}'
    for key, value in quick.items()
    if value != published[key] and model.get(key) == published[key]
  ]
