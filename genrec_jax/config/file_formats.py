"""Which reader is for a file, by how its name ends."""

import contextlib
import os
import pathlib
from collections.abc import Iterable

SUFFIXES = {
  'csv': ('.csv', '.csv.gz', '.tsv', '.tsv.gz'),
  'parquet': ('.parquet',),
}


def guess_format(path: str | os.PathLike) -> str:
  """'csv' or 'parquet', of a file or of the files in a directory; or ''.

  >>> guess_format('logs/EVENTS.csv.gz'), guess_format('clicks.parquet')
  ('csv', 'parquet')
  >>> guess_format('ratings.dat')
  ''
  """
  if isinstance(path, str | os.PathLike):  # else it acts as a path does
    path = pathlib.Path(path)
  with contextlib.suppress(OSError):  # which the reader will tell
    if path.is_dir():
      # Below, where there is none: a directory of each split has the files.
      return _guess_of_any(path.iterdir()) or _guess_of_any(path.glob('*/*'))
  return _guess_of_any([path])


def _guess_of_any(paths: Iterable) -> str:
  names = [path.name.lower() for path in paths]
  for name, suffixes in SUFFIXES.items():
    if any(n.endswith(suffixes) for n in names):
      return name
  return ''
