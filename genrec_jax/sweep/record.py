"""What a sweep consists of: the file `sweep.json` in its directory.

    ROOT/
      sweep.json            this
      000_learning_rate=0.001_seed=0/     a workdir, as of any run
      logs/000_....log      what the run has printed
      logs/000_....json     what the launcher knows of it, see notes.py
      sweep.html  sweep.csv

A sweep may be started again with more variants: those that are there keep their
numbers and names.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax import config as config_lib
from genrec_jax import provenance, sealed
from genrec_jax.checkpoint import storage
from genrec_jax.checkpoint.workdir_files import FREE_KEYS, make_workdir
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.sweep.variants import (
  MOST,
  Variant,
  check_variants,
  name_variants,
)

NAME = 'sweep.json'
FORMAT = 1
_MOST_BYTES = 1 << 26
_SAFE = re.compile(r'[\w.=+,-]{1,120}')
_PACKAGES = ('genrec_jax', 'jax', 'jaxlib', 'flax', 'optax')


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A sweep in its directory.

  Attributes:
    root: the directory.
    config: FILE or FILE:variant, an absolute path or a name of the library's.
    overrides: 'a.b=value' each, of all runs.
    base: the config that variants vary, as nested dictionaries.
    directory: where the runs are started, for paths that are relative.
    variants: all there are, by number.
    commands: those that made the sweep what it is: their time, versions, text.
  """

  root: pathlib.Path
  config: str
  overrides: tuple[str, ...]
  base: Mapping
  directory: str
  variants: tuple[Variant, ...] = ()
  commands: tuple[Mapping, ...] = ()

  def workdir(self, variant: Variant) -> pathlib.Path:
    return self.root / variant.name

  def log(self, variant: Variant) -> pathlib.Path:
    return self.root / 'logs' / f'{variant.name}.log'

  def note(self, variant: Variant) -> pathlib.Path:
    return self.root / 'logs' / f'{variant.name}.json'

  def find_monitor(self, variant: Variant | None = None) -> str:
    """`train.monitor` of a variant, or of all that do not set it."""
    of_all = self.base.get('train', {}).get('monitor', '')
    return dict(variant.overrides if variant else ()).get(
      'train.monitor', of_all
    )

  def words(self, variant: Variant, workdir: str = '') -> list[str]:
    """The arguments of `python -m genrec_jax.main` that run a variant.

    Args:
      variant: which.
      workdir: in place of its own.
    """
    own = [f'{key}={text}' for key, text in variant.overrides]
    return list_words(
      self.config, workdir or self.workdir(variant), [*self.overrides, *own]
    )

  def describe_command(self, variant: Variant, workdir: str = '') -> str:
    """The command line that runs a variant, as a shell takes it."""
    words = self.words(variant, workdir)
    return shlex.join(['python', '-m', 'genrec_jax.main', *words])


def list_words(
  config: str, workdir: pathlib.Path | str, overrides: Sequence[str]
) -> list[str]:
  """The arguments of `python -m genrec_jax.main` that train.

  >>> list_words('quickstart', 'runs/1', ['seed=1'])
  ['--config=quickstart', '--workdir=runs/1', '--config.seed=1']
  """
  own = [f'--config.{override}' for override in overrides]
  return [f'--config={config}', f'--workdir={workdir}', *own]


def name_config(config: str) -> str:
  """A config by its full name: a path that holds from everywhere."""
  name, colon, arg = config.partition(':')
  if pathlib.Path(name).is_file():
    name = str(pathlib.Path(name).resolve())
  return f'{name}{colon}{arg}'


def read_sweep(root: pathlib.Path) -> Sweep | None:
  """The sweep of a directory; None where there is none.

  Raises:
    ConfigError: the file is damaged.
  """
  path = root / NAME
  if not path.exists():
    return None
  try:
    body = json.loads(sealed.read_regular(path, _MOST_BYTES))
    sealed.check_keys(
      body, format=int, config=str, overrides=list, base=dict,
      directory=str, variants=list, commands=list,
    )  # fmt: skip
    if body['format'] != FORMAT:
      raise ValueError(f'of format {body["format"]}')
    return Sweep(
      root=root,
      config=body['config'],
      overrides=tuple(body['overrides']),
      base=body['base'],
      directory=body['directory'],
      variants=tuple(map(_read_variant, range(MOST), body['variants'])),
      commands=tuple(body['commands']),
    )
  except (OSError, *sealed.UNREADABLE) as error:
    raise ConfigError(
      f'{path} cannot be read ({error}). Its runs are whole: name another '
      '--workdir, or put the file back'
    ) from error


