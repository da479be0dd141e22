"""Files that are replaced as a whole."""

import os
import pathlib


def replace_file(
  path: pathlib.Path, text: str, *, private: bool = False
) -> None:
  """Writes a file whole or not at all; a reader sees the old or the new one."""
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  temporary.unlink(missing_ok=True)
  try:
    rights = 0o600 if private else 0o666
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights)
    with open(number, 'w') as file:
      file.write(text + '\n')
    os.replace(temporary, path)
  finally:  # of a full disk, say
    temporary.unlink(missing_ok=True)
