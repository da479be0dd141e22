"""Where checkpoints are: on a disk, or on a store that `etils.epath` reaches.

A directory is a `pathlib.Path`, or an `epath.Path` of gs://, s3:// or az://. A
store cannot rename a directory and has no fsync, but it never holds half a
file: what is written under a name appears at once and whole. This module
contains the consequences; everything else is the same for both.
"""

import fcntl
import os
import pathlib
import shutil

_CACHED = ('gs', 'gcs', 's3', 's3a', 'az', 'abfs')


def absolute_path(path: str | os.PathLike):
  """The absolute path of a directory or file, given as a name or a path."""
  text = os.fspath(path)
  if '://' not in text:
    return pathlib.Path(text).absolute()
  import fsspec
  from etils import epath

  # Other processes write there too: no listing may be remembered.
  for protocol in _CACHED:
    options = fsspec.config.conf.setdefault(protocol, {})
    options.setdefault('use_listings_cache', False)
  try:
    return epath.Path(text)
  except KeyError as e:
    raise ValueError(
      f'{text}: {e.args[0]} is not a file system that etils.epath knows; it '
      'knows gs://, s3://, az:// and paths of a disk'
    ) from None


def is_disk(path) -> bool:
  return isinstance(path, pathlib.Path)


def find_obstacle(directory) -> str | None:
  """Why Orbax cannot write to a directory, in words.

  Of a store it does not know it would begin to make a directory on the disk.
  """
  text = os.fspath(directory)
  if is_disk(directory) or text.startswith('gs://'):
    return None
  return (
    f'Orbax, which writes arrays, reaches disks and gs:// alone, not {text}'
  )


def count_bytes(path) -> int:
  status = path.stat()
  return status.st_size if is_disk(path) else status.length


def modification_time(path) -> float:
  """When it was written, in seconds since 1970; 0 where that is not known."""
  status = path.stat()
  return status.st_mtime if is_disk(path) else status.mtime


def list_children(directory) -> list:
  """What lies in a directory; nothing where there is none."""
  try:
    return list(directory.iterdir())
  except (FileNotFoundError, NotADirectoryError):
    return []


def list_files(directory) -> list[tuple[str, os.PathLike]]:
  """(name below the directory, path) of every file, in the order of names."""
  pairs = []
  waiting = [('', directory)]
  while waiting:
    above, parent = waiting.pop()
    for path in list_children(parent):
      name = f'{above}{path.name}'
      if path.is_dir():
        waiting.append((f'{name}/', path))
      else:
        pairs.append((name, path))
  return sorted(pairs)


def write_file(path, raw: bytes) -> None:
  """Writes a file so that it is there whole, for good, or not at all."""
  if not is_disk(path):
    path.write_bytes(raw)
    return
  temporary = path.with_name(f'{path.name}.tmp')
  temporary.write_bytes(raw)
  sync_path(temporary)
  os.replace(temporary, path)
  sync_path(path.parent)


def sync_path(path) -> None:
  """Forces a file, or the names in a directory, to the disk."""
  if not is_disk(path):
    return
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync_directories(top) -> None:
  """The same for a directory and all below it."""
  if is_disk(top):
    for parent, _, _ in os.walk(top):
      sync_path(pathlib.Path(parent))


def remove_directory(directory, *, ignore_errors: bool = False) -> None:
  """Removes a directory with all that is in it; none is none."""
  if is_disk(directory):
    shutil.rmtree(directory, ignore_errors=ignore_errors)
    return
  try:
    directory.rmtree(missing_ok=True)
  except OSError:
    if not ignore_errors:
      raise


def lock_file(file) -> bool:
  """Locks an open file until this process ends; False if another has it.

  A file system without locks is used without one.
  """
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except OSError:
    pass
  return True


def free_bytes(directory: pathlib.Path) -> int:
  """Bytes left on the disk of a directory."""
  return shutil.disk_usage(directory).free
