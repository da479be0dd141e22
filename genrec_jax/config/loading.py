"""Keys by name: setting one from a command line, saving, hints."""

import ast
import difflib
import itertools
import json
import math
import warnings
from collections.abc import Callable

from ml_collections import ConfigDict

from genrec_jax import provenance, sealed
from genrec_jax.config import renamed
from genrec_jax.config.errors import ConfigError

# Sections that take any key: names of columns.
OPEN = (
  'data.extras',
  'data.features',
  'data.label_kinds',
  'data.label_weights',
  'model.dims',
  'model.important',
  'model.pairs',
  'model.small',
)
# What an entry looks like of keys whose default has none.
EXAMPLES = {
  'optimizer.groups': (('.*/bias', {'weight_decay': 0.0}),),
  'tables': (('.*', {'optimizer': 'row_adagrad'}),),
}
# What JSON can hold, which is what config.json is.
_PLAIN = (str, bool, int, float, type(None))
# What Python raises for a text that it cannot read.
_UNREADABLE = (
  ValueError,
  SyntaxError,
  TypeError,
  RecursionError,
  MemoryError,
  OverflowError,
)
_DEEPEST = 20  # levels of a config and of its values; there are far fewer
_LONGEST = 80  # characters of a value that an error shows


def apply_override(
  config: ConfigDict,
  override: str,
  may_be_none: Callable[[str], bool] = lambda key: False,
) -> None:
  """Sets one key from `a.b=value`; the value takes the default's type.

  `a.b` alone switches a key that is true or false on.

  Args:
    config: to be changed.
    override: the text.
    may_be_none: whether None is possible for a key, where its value is not.
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
  text = text if equals else 'true'
  if text == 'None' and may_be_none(key):
    value = None
  else:
    value = parse_value(key, text, section[last])
  with section.ignore_type(), section.unlocked():
    section[last] = value


def _make_room(config: ConfigDict, prefix: str, key: str) -> None:
  """Makes room for `key` in an open section, if the config has that one."""
  section = config
  for name in prefix.split('.'):
    if name not in section:
      return
    section = section[name]
  place, names = prefix, key.removeprefix(f'{prefix}.').split('.')
  for name in names:
    if not isinstance(section, ConfigDict):
      raise ConfigError(
        f'config.{key}: {place} is {quote_value(section)}, which has no keys'
      )
    if not name or name.startswith('__'):
      raise ConfigError(f'unknown config key {quote_value(key)}')
    place = f'{place}.{name}'
    with section.unlocked():
      if name not in section:
        section[name] = None if place == key else ConfigDict()
      section = section[name]


def save(config: ConfigDict, path) -> None:
  """Writes the config as JSON; `comparison.read_config` is its inverse.

  Where it holds a password, as a URL may, only the owner can read the file: a
  run that goes on needs it again.
  """
  private = provenance.holds_secrets(config.to_dict())
  sealed.write_text(path, to_json(config) + '\n', private=private)


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
  hint += difflib.get_close_matches(key[:200], names, n=1, cutoff=0.55)
  return f'; did you mean {hint[0]!r}?' if hint else ''


def quote_value(value, write: Callable = repr) -> str:
  """A value as an error says it, cut where it is long.

  >>> quote_value('7 ')
  "'7 '"
  >>> len(quote_value('x' * 5000))
  83

  Args:
    value: of any type.
    write: gives its text.
  """
  try:
    text = write(value)
  except ValueError:  # Python writes no number of more than 4,300 digits
    return f'a very large {type(value).__name__}'
  return text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'


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
  text = f'unknown config key {quote_value(key)}'
  if hint:
    return f'{text}; did you mean --config.{hint[0]} ?'
  return f'{text}; sections are {", ".join(config)}'


def parse_value(key: str, text: str, default):
  """`text` in the type of `default`.

  >>> parse_value('eval.ks', '1,10', (5,))
  (1, 10)

  Args:
    key: dotted, for messages.
    text: of a command line.
    default: of the key; None takes what Python would read, or else the text.

  Raises:
    ConfigError: it is of another type.
  """
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
        value = _read_literal(text)
      except _UNREADABLE:
        return text
      if find_fault(value):
        raise ValueError
      return value
    # In small letters it is a word: --config.eval.filter_seen=none
    return None if text == 'None' else text
  except (KeyError, *_UNREADABLE):
    wanted = (
      'a number, text or several of them'
      if default is None
      else f'{type(default).__name__}, as in {quote_value(default)}'
    )
    raise ConfigError(
      f'--config.{key}={quote_value(text, str)}: expected {wanted}'
    ) from None


def _parse_tuple(text: str, default) -> tuple:
  """`(1, 10)`, `1,10`, `10` or words: `valid,test`."""
  try:
    # Words may look like numbers, as columns that are known by their places.
    is_word = isinstance(next(iter(default), None), str) and text[:1].isdigit()
    value = text.split(',') if is_word else _read_literal(text)
  except _UNREADABLE:
    if text.lstrip().startswith(('(', '[', '{')):
      raise  # a bracket or a quotation mark is missing: these are not words
    value = [word.strip() for word in text.split(',')]
  value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
  value = tuple(tuple(v) if isinstance(v, list) else v for v in value)
  if len({type(v) for v in (*default, *value)}) > 1:
    raise ValueError('of mixed types')
  if fault := find_fault(value):
    raise ValueError(fault)
  return value


def _read_literal(text: str):
  """What Python reads, without its opinion of how it is written."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return ast.literal_eval(text)


def find_fault(value, depth: int = 0) -> str:
  """What a value holds that no config can; '' where it is a value of one.

  >>> find_fault((1, 'a', {'rate': 0.1})), find_fault([...])
  ('', 'a value of type ellipsis')
  """
  if depth > _DEEPEST:
    return 'values that are nested too deeply'
  if isinstance(value, dict):
    for name in value:
      if not isinstance(name, str) or '.' in name or name.startswith('__'):
        return f'{quote_value(name)}, which is no name of a key'
    value = value.values()
  elif not isinstance(value, (tuple, list)):
    kind = type(value).__name__
    return '' if isinstance(value, _PLAIN) else f'a value of type {kind}'
  return next(filter(None, (find_fault(v, depth + 1) for v in value)), '')
