"""Keys and values of configs that once had other names.

A former name works on the command line, in config files and in the `settings`
of `genrec_jax.fit` until the version that its entry names, and logs a sentence.
From that version on, when the entry has '' in its place, it is an error there.
Files outlive names: a config.json is read under any of them by every version,
so that an entry never leaves the table.
"""

import copy
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from genrec_jax.config.errors import ConfigError

LOG = logging.getLogger('genrec_jax')

# Former key -> (its key now, {former value: value now}, the version without
# the former names, '' once it has come).
RENAMED: dict[str, tuple[str, dict[str, str], str]] = {
  'checkpoint.slots': ('checkpoint.row_state_dtype', {}, '0.2.0'),
  'data.ids': ('data.id_type', {}, '0.2.0'),
  'data.table_dtype': ('optimizer.rows.dtype', {}, '0.2.0'),
  'data.table_update': ('optimizer.rows.name', {}, '0.2.0'),
  'eval.parts': ('eval.splits', {}, '0.2.0'),
  'numerics.products': ('numerics.policy', {}, '0.2.0'),
  'optimizer.row_learning_rate': ('optimizer.rows.learning_rate', {}, '0.2.0'),
  'optimizer.row_schedule': ('optimizer.rows.schedule', {}, '0.2.0'),
  'parallel.accumulate': ('parallel.microbatches', {}, '0.2.0'),
  'parallel.blocks': ('parallel.reduction_blocks', {}, '0.2.0'),
  'parallel.determinism': (
    'parallel.determinism',
    {'run': 'per_mesh', 'order': 'mesh_invariant'},
    '0.2.0',
  ),
  'parallel.exchange.overflow': (
    'parallel.exchange.overflow',
    {'gather': 'rounds'},
    '0.2.0',
  ),
  'predict.ids': ('predict.id_type', {}, '0.2.0'),
}


def translate(key: str, value: Any) -> tuple[str, Any]:
  """The names that a key and its value have now.

  >>> translate('eval.splits', ('test',))
  ('eval.splits', ('test',))
  >>> translate('eval.parts', ('test',))
  ('eval.splits', ('test',))

  Args:
    key: dotted.
    value: of any type; the text of a command line, too.

  Raises:
    ConfigError: one of them is a former name that no longer works.
  """
  new_key, new_value = _current(key, value)
  if new_key != key or new_value is not value:
    _tell(*_names(key, value))
  return new_key, new_value


def refuse_contradictions(settings: Iterable[tuple[str, Any]]) -> None:
  """Raises where a key has two values, one under each of its names.

  Args:
    settings: (key, value) pairs; of pairs with equal keys the last counts.
  """
  given: dict[str, dict[str, Any]] = {}
  for name, value in settings:
    key, value = _current(name, value)
    given.setdefault(key, {})[name] = value
  for names in given.values():
    if len(set(map(repr, names.values()))) > 1:
      _contradict(*names.items())


def rename_keys(
  tree,
  is_given: Callable[[str], bool],
  tell: Callable[[str, str, str], None] | None = None,
) -> None:
  """Renames former keys in a nested mapping, in place.

  Args:
    tree: sections of a config, as dicts or ConfigDicts.
    is_given: whether somebody set a key that the tree has under its new name.
    tell: is given the arguments of each sentence; None logs it.

  Raises:
    ConfigError: a key has two values, one under each of its names.
  """
  for old in RENAMED:
    section, name = _find(tree, old)
    if section is None or name not in section:
      continue
    key, value = _current(old, section[name])
    if key == old and value is section[name]:
      continue
    (tell or _tell)(*_names(old, section[name]))
    target, new_name = _find(tree, key, make=True)
    if key != old:
      if new_name in target and is_given(key) and target[new_name] != value:
        _contradict((old, value), (key, target[new_name]))
      del section[name]
    target[new_name] = value


def rename_saved(saved: dict, path='') -> dict:
  """A saved config under the names of now.

  Args:
    saved: of a config.json; it stays as it is.
    path: of the file, for a sentence that says which names are former ones; ''
      says nothing.
  """
  saved, former = copy.deepcopy(saved), []
  rename_keys(saved, lambda key: True, lambda *names: former.append(names))
  if former and path:
    _tell_of_file(str(path), ', '.join(f'{a} -> {b}' for a, b, _ in former))
  return saved


def explain_missing(name: str) -> str:
  """Where the keys are that an attribute of a section once was, or ''."""
  found = [old for old in RENAMED if old.rpartition('.')[2] == name]
  return '; '.join(
    f'config.{old} is now config.{RENAMED[old][0]}' for old in found
  )


def _current(key: str, value: Any) -> tuple[str, Any]:
  new, values, _ = RENAMED.get(key, (key, {}, ''))
  return new, values.get(value, value) if isinstance(value, str) else value


def _names(key: str, value: Any) -> tuple[str, str, str]:
  """What was said, what to say now, and until when the first works."""
  new, values, until = RENAMED[key]
  if key == new:
    return f'{key}={value}', f'{key}={values[value]}', until
  return key, new, until


@functools.cache  # one sentence, however often a name is used
def _tell(old: str, new: str, until: str) -> None:
  if not until:
    raise ConfigError(f'unknown config key {old!r}; it is now --config.{new}')
  LOG.warning(
    'config.%s is now config.%s; the former name works until version %s',
    old,
    new,
    until,
  )


@functools.cache
def _tell_of_file(path: str, names: str) -> None:
  LOG.info('%s has keys under former names, read as: %s', path, names)


def _contradict(*names: tuple[str, Any]) -> None:
  given = ' and '.join(f'config.{name}={value!r}' for name, value in names)
  raise ConfigError(f'{given} set the same key twice; remove the former name')


def _find(tree, key: str, make: bool = False):
  """The section of a key, or None, and the key's name in it."""
  *parents, name = key.split('.')
  for parent in parents:
    if make and parent not in tree:
      tree[parent] = {}
    tree = tree.get(parent)
    if not hasattr(tree, 'keys'):
      return None, name
  return tree, name
