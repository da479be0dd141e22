"""Models by name: `--config.model.name=dlrm`, `fit(..., model='dlrm')`."""

import logging
from collections.abc import Collection

from ml_collections import ConfigDict

from genrec_jax.config import rankers, retrieval
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import hint_nearest

LOG = logging.getLogger('genrec_jax')

# Kind of task -> its models, each with the function of its section.
MODELS_OF = {
  'retrieval': {'hstu': retrieval.hstu, 'sasrec': retrieval.sasrec},
  'ranking': {
    'dcn': rankers.dcn,
    'deepfm': rankers.deepfm,
    'dlrm': rankers.dlrm,
    'dnn': rankers.dnn,
    'finalmlp': rankers.finalmlp,
    'fm': rankers.fm,
    'lr': rankers.lr,
    'wukong': rankers.wukong,
  },
}
MODELS = MODELS_OF['retrieval'] | MODELS_OF['ranking']
# What a config file may have set for its data and its machine, whatever the
# model is: another model keeps it.
KEPT = ('dim', 'max_len', 'dtype', 'remat')
# Keys other than the fields' defaults that a model wants on data of one's own.
# Wukong multiplies vectors with vectors: of small ones nothing would be left.
WANTED = {'wukong': {'data.init_std': 0.05, 'model.norm_eps': 1e-8}}


def describe_models(name, likely: Collection[str] = tuple(MODELS)) -> str:
  """The models there are, for somebody who asked for another one.

  >>> describe_models('Sasrek')[-24:]
  "; did you mean 'sasrec'?"

  Args:
    name: what was asked for, of any type.
    likely: the models that may have been meant.
  """
  near = hint_nearest(name.lower(), likely) if isinstance(name, str) else ''
  recommending, ranking = (', '.join(models) for models in MODELS_OF.values())
  return (
    f'those that recommend are {recommending}, those that rank are '
    f'{ranking}{near}'
  )


def set_model(config: ConfigDict, name: str) -> None:
  """Gives a config a model with its defaults.

  >>> from genrec_jax import config as config_lib
  >>> config = config_lib.ranking()
  >>> set_model(config, 'dlrm')
  >>> config.model.interaction
  'auto'

  Args:
    config: of an experiment, changed in place.
    name: of the model.

  Raises:
    ConfigError: there is no such model for this kind of task.
  """
  check_name(name, config.task)
  with config.unlocked():
    config.model = MODELS[name]()
    for key, value in WANTED.get(name, {}).items():
      section, _, field = key.partition('.')
      config[section][field] = value


def choose_model(config: ConfigDict, name: str) -> None:
  """Replaces the model of a config, as `--config.model.name` does.

  The section of the model becomes that of the new one with its defaults. Of the
  old section `KEPT` stays, where it had been set to other values than the old
  model's defaults; a line of the log says so.

  Args:
    config: of an experiment, changed in place.
    name: of the model.

  Raises:
    ConfigError: there is no such model for this kind of task.
  """
  old = config.model
  if config.task not in MODELS_OF or name == old.name:
    with config.unlocked():
      old.name = name  # the models of other tasks are not known here
    return
  usual = MODELS[old.name]() if old.name in MODELS else {}
  set_model(config, name)
  kept = {
    key: old[key]
    for key in KEPT
    if key in config.model and key in old and old[key] != usual.get(key)
  }
  with config.unlocked():
    config.model.update(kept)
  LOG.info(
    'model.name: %s with its defaults in place of %s%s',
    name,
    old.name,
    '; of the config file stay '
    + ', '.join(f'model.{key}={value!r}' for key, value in kept.items())
    if kept
    else '',
  )


def check_name(name: str, task: str) -> None:
  """Refuses the name of a model that this kind of task does not have.

  Args:
    name: of the model.
    task: 'retrieval' or 'ranking'.

  Raises:
    ConfigError: says which models there are.
  """
  known = MODELS_OF[task]
  if name in known:
    return
  if name not in MODELS:
    raise ConfigError(f'model.name is {name!r}; {describe_models(name, known)}')
  does, file = {
    'retrieval': ('recommends what comes next', 'own_clicks'),
    'ranking': ('ranks examples', 'own_csv'),
  }[task]
  raise ConfigError(
    f'model.name is {name!r}, and a config with task={task!r} {does}: choose '
    f'one of {", ".join(known)}, or a config such as {file}:{name}'
  )
