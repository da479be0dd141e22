"""Requests that `config.data` names: made once, then mapped from the cache."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import datasets, request_files
from genrec_jax.data.requests.requests import RequestDataset
from genrec_jax.data.requests.streaming import generate_requests
from genrec_jax.formatting import format_bytes

FORMAT = 1  # of what is made; another number makes everything anew


SETS = {
  'streaming': lambda path, options: generate_requests(options),
  **datasets.DATASETS,
}
OPTIONS = {'streaming': StreamOptions, **datasets.OPTIONS}
_DEPTH = 2  # of the directories below `data.path` whose files are looked at


def load(
  cfg,
  cache: str | pathlib.Path,
  log: Callable[[str], None] = print,
  own_sets: Mapping[str, Callable[..., RequestDataset]] | None = None,
) -> RequestDataset:
  """Makes, or finds made, the data set that `config.data` names.

  Args:
    cfg: `config.data`.
    cache: where requests are kept.
    log: called with progress messages.
    own_sets: `Extensions.request_sets`; they are made anew each time, for
      nobody knows which files they read.

  Returns:
    The requests; their columns are mapped from `cache`.
  """
  own_sets = own_sets or {}
  if both := SETS.keys() & own_sets.keys():
    raise ValueError(
      f'there is a data set of requests {sorted(both)[0]!r} already; give '
      'yours another name'
    )
  source = cfg.path or cfg.name
  if cfg.name in own_sets:
    dataset, source = own_sets[cfg.name](cfg), cfg.name
    if not isinstance(dataset, RequestDataset):
      raise ValueError(
        f'the data set of requests {cfg.name!r} of Extensions.request_sets is '
        f'a {type(dataset).__name__}, must be a RequestDataset: its function '
        'returns one'
      )
    digest = dataset.fingerprint()
  elif cfg.name in SETS:
    section = datasets.SECTIONS.get(cfg.name, cfg.name)
    options = OPTIONS[cfg.name](**cfg[section].to_dict())
    recipe = [FORMAT, cfg.name, dataclasses.asdict(options)]
    if cfg.name != 'streaming':
      recipe += _stamp_files(cfg.path)
    if section == 'log':
      for key in ('items', 'users'):
        if path := getattr(options, key):
          recipe += _stamp_files(path, f'data.log.{key}')
    dataset = None
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]
  else:
    raise ValueError(
      f'data.name is {cfg.name!r}, must be one of '
      f'{", ".join([*SETS, *own_sets])}'
    )
  directory = pathlib.Path(cache) / f'{cfg.name}-{digest}'
  if not directory.exists():
    log(f'making requests of {cfg.name} in {directory}')
    _mention_others(directory, cfg.name, log)
    if dataset is None:
      dataset = SETS[cfg.name](cfg.path, options)
    try:
      request_files.save_requests(dataset, directory)
    except ValueError as e:  # which names users, but knows of no files
      raise ValueError(f'{source}: {e}') from None
  remedy = f'remove {directory}, and it is made again'
  return request_files.open_requests(directory, remedy)


def _mention_others(
  directory: pathlib.Path, name: str, log: Callable[[str], None]
) -> None:
  """Says what lies in the cache already: a changed file leaves a copy."""
  others = [d for d in directory.parent.glob(f'{name}-*') if d.is_dir()]
  if others:
    size = sum(f.stat().st_size for d in others for f in d.glob('*'))
    log(
      f'{directory.parent} has {len(others)} more of {name} '
      f'({format_bytes(size)}), of other options or of files as they were; '
      'remove what no run needs'
    )


def find_time_unit(cfg) -> str:
  """The unit of numeric times in files beside those of `config.data`."""
  is_own = datasets.SECTIONS.get(cfg.name) == 'log'
  return cfg.log.time_unit if is_own else 's'


def _stamp_files(path: str, key: str = 'data.path') -> list[list]:
  """Name, size and time of every file that a data set may be read from."""
  if not path:
    raise ValueError(
      'data.path is not set: give --config.data.path the directory of the files'
    )
  root = pathlib.Path(path)
  if not root.exists():
    raise FileNotFoundError(f'{path}: no such file or directory ({key})')
  files = [root] if root.is_file() else []
  for depth in range(_DEPTH):
    files += root.glob('*/' * depth + '*')
  stamps = []
  for file in sorted(f for f in files if f.is_file()):
    stat = file.stat()
    stamps.append([str(file), stat.st_size, stat.st_mtime_ns])
  return stamps
