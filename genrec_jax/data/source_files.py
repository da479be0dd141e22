"""Raw files must stay as they are while they are read."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from genrec_jax.data import remote_files

WORKBOOKS = ('.xlsx', '.xlsm', '.xls', '.ods', '.numbers')
_Chunk = TypeVar('_Chunk')


def stat_files(
  paths: Iterable[pathlib.Path],
) -> dict[pathlib.Path, tuple[int, int]]:
  """Path -> (size, time of the last change in ns).

  A store says in other words what changes with the content, see `remote_files`.

  Raises:
    ValueError: a store says nothing of the kind, so that what was once made of
      a file would be taken for what it holds now.
  """
  stats = {path: path.stat() for path in paths}
  for path, stat in stats.items():
    if stat.st_mtime_ns == '':
      raise ValueError(
        f'{path}: its store tells neither when the file was changed nor a '
        'checksum of it, so that a change would go unnoticed; copy it to a '
        'disk, or to a store that does'
      )
  return {path: (s.st_size, s.st_mtime_ns) for path, s in stats.items()}


def hint_workbook(directory) -> str:
  """What to do where a directory has no table that is read, or ''."""
  for path in directory.iterdir():
    if path.name.lower().endswith(WORKBOOKS):
      return f'; save {path.name} as CSV or Parquet, for workbooks are not read'
  return ''


def list_files(
  path: str, suffixes: tuple[str, ...], key: str = 'data.path'
) -> list[pathlib.Path]:
  """The file at a path, or the files of that directory in order of names.

  Args:
    path: of a file or a directory; '' is not set.
    suffixes: of the files of a directory.
    key: of the config, which says the path.
  """
  if not path:
    raise ValueError(
      f'{key} is not set: give config.{key} a file, or a directory of '
      f'{suffixes[0]} files'
    )
  path = remote_files.locate(path)
  if not path.is_dir():
    if not path.is_file():
      raise FileNotFoundError(f'{path}: no such file ({key})')
    return [path]
  paths = sorted(p for p in path.iterdir() if p.name.lower().endswith(suffixes))
  if not paths:
    raise FileNotFoundError(
      f'{path}: the directory has no {suffixes[0]} files' + hint_workbook(path)
    )
  return paths


def check_unchanged(before: Mapping[pathlib.Path, tuple[int, int]]) -> None:
  """Refuses files that are no longer what `stat_files` has returned.

  Raises:
    ValueError: one of them has changed, or is gone.
  """
  for path, stamp in before.items():
    try:
      is_same = stat_files([path])[path] == stamp
    except FileNotFoundError:
      is_same = False
    if not is_same:
      raise ValueError(
        f'the raw files changed while they were read ({path}); start again '
        'when nobody writes to them'
      )


def watch_files(
  before: Mapping[pathlib.Path, tuple[int, int]], chunks: Iterable[_Chunk]
) -> Iterator[_Chunk]:
  """Yields the chunks of files; then refuses files that have changed.

  Args:
    before: of `stat_files`, taken before the chunks are read.
    chunks: what the files hold.
  """
  yield from chunks
  check_unchanged(before)
