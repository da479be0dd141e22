"""Directories whose files are compared with checksums before they are used.

    DIRECTORY/
      items.npy ...
      SEAL.json         size and CRC-32 of each megabyte of every other file

`seal` writes SEAL.json as the last file of a directory that is complete. A
`SealedDirectory` gives out nothing but what is as it was sealed. The seal
protects itself: it holds the CRC-32 of its own body, and only the exact bytes
that `seal` writes are accepted. A directory of an earlier version has no seal;
its files are given out unchecked, and whoever reads them looks at what they
hold. A JSON file that says it is sealed is of no such directory: without the
seal it is refused.

The checksums are against failing disks and half copies, not against somebody
who rewrites them with the files.
"""

import contextlib
import errno
import io
import json
import logging
import math
import os
import pathlib
import stat
import tokenize
import types
import zlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any, BinaryIO

import numpy as np

NAME = 'SEAL.json'
_MARK = 'sealed'  # the key of a JSON file that says that a seal belongs to it
_MOST_BYTES = 1 << 24  # of a seal, which has ten bytes a megabyte
_MOST_UNSEALED = 1 << 30  # of a file of an earlier version
_MOST_TEXT = 1 << 26  # of what `write_text` writes, if its seal is lost
FORMAT = 1
BLOCK = 1 << 20  # bytes that share a checksum
# The remedy for what a training leaves in its workdir to predict with.
WRITTEN_AT_START = (
  '--mode=train with the same config writes it again, and trains only the '
  'missing steps; of a saved run, put back a whole copy'
)
LOG = logging.getLogger('genrec_jax')
_PRIVATE = 0o600  # rights of a file that only its owner reads
_THREADS = 4
_SERIAL = 16  # blocks that are not worth threads
# What NumPy and json raise for contents that they do not understand.
UNREADABLE = (
  ArithmeticError,
  AttributeError,
  EOFError,
  LookupError,
  MemoryError,
  RecursionError,
  SyntaxError,
  TypeError,
  ValueError,
  Warning,
  tokenize.TokenError,
)


class DamagedError(ValueError):
  """A file is not what was written."""


def seal(directory: str | os.PathLike, meta: str = '') -> None:
  """Reads the files of a directory back and writes their checksums beside them.

  Args:
    directory: without folders; nobody else writes to it any more.
    meta: its JSON file that shall say so; without it, the files are opened
      even if the seal is lost.
  """
  directory = pathlib.Path(directory)
  if meta:
    body = json.loads((directory / meta).read_text())
    (directory / meta).write_text(json.dumps(body | {_MARK: True}, indent=1))
  files = {}
  for path in directory.iterdir():
    if path.name == NAME:
      continue
    with open(path, 'rb') as f:
      size = os.fstat(f.fileno()).st_size
      files[path.name] = [size, list(_compute_checksums(f.fileno(), size))]
  body = dict(format=FORMAT, files=files)
  (directory / NAME).unlink(missing_ok=True)
  with _create_file(directory / NAME) as f:
    f.write(encode_body(body))


def _create_file(path: pathlib.Path, mode: int = 0o666) -> io.BufferedWriter:
  """A new file; what stands there, a link say, is no place to write to."""
  how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
  return open(os.open(path, how, mode), 'wb')


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
  """Opens a file to read it; OSError for a pipe, a device or a directory."""
  # A pipe in the place of the file must not be waited for.
  file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 'rb')
  if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
    file.close()
    raise OSError(errno.EINVAL, 'it is not a file', str(path))
  return file


def read_regular(path: str | os.PathLike, most: int) -> bytes:
  """What `open_regular` opens, whole; OSError for more than so many bytes."""
  with open_regular(path) as file:
    raw = file.read(most + 1)
  if len(raw) > most:
    raise OSError(errno.EFBIG, f'it has more than {most:,} bytes', str(path))
  return raw


