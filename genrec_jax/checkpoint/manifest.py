"""What makes a checkpoint whole: MANIFEST.json, written last.

    CHECKPOINTS/40/             one directory a step, named by the step
      MANIFEST.json             size and CRC-32 of every other file
      state/ data/ ...          whatever the writer (Orbax) put there

A directory without a manifest is half-written; one whose files differ from its
manifest is damaged. The manifest protects itself: it holds the CRC-32 of its
own body, and only the exact bytes that `write` produces are accepted. Against
somebody who rewrites it, it can be signed (signing.py).

Nothing here imports JAX or Orbax, so inspecting checkpoints is quick.
Directories are paths that `storage.absolute_path` returns, on a disk or on an
object store.
"""

import contextlib
import hashlib
import math
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from genrec_jax import sealed
from genrec_jax.checkpoint import manifest_rules, signing, storage
from genrec_jax.checkpoint.errors import (
  CheckpointError,
  DamagedError,
  IncompleteError,
  UnsignedError,
)

__all__ = [  # the errors of every function here
  'CheckpointError', 'DamagedError', 'IncompleteError', 'UnsignedError',
]  # fmt: skip

NAME = 'MANIFEST.json'
_OF_DESKTOPS = ('.DS_Store', 'Thumbs.db', 'desktop.ini')
FORMAT = 1
MOST_BYTES = 64 << 20
_CHUNK = 1 << 20


def list_steps(directory) -> list[int]:
  """Steps with a directory of their own, whole or not, in ascending order."""
  return sorted(
    int(d.name)
    for d in storage.list_children(directory)
    if d.name.isdecimal() and str(int(d.name)) == d.name and d.is_dir()
  )


def write(step_dir, step: int, key: bytes | None = None, **extra) -> None:
  """Reads every file back, forces it to the disk and writes the manifest.

  Args:
    step_dir: directory of the step; nobody else may write to it any more.
    step: number of the step.
    key: signs the manifest, which then also holds the SHA-256 of every file.
    **extra: JSON values to keep in the manifest beside the files.
  """
  present = storage.list_files(step_dir)
  sums = {name: _read_sums(p, sha256=bool(key)) for name, p in present}
  files = {name: [size, crc] for name, (size, crc, _) in sums.items()}
  body = dict(format=FORMAT, step=step, files=files, **extra)
  if key:
    body['sha256'] = {name: digest for name, (_, _, digest) in sums.items()}
    body['hmac'] = signing.sign(sealed.to_text(body), key)
  # The manifest is what completes the checkpoint. All else is forced to the
  # disk before, so that a power cut leaves either all of it or a directory
  # without manifest.
  for _, path in present:
    storage.sync_path(path)
  storage.sync_directories(step_dir)
  storage.write_file(step_dir / NAME, sealed.encode_body(body))
  storage.sync_path(step_dir.parent)


def read_bytes(step_dir) -> bytes:
  """The manifest as it is written, which nothing was compared with yet."""
  with _report_errors(NAME):
    try:
      return storage.read_file(step_dir, NAME, MOST_BYTES)
    except FileNotFoundError:
      raise IncompleteError(f'half-written: it has no {NAME}') from None


def read(step_dir, key: bytes | None = None) -> dict:
  """The manifest of a step, with every value of the type that it must have.

  Args:
    step_dir: directory of the step.
    key: the manifest must be signed with it.

  Returns:
    The manifest. Only with a key it has `sha256`, of every file.

  Raises:
    IncompleteError: there is none.
    DamagedError: it is not as it was written, or says what none can say.
    UnsignedError: it is not signed with the key.
  """
  return parse(read_bytes(step_dir), step_dir.name, key)


def parse(raw: bytes, name: str, key: bytes | None = None) -> dict:
  """What `read` does, of the bytes of a manifest.

  Args:
    raw: its bytes.
    name: of the directory of the step.
    key: the manifest must be signed with it.
  """
  try:
    body = sealed.decode_body(raw)
  except ValueError:
    raise DamagedError(f'damaged: {NAME} is not as it was written') from None
  if type(version := body.get('format')) is not int or version != FORMAT:
    raise DamagedError(
      f'of format {str(version)[:20]}; this version reads format {FORMAT}'
    )
  if key:
    signing.check_signature(body, sealed.to_text, key)
  try:
    body = manifest_rules.check_body(body)
  except (ValueError, RecursionError) as e:
    raise DamagedError(f'damaged: in {NAME}, {e}') from None
  if str(body['step']) != name:
    raise DamagedError(f'damaged: {NAME} belongs to step {body["step"]}')
  if not key:  # nobody vouches for them
    body.pop('sha256', None)
  return body


