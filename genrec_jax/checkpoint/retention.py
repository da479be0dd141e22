"""Which checkpoints stay, and how the others go."""

import contextlib
import pathlib
import re
import shutil
from collections.abc import Callable, Collection

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.manifest import CheckpointError

# A save that was killed or has failed; a removal that was killed.
_DEBRIS = re.compile(r'\d+\.(orbax-checkpoint-tmp.*|removed)')


def make_room(
  directory: pathlib.Path, step: int, log: Callable[[str], object]
) -> None:
  """Before a save: removes what killed and failed ones left behind.

  Args:
    directory: where the steps lie; made if it is not there.
    step: about to be saved. What is there under its number goes too, unless
      it is whole: that is a CheckpointError.
    log: receives a line about everything removed.
  """
  directory.mkdir(parents=True, exist_ok=True)
  for path in directory.iterdir():
    if _DEBRIS.fullmatch(path.name):
      log(f'removing {path}, left by a killed or failed save')
      shutil.rmtree(path, ignore_errors=True)
  if (directory / str(step)).exists():
    try:
      manifest.verify(directory / str(step))
    except CheckpointError as e:
      log(f'checkpoint of step {step} is replaced, {e}')
      _remove(directory, step)
    else:
      raise CheckpointError(
        f'step {step} is already saved in {directory}; to write it again, '
        'remove it first'
      )


def prune(
  directory: pathlib.Path,
  saved: int,
  *,
  keep: int,
  damaged: Collection[int],
  log: Callable[[str], object],
) -> None:
  """After a save: removes older steps but the newest `keep` whole ones.

  Args:
    directory: where the steps lie.
    saved: step that has just got its manifest; it counts as one of `keep`.
    keep: how many stay.
    damaged: steps known to be damaged, which do not count.
    log: is told when a restart would use a newer step than `saved`.
  """
  whole = []
  for step in manifest.steps(directory):
    with contextlib.suppress(CheckpointError):
      manifest.read(directory / str(step))
      whole.append(step)
  if whole[-1] > saved:
    log(
      f'step {saved} is saved, but a restart will use step {whole[-1]}; to go '
      f'on from here, remove the newer steps from {directory}'
    )
  kept = [s for s in whole if s <= saved and s not in damaged][-keep:]
  for step in manifest.steps(directory):
    if step < saved and step not in kept:
      _remove(directory, step)


def discard(directory: pathlib.Path, step: int) -> None:
  """After a failed save: removes what it wrote, as far as that is possible."""
  for path in directory.glob(f'{step}.orbax-checkpoint-tmp*'):
    shutil.rmtree(path, ignore_errors=True)
  shutil.rmtree(directory / str(step), ignore_errors=True)


def _remove(directory: pathlib.Path, step: int) -> None:
  # Renamed first: a step with half of its files would look damaged.
  removed = directory / f'{step}.removed'
  (directory / str(step)).rename(removed)
  shutil.rmtree(removed)
