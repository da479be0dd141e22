"""Which reader is for a file of the user's."""

import os

from genrec_jax.config.file_formats import SUFFIXES, guess_format
from genrec_jax.data import remote_files


def format_of(path: str | os.PathLike) -> str:
  """'csv' or 'parquet', of a file or of the files in a directory.

  >>> format_of('logs/events.csv.gz')
  'csv'
  >>> format_of('EVENTS.CSV')
  'csv'

  Raises:
    ValueError: by its suffix it is neither.
  """
  if name := guess_format(remote_files.locate(path)):
    return name
  suffixes = ', '.join(s for group in SUFFIXES.values() for s in group)
  raise ValueError(
    f'{path}: by its suffix this is not a table that can be read; those are '
    f'{suffixes}; save it as CSV or Parquet'
  )
