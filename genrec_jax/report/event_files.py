"""Event files as TensorBoard reads them, of scalars alone.

A file is a row of records, each a protobuf message `Event` between its length
and checksums. The few fields that scalars need are encoded here: the packages
that would do it take half a second to load, at the start of every run.
"""

import os
import pathlib
import socket
import struct
import time
from collections.abc import Mapping

import numpy as np

_VERSION = b'brain.Event:2'  # of the format, in the first record
_START = b'\x08\x01'  # SessionLog(status=START)
# Keys of fields: number * 8 + type.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = (
  b'\x09',
  b'\x10',
  b'\x1a',
  b'\x2a',
  b'\x3a',
)
_VALUE, _TAG, _SIMPLE_VALUE = b'\x0a', b'\x0a', b'\x15'


class EventFile:
  """Appends events to a new file of a directory."""

  def __init__(self, directory: str | os.PathLike):
    """Makes the file.

    Args:
      directory: made when absent.
    """
    now = time.time_ns()
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # Seconds alone would let a run that is resumed within one overwrite the
    # file before it.
    name = (
      f'events.out.tfevents.{now // 10**9}.{socket.gethostname()}'
      f'.{now % 10**9:09d}'
    )
    self._file = open(directory / name, 'xb')
    self._write(_FILE_VERSION + _prefix(_VERSION))

  def start_session(self, step: int) -> None:
    """Says that what an earlier file holds of this step and on is void."""
    self._write(_STEP + _varint(step) + _SESSION_LOG + _prefix(_START))

  def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Appends numbers, by name, as measured at a step."""
    summary = b''.join(
      _VALUE + _prefix(_encode_value(name, value))
      for name, value in values.items()
    )
    self._write(_STEP + _varint(step) + _SUMMARY + _prefix(summary))

  def flush(self) -> None:
    """Returns when all events are in the hands of the operating system."""
    self._file.flush()

  def close(self) -> None:
    """Flushes and closes the file."""
    self._file.close()

  def _write(self, fields: bytes) -> None:
    event = _WALL_TIME + struct.pack('<d', time.time()) + fields
    length = struct.pack('<Q', len(event))
    self._file.write(
      length + _masked_checksum(length) + event + _masked_checksum(event)
    )


def _encode_value(name: str, value: float) -> bytes:
  # As NumPy casts: what float32 has not is infinite.
  with np.errstate(over='ignore'):
    number = np.float32(value).astype('<f4').tobytes()
  return _TAG + _prefix(name.encode()) + _SIMPLE_VALUE + number


def _prefix(data: bytes) -> bytes:
  return _varint(len(data)) + data


def _varint(number: int) -> bytes:
  """Groups of seven bits, the lowest first.

  >>> _varint(300).hex()
  'ac02'
  """
  found = bytearray()
  while number > 0x7F:
    found.append(number & 0x7F | 0x80)
    number >>= 7
  found.append(number)
  return bytes(found)


def _masked_checksum(data: bytes) -> bytes:
  """CRC-32C, turned and shifted as in TensorFlow's records."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
  crc ^= 0xFFFFFFFF
  turned = (crc >> 15 | crc << 17) + 0xA282EAD8
  return struct.pack('<I', turned & 0xFFFFFFFF)


def _make_table() -> list[int]:
  """What each byte does to a CRC-32C."""
  table = []
  for byte in range(256):
    for _ in range(8):
      byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    table.append(byte)
  return table


_TABLE = _make_table()
