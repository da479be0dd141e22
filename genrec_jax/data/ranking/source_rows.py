"""The rows that prepared data were made of, read once more for their columns.

Blocks hold what a model reads. What says which example a row is, such as the id
of its user as the file has it, is taken from the files, which are those that
were prepared: their sizes and times are part of the name of the data.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax import provenance
from genrec_jax.data.ranking import (
  annotations,
  formats,
  prepare,
  raw,
  split_rules,
  store,
)
from genrec_jax.data.ranking import schema as schema_lib


@dataclasses.dataclass(frozen=True)
class SourceRows:
  """Files, or a generator, and how their rows are divided among the splits.

  Attributes:
    sources: 'train', and maybe 'valid' and 'test' -> their rows.
    schema: of the rows.
    split_rule: cuts splits from the training rows; None cuts nothing.
    reading: format of the files and its options.
    names: the columns of rows that are made, of nothing or of other files;
      files of examples say theirs themselves.
  """

  sources: Mapping[str, prepare.RowSource]
  schema: schema_lib.Schema
  split_rule: split_rules.SplitRule | None
  reading: formats.Reading
  names: Sequence[str] = ()

  def list_columns(self, split: str) -> tuple[list[str], dict]:
    """The columns of a split, and column -> the feature its type suggests.

    Those that some of its files lack are left out.
    """
    source = self._source(split)
    # Rows may be made of files that do not have their columns.
    if self.reading['format'] not in formats.FORMATS:
      return list(self.names), {}
    file_format = formats.find_format(self.reading['format'])
    first, *others = source.files
    names = file_format.read_names(first, self.reading)
    for path in others:
      there = {*file_format.read_names(path, self.reading)}
      names = [name for name in names if name in there]
    if file_format.BARE:
      return names, {}
    features = file_format.default_features(first, self.reading)
    return names, {name: features[name] for name in names if name in features}

  def read_split(
    self, split: str, columns: Sequence[str], log: Callable[[str], None]
  ) -> Iterator[raw.RawChunk]:
    """The rows of a split, in its order.

    Args:
      split: one of `store.SPLITS`.
      columns: those that are read, at least.
      log: called with progress messages.
    """
    source, progress = self._source(split), prepare.Progress(log)
    cut = None
    if source is self.sources['train']:
      cut = prepare.measure_cut(
        self.schema, source, self.split_rule, progress, lambda _: None
      )
    number = store.SPLITS.index(split)
    what = f'reading the columns of the {split} split'
    progress.start()
    for chunk, numbers in prepare.cut_chunks(
      source, columns, cut, progress, what
    ):
      yield chunk if numbers is None else chunk.take(numbers == number)

  def describe_order(self, split: str) -> str:
    """Which rows those of a split are, in which order."""
    source = self._source(split)
    name = provenance.mask_secrets(source.name)
    if source is self.sources['train']:
      return f'the rows of {name} that are the {split} split, in their order'
    return f'the rows of {name}, in their order'

  def _source(self, split: str) -> prepare.RowSource:
    return self.sources.get(split, self.sources['train'])


@dataclasses.dataclass(frozen=True)
class StoredRows:
  """The columns that the blocks hold as they were, where there are no files.

  Attributes:
    store: the prepared data.
  """

  store: store.PreparedStore

  def list_columns(self, split: str) -> tuple[list[str], dict]:
    """As of `SourceRows`."""
    return list(self._find_columns()), {}

  def read_split(
    self, split: str, columns: Sequence[str], log: Callable[[str], None]
  ) -> Iterator[raw.RawChunk]:
    """As of `SourceRows`."""
    fields = self._find_columns()
    for rows in self.store.splits[split]:
      values = {name: _take(rows, fields[name]) for name in columns}
      yield raw.RawChunk(values, len(rows))

  def describe_order(self, split: str) -> str:
    """As of `SourceRows`."""
    return f'the rows of the {split} split of {self.store.directory}'

  def _find_columns(self) -> dict[str, str]:
    """Column -> where `rows.Rows` has it."""
    beside = self.store.encoder.schema.annotations
    columns = {beside.time: 'time'}
    if beside.example_id != annotations.ROW:
      columns[beside.example_id] = 'example_id'
    return {name: field for name, field in columns.items() if name}


def _take(rows, field: str) -> raw.NumberColumn:
  return raw.NumberColumn(np.asarray(getattr(rows, field)))
