"""Which reader is for a file of the user's."""

import os

from genrec_jax.data import remote_files

_SUFFIXES = {
  'csv': ('.csv', '.csv.gz', '.tsv', '.tsv.gz'),
  'parquet': ('.parquet',),
}


def format_of(path: str | os.PathLike) -> str:
  """'csv' or 'parquet', of a file or of the files in a directory.

  >>> format_of('logs/events.csv.gz')
  'csv'
  >>> format_of('EVENTS.CSV')
  'csv'

  Raises:
    ValueError: by its suffix it is neither.
  """
  path = remote_files.locate(path)
  names = [path.name.lower()]
  if path.is_dir():
    # Below, too: a directory of each split has the files in two of them.
    files = [*sorted(path.iterdir()), *sorted(path.glob('*/*'))]
    names = [p.name.lower() for p in files]
  for name, suffixes in _SUFFIXES.items():
    if any(n.endswith(suffixes) for n in names):
      return name
  suffixes = ', '.join(s for group in _SUFFIXES.values() for s in group)
  raise ValueError(
    f'{path}: by its suffix this is not a table that can be read; those are '
    f'{suffixes}'
  )
