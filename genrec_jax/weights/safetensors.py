"""Safetensors files, with NumPy alone.

    8 bytes             length N of the header, little-endian
    N bytes             JSON: name -> dtype, shape and where the bytes lie
    the rest            the values, little-endian, in the order of the header

A file comes from anywhere, so nothing of a header is believed: `open_file`
compares all of it with the size of the file before the first value is touched,
and then maps the values instead of copying them. `create_file` gives arrays
that are mapped onto the file too, so that a table larger than memory can be
filled in parts. The `safetensors` package can do neither with NumPy: it copies
what it reads, wants whole arrays to write, and lets a name that appears twice
pass.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np

from genrec_jax.data import scratch

# As the reference implementation has it: a longer header is an attack.
MOST_HEADER_BYTES = 100_000_000
MOST_DIMENSIONS = 32
ALIGNMENT = 8  # the largest item; the header is filled up to a multiple
METADATA = '__metadata__'
DTYPES = {
  'BOOL': np.dtype(bool),
  'U8': np.dtype(np.uint8),
  'I8': np.dtype(np.int8),
  'F8_E4M3': np.dtype(ml_dtypes.float8_e4m3fn),
  'F8_E5M2': np.dtype(ml_dtypes.float8_e5m2),
  'F8_E8M0': np.dtype(ml_dtypes.float8_e8m0fnu),
  'I16': np.dtype('<i2'),
  'U16': np.dtype('<u2'),
  'F16': np.dtype('<f2'),
  'BF16': np.dtype(ml_dtypes.bfloat16),
  'I32': np.dtype('<i4'),
  'U32': np.dtype('<u4'),
  'F32': np.dtype('<f4'),
  'I64': np.dtype('<i8'),
  'U64': np.dtype('<u8'),
  'F64': np.dtype('<f8'),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_COPIED = 1 << 24  # bytes that `write_file` copies at a time


class WeightsError(ValueError):
  """A file of weights cannot be used; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Spec:
  """What an array looks like.

  Attributes:
    dtype: one of `DTYPES`.
    shape: lengths of its axes.
  """

  dtype: np.dtype
  shape: tuple[int, ...]

  @classmethod
  def of(cls, array) -> 'Spec':
    """The spec of an array, or of whatever has a dtype and a shape."""
    return cls(np.dtype(array.dtype), tuple(array.shape))

  @property
  def size(self) -> int:
    """Bytes of the values."""
    return math.prod(self.shape) * self.dtype.itemsize

  def __str__(self) -> str:
    return f'{self.dtype}[{",".join(map(str, self.shape))}]'


class TensorFile(Mapping):
  """A file that was opened: name -> array, mapped and read-only.

  Attributes:
    path: of the file.
    specs: name -> what the array looks like.
    metadata: the texts that came with the arrays.
  """

  def __init__(self, path, specs, offsets, metadata):
    """`open_file` makes these."""
    self.path, self.specs, self.metadata = path, specs, metadata
    self._offsets = offsets

  def __getitem__(self, name: str) -> np.ndarray:
    return _map_array(self.path, self._offsets[name], self.specs[name], 'r')

  def __iter__(self) -> Iterator[str]:
    return iter(self.specs)

  def __len__(self) -> int:
    return len(self.specs)


def open_file(path: str | os.PathLike) -> TensorFile:
  """Opens a safetensors file, after checking every word of its header.

  Args:
    path: of the file.

  Returns:
    Its arrays, which are read from the disk where they are looked at.

  Raises:
    FileNotFoundError: there is no such file.
    WeightsError: the file is not what its header says.

  >>> import tempfile
  >>> path = tempfile.mkdtemp() + '/two.safetensors'
  >>> write_file(path, {'a': np.arange(3), 'b': np.ones((2, 2))})
  >>> file = open_file(path)
  >>> str(file.specs['b']), file['a'].tolist()
  ('float64[2,2]', [0, 1, 2])
  """
  path = find_file(path)
  try:
    size = path.stat().st_size
    with open(path, 'rb') as file:
      length = int.from_bytes(file.read(8), 'little')
      if size < 8:
        raise _Malformed(f'it has {size} bytes, too few for a header')
      if length > MOST_HEADER_BYTES:
        raise _Malformed(
          f'its header would have {length:,} bytes, more than the '
          f'{MOST_HEADER_BYTES:,} that are allowed'
        )
      if length > size - 8:
        raise _Malformed(
          f'its header would have {length:,} bytes, and the file has {size:,}'
        )
      raw = file.read(length)
    specs, offsets, metadata = _parse_header(raw, size - 8 - length)
  except _Malformed as e:
    raise WeightsError(f'{path} is not a safetensors file: {e}') from None
  return TensorFile(
    path, specs, {n: 8 + length + at for n, at in offsets.items()}, metadata
  )


