"""A growing directory of labelled rows -> an endless stream of batches.

A part is a file of rows as the base data have them, encoded as these are: by
their vocabularies, their statistics and their annotations. Its rows keep their
order, and its last batch is filled up with examples of weight 0. See
`genrec_jax.data.growing` for how parts follow each other.
"""

import dataclasses
import logging
import os
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence

import grain
import numpy as np

from genrec_jax import features
from genrec_jax.data import growing, pipeline, text
from genrec_jax.data.ranking import (
  annotations,
  formats,
  split_rules,
  unseen_draws,
  value_shares,
  value_tally,
)
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.data.ranking.collation import collate_rows

LOG = logging.getLogger('genrec_jax')
_GROUPS = 1 << 31  # numbers that a group may have
_FEW_VALUES = 100  # say nothing
_MANY_UNSEEN = 0.8  # of the values of a part, of which a run warns


@dataclasses.dataclass(frozen=True)
class _Part:
  """A `growing.Part`: the encoded rows of a file, None where it has none."""

  stamp: growing.Stamp
  name: str
  rows: rows_lib.Rows | None
  loader: '_Loader'

  def __len__(self) -> int:
    return 0 if self.rows is None else len(self.rows)

  def make_batch(self, start: int, stop: int) -> features.Examples:
    loader = self.loader
    rows = self.rows.slice_rows(start, stop)
    if loader.unseen:
      # A number that a restart and another mesh find again: of the part and,
      # within it, of the batch.
      number = start // loader.batch_size
      rows = loader.unseen.apply(rows, _number_part(self.name) + number)
    return collate_rows(
      rows,
      loader.encoder.schema.names,
      batch_size=loader.batch_size,
      shards=loader.shards,
      capacities=loader.capacities,
    )


@dataclasses.dataclass(frozen=True)
class _Loader:
  """How a part is read, and what is made of it."""

  encoder: encoder_lib.Encoder
  batch_size: int
  shards: int
  capacities: Mapping[str, int]
  unseen: unseen_draws.UnseenDraws | None
  log: Callable[[str], None]
  check: Callable[[Mapping[str, np.ndarray], str], None] | None = None
  warned: set[str] = dataclasses.field(default_factory=set)

  def load(self, path: pathlib.Path) -> _Part:
    tally = value_tally.Tally(self.encoder)
    rows, stamp = growing.read_stamped(
      path, lambda path: self._read_rows(path, tally)
    )
    part = _Part(stamp, path.name, rows, self)
    left = tally.rows - len(part)
    self.log(
      f'stream: {path.name}: {len(part):,} examples'
      + f', {left:,} negatives left out' * (left > 0)
    )
    line = value_shares.describe_part(path.name, tally.counts())
    if line:
      self.log(f'stream: {line}')
    self._warn_of_unseen(path, tally)
    return part

  def _warn_of_unseen(
    self, path: pathlib.Path, tally: value_tally.Tally
  ) -> None:
    """Warns once of a feature of which most values are unseen."""
    for name, counts in tally.counts().items():
      unseen = (counts.unseen or 0) / max(1, counts.values)
      few = counts.values < _FEW_VALUES or unseen <= _MANY_UNSEEN
      if few or name in self.warned:
        continue
      self.warned.add(name)
      LOG.warning(
        '%s: %.0f%% of the values of %r are unseen, of those of the base data '
        'none: are they written as there? A model learns nothing of them.',
        path, 100 * unseen, name,
      )  # fmt: skip

  def _read_rows(
    self, path: pathlib.Path, tally: value_tally.Tally
  ) -> rows_lib.Rows | None:
    """All rows of a file that are learned from, encoded."""
    encoder = self.encoder
    schema = encoder.schema
    reading = formats.settle_examples(encoder, path)
    file_format = formats.find_format(reading['format'])
    # Which negatives are left out depends on the part and the row alone.
    cut = split_rules.TrainingCut(None, schema.labels, schema.annotations)
    groups, done, pieces = {}, _number_part(path.name), []
    with text.explain_memory(path):
      chunks = file_format.read_chunks(path, schema.everything, reading)
      for chunk in chunks:
        absent = encoder.make_absent(chunk)
        rows = encoder.encode(chunk, groups, absent=absent)
        tally.add(chunk, rows, absent)
        if cut:
          rows = rows.take(np.flatnonzero(cut.assign(chunk, done) == 0))
        done += len(chunk)
        pieces.append(rows)
    if not pieces:
      return None
    rows = rows_lib.concatenate_rows(pieces)
    if self.check is not None:
      self.check(rows.extras, str(path))
    if rows.group is None:
      return rows
    numbers = number_groups(list(groups))
    return dataclasses.replace(rows, group=numbers[rows.group])


