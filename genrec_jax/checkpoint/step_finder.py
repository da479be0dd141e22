"""Finds the steps of a directory that can be restored, and compares them.

A restart looks for the newest whole step, restores it by its number, and reads
its rows. Contents that were compared once are not read again for the sake of
comparison as long as no file changes.
"""

import contextlib
from collections.abc import Callable, Iterator

from genrec_jax.checkpoint import chain, manifest, row_files, storage
from genrec_jax.checkpoint.errors import (
  CheckpointError,
  DamagedError,
  IncompleteError,
)

_SETTLED_S = 2.0  # a change of a file of this age shows in its time


class StepFinder:
  """The steps of a directory, as one process sees them.

  Attributes:
    damaged: steps that were found damaged, or that did not load -> how.
  """

  def __init__(
    self, directory, key: bytes | None, log: Callable[[str], object]
  ):
    """Reads nothing yet.

    Args:
      directory: where the steps lie.
      key: what is not signed with it counts as damaged; None accepts all.
      log: receives a line about each step that is passed over.
    """
    self.damaged: dict[int, str] = {}
    self._directory, self._key, self._log = directory, key, log
    self._unrestorable = set()  # of the damaged, those that do not load
    self._compared = {}  # step -> (its files when compared, what was left out)
    self._skip = None
    self._told = {}  # step -> (why it was passed over, its files by then)

  @contextlib.contextmanager
  def leave_rows(self, leave: bool = True) -> Iterator[None]:
    """Meanwhile, of rows only names and sizes are compared."""
    before, self._skip = self._skip, f'{row_files.NAME}/' if leave else None
    try:
      yield
    finally:
      self._skip = before

  @property
  def leaves_rows(self) -> bool:
    """Whether the contents of rows are left to who reads them."""
    return self._skip is not None

  def find_newest(self) -> int | None:
    """The newest whole checkpoint; None if nothing was ever completed.

    Raises:
      CheckpointError: some are damaged and none is whole.
    """
    damaged = []
    for step in reversed(manifest.list_steps(self._directory)):
      try:
        if step in self._unrestorable:
          raise DamagedError(self.damaged[step])
        chain.verify_chain(self._directory, step, self._compare)
        return step
      except IncompleteError as e:
        self._tell_skipped(step, str(e))
      except DamagedError as e:
        self._tell_skipped(step, str(e))
        self.damaged[step] = str(e)
        damaged.append(f'\n  step {step}: {e}')
    if damaged:
      raise CheckpointError(
        f'no checkpoint in {self._directory} is whole:{"".join(damaged)}\n'
        'To start from scratch, move this directory away.'
      )
    return None

  def _tell_skipped(self, step: int, why: str) -> None:
    # A restart looks several times.
    seen = why, storage.stat_files(self._directory / str(step))
    if self._told.get(step) != seen:
      self._told[step] = seen
      self._log(f'checkpoint of step {step} skipped, {why}')

  def require_present(self, step: int | None) -> int:
    """Refuses a step without a directory and a manifest that is intact."""
    if step is None:
      raise FileNotFoundError(f'no checkpoint in {self._directory}')
    if not (self._directory / str(step)).is_dir():
      present = ', '.join(map(str, manifest.list_steps(self._directory)))
      raise FileNotFoundError(
        f'no checkpoint of step {step} in {self._directory}; '
        f'there are: {present or "none"}'
      )
    with _refuse(step):
      chain.read_chain(self._directory, step, self._key)
    return step

  def require_whole(self, step: int) -> int:
    """The step asked for, after looking at every byte."""
    self.require_present(step)
    with _refuse(step):
      chain.verify_chain(self._directory, step, self._compare)
    return step

  def note_unrestorable(self, step: int, why: str) -> None:
    """Says that a whole step does not load; it counts as damaged from now."""
    self.damaged[step] = why
    self._unrestorable.add(step)

  def note_saved(self, step: int) -> None:
    """Says that a step was written anew."""
    self.damaged.pop(step, None)
    self._unrestorable.discard(step)

  def _compare(self, step_dir) -> dict:
    """`manifest.verify`, without reading again what was compared before."""
    files = storage.stat_files(step_dir, settled_s=_SETTLED_S)
    known, left_out = self._compared.get(step_dir.name, (None, None))
    same = files is not None and known == files
    same &= left_out in (None, self._skip)
    body = manifest.verify(step_dir, quick=same, key=self._key, skip=self._skip)
    if not same:
      self._compared[step_dir.name] = files, self._skip
    return body


@contextlib.contextmanager
def _refuse(step: int) -> Iterator[None]:
  try:
    yield
  except CheckpointError as e:
    raise CheckpointError(f'checkpoint of step {step} refused, {e}') from e
