"""Models by name: `--config.model.name=dlrm`, `fit(..., model='dlrm')`."""

import logging
from collections.abc import Callable, Collection, Iterable

from ml_collections import ConfigDict

from genrec_jax.config import rankers, request_ranking, retrieval
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import hint_nearest

LOG = logging.getLogger('genrec_jax')

_RANKERS = {
  'dcn': rankers.dcn,
  'deepfm': rankers.deepfm,
  'dlrm': rankers.dlrm,
  'dnn': rankers.dnn,
  'finalmlp': rankers.finalmlp,
  'fm': rankers.fm,
  'lr': rankers.lr,
  'tbsm': rankers.tbsm,
  'wukong': rankers.wukong,
}


def _pool_histories(make: Callable) -> Callable:
  """What makes the section of a ranking model for requests."""
  return lambda **fields: request_ranking.pool_history(make(**fields))


# Kind of task -> its models, each with the function of its section.
MODELS_OF = {
  'retrieval': {'hstu': retrieval.hstu, 'sasrec': retrieval.sasrec},
  'ranking': _RANKERS,
  'request_ranking': {
    'stu': request_ranking.stu,
    **{
      name: _pool_histories(make)
      for name, make in _RANKERS.items()
      if name != 'tbsm'  # it reads events one by one
    },
  },
}
# Kind of task -> what its models do, and a config that has them as variants.
_SAYINGS = {
  'retrieval': ('recommends what comes next', 'own_csv'),
  'ranking': ('ranks examples', 'own_clicks'),
  'request_ranking': ('scores the candidates of requests', 'gr_streaming'),
}
# What a config file may have set for its data and its machine, whatever the
# model is: another model keeps it.
KEPT = ('dim', 'max_len', 'dtype', 'remat')
# Keys other than the fields' defaults that a model wants on data of one's own.
# Wukong and TBSM multiply vectors with vectors: of small ones nothing would be
# left.
WANTED = {
  'tbsm': {'data.init_std': 0.05},
  'wukong': {'data.init_std': 0.05, 'model.norm_eps': 1e-8},
}


def describe_models(
  name, likely: Iterable[str] = (), tasks: Collection[str] = tuple(MODELS_OF)
) -> str:
  """The models there are, for somebody who asked for another one.

  >>> describe_models('Sasrek', tasks=['retrieval'])
  "those that recommend are hstu, sasrec; did you mean 'sasrec'?"

  Args:
    name: what was asked for, of any type.
    likely: the models that may have been meant; () is all of these.
    tasks: kinds of tasks whose models come into question.
  """
  models = {task: ', '.join(MODELS_OF[task]) for task in tasks}
  if {'ranking', 'request_ranking'} <= models.keys():
    models['request_ranking'] = 'stu and, over pooled histories, all that rank'
  said = {
    'retrieval': 'those that recommend',
    'ranking': 'those that rank',
    'request_ranking': 'those for requests',
  }
  text = ', '.join(f'{said[x]} are {names}' for x, names in models.items())
  if not isinstance(name, str):
    return text
  known = {model: None for task in tasks for model in MODELS_OF[task]}
  return text + hint_nearest(name.lower(), likely or known)


def list_models(task: str | None) -> dict[str, Callable]:
  """The models of a kind of task; all there are of one from outside."""
  every = {}
  for models in reversed(MODELS_OF.values()):
    every |= models
  return MODELS_OF.get(task, every)


def find_config(name: str) -> str | None:
  """A config that has a model as its variant; None if there is no such model.

  >>> find_config('sasrec')
  'own_csv:sasrec'
  """
  for task, models in MODELS_OF.items():
    if name in models:
      return f'{_SAYINGS[task][1]}:{name}'
  return None


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
    config.model = MODELS_OF[config.task][name]()
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
  known = MODELS_OF[config.task]
  usual = known[old.name]() if old.name in known else {}
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
    task: a key of `MODELS_OF`.

  Raises:
    ConfigError: says which models there are.
  """
  known = MODELS_OF[task]
  if name in known:
    return
  other = find_config(name)
  if not other:
    raise ConfigError(f'model.name is {name!r}; {describe_models(name, known)}')
  raise ConfigError(
    f'model.name is {name!r}, and a config with task={task!r} '
    f'{_SAYINGS[task][0]}: choose one of {", ".join(known)}, or a config such '
    f'as {other}'
  )