def _number_part(name: str) -> int:
  """Where the numbers of the rows, or the batches, of a part begin."""
  return (zlib.crc32(name.encode()) >> 1) << 32


def number_groups(values: Sequence[str]) -> np.ndarray:
  """`[G]` int32 numbers of groups, the same in every part.

  A number is a hash of the value, so that nothing is remembered of earlier
  parts; values of one part never share a number.

  >>> number_groups(['ann', 'ben'])[::-1] == number_groups(['ben', 'ann'])
  array([ True,  True])
  """
  numbers, seen = np.empty(len(values), np.int32), set()
  for i, value in enumerate(values):
    number = zlib.crc32(value.encode()) % _GROUPS
    while number in seen:
      number = (number + 1) % _GROUPS
    seen.add(number)
    numbers[i] = number
  return numbers


def stream_batches(
  directory: str | os.PathLike,
  pattern: str = '*.csv',
  *,
  encoder: encoder_lib.Encoder,
  batch_size: int,
  unseen: unseen_draws.UnseenDraws | None = None,
  capacities: Mapping[str, int] | None = None,
  poll_s: float = 1.0,
  idle_s: float | None = None,
  stop: Callable[[], bool] = lambda: False,
  log: Callable[[str], None] = print,
  shards: int = 1,
  own: range | None = None,
  check: Callable[[Mapping[str, np.ndarray], str], None] | None = None,
) -> grain.IterDataset:
  """Batches of the parts of a directory, for as long as parts appear.

  Args:
    directory: where the parts appear.
    pattern: which files are parts; those that end in '.parquet' are read as
      Parquet, others in the format of the base data, or as CSV.
    encoder: of the base data; parts have all the columns that it reads.
    batch_size: B; the last batch of a part is filled up with examples of weight
      0.
    unseen: which values are read as unseen; None for none.
    capacities: ids of each list feature, see `collate_rows`.
    poll_s: seconds between two looks into the directory.
    idle_s: the stream ends after so many seconds without a new part; None waits
      for ever.
    stop: asked while waiting; True ends the stream.
    log: called with messages about each file.
    shards: W, see `collate_rows`.
    own: all shards, or None for that; several processes are refused.
    check: told the extra columns of each part and its name; None for none.

  Returns:
    A dataset of `Examples`, whose iterators save and restore their state, which
    `part_place.locate_part` reads.
  """
  pipeline.share_of(batch_size, shards, 'train.batch_size')
  growing.refuse_processes(directory, own, shards)
  refuse_row_numbers(encoder.schema.annotations.example_id)
  loader = _Loader(
    encoder, batch_size, shards, dict(capacities or {}), unseen, log, check
  )
  return growing.GrowingBatches(
    directory,
    pattern,
    loader.load,
    batch_size=batch_size,
    poll_s=poll_s,
    idle_s=idle_s,
    stop=stop,
    tells_ends=True,
    log=log,
  )


def refuse_row_numbers(example_id: str) -> None:
  """Refuses ids that are numbers of rows, which parts to come do not have."""
  if example_id == annotations.ROW:
    raise ValueError(
      f"data.example_id='{annotations.ROW}' numbers the rows of files that are "
      'all there, and data.stream.directory names a growing directory: name a '
      "column of ids in data.example_id, or set it to ''"
    )