class SealedDirectory:
  """The files of a directory, each checked before anything of it is used.

  >>> import tempfile
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   np.save(folder + '/counts.npy', np.arange(3))
  ...   seal(folder)
  ...   SealedDirectory(folder, 'make it again').read_array('counts.npy')
  array([0, 1, 2])

  Attributes:
    path: where it is.
    remedy: what a user does about a damaged or missing file.
    is_sealed: whether it has checksums; those of earlier versions have none.
  """

  def __init__(self, path: str | os.PathLike, remedy: str, seal: str = NAME):
    """Reads the seal.

    Args:
      path: the directory.
      remedy: for messages, as in 'remove DIRECTORY: it is made again from the
        source files'.
      seal: name of the seal.

    Raises:
      DamagedError: the seal is not as it was written.
    """
    self.path = pathlib.Path(path)
    self.remedy = remedy
    self._files, self._seal = {}, seal
    self.is_sealed = os.path.lexists(self.path / seal)
    if self.is_sealed:
      raw = self._read_file(seal, _MOST_BYTES)
      with self.explain_damage(seal):
        self._files = _read_body(decode_body(raw))
      if seal == NAME:
        self._tell_strangers()
    elif seal == NAME and self.path.is_dir():
      LOG.info(
        '%s has no checksums, as if written by an earlier version; its files '
        'are taken as they are where they make sense',
        self.path,
      )

  def read(self, name: str) -> bytes:
    """The contents of a file.

    Raises:
      FileNotFoundError: there is none.
      DamagedError: they are not those that were written.
    """
    raw = self._read_file(name, _MOST_UNSEALED)
    self._compare(name, len(raw), _checksums_of(raw))
    return raw

  def read_json(self, name: str, **keys: type) -> Any:
    """What a JSON file holds; with `keys`, a dictionary that has those."""
    raw = self.read(name)
    with self.explain_damage(name):
      value = json.loads(raw)
      if not self.is_sealed and isinstance(value, dict) and value.get(_MARK):
        raise DamagedError(
          f'{self.path / self._seal} is missing, although {name} says that '
          f'there is one; {self.remedy}'
        )
      check_keys(value, **keys)
      return value

  def read_array(
    self, name: str, dtype=None, shape: tuple[int, ...] | None = None
  ) -> np.ndarray:
    """The array of a .npy file, in memory.

    Args:
      name: of the file.
      dtype: what it must be of; None takes any but objects.
      shape: what it must have; None takes any.
    """
    return np.array(self.map_array(name, dtype, shape))

  def map_array(
    self, name: str, dtype=None, shape: tuple[int, ...] | None = None
  ) -> np.ndarray:
    """The array of a .npy file, mapped; all of it is checked before.

    The arguments are those of `read_array`.
    """
    with self._open_file(name) as file:
      size = os.fstat(file.fileno()).st_size
      self._compare(name, size, _compute_checksums(file.fileno(), size))
      with self.explain_damage(name):
        # The file that was checked, whatever has its name by now.
        return map_values(file, dtype, shape)

  def damaged(self, name: str, reason: object) -> DamagedError:
    """An error that says which file is damaged, how, and the remedy."""
    reason = str(reason) or type(reason).__name__
    return DamagedError(
      f'{self.path / name} is damaged ({reason}); {self.remedy}'
    )

  @contextlib.contextmanager
  def explain_damage(self, name: str) -> Iterator[None]:
    """Makes errors about the contents of a file say that it is damaged."""
    try:
      yield
    except DamagedError:
      raise
    except UNREADABLE as e:
      raise self.damaged(name, e) from None

  def _compare(self, name: str, size: int, checksums: Iterator[int]) -> None:
    if not self.is_sealed:
      return
    if name not in self._files:
      raise self.damaged(name, f'{self._seal} does not know it')
    wanted_size, wanted = self._files[name]
    if size != wanted_size:
      raise self.damaged(name, f'{size:,} bytes instead of {wanted_size:,}')
    for block, (was, now) in enumerate(zip(wanted, checksums, strict=True)):
      if was != now:
        last = min(size, (block + 1) * BLOCK)
        raise self.damaged(
          name, f'something in bytes {block * BLOCK:,} to {last:,} has changed'
        )

  def _read_file(self, name: str, most: int) -> bytes:
    """A file of the size that is sealed, or of at most so many bytes."""
    bound = '' if name in self._files else 'at most '
    most = _MOST_TEXT if bound and self._seal != NAME else most
    most = self._files.get(name, (most,))[0]
    with self._open_file(name) as file:
      size = os.fstat(file.fileno()).st_size
      # Before it is read: a sparse file may be larger than the memory.
      if size > most:
        raise self.damaged(name, f'{size:,} bytes instead of {bound}{most:,}')
      with self.explain_damage(name):
        return file.read()

  @contextlib.contextmanager
  def _open_file(self, name: str) -> Iterator[io.BufferedReader]:
    try:
      with open_regular(self.path / name) as file:
        yield file
    except FileNotFoundError:
      raise FileNotFoundError(
        f'{self.path / name}: no such file; {self.remedy}'
      ) from None
    except PermissionError:
      raise
    except OSError as e:
      raise self.damaged(name, e.strerror or e) from None

  def _tell_strangers(self) -> None:
    present = {path.name for path in self.path.iterdir()}
    for name in sorted(present - {NAME, *self._files}):
      LOG.warning('%s was not written with its directory', self.path / name)


