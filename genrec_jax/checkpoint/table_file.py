"""A table of a serving copy: a mapped .npy file with checksums of its blocks.

    1200-3/item.npy           [rows, dim]; bfloat16 as uint16; packed rows as
                              uint8 [rows, bytes], see `packed_formats`
    1200-3/item.crc32.npy     uint32, the CRC-32 of each 1 MB of item.npy

The follower changes both in place. After a kill they may disagree where a delta
was being applied, and the same delta, applied once more, makes them agree.
"""

import math
import os
import pathlib
import zlib
from collections.abc import Iterable

import ml_dtypes  # noqa: F401, tells NumPy of bfloat16
import numpy as np

from genrec_jax.checkpoint import storage
from genrec_jax.checkpoint.errors import (
  CheckpointError,
  CopyDamagedError,
  DamagedError,
)
from genrec_jax.numerics import packed_formats

BLOCK = 1 << 20
_HEADER_BYTES = 4096


class TableFile:
  """A table, mapped, and what its blocks should be.

  Attributes:
    array: `[rows, dim]`, or `[rows, bytes]` of packed rows.
  """

  def __init__(self, copy: pathlib.Path, about: dict, mode: str):
    """Maps a table; its contents are compared only by `check`.

    Args:
      copy: directory of the copy.
      about: its 'rows', 'dim', 'dtype', 'file' and, except in copies of earlier
        versions, 'checksums'; of packed rows 'packed', their format.
      mode: 'r' or 'r+'.

    Raises:
      DamagedError: the files are not of this shape, or not regular ones; those
        that are to be changed have a second name.
      FileNotFoundError: a file is missing.
    """
    self._path = copy / about['file']
    shape, dtype = _stored_array(about)
    self.columns = about['dim']
    self._format = packed_formats.PACKED_FORMATS.get(about.get('packed'))
    self._bytes, array = map_array(copy, about['file'], mode)
    if array.shape != shape or array.dtype != _stored_dtype(dtype):
      raise DamagedError(f'{self._path} has another shape than it should')
    self.array = array if array.dtype == dtype else array.view(dtype)
    self._first = len(self._bytes) - array.nbytes  # byte of row 0
    self._row_bytes = array.nbytes // about['rows']
    blocks = -(-len(self._bytes) // BLOCK)
    self._sums = None
    if 'checksums' in about:
      _, self._sums = map_array(copy, about['checksums'], mode)
      if self._sums.shape != (blocks,) or self._sums.dtype != np.uint32:
        raise DamagedError(f'{copy / about["checksums"]} has another shape')
    self._is_checked = np.zeros(blocks, bool)

  @property
  def nbytes(self) -> int:
    return len(self._bytes)

  @property
  def is_packed(self) -> bool:
    return self._format is not None

  def unpack_rows(self, rows: np.ndarray) -> np.ndarray:
    """Rows of `array` as numbers: those of packed rows as float32."""
    if self._format is None:
      return rows
    return packed_formats.split_parts(self._format, rows, self.columns)

  def write_rows(self, ids: np.ndarray | slice, rows: np.ndarray) -> None:
    """Puts rows `[n, dim]` of numbers into the table."""
    if self._format is not None:
      rows = packed_formats.join_parts(self._format, rows)
    self.array[ids] = rows

  def find_blocks(self, ids: np.ndarray) -> np.ndarray:
    """The numbers of the blocks that rows lie in, ascending."""
    ids = np.asarray(ids, np.int64) % max(len(self.array), 1)
    start = self._first + ids * self._row_bytes
    first, last = start // BLOCK, (start + self._row_bytes - 1) // BLOCK
    widest = int((last - first).max(initial=0))
    return np.unique([np.minimum(first + i, last) for i in range(widest + 1)])

  def check(self, blocks: Iterable[int] | None = None) -> None:
    """Compares blocks with their checksums, each of them only once.

    Args:
      blocks: their numbers; None for all.

    Raises:
      CopyDamagedError: one of them is not as it was written.
    """
    if self._sums is None:
      return
    if blocks is None:
      blocks = range(len(self._is_checked))
    for block in blocks:
      if self._is_checked[block]:
        continue
      if self._compute_sum(block) != self._sums[block]:
        raise CopyDamagedError(
          f'{self._path} is damaged in block {block} of 1 MB'
        )
      self._is_checked[block] = True

  def trust(self, blocks: Iterable[int] | slice = slice(None)) -> None:
    """Says that blocks were just written, or that they are about to be."""
    self._is_checked[blocks] = True

  def renew_sums(self, blocks: Iterable[int]) -> None:
    """After a change of blocks: writes their checksums."""
    for block in blocks if self._sums is not None else ():
      self._sums[block] = self._compute_sum(block)

  def flush(self) -> None:
    """Forces the table, and then its checksums, to the disk."""
    self._bytes.flush()
    if self._sums is not None:
      self._sums.flush()

  def create_sums(self, path: pathlib.Path) -> None:
    """Writes the checksums of a whole table into a new file."""
    sums = [self._compute_sum(b) for b in range(len(self._is_checked))]
    path.unlink(missing_ok=True)
    with storage.create_file(path) as file:
      np.save(file, np.array(sums, np.uint32))
    storage.sync_path(path)

  def _compute_sum(self, block: int) -> int:
    return zlib.crc32(self._bytes[block * BLOCK : (block + 1) * BLOCK])


def create_table(path: pathlib.Path, about: dict) -> None:
  """Makes the file of a table of zeros, with all its space on the disk."""
  shape, dtype = _stored_array(about)
  dtype = _stored_dtype(dtype)
  with storage.create_file(path) as file:
    np.lib.format.write_array_header_1_0(
      file,
      {
        'descr': np.lib.format.dtype_to_descr(dtype),
        'fortran_order': False,
        'shape': shape,
      },
    )
    size = file.tell() + math.prod(shape) * dtype.itemsize
    file.truncate(size)
    # Where a disk is full, writing to a mapping would end the process.
    if hasattr(os, 'posix_fallocate'):
      os.posix_fallocate(file.fileno(), 0, size)


def map_array(
  directory: pathlib.Path, name: str, mode: str
) -> tuple[np.memmap, np.memmap]:
  """Maps an .npy file, if it is a regular one and has the size it claims.

  Args:
    directory: where it is.
    name: of the file below it.
    mode: 'r' or 'r+'.

  Returns:
    (all bytes of the file, its array).

  Raises:
    DamagedError: it is something else, or would be changed although it has a
      second name: somebody else's copy of this copy must not change with it.
    FileNotFoundError: there is none.
  """
  path = directory / name
  try:
    with storage.open_file(directory, name, write=mode == 'r+') as file:
      if mode == 'r+' and os.fstat(file.fileno()).st_nlink > 1:
        raise DamagedError(f'{path} has a second name (a hard link)')
      if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError('a header of another version')
      shape, by_columns, dtype = np.lib.format.read_array_header_1_0(
        file, max_header_size=_HEADER_BYTES
      )
      first = file.tell()
      size = math.prod(shape) * dtype.itemsize
      fits = size > 0 and not dtype.hasobject and not by_columns
      if not fits or storage.count_open_bytes(path, '', file) != first + size:
        raise ValueError('it has another size than its header says')
      content = np.memmap(file, np.uint8, mode)
    return content, content[first:].view(dtype).reshape(shape)
  except (FileNotFoundError, DamagedError):
    raise
  except OSError as e:
    raise CheckpointError(f'{path} cannot be read ({e.strerror or e})') from e
  except Exception as e:  # a damaged header fails in many ways
    raise DamagedError(f'{path} is damaged ({str(e)[:200]})') from e


def _stored_array(about: dict) -> tuple[tuple[int, int], np.dtype]:
  """Shape and dtype of a table in its file."""
  if name := about.get('packed'):
    size = packed_formats.PACKED_FORMATS[name].bytes_per_row(about['dim'])
    return (about['rows'], size), np.dtype(np.uint8)
  return (about['rows'], about['dim']), np.dtype(about['dtype'])


def _stored_dtype(dtype: np.dtype) -> np.dtype:
  """Of dtypes that NumPy itself does not know, the bits."""
  return dtype if dtype.isbuiltin == 1 else np.dtype(f'u{dtype.itemsize}')
