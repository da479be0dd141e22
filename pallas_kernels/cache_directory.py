"""Where compiled programs are kept between processes, if it can be trusted.

What lies there is run as machine code. So the directory must belong to the user
of this process, and nobody else may write to it.
"""

import os
import pathlib
import platform
import stat

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UntrustedDirectoryError(OSError):
  """Somebody else could put programs into a cache directory."""


def cache_home() -> pathlib.Path:
  """`$XDG_CACHE_HOME`, or else `~/.cache`."""
  home = os.environ.get('XDG_CACHE_HOME')
  return pathlib.Path(home) if home else pathlib.Path.home() / '.cache'


def make_private(folder: str | os.PathLike) -> pathlib.Path:
  """Makes a directory that only this user may write to.

  Args:
    folder: the directory; its parents are made too. Where it exists and is of
      this user, others lose the right to write to it.

  Returns:
    Its path.

  Raises:
    UntrustedDirectoryError: it belongs to somebody else, or is a link.
    OSError: it cannot be made or written to.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  about = folder.lstat()
  if stat.S_ISLNK(about.st_mode):
    raise UntrustedDirectoryError(f'{folder} is not trusted: it is a link')
  if about.st_uid != os.geteuid():
    raise UntrustedDirectoryError(
      f'{folder} is not trusted: it belongs to user {about.st_uid}, not to '
      f'{os.geteuid()}'
    )
  if about.st_mode & _OF_OTHERS:
    folder.chmod(stat.S_IMODE(about.st_mode) & ~_OF_OTHERS)
  if not os.access(folder, os.W_OK):  # a home of containers may be read-only
    raise PermissionError(f'{folder} may not be written')
  return folder


def is_own_file(path: pathlib.Path) -> bool:
  """Whether a regular file is of this user, and nobody else may change it."""
  about = path.lstat()
  return (
    stat.S_ISREG(about.st_mode)
    and about.st_uid == os.geteuid()
    and not about.st_mode & _OF_OTHERS
  )


def describe_processor() -> str:
  """What machine code depends on; other processors have another text."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    lines = []
  words = ('model name', 'flags', 'Features', 'CPU part')
  about = sorted({line for line in lines if line.startswith(words)})
  return '\n'.join([platform.machine(), platform.processor(), *about])