def find_file(path: str | os.PathLike) -> pathlib.Path:
  """The path of something to read: opening a pipe would wait for a writer.

  Args:
    path: of a file, or of a link to one.

  Returns:
    The same.

  Raises:
    FileNotFoundError: nothing is there.
    WeightsError: a directory, a pipe or a device is there.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(f'No such file: {str(path)!r}')
  if not path.is_file():
    kind = 'directory' if path.is_dir() else 'pipe or a device'
    raise WeightsError(f'{path} is a {kind}, must be a file')
  return path


def write_file(
  path: str | os.PathLike,
  arrays: Mapping[str, np.ndarray],
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes arrays, a few megabytes of each at a time.

  The file appears under its name when it is complete; until then an older one
  of that name stays.

  Args:
    path: of the file.
    arrays: name -> NumPy array, or whatever gives one when it is cut.
    metadata: texts to keep with them.

  Raises:
    WeightsError: a name or a dtype that such a file cannot hold.
  """
  specs = {name: Spec.of(array) for name, array in arrays.items()}
  with create_file(path, specs, metadata) as views:
    for name, array in arrays.items():
      copy_array(array, views[name])


def copy_array(source, target: np.ndarray) -> None:
  """Copies an array into a mapped one, in runs along the first axis.

  Args:
    source: of any kind that NumPy takes, on a device say.
    target: of the same shape.
  """
  if not target.ndim:
    target[...] = np.asarray(source)
    return
  rows = target.shape[0]
  run = max(1, _COPIED // max(1, target.nbytes // max(1, rows)))
  for first in range(0, rows, run):
    target[first : first + run] = np.asarray(source[first : first + run])


@contextlib.contextmanager
def create_file(
  path: str | os.PathLike,
  specs: Mapping[str, Spec],
  metadata: Mapping[str, str] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
  """Arrays of zeros that become a file when the block ends.

  Args:
    path: of the file; its directory is made.
    specs: name -> dtype and shape of each array.
    metadata: texts to keep with them.

  Yields:
    name -> array, mapped onto the file. Nothing stays of a block that fails.

  >>> import tempfile
  >>> path = tempfile.mkdtemp() + '/table.safetensors'
  >>> with create_file(path, {'t': Spec(np.dtype('float32'), (4, 2))}) as views:
  ...   views['t'][1:3] = 1
  >>> open_file(path)['t'].sum(axis=1).tolist()
  [0.0, 2.0, 2.0, 0.0]
  """
  path = pathlib.Path(path)
  if path.is_dir():
    raise WeightsError(
      f'{path} is a directory; give the path of a file, such as '
      f'{path / "weights.safetensors"}'
    )
  header, offsets, size = _make_header(specs, dict(metadata or {}))
  path.parent.mkdir(parents=True, exist_ok=True)
  with scratch.replaced_file(path) as partial:
    with open(partial, 'wb') as file:
      file.write(len(header).to_bytes(8, 'little') + header)
      _reserve_space(file, 8 + len(header), size)
    start = 8 + len(header)
    views = {
      name: _map_array(partial, start + offsets[name], spec, 'r+')
      for name, spec in specs.items()
    }
    yield views
    for view in views.values():
      if isinstance(view, np.memmap):
        view.flush()


class _Malformed(Exception):
  """What is wrong with a header, in words."""


def _parse_header(raw: bytes, data_bytes: int):
  """(specs, offsets, metadata) of a header, whose data has so many bytes."""
  header = _decode_header(raw)
  metadata = header.pop(METADATA, {})
  if not isinstance(metadata, dict) or not all(
    isinstance(value, str) for value in metadata.values()
  ):
    raise _Malformed(f'its {METADATA} holds something else than texts')
  specs, spans = {}, []
  for name, entry in header.items():
    spec, begin, end = _parse_entry(name, entry)
    specs[name] = spec
    spans.append((begin, end, name))
  # Each byte of the data belongs to one array: no overlaps, and no gaps in
  # which something else could travel.
  at = 0
  for begin, end, name in sorted(spans):
    if begin != at:
      kind = 'overlaps the one before' if begin < at else 'leaves a gap'
      raise _Malformed(f'{name!r} begins at byte {begin:,} and {kind} ({at:,})')
    at = end
  if at != data_bytes:
    raise _Malformed(
      f'its arrays have {at:,} bytes and the file has {data_bytes:,} for them'
    )
  return specs, {name: begin for begin, _, name in spans}, metadata


def _decode_header(raw: bytes) -> dict:
  """The JSON of a header, in which no name may appear twice."""

  def require_unique(pairs):
    names = dict(pairs)
    if len(names) != len(pairs):
      seen = set()
      twice = next(n for n, _ in pairs if n in seen or seen.add(n))
      raise _Malformed(f'the name {twice!r} appears twice')
    return names

  def refuse_constant(constant):
    raise _Malformed(f'its header holds {constant}')

  try:
    header = json.loads(
      raw.decode(),
      object_pairs_hook=require_unique,
      parse_constant=refuse_constant,
    )
  except (ValueError, RecursionError) as e:
    raise _Malformed(f'its header is not JSON ({e})') from None
  if not isinstance(header, dict):
    raise _Malformed('its header is not a JSON object')
  return header


def _parse_entry(name: str, entry) -> tuple[Spec, int, int]:
  """(spec, begin, end) of what a header says of an array."""
  try:
    code, shape = entry['dtype'], entry['shape']
    begin, end = entry['data_offsets']
  except (TypeError, KeyError, ValueError):
    raise _Malformed(
      f'{name!r} lacks its dtype, its shape or its two data_offsets'
    ) from None
  if not isinstance(code, str) or code not in DTYPES:
    raise _Malformed(
      f'{name!r} is of dtype {code!r}; known are {", ".join(DTYPES)}'
    )
  if not isinstance(shape, list) or not all(
    map(_is_natural, (begin, end, *shape))
  ):
    raise _Malformed(
      f'the shape or the data_offsets of {name!r} are not whole numbers from 0 '
      f'to {sys.maxsize:,}'
    )
  if len(shape) > MOST_DIMENSIONS:
    raise _Malformed(f'{name!r} has {len(shape)} axes')
  spec = Spec(DTYPES[code], tuple(shape))
  # An axis of no length must not hide what NumPy could not address.
  if math.prod(n or 1 for n in shape) * spec.dtype.itemsize > sys.maxsize:
    raise _Malformed(f'{name!r} is {spec}, too large to be addressed')
  if end - begin != spec.size:
    raise _Malformed(
      f'{name!r} is {spec}, {spec.size:,} bytes, and its data_offsets span '
      f'{end - begin:,}'
    )
  return spec, begin, end


def _is_natural(value) -> bool:
  """Whether it is an integer that fits 63 bits; True and 1.0 are none."""
  return type(value) is int and 0 <= value <= sys.maxsize


def _make_header(specs: Mapping[str, Spec], metadata: dict):
  """(header, name -> offset, bytes of all arrays)."""
  for key, value in metadata.items():
    if not isinstance(key, str) or not isinstance(value, str):
      raise WeightsError(f'metadata {key!r} is {value!r}, must be a text')
  entries, offsets, at = {}, {}, 0
  if metadata:
    entries[METADATA] = metadata
  # Wide items first: so each array begins at a multiple of its item.
  order = sorted(specs, key=lambda n: (-specs[n].dtype.itemsize, n))
  for name in order:
    spec = specs[name]
    if name == METADATA:
      raise WeightsError(f'no array may be called {METADATA}')
    code = _CODES.get(spec.dtype.newbyteorder('<'))
    if code is None:
      raise WeightsError(
        f'{name!r} is {spec}, of a dtype that safetensors has no name for'
      )
    entries[name] = {
      'dtype': code,
      'shape': [int(n) for n in spec.shape],
      'data_offsets': [at, at + spec.size],
    }
    offsets[name] = at
    at += spec.size
  raw = json.dumps(entries, separators=(',', ':'), ensure_ascii=False).encode()
  raw += b' ' * (-len(raw) % ALIGNMENT)
  if len(raw) > MOST_HEADER_BYTES:
    raise WeightsError(
      f'{len(specs):,} arrays make a header of {len(raw):,} bytes, more than '
      f'the {MOST_HEADER_BYTES:,} that are allowed'
    )
  return raw, offsets, at


def _reserve_space(file, start: int, size: int) -> None:
  """Gives the file its room now: a full disk is an error, not a dead process.

  Writing through a map into a hole of a full disk would end in SIGBUS.
  """
  file.flush()
  if not size:
    return
  if hasattr(os, 'posix_fallocate'):
    os.posix_fallocate(file.fileno(), start, size)
    return
  zeros = bytes(min(size, _COPIED))
  for first in range(0, size, _COPIED):
    file.write(zeros[: size - first])


def _map_array(path, offset: int, spec: Spec, mode: str) -> np.ndarray:
  """An array that lies in a file; one without elements lies nowhere."""
  dtype = spec.dtype.newbyteorder('<')
  if not spec.size:
    return np.zeros(spec.shape, dtype)
  array = np.memmap(path, np.uint8, mode, offset, (spec.size,))
  return array.view(dtype).reshape(spec.shape)
