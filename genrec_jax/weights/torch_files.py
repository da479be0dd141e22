"""Reads what `torch.save` has written, without PyTorch.

Such a file is a zip archive: a pickle that says what there is, and one record
of bytes for each storage. A pickle may name any function of Python; here it
gets those that build tensors and nothing else, and may change no object but the
dicts it makes. Storages are mapped, compared with their checksums, and every
tensor with the size of its storage.
"""

import collections
import math
import os
import pathlib
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

from genrec_jax.data.quoting import LONGEST, escape, quote
from genrec_jax.weights.safetensors import (
  MOST_DIMENSIONS,
  WeightsError,
  find_file,
)

SUFFIXES = ('.pt', '.pth', '.bin', '.ckpt')
MOST_PICKLE_BYTES = 10_000_000
# Where trainers put the weights beside other things.
NESTED = ('model_state_dict', 'state_dict')
# What wrappers put before each name: of several devices, of compiled modules.
PREFIXES = ('module.', '_orig_mod.')
_STORAGES = {
  'BFloat16Storage': ml_dtypes.bfloat16,
  'BoolStorage': np.bool_,
  'ByteStorage': np.uint8,
  'CharStorage': np.int8,
  'DoubleStorage': np.float64,
  'FloatStorage': np.float32,
  'HalfStorage': np.float16,
  'IntStorage': np.int32,
  'LongStorage': np.int64,
  'ShortStorage': np.int16,
}
_KEYS = (str, bytes, int, float, bool, type(None))  # of dicts, and in sets
_LOCAL_HEADER = struct.Struct('<26xHH')  # lengths of the name and of extras


