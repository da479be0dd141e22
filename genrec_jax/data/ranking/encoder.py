"""Raw rows -> encoded rows, by vocabularies and statistics of the train split.

An encoder is all that serving needs of the data; it is saved as a directory.
"""

import dataclasses
import hashlib
import json
import logging
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax import features as features_lib
from genrec_jax import sealed
from genrec_jax.data.ranking import annotations as annotations_lib
from genrec_jax.data.ranking import (
  cell_values,
  event_lists,
  raw,
  separators,
  transform,
  value_shares,
)
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking import schema as schema_lib
from genrec_jax.data.ranking import vocabulary as vocabulary_lib

# The second number is of data with annotations beside labels and group, so that
# versions that know none do not ignore them.
FORMATS = (1, 2)
# Of values: hashed in their canonical forms, and none in the empty places of
# lists. The rows of other values are those of files without it.
FORMS = 1
LOG = logging.getLogger('genrec_jax')
REMEDY = 'remove the directory and prepare the data again'


class EncoderFit:
  """The first pass: counts values and measures numbers of the train split."""

  def __init__(self, schema: schema_lib.Schema):
    self._schema = schema
    self._counts = {
      c.table_name: vocabulary_lib.ValueCounts()
      for c in schema.coded
      if c.vocabulary == 'fitted'
    }
    self._separators = [
      separators.SeparatorCheck(column) for column in schema.lists
    ]
    self._moments = {
      c.name: transform.Moments()
      for c in schema.columns
      if c.has_numbers and c.transform == 'standardize'
    }

  @property
  def needed(self) -> bool:
    return bool(self._counts or self._moments)

  def add(self, chunk: raw.RawChunk) -> None:
    for check in self._separators:
      check.add(chunk)
    for column in self._schema.columns:
      if column.history:
        continue
      if self._counts_values(column):
        values, _, _ = cell_values.read_values(chunk, column)
        self._counts[column.table_name].add(values)
      elif column.name in self._moments:
        numbers = cell_values.read_numbers(chunk, column)
        self._moments[column.name].add(numbers)
    for columns in self._schema.histories.values():
      for column, lists in event_lists.read_events(chunk, columns):
        if self._counts_values(column):
          self._counts[column.table_name].add(lists.values)
        elif column.name in self._moments:
          numbers = event_lists.read_numbers(chunk, column, lists)
          self._moments[column.name].add(numbers)

  def _counts_values(self, column: schema_lib.Column) -> bool:
    return column.coded and column.vocabulary == 'fitted'

  def encoder(self, reading: Mapping[str, str]) -> 'Encoder':
    vocabularies, statistics = {}, {}
    for check in self._separators:
      check.warn()
    for column in self._schema.coded:
      if column.table_name not in vocabularies:
        # Popped: counts and vocabulary never lie in memory side by side twice.
        counts = self._counts.pop(
          column.table_name, vocabulary_lib.ValueCounts()
        )
        vocabularies[column.table_name] = vocabulary_lib.fit_vocabulary(
          column, counts
        )
    for name, moments in self._moments.items():
      statistics[name] = (moments.mean, moments.deviation)
      if moments.is_constant:
        LOG.warning(
          'feature %r is %.9g in all training rows that have it, so it is 0 '
          'after transform=standardize, and another value becomes its '
          'difference from that; leave the feature out, or bound it by clip '
          '(data.clip)',
          name,
          moments.mean,
        )
    return Encoder(self._schema, vocabularies, statistics, dict(reading))


@dataclasses.dataclass(frozen=True)
class Absent:
  """Which numbers of encoded rows are missing; the rows have 0 for those.

  Attributes:
    numbers: `[N, M]` bool, of `Rows.numbers`.
    events: name of a list of numbers -> lists of bools.
    raw_events: the same name -> the numbers before their transform, which may
      hide that they are below zero.
  """

  numbers: np.ndarray
  events: dict[str, rows_lib.Bags] = dataclasses.field(default_factory=dict)
  raw_events: dict[str, rows_lib.Bags] = dataclasses.field(default_factory=dict)

  def take(self, at: np.ndarray) -> 'Absent':
    """Of the rows number `at [M]`, in that order."""
    events, raw_events = (
      {name: bags.take(at) for name, bags in lists.items()}
      for lists in (self.events, self.raw_events)
    )
    return Absent(self.numbers[at], events, raw_events)


