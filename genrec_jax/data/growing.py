"""A growing directory of part files -> an endless stream of batches.

Each part file is read once, in the order of their names. The state of the
iterator says which parts were read and how far the last one is used up, so a
resumed stream continues with the very next batch. What a part is made of is up
to whoever loads it.

Parts must appear complete: write them under a name that the pattern does not
match and rename them. A file called END, which appears after the last part,
ends the stream as soon as all parts are used up.
"""

import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import time as clock
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import grain

from genrec_jax import features

# Of so many parts the state remembers names and contents, of older ones how
# many there are: an endless run must not save more and more.
KEPT_PARTS = 64
END = 'END'  # the file that says that no part follows
# A directory that was changed so long ago, and not since the last look, has no
# new names; now and then it is read all the same, for file systems whose times
# cannot be relied on.
_SETTLED_S, _READ_ANYWAY_S = 2.0, 60.0
_WAITS_S = 10.0  # in silence
_SHOWN = 3  # names in a message

Stamp = list[int]  # [size, mtime_ns, crc32] of a file
_T = TypeVar('_T')


class Part(Protocol):
  """A part in memory; `len` is the number of its examples.

  Attributes:
    stamp: of its file, as `read_stamped` gives it.
  """

  stamp: Stamp

  def __len__(self) -> int: ...

  def make_batch(self, start: int, stop: int) -> features.Examples:
    """The batch of the examples start .. stop - 1, filled up to its size."""


def read_stamped(
  path: pathlib.Path, read: Callable[[pathlib.Path], _T]
) -> tuple[_T, Stamp]:
  """What `read` makes of a file, and the stamp of the file.

  Raises:
    ValueError: the file changed meanwhile.
  """
  before = _stat_stamp(path)
  content = read(path)
  stamp = [*before, _crc32(path)]
  if _stat_stamp(path) != before:
    raise ValueError(
      f'{path} changed while it was read; write parts under another name '
      'and rename them when they are complete'
    )
  return content, stamp


def _stat_stamp(path: pathlib.Path) -> list[int]:
  stat = path.stat()
  return [stat.st_size, stat.st_mtime_ns]


def _crc32(path: pathlib.Path) -> int:
  crc = 0
  with open(path, 'rb') as f:
    while block := f.read(1 << 20):
      crc = zlib.crc32(block, crc)
  return crc


def refuse_processes(
  directory: str | os.PathLike, own: range | None, shards: int
) -> None:
  """Refuses a stream of which a process makes some shards alone.

  Several processes would see a part appear, and the stream end, at different
  moments.
  """
  if own is not None and own != range(shards):
    raise ValueError(
      f'{directory}: a growing directory is read by one process, and this one '
      f'would have {len(own)} of {shards} shards; convert the parts and train '
      'on them as files'
    )


@dataclasses.dataclass(frozen=True)
class _Names:
  """The parts of a directory: how many sort before a name, and the others."""

  before: int
  names: list[str]


class PartDirectory:
  """Looks which parts there are, and reads the names only if need be.

  Attributes:
    path: of the directory.
  """

  def __init__(self, path: pathlib.Path, pattern: str):
    self.path, self._pattern = path, pattern
    self._changed_ns = self._read_at = 0.0
    self._seen: tuple[str, _Names] | None = None

  def list_names(self, since: str, anew: bool = False) -> _Names:
    """Names from `since` on, and how many there are before.

    Args:
      since: a name.
      anew: whether they are read whatever the times of the directory say.
    """
    try:
      changed_ns = self.path.stat().st_mtime_ns
    except FileNotFoundError:
      raise FileNotFoundError(f'{self.path}: no such directory') from None
    now = clock.time()
    if (
      not anew
      and self._seen is not None
      and self._seen[0] == since
      and self._changed_ns == changed_ns
      and self._read_at - changed_ns / 1e9 > _SETTLED_S
      and 0 <= now - self._read_at < _READ_ANYWAY_S
    ):
      return self._seen[1]
    before, names = 0, []
    with os.scandir(self.path) as entries:
      for entry in entries:
        is_part = entry.name != END and fnmatch.fnmatchcase(
          entry.name, self._pattern
        )
        if is_part and entry.name < since:
          before += 1
        elif is_part:
          names.append(entry.name)
    self._changed_ns, self._read_at = changed_ns, now
    self._seen = since, _Names(before, sorted(names))
    return self._seen[1]

  def describe_wait(self, last: str) -> str:
    """What is waited for behind a part, '' for the first one."""
    if last:
      return f'{self.path} has no part behind {last}, and no {END}'
    others = sorted(x.name for x in self.path.iterdir() if x.name != END)
    if not others:
      return f'{self.path} is empty'
    shown = ', '.join(others[:_SHOWN]) + ' ...' * (len(others) > _SHOWN)
    return (
      f'no file of {self.path} matches {self._pattern!r} '
      f'(data.stream.pattern); it has {shown}'
    )

  def has_end(self) -> bool:
    """Whether no further part will appear."""
    return (self.path / END).is_file()

  def check_content(self, taken: Mapping[str, Stamp]) -> None:
    """Refuses taken parts that are other files now; deleted ones may be."""
    for name, (size, mtime, crc) in taken.items():
      path = self.path / name
      if not path.exists():
        continue
      now = _stat_stamp(path)
      # Copying a directory changes the times; then the content decides.
      if now[0] != size or (now[1] != mtime and _crc32(path) != crc):
        raise ValueError(
          f'{path} is not the file that was taken; a part must not change '
          'after it appeared'
        )


