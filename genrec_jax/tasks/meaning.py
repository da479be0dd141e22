"""What the weights of a model mean, kept with them.

Weights of two models may have the same shapes: a matrix that compares events
with a candidate by A and one that does by AᵀA, say. So a checkpoint holds the
fields of its model, and whoever reads it with others is told.
"""

import dataclasses
import json
from collections.abc import Mapping

from genrec_jax.config.errors import ConfigError

# Fields that may differ: they matter while weights are drawn or learned, or
# are of the arithmetic.
FREE = (
  'action_std', 'dtype', 'implementation', 'init', 'position_std', 'remat',
  'skip_rate', 'skipped_layers', 'tied_start',
)  # fmt: skip
# What has a check of its own wherever weights are read: towers are those of
# their features, however they were found.
_CHECKED = ('towers',)


def describe_model(task) -> dict | None:
  """The name and the fields of a task's model, as JSON has them.

  None where the task does not say.

  Args:
    task: of the run.
  """
  config = getattr(task, 'model_config', None)
  if not dataclasses.is_dataclass(config):
    return None
  fields = {
    field.name: getattr(config, field.name)
    for field in dataclasses.fields(config)
    if not _is_free(field.name)
  }
  if dataclasses.is_dataclass(pooled := getattr(task, 'pooled', None)):
    own = dataclasses.asdict(pooled)
    fields |= {f'history.{key}': value for key, value in own.items()}
  if name := getattr(task, 'model_name', ''):
    fields = {'name': name, **fields}
  return json.loads(json.dumps(fields, default=_to_plain))


def _is_free(field: str) -> bool:
  return field in FREE or 'dropout' in field


def _to_plain(value):
  if isinstance(value, Mapping):
    return dict(value)
  return str(value)


def list_differences(saved: Mapping | None, task) -> list[str]:
  """The fields in which the model of a checkpoint was another one, in words.

  A field that is not in both is of another version, and is not compared.

  Args:
    saved: what `describe_model` said when the weights were saved, or the
      section of the model in the config of their run; None of an earlier
      version, which did not say.
    task: which shall have the weights.
  """
  own = describe_model(task)
  if not isinstance(saved, Mapping) or own is None:
    return []
  if not saved.get(
    'name'
  ):  # the first that said it knew no names of some tasks
    own.pop('name', None)
  return [
    f'model.{key} is {own[key]!r} and was {saved[key]!r}'
    for key in own
    if key in saved and key not in _CHECKED and saved[key] != own[key]
  ]


def check_resumed(workdir, saved: Mapping | None, task) -> None:
  """Refuses to train on weights that had another meaning.

  Args:
    workdir: of the run that goes on.
    saved: as in `list_differences`.
    task: of the run as it is now.
  """
  if differences := list_differences(saved, task):
    raise ConfigError(
      f'the workdir {workdir} has the weights of another model: '
      f'{"; ".join(differences)}; undo that in its config.json, or use another '
      '--workdir'
    )