def require_sweep(root: pathlib.Path) -> Sweep:
  """The sweep of a directory that must have one."""
  sweep = read_sweep(root)
  if sweep is None:
    raise ConfigError(
      f'{root} holds no sweep (no {NAME}); start one: genrec sweep CONFIG '
      f'--workdir={root} --set KEY=VALUE,VALUE'
    )
  return sweep


def write_sweep(sweep: Sweep) -> None:
  """Writes it whole or not at all."""
  body = {
    'format': FORMAT,
    'config': sweep.config,
    'overrides': list(sweep.overrides),
    'base': sweep.base,
    'directory': sweep.directory,
    'variants': [
      {'name': v.name, 'set': dict(v.overrides)} for v in sweep.variants
    ],
    'commands': list(sweep.commands),
  }
  make_workdir(sweep.root)
  private = provenance.holds_secrets(body)
  replace_file(sweep.root / NAME, json.dumps(body, indent=1), private=private)


def extend_sweep(
  root: pathlib.Path,
  config: str,
  overrides: Sequence[str],
  variants: Sequence[Sequence[tuple[str, str]]],
) -> tuple[Sweep, list[Variant]]:
  """The sweep of a directory with the variants of a command.

  Nothing is written.

  Args:
    root: the directory, which need not be there.
    config: FILE or FILE:variant.
    overrides: 'a.b=value' each, of all runs.
    variants: (key, text) pairs of each.

  Returns:
    The sweep, and the variants that the command asks for.

  Raises:
    ConfigError: a variant cannot be, or is there twice; or the directory holds
      another sweep, or no sweep but a run.
  """
  asked = check_variants(config, overrides, variants)
  loaded = config_lib.load(config, overrides)
  config, base = name_config(config), json.loads(config_lib.to_json(loaded))
  sweep = read_sweep(root)
  if sweep is None:
    _require_free(root)
    sweep = Sweep(
      root=root,
      config=config,
      overrides=tuple(overrides),
      base=base,
      directory=str(pathlib.Path.cwd()),
    )
  else:
    _require_same_base(sweep, loaded)
    sweep = dataclasses.replace(
      sweep, config=config, overrides=tuple(overrides), base=base,
      directory=str(pathlib.Path.cwd()),
    )  # fmt: skip
  there = [v.overrides for v in sweep.variants]
  there = check_variants(config, overrides, there)
  known = dict(zip(there, sweep.variants, strict=True))
  new = {i: v for i, v in zip(asked, variants, strict=True) if i not in known}
  added = name_variants(list(new.values()), len(sweep.variants))
  known |= dict(zip(new, added, strict=True))
  sweep = dataclasses.replace(sweep, variants=(*sweep.variants, *added))
  return sweep, [known[identity] for identity in asked]


def require_same_base(sweep: Sweep) -> None:
  """Refuses a config that has become another one since the sweep began."""
  loaded = config_lib.load(sweep.config, sweep.overrides)
  _require_same_base(sweep, loaded)


def _require_same_base(sweep: Sweep, loaded) -> None:
  lines = config_lib.describe_differences(sweep.base, loaded, FREE_KEYS)
  if lines:
    raise ConfigError(
      f'{sweep.root} holds another sweep than {sweep.config} says now; use '
      'another --workdir, or undo:' + ''.join(f'\n  {line}' for line in lines)
    )


def note_command(sweep: Sweep, command: str) -> Sweep:
  """The sweep with one more command behind it."""
  versions = {'python': platform.python_version()}
  for package in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  entry = {'time': now, 'command': command, 'versions': versions}
  return dataclasses.replace(sweep, commands=(*sweep.commands, entry))


@contextlib.contextmanager
def lock_sweep(root: pathlib.Path) -> Iterator[None]:
  """Keeps a second launcher out of a directory while the context lasts."""
  make_workdir(root)
  with storage.open_lock(root / '.sweep.lock') as file:
    if not storage.lock_file(file):
      raise ConfigError(
        f'another launcher is at work in {root}; wait until it has ended, or '
        'use another --workdir'
      )
    yield


def _read_variant(number: int, entry) -> Variant:
  sealed.check_keys(entry, name=str, set=dict)
  name = entry['name']
  # A name becomes a path: it must not lead elsewhere.
  if not _SAFE.fullmatch(name) or name.startswith('.'):
    raise ValueError(f'{name!r} is no name of a variant')
  overrides = tuple((str(k), str(v)) for k, v in entry['set'].items())
  return Variant(number, name, overrides)


def _require_free(root: pathlib.Path) -> None:
  for trace in ('config.json', 'checkpoints', 'metrics.jsonl'):
    if (root / trace).exists():
      raise ConfigError(
        f'{root} is the workdir of one run (it has {trace}); give the sweep a '
        'directory of its own'
      )
