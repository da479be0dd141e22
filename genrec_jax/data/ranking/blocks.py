"""Blocks of encoded rows <-> the records of an ArrayRecord file.

A record is: crc32 of all that follows, length of the header (two little-endian
uint32), the header (JSON: name, type and shape of each column), and the bytes
of the columns one behind the other.
"""

import json
import pathlib
import struct
import threading
import zlib

import numpy as np
from array_record.python import array_record_module

from genrec_jax import sealed
from genrec_jax.data.ranking import rows as rows_lib

_HEAD = struct.Struct('<II')
_BAG = 'bag:'  # of the names of columns that belong to a bag


def _block_columns(rows: rows_lib.Rows) -> dict[str, np.ndarray]:
  columns = rows_lib.columns_of(rows)
  for name, bags in rows.bags.items():
    for key, column in rows_lib.columns_of_bags(bags).items():
      columns[f'{_BAG}{key}:{name}'] = column
  return columns


def to_bytes(rows: rows_lib.Rows) -> bytes:
  """The record of a block."""
  parts, header = [], []
  for name, column in _block_columns(rows).items():
    column = np.ascontiguousarray(column, column.dtype.newbyteorder('<'))
    header.append([name, column.dtype.str, list(column.shape)])
    parts.append(column.tobytes())
  head = json.dumps(header).encode()
  body = b''.join([struct.pack('<I', len(head)), head, *parts])
  return struct.pack('<I', zlib.crc32(body)) + body


def from_bytes(record: bytes) -> rows_lib.Rows:
  """The block of a record; its arrays lie in `record`, read only.

  Raises:
    ValueError: for a record that is not as it was written.
  """
  if len(record) < _HEAD.size:
    raise ValueError('it is too short')
  crc, size = _HEAD.unpack_from(record)
  if zlib.crc32(memoryview(record)[4:]) != crc:
    raise ValueError('its checksum is wrong')
  at = _HEAD.size + size
  columns = {}
  for name, dtype, shape in json.loads(record[_HEAD.size : at]):
    count = int(np.prod(shape))
    column = np.frombuffer(record, dtype, count, at).reshape(shape)
    columns[name] = column
    at += column.nbytes
  bags = {}
  for name, column in columns.items():
    if name.startswith(_BAG):
      key, feature = name.removeprefix(_BAG).split(':', 1)
      bags.setdefault(feature, {})[key] = column
  bags = {feature: rows_lib.Bags(**x) for feature, x in bags.items()}
  return rows_lib.from_columns(columns, bags)


class BlockWriter:
  """Writes rows of any number into blocks of `block_rows`.

  Attributes:
    rows: written so far.
    crcs: checksum of each block.
  """

  def __init__(self, path: pathlib.Path, block_rows: int):
    # Each block its own unit: one is read without its neighbours.
    self._file = array_record_module.ArrayRecordWriter(
      str(path), 'group_size:1,zstd:1'
    )
    self._block_rows = block_rows
    self._waiting, self._size = [], 0
    self.rows = 0
    self.crcs = []

  def add(self, rows: rows_lib.Rows) -> None:
    if not len(rows):
      return
    self._waiting.append(rows)
    self._size += len(rows)
    if self._size >= self._block_rows:
      self._write_blocks(self._block_rows)

  def _write_blocks(self, least: int) -> None:
    rows = rows_lib.concatenate_rows(self._waiting)
    done = 0
    while len(rows) - done >= least:
      block = rows.slice_rows(done, min(done + self._block_rows, len(rows)))
      record = to_bytes(block)
      self._file.write(record)
      self.crcs.append(_HEAD.unpack_from(record)[0])
      self.rows += len(block)
      done += len(block)
    rest = rows.slice_rows(done, len(rows))
    self._waiting, self._size = [rest] if len(rest) else [], len(rest)

  def close(self) -> None:
    """Writes the last block, which may be a short one."""
    if self._waiting:
      self._write_blocks(1)
    self._file.close()


class BlockReader:
  """Random access to the blocks of a file; several threads may share it."""

  def __init__(self, path: pathlib.Path, crcs: list[int], remedy: str):
    """Opens a file; `remedy` is what a user does when it is damaged."""
    self._path, self._crcs, self._remedy = path, crcs, remedy
    self._lock = threading.Lock()
    try:
      self._file = array_record_module.ArrayRecordReader(
        str(path), 'readahead_buffer_size:0,max_parallelism:0'
      )
      records = self._file.num_records()
    except Exception as e:  # it has no types of its own
      raise self._damaged('', e) from None
    if records != len(crcs):
      raise self._damaged('', f'{records} blocks instead of {len(crcs)}')

  def __getitem__(self, block: int) -> rows_lib.Rows:
    try:
      with self._lock:
        record = self._file.read([block])[0]
      if _HEAD.unpack_from(record)[0] != self._crcs[block]:
        raise ValueError('it belongs to another file')
      return from_bytes(record)
    except Exception as e:  # ArrayRecord has no types of its own
      raise self._damaged(f', block {block}', e) from None

  def _damaged(self, where: str, reason: object) -> sealed.DamagedError:
    return sealed.DamagedError(
      f'{self._path}{where} is damaged ({reason}); {self._remedy}'
    )