class GrowingBatches(grain.IterDataset):
  """The batches of the parts of a directory, for as long as parts appear."""

  def __init__(
    self,
    directory: str | os.PathLike,
    pattern: str,
    load: Callable[[pathlib.Path], Part],
    *,
    batch_size: int,
    poll_s: float = 1.0,
    idle_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    kept: int = KEPT_PARTS,
    tells_ends: bool = False,
    log: Callable[[str], object] | None = None,
  ):
    """Names a directory; nothing is read before the first batch.

    Args:
      directory: where the parts appear.
      pattern: which files are parts.
      load: file -> its part; called in a thread for the part to come.
      batch_size: B, examples of a batch; the last one of a part may have fewer.
      poll_s: seconds between two looks into the directory.
      idle_s: the stream ends after so many seconds without a new part; None
        waits for ever.
      stop: asked while waiting; True ends the stream.
      kept: of so many parts the state remembers the contents.
      tells_ends: whether the state says how many batches the present part has,
        for `part_place.locate_part`.
      log: told what is waited for where that takes long; None for nobody.
    """
    super().__init__()
    self.directory, self.pattern = pathlib.Path(directory), pattern
    self.load = load
    self.batch_size = batch_size
    self.poll_s = poll_s
    self.idle_s = idle_s
    self.stop = stop
    self.kept = kept
    self.tells_ends = tells_ends
    self.log = log

  def __iter__(self) -> '_GrowingIterator':
    return _GrowingIterator(self)


class _GrowingIterator(grain.DatasetIterator):
  """State: `taken` {name: stamp} of the newest parts that were taken, `older`
  how many there are before these, `current` name or '', `used` batches, and
  where that is asked for `batches`, how many the current part has."""

  def __init__(self, stream: GrowingBatches):
    super().__init__()
    self._stream = stream
    self._directory = PartDirectory(stream.directory, stream.pattern)
    self._taken: dict[str, Stamp] = {}
    self._older = 0
    self._current = ''
    self._used = self._batches = 0
    self._part: Part | None = None
    self._closed = False
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._ahead: tuple[str, concurrent.futures.Future] | None = None
    self._told = ''

  def get_state(self) -> dict:
    state = {
      'taken': {name: list(stamp) for name, stamp in self._taken.items()},
      'older': self._older,
      'current': self._current,
      'used': self._used,
    }
    return state | (
      {'batches': self._batches} if self._stream.tells_ends else {}
    )

  def set_state(self, state: Mapping) -> None:
    self._taken = {k: list(v) for k, v in state['taken'].items()}
    self._older = state.get('older', 0)  # earlier versions kept all
    self._current = state['current']
    self._used = state['used']
    self._batches = state.get('batches', 0)
    self._part = self._ahead = None

  def close(self) -> None:
    self._closed = True  # ends a wait in another thread
    self._pool.shutdown(wait=False, cancel_futures=True)
    super().close()

  def __next__(self):
    stream, size = self._stream, self._stream.batch_size
    if self._current and self._part is None:  # resumed within a part
      names = self._check_names()
      self._directory.check_content(self._taken)
      if self._current not in names:
        raise FileNotFoundError(
          f'{stream.directory / self._current}: the stream stopped within this '
          'part and cannot continue without it'
        )
      self._hold(stream.load(stream.directory / self._current))
    while self._part is None or self._used == self._batches:
      self._next_part()
    start = self._used * size
    self._used += 1
    return self._part.make_batch(start, min(start + size, len(self._part)))

  def _hold(self, part: Part) -> None:
    self._part = part
    self._batches = -(-len(part) // self._stream.batch_size)

  def _check_names(self, anew: bool = False) -> list[str]:
    """Names of the parts; one that is new and not the last is refused."""
    first, last = min(self._taken, default=''), max(self._taken, default='')
    listed = self._directory.list_names(first, anew)
    late = [x for x in listed.names if x < last and x not in self._taken]
    directory = self._stream.directory
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
    stream = self._stream
    since, looked = clock.monotonic(), 0.0
    last = max(self._taken, default='')
    has_end = False
    while True:
      # Names that are read behind a look that met the end are all there are.
      names = self._check_names(anew=has_end)
      new = [name for name in names if name > last]
      if new:
        break
      if not has_end and self._directory.has_end():
        has_end = True
        continue
      idle = clock.monotonic() - since
      waited = stream.idle_s is not None and idle > stream.idle_s
      if has_end or self._closed or stream.stop() or waited:
        raise StopIteration
      if stream.log and idle > looked + _WAITS_S:
        looked = idle  # now and then, not at each poll
        text = self._directory.describe_wait(last)
        if text != self._told:
          stream.log(f'stream: waiting: {text}')
        self._told = text
      clock.sleep(stream.poll_s)
    self._directory.check_content(self._taken)
    ahead, self._ahead = self._ahead, None
    if ahead is not None and ahead[0] == new[0]:
      part = ahead[1].result()
    else:
      part = stream.load(stream.directory / new[0])
    self._hold(part)
    self._current, self._used = new[0], 0
    there = set(names)
    self._taken = {k: v for k, v in self._taken.items() if k in there}
    self._taken[new[0]] = part.stamp
    for name in sorted(self._taken)[: -stream.kept]:
      del self._taken[name]
      self._older += 1
    if len(new) > 1:  # parse it while this one is trained on
      path = stream.directory / new[1]
      self._ahead = new[1], self._pool.submit(stream.load, path)
