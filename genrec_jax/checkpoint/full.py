"""Full checkpoints: asynchronous, verified, never loaded when damaged.

    with Checkpoints(workdir / 'checkpoints', keep=2) as checkpoints:
      if checkpoints.latest() is not None:
        step, state, host = checkpoints.restore(abstract_state, data=iterator)
      ...
      checkpoints.save(step, state, data=iterator, host={'best': 0.17})

Orbax writes the arrays and the iterator into a temporary directory and renames
it; then the manifest (manifest.py) is written, and only that makes the
checkpoint one. A kill at any moment leaves the former checkpoints as they were
and, at worst, a directory that the next start skips and the next save removes.

Orbax's own manager of steps (training.Checkpointer) is not used: it remembers a
save that failed as one that happened, and it would count half-written and
damaged steps among those to keep.
"""

import concurrent.futures
import json
import os
import pathlib
from collections.abc import Callable

import jax
from orbax.checkpoint import v1 as ocp

from genrec_jax.checkpoint import failures, manifest, retention, trees
from genrec_jax.checkpoint.manifest import CheckpointError


class Checkpoints:
  """The checkpoints of one run, in one directory, for one process."""

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    keep: int = 2,
    log: Callable[[str], object] = print,
  ):
    """Names a directory of checkpoints; the first save makes it.

    Only `save` changes anything on the disk, so that an evaluation can read
    beside a training that is saving.

    Args:
      directory: where the steps lie, one directory each.
      keep: how many of the newest checkpoints stay, at least 1.
      log: receives a line about everything skipped, removed or unusual.
    """
    if keep < 1:
      raise ValueError(f'keep must be at least 1, not {keep}')
    if jax.process_count() > 1:
      raise CheckpointError(
        f'Checkpoints is for one process, this is one of {jax.process_count()}'
      )
    self.directory = pathlib.Path(directory).absolute()
    self.keep = keep
    self._log = log
    self._damaged = set()  # steps this object found damaged
    self._saving = None  # future of the save under way
    # Compressing would take cores from the training for a few per cent of disk.
    self._orbax = ocp.Context()
    self._orbax.array_options.saving.use_compression = False

  def save(
    self,
    step: int,
    state,
    *,
    data=None,
    host: dict | None = None,
    wait: bool = False,
  ) -> None:
    """Saves a step; returns when everything is copied off the device.

    Waits for the save before, if that is still under way, and raises its
    failure. Afterwards `state` may be donated, `data` advanced, `host` changed.

    Args:
      step: number of the step, not saved before.
      state: pytree (nested dicts) of jax arrays, none of them empty.
      data: grain DatasetIterator, saved where it stands.
      host: dict of what JSON can hold.
      wait: return only when the checkpoint is complete.
    """
    self.wait()
    step = int(step)
    if step < 0:
      raise CheckpointError(f'step {step} cannot be saved: it is negative')
    if obstacle := trees.obstacle(state):
      raise CheckpointError(f'step {step} cannot be saved: {obstacle}')
    extra = {
      'tree': trees.describe(state),
      'host': json.loads(json.dumps(host)),
      'data': data is not None,
    }
    items = _items(state, data)
    retention.make_room(self.directory, step, self._log)
    with self._orbax:
      written = ocp.save_checkpointables_async(self._path(step), items)
    thread = concurrent.futures.ThreadPoolExecutor(1)
    self._saving = thread.submit(self._complete, step, written, extra)
    thread.shutdown(wait=False)  # it ends with what it was given to do
    if wait:
      self.wait()

  def latest(self) -> int | None:
    """The newest whole checkpoint, or None where nothing was ever completed.

    Reads every file of it. Those passed over are named to `log`; if some
    are damaged and none is whole, that is a CheckpointError, never a None.
    """
    self.wait()
    step, _ = self._newest()
    return step

  def restore(self, abstract_state, *, step: int | None = None, data=None):
    """Loads a checkpoint after comparing every byte with its manifest.

    Args:
      abstract_state: pytree of arrays or `jax.ShapeDtypeStruct`s; the result
        has its shardings (the first device where there is none).
      step: None for the newest whole checkpoint; a step asked for by name is
        loaded or refused.
      data: iterator to put where the saved one stood.

    Returns:
      (step, state, host); host as given to `save`, after a trip through JSON.
    """
    self.wait()
    if step is None:
      step, body = self._newest()
    else:
      body = self._verified(step)
    if step is None:
      raise FileNotFoundError(f'no checkpoint in {self.directory}')
    different = trees.difference(body['tree'], trees.describe(abstract_state))
    if different:
      raise CheckpointError(
        f'checkpoint of step {step} does not fit: {different}; was it made '
        'with another config?'
      )
    if data is not None and not body['data']:
      raise CheckpointError(f'checkpoint of step {step} has no data iterator')
    items = _items(trees.abstract(abstract_state), data)
    try:
      with self._orbax:
        loaded = ocp.load_checkpointables(self._path(step), items)
    except Exception as e:  # whole, so it does not suit what was asked for
      raise CheckpointError(
        f'checkpoint of step {step} is whole but does not load: {e}'
      ) from e
    return step, loaded['state'], body['host']

  def wait(self) -> None:
    """Returns when no save is under way; raises if the last one failed."""
    if self._saving is not None:
      concurrent.futures.wait([self._saving])  # a Ctrl-C here forgets nothing
      saving, self._saving = self._saving, None
      saving.result()

  def close(self) -> None:
    """Waits for the save under way, which the process's end would lose."""
    self.wait()

  def __enter__(self):
    return self

  def __exit__(self, kind, error, trace):
    try:
      self.close()
    except CheckpointError:
      if error is None:  # else the error that ends the block is the one to show
        raise

  def _path(self, step: int) -> pathlib.Path:
    return self.directory / str(step)

  def _newest(self) -> tuple[int, dict] | tuple[None, None]:
    """Step and manifest of the newest whole checkpoint."""
    damaged = []
    for step in reversed(manifest.steps(self.directory)):
      try:
        return step, manifest.verify(self._path(step))
      except manifest.HalfWritten as e:
        self._log(f'checkpoint of step {step} skipped, {e}')
      except manifest.Damaged as e:
        self._log(f'checkpoint of step {step} skipped, {e}')
        self._damaged.add(step)
        damaged.append(f'\n  step {step}: {e}')
    if damaged:
      raise CheckpointError(
        f'no checkpoint in {self.directory} is whole:{"".join(damaged)}\n'
        'To start from scratch, move this directory away.'
      )
    return None, None

  def _verified(self, step: int) -> dict:
    if not self._path(step).is_dir():
      found = ', '.join(map(str, manifest.steps(self.directory)))
      raise FileNotFoundError(
        f'no checkpoint of step {step} in {self.directory}; '
        f'there are: {found or "none"}'
      )
    try:
      return manifest.verify(self._path(step))
    except CheckpointError as e:
      raise CheckpointError(f'checkpoint of step {step} refused, {e}') from e

  def _complete(self, step: int, written, extra: dict) -> None:
    """In the background: the rest of the save, then what is superfluous."""
    try:
      with failures.one_error():
        written.result()
      manifest.write(self._path(step), step, **extra)
    except Exception as e:
      retention.discard(self.directory, step)
      others = ', '.join(map(str, manifest.steps(self.directory)))
      failure = CheckpointError(
        f'saving step {step} in {self.directory} failed: '
        f'{failures.reason(e, self.directory)}\n'
        f'Earlier checkpoints are as they were: {others or "there are none"}.'
      )
      self._log(str(failure))  # now; it is raised only at the next call
      raise failure from None if failures.is_of_disk(e) else e
    self._damaged.discard(step)
    try:
      retention.prune(
        self.directory,
        step,
        keep=self.keep,
        damaged=self._damaged,
        log=self._log,
      )
    except OSError as e:  # tried again after the next save
      self._log(f'an old checkpoint could not be removed: {e}')


def _items(state, data) -> dict:
  if data is None:
    return {'state': state}
  if not isinstance(data, ocp.StatefulCheckpointable):
    raise TypeError(f'data is a {type(data).__name__}, not a grain iterator')
  return {'state': state, 'data': data}