def read_state_dict(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """The weights that `torch.save` has written, a module's or a trainer's.

  Args:
    path: of a file of PyTorch 1.6 or later.

  Returns:
    name -> array, mapped and read-only; prefixes of wrappers are taken off.

  Raises:
    FileNotFoundError: there is no such file.
    WeightsError: the file is something else, or would call other functions.
  """
  path = find_file(path)
  try:
    with zipfile.ZipFile(path) as archive:
      root = _Reader(path, archive).read()
  except (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    UnicodeDecodeError,  # names of records
    NotImplementedError,  # ways to compress
    OSError,  # places outside the file
    RuntimeError,  # passwords
  ):
    raise WeightsError(
      f'{path} is not an archive of torch.save (PyTorch 1.6 and later); load '
      'it with PyTorch and save its state_dict again'
    ) from None
  for key in NESTED:
    if isinstance(root, Mapping) and isinstance(root.get(key), Mapping):
      root = root[key]
      break
  if not isinstance(root, Mapping) or not root:
    raise WeightsError(f'{path} holds no state_dict')
  for name, value in root.items():
    if not isinstance(name, str) or not isinstance(value, np.ndarray):
      raise WeightsError(
        f'{path} holds no state_dict: {quote(name)} is a {type(value).__name__}'
      )
  state = dict(root)
  for prefix in PREFIXES:
    if all(name.startswith(prefix) for name in state):
      state = {name.removeprefix(prefix): x for name, x in state.items()}
  return state


class _Reader:
  """An archive: its pickle, and its storages as arrays."""

  def __init__(self, path: pathlib.Path, archive: zipfile.ZipFile):
    self.path, self._archive = path, archive
    self._records = {info.filename: info for info in archive.infolist()}
    pickles = [n for n in self._records if n.endswith('/data.pkl')]
    if len(pickles) != 1:
      raise WeightsError(f'{path} is not an archive of torch.save: no data.pkl')
    self._pickle = pickles[0]
    self._folder = self._pickle.removesuffix('data.pkl')

  def read(self):
    """What was given to `torch.save`, tensors as arrays."""
    order = self._folder + 'byteorder'
    if order in self._records:
      little = self._records[order].file_size == len(b'little')
      if not little or self._archive.read(order) != b'little':
        raise WeightsError(f'{self.path} was written by a big-endian machine')
    if self._records[self._pickle].file_size > MOST_PICKLE_BYTES:
      raise WeightsError(f'{self.path}: its data.pkl is too large')
    with self._archive.open(self._pickle) as file:
      try:
        return _Unpickler(file, self).load()
      except WeightsError:
        raise
      except Exception as e:  # a pickle can fail in any way
        raise WeightsError(f'{self.path} cannot be read: {e}') from e

  def map_storage(self, key: str, dtype: np.dtype) -> np.ndarray:
    """A record as a flat array."""
    info = self._records.get(f'{self._folder}data/{key}')
    if info is None or info.compress_type != zipfile.ZIP_STORED:
      raise WeightsError(f'{self.path} lacks the storage {quote(key)}')
    # The record begins behind a header of its own, which may be longer than
    # that of the archive's directory says.
    with open(self.path, 'rb') as file:
      file.seek(info.header_offset)
      name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    begin = info.header_offset + _LOCAL_HEADER.size + name + extra
    if begin + info.file_size > self.path.stat().st_size:
      raise WeightsError(f'{self.path} is cut short in storage {quote(key)}')
    if not info.file_size:
      return np.zeros(0, dtype)
    raw = np.memmap(self.path, np.uint8, 'r', begin, (info.file_size,))
    # 0: PyTorch was told to compute none.
    if info.CRC and info.CRC != zlib.crc32(raw):
      raise WeightsError(f'{self.path} is damaged in storage {quote(key)}')
    return raw[: info.file_size - info.file_size % dtype.itemsize].view(dtype)


class _StorageName(str):
  """What a pickle gets for a class of storages: text, which nothing changes."""

  __slots__ = ()


# The one in Python, whose instructions can be taken away.
class _Unpickler(pickle._Unpickler):
  """Knows the functions that build tensors, and no others."""

  dispatch = dict(pickle._Unpickler.dispatch)

  def __init__(self, file, reader: _Reader):
    super().__init__(file)
    self._reader = reader

  def _skip_state(self):
    """Stands for the instruction BUILD, which sets attributes of an object.

    On a dtype or a function it would change the process for everyone. A
    state_dict has attributes, too, which are not weights.
    """
    del self.stack[-1]
    if type(self.stack[-1]) is not collections.OrderedDict:
      kind = type(self.stack[-1]).__name__
      raise WeightsError(f'{self._reader.path} sets attributes of a {kind}')

  dispatch[pickle.BUILD[0]] = _skip_state

  def _check_keys(self, keys: Iterable) -> None:
    """Refuses keys that take long to hash, such as tuples of tuples."""
    for key in keys:
      is_short = type(key) is not int or key.bit_length() < 64
      if type(key) not in _KEYS or not is_short:
        raise WeightsError(
          f'{self._reader.path} has a {type(key).__name__} as a key, which '
          'weights do not need; load it with PyTorch, if you trust it, and '
          'save its state_dict'
        )

  def _build_dict(self, pairs=()) -> collections.OrderedDict:
    """An OrderedDict of pairs, or of a dict that was checked before."""
    pairs = list(pairs.items() if isinstance(pairs, dict) else pairs)
    self._check_keys(key for key, _ in pairs)
    return collections.OrderedDict(pairs)

  def _check_first(instruction: bytes, keys: slice):
    """Puts a look at the keys before an instruction that hashes them.

    Args:
      instruction: of a pickle.
      keys: where they then are in the stack.
    """
    run = pickle._Unpickler.dispatch[instruction[0]]

    def check_and_run(self):
      self._check_keys(self.stack[keys])
      run(self)

    return check_and_run

  dispatch[pickle.SETITEM[0]] = _check_first(pickle.SETITEM, slice(-2, -1))
  for _instruction in (pickle.SETITEMS, pickle.DICT):
    dispatch[_instruction[0]] = _check_first(_instruction, slice(0, None, 2))
  for _instruction in (pickle.ADDITEMS, pickle.FROZENSET):
    dispatch[_instruction[0]] = _check_first(_instruction, slice(None))

  def find_class(self, module: str, name: str):
    allowed = {
      ('collections', 'OrderedDict'): self._build_dict,
      ('torch._utils', '_rebuild_tensor_v2'): _build_tensor,
      ('torch._utils', '_rebuild_parameter'): lambda data, *_: data,
    }
    if (module, name) in allowed:
      return allowed[module, name]
    if module == 'torch' and name in _STORAGES:
      return _StorageName(name)
    wanted = escape(f'{module}.{name}'[:LONGEST])
    raise WeightsError(
      f'{self._reader.path} asks for {wanted}, which '
      'weights do not need; load it with PyTorch, if you trust it, and save '
      'its state_dict'
    )

  def persistent_load(self, pid):
    kind, name, key, *_ = pid
    if kind != 'storage' or not isinstance(name, _StorageName):
      raise WeightsError(f'{self._reader.path} holds a {quote(kind)}')
    if not isinstance(key, str):
      raise WeightsError(f'{self._reader.path} has a storage of no name')
    return self._reader.map_storage(key, np.dtype(_STORAGES[name]))


def _build_tensor(storage, offset, shape, strides, *_) -> np.ndarray:
  """A tensor in its storage, after making sure that it ends there."""
  numbers = (offset, *shape, *strides)
  if (
    not isinstance(storage, np.ndarray)
    or len(shape) != len(strides)
    or len(shape) > MOST_DIMENSIONS
    or any(type(n) is not int or not 0 <= n < 1 << 63 for n in numbers)
  ):
    raise WeightsError('it holds a tensor of no possible shape')
  if math.prod(shape) == 0:
    return np.zeros(shape, storage.dtype)
  last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
  if last >= storage.size:
    raise WeightsError(
      f'a tensor of shape {tuple(shape)} ends at number {last:,} of a storage '
      f'of {storage.size:,}'
    )
  if math.prod(shape) > storage.size:  # a step of 0 could repeat without end
    raise WeightsError(
      f'a tensor of shape {tuple(shape)} has more numbers than its storage, '
      f'{storage.size:,}'
    )
  return np.lib.stride_tricks.as_strided(
    storage[offset:],
    shape,
    [s * storage.itemsize for s in strides],
    writeable=False,
  )
