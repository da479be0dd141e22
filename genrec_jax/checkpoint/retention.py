"""Decides which checkpoints stay, and removes the others."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Collection, Mapping

from genrec_jax.checkpoint import chain, manifest, storage
from genrec_jax.checkpoint.manifest import CheckpointError

# A save that was killed or has failed; a removal that was killed.
_DEBRIS = re.compile(r'\d+\.(orbax-checkpoint-tmp.*|removed)')


def make_room(
  directory,
  step: int,
  log: Callable[[str], object],
  damaged: Mapping[int, str] | None = None,
) -> None:
  """Before a save: removes what killed and failed ones left behind.

  Args:
    directory: where the steps lie; made if it is not there.
    step: about to be saved. What is there under its number goes too, unless
      it is whole: that is a CheckpointError.
    log: receives a line about everything removed.
    damaged: steps known to be damaged, and why.
  """
  directory.mkdir(parents=True, exist_ok=True)
  for path in storage.list_children(directory):
    if _DEBRIS.fullmatch(path.name):
      log(f'removing {path}, left by a killed or failed save')
      storage.remove_directory(path, ignore_errors=True)
  if storage.is_present(directory / str(step)):
    try:
      if step in (damaged or {}):
        raise CheckpointError(damaged[step])
      chain.verify_chain(directory, step)
    except CheckpointError as e:
      log(f'checkpoint of step {step} is replaced, {e}')
      remove_step(directory, step)
    else:
      raise CheckpointError(
        f'step {step} is already saved in {directory}; to write it again, '
        'remove it first'
      )


@dataclasses.dataclass(frozen=True)
class RetentionLimits:
  """What stays of whole checkpoints; the newest stays in any case.

  Attributes:
    count: at most so many of the newest, at least 1.
    hours: none that was written longer ago; 0: no limit.
    gb: no more than fit together, with what they need, in 10^9 bytes; 0: no
      limit.
  """

  count: int = 2
  hours: float = 0.0
  gb: float = 0.0

  def __post_init__(self):
    if self.count < 1:
      raise ValueError(f'keep must be at least 1, not {self.count}')
    for name in ('hours', 'gb'):
      if getattr(self, name) < 0:
        raise ValueError(
          f'keep_{name} must be at least 0, not {getattr(self, name)}'
        )

  def steps_to_keep(self, directory, whole: list[int]) -> set[int]:
    """The steps that stay, of whole ones, and all that they need."""
    now, keep = time.time(), set()
    for step in reversed(whole[-self.count :]):
      body = manifest.read(directory / str(step))
      needed_steps = keep | {step, *(p for p, _ in chain.read_parents(body))}
      old = self.hours and now - body.get('time', now) > 3600 * self.hours
      large = self.gb and _sum_bytes(directory, needed_steps) > 1e9 * self.gb
      if keep and (old or large):
        break
      keep = needed_steps
    return keep


def remove_superfluous(
  directory,
  saved: int,
  *,
  limits: RetentionLimits,
  damaged: Collection[int],
  log: Callable[[str], object],
) -> None:
  """Removes the steps that the limits do not keep, after a save.

  Args:
    directory: where the steps lie.
    saved: step that has just got its manifest; it is one of those that stay.
    limits: how many stay.
    damaged: steps known to be damaged, which do not count.
    log: called with a message if a restart would use a newer step.
  """
  whole = []
  for step in manifest.list_steps(directory):
    with contextlib.suppress(CheckpointError):
      chain.read_chain(directory, step)
      whole.append(step)
  newest = max(step for step in whole if step == saved or step not in damaged)
  if newest > saved:
    log(
      f'step {saved} is saved, but a restart will use step {newest}; to go '
      f'on from here, remove the newer steps from {directory}'
    )
  keep = limits.steps_to_keep(
    directory, [s for s in whole if s <= saved and s not in damaged]
  )
  # What newer steps need is not ours to remove.
  keep |= chain.collect_needed(directory, [s for s in whole if s > saved])
  # From the newest on: no delta shall outlive its base.
  for step in reversed(manifest.list_steps(directory)):
    if step < saved and step not in keep:
      remove_step(directory, step)


def discard_failed(directory, step: int) -> None:
  """After a failed save: removes what it wrote, as far as that is possible."""
  for path in directory.glob(f'{step}.orbax-checkpoint-tmp*'):
    storage.remove_directory(path, ignore_errors=True)
  storage.remove_directory(directory / str(step), ignore_errors=True)


def _sum_bytes(directory, steps: Collection[int]) -> int:
  """Bytes of some steps, of their manifests."""
  bodies = [manifest.read(directory / str(step)) for step in steps]
  return sum(size for body in bodies for size, _ in body['files'].values())


def remove_step(directory, step: int) -> None:
  """Removes a step; killed in between, it is not a checkpoint any more."""
  # Renamed, and then removed: with half of its files it would look damaged.
  path = directory / str(step)
  if storage.is_disk(directory):
    removed = directory / f'{step}.removed'
    path.rename(removed)
  else:
    removed = path
    (path / manifest.NAME).unlink(missing_ok=True)
  storage.remove_directory(removed)
