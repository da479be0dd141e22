"""Where checkpoints are: on a disk, or on a store that `etils.epath` reaches.

A directory is a `pathlib.Path`, or an `epath.Path` of gs://, s3:// or az://. A
store cannot rename a directory and has no fsync, but it never holds half a
file: what is written under a name appears at once and whole. This module
contains the consequences; everything else is the same for both.
"""

import errno
import fcntl
import os
import pathlib
import shutil
import stat
import time
from typing import BinaryIO, TextIO

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


def stat_files(directory, settled_s: float = 0.0) -> list | None:
  """What would be other numbers if the files below a directory were others.

  Args:
    directory: on a disk or a store.
    settled_s: None unless the newest file is so many seconds old. Clocks of
      file systems are coarse, so that a change may not show in a file that was
      written only just before.
  """
  try:
    files = [
      (name, count_bytes(path), modification_time(path))
      for name, path in list_files(directory)
    ]
  except OSError:
    return None
  newest = max((written for _, _, written in files), default=0.0)
  if settled_s and not all(written for _, _, written in files):
    return None  # a store that does not say when
  return files if newest <= time.time() - settled_s else None


def list_children(directory) -> list:
  """What lies in a directory; nothing where there is none."""
  try:
    return list(directory.iterdir())
  except (FileNotFoundError, NotADirectoryError):
    return []


def list_files(directory) -> list[tuple[str, os.PathLike]]:
  """(name below the directory, path) of every file, in the order of names.

  A symbolic link counts as a file, wherever it leads.
  """
  pairs = []
  waiting = [('', directory)]
  while waiting:
    above, parent = waiting.pop()
    for path in list_children(parent):
      name = f'{above}{path.name}'
      if path.is_dir() and not is_link(path):
        waiting.append((f'{name}/', path))
      else:
        pairs.append((name, path))
  return sorted(pairs)


def is_link(path) -> bool:
  return is_disk(path) and path.is_symlink()


def is_present(path) -> bool:
  """Whether something has this name, be it a link that leads nowhere."""
  return path.exists() or is_link(path)


def open_file(directory, name: str, *, write: bool = False) -> BinaryIO:
  """Opens a file to read it, if it is a regular one.

  No link below the directory is followed, so that nothing outside of it is
  read, and no pipe or device is opened, which might block for ever.

  Args:
    directory: an existing one; how its own path leads there does not matter.
    name: of the file below it, with `/` between its parts and without `..`.
    write: open it to change it, too; on a disk.

  Raises:
    OSError: there is no such file, or it is not a regular one.
  """
  if not is_disk(directory):
    return (directory / name).open('rb')
  *folders, last = name.split('/')
  parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
  try:
    for folder in folders:
      _require_kind(parent, folder, stat.S_IFDIR)
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
      child = os.open(folder, flags, dir_fd=parent)
      os.close(parent)
      parent = child
    # Opening a device may already do something, so look at it before. It may
    # have become a pipe since, for whose writer O_NONBLOCK does not wait.
    _require_kind(parent, last, stat.S_IFREG)
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW
    flags |= os.O_NONBLOCK
    file = os.open(last, flags, dir_fd=parent)
  finally:
    os.close(parent)
  if not stat.S_ISREG(os.fstat(file).st_mode):
    os.close(file)
    raise OSError(errno.EINVAL, 'it is not a regular file')
  return os.fdopen(file, 'r+b' if write else 'rb')


def _require_kind(parent: int, name: str, kind: int) -> None:
  actual = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
  if stat.S_IFMT(actual) != kind:
    what = 'symbolic link' if stat.S_ISLNK(actual) else 'special file'
    if stat.S_ISDIR(actual) or stat.S_ISREG(actual):
      what = 'directory' if stat.S_ISDIR(actual) else 'file'
    wanted = 'directory' if kind == stat.S_IFDIR else 'regular file'
    raise OSError(errno.EINVAL, f'it is a {what}, not a {wanted}')


def count_open_bytes(directory, name: str, file: BinaryIO) -> int:
  """The size of a file that `open_file` has opened."""
  if is_disk(directory):
    return os.fstat(file.fileno()).st_size
  return count_bytes(directory / name)


def read_file(directory, name: str, most: int) -> bytes:
  """What `open_file` opens, whole; OSError for more than so many bytes."""
  with open_file(directory, name) as file:
    size = count_open_bytes(directory, name, file)
    raw = file.read(size + 1) if size <= most else b''
  if len(raw) != size:
    raise OSError(errno.EFBIG, f'it has more than {most:,} bytes, or it grows')
  return raw


def create_file(path: pathlib.Path) -> BinaryIO:
  """A new file on a disk, to write and read; there must be nothing, no link."""
  flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
  return os.fdopen(os.open(path, flags, 0o666), 'w+b')


def write_file(path, raw: bytes) -> None:
  """Writes a file so that it is there whole, for good, or not at all."""
  if not is_disk(path):
    path.write_bytes(raw)
    return
  temporary = path.with_name(f'{path.name}.tmp')
  temporary.unlink(missing_ok=True)  # of a kill, or a link to something else
  with create_file(temporary) as file:
    file.write(raw)
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
  """Removes a directory with all that is in it, or what is in its place.

  A link is removed, and nothing behind it.
  """
  try:
    if not is_disk(directory):
      directory.rmtree(missing_ok=True)
    elif not is_present(directory):
      raise FileNotFoundError(errno.ENOENT, 'no such directory', str(directory))
    elif directory.is_dir() and not directory.is_symlink():
      shutil.rmtree(directory, ignore_errors=ignore_errors)
    else:
      directory.unlink()  # of a pipe, rmtree would wait for a writer
  except OSError:
    if not ignore_errors:
      raise


def open_lock(path) -> TextIO:
  """Opens the file of a lock on a disk, which is made if need be.

  Raises:
    OSError: there is a link, which might lead anywhere, or something else.
  """
  flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
  file = os.open(path, flags, 0o666)
  if not stat.S_ISREG(os.fstat(file).st_mode):
    os.close(file)
    raise OSError(errno.EINVAL, 'it is not a regular file', str(path))
  return os.fdopen(file, 'r+')


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
