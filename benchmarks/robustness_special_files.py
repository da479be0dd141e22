"""What may lie where a file should be: `PUT`, functions of a path."""

import os
import pathlib
import socket
from collections.abc import Callable


def _put_pipe(path: pathlib.Path) -> None:
  os.mkfifo(path)


def _put_socket(path: pathlib.Path) -> None:
  before = os.getcwd()
  os.chdir(path.parent)  # the names of sockets must be short
  try:
    with socket.socket(socket.AF_UNIX) as listener:
      listener.bind(path.name)
  finally:
    os.chdir(before)


def _put_device(path: pathlib.Path) -> None:
  os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero


def _put_link(target: str) -> Callable[[pathlib.Path], None]:
  return lambda path: path.symlink_to(target)


def _put_sparse(path: pathlib.Path) -> None:
  with path.open('wb') as file:
    file.truncate(1 << 40)


PUT = {
  'a pipe': _put_pipe,
  'a socket': _put_socket,
  'a device': _put_device,
  'a directory': pathlib.Path.mkdir,
  'a link to /dev/zero': _put_link('/dev/zero'),
  'a link to nothing': _put_link('nothing'),
  'a link to itself': lambda path: path.symlink_to(path.name),
  'a link to a file outside': lambda path: path.symlink_to(
    path.parents[1 + ('run' not in path.parts)] / 'precious'
  ),
  'a link to a directory': _put_link('/'),
  'sparse and huge': _put_sparse,
  'empty': pathlib.Path.touch,
}
