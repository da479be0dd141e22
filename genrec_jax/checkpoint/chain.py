"""Which other steps a checkpoint needs: its base, and deltas in between.

A manifest identifies these steps by the CRC-32 of their manifests, which hold
the checksums of all files. A directory that has the number of a parent but
other contents is therefore not mistaken for it.
"""

import functools
import zlib

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.manifest import CheckpointError, DamagedError


def read_parents(body: dict) -> list[tuple[int, int]]:
  """(step, identity) of the steps a checkpoint needs, base first."""
  return [tuple(p) for p in (body.get('rows') or {}).get('parents', [])]


def read_identity(step_dir) -> int:
  """A number by which a checkpoint differs from others of the same step."""
  return zlib.crc32(manifest.read_bytes(step_dir))


def read_chain(directory, step: int, key: bytes | None = None) -> list[dict]:
  """Reads the manifests of a step and of all checkpoints it builds on.

  Args:
    directory: directory of the checkpoints.
    step: the step to restore.
    key: all of them must be signed with it.

  Returns:
    The manifests, the base first and the step itself last.

  Raises:
    IncompleteError: the step has no manifest.
    DamagedError: its manifest, or one it needs, is not as it was written.
  """
  return _read_manifests(
    directory, step, functools.partial(manifest.read, key=key)
  )


def verify_chain(directory, step: int, look=None) -> list[dict]:
  """Like `read_chain`, but also compares every file of these checkpoints.

  Args:
    directory: directory of the checkpoints.
    step: the step to restore.
    look: what compares the files of one step; None for `manifest.verify`.
  """
  return _read_manifests(directory, step, look or manifest.verify)


def collect_needed(directory, steps: list[int]) -> set[int]:
  """The steps that are needed to restore `steps`, including these."""
  needed_steps = set(steps)
  for step in steps:
    try:
      body = manifest.read(directory / str(step))
    except CheckpointError:
      continue
    needed_steps |= {parent for parent, _ in read_parents(body)}
  return needed_steps


def check_parents(directory, body: dict, look=manifest.read) -> list[dict]:
  """Manifests of the parents of a step; DamagedError if they are not such."""
  problems = []
  for parent, expected in read_parents(body):
    if not (directory / str(parent)).is_dir():
      raise DamagedError(f'damaged: it needs step {parent}, which is not there')
    try:
      problems.append(look(directory / str(parent)))
      same = read_identity(directory / str(parent)) == expected
    except (CheckpointError, OSError) as e:
      raise DamagedError(
        f'damaged: it needs step {parent}, which is {e}'
      ) from e
    if not same:
      raise DamagedError(
        f'damaged: it needs step {parent} as it was, and that is another one'
      )
  if problems and problems[0].get('rows', {}).get('kind') != 'base':
    raise DamagedError('damaged: the first step that it needs is no base')
  return problems


def _read_manifests(directory, step: int, look) -> list[dict]:
  body = look(directory / str(step))
  return [*check_parents(directory, body, look), body]
