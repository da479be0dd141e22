"""Whether the files of a saved run are those that `Run.save` wrote.

Weights have checksums of their own, which are compared when they are read.
"""

import contextlib
import errno
import json
import os
import pathlib
import zlib
from collections.abc import Iterator

# In a saved run alone: a workdir changes.
CHECKSUMS = 'checksums.json'
_REPORT = 'report.json'
_FILES = ('config.json', _REPORT, 'items/*', 'encoder/*')
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENOTDIR)


def write_checksums(path: pathlib.Path) -> None:
  """Leaves the checksums of the settings and vocabularies beside them."""
  files = sorted(file for pattern in _FILES for file in path.glob(pattern))
  checksums = {
    file.relative_to(path).as_posix(): zlib.crc32(file.read_bytes())
    for file in files
  }
  (path / CHECKSUMS).write_text(json.dumps(checksums, indent=1))


def check_saved(path: pathlib.Path) -> None:
  """Compares the files of a run with their checksums, if it has any.

  Raises:
    ValueError: a file is not the one that was saved.
    FileNotFoundError: there is no run, or a file of it is missing.
  """
  if not os.path.lexists(path / 'config.json'):
    raise FileNotFoundError(
      f'{path} holds no run (there is no config.json); give what run.save() '
      'was given, or the --workdir of a training'
    )
  try:
    checksums = json.loads((path / CHECKSUMS).read_text())
    if not isinstance(checksums, dict):
      raise ValueError('it holds no checksums')
  except FileNotFoundError:
    return
  except ValueError as e:
    raise _damaged(path / CHECKSUMS, e) from None
  for name, checksum in checksums.items():
    try:
      same = zlib.crc32((path / name).read_bytes()) == checksum
    except FileNotFoundError:
      if name == _REPORT:
        continue  # all but the metrics works without it
      raise FileNotFoundError(
        f'{path / name}: no such file; the saved run is not whole: put back a '
        'whole copy, or save the run again'
      ) from None
    if not same:
      raise _damaged(path / name, 'it is not the file that was saved')


@contextlib.contextmanager
def explain_errors(path: pathlib.Path) -> Iterator[None]:
  """Says so where something else is in the place of a file of a run."""
  try:
    yield
  except OSError as e:
    if e.errno not in _NO_FILE:
      raise
    raise ValueError(
      f'{e.filename or path} is damaged ({e.strerror}); put back a whole copy '
      'of the run'
    ) from None


def check_place(path: pathlib.Path, workdir: pathlib.Path) -> None:
  """Refuses to save where something is, or among the files of the run.

  Raises:
    FileExistsError: there is something already.
    ValueError: the path is inside `workdir`.
  """
  if os.path.lexists(path):
    raise FileExistsError(
      f'{path} exists already; save to another path, or remove it first'
    )
  place = pathlib.Path(os.path.realpath(path))
  if place.is_relative_to(os.path.realpath(workdir)):
    raise ValueError(
      f'{path} is inside {workdir}, the directory of the run itself, which its '
      'training reads and cleans; save to a path outside it'
    )


def _damaged(file: pathlib.Path, reason) -> ValueError:
  return ValueError(
    f'{file} is damaged: {reason}; put back a whole copy, or save the run '
    f'again. If you changed it yourself, remove {CHECKSUMS} beside config.json'
  )
