"""Config files, by their paths or by the names of those in `configs/`.

A config file holds one experiment: `get_config(arg)` returns a `ConfigDict`
made from `retrieval()` or `ranking()` and a model's section, such as `hstu()`,
which name every key there is. `arg` is what stands behind the colon of
`--config=FILE:arg`; every config of this project understands `smoke`, a run of
seconds on two CPU cores.
"""

import contextlib
import importlib.util
import itertools
import os
import pathlib
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ml_collections import ConfigDict

from genrec_jax.config import renamed
from genrec_jax.config.comparison import Defaults, read_config, use_new_names
from genrec_jax.config.errors import ConfigError, UnknownVariantError
from genrec_jax.config.loading import (
  hint_nearest,
  quote_value,
  restore_tuples,
)
from genrec_jax.config.model_choice import find_config
from genrec_jax.config.overrides import apply_overrides
from genrec_jax.config.sections import parallel

# A wheel holds configs/ as a folder of the package; in a checkout, also one
# that is installed by `pip install -e`, it is beside the package.
_FOLDERS = [pathlib.Path(__file__).parents[n] / 'configs' for n in (1, 2)]
# Of all runs once, also of those that place no rows, for which it is refused
# now. It is what '' stands for.
_FORMER_SCHEME = 'row_wise'


def parse_variants(
  arg: str | None,
  known: Sequence[str] = ('smoke',),
  *,
  one_of: Iterable[str] = (),
  apart: Iterable[str] = (),
  elsewhere: Mapping[str, str] | None = None,
) -> set[str]:
  """The variants behind `--config=FILE:`, separated by commas.

  Args:
    arg: what stands there.
    known: the variants of the config.
    one_of: more of them, which exclude each other, such as models.
    apart: names among all these that exclude each other, too.
    elsewhere: model -> the config that has it, for somebody who asks here.
  """
  names = {name for name in (arg or '').split(',') if name}
  known = (*known, *one_of)
  for name in names:
    if name not in known:
      hint = hint_nearest(name, known)
      if own := find_config(name):
        where = (elsewhere or {}).get(name)
        hint = f'; with this model there is {where}' if where else ''
        hint += f'; {_tell_data(own)} it is {own}'
      raise UnknownVariantError(name, known, hint)
  if len(chosen := sorted(names & {*one_of})) > 1:
    raise ConfigError(f'one model at a time, not {chosen}')
  if len(chosen := sorted(names & {*apart})) > 1:
    raise ConfigError(f'these variants exclude each other: {chosen}')
  return names


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Loads `FILE` or `FILE:variant` and applies `a.b=value` overrides.

  >>> load('quickstart:smoke', ['train.steps=3']).train.steps
  3

  Args:
    path: of a .py file, or the name of a config that comes with the library.
    overrides: keys and their values.

  Raises:
    ConfigError: there is no such config, or no such key.
  """
  name, _, arg = path.partition(':')
  file = _find_file(name)
  with _tell_faults(file):
    module = _import_file(file)
    if not hasattr(module, 'get_config'):
      raise ConfigError(f'{name} has no get_config(arg): is it a config file?')
    config = module.get_config(arg or None)
  if not isinstance(config, ConfigDict):
    kind = type(config).__name__
    raise ConfigError(f'{name}: get_config gives {kind}, must be a ConfigDict')
  use_new_names(config)
  apply_overrides(config, overrides)
  return config.lock()


def load_sweep(path: str, name: str = '', most: int = 10_000) -> list[dict]:
  """The variants that `sweep()` or `sweep_NAME()` of a config file yields.

  Args:
    path: as in `load`; what stands behind the colon counts for nothing.
    name: of the sweep; '' for `sweep()`.
    most: variants that there may be.

  Raises:
    ConfigError: there is no such function, or it yields no dictionaries, or too
      many.
  """
  file = _find_file(path.partition(':')[0])
  wanted = f'sweep_{name}' if name else 'sweep'
  with _tell_faults(file):
    module = _import_file(file)
    make = getattr(module, wanted, None)
    if make is None:
      known = [n for n in vars(module) if n.split('_')[0] == 'sweep']
      known = [n for n in known if callable(getattr(module, n))]
      there = (
        f'it has {", ".join(known)}'
        if known
        else ('it defines no sweep, so say what varies: --set KEY=VALUE,VALUE')
      )
      raise ConfigError(f'{file} has no {wanted}(); {there}')
    made = make()
    if not isinstance(made, Iterable) or isinstance(made, str | Mapping):
      raise ConfigError(
        f'{wanted}() of {file} returns {quote_value(made)}, must return or '
        'yield dictionaries, as `sweeps.vary` does'
      )
    variants = list(itertools.islice(made, most + 1))
  if len(variants) > most:
    raise ConfigError(f'{wanted}() of {file} has more than {most:,} variants')
  for variant in variants:
    if not isinstance(variant, Mapping):
      raise ConfigError(
        f'{wanted}() of {file} yields {quote_value(variant)}, must yield '
        "dictionaries, such as {'optimizer.learning_rate': 0.001}"
      )
  return [dict(variant) for variant in variants]


@contextlib.contextmanager
def _tell_faults(file: pathlib.Path) -> Iterator[None]:
  """Makes a sentence of whatever a user's own file raises."""
  try:
    yield
  except ConfigError:
    raise
  except (Exception, SystemExit) as error:  # sys.exit() in a config, too
    raise ConfigError(_explain_fault(file, error)) from error


