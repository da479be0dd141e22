"""A growing directory of part files -> an endless stream of batches.

Each part file is read once, in the order of their names. The state of the
iterator says which parts were read and how far the last one is used up, so a
resumed stream continues with the very next batch.

A part is read whole and grouped by user; a user's sequence begins anew in
every part. Parts must appear complete: write them under a name that the
pattern does not match and rename them.
"""

import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import time as clock
import zlib
from collections.abc import Callable, Mapping, Sequence

import grain
import numpy as np

from genrec_jax.data import extras as extras_lib
from genrec_jax.data import fields, pipeline, readers, splits, text_arrays
from genrec_jax.data import histories as histories_lib
from genrec_jax.data import vocab as vocab_lib

# Of so many parts the state remembers names and contents, of older ones how
# many there are: an endless run must not save more and more.
KEPT_PARTS = 64
STEPS = 2  # of capacities an octave: small parts are of all sizes
# A directory that was changed so long ago, and not since the last look, has no
# new names; now and then it is read all the same, for file systems whose times
# cannot be relied on.
_SETTLED_S, _READ_ANYWAY_S = 2.0, 60.0


@dataclasses.dataclass(frozen=True)
class _Part:
  """A part in memory; `stamp` is [size, mtime_ns, crc32] of its file."""

  stamp: list[int]
  histories: histories_lib.Histories
  examples: splits.ExampleSpans


def _stat_stamp(path: pathlib.Path) -> list[int]:
  stat = path.stat()
  return [stat.st_size, stat.st_mtime_ns]


def _crc32(path: pathlib.Path) -> int:
  crc = 0
  with open(path, 'rb') as f:
    while block := f.read(1 << 20):
      crc = zlib.crc32(block, crc)
  return crc


@dataclasses.dataclass(frozen=True)
class _Names:
  """The parts of a directory: how many sort before a name, and the others."""

  before: int
  names: list[str]


class _Directory:
  """Looks which parts there are, and reads the names only if need be."""

  def __init__(self, path: pathlib.Path, pattern: str):
    self._path, self._pattern = path, pattern
    self._changed_ns = self._read_at = 0.0
    self._seen: tuple[str, _Names] | None = None

  def list_names(self, since: str) -> _Names:
    """Names from `since` on, and how many there are before."""
    try:
      changed_ns = self._path.stat().st_mtime_ns
    except FileNotFoundError:
      raise FileNotFoundError(f'{self._path}: no such directory') from None
    now = clock.time()
    if (
      self._seen is not None
      and self._seen[0] == since
      and self._changed_ns == changed_ns
      and self._read_at - changed_ns / 1e9 > _SETTLED_S
      and 0 <= now - self._read_at < _READ_ANYWAY_S
    ):
      return self._seen[1]
    before, names = 0, []
    with os.scandir(self._path) as entries:
      for entry in entries:
        if fnmatch.fnmatchcase(entry.name, self._pattern):
          if entry.name < since:
            before += 1
          else:
            names.append(entry.name)
    self._changed_ns, self._read_at = changed_ns, now
    self._seen = since, _Names(before, sorted(names))
    return self._seen[1]


@dataclasses.dataclass(frozen=True)
class _Parts:
  """How the parts of a directory are read."""

  directory: pathlib.Path
  pattern: str
  read: Callable[[pathlib.Path], object]
  item_vocab: vocab_lib.Vocab
  extra_vocabs: Mapping[str, vocab_lib.Vocab]
  unknown: str
  max_len: int
  log: Callable[[str], None]

  def load(self, name: str) -> _Part:
    path = self.directory / name
    before = _stat_stamp(path)
    try:
      chunks = list(self.read(path))
    except readers.EmptyFileError:
      chunks = []
    stamp = [*before, _crc32(path)]
    if _stat_stamp(path) != before:
      raise ValueError(
        f'{path} changed while it was read; write parts under another name '
        'and rename them when they are complete'
      )
    histories = self._group_chunks(chunks)
    read, kept = sum(map(len, chunks)), len(histories.items)
    examples = splits.keep_whole(histories, windows='all', max_len=self.max_len)
    self.log(
      f'stream: {name}: {read:,} events of {len(histories):,} users'
      + (f', {read - kept:,} of unknown items skipped' * (read > kept))
    )
    return _Part(stamp, histories, examples)

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

  def check_content(self, taken: Mapping[str, list[int]]) -> None:
    """Refuses taken parts that are other files now; deleted ones may be."""
    for name, (size, mtime, crc) in taken.items():
      path = self.directory / name
      if not path.exists():
        continue
      now = _stat_stamp(path)
      # Copying a directory changes the times; then the content decides.
      if now[0] != size or (now[1] != mtime and _crc32(path) != crc):
        raise ValueError(
          f'{path} is not the file that was taken; a part must not change '
          'after it appeared'
        )


