"""Config files.

A config file holds one experiment: `get_config(arg)` returns a `ConfigDict`
made from `retrieval()` or `ranking()` and a model's section, such as `hstu()`,
which name every key there is. `arg` is what stands behind the colon of
`--config=FILE:arg`; every config of this project understands `smoke`, a run of
seconds on two CPU cores.
"""

import difflib
import importlib.util
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from ml_collections import ConfigDict

from genrec_jax.config import renamed
from genrec_jax.config.comparison import use_new_names
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.model_choice import MODELS, MODELS_OF
from genrec_jax.config.overrides import apply_overrides


def parse_variants(
  arg: str | None,
  known: Sequence[str] = ('smoke',),
  *,
  one_of: Iterable[str] = (),
  elsewhere: Mapping[str, str] | None = None,
) -> set[str]:
  """The variants behind `--config=FILE:`, separated by commas.

  Args:
    arg: what stands there.
    known: the variants of the config.
    one_of: more of them, which exclude each other, such as models.
    elsewhere: model -> the config that has it, for somebody who asks here.
  """
  names = {name for name in (arg or '').split(',') if name}
  known = (*known, *one_of)
  for name in names:
    if name not in known:
      hint = ''
      if name in MODELS:
        where = (elsewhere or {}).get(name)
        hint = f'; with this model there is {where}' if where else ''
        own = 'own_csv' if name in MODELS_OF['retrieval'] else 'own_clicks'
        hint += f'; on data of your own it is configs/{own}.py:{name}'
      raise ConfigError(
        f'unknown variant {name!r}{hint}; this config knows {", ".join(known)}'
      )
  if len(chosen := sorted(names & {*one_of})) > 1:
    raise ConfigError(f'one model at a time, not {chosen}')
  return names


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Loads `FILE` or `FILE:variant` and applies `a.b=value` overrides."""
  name, _, arg = path.partition(':')
  file = pathlib.Path(name)
  if not file.is_file():
    nearby = sorted(str(p) for p in file.parent.glob('*.py'))
    hint = difflib.get_close_matches(str(file), nearby, n=1, cutoff=0.0)
    raise ConfigError(
      f'no config file {name!r}'
      + (f'; did you mean {hint[0]!r}?' if hint else '')
    )
  spec = importlib.util.spec_from_file_location(f'config_{file.stem}', file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, 'get_config'):
    raise ConfigError(f'{name} has no get_config(arg): is it a config file?')
  try:
    config = module.get_config(arg or None)
  except AttributeError as error:
    why = isinstance(error.obj, ConfigDict) and renamed.explain_missing(
      error.name
    )
    if not why:
      raise
    raise ConfigError(f'{name}: no key {error.name!r}; {why}') from error
  use_new_names(config)
  apply_overrides(config, overrides)
  return config.lock()
