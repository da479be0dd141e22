"""Up to which part of a growing directory a checkpoint has been trained.

Nothing here needs JAX: a process that scores or follows reads it, too.
"""

import os
from collections.abc import Mapping

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
      body = manifest.read(directory / str(number), key)
    except manifest.IncompleteError:  # being written, or removed meanwhile
      if step is not None:
        raise
      continue
    return find_part(body)
  return None


def find_part(body: Mapping) -> PartPlace | None:
  """The same, of a manifest that was read.

  >>> find_part({'host': {'part': {'name': 'a-7', 'used': 2, 'batches': 2}}})
  PartPlace(name='a-7', used=2, batches=2, number=0)

  Args:
    body: as `manifest.read` returns it.
  """
  said = (body.get('host') or {}).get('part')
  return PartPlace(**said) if said else None
