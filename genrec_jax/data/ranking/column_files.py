"""Scratch files of columns, which are compared with what was written.

The columns of a file lie one behind the other. Their checksums stay in memory,
since nobody but the process that writes such a file reads it. A disk that is
full or failing, and whoever clears a scratch directory, could otherwise change
rows without an error.
"""

import contextlib
import dataclasses
import errno
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np

from genrec_jax import sealed

# Rows that share a checksum: few enough that reading whole blocks costs little.
BLOCK = 1 << 10
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota, limit
_REMEDY = (
  'run the command again, and let nothing else write there; if that does not '
  'help, set data.cache to a directory of another disk, with more space'
)


@dataclasses.dataclass(frozen=True)
class ColumnFile:
  """A file as it was written.

  Attributes:
    path: of the file.
    kinds: column -> type, in the order of the file.
    rows: values of each column.
    checksums: column -> `[ceil(rows / BLOCK)]` uint32, CRC-32 of each block.
  """

  path: pathlib.Path
  kinds: Mapping[str, np.dtype]
  rows: int
  checksums: Mapping[str, np.ndarray]

  @contextlib.contextmanager
  def open(self) -> Iterator[BinaryIO]:
    """The file, to be given to `read`.

    Raises:
      DamagedError: it has another size.
      OSError: it is missing, or cannot be opened.
    """
    try:
      file = self.path.open('rb')
    except OSError as error:
      raise _explain(error, self.path, 'sorted events cannot be read') from None
    with file:
      size = self.rows * sum(kind.itemsize for kind in self.kinds.values())
      there = file.seek(0, 2)
      if there != size:
        raise sealed.DamagedError(
          f'{self.path}: sorted events have {there:,} bytes where {size:,} '
          f'were written; {_REMEDY}'
        )
      yield file

  def read(
    self, file: BinaryIO, first: int, stop: int
  ) -> dict[str, np.ndarray]:
    """Rows `first` .. `stop` - 1, by column.

    Args:
      file: of `open`.
      first: number of a row.
      stop: number of the first one that is left out.

    Raises:
      DamagedError: what lies there is not what was written.
      OSError: it cannot be read.
    """
    # Whole blocks are read, since a checksum is of a block.
    low = first // BLOCK * BLOCK
    high = min(self.rows, -(-stop // BLOCK) * BLOCK)
    out, begin = {}, 0
    for name, kind in self.kinds.items():
      try:
        file.seek(begin + low * kind.itemsize)
        values = np.fromfile(file, kind, high - low)
      except OSError as error:
        words = 'sorted events cannot be read'
        raise _explain(error, self.path, words) from None
      if len(values) != high - low or not self._is_as_written(
        name, values, low
      ):
        raise sealed.DamagedError(
          f'{self.path}: the column {name!r} of sorted events is not what was '
          f'written; {_REMEDY}'
        )
      out[name] = values[first - low : stop - low]
      begin += self.rows * kind.itemsize
    return out

  def _is_as_written(self, name: str, values: np.ndarray, low: int) -> bool:
    view, size = _view_bytes(values), BLOCK * values.itemsize
    wanted = self.checksums[name][low // BLOCK :].tolist()
    return all(
      zlib.crc32(view[at : at + size]) == wanted[i]
      for i, at in enumerate(range(0, len(view), size))
    )


class ColumnWriter:
  """Writes the columns of a file piece by piece; of `write_columns`."""

  def __init__(
    self,
    path: pathlib.Path,
    file: BinaryIO,
    kinds: Mapping[str, np.dtype],
    rows: int,
  ):
    self._path, self._file, self._kinds, self._rows = path, file, kinds, rows
    sizes = [rows * kind.itemsize for kind in kinds.values()]
    self._places = dict(zip(kinds, np.cumsum([0, *sizes]).tolist()))
    self._sums = {n: _Checksums(kind.itemsize) for n, kind in kinds.items()}

  def add(self, piece: Mapping[str, np.ndarray]) -> None:
    """Appends rows to all columns."""
    for name in self._kinds:
      self.add_column(name, piece[name])

  def add_column(self, name: str, values: np.ndarray) -> None:
    """Appends values to one column."""
    view = _view_bytes(np.ascontiguousarray(values, self._kinds[name]))
    self._sums[name].add(view)
    self._file.seek(self._places[name])
    # ndarray.tofile would leave what is buffered to a stream of its own, whose
    # errors nobody sees.
    self._file.write(view)
    self._places[name] += len(view)

  def finish(self) -> ColumnFile:
    """What is written, to be called when the block has ended."""
    sums = {name: checksums.finish() for name, checksums in self._sums.items()}
    return ColumnFile(self._path, self._kinds, self._rows, sums)


@contextlib.contextmanager
def write_columns(
  path: pathlib.Path, kinds: Mapping[str, np.dtype], rows: int
) -> Iterator[ColumnWriter]:
  """Writes a file of columns; it is complete when the block ends.

  Args:
    path: of the file, whose directory is there.
    kinds: column -> type, in the order of the file.
    rows: values that each column will have.

  Raises:
    OSError: the file cannot be written; the message has the directory.
  """
  try:
    file = path.open('wb')
  except OSError as error:
    raise _explain_full(error, path) from None
  writer = ColumnWriter(path, _NamedErrors(file, path), kinds, rows)
  try:
    yield writer
  except BaseException:
    # What is left in the buffer may fail once more, which says nothing new.
    with contextlib.suppress(OSError):
      file.close()
    raise
  try:
    file.close()
  except OSError as error:
    raise _explain_full(error, path) from None


class _NamedErrors:
  """A file whose errors have the directory; blocks may read files as well."""

  def __init__(self, file: BinaryIO, path: pathlib.Path):
    self._file, self._path = file, path

  def seek(self, place: int) -> None:
    try:
      self._file.seek(place)  # writes what is buffered
    except OSError as error:
      raise _explain_full(error, self._path) from None

  def write(self, view: memoryview) -> None:
    try:
      self._file.write(view)
    except OSError as error:
      raise _explain_full(error, self._path) from None


class _Checksums:
  """CRC-32 of each block of a column that comes in pieces."""

  def __init__(self, itemsize: int):
    self._size, self._filled, self._sum = BLOCK * itemsize, 0, 0
    self._done = []

  def add(self, view: memoryview) -> None:
    at = 0
    while at < len(view):
      part = view[at : at + self._size - self._filled]
      self._sum = zlib.crc32(part, self._sum)
      self._filled += len(part)
      at += len(part)
      if self._filled == self._size:
        self._close_block()

  def finish(self) -> np.ndarray:
    if self._filled:
      self._close_block()
    return np.array(self._done, np.uint32)

  def _close_block(self) -> None:
    self._done.append(self._sum)
    self._filled = self._sum = 0


def _view_bytes(values: np.ndarray) -> memoryview:
  return values.view(np.uint8).data  # memoryview.cast refuses empty arrays


def _explain(error: OSError, path: pathlib.Path, words: str) -> OSError:
  return OSError(
    error.errno, f'{path}: {words} ({error.strerror or error}); {_REMEDY}'
  )


def _explain_full(error: OSError, path: pathlib.Path) -> OSError:
  if error.errno in _FULL:
    remedy = 'make space there, or set data.cache to a directory with more'
  else:
    remedy = 'set data.cache to a directory that can be written to'
  return OSError(
    error.errno,
    f'{path.parent}: sorted events cannot be written '
    f'({error.strerror or error}); {remedy}',
  )
