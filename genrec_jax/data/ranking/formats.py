"""The raw file formats, each as three functions of a path."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text
from genrec_jax.data.ranking import (
  criteo,
  csv_files,
  libsvm,
  parquet_files,
  raw,
)
from genrec_jax.data.ranking import encoder as encoder_lib

Reading = Mapping[str, str]  # 'format' and its options


@dataclasses.dataclass(frozen=True)
class FileFormat:
  """How files of one kind are read.

  Attributes:
    names: the columns of a file, in order.
    chunks: the rows of a file, the wanted columns alone.
    defaults: feature -> options, as the file itself suggests them.
    suffixes: of the files in a directory.
    bare: files have no columns but labels and features.
  """

  names: Callable[[pathlib.Path, Reading], list[str]]
  chunks: Callable[
    [pathlib.Path, Sequence[str], Reading], Iterator[raw.RawChunk]
  ]
  defaults: Callable[[pathlib.Path, Reading], dict[str, dict]]
  suffixes: tuple[str, ...]
  bare: bool = False


def _csv_names(path, reading) -> list[str]:
  return csv_files.names(path, reading['delimiter'])


def _csv_chunks(path, wanted, reading) -> Iterator[raw.RawChunk]:
  return csv_files.chunks(path, wanted, reading['delimiter'])


def _csv_defaults(path, reading) -> dict[str, dict]:
  return {n: {'kind': 'categorical'} for n in _csv_names(path, reading)}


_CSV = FileFormat(
  _csv_names,
  _csv_chunks,
  _csv_defaults,
  ('.csv', '.csv.gz', '.tsv', '.tsv.gz'),
)

FORMATS = {
  'csv': _CSV,
  'frappe': _CSV,
  'criteo': FileFormat(
    lambda path, reading: criteo.names(path),
    lambda path, wanted, reading: criteo.chunks(path, wanted),
    lambda path, reading: criteo.defaults(),
    ('.txt', '.txt.gz', '.tsv', '.tsv.gz'),
    bare=True,
  ),
  'libsvm': FileFormat(
    lambda path, reading: libsvm.names(path),
    lambda path, wanted, reading: libsvm.chunks(path, wanted),
    lambda path, reading: libsvm.defaults(path),
    ('.libsvm', '.libfm', '.svm', '.txt'),
    bare=True,
  ),
  'parquet': FileFormat(
    lambda path, reading: parquet_files.names(path),
    lambda path, wanted, reading: parquet_files.chunks(
      path, wanted, reading.get('time', '')
    ),
    lambda path, reading: parquet_files.defaults(path),
    ('.parquet',),
  ),
}


def find(name: str) -> FileFormat:
  """The format of that name."""
  if name not in FORMATS:
    raise ValueError(
      f'{name!r} is no file format; those are {", ".join(FORMATS)}'
      + hint_nearest(name, FORMATS)
    )
  return FORMATS[name]


def chunks(
  paths: Sequence[str | pathlib.Path],
  wanted: Sequence[str],
  reading: Reading,
) -> Iterator[raw.RawChunk]:
  """The rows of some files, one behind the other."""
  form = find(reading['format'])
  for path in paths:
    empty = True
    for chunk in form.chunks(pathlib.Path(path), wanted, reading):
      empty = False
      yield chunk
    if empty:
      raise ValueError(f'{path}: the file holds no rows')


def examples(
  encoder: encoder_lib.Encoder, path: str | pathlib.Path, name: str = ''
) -> Iterator[raw.RawChunk]:
  """Rows of a file to be encoded; labels and annotations where it has them.

  Args:
    encoder: of the training data.
    path: the file.
    name: of its format; '' is that of the training data.
  """
  reading = {'delimiter': ',', **encoder.reading}
  reading['format'] = name or encoder.reading.get('format', '')
  path = text.require_file(path)
  columns = find(reading['format']).names(path, reading)
  schema = encoder.schema
  beside = [*schema.labels, *schema.annotations.columns.values()]
  wanted = [*schema.sources, *(name for name in beside if name in columns)]
  return chunks([path], list(dict.fromkeys(wanted)), reading)