def verify(
  step_dir,
  *,
  quick: bool = False,
  key: bytes | None = None,
  skip: str | None = None,
) -> dict:
  """The manifest of a step after comparing every file with it.

  Args:
    step_dir: directory of the step.
    quick: compare names and sizes only, without reading the contents.
    key: the manifest must be signed with it.
    skip: compare names and sizes only of the files whose names start so.

  Returns:
    The manifest: `step`, `files` {name: [size, crc32]} and the writer's extras.

  Raises:
    IncompleteError: without a manifest.
    DamagedError: with the first file that differs in the message.
  """
  body = read(step_dir, key)
  for name in body['files']:
    unread = quick or bool(skip and name.startswith(skip))
    compare_file(step_dir, name, body, quick=unread)
  with _report_errors('its directory'):
    present = [name for name, _ in storage.list_files(step_dir)]
  strangers = [
    name
    for name in present
    if name != NAME and name not in body['files'] and not is_desktop_file(name)
  ]
  if strangers:
    paths = [repr(f'{step_dir}/{name[:200]}') for name in strangers[:4]]
    raise DamagedError(
      f'damaged: its manifest does not list the file {paths[0]}; remove that '
      'file' + (f', and {", ".join(paths[1:])}' if paths[1:] else '')
    )
  return body


def is_desktop_file(name: str) -> bool:
  """Whether a file is one that desktops leave in the folders they show.

  >>> is_desktop_file('state/.DS_Store'), is_desktop_file('state/manifest.bak')
  (True, False)
  """
  last = name.rpartition('/')[2]
  return last in _OF_DESKTOPS or last.startswith('._')


def compare_file(
  step_dir, name: str, body: dict, *, quick: bool = False
) -> None:
  """DamagedError unless a file of a step is what the manifest says.

  Args:
    step_dir: directory of the step.
    name: of the file.
    body: the manifest.
    quick: compare the size only.
  """
  with _open_listed(step_dir, name, body) as file:
    if not quick:
      size = body['files'][name][0]
      _, crc, digest = _sum_up(file, 'sha256' in body, most=size)
      _require_sums(name, body, crc, digest)


def read_file(step_dir, name: str, body: dict) -> bytes:
  """A file of a step; DamagedError unless it is what the manifest says."""
  with _open_listed(step_dir, name, body) as file:
    # One byte more: of a file that is growing.
    raw = file.read(body['files'][name][0] + 1)
  if len(raw) != body['files'][name][0]:
    raise DamagedError(f'damaged: the size of {name} is changing')
  sha256 = hashlib.sha256(raw).hexdigest() if 'sha256' in body else None
  _require_sums(name, body, zlib.crc32(raw), sha256)
  return raw


@contextlib.contextmanager
def _open_listed(step_dir, name: str, body: dict) -> Iterator[BinaryIO]:
  """Opens a file of a manifest that has the size it should."""
  size = body['files'][name][0]
  with _report_errors(name), storage.open_file(step_dir, name) as file:
    actual = storage.count_open_bytes(step_dir, name, file)
    if actual != size:
      raise DamagedError(
        f'damaged: {name} has {actual} bytes instead of {size}'
      )
    yield file


@contextlib.contextmanager
def _report_errors(name: str) -> Iterator[None]:
  try:
    yield
  except FileNotFoundError:
    raise DamagedError(f'damaged: {name} is missing') from None
  except OSError as e:
    raise DamagedError(
      f'damaged: {name} cannot be read ({e.strerror or e})'
    ) from e
  except MemoryError as e:
    raise DamagedError(f'damaged: {name} does not fit into memory') from e


def _require_sums(name: str, body: dict, crc: int, sha256: str | None) -> None:
  same = crc == body['files'][name][1]
  if 'sha256' in body:
    same &= sha256 == body['sha256'][name]
  if not same:
    raise DamagedError(f'damaged: the contents of {name} have changed')


def _read_sums(path, *, sha256: bool) -> tuple[int, int, str | None]:
  with path.open('rb') as file:
    return _sum_up(file, sha256)


def _sum_up(
  file: BinaryIO, sha256: bool, most: float = math.inf
) -> tuple[int, int, str | None]:
  """(size, CRC-32, SHA-256 if that is wanted) of what a file contains.

  A file that grows faster than it is read ends at `most` bytes, or soon after.
  """
  size = crc = 0
  digest = hashlib.sha256() if sha256 else None
  while size <= most and (chunk := file.read(_CHUNK)):
    size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    if digest:
      digest.update(chunk)
  return size, crc, digest and digest.hexdigest()
