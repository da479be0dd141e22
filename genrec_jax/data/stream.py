"""A growing directory of part files of events -> an endless stream of batches.

See growing.py, which says how the parts of a directory follow each other. A
part is read whole and grouped by user; a user's sequence begins anew in every
part.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import grain
import numpy as np

from genrec_jax.data import extras as extras_lib
from genrec_jax.data import (
  fields,
  growing,
  pipeline,
  readers,
  splits,
  text_arrays,
)
from genrec_jax.data import histories as histories_lib
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.growing import KEPT_PARTS

STEPS = 2  # of capacities an octave: small parts are of all sizes
_Directory = growing.PartDirectory  # the name that its test knows


@dataclasses.dataclass(frozen=True)
class _Part:
  """A `growing.Part`: the histories of a file, and how they are cut."""

  stamp: growing.Stamp
  histories: histories_lib.Histories
  examples: splits.ExampleSpans
  collation: Mapping

  def __len__(self) -> int:
    return len(self.examples)

  def make_batch(self, start: int, stop: int):
    return pipeline.collate_examples(
      self.histories,
      self.examples,
      np.arange(start, stop),
      capacity=lambda tokens: pipeline.capacity_for(tokens, STEPS),
      **self.collation,
    )


@dataclasses.dataclass(frozen=True)
class _Loader:
  """How a part is read, and what is made of it."""

  read: Callable[[pathlib.Path], object]
  item_vocab: vocab_lib.Vocab
  extra_vocabs: Mapping[str, vocab_lib.Vocab]
  unknown: str
  log: Callable[[str], None]
  collation: Mapping  # options of `collate_examples`

  def load(self, path: pathlib.Path) -> _Part:
    chunks, stamp = growing.read_stamped(path, self._read_chunks)
    histories = self._group_chunks(chunks)
    read, kept = sum(map(len, chunks)), len(histories.items)
    examples = splits.keep_whole(
      histories, windows='all', max_len=self.collation['max_len']
    )
    self.log(
      f'stream: {path.name}: {read:,} events of {len(histories):,} users'
      + (f', {read - kept:,} of unknown items skipped' * (read > kept))
    )
    return _Part(stamp, histories, examples, self.collation)

  def _read_chunks(self, path: pathlib.Path) -> list:
    try:
      return list(self.read(path))
    except readers.EmptyFileError:
      return []

  def _group_chunks(self, chunks) -> histories_lib.Histories:
    def join_column(name):
      return text_arrays.concatenate([getattr(c, name) for c in chunks])

    if not chunks:
      return histories_lib.from_arrays([], [], item_vocab=self.item_vocab)
    times = None
    if chunks[0].time is not None:
      times = fields.join_times(
        [fields.Times(c.time, c.fraction) for c in chunks]
      )
    return histories_lib.from_arrays(
      join_column('user'),
      join_column('item'),
      times,
      item_vocab=self.item_vocab,
      unknown=self.unknown,
      extras={
        name: text_arrays.concatenate([c.extras[name] for c in chunks])
        for name in chunks[0].extras
      },
      extra_vocabs=self.extra_vocabs,
    )


def stream_batches(
  directory: str | os.PathLike,
  pattern: str = '*.csv',
  *,
  columns: Mapping[str, str],
  item_vocab: vocab_lib.Vocab,
  batch_size: int,
  max_len: int,
  unknown: str = 'skip',
  ids: str = 'auto',
  delimiter: str = '',
  header: str = 'auto',
  decimal: str = '.',
  time_unit: str = 's',
  extras: Sequence[extras_lib.ExtraColumn] = (),
  extra_vocabs: Mapping[str, vocab_lib.Vocab] | None = None,
  poll_s: float = 1.0,
  idle_s: float | None = None,
  stop: Callable[[], bool] = lambda: False,
  log: Callable[[str], None] = print,
  shards: int = 1,
  own: range | None = None,
  tells_ends: bool = False,
) -> grain.IterDataset:
  """Batches of the parts of a directory, for as long as parts appear.

  Args:
    directory: where the parts appear.
    pattern: which files are parts; those that end in '.parquet' are read as
      Parquet, all others as CSV.
    columns: names of the columns, see `readers.read_csv`.
    item_vocab: the items.
    batch_size: B; the last batch of a part is filled up with empty sequences.
    max_len: most tokens of a sequence; longer ones become several.
    unknown: an item that `item_vocab` lacks: 'skip' its event, or 'error'.
    ids: see `readers.read_csv`.
    delimiter: of CSV, see `readers.read_csv`.
    header: likewise.
    decimal: likewise.
    time_unit: of numeric times.
    extras: extra columns of the parts, see `readers.read_csv`.
    extra_vocabs: a vocabulary of each category among them, so that an index
      means the same in every part.
    poll_s: seconds between two looks into the directory.
    idle_s: the stream ends after so many seconds without a new part; None
      waits for ever.
    stop: asked while waiting; True ends the stream.
    log: called with a message about each file.
    shards: W, see `pipeline.collate_examples`.
    own: all shards, or None for that. Several processes, each with shards of
      its own, are refused: they would see a part appear, and the stream end,
      at different moments.
    tells_ends: whether the states say where a part ends, see
      `part_place.locate_part`.

  Returns:
    A dataset of `Examples`, whose iterators save and restore their state. The
    users of a batch are rows within its part. Users with one event in a part
    give no sequence there.
  """
  pipeline.share_of(batch_size, shards, 'train.batch_size')
  growing.refuse_processes(directory, own, shards)
  vocabs = dict(extra_vocabs or {})
  for extra in extras:
    if extra.kind == 'category' and extra.name not in vocabs:
      raise ValueError(
        f'{extras_lib.KEY}.{extra.name}: a category of a growing directory '
        'needs a vocabulary that is known before (extra_vocabs)'
      )
  options = dict(ids=ids, time_unit=time_unit, extras=extras)

  def read_file(path: pathlib.Path):
    if path.suffix == '.parquet':
      return readers.read_parquet([path], columns, **options)
    layout = dict(delimiter=delimiter, header=header, decimal=decimal)
    return readers.read_csv([path], columns, **layout, **options)

  collation = dict(max_len=max_len, batch_size=batch_size, shards=shards)
  loader = _Loader(read_file, item_vocab, vocabs, unknown, log, collation)
  return growing.GrowingBatches(
    directory,
    pattern,
    loader.load,
    batch_size=batch_size,
    poll_s=poll_s,
    idle_s=idle_s,
    stop=stop,
    kept=KEPT_PARTS,
    tells_ends=tells_ends,
  )
