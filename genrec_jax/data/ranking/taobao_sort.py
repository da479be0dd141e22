"""UserBehavior.csv -> events by user and time, sorted outside of memory.

The file has no header and five columns: user, item, category, behaviour and
time, in no order. Pieces of it are sorted in memory and written as runs; the
runs are merged, piece by piece, into one file by column. Events of one user and
one second stay in the order of the file, and rows that are written twice are
two events.

What is in memory at a time is `memory_mb` (of the rows that are sorted or
merged), a block of text, and the distinct items and users of the log.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from genrec_jax.data import scratch, source_files, text, vocab
from genrec_jax.data.quoting import quote
from genrec_jax.data.ranking import column_files, prepare
from genrec_jax.data.ranking.column_files import ColumnFile

BEHAVIOURS = ('pv', 'buy', 'cart', 'fav')
_NAMES = ('user', 'item', 'category', 'behaviour', 'time')
_TEXT_ROWS = 1 << 15  # of a block of text
# The columns of a run: name -> type.
_RUN = {
  'user': np.dtype(np.int64),
  'time': np.dtype(np.int64),
  'item': np.dtype(np.int64),
  'category': np.dtype(np.int64),
  'behaviour': np.dtype(np.uint8),
}
_SORTED = {'item': np.dtype(np.int32)} | {
  name: _RUN[name] for name in ('category', 'behaviour', 'time')
}
# Bytes a row while a run is sorted, and while runs are merged: the columns, the
# order, and what sorting copies.
_SORT_BYTES, _MERGE_BYTES = 72, 144
_FAN_IN = 64  # runs that are merged at once
_LEAST_ROWS = 16  # of a run in memory, however little there is
# The logarithm of an age is a float32, and a model knows no such times: in
# milliseconds, this was in 2004; in seconds, it is the year 36812.
_TIME_LIMIT = 1 << 40
_LARGE = re.compile(r'(-?)[1-9][0-9]*(\.0+)?')  # if it is no int64


@dataclasses.dataclass(frozen=True)
class Catalogue:
  """The items of a log.

  Attributes:
    items: `[I]` int64 ids, ascending.
    categories: `[I]` int64, of the first row that has the item.
  """

  items: np.ndarray
  categories: np.ndarray


@dataclasses.dataclass(frozen=True)
class SortedLog:
  """The events of each user, in the order of time, in one file.

  Attributes:
    file: of the events, which is checked when it is read.
    users: `[U]` int64 ids, ascending.
    offsets: `[U + 1]` int64, where the events of each user lie.
    last_time: `[U]` int64 seconds of each user's last event.
    catalogue: the items; events have their numbers.
    dropped: rows that were left out.
  """

  file: ColumnFile
  users: np.ndarray
  offsets: np.ndarray
  last_time: np.ndarray
  catalogue: Catalogue
  dropped: int

  def read_events(self, first: int, stop: int) -> dict[str, np.ndarray]:
    """The columns of the events `first` .. `stop` - 1.

    Args:
      first: number of the event, as in `offsets`.
      stop: number of the first one that is left out.

    Returns:
      'item', its number in the catalogue, 'category', 'behaviour', its number
      in `BEHAVIOURS`, and 'time'.

    Raises:
      ValueError: the file is not what was written.
      OSError: it is missing.
    """
    with self.file.open() as f:
      return self.file.read(f, first, stop)

  @property
  def path(self) -> pathlib.Path:
    """Of the file."""
    return self.file.path


@contextlib.contextmanager
def sort_log(
  path: pathlib.Path,
  parent: pathlib.Path,
  *,
  memory_mb: int = 256,
  negative_times: str = 'refuse',
  log: Callable[[str], None] = print,
) -> Iterator[SortedLog]:
  """Sorts a log into a scratch directory, which is gone when the block ends.

  Args:
    path: of UserBehavior.csv, maybe compressed (.gz).
    parent: the directory that the scratch directory is made in; it needs about
      70 bytes a row.
    memory_mb: megabytes of the rows that are sorted or merged.
    negative_times: 'refuse' rows with a time below zero, or 'drop' them.
    log: called with progress messages.

  Raises:
    ValueError: a row is damaged; the message has the file and the line. Or a
      file of sorted rows is not what was written.
    OSError: `parent` cannot be written to, or is full.
  """
  path = text.require_file(path)
  before = source_files.stat_files([path])
  _make_directory(parent, parents=True, exist_ok=True)
  with scratch.scratch_directory(parent, 'taobao-sort-') as work:
    _make_directory(work, mode=0o700)
    progress = prepare.Progress(log)
    items = _CatalogueFit()
    writer = _RunWriter(work, memory_mb)
    progress.start()
    done, reader = 0, _Reader(path, negative_times)
    for rows in reader.read():
      done += len(rows['user'])
      items.add(rows['item'], rows['category'])
      writer.add(rows)
      progress(f'reading {path}', done)
    writer.close()
    source_files.check_unchanged(before)
    if not done:
      raise ValueError(f'{path}: the file holds no events')
    log(f'{path}: {done:,} rows in {len(writer.runs):,} sorted runs')
    if reader.dropped:
      log(f'{path}: left out {reader.dropped:,} rows with a negative time')
    merger = _Merger(work, memory_mb, progress)
    catalogue = items.close()
    yield _write_sorted(
      work / 'sorted', merger, writer.runs, catalogue, reader.dropped
    )


def _make_directory(path: pathlib.Path, **options) -> None:
  try:
    path.mkdir(**options)
  except OSError as error:
    raise OSError(
      error.errno,
      f'{path}: no directory can be made there ({error.strerror}); set '
      'data.cache to a directory that can be made and written to',
    ) from None


class _Reader:
  """Reads the file; counts the rows that it drops."""

  def __init__(self, path: pathlib.Path, negative_times: str):
    self._path, self._drops = path, negative_times == 'drop'
    self._codes = {name: i for i, name in enumerate(BEHAVIOURS)}
    self.dropped = 0

  def read(self) -> Iterator[dict[str, np.ndarray]]:
    """The rows, in the order of the file."""
    blocks = text.read_blocks(
      self._path, ',', rows=_TEXT_ROWS, width=len(_NAMES)
    )
    for block in blocks:
      words = dict(zip(_NAMES, block.columns, strict=True))
      rows = {
        name: self._parse(name, words[name], block.lines)
        for name in _NAMES
        if name != 'behaviour'
      }
      codes = np.fromiter(
        map(self._codes.get, words['behaviour'], itertools.repeat(-1)),
        np.int8,
        len(block.lines),
      )
      if (codes < 0).any():
        bad = int(np.argmax(codes < 0))
        raise ValueError(
          f'{self._path}, line {block.lines[bad]}, column 3: the behaviour '
          f'{quote(words["behaviour"][bad])} is none of '
          f'{", ".join(BEHAVIOURS)}; mend or remove the line'
        )
      rows['behaviour'] = codes.astype(np.uint8)
      keep = rows['time'] >= 0
      if not keep.all():
        rows = self._drop(rows, keep, words['time'], block.lines)
      if len(rows['time']):
        yield rows

  def _parse(self, name: str, words: Sequence[str], lines) -> np.ndarray:
    values, good = vocab.parse_ints(words)
    if not good.all():
      bad = int(np.argmin(good))
      if large := _LARGE.fullmatch(words[bad]):
        reason = f'is too {"small" if large[1] else "large"} for 64 bits'
      else:
        reason = (
          f'is no whole number; a line is {",".join(_NAMES)}, without a header'
        )
    elif name == 'time' and (values >= _TIME_LIMIT).any():
      bad = int(np.argmax(values >= _TIME_LIMIT))
      reason = (
        f'is {_TIME_LIMIT:,} or more; times are seconds since 1970, not '
        'milliseconds'
      )
    else:
      return values
    raise ValueError(
      f'{self._path}, line {lines[bad]}, column {_NAMES.index(name)}: the '
      f'{name} {quote(words[bad])} {reason}; mend or remove the line'
    )

  def _drop(self, rows, keep: np.ndarray, words, lines) -> dict:
    if not self._drops:
      bad = int(np.argmin(keep))
      raise ValueError(
        f'{self._path}, line {lines[bad]}, column 4: the time '
        f'{quote(words[bad])} is negative; remove the line, or set '
        "data.taobao.negative_times='drop' to leave out all such rows"
      )
    self.dropped += int((~keep).sum())
    return {name: values[keep] for name, values in rows.items()}


class _CatalogueFit:
  """Collects the items, and the category that each has first."""

  def __init__(self):
    self._items = self._categories = np.zeros(0, np.int64)
    self._fresh, self._size = [], 0

  def add(self, items: np.ndarray, categories: np.ndarray) -> None:
    items, first = np.unique(items, return_index=True)
    at = np.searchsorted(self._items, items)
    known = at < len(self._items)
    known[known] = self._items[at[known]] == items[known]
    self._fresh.append((items[~known], categories[first[~known]]))
    self._size += len(items) - int(known.sum())
    # As seldom as the catalogue doubles, since it is copied.
    if self._size > max(len(self._items), _TEXT_ROWS):
      self._merge()

  def close(self) -> Catalogue:
    self._merge()
    return Catalogue(self._items, self._categories)

  def _merge(self) -> None:
    parts = [(self._items, self._categories), *self._fresh]
    items, categories = map(np.concatenate, zip(*parts, strict=True))
    # np.unique finds the first of equal items, which is the earliest.
    self._items, first = np.unique(items, return_index=True)
    self._categories = categories[first]
    self._fresh, self._size = [], 0


class _RunWriter:
  """Sorts as many rows as the memory holds, and writes them as a run."""

  def __init__(self, work: pathlib.Path, memory_mb: int):
    self._work = work
    self._capacity = max(_LEAST_ROWS, (memory_mb << 20) // _SORT_BYTES)
    self._waiting, self._size = [], 0
    self.runs = []

  def add(self, rows: dict[str, np.ndarray]) -> None:
    size, first = len(rows['user']), 0
    while first < size:
      stop = min(size, first + self._capacity - self._size)
      self._waiting.append({n: x[first:stop] for n, x in rows.items()})
      self._size += stop - first
      first = stop
      if self._size == self._capacity:
        self.close()

  def close(self) -> None:
    """Writes what waits."""
    if not self._size:
      return
    key = {n: self._join(n) for n in ('user', 'time')}
    order = np.lexsort((key['time'], key['user']))  # which is stable
    path = self._work / f'run-{len(self.runs)}'
    with column_files.write_columns(path, _RUN, self._size) as writer:
      for name in _RUN:
        # A column at a time: a copy of all of them would be as large again.
        column = key.pop(name) if name in key else self._join(name)
        writer.add_column(name, column[order])
    self.runs.append(writer.finish())
    self._waiting, self._size = [], 0

  def _join(self, name: str) -> np.ndarray:
    return np.concatenate([rows.pop(name) for rows in self._waiting])


class _Merger:
  """Merges runs; of equal keys, rows of earlier runs come first."""

  def __init__(
    self, work: pathlib.Path, memory_mb: int, progress: prepare.Progress
  ):
    self._work, self._progress, self._made = work, progress, 0
    self._capacity = (memory_mb << 20) // _MERGE_BYTES

  def merge(self, runs: list[ColumnFile]) -> Iterator[dict[str, np.ndarray]]:
    """The rows of all runs in order; the files of the runs are removed."""
    # Neighbours are merged, so that the order of runs stays that of the file.
    while len(runs) > _FAN_IN:
      groups = [runs[i : i + _FAN_IN] for i in range(0, len(runs), _FAN_IN)]
      runs = [self._write(group) for group in groups]
    yield from self._merge(runs)

  def _write(self, runs: list[ColumnFile]) -> ColumnFile:
    rows = sum(run.rows for run in runs)
    path = self._work / f'merged-{self._made}'
    self._made += 1
    with column_files.write_columns(path, _RUN, rows) as writer:
      for piece in self._merge(runs):
        writer.add(piece)
    return writer.finish()

  def _merge(self, runs: list[ColumnFile]) -> Iterator[dict[str, np.ndarray]]:
    size = max(_LEAST_ROWS, self._capacity // max(len(runs), 1))
    if size > column_files.BLOCK:  # no block is read twice
      size -= size % column_files.BLOCK
    done = 0
    self._progress.start()
    with contextlib.ExitStack() as stack:
      heads = [
        _Head(run, stack.enter_context(run.open()), size) for run in runs
      ]
      while heads := [head for head in heads if head.fill()]:
        # The smallest of the last keys in memory, of the earliest such run.
        bounds = [head.last_key for head in heads]
        bound = min(bounds)
        first = bounds.index(bound)
        # Nothing that is still on disk comes before what is taken here: a run
        # behind the first one may have more rows of this key, which wait.
        pieces = [
          head.take(bound, inclusive=i <= first) for i, head in enumerate(heads)
        ]
        piece = {
          name: np.concatenate([piece[name] for piece in pieces])
          for name in _RUN
        }
        order = np.lexsort((piece['time'], piece['user']))
        done += len(order)
        yield {name: values[order] for name, values in piece.items()}
        self._progress('merging sorted runs', done)
    for run in runs:
      run.path.unlink()


class _Head:
  """The next rows of a run."""

  def __init__(self, run: ColumnFile, file: BinaryIO, size: int):
    self._run, self._file, self._size = run, file, size
    self._next = 0  # row of the file
    self._columns = {name: np.zeros(0, kind) for name, kind in _RUN.items()}

  def fill(self) -> bool:
    """Reads on where nothing is left; whether there is a row."""
    if not len(self._columns['user']):
      stop = min(self._run.rows, self._next + self._size)
      self._columns = self._run.read(self._file, self._next, stop)
      self._next = stop
    return len(self._columns['user']) > 0

  @property
  def last_key(self) -> tuple[int, int]:
    return int(self._columns['user'][-1]), int(self._columns['time'][-1])

  def take(
    self, bound: tuple[int, int], inclusive: bool
  ) -> dict[str, np.ndarray]:
    """The rows before a key, or up to it."""
    user, time = self._columns['user'], self._columns['time']
    low, high = (
      np.searchsorted(user, bound[0], side) for side in ('left', 'right')
    )
    side = 'right' if inclusive else 'left'
    stop = low + int(np.searchsorted(time[low:high], bound[1], side))
    out = {name: values[:stop] for name, values in self._columns.items()}
    self._columns = {n: values[stop:] for n, values in self._columns.items()}
    return out


def _write_sorted(
  path: pathlib.Path, merger: _Merger, runs, catalogue: Catalogue, dropped: int
) -> SortedLog:
  """Merges the runs into the file that is read later."""
  rows = sum(run.rows for run in runs)
  users, counts, last = [], [], []
  with column_files.write_columns(path, _SORTED, rows) as writer:
    for piece in merger.merge(runs):
      ids, first = np.unique(piece['user'], return_index=True)
      stops = np.append(first[1:], len(piece['user']))
      count, times = stops - first, piece['time'][stops - 1]
      if users and users[-1][-1] == ids[0]:  # goes on from the last piece
        counts[-1][-1] += count[0]
        last[-1][-1] = times[0]
        ids, count, times = ids[1:], count[1:], times[1:]
      if len(ids):
        users.append(ids)
        counts.append(count)
        last.append(times)
      piece['item'] = np.searchsorted(catalogue.items, piece['item'])
      writer.add(piece)
  offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
  return SortedLog(
    writer.finish(), np.concatenate(users), offsets, np.concatenate(last),
    catalogue, dropped,
  )  # fmt: skip
