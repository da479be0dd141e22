"""The raw file formats, a module each.

Such a module has

  read_names(path, reading)            the columns of a file, in order
  read_chunks(path, columns, reading)  its rows, only those columns
  default_features(path, reading)      feature -> options, as the file suggests;
                                       None for a column of no feature
  SUFFIXES                             of the files in a directory
  BARE                                 whether files have no columns but labels
                                       and features

where `reading` is a format and its options.
"""

import difflib
import pathlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import csv_layout, text
from genrec_jax.data.quoting import list_names
from genrec_jax.data.ranking import (
  criteo,
  csv_files,
  feature_guesses,
  libsvm,
  raw,
)
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import schema as schema_lib

Reading = Mapping[str, str]  # 'format' and its options

FORMATS = {
  'csv': csv_files,
  'frappe': csv_files,
  'criteo': criteo,
  'libsvm': libsvm,
  'parquet': None,  # its module needs pyarrow, so `find_format` imports it
}


def find_format(name: str) -> types.ModuleType:
  """The module of that format."""
  if name not in FORMATS:
    raise ValueError(
      f'{name!r} is not a file format; those are {", ".join(FORMATS)}'
      + hint_nearest(name, FORMATS)
    )
  if name == 'parquet':
    from genrec_jax.data.ranking import parquet_files

    return parquet_files
  return FORMATS[name]


def settle_reading(
  cfg: Mapping, path: pathlib.Path, log: Callable[[str], None]
) -> dict[str, str]:
  """The format of `config.data` and its options, as the first file decides.

  Args:
    cfg: `config.data`.
    path: the file.
    log: called with what the file has decided.
  """
  reading = {'format': cfg['name'], 'delimiter': cfg.get('delimiter', '')}
  if cfg.get('time', ''):
    reading['time'] = cfg['time']  # a Parquet file may hold it as a timestamp
  if find_format(cfg['name']) is csv_files:
    wanted = schema_lib.list_columns(cfg)
    header = cfg.get('header', 'auto')
    if (decimal := cfg.get('decimal', '.')) != '.':
      reading['decimal'] = decimal
    return csv_files.settle_layout(path, reading, wanted, header, log)
  reading['delimiter'] = reading['delimiter'] or ','  # which nothing reads
  return reading


def guess_features(
  path: pathlib.Path,
  reading: Reading,
  labels: Collection[str],
  beside: Collection[str] = (),
) -> dict[str, feature_guesses.Guess]:
  """What each column of a file seems to be, see `feature_guesses`.

  Args:
    path: the file.
    reading: its format and the options of that.
    labels: columns of labels.
    beside: columns that are something else than features.
  """
  file_format = find_format(reading['format'])
  by_type = {
    name: options
    for name, options in file_format.default_features(path, reading).items()
    if name not in labels and name not in beside
  }
  if file_format.BARE:  # its defaults look at the rows themselves
    return {
      name: feature_guesses.Guess(options, f'a column of {reading["format"]}')
      for name, options in by_type.items()
    }
  known = file_format.read_names(path, reading)
  labels = [name for name in labels if name in known]
  wanted = [*labels, *(name for name, x in by_type.items() if x)]
  chunks = file_format.read_chunks(path, wanted, reading)
  return feature_guesses.guess_features(chunks, by_type, labels)


def hint_label(path: pathlib.Path, reading: Reading, label: str) -> str:
  """What may be meant by a label that a file has no column for, or ''."""
  file_format = find_format(reading['format'])
  by_type = file_format.default_features(path, reading)
  if csv_layout.looks_like_data(list(by_type)):  # there is no header
    return csv_layout.hint_column(label, list(by_type))
  wanted = [name for name, options in by_type.items() if options]
  rows = next(file_format.read_chunks(path, wanted, reading), None)
  flags = feature_guesses.find_flags(rows) if rows else []
  if not flags:
    return csv_layout.hint_column(label, list(by_type))
  nearest, *others = sorted(
    flags,
    key=lambda name: difflib.SequenceMatcher(None, label, name).ratio(),
    reverse=True,
  )
  return (
    f'; did you mean {nearest!r} (--config.data.labels={nearest})'
    + (f', or {list_names(others)}' if others else '')
    + '?'
  )


def read_files(
  paths: Sequence[str | pathlib.Path],
  column_names: Sequence[str],
  reading: Reading,
) -> Iterator[raw.RawChunk]:
  """The rows of some files, one behind the other."""
  file_format = find_format(reading['format'])
  for path in map(text.require_file, paths):
    empty = True
    with text.explain_memory(path):
      for chunk in file_format.read_chunks(path, column_names, reading):
        empty = False
        yield chunk
    if empty:
      raise ValueError(f'{path}: the file holds no rows')


def settle_examples(
  encoder: encoder_lib.Encoder, path: pathlib.Path, name: str = ''
) -> dict[str, str]:
  """The format of a file of examples and its options.

  Args:
    encoder: of the training data.
    path: the file.
    name: of its format; '' goes by the suffix '.parquet', and is otherwise that
      of the training data.
  """
  reading = {'delimiter': ',', **encoder.reading}
  name = name or name_by_suffix(path, encoder.reading.get('format', ''))
  reading['format'] = name
  if find_format(reading['format']) is csv_files and 'columns' not in reading:
    # The delimiter may be another one than that of the training files.
    usual = {'wanted': encoder.schema.sources, 'usual': reading['delimiter']}
    layout = csv_layout.find_layout(path, header='yes', **usual)
    reading['delimiter'] = layout.delimiter
  return reading


def read_examples(
  encoder: encoder_lib.Encoder,
  path: str | pathlib.Path,
  name: str = '',
  choose: Callable[..., Sequence[str]] = lambda columns, by_type: (),
) -> Iterator[raw.RawChunk]:
  """Rows of a file to be encoded; labels and annotations where it has them.

  Args:
    encoder: of the training data.
    path: the file.
    name: of its format; '' goes by the suffix '.parquet', and is otherwise that
      of the training data.
    choose: its columns, and column -> the feature that its type suggests -> the
      columns that are read in any case.
  """
  path, schema = text.require_file(path), encoder.schema
  reading = settle_examples(encoder, path, name)
  file_format = find_format(reading['format'])
  columns = file_format.read_names(path, reading)
  by_type = {}
  if not file_format.BARE:
    by_type = file_format.default_features(path, reading)
  beside = [*schema.labels, *schema.annotations.columns.values()]
  column_names = [
    *schema.sources,
    *(name for name in beside if name in columns),
    *choose(columns, by_type),
  ]
  return read_files([path], list(dict.fromkeys(column_names)), reading)


# Data sets in which no text can be, or none that has examples in its lines.
_TEXTLESS = (
  '', 'parquet', 'clicks', 'drift', 'interests', 'movielens_clicks',
  'movielens_ratings', 'taobao',
)  # fmt: skip


def name_by_suffix(path: pathlib.Path, trained: str) -> str:
  """The format of a table; `trained` is that of training, '' for none."""
  if path.suffix.lower() == '.parquet':
    return 'parquet'
  is_text = path.name.lower().endswith(csv_files.SUFFIXES)
  return 'csv' if is_text and trained in _TEXTLESS else trained
