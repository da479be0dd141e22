"""The snapshots of a run on a growing directory: its weights behind each part.

Parts are windows of a stream, and their names end with the numbers of these. A
run with `checkpoint.at_part_ends` leaves a checkpoint behind each, which says
in its manifest which part it has been trained to the end of. Snapshots are
chosen by these numbers and never by the clock.
"""

import hashlib
import json
import os
import pathlib
import re
import zlib
from collections.abc import Mapping

from genrec_jax.checkpoint import manifest as manifest_lib
from genrec_jax.checkpoint import position
from genrec_jax.checkpoint.manifest import CheckpointError, IncompleteError
from genrec_jax.checkpoint.part_reader import find_part
from genrec_jax.data.ranking import saved_encoder

_NUMBER = re.compile(r'(\d+)$')
# Sections of a config that change nothing of the weights, or are read apart.
_NOT_OF_WEIGHTS = (
  'checkpoint', 'compile_cache', 'data', 'eval', 'parallel', 'predict',
  'report',
)  # fmt: skip
_NOT_OF_TRAINING = (
  'checkpoint_every', 'epochs', 'eval_every', 'eval_first', 'keep_checkpoints',
  'log_every', 'min_delta', 'monitor', 'nan_every', 'patience', 'profile_steps',
  'steps',
)  # fmt: skip
STATE = position.FILE  # of the iterator of batches, within a checkpoint


def name_window(number: int) -> str:
  """The name of what belongs to a window; names are in the order of numbers.

  >>> name_window(12)
  'window-0000000012'
  """
  return f'window-{number:010d}'


def number_window(name: str) -> int:
  """The window of a part.

  >>> number_window('window-000012.parquet')
  12

  Args:
    name: of its file.

  Raises:
    ValueError: the name says none.
  """
  found = _NUMBER.search(name.partition('.')[0])
  if not found:
    raise ValueError(
      f'the part {name!r} does not say which window it is: names end with its '
      'number, as in window-000012.parquet'
    )
  return int(found[1])


class Snapshots:
  """Those of a workdir, as they appear and go."""

  def __init__(self, workdir: str | os.PathLike):
    """The run need not have begun.

    Args:
      workdir: of the run.
    """
    self.workdir = pathlib.Path(workdir)
    # Step -> (stamp of its manifest, window): a run may begin anew.
    self._known: dict[int, tuple[tuple, int | None]] = {}
    self._unreadable: dict[int, str] = {}  # step -> why

  def list_windows(self) -> dict[int, int]:
    """Window -> the step that has been trained to its end, ascending."""
    folder, known = self.workdir / 'checkpoints', {}
    self._unreadable = {}
    for step in manifest_lib.list_steps(folder):
      try:
        stamp = _stamp(folder / str(step))
        if step in self._known and self._known[step][0] == stamp:
          known[step] = self._known[step]
          continue
        manifest_lib.verify(folder / str(step), quick=True)
        body = manifest_lib.read(folder / str(step))
      except IncompleteError:
        continue  # being written, or removed
      except (CheckpointError, OSError) as error:
        self._unreadable[step] = str(error)
        continue
      known[step] = stamp, _find_window(body)
    self._known = known
    found = {w: step for step, (_, w) in known.items() if w is not None}
    return dict(sorted(found.items()))

  def read_parts(self, step: int) -> dict[str, int]:
    """Name -> CRC-32 of the parts that the run had taken, the newest ones.

    Args:
      step: of a checkpoint.
    """
    path = self.workdir / 'checkpoints' / str(step) / 'data' / STATE
    taken = json.loads(path.read_text())['taken']
    return {name: stamp[2] for name, stamp in taken.items()}

  def find_step(self, window: int) -> int | None:
    """The step that has been trained to the end of a window; None for none yet.

    Args:
      window: its number.

    Raises:
      ValueError: there are later ones, and this one is gone.
    """
    windows = self.list_windows()
    if window in windows:
      return windows[window]
    later = [w for w in windows if w > window]
    if later:
      raise ValueError(
        f'{self.workdir} has no checkpoint of window {window} any more, but '
        f'has one of window {later[0]}: let the run keep more of them '
        '(train.keep_checkpoints), and set checkpoint.at_part_ends. If the run '
        'leaves out all rows of that window (data.negatives_kept), there never '
        'was one: train the teacher on all of them'
        + self._describe_unreadable()
      )
    return None

  def describe_wait(self, window: int) -> str:
    """What is missing while there is no snapshot of a window."""
    if not self.workdir.is_dir():
      return f'{self.workdir}, the workdir of the teacher, is not there'
    windows = self.list_windows()
    latest = (
      f'the latest is of window {max(windows)}'
      if windows
      else ('there is none yet: its run needs checkpoint.at_part_ends=true')
    )
    return (
      f'{self.workdir} has no checkpoint of the end of window {window}; '
      f'{latest}' + self._describe_unreadable()
    )

  def _describe_unreadable(self) -> str:
    return ''.join(
      f'. Checkpoint {step} cannot be read: {why}'
      for step, why in self._unreadable.items()
    )


def _stamp(step_dir: pathlib.Path) -> tuple:
  stat = (step_dir / manifest_lib.NAME).stat()
  return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _find_window(body: Mapping) -> int | None:
  place = find_part(body)
  return number_window(place.name) if place and place.is_end else None


def fingerprint_run(workdir: str | os.PathLike) -> str:
  """Names a run: its data, and all settings that its weights depend on.

  Args:
    workdir: of the run.
  """
  config = json.loads((pathlib.Path(workdir) / 'config.json').read_text())
  kept = {k: x for k, x in config.items() if k not in _NOT_OF_WEIGHTS}
  # Where its parts are, and how often it looks for new ones, may change.
  kept['data'] = {
    k: x for k, x in config['data'].items() if k not in ('stream', 'cache')
  }
  train = config['train']
  kept['train'] = {k: x for k, x in train.items() if k not in _NOT_OF_TRAINING}
  if config['optimizer']['schedule'] != 'constant':
    kept['train']['steps'] = train['steps']  # rates fall until the end
  if train.get('init_from'):
    content = pathlib.Path(train['init_from']).read_bytes()
    kept['train']['init_from'] = zlib.crc32(content)
  about = [saved_encoder.read_fingerprint(workdir), kept]
  text = json.dumps(about, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]
