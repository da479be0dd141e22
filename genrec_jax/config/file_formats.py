"""Which reader is for a file, by how its name ends."""

import contextlib
import os
import pathlib

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
  names = [path.name.lower()]
  with contextlib.suppress(OSError):  # which the reader will tell
    if path.is_dir():
      # Below, too: a directory of each split has the files in two of them.
      files = sorted(path.iterdir()) + sorted(path.glob('*/*'))
      names = [p.name.lower() for p in files]
  for name, suffixes in SUFFIXES.items():
    if any(n.endswith(suffixes) for n in names):
      return name
  return ''
