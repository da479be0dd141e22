"""Refuses a saved config whose keys hold values of other types than theirs.

Somebody may have changed config.json by hand. What reads it takes its sections
and the types of its values for granted, so that all of them are compared here,
with the defaults and with the rules of key_rules.py. How large a number may be
is not judged: a run of an earlier version can be evaluated with the values that
it began with.
"""

import json
from collections.abc import Mapping
from typing import Any

from genrec_jax.config.errors import ConfigError
from genrec_jax.config.key_rules import SHARED, find_rule
from genrec_jax.config.loading import find_fault, hint_nearest, quote_value
from genrec_jax.config.model_choice import MODELS_OF, check_name

# Those of every kind of task.
_SECTIONS = {key.partition('.')[0] for key in SHARED if '.' in key} | {'model'}
# Their keys become the arguments of a class, which has no others.
_CLOSED = (
  'model',
  'model.history',
  'loss',
  'parallel.exchange',
  *(
    f'data.{name}'
    for name in ('streaming', 'movielens', 'kuairand', 'yambda', 'log')
  ),
)


def check_kind(saved: Any) -> None:
  """Refuses what has no readable kind of task or model.

  Args:
    saved: what config.json holds, of any type.

  Raises:
    ConfigError: names the key, and says what it must be.
  """
  if not isinstance(saved, dict):
    raise ConfigError('it holds no keys')
  for name, value in saved.items():
    if fault := find_fault({name: value}):
      raise ConfigError(f'{quote_value(name)} holds {fault}')
  for key in saved.keys() & _SECTIONS:
    _check_section(key, saved[key])
  task = saved.get('task')
  if not isinstance(task, str) or not task:
    raise ConfigError(f'task {_tell(saved, "task")}, must be some text')
  if not isinstance(saved.get('model', {}).get('name', ''), str):
    raise ConfigError(
      f'model.name {_tell(saved["model"], "name")}, must be some text'
    )


def check_types(saved: Mapping, defaults: Mapping) -> None:
  """Refuses values of other types than the keys have.

  Args:
    saved: a config with every key of its kind of task.
    defaults: these keys with their defaults; {} where the kind of task is from
      outside the library and not known here.

  Raises:
    ConfigError: names the key and the value, and says what it must be.
  """
  if saved['task'] in MODELS_OF:
    if 'name' not in saved.get('model', {}):
      raise ConfigError('model.name is missing, must be some text')
    check_name(saved['model']['name'], saved['task'])
  if 'parallel' not in saved:  # is read before a kind from outside is known
    raise ConfigError('parallel is missing, must be a section')
  _check_tree(saved, defaults, saved['task'], '')


def _check_tree(saved: Mapping, defaults, task: str, prefix: str) -> None:
  for name, value in saved.items():
    key = prefix + name
    default, rule = defaults.get(name), find_rule(key, task)
    if isinstance(default, Mapping):
      _check_section(key, value)
      _check_tree(value, default, task, f'{key}.')
      _check_closed(key, value, default, task)
    elif rule:
      if wanted := rule.explain_type(value):
        raise ConfigError(f'{key} is {_quote_json(value)}, must be {wanted}')
    elif isinstance(value, Mapping):  # names of columns, say
      _check_tree(value, {}, task, f'{key}.')


def _check_section(key: str, value: Any) -> None:
  if not isinstance(value, Mapping):
    raise ConfigError(f'{key} is {_quote_json(value)}, must be a section')


def _check_closed(key: str, value: Mapping, known: Mapping, task: str) -> None:
  if key not in _CLOSED or task not in MODELS_OF:
    return
  for name in value.keys() - known.keys():
    raise ConfigError(
      f'unknown key {quote_value(f"{key}.{name}")}{hint_nearest(name, known)}'
    )


def _tell(section: Mapping, name: str) -> str:
  """How a value is where it must be another."""
  return f'is {_quote_json(section[name])}' if name in section else 'is missing'


def _quote_json(value: Any) -> str:
  """A value as it stands in the file, cut where it is long."""
  return quote_value(value, json.dumps)
