"""What `config.extensions` names: parts of a run from outside the library.

    --config.extensions=my_package.my_module:EXTENSIONS

where the module holds `EXTENSIONS = contracts.Extensions(...)`. Several are
separated by commas. The module is imported as any other: it must be on the
Python path.
"""

import dataclasses
import importlib

from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions, TaskKinds


def load_extensions(names: str) -> Extensions:
  """Imports what a config names.

  Args:
    names: 'module:NAME', several separated by commas; '' for none.

  Raises:
    ConfigError: there is no such module or name, it is something else, or two
      of them use one name.
  """
  merged = Extensions()
  for name in filter(None, (word.strip() for word in names.split(','))):
    merged = _merge_extensions(merged, _import_extensions(name), name)
  return merged


def add_to_kinds(kinds: TaskKinds, extensions: Extensions) -> TaskKinds:
  """The library's kinds of tasks and those from outside."""
  if twice := sorted(kinds.keys() & extensions.task_kinds.keys()):
    raise ConfigError(
      f'there is a kind of task {twice[0]!r} already; give yours another name'
    )
  return {**kinds, **extensions.task_kinds}


def _import_extensions(name: str) -> Extensions:
  module, colon, attribute = name.partition(':')
  if not colon or not attribute:
    raise ConfigError(
      f"config.extensions is {name!r}, must be 'module:NAME', as in "
      "'my_package.my_module:EXTENSIONS'"
    )
  try:
    package = importlib.import_module(module)
  except ModuleNotFoundError as e:
    raise ConfigError(
      f'config.extensions: no module {e.name!r}; it must be on the Python path '
      '(PYTHONPATH, or installed)'
    ) from e
  if not hasattr(package, attribute):
    raise ConfigError(f'config.extensions: {module} has no {attribute!r}')
  value = getattr(package, attribute)
  if not isinstance(value, Extensions):
    raise ConfigError(
      f'config.extensions: {name} is a {type(value).__name__}, must be a '
      'genrec_jax.contracts.Extensions'
    )
  return value


def _merge_extensions(
  one: Extensions, other: Extensions, name: str
) -> Extensions:
  fields = {}
  for field in dataclasses.fields(Extensions):
    a, b = getattr(one, field.name), getattr(other, field.name)
    if field.name == 'towers':
      twice = ['towers'] if a is not None and b is not None else []
      fields[field.name] = b if a is None else a
    else:
      twice = sorted(a.keys() & b.keys())
      fields[field.name] = {**a, **b}
    if twice:
      raise ConfigError(
        f'config.extensions: {name} has {field.name} {twice[0]!r}, which one '
        'named before it has too'
      )
  return Extensions(**fields)
