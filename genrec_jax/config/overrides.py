"""Overrides of a config, `a.b=value`, and what follows from them."""

import logging
from collections.abc import Sequence

from ml_collections import ConfigDict

from genrec_jax.config import loading, renamed
from genrec_jax.config.checks import check_sections, check_values
from genrec_jax.config.file_formats import SUFFIXES, guess_format
from genrec_jax.config.key_rules import find_rule
from genrec_jax.config.model_choice import choose_model
from genrec_jax.provenance import mask_secrets

LOG = logging.getLogger('genrec_jax')
# Data that are made of nothing; `:smoke` of every config chooses one of them.
_GENERATED = {
  'ranking': ('clicks', 'drift', 'interests'),
  'request_ranking': ('streaming',),
  'retrieval': ('synthetic',),
}


def apply_override(config: ConfigDict, override: str) -> None:
  """Sets one key from `a.b=value`; see `loading.apply_override`.

  `model.name` brings the whole section of that model, see `choose_model`.
  """
  if override.startswith('model.name=') and 'name' in config.get('model', {}):
    choose_model(config, override.partition('=')[2])
    return

  def may_be_none(key):  # where a recipe has a number, too
    rule = find_rule(key, config.get('task', ''))
    return rule is not None and rule.optional

  loading.apply_override(config, override, may_be_none)


def apply_overrides(
  config: ConfigDict, overrides: Sequence[str], *, is_saved: bool = False
) -> None:
  """Sets keys of a config as a command line does, in place.

  The name of the model counts first, wherever it stands: the other keys are
  those of its section. Values are judged as far as a config alone can say.

  Args:
    config: of an experiment.
    overrides: `a.b=value` each.
    is_saved: whether a run has begun with the config, which says the format of
      its files.

  Raises:
    ConfigError: there is no such key, or it cannot have this value.
  """
  renamed.refuse_contradictions(o.partition('=')[::2] for o in overrides)
  overrides = sorted(overrides, key=lambda o: not o.startswith('model.name='))
  for override in overrides:
    apply_override(config, override)
  keys = [renamed.translate(*o.partition('=')[::2])[0] for o in overrides]
  if 'data.name' not in keys and not (is_saved and 'data.path' not in keys):
    _settle_format(config)
  if 'data.path' in keys:
    _warn_of_unread_path(config)
  # A config file may hold what a run of an earlier version began with, which
  # can still be evaluated: only training judges all of it.
  is_changed = any(key.startswith('model.') for key in keys)
  if is_changed:
    keys += [f'model.{field}' for field in config.model]
  check_values(config, keys, extended=True)
  if is_changed:
    check_sections(config, {'model'})


def _settle_format(config: ConfigDict) -> None:
  """Lets the end of a file's name decide between CSV and Parquet."""
  data = config.get('data', {})
  name, path = data.get('name'), data.get('path')
  if name not in SUFFIXES or not isinstance(path, str) or not path:
    return
  if (guess := guess_format(path)) and guess != name:
    with config.unlocked():
      data.name = guess
    LOG.info('data.name is %s, by the names of the files in %s', guess, path)


def _warn_of_unread_path(config: ConfigDict) -> None:
  """Warns of files that somebody gives and the data set does not read."""
  data = config.get('data', {})
  name, path = data.get('name'), data.get('path')
  if path and name in _GENERATED.get(config.get('task'), ()):
    LOG.warning(
      'data.path=%s is not read: data.name is %s, whose data are generated, as '
      'the variant :smoke of every config sets it; leave :smoke out, or set '
      'data.name to the format of the files, such as data.name=%s',
      mask_secrets(str(path)),
      name,
      guess_format(path) or 'csv',
    )