class _StreamIterator(grain.DatasetIterator):
  """State: `taken` {name: stamp} of the newest parts that were taken, `older`
  how many there are before these, `current` name or '', `used` batches."""

  def __init__(self, stream: '_Stream'):
    super().__init__()
    self._stream = stream
    self._directory = _Directory(stream.parts.directory, stream.parts.pattern)
    self._taken: dict[str, list[int]] = {}
    self._older = 0
    self._current = ''
    self._used = 0
    self._part: _Part | None = None
    self._closed = False
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._ahead: tuple[str, concurrent.futures.Future] | None = None

  def get_state(self) -> dict:
    return {
      'taken': {name: list(stamp) for name, stamp in self._taken.items()},
      'older': self._older,
      'current': self._current,
      'used': self._used,
    }

  def set_state(self, state: Mapping) -> None:
    self._taken = {k: list(v) for k, v in state['taken'].items()}
    self._older = state.get('older', 0)  # earlier versions kept all
    self._current = state['current']
    self._used = state['used']
    self._part = self._ahead = None

  def close(self) -> None:
    self._closed = True  # ends a wait in another thread
    self._pool.shutdown(wait=False, cancel_futures=True)
    super().close()

  def __next__(self):
    parts, batch_size = self._stream.parts, self._stream.batch_size
    if self._current and self._part is None:  # resumed within a part
      names = self._check_names()
      parts.check_content(self._taken)
      if self._current not in names:
        raise FileNotFoundError(
          f'{parts.directory / self._current}: the stream stopped within this '
          'part and cannot continue without it'
        )
      self._part = parts.load(self._current)
    while self._part is None or self._used == pipeline.steps_per_epoch(
      self._part.examples, batch_size
    ):
      self._next_part()
    start = self._used * batch_size
    stop = min(start + batch_size, len(self._part.examples))
    self._used += 1
    return pipeline.collate_examples(
      self._part.histories,
      self._part.examples,
      np.arange(start, stop),
      max_len=parts.max_len,
      batch_size=batch_size,
      capacity=lambda tokens: pipeline.capacity_for(tokens, STEPS),
      shards=self._stream.shards,
    )

  def _check_names(self) -> list[str]:
    """Names of the parts; one that is new and not the last is refused."""
    first, last = min(self._taken, default=''), max(self._taken, default='')
    listed = self._directory.list_names(first)
    late = [x for x in listed.names if x < last and x not in self._taken]
    directory = self._stream.parts.directory
    if late:
      raise ValueError(
        f'{directory / late[0]} sorts before {last}, which was taken already; '
        'give new parts names that sort after the old ones'
      )
    if listed.before > self._older:
      raise ValueError(
        f'{directory} has {listed.before:,} parts that sort before {first}, '
        f'and {self._older:,} were taken; give new parts names that sort after '
        'the old ones'
      )
    self._older = listed.before  # others may have been deleted
    return listed.names

  def _next_part(self) -> None:
    """Waits for the part after the current one and takes it."""
    stream, parts = self._stream, self._stream.parts
    since = clock.monotonic()
    while True:
      names = self._check_names()
      last = max(self._taken, default='')
      new = [name for name in names if name > last]
      if new:
        break
      idle = clock.monotonic() - since
      waited = stream.idle_s is not None and idle > stream.idle_s
      if self._closed or stream.stop() or waited:
        raise StopIteration
      clock.sleep(stream.poll_s)
    parts.check_content(self._taken)
    ahead, self._ahead = self._ahead, None
    if ahead is not None and ahead[0] == new[0]:
      self._part = ahead[1].result()
    else:
      self._part = parts.load(new[0])
    self._current, self._used = new[0], 0
    there = set(names)
    self._taken = {k: v for k, v in self._taken.items() if k in there}
    self._taken[new[0]] = self._part.stamp
    for name in sorted(self._taken)[:-KEPT_PARTS]:
      del self._taken[name]
      self._older += 1
    if len(new) > 1:  # parse it while this one is trained on
      self._ahead = new[1], self._pool.submit(parts.load, new[1])


class _Stream(grain.IterDataset):
  def __init__(self, parts, batch_size, shards, poll_s, idle_s, stop):
    super().__init__()
    self.parts = parts
    self.batch_size = batch_size
    self.shards = shards
    self.poll_s = poll_s
    self.idle_s = idle_s
    self.stop = stop

  def __iter__(self) -> _StreamIterator:
    return _StreamIterator(self)


def stream_batches(
  directory: str | pathlib.Path,
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

  Returns:
    A dataset of `Examples`, whose iterators save and restore their state. The
    users of a batch are rows within its part. Users with one event in a part
    give no sequence there.
  """
  pipeline.share_of(batch_size, shards, 'train.batch_size')
  if own is not None and own != range(shards):
    raise ValueError(
      f'{directory}: a growing directory is read by one process, and this one '
      f'would have {len(own)} of {shards} shards; convert the parts and train '
      'on them as files'
    )
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

  parts = _Parts(
    pathlib.Path(directory),
    pattern,
    read_file,
    item_vocab,
    vocabs,
    unknown,
    max_len,
    log,
  )
  return _Stream(parts, batch_size, shards, poll_s, idle_s, stop)
