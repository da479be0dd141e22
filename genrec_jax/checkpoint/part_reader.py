"""Up to which part of a growing directory a checkpoint has been trained.

Nothing here needs JAX: a process that scores or follows reads it, too.
"""

import os

from genrec_jax.checkpoint import manifest, storage
from genrec_jax.data.part_place import PartPlace


def read_part_of(
  directory: str | os.PathLike,
  step: int | None = None,
  key: bytes | None = None,
) -> PartPlace | None:
  """The part that a step was trained on last, and how far.

    place = read_part_of('run/published')
    if place and place.is_end:
      print(f'all of {place.name} is learned')

  Args:
    directory: `checkpoints` or `published` of a workdir.
    step: None for the newest one that is complete.
    key: the manifest must be signed with it.

  Returns:
    None where there is no complete step, and of runs without `data.stream`.

  Raises:
    CheckpointError: the step is not there, is half-written or damaged.
  """
  directory = storage.absolute_path(directory)
  steps = [step] if step is not None else manifest.list_steps(directory)[::-1]
  for number in steps:
    try:
      host = manifest.read(directory / str(number), key)['host'] or {}
    except manifest.IncompleteError:  # being written, or removed meanwhile
      if step is not None:
        raise
      continue
    return PartPlace(**host['part']) if host.get('part') else None
  return None
