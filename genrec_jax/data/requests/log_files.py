"""The files of a log of one's own: columns by name, values as numbers."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.config.file_formats import SUFFIXES, guess_format
from genrec_jax.config.request_sets import LogOptions
from genrec_jax.data import csv_layout, remote_files, source_files, text_arrays
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import formats, forms, raw
from genrec_jax.data.requests import rows
from genrec_jax.data.requests.conditions import list_texts, refuse_lists


@dataclasses.dataclass(frozen=True)
class LogFiles:
  """Files that are read one behind the other, as one table.

  Attributes:
    readings: path -> format and options, see `ranking.formats`.
  """

  readings: Mapping[object, Mapping[str, str]]

  @property
  def paths(self) -> list:
    return list(self.readings)

  def read(self, columns: Sequence[str]) -> Iterator[raw.RawChunk]:
    """Some rows at a time, those columns alone."""
    for path, reading in self.readings.items():
      yield from formats.read_files([path], columns, reading)


def open_files(
  path: str,
  key: str,
  wanted: Mapping[str, str],
  options: LogOptions,
  format_: str = '',
) -> LogFiles:
  """Looks at the columns of a file, or of those of a directory.

  Args:
    path: of the file or the directory.
    key: of the config, which says the path.
    wanted: column -> key of the config, which names it.
    options: of the log.
    format_: 'csv' or 'parquet'; '' goes by the names of the files.

  Raises:
    ValueError: a column is missing; the message says which key names it.
  """
  format_ = format_ or guess_format(remote_files.locate(path))
  if format_ not in SUFFIXES:
    raise ValueError(
      f'{path} ({key}): neither .csv nor .parquet; give a CSV or Parquet file, '
      'or a directory of some'
    )
  paths = source_files.list_files(path, SUFFIXES[format_], key)
  # There are no keys by which a column could be left out.
  reading = {'format': format_, 'delimiter': '', 'otherwise': ''}
  readings = {one: reading for one in paths}
  if format_ == 'csv':
    readings = _settle_layouts(paths, list(wanted), reading, options)
  for one, reading in readings.items():
    names = formats.find_format(format_).read_names(one, reading)
    for name, of in wanted.items():
      if name not in names:
        raise ValueError(
          f'{one}: no column {name!r}, which {of} names; the columns are '
          f'{list_names(names)}{csv_layout.hint_column(name, names)}'
        )
  return LogFiles(readings)


def _settle_layouts(paths, wanted, reading, options: LogOptions) -> dict:
  layouts = csv_layout.find_layouts(
    paths, wanted, options.delimiter, options.header
  )
  readings = {}
  for path, layout in zip(paths, layouts, strict=True):
    found = reading | {'delimiter': layout.delimiter}
    if not layout.has_header:
      found['columns'] = len(layout.names)
    if options.decimal != '.':
      found['decimal'] = options.decimal
    readings[path] = found
  return readings


class Codes(dict):
  """Numbers texts 1, 2, ... in the order in which they are met; '' is 0.

  A text is looked up as it stands in the file, and 7.0 has the number of 7.

  Attributes:
    texts: by their numbers.
  """

  def __init__(self):
    super().__init__()
    self.texts = ['']
    self._numbers = {'': 0}

  def __missing__(self, written: str) -> int:
    text = forms.canonicalize(written)
    if text not in self._numbers:
      self._numbers[text] = len(self.texts)
      self.texts.append(text)
    number = self[written] = self._numbers[text]
    return number

  def find(self, text: str) -> int | None:
    """The number of a canonical text; None of one that was not met."""
    return self._numbers.get(text)

  def encode(self, chunk: raw.RawChunk, name: str) -> np.ndarray:
    """Numbers `[N]` int32 of a column of some rows."""
    column, met = refuse_lists(chunk, name), len(self.texts)
    if isinstance(column, raw.NumberColumn):
      column = column.list_texts()
    codes = np.fromiter(map(self.__getitem__, column), np.int32, len(column))
    longest = max(map(len, self.texts[met:]), default=0)
    if longest > text_arrays.LONGEST_ID:
      lengths = text_arrays.measure(column)
      at = int(np.argmax(lengths))
      raise ValueError(
        f'{chunk.where(at)}, column {name!r}: {lengths[at]:,} characters, more '
        f'than {text_arrays.LONGEST_ID:,}; mend or remove the row'
      )
    return codes

  def list_ids(self) -> np.ndarray:
    """`[V]` the texts but for '', as int64 where all are whole numbers."""
    ids, good = vocab_lib.parse_ints(self.texts[1:])
    return ids if good.all() else text_arrays.make_text_array(self.texts[1:])

  def make_vocab(
    self, counts: np.ndarray, min_count: int = 1
  ) -> tuple[vocab_lib.Vocab, np.ndarray]:
    """The vocabulary of what occurs often enough, and each number's row.

    Args:
      counts: `[V + 1]` how often training has each number.
      min_count: how often it must, at least.

    Returns:
      The vocabulary, and `[V + 1]` int32 rows, as `rows.encode_rows` gives.
    """
    ids = self.list_ids()
    known = np.sort(ids[counts[1:] >= max(min_count, 1)])
    vocab = vocab_lib.Vocab(known)
    encoded = rows.encode_rows(vocab, ids)
    return vocab, np.concatenate([np.zeros(1, np.int32), encoded])


@dataclasses.dataclass(frozen=True)
class FeatureTable:
  """What a file says of items or of users.

  Attributes:
    name: of the file, for messages.
    places: canonical id -> its number.
    codes: column -> the texts that it has.
    columns: column -> their number in each place.
  """

  name: str
  places: Mapping[str, int]
  codes: Mapping[str, Codes]
  columns: Mapping[str, np.ndarray]

  def select(self, ids: Sequence[str]) -> tuple[dict[str, np.ndarray], list]:
    """Column -> `[V]` numbers for ids, 0 for those without a place.

    Returns:
      The columns, and which ids have no place.
    """
    at = np.array([self.places.get(x, -1) for x in ids], np.int64)
    missing = [x for x, place in zip(ids, at, strict=True) if place < 0]
    columns = {}
    for name, codes in self.columns.items():
      found = codes[at] if len(codes) else np.zeros(len(at), np.int32)
      columns[name] = np.where(at < 0, 0, found).astype(np.int32)
    return columns, missing


def read_table(
  files: LogFiles, name: str, id_column: str, columns: Sequence[str]
) -> FeatureTable:
  """Reads the features of items or of users.

  Args:
    files: that hold them.
    name: of the files, for messages.
    id_column: with the id.
    columns: the features.
  """
  places, where = {}, []
  codes = {column: Codes() for column in columns}
  parts = {column: [] for column in columns}
  wanted = list(dict.fromkeys([id_column, *columns]))
  for chunk in files.read(wanted):
    for i, one in enumerate(list_texts(chunk, id_column)):
      if not one:
        raise ValueError(
          f'{chunk.where(i)}, column {id_column!r}: the cell is empty; fill in '
          'whose features these are, or remove the row'
        )
      if one in places:
        raise ValueError(
          f'{chunk.where(i)}: {quote(one)} already stands in '
          f'{where[places[one]]}; remove one of the rows'
        )
      places[one] = len(where)
      where.append(chunk.where(i))
    for column in columns:
      parts[column].append(codes[column].encode(chunk, column))
  return FeatureTable(
    name, places, codes, {x: np.concatenate(some) for x, some in parts.items()}
  )
