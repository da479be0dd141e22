"""Files that are replaced as a whole."""

import os
import pathlib


def replace_file(
  path: pathlib.Path, content: str | bytes, *, private: bool = False
) -> None:
  """Writes a file whole or not at all; a reader sees the old or the new one.

  Args:
    path: of the file.
    content: a text, which gets a line end, or bytes as they are.
    private: whether nobody else may read it.
  """
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  temporary.unlink(missing_ok=True)
  try:
    rights = 0o600 if private else 0o666
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, rights)
    with open(number, 'w' if isinstance(content, str) else 'wb') as file:
      file.write(content + '\n' if isinstance(content, str) else content)
    os.replace(temporary, path)
  finally:  # of a full disk, say
    temporary.unlink(missing_ok=True)