@dataclasses.dataclass(frozen=True)
class Encoder:
  """What turns raw rows into encoded ones.

  Attributes:
    schema: the columns.
    vocabularies: name of a table -> vocabulary.
    statistics: name of a standardized feature -> (mean, deviation).
    reading: 'format' of the raw files and its options, to read more of them.
    drops_empty: whether empty values inside lists take no place; in encoders of
      earlier versions they do.
    value_counts: of the rows that it was made with: split -> feature -> how
      many values there are, missing and unseen; {} where nobody counted.
  """

  schema: schema_lib.Schema
  vocabularies: Mapping[str, vocabulary_lib.Vocabulary]
  statistics: Mapping[str, tuple[float, float]]
  reading: Mapping[str, str]
  drops_empty: bool = True
  value_counts: value_shares.Parts = dataclasses.field(default_factory=dict)

  @property
  def features(self) -> tuple[features_lib.FeatureSpec, ...]:
    return tuple(map(self._feature_spec, self.schema.columns))

  def _feature_spec(
    self, column: schema_lib.Column
  ) -> features_lib.FeatureSpec:
    if not column.coded:
      max_len = column.max_len if column.is_list else 0
      return features_lib.FeatureSpec(
        column.name, column.kind, max_len=max_len, history=column.history
      )
    return features_lib.FeatureSpec(
      column.name,
      column.kind if column.is_list else 'categorical',
      rows=self.vocabularies[column.table_name].rows,
      table=column.table,
      pooling=column.pooling,
      max_len=column.max_len,
      weighted=bool(column.weights),
      history=column.history,
    )

  def encode(
    self,
    chunk: raw.RawChunk,
    groups: dict[str, int] | None = None,
    first: int | None = None,
    absent: Absent | None = None,
  ) -> rows_lib.Rows:
    """Encodes some raw rows.

    Args:
      chunk: the rows, with the columns `schema.sources` at least.
      groups: value -> number of its group, grows as new ones are met; None
        leaves the groups out.
      first: number of the first row, where they have ids by number; None leaves
        such ids out.
      absent: of `make_absent`, is set to which numbers are missing, for a
        `value_tally.Tally` and for `history_checks.HistoryChecks`.

    Returns:
      The rows; without labels and other annotations where `chunk` does not
      have them.
    """
    beside = self.schema.annotations
    labels = [name for name in self.schema.labels if name in chunk.columns]
    ids = np.empty((len(chunk), len(self.schema.single)), np.int32)
    for i, column in enumerate(self.schema.single):
      ids[:, i] = self._encode_column(chunk, column)[0]
    numbers = np.empty((len(chunk), len(self.schema.numeric)), np.float32)
    for i, column in enumerate(self.schema.numeric):
      cells = cell_values.read_numbers(chunk, column)
      if absent is not None and cells.present is not None:
        absent.numbers[:, i] = ~cells.present
      numbers[:, i] = self._transform_numbers(cells, column)
    bags = {}
    for column in self.schema.lists:
      if not column.history:
        coded, lengths, weights = self._encode_column(chunk, column)
        lengths = lengths.astype(np.int32)
        bags[column.name] = rows_lib.Bags(coded, lengths, weights)
    for columns in self.schema.histories.values():
      for column, lists in event_lists.read_events(chunk, columns):
        bags[column.name] = self._encode_events(chunk, column, lists, absent)
    group = None
    if self.schema.group and groups is not None:
      group = annotations_lib.read_groups(chunk, self.schema.group, groups)
    return rows_lib.Rows(
      annotations_lib.read_labels(
        chunk, labels, beside.float_labels, beside.probability_labels
      ),
      ids,
      numbers,
      group,
      bags,
      **annotations_lib.read_annotations(chunk, beside, labels, first),
    )

  def make_absent(self, chunk: raw.RawChunk) -> Absent:
    """What `encode` sets for a chunk: nothing is missing so far."""
    return Absent(np.zeros((len(chunk), len(self.schema.numeric)), bool))

  @property
  def features_only(self) -> 'Encoder':
    """The same for rows of which nothing but the features is read."""
    schema = dataclasses.replace(
      self.schema,
      labels=(),
      group='',
      annotations=annotations_lib.Annotations(),
    )
    return dataclasses.replace(self, schema=schema)

  def _encode_column(
    self, chunk, column
  ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    cells, lengths, weights = cell_values.read_values(
      chunk, column, self.drops_empty
    )
    rows = self._look_up(chunk, column, cells, lengths)
    return rows, lengths, weights

  def _look_up(
    self,
    chunk: raw.RawChunk,
    column: schema_lib.Column,
    cells: raw.Column,
    lengths: np.ndarray | None,
  ) -> np.ndarray:
    """Rows of the values of a feature, which are in lists of `lengths`."""
    try:
      return self.vocabularies[column.table_name].encode(cells)
    except vocabulary_lib.UnseenError as e:
      at = e.at
      if lengths is not None:
        at = int(np.searchsorted(np.cumsum(lengths), at, 'right'))
      raise ValueError(
        f'{chunk.quote_cell(at, column.source, e.value)} is not in the '
        'vocabulary '
        f'of table {column.table_name!r}; mend it, or let unseen values share '
        "a row (data.oov='row')"
      ) from None

  def _encode_events(
    self,
    chunk: raw.RawChunk,
    column: schema_lib.Column,
    lists: raw.ListColumn,
    absent: Absent | None,
  ) -> rows_lib.Bags:
    """A column of a history, one value an event."""
    lengths = lists.lengths.astype(np.int32)
    if column.coded:
      rows = self._look_up(chunk, column, lists.values, lists.lengths)
      return rows_lib.Bags(rows, lengths)
    cells = event_lists.read_numbers(chunk, column, lists)
    if absent is not None:
      there = cells.present
      missing = np.zeros(len(cells), bool) if there is None else ~there
      absent.events[column.name] = rows_lib.Bags(missing, lengths)
      absent.raw_events[column.name] = rows_lib.Bags(cells.values, lengths)
    return rows_lib.Bags(self._transform_numbers(cells, column), lengths)

  def _transform_numbers(
    self, cells: raw.NumberColumn, column: schema_lib.Column
  ) -> np.ndarray:
    return transform.transform_numbers(
      cells,
      column.transform,
      *self.statistics.get(column.name, ()),
      clip=column.clip,
    )

  def fingerprint(self) -> str:
    """A short name of the content: what it makes of a row."""
    content = self._describe_encoder() | {'reading': None}
    content['vocabularies'] = {
      name: v.fingerprint() for name, v in sorted(self.vocabularies.items())
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

  def _describe_encoder(self) -> dict:
    beside = self.schema.annotations.to_json()
    return {
      'format': FORMATS[bool(beside)],
      'columns': [column.to_json() for column in self.schema.columns],
      'labels': list(self.schema.labels),
      'group': self.schema.group,
      **({'annotations': beside} if beside else {}),
      'statistics': {k: list(v) for k, v in self.statistics.items()},
      'reading': dict(self.reading),
    }

  @property
  def _has_forms(self) -> bool:
    """Whether a file must say that it is not of an earlier version."""
    hashes = any(
      v.hash_rows and v.hashes_canonical for v in self.vocabularies.values()
    )
    return hashes or bool(self.schema.lists and self.drops_empty)

  def save(self, directory: str | pathlib.Path) -> None:
    """Writes `encoder.json` and the vocabularies into a directory."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tables = {}
    for i, (name, vocabulary) in enumerate(self.vocabularies.items()):
      file = f'vocabulary-{i}.npz'
      vocabulary.save(directory / file)
      tables[name] = {
        'file': file,
        'oov': vocabulary.oov,
        'hash_rows': vocabulary.hash_rows,
        'fingerprint': vocabulary.fingerprint(),
      }
    meta = self._describe_encoder() | {'tables': tables}
    if self._has_forms:
      meta['forms'] = FORMS
    if self.value_counts:  # no part of what it makes of a row
      meta['value_counts'] = value_shares.to_json(self.value_counts)
    (directory / 'encoder.json').write_text(json.dumps(meta, indent=1))

  @classmethod
  def load(cls, directory: str | pathlib.Path) -> 'Encoder':
    """Reads what `save` wrote, and checks that it is whole."""
    return cls.from_files(sealed.SealedDirectory(directory, REMEDY))

  @classmethod
  def from_files(cls, files: sealed.SealedDirectory) -> 'Encoder':
    """Reads what `save` wrote into a directory that may be sealed."""
    name = 'encoder.json'
    meta = read_json(files, name, 'the encoder', FORMATS)
    with files.explain_damage(name):
      sealed.check_keys(
        meta, tables=dict, columns=list, statistics=dict, reading=dict
      )
      schema = schema_lib.Schema(
        tuple(schema_lib.Column(**c) for c in meta['columns']),
        tuple(meta['labels']),
        meta['group'],
        annotations_lib.Annotations.from_json(meta.get('annotations', {})),
      )
      statistics = {k: tuple(v) for k, v in meta['statistics'].items()}
      counts = value_shares.from_json(meta.get('value_counts', {}))
      if meta.get('forms', FORMS) != FORMS:
        raise ValueError(f'its forms of values are {meta["forms"]!r}')
    vocabularies, has_forms = {}, 'forms' in meta
    for table, entry in meta['tables'].items():
      with files.explain_damage(name):
        file, oov, rows = entry['file'], entry['oov'], entry['hash_rows']
      raw = files.read(file)
      with files.explain_damage(file):
        vocabularies[table] = vocabulary_lib.Vocabulary.from_bytes(
          raw, table, oov, rows, has_forms
        )
        if vocabularies[table].fingerprint() != entry['fingerprint']:
          raise ValueError(f'it is not the vocabulary that {name} speaks of')
    return cls(
      schema, vocabularies, statistics, meta['reading'], has_forms, counts
    )


def read_json(
  files: sealed.SealedDirectory, name: str, what: str, versions: Sequence[int]
) -> dict:
  """A JSON file of ours, or an error that says what is wrong with it."""
  meta = files.read_json(name, format=int)
  if meta['format'] not in versions:
    raise ValueError(
      f'{files.path / name}: {what} is of format {meta["format"]}, this '
      f'version reads {" and ".join(map(str, versions))}; {files.remedy}'
    )
  return meta
