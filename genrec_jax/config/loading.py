"""Keys by name: setting one from a command line, saving, hints."""

import ast
import difflib
import itertools
import json
import math

from ml_collections import ConfigDict

from genrec_jax import sealed
from genrec_jax.config import renamed
from genrec_jax.config.errors import ConfigError

# Sections that take any key: names of columns.
OPEN = (
  'data.extras',
  'data.features',
  'data.label_kinds',
  'data.label_weights',
  'model.important',
  'model.small',
)
# What an entry looks like of keys whose default has none.
EXAMPLES = {
  'optimizer.groups': (('.*/bias', {'weight_decay': 0.0}),),
  'tables': (('.*', {'optimizer': 'row_adagrad'}),),
}


def apply_override(config: ConfigDict, override: str) -> None:
  """Sets one key from `a.b=value`; the value takes the default's type.

  `a.b` alone switches a key that is true or false on.
  """
  key, equals, text = override.partition('=')
  key, text = renamed.translate(key, text)
  *parents, last = key.split('.')
  section = config
  for prefix in OPEN:
    if key.startswith(f'{prefix}.'):
      _make_room(config, prefix, key)
  for depth, name in enumerate([*parents, last]):
    if not isinstance(section, ConfigDict) or name not in section:
      raise ConfigError(_explain_unknown(config, key, depth))
    if depth < len(parents):
      section = section[name]
  if isinstance(section[last], ConfigDict):
    raise ConfigError(
      f'config.{key} is a section; set one of its keys: '
      + ', '.join(f'{key}.{k}' for k in section[last])
    )
  if not equals and not isinstance(section[last], bool):
    raise ConfigError(f'--config.{key} needs a value: --config.{key}=...')
  value = _parse_value(key, text if equals else 'true', section[last])
  with section.ignore_type(), section.unlocked():
    section[last] = value


def _make_room(config: ConfigDict, prefix: str, key: str) -> None:
  """Makes room for `key` in an open section, if the config has that one."""
  section = config
  for name in prefix.split('.'):
    if name not in section:
      return
    section = section[name]
  *parents, last = key.removeprefix(f'{prefix}.').split('.')
  with section.unlocked():
    for name in parents:
      if name not in section:
        section[name] = ConfigDict()
      section = section[name]
    if last not in section:
      section[last] = None


def save(config: ConfigDict, path) -> None:
  """Writes the config as JSON; `comparison.read_config` is its inverse."""
  sealed.write_text(path, to_json(config) + '\n')


def to_json(config: ConfigDict) -> str:
  return json.dumps(config.to_dict(), indent=2, default=list)


def restore_tuples(value):
  """Tuples where JSON has lists; no key of a config holds a list.

  >>> restore_tuples({'eval': {'ks': [1, 10]}})
  {'eval': {'ks': (1, 10)}}
  """
  if isinstance(value, dict):
    return {key: restore_tuples(v) for key, v in value.items()}
  if isinstance(value, list):
    return tuple(map(restore_tuples, value))
  return value


def flatten(tree: dict, prefix: str = '') -> dict:
  """`{'a.b': value}` of nested dictionaries."""
  out = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      out |= flatten(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = value
  return out


def hint_nearest(key: str, known) -> str:
  """'; did you mean ...?', or nothing.

  >>> hint_nearest('user_id', ['User ID', 'item_id'])
  "; did you mean 'User ID'?"
  """
  # Of a strange file there may be very many names, and very long ones.
  names = [name for name in itertools.islice(known, 5000) if len(name) < 200]
  hint = [name for name in names if fold_name(name) == fold_name(key)]
  hint += difflib.get_close_matches(key[:200], names, n=1, cutoff=0.4)
  return f'; did you mean {hint[0]!r}?' if hint else ''


def fold_name(name: str) -> str:
  """What spellings of a name share: its letters and digits, in small letters.

  >>> fold_name('User ID') == fold_name('userId') == fold_name('user_id')
  True
  """
  return ''.join(filter(str.isalnum, name.casefold()))


def _explain_unknown(config: ConfigDict, key: str, depth: int) -> str:
  every = list(flatten(config.to_dict()))
  last = key.split('.')[-1]
  same_name = [k for k in every if k.split('.')[-1] == last]
  hint = difflib.get_close_matches(key, same_name or every, n=1, cutoff=0.5)
  text = f'unknown config key {key!r}'
  if hint:
    return f'{text}; did you mean --config.{hint[0]} ?'
  return f'{text}; sections are {", ".join(config)}'


def _parse_value(key: str, text: str, default):
  """`text` in the type of `default`."""
  default = default or EXAMPLES.get(key, default)
  try:
    if isinstance(default, bool):
      return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
    if isinstance(default, int):
      return int(text.replace('_', ''))
    if isinstance(default, float):
      value = float(text)
      if not math.isfinite(value):
        raise ValueError
      return value
    if isinstance(default, (tuple, list)):
      return _parse_tuple(text, default)
    if default is None:
      if text.lower() in ('none', ''):
        return None
      try:
        return ast.literal_eval(text)
      except (ValueError, SyntaxError):
        return text
    # In small letters it is a word: --config.eval.filter_seen=none
    return None if text == 'None' else text
  except (ValueError, KeyError, SyntaxError):
    raise ConfigError(
      f'--config.{key}={text}: expected {type(default).__name__}, as in '
      f'{default!r}'
    ) from None


def _parse_tuple(text: str, default) -> tuple:
  """`(1, 10)`, `1,10`, `10` or words: `valid,test`."""
  try:
    # Words may look like numbers, as columns that are known by their places.
    is_word = isinstance(next(iter(default), None), str) and text[:1].isdigit()
    value = text.split(',') if is_word else ast.literal_eval(text)
  except (ValueError, SyntaxError):
    if text.lstrip().startswith(('(', '[', '{')):
      raise  # a bracket or a quotation mark is missing: these are not words
    value = [word.strip() for word in text.split(',')]
  value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
  value = tuple(tuple(v) if isinstance(v, list) else v for v in value)
  if len({type(v) for v in (*default, *value)}) > 1:
    raise ValueError('of mixed types')
  return value