def _explain_fault(file: pathlib.Path, error: Exception) -> str:
  """What is wrong in a config file, with its last line that took part."""
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename == str(file)
  ]
  where = f'{file}, line {lines[-1]}' if lines else str(file)
  if isinstance(error, SyntaxError):
    return f'{error.filename}, line {error.lineno}: {error.msg}'
  if isinstance(error, AttributeError) and isinstance(error.obj, ConfigDict):
    why = renamed.explain_missing(error.name)
    return f'{where}: no key {error.name!r}' + (f'; {why}' if why else '')
  return f'{where}: {type(error).__name__}: {error}'


def load_saved(
  path: str | os.PathLike,
  overrides: Sequence[str] = (),
  defaults: Defaults | None = None,
  *,
  forget_mesh: bool = False,
) -> ConfigDict:
  """Loads the config.json of a run and applies `a.b=value` overrides.

  Args:
    path: of the file.
    overrides: keys and their values.
    defaults: as in `comparison.read_config`.
    forget_mesh: whether `parallel` begins anew, because what uses the run may
      run on other devices.

  Raises:
    ValueError: the file is damaged.
    ConfigError: there is no such key.
  """
  saved = read_config(path, defaults)
  if forget_mesh:
    saved['parallel'] = parallel().to_dict()
  elif saved['parallel'].get('scheme') == _FORMER_SCHEME:
    saved['parallel']['scheme'] = ''
  config = ConfigDict(restore_tuples(saved))
  apply_overrides(config, overrides, is_saved=True)
  return config.lock()


def describe_configs() -> list[tuple[str, str, str]]:
  """Name, variants and first line of every config of the library."""
  rows = []
  for name, file in _list_configs().items():
    module, variants = _import_file(file), ()
    try:
      module.get_config('?')
    except UnknownVariantError as error:
      variants = error.known
    headline = (module.__doc__ or '').partition('\n')[0]
    rows.append((name, ' '.join(variants), headline))
  return rows


def _list_configs() -> dict[str, pathlib.Path]:
  """Name -> file of the configs that come with the library."""
  folder = next(filter(pathlib.Path.is_dir, _FOLDERS), _FOLDERS[0])
  return {file.stem: file for file in sorted(folder.glob('*.py'))}


def _find_file(name: str) -> pathlib.Path:
  file, known = pathlib.Path(name), _list_configs()
  if file.suffix == '.py' and file.is_file():
    return file
  if name in known:
    return known[name]
  if own := find_config(name):
    raise ConfigError(
      f'{name!r} is a model, and no config: {_tell_data(own)} it is {own}. '
      '`genrec configs` lists all configs'
    )
  if (file / 'config.json').is_file():
    raise ConfigError(
      f'{name!r} is the workdir of a run, and no config: give it as --workdir'
    )
  hint = hint_nearest(name, [*known, *map(str, file.parent.glob('*.py'))])
  if file.suffix == '.py' or file.name != name:
    raise ConfigError(f'no config file {name!r}{hint}')
  raise ConfigError(
    f'no config is called {name!r}{hint or "."} `genrec configs` lists them all'
  )


def _tell_data(config: str) -> str:
  is_own = config.startswith('own_')
  return 'on data of your own' if is_own else 'on generated data'


def _import_file(file: pathlib.Path) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location(f'config_{file.stem}', file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
