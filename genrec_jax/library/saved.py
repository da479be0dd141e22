"""Whether a directory holds a run, and what `Run.save` seals in its copy.

Weights have checksums of their own. All files are compared with their seals
when they are read.
"""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import zlib
from collections.abc import Collection, Iterator

from genrec_jax import provenance, sealed
from genrec_jax.config import tower_file

# What predicting and showing a run needs of its directory.
FILES = (
  'config.json',
  'report.json',
  'report.html',
  'metrics.jsonl',
  tower_file.OF_A_RUN,  # without which nobody knows what the weights are of
)
_SEALED_FILES = ('config.json', 'report.json')
_SEALED_FOLDERS = {'items': 'meta.json', 'encoder': 'encoder.json'}
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENOTDIR)
_FORMER = 'checksums.json'  # of runs that earlier versions saved


def copy_files(workdir: pathlib.Path, path: pathlib.Path) -> None:
  """Copies the files of a run, and seals what its workdir has not sealed.

  Others may get the copy, which is not trained further: it has no passwords.
  """
  for name in FILES:
    for file in (workdir / name, sealed.seal_of(workdir / name)):
      if file.exists():
        shutil.copy2(file, path / file.name)
  for name in _SEALED_FILES:
    file = path / name
    if file.exists() and not sealed.seal_of(file).exists():
      sealed.write_text(file, file.read_text())
  file = path / 'config.json'
  with contextlib.suppress(OSError, ValueError):  # which `load` tells
    config = sealed.open_file(file, '').read_json(file.name)
    if provenance.holds_secrets(config):
      text = json.dumps(provenance.mask_all(config), indent=2)
      sealed.write_text(file, f'{text}\n')
  for folder, meta in _SEALED_FOLDERS.items():
    if (path / folder).is_dir():
      files = sealed.SealedDirectory(path / folder, sealed.WRITTEN_AT_START)
      files.read_json(meta)  # whose seal may be lost
      if not files.is_sealed:
        sealed.seal(path / folder, meta)


def check_saved(path: pathlib.Path) -> None:
  """Refuses what holds no run, and compares the checksums of former versions.

  Raises:
    ValueError: a file is not the one that was saved.
    FileNotFoundError: there is no run, or a file of it is missing.
  """
  if not os.path.lexists(path / 'config.json'):
    raise FileNotFoundError(
      f'{path} holds no run (there is no config.json); give what run.save() '
      'was given, or the --workdir of a training'
    )
  if not os.path.lexists(path / _FORMER):
    return
  files = sealed.open_file(
    path / _FORMER,
    'put back a whole copy, or save the run again. If you changed it yourself, '
    f'remove {_FORMER} beside config.json',
  )
  checksums = files.read_json(_FORMER)
  with files.explain_damage(_FORMER):
    sealed.check_keys(checksums, **{'config.json': int})
  for name, checksum in checksums.items():
    # All but the metrics works without the report.
    if name != 'report.json' or (path / name).exists():
      if zlib.crc32(files.read(name)) != checksum:
        raise files.damaged(name, 'it is not the file that was saved')


def check_task(path: pathlib.Path, task: object, kinds: Collection[str]):
  """Refuses a run of a task that `load` does not open.

  Args:
    path: of the run.
    task: of its config.
    kinds: the tasks that `load` opens.
  """
  if isinstance(task, str) and task in kinds:
    return
  instead = ''
  if task == 'request_ranking':
    instead = (
      '. genrec_jax.serve.request_scorer.RequestScorer.load opens it, and '
      f'`genrec predict {path} FILE` scores a file of candidates'
    )
  raise ValueError(
    f'{path} holds a run of task={task!r}; load opens those of '
    f'{" and ".join(kinds)}{instead}'
  )


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
