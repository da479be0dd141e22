"""Files of rows that claim what none can hold: `CHUNKS`, made of one."""

import io
import json
import zipfile
from collections.abc import Callable

import numpy as np

_ROWS = 50  # of items that a delta of checkpoint_faults_run has


def _members(raw: bytes) -> dict[str, np.ndarray]:
  with np.load(io.BytesIO(raw)) as arrays:
    return dict(arrays)


def _with(**values) -> Callable[[bytes], bytes]:
  """Other members, or without those that are None."""

  def make(raw: bytes) -> bytes:
    arrays = _members(raw) | values
    file = io.BytesIO()
    np.savez(file, **{n: x for n, x in arrays.items() if x is not None})
    return file.getvalue()

  return make


def _about(**values) -> Callable[[bytes], bytes]:
  def make(raw: bytes) -> bytes:
    about = json.loads(_members(raw)['about'].tobytes()) | values
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return _with(about=text)(raw)

  return make


def _ids_by_header(**about) -> Callable[[bytes], bytes]:
  return lambda raw: _with(ids=None)(_about(**about)(raw))


def _packed(raw: bytes) -> bytes:
  file = io.BytesIO()
  np.savez_compressed(file, **_members(raw))
  return file.getvalue()


def _bomb(raw: bytes) -> bytes:
  file = io.BytesIO()
  np.savez_compressed(
    file, **_members(raw) | {'ids': np.zeros(1 << 24, np.int64)}
  )
  return file.getvalue()


def _raw_member(name: str, content: bytes) -> Callable[[bytes], bytes]:
  def make(raw: bytes) -> bytes:
    file = io.BytesIO(raw)
    with zipfile.ZipFile(file, 'a') as archive:
      archive.writestr(name, content)
    return file.getvalue()

  return make


def _npy(header: str) -> bytes:
  text = header.encode().ljust(118) + b'\n'
  return b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text + b'x'


CHUNKS: dict[str, Callable[[bytes], bytes]] = {
  'is empty': lambda raw: b'',
  'is text': lambda raw: b'x' * 1000,
  'is cut short': lambda raw: raw[:-30],
  'begins with something': lambda raw: b'#!' + raw,
  'is compressed': _packed,
  'is a bomb': _bomb,
  'has 4e9 ids': _ids_by_header(first=0, stride=1, count=4_000_000_000),
  'has 1e18 ids': _ids_by_header(first=0, stride=1, count=10**18),
  'has -1 ids': _about(count=-1),
  'has no ids': _about(count=0),
  'has True ids': _about(count=True),
  'begins before 0': _about(first=-5),
  'begins at 1e30': _about(first=10**30),
  'has stride 0': _about(stride=0),
  'has a huge stride': _ids_by_header(first=0, stride=1 << 61, count=_ROWS),
  'has other ids than it says': _about(count=3),
  'has ids beyond the table': _with(ids=np.arange(_ROWS) + 160),
  'has ids in a circle': _with(ids=np.zeros(_ROWS, np.int64)),
  'has float ids': _with(ids=np.zeros(_ROWS)),
  'has ids in two axes': _with(ids=np.zeros((5, _ROWS // 5), np.int64)),
  'has no about': _with(about=None),
  'has a deep about': _with(about=np.frombuffer(b'[' * 100_000, np.uint8)),
  'has an about of floats': _with(about=np.zeros(5)),
  'has about 7': _with(about=np.frombuffer(b'7', np.uint8)),
  'is of another table': _about(table='user'),
  'is of table 7': _about(table=7),
  'is of dtype object': _about(dtype='O'),
  'is of dtype 7': _about(dtype=7),
  'has no columns': _about(columns=0),
  'has 1e12 columns': _about(columns=10**12, bits=4, method='adaptive'),
  'begins at column 99': _about(first_column=99),
  'has an unknown method': _about(bits=4, method='x'),
  'has 31 bits': _about(bits=31, method='adaptive'),
  'has codes it says nothing of': _about(bits=4, method='adaptive'),
  'has no values': _with(values=None),
  'has few values': _with(values=np.zeros((2, 4), np.float32)),
  'has values in one axis': _with(values=np.zeros(_ROWS, np.float32)),
  'has values in three axes': _with(values=np.zeros((_ROWS, 4, 1), np.float32)),
  'has doubles': _with(values=np.zeros((_ROWS, 4))),
  'has big-endian values': _with(values=np.zeros((_ROWS, 4), '>f4')),
  'has text as values': _with(values=np.full((_ROWS, 4), 'xxxx')),
  'has no slot': _with(**{'slot.m': None}),
  'has a narrow slot': _with(**{'slot.m': np.zeros((_ROWS, 1), np.float32)}),
  'has a slot of a row': _with(**{'slot.m': np.zeros(_ROWS, np.float32)}),
  'has a slot of text': _with(**{'slot.m': np.full((_ROWS, 4), 'x')}),
  'has another slot': _with(**{'slot.x': np.zeros(_ROWS, np.float32)}),
  'has objects': _raw_member(
    'slot.m2.npy',
    _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
  ),
  'has 4e9 numbers in its header': _raw_member(
    'slot.m2.npy',
    _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000,), }"),
  ),
  'has a negative shape': _raw_member(
    'slot.m2.npy',
    _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
  ),
  'has a header of code': _raw_member('slot.m2.npy', _npy("__import__('os')")),
  'has a deep header': _raw_member('slot.m2.npy', _npy('(' * 100)),
  'has an unclosed header': _raw_member('slot.m2.npy', _npy("{'descr': '''")),
  'has a member that is no array': _raw_member('slot.m2', b'x'),
  'has a member above it': _raw_member('../x.npy', b'x'),
}
