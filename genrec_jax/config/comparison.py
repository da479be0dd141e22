"""Compares a saved config with the present one."""

import copy
import json
import pathlib
from collections.abc import Callable

from ml_collections import ConfigDict

from genrec_jax import sealed
from genrec_jax.config import (
  ranking,
  renamed,
  request_ranking,
  retrieval,
  tables,
)
from genrec_jax.config.loading import flatten, to_json
from genrec_jax.config.model_choice import list_models
from genrec_jax.config.saved_types import check_kind, check_types

# Those of the library: readers of a workdir may not know of others.
TASKS = {
  'retrieval': retrieval.retrieval,
  'ranking': ranking.ranking,
  'request_ranking': request_ranking.request_ranking,
}
# Key -> what was done before there was the key, where its default is another.
FORMER = {
  'model.first_order': 'table',
  'data.delimiter': ',',
  'data.header': 'yes',
  'data.names_give_splits': False,
  'data.pairs': 'by_place',
  'data.train_unseen': 0.0,
  'data.token_capacities': 0,
  'model.interaction': 'dot',
}
# Key -> all that runs of earlier versions have, whose defaults were several.
_FORMER_VALUES = {'model.interaction': ('dot', 'cat')}

Defaults = Callable[[], ConfigDict]


def read_config(path, defaults: Defaults | None = None) -> dict:
  """A saved config as a plain dict.

  Keys that are younger than it have what was done before there was the key,
  which is their default but for `FORMER`. Keys that had other names then have
  those of now.

  Args:
    path: of the file.
    defaults: of the kind of task, where it may be from outside the library.

  Raises:
    ValueError: the file is damaged.
  """
  path = pathlib.Path(path)
  remedy = (
    'put back a copy, or what --print_config prints for the config of the run'
  )
  files = sealed.open_file(
    path,
    f'{remedy}; if you changed it yourself, remove .{path.name}.seal beside it',
  )
  if not files.is_sealed:
    files.remedy = f'correct it, or {remedy}'
  saved = files.read_json(path.name)
  with files.explain_damage(path.name):
    check_kind(saved)
  try:
    saved = renamed.rename_saved(saved, path)
  except TypeError as error:  # a section within a section is none
    raise files.damaged(path.name, error) from None
  with files.explain_damage(path.name):
    filled = fill_defaults(saved, defaults)
    check_types(filled, _make_defaults(filled, defaults))
  if filled['task'] == 'ranking':  # where earlier versions took more for 1
    data = filled['data']
    data['token_capacities'] = min(1, data['token_capacities'])
  return filled


def use_new_names(config: ConfigDict, defaults: Defaults | None = None) -> None:
  """Renames former keys in `config`, in place.

  Args:
    config: of an experiment, locked or not.
    defaults: as in `read_config`.

  Raises:
    ConfigError: both names of a key are set, to different values. A key of a
      kind of task that is not known counts as set under its former name.
  """
  default = flatten(_make_defaults(_to_plain(config), defaults))
  now = flatten(_to_plain(config))
  with config.unlocked():
    renamed.rename_keys(
      config, lambda key: key in default and now[key] != default[key]
    )


def fill_defaults(saved: dict, defaults: Defaults | None = None) -> dict:
  """A saved config with what every key that it lacks stood for."""
  younger = _make_defaults(saved, defaults)
  for key, value in FORMER.items():
    section, _, name = key.partition('.')
    if name in younger.get(section, {}):
      younger[section][name] = value
  return _merge_defaults(younger, saved)


def keep_former_values(
  config: ConfigDict, saved: dict, defaults: Defaults | None = None
) -> None:
  """Gives keys of `FORMER` that are not set the value of a run that goes on.

  Args:
    config: of now, changed in place.
    saved: that of the run, as `read_config` gives it.
    defaults: as in `read_config`.
  """
  old, now = flatten(saved), flatten(_to_plain(config))
  default = flatten(_make_defaults(_to_plain(config), defaults))
  for key, value in FORMER.items():
    former = _FORMER_VALUES.get(key, (value,))
    if old.get(key) in former and now.get(key) == default.get(key, value):
      section, _, name = key.partition('.')
      with config.unlocked():
        config[section][name] = old[key]


def find_changed(config: ConfigDict, defaults: Defaults | None = None) -> dict:
  """Key -> its default, of the keys in which a config differs from it.

  Args:
    config: of an experiment.
    defaults: as in `read_config`.

  Returns:
    None is the default of keys that only this config has, of columns say.
  """
  now = flatten(_to_plain(config))
  default = flatten(_make_defaults(_to_plain(config), defaults))
  return {
    key: default.get(key)
    for key, value in now.items()
    if key not in default or repr(value) != repr(default[key])
  }


def _merge_defaults(defaults: dict, saved: dict) -> dict:
  merged = copy.deepcopy(defaults) | saved
  for key, value in saved.items():
    if isinstance(value, dict) and isinstance(defaults.get(key), dict):
      merged[key] = _merge_defaults(defaults[key], value)
  return merged


def describe_differences(
  saved: dict,
  config: ConfigDict,
  ignored=(),
  *,
  placement: bool = True,
  defaults: Defaults | None = None,
) -> list[str]:
  """Keys in which a saved config and `config` differ, as readable lines.

  A key that the saved config lacks has its default there.

  Args:
    saved: a config as `read_config` gives it.
    config: the one of now.
    ignored: keys, and sections, that may differ.
    placement: whether where a table lies counts, in `tables`.
    defaults: as in `read_config`.
  """
  old, new = flatten(renamed.rename_saved(saved)), flatten(_to_plain(config))
  if not placement:
    for flat in (old, new):
      flat['tables'] = tables.without_placement(flat.get('tables', []))
  younger = flatten(_make_defaults(_to_plain(config), defaults))
  lines = []
  for key in sorted(set(old) | set(new)):
    if key.split('.')[0] in ignored or key in ignored:
      continue
    was, now = old.get(key, younger.get(key)), new.get(key)
    if was != now and repr(was) != repr(now):  # NaN is not equal to itself
      suffix = '' if key in old or key not in younger else ' (the default)'
      lines.append(f'{key}: saved {was!r}{suffix}, now {now!r}')
  return lines


def _make_defaults(config: dict, make: Defaults | None) -> dict:
  """Every key of the task and the model of a config, with its default."""
  task, model = config.get('task'), config.get('model', {}).get('name')
  make = make or TASKS.get(task)
  if make is None:
    return {}  # refused where it is built, which says what there is
  defaults = make()
  models = list_models(task)
  if model in models:
    defaults.model = models[model]()
  elif task in TASKS:
    del defaults.model
  plain = _to_plain(defaults)
  renamed.rename_keys(plain, lambda key: False)
  return plain


def _to_plain(config: ConfigDict) -> dict:
  """A config as it is after saving and reading, tuples as lists."""
  return json.loads(to_json(config))
