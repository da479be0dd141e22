"""What the weights of a model mean, kept with them.

Weights of two models may have the same shapes: a matrix that compares events
with a candidate by A and one that does by AᵀA, say. So a checkpoint holds the
fields of its model, and whoever reads it with others is told.
"""

import dataclasses
import json
from collections.abc import Mapping

# Fields that may differ: they matter while weights are drawn or learned, are of
# the arithmetic, or name a file, whose towers are compared by what they are.
FREE = ('dtype', 'init', 'towers')


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
    if field.name not in FREE and 'dropout' not in field.name
  }
  found = {'name': getattr(task, 'model_name', ''), **fields}
  return json.loads(json.dumps(found, default=_to_plain))


def _to_plain(value):
  if isinstance(value, Mapping):
    return dict(value)
  return str(value)


def list_differences(saved: Mapping | None, task) -> list[str]:
  """The fields in which the model of a checkpoint was another one, in words.

  A field that is not in both is of another version, and is not compared.

  Args:
    saved: what `describe_model` said when the weights were saved; None of an
      earlier version, which did not say.
    task: which shall have the weights.
  """
  own = describe_model(task)
  if not isinstance(saved, Mapping) or own is None:
    return []
  return [
    f'model.{key} is {own[key]!r} and was {saved[key]!r}'
    for key in own
    if key in saved and saved[key] != own[key]
  ]
