"""Whether the files of a saved run are those that `Run.save` wrote.

Weights have checksums of their own, which are compared when they are read.
"""

import json
import pathlib
import zlib

CHECKSUMS = (
  'checksums.json'  # of a saved run; a workdir, which changes, has none
)
_REPORT = 'report.json'
_FILES = ('config.json', _REPORT, 'items/*', 'encoder/*')


def write_checksums(path: pathlib.Path) -> None:
  """Leaves the checksums of the settings and vocabularies beside them."""
  files = sorted(file for pattern in _FILES for file in path.glob(pattern))
  checksums = {
    file.relative_to(path).as_posix(): zlib.crc32(file.read_bytes())
    for file in files
  }
  (path / CHECKSUMS).write_text(json.dumps(checksums, indent=1))


def check_saved(path: pathlib.Path) -> None:
  """Compares the files of a saved run with their checksums, if it has any.

  Raises:
    ValueError: a file is not the one that was saved.
    FileNotFoundError: a file is missing.
  """
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


def _damaged(file: pathlib.Path, reason) -> ValueError:
  return ValueError(
    f'{file} is damaged: {reason}; put back a whole copy, or save the run '
    f'again. If you changed it yourself, remove {CHECKSUMS} beside config.json'
  )
