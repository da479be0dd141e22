"""Requests that `config.data` names: made once, then mapped from the cache."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable

from genrec_jax.data.requests import movielens, request_files, stream_draws
from genrec_jax.data.requests.requests import RequestDataset
from genrec_jax.data.requests.streaming import generate_requests

FORMAT = 1  # of what is made; another number makes everything anew


@dataclasses.dataclass(frozen=True)
class RequestSet:
  """How a data set is made.

  Attributes:
    options: class of its options, the section of its name.
    make: (path, options) -> the requests.
    files: (path, options) -> the files that are read; None for none.
  """

  options: type
  make: Callable[[str, object], RequestDataset]
  files: Callable[[str, object], list[pathlib.Path]] | None = None


SETS = {
  'streaming': RequestSet(
    stream_draws.StreamOptions, lambda path, options: generate_requests(options)
  ),
  'movielens': RequestSet(movielens.MovielensOptions, movielens.load),
}


def load(
  cfg, cache: str | pathlib.Path, log: Callable[[str], None] = print
) -> RequestDataset:
  """Makes, or finds made, the data set that `config.data` names.

  Args:
    cfg: `config.data`.
    cache: where requests are kept.
    log: called with progress messages.

  Returns:
    The requests; their columns are mapped from `cache`.
  """
  if cfg.name not in SETS:
    raise ValueError(
      f'data.name is {cfg.name!r}, must be one of {", ".join(SETS)}'
    )
  kind = SETS[cfg.name]
  options = kind.options(**cfg[cfg.name].to_dict())
  recipe = [FORMAT, cfg.name, dataclasses.asdict(options)]
  for path in kind.files(cfg.path, options) if kind.files else ():
    stat = path.stat()
    recipe.append([str(path), stat.st_size, stat.st_mtime_ns])
  digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]
  directory = pathlib.Path(cache) / f'{cfg.name}-{digest}'
  remedy = f'remove {directory}, and it is made again'
  if not directory.exists():
    log(f'making requests of {cfg.name} in {directory}')
    request_files.save_requests(kind.make(cfg.path, options), directory)
  return request_files.open_requests(directory, remedy)
