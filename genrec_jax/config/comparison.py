"""Whether a saved config says what a config says now."""

import json

from ml_collections import ConfigDict

from genrec_jax.config import rankers, ranking, retrieval
from genrec_jax.config.loading import flatten, to_json

MODELS = {
  'hstu': retrieval.hstu,
  'sasrec': retrieval.sasrec,
  'dcn': rankers.dcn,
  'deepfm': rankers.deepfm,
  'dlrm': rankers.dlrm,
  'dnn': rankers.dnn,
  'finalmlp': rankers.finalmlp,
  'fm': rankers.fm,
  'lr': rankers.lr,
  'wukong': rankers.wukong,
}
TASKS = {'retrieval': retrieval.retrieval, 'ranking': ranking.ranking}


def difference(saved: dict, config: ConfigDict, ignored=()) -> list[str]:
  """Keys in which a saved config and `config` differ, as readable lines.

  A key that the saved config lacks is younger than it. Such a key has its
  default there: the default of a new key is what was done before.

  Args:
    saved: a config as `read` gives it.
    config: the one of now.
    ignored: keys, and sections, that may differ.
  """
  old, new = flatten(saved), flatten(_plain(config))
  defaults = _defaults(config)
  lines = []
  for key in sorted(set(old) | set(new)):
    if key.split('.')[0] in ignored or key in ignored:
      continue
    was, now = old.get(key, defaults.get(key)), new.get(key)
    if was != now:
      told = '' if key in old or key not in defaults else ' (the default)'
      lines.append(f'{key}: saved {was!r}{told}, now {now!r}')
  return lines


def _defaults(config: ConfigDict) -> dict:
  """Dotted key -> default, of the config's task and model."""
  # Others are refused where they are built, which says what there is.
  if config.task not in TASKS:
    return {}
  defaults = TASKS[config.task]()
  if config.model.name in MODELS:
    defaults.model = MODELS[config.model.name]()
  return flatten(_plain(defaults))


def _plain(config: ConfigDict) -> dict:
  """A config as it is after saving and reading, tuples as lists."""
  return json.loads(to_json(config))
