"""Settings by dotted key, as Python values, onto a config."""

import ast
import math
import numbers
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.config import renamed
from genrec_jax.config.loading import OPEN, flatten, hint_nearest

# A key of the config in a message; config.json is none.
_FLAG = re.compile(
  r'(?:--|(?<![\w/.])(?=config\.\w+\.\w))config\.(?P<key>\w+(?:\.\w+)*)'
  r"""(?:=(?P<value>'[^']*'|"[^"]*"|[^\s,;]+))?"""
)
# Keys of the config that arguments of `fit` set.
ARGUMENTS = {
  'task': 'the argument model=',
  'model.name': 'the argument model=',
  'data.name': 'the first argument',
  'data.path': 'the first argument',
  'data.columns.user': 'the argument user=',
  'data.columns.item': 'the argument item=',
  'data.columns.time': 'the argument time=',
  'data.labels': 'the argument label=',
  'data.features': 'the argument features=',
  'data.group': 'the argument group=',
}


def flatten_settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
  """Dotted key -> value, of settings whose sections may be mappings.

  >>> flatten_settings({'train': {'batch_size': 64}, 'eval.ks': (5, 10)})
  {'train.batch_size': 64, 'eval.ks': (5, 10)}

  Raises:
    ValueError: it is not a mapping.
  """
  if settings is None:
    return {}
  if not isinstance(settings, Mapping):
    raise ValueError(
      f'settings is a {type(settings).__name__}, must be a mapping such as '
      "{'train.batch_size': 64}"
    )
  return flatten(dict(settings))


def apply_settings(config: ConfigDict, settings: Mapping[str, Any]) -> None:
  """Sets keys of a config.

  >>> config = config_lib.retrieval()
  >>> apply_settings(config, {'train.batch_size': 64, 'eval.ks': (5, 10)})
  >>> config.train.batch_size, config.eval.ks
  (64, (5, 10))

  Args:
    config: of an experiment.
    settings: from `flatten_settings`.

  Raises:
    ValueError: there is no such key, or its value is of another type.
  """
  renamed.refuse_contradictions(settings.items())
  for key, value in settings.items():
    _apply_setting(config, *renamed.translate(key, value))


def _apply_setting(config: ConfigDict, key: str, value: Any) -> None:
  defaults = flatten(config.to_dict())
  if key not in defaults and not key.startswith(tuple(f'{p}.' for p in OPEN)):
    same = [k for k in defaults if k.split('.')[-1] == key.split('.')[-1]]
    section = [k for k in defaults if k.startswith(f'{key}.')]
    hint = hint_nearest(key, same or defaults)
    if section:
      hint = f', but a section; its keys are {", ".join(section)}'
    raise ValueError(f'settings: {key!r} is not a config key{hint}')
  if isinstance(value, numbers.Real) and not math.isfinite(value):
    raise ValueError(f'settings[{key!r}] is {value}, must be a finite number')
  if isinstance(value, list):
    value = tuple(value)
  try:
    # The way of the command line, which knows what may stand in which key.
    config_lib.apply_override(config, f'{key}={value}')
  except config_lib.ConfigError:
    default = defaults.get(key)
    raise ValueError(
      f'settings[{key!r}] is {value!r}, must be of type '
      f'{type(default).__name__}, as the default {default!r} is'
    ) from None


def translate_flags(message: str) -> str:
  """A message of the command line with what `fit` calls its flags.

  >>> translate_flags('set --config.train.shuffle=false, or another --workdir')
  "set settings={'train.shuffle': False}, or another workdir"
  >>> translate_flags('name it by config.data.columns.user')
  'name it by the argument user='
  >>> translate_flags('runs/config.json is damaged')
  'runs/config.json is damaged'
  """

  def replace(match: re.Match) -> str:
    key, value = match['key'], match['value']
    if key in ARGUMENTS:
      return ARGUMENTS[key]
    if value is None:
      return f'settings[{key!r}]'
    words = {'true': True, 'false': False, 'None': None}
    try:
      value = words[value] if value in words else ast.literal_eval(value)
    except (ValueError, SyntaxError):
      pass  # it is text
    return f'settings={{{key!r}: {value!r}}}'

  return _FLAG.sub(replace, message).replace('--workdir', 'workdir')
