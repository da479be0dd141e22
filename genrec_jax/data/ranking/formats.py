"""The raw file formats, each as three functions of a path."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from genrec_jax.config.loading import nearest
from genrec_jax.data.ranking import csv_files, raw

Reading = Mapping[str, str]  # 'format' and its options


@dataclasses.dataclass(frozen=True)
class Format:
  """How files of one kind are read.

  Attributes:
    names: the columns of a file, in order.
    chunks: the rows of a file, the wanted columns alone.
    defaults: feature -> options, as the file itself suggests them.
    suffixes: of the files in a directory.
  """

  names: Callable[[pathlib.Path, Reading], list[str]]
  chunks: Callable[[pathlib.Path, Sequence[str], Reading], Iterator[raw.Chunk]]
  defaults: Callable[[pathlib.Path, Reading], dict[str, dict]]
  suffixes: tuple[str, ...]


def _csv_names(path, reading) -> list[str]:
  return csv_files.names(path, reading['delimiter'])


FORMATS = {
  'csv': Format(
    _csv_names,
    lambda path, wanted, reading: csv_files.chunks(
      path, wanted, reading['delimiter']
    ),
    lambda path, reading: {
      name: {'kind': 'categorical'} for name in _csv_names(path, reading)
    },
    ('.csv', '.csv.gz', '.tsv', '.tsv.gz'),
  ),
}


def find(name: str) -> Format:
  """The format of that name."""
  if name not in FORMATS:
    raise ValueError(
      f'{name!r} is no file format; those are {", ".join(FORMATS)}'
      + nearest(name, FORMATS)
    )
  return FORMATS[name]


def chunks(
  paths: Sequence[str | pathlib.Path],
  wanted: Sequence[str],
  reading: Reading,
) -> Iterator[raw.Chunk]:
  """The rows of some files, one behind the other."""
  form = find(reading['format'])
  for path in paths:
    yield from form.chunks(pathlib.Path(path), wanted, reading)