def write_text(
  path: str | os.PathLike, text: str, *, private: bool = False
) -> None:
  """Replaces a file by `text` and leaves a seal of its own beside it.

  A reader sees all of it or the old file.

  Args:
    path: of the file.
    text: what it shall hold.
    private: whether nobody else may read it.
  """
  path, raw = pathlib.Path(path), text.encode()
  seal_path = seal_of(path)
  files = {path.name: [len(raw), list(_checksums_of(raw))]}
  seal = encode_body(dict(format=FORMAT, files=files))
  with contextlib.suppress(OSError):
    former = read_regular(path, len(raw)), read_regular(seal_path, len(seal))
    others = path.stat().st_mode & ~_PRIVATE & 0o777 if private else 0
    if former == (raw, seal) and not others:
      return
  # Killed between the two, the process leaves a file without a seal.
  seal_path.unlink(missing_ok=True)
  for target, content in ((path, raw), (seal_path, seal)):
    temporary = path.with_name(f'.{target.name}.{os.getpid()}')
    temporary.unlink(missing_ok=True)  # of a kill, or a link that was planted
    try:
      mode = _PRIVATE if private and target == path else 0o666
      with _create_file(temporary, mode) as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
      os.replace(temporary, target)
    finally:  # of a full disk, say
      temporary.unlink(missing_ok=True)


def open_file(path: str | os.PathLike, remedy: str) -> SealedDirectory:
  """The directory of a file that `write_text` wrote, to read that file."""
  path = pathlib.Path(path)
  return SealedDirectory(path.parent, remedy, seal=seal_of(path).name)


def seal_of(path: pathlib.Path) -> pathlib.Path:
  """Where `write_text` leaves the seal of a file."""
  return path.with_name(f'.{path.name}.seal')


def check_keys(value: Any, **keys: type | types.UnionType) -> None:
  """Refuses what is no dictionary with such values.

  >>> check_keys({'events': 3, 'name': 'log'}, events=int)

  Raises:
    ValueError: it is not.
  """
  for key, kind in keys.items():
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
      raise ValueError(f'it has no {key}')


def encode_body(body: dict) -> bytes:
  """A JSON text that holds its own checksum."""
  return to_text(body | {'crc32': zlib.crc32(to_text(body))})


def to_text(body: dict) -> bytes:
  """JSON as seals and manifests are written: equal bodies, equal bytes."""
  return json.dumps(body, indent=1, sort_keys=True).encode()


def decode_body(raw: bytes) -> dict:
  """The inverse of `encode_body`.

  Raises:
    ValueError: `raw` is not what it has returned.
  """
  try:
    body = json.loads(raw)
    body.pop('crc32')
    intact = encode_body(body) == raw
  except UNREADABLE:
    intact = False
  if not intact:
    raise ValueError('it is not as it was written')
  return body


def _read_body(body: dict) -> dict[str, list]:
  """The files that a seal lists; refuses a seal that makes no sense."""
  check_keys(body, format=int, files=dict)
  if body['format'] != FORMAT:
    raise ValueError(
      f'of format {body["format"]}, this version reads format {FORMAT}'
    )
  for name, (size, checksums) in body['files'].items():
    if len(checksums) != -(-size // BLOCK):
      raise ValueError(f'{len(checksums)} checksums for {name}')
  return body['files']


def _checksums_of(raw: bytes) -> Iterator[int]:
  view = memoryview(raw)
  for at in range(0, len(raw), BLOCK):
    yield zlib.crc32(view[at : at + BLOCK])


def _compute_checksums(descriptor: int, size: int) -> Iterator[int]:
  """CRC-32 of each block of a file, in order."""

  def compute(at: int) -> int:
    # Not from a mapping, where a sector that cannot be read kills the process.
    return zlib.crc32(os.pread(descriptor, BLOCK, at))

  places = range(0, size, BLOCK)
  if len(places) <= _SERIAL:
    yield from map(compute, places)
  else:
    with futures.ThreadPoolExecutor(_THREADS) as threads:
      yield from threads.map(compute, places)


def map_values(
  file: BinaryIO, dtype=None, shape: tuple[int, ...] | None = None
) -> np.ndarray:
  """The array of an open .npy file, mapped, whatever its header says.

  Args:
    file: opened to be read.
    dtype: what the array must be of; None takes any but objects.
    shape: what it must have; None takes any.

  Raises:
    Exception: one of `UNREADABLE`, for contents that are no such array.
  """
  size = os.fstat(file.fileno()).st_size
  version = np.lib.format.read_magic(file)
  if version not in ((1, 0), (2, 0)):
    raise ValueError(f'version {version} of its format is not known')
  read = (
    np.lib.format.read_array_header_1_0
    if version == (1, 0)
    else np.lib.format.read_array_header_2_0
  )
  actual, in_columns, typed = read(file)
  begin = file.tell()
  # Python's own integers: what the header says may be beyond all bounds.
  count = math.prod(actual)
  if (
    typed.hasobject
    or in_columns
    or min(actual, default=0) < 0
    or begin + count * typed.itemsize != size
  ):
    raise ValueError(f'its header says {typed} {actual} of {size:,} bytes')
  dtype = np.dtype(typed if dtype is None else dtype)
  shape = actual if shape is None else shape
  if typed != dtype or actual != shape:
    raise ValueError(f'{typed} {actual} instead of {dtype} {shape}')
  mapped = np.memmap(file, np.uint8, 'r')
  return np.frombuffer(mapped, typed, count, begin).reshape(actual)
