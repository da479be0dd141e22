"""What makes a checkpoint whole: MANIFEST.json, written last.

    CHECKPOINTS/40/             one directory a step, named by the step
      MANIFEST.json             size and CRC-32 of every other file
      state/ data/ ...          whatever the writer (Orbax) put there

A directory without a manifest is half-written; one whose files differ from its
manifest is damaged. The manifest protects itself: it holds the CRC-32 of its
own body, and only the exact bytes that `write` produces are accepted.

Nothing here imports JAX or Orbax, so inspecting checkpoints is quick.
Directories are paths that `storage.absolute_path` returns, on a disk or on an
object store.
"""

import json
import zlib

from genrec_jax.checkpoint import storage

NAME = 'MANIFEST.json'
FORMAT = 1
_CHUNK = 1 << 20


class CheckpointError(ValueError):
  """A checkpoint could not be written, or must not be loaded."""


class IncompleteError(CheckpointError):
  """The directory has no manifest: its save never finished."""


class DamagedError(CheckpointError):
  """The directory is not what its manifest says."""


def list_steps(directory) -> list[int]:
  """Steps with a directory of their own, whole or not, in ascending order."""
  return sorted(
    int(d.name)
    for d in storage.list_children(directory)
    if d.name.isdecimal() and str(int(d.name)) == d.name and d.is_dir()
  )


def write(step_dir, step: int, **extra) -> None:
  """Reads every file back, forces it to the disk and writes the manifest.

  Args:
    step_dir: directory of the step; nobody else may write to it any more.
    step: number of the step.
    **extra: JSON values to keep in the manifest beside the files.
  """
  present = storage.list_files(step_dir)
  files = {
    name: [storage.count_bytes(p), _compute_checksum(p)] for name, p in present
  }
  body = dict(format=FORMAT, step=step, files=files, **extra)
  # The manifest is what completes the checkpoint. All else is forced to the
  # disk before, so that a power cut leaves either all of it or a directory
  # without manifest.
  for _, path in present:
    storage.sync_path(path)
  storage.sync_directories(step_dir)
  storage.write_file(step_dir / NAME, _encode_body(body))
  storage.sync_path(step_dir.parent)


def read(step_dir) -> dict:
  """The manifest of a step; raises IncompleteError or DamagedError."""
  path = step_dir / NAME
  try:
    raw = path.read_bytes()
  except FileNotFoundError:
    raise IncompleteError(f'half-written: it has no {NAME}') from None
  except OSError as e:
    raise DamagedError(
      f'damaged: {NAME} cannot be read ({e.strerror or e})'
    ) from e
  try:
    body = json.loads(raw)
    body.pop('crc32')
    intact = _encode_body(body) == raw
  except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
    intact = False
  if not intact:
    raise DamagedError(f'damaged: {NAME} is not as it was written')
  if body['format'] != FORMAT:
    raise DamagedError(
      f'of format {body["format"]}; this version reads format {FORMAT}'
    )
  if str(body['step']) != step_dir.name:
    raise DamagedError(f'damaged: {NAME} belongs to step {body["step"]}')
  return body


def verify(step_dir, *, quick: bool = False) -> dict:
  """The manifest of a step after comparing every file with it.

  Args:
    step_dir: directory of the step.
    quick: compare names and sizes only, without reading the contents.

  Returns:
    The manifest: `step`, `files` {name: [size, crc32]} and the writer's extras.

  Raises:
    IncompleteError: without a manifest.
    DamagedError: with the first file that differs in the message.
  """
  body = read(step_dir)
  for name, (size, checksum) in body['files'].items():
    path = step_dir / name
    try:
      actual = storage.count_bytes(path)
      if actual != size:
        raise DamagedError(
          f'damaged: {name} has {actual} bytes instead of {size}'
        )
      if not quick and _compute_checksum(path) != checksum:
        raise DamagedError(f'damaged: the contents of {name} have changed')
    except FileNotFoundError:
      raise DamagedError(f'damaged: {name} is missing') from None
    except OSError as e:
      raise DamagedError(
        f'damaged: {name} cannot be read ({e.strerror or e})'
      ) from e
  return body


def _encode_body(body: dict) -> bytes:
  text = json.dumps(body, indent=1, sort_keys=True)
  return json.dumps(
    body | {'crc32': zlib.crc32(text.encode())}, indent=1, sort_keys=True
  ).encode()


def _compute_checksum(path) -> int:
  checksum = 0
  with path.open('rb') as f:
    while chunk := f.read(_CHUNK):
      checksum = zlib.crc32(chunk, checksum)
  return checksum
