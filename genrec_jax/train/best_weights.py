"""The weights whose metrics are the best so far: the directory `best/`.

A killed run resumes from its last checkpoint. The steps since then are lost,
and the resumed run may take another course (with other settings, rounded rows
or another mesh). Therefore the best weights that a checkpoint refers to stay
until a later checkpoint is complete, and newer ones are removed when the run
resumes.
"""

import contextlib
import json
import logging
import pathlib
from collections.abc import Callable

from genrec_jax.checkpoint import manifest, retention
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.rows import ProcessRows
from genrec_jax.parallel import job

LOG = logging.getLogger('genrec_jax')
# Of the last two checkpoints, of now, and one that is being written.
MOST = 4
# Weights -> what is saved as it is, and what copies the rest row by row.
SplitWeights = Callable[[dict], tuple[dict, Callable[[], ProcessRows] | None]]


class BestWeights(contextlib.AbstractContextManager):
  """Writes them; all processes of a job make the same calls."""

  def __init__(
    self,
    directory: pathlib.Path,
    key: bytes | None = None,
    split_weights: SplitWeights = lambda weights: (weights, None),
  ):
    """Names the directory.

    Args:
      directory: `best/` of a run.
      key: signs what is saved.
      split_weights: says how weights are saved.
    """
    self.directory = directory
    self._split_weights = split_weights
    self._checkpoints = CheckpointManager(
      directory, keep=MOST, log=LOG.warning, key=key
    )
    self._safe = None  # the best of the last checkpoint, a step

  def resume_from(self, best: dict | None) -> dict | None:
    """Says that a run continues from a checkpoint.

    Args:
      best: what that checkpoint knows of the best weights, with their 'step'.

    Returns:
      The same; None where these weights are gone, so that others may be best.
    """
    self._safe = best and best['step']
    there = not best or self._is_saved(self._safe)
    with job.fail_together('setting aside the best weights of a lost curve'):
      if job.is_leader():
        self._remove_steps(lambda other: other != self._safe)
    if there:
      return best
    LOG.warning(
      'the best weights, of step %d, are missing or damaged in %s; the best of '
      'the evaluations from here on will be kept',
      self._safe,
      self.directory,
    )
    return None

  def save(self, step: int, weights: dict, about: dict) -> None:
    """Saves the weights of a step, unless they are there already.

    Args:
      step: number of the step.
      weights: as `split_weights` takes them.
      about: what they are the best by; equal where the weights are.
    """
    # A run that was killed after this save comes by here again.
    kept = ''
    if job.is_leader():
      kept = (
        'kept'
        if self._read_description(step) == _format_description(about)
        else ''
      )
      if not kept:
        # Not all but those below: the directory of a save under way may appear
        # between two looks.
        self._remove_steps(lambda other: other >= step)
    if not job.broadcast_from_leader(kept):
      dense, copy_rows = self._split_weights(weights)
      rows = copy_rows() if copy_rows else None
      self._checkpoints.save(step, dense, host=about, rows=rows)

  def begin_checkpoint(self, best: dict | None) -> None:
    """Says that a checkpoint that knows of `best` is being written.

    The one before is complete; whether this one will be nobody knows yet.
    """
    step = best and best['step']
    if job.is_leader():
      kept = self._safe, step
      self._remove_steps(lambda other: other not in kept)
    self._safe = step

  def complete_checkpoint(self) -> None:
    """Says that the last checkpoint is complete."""
    self.wait()
    if job.is_leader():
      self._remove_steps(lambda other: other != self._safe)

  def wait(self) -> None:
    self._checkpoints.wait()

  def __exit__(self, *exc_info):
    return self._checkpoints.__exit__(*exc_info)

  def _is_saved(self, step: int) -> bool:
    """Whether the weights of a step are whole; for all processes alike."""
    whole = ''
    if job.is_leader():
      try:
        manifest.verify(self.directory / str(step))
        whole = 'whole'
      except CheckpointError as e:
        LOG.warning('best weights of step %d: %s', step, e)
    return bool(job.broadcast_from_leader(whole))

  def _read_description(self, step: int) -> str | None:
    """What was said of the weights of a step; None where they are not whole."""
    try:
      return _format_description(
        manifest.verify(self.directory / str(step))['host']
      )
    except CheckpointError:
      return None

  def _remove_steps(self, which: Callable[[int], bool]) -> None:
    for step in manifest.list_steps(self.directory):
      if which(step):
        retention.remove_step(self.directory, step)


def _format_description(about: dict) -> str:
  """As text, in which NaN is equal to NaN."""
  return json.dumps(about, sort_keys=True)
