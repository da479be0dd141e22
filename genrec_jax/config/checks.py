"""Refuses values that a config cannot have, as far as it alone can say."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from genrec_jax.config import losses, request_sets
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.key_rules import ENTRIES, SHARED, find_rule
from genrec_jax.config.loading import OPEN, quote_value
from genrec_jax.config.model_choice import MODELS_OF, check_name
from genrec_jax.config.request_models import PooledRequests
from genrec_jax.config.sections import MODEL_CLASSES

_LOSSES = {
  'retrieval': losses.RetrievalLossConfig,
  'ranking': losses.RankingLossConfig,
  'request_ranking': losses.RequestLossConfig,
}
_REQUEST_SETS = {
  'streaming': request_sets.StreamOptions,
  'movielens': request_sets.MovielensOptions,
  'kuairand': request_sets.KuairandOptions,
  'yambda': request_sets.YambdaOptions,
}


def check_values(
  config, keys: Iterable[str] | None = None, *, extended: bool = False
) -> None:
  """Refuses values that a key cannot have.

  Args:
    config: of an experiment.
    keys: the dotted ones to look at; None is all.
    extended: whether parts from outside the library may have added to the
      words of some keys.

  Raises:
    ConfigError: names the key and the value, and says what it must be.
  """
  task = config.get('task')
  task = task if isinstance(task, str) else ''
  values = dict(_list_values(config.to_dict(), task))
  for key in values if keys is None else keys:
    if key in values:
      _check_value(key, values[key], task, extended)


def _list_values(tree: Mapping, task: str, prefix: str = ''):
  """(dotted key, value) of every key; a section in place of a value is one."""
  for name, value in tree.items():
    key = prefix + name
    if isinstance(value, Mapping) and find_rule(key, task) is None:
      yield from _list_values(value, task, f'{key}.')
    else:
      yield key, value


def _check_value(key: str, value: Any, task: str, extended: bool) -> None:
  rule = find_rule(key, task)
  if rule is None:
    is_open = key.startswith(OPEN)
    if not is_open and isinstance(value, float) and math.isnan(value):
      raise ConfigError(f'{key} is {value}, must be a number')
    return
  if wanted := rule.explain(value, extended):
    raise ConfigError(f'{key} is {quote_value(value)}, must be {wanted}')
  if key in ('optimizer.groups', 'tables'):
    for entry in value:
      _check_entry(key, entry)


def _check_entry(key: str, entry: Any) -> None:
  """Refuses numbers in (pattern, settings); its reader judges the rest."""
  if not isinstance(entry, tuple | list) or len(entry) != 2:
    return
  pattern, settings = entry
  for name, value in settings.items() if isinstance(settings, Mapping) else ():
    rule = ENTRIES.get(name) if key == 'tables' else None
    section = 'optimizer.rows' if key == 'tables' else 'optimizer'
    rule = rule or SHARED.get(f'{section}.{name}')
    is_judged = rule and not rule.words and isinstance(value, int | float)
    if is_judged and (wanted := rule.explain(value)):
      raise ConfigError(
        f'{key}, {pattern!r}: {name} is {value}, must be {wanted}'
      )


def check_sections(
  config: ConfigDict, sections=frozenset({'data', 'model', 'loss'})
) -> None:
  """Refuses values of the data, model and loss that contradict each other.

  Args:
    config: of an experiment; other kinds of tasks judge theirs themselves.
    sections: which of them to look at.

  Raises:
    ConfigError: names the keys, and says what is wrong with them.
  """
  if config.get('task') not in MODELS_OF:
    return
  fields = config.model.to_dict()
  name = fields.pop('name')
  check_name(name, config.task)
  classes = [('loss', _LOSSES[config.task], config.loss.to_dict())]
  if config.task == 'request_ranking':
    data = config.data
    if data.name in _REQUEST_SETS:
      options = data[data.name].to_dict()
      classes.append(('data', _REQUEST_SETS[data.name], options))
    if name == 'stu':
      sizes = ('max_history', 'max_candidates')
      fields |= {size: data[size] for size in sizes}
    else:
      pooled = fields.pop('history', {})
      classes.append(('model', PooledRequests, pooled))
  classes.append(('model', MODEL_CLASSES[name], fields))
  for section, make, fields in classes:
    if section not in sections:
      continue
    try:
      make(**fields)
    except ValueError as error:
      raise ConfigError(str(error)) from None
