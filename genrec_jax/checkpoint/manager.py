"""Checkpoints: asynchronous, verified, never loaded when damaged.

    with CheckpointManager(workdir / 'checkpoints', keep=2) as checkpoints:
      if checkpoints.latest() is not None:
        step, state, host = checkpoints.restore(abstract_state, data=iterator)
      ...
      checkpoints.save(step, state, data=iterator, host={'best': 0.17})

Orbax writes the arrays and the iterator into a temporary directory and renames
it; then the manifest (manifest.py) is written, and only then does the directory
count as a checkpoint. A kill at any moment leaves the earlier checkpoints as
they were and, at worst, a directory that the next start skips and the next save
removes.

Orbax's own manager of steps (training.Checkpointer) is not used: it treats a
failed save as made, and keeps half-written and damaged steps.

With several processes, each makes the same calls in the same order, and writes
and reads its own part of the arrays. Process 0 does everything else and sends
the results to the others (group.py). An error in one process is raised in all.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import time
import zlib
from collections.abc import Callable
from typing import TypeVar

from orbax.checkpoint import v1 as ocp

from genrec_jax.checkpoint import (
  array_layouts,
  chain,
  failures,
  manifest,
  retention,
  row_files,
  storage,
  trees,
  under_way,
)
from genrec_jax.checkpoint import rows as rows_lib
from genrec_jax.checkpoint.errors import CheckpointError, UnrestorableError
from genrec_jax.checkpoint.group import ProcessGroup
from genrec_jax.checkpoint.loading import load_together
from genrec_jax.checkpoint.position import IteratorState
from genrec_jax.checkpoint.save_lock import SaveLock, SupersededError
from genrec_jax.checkpoint.step_finder import StepFinder
from genrec_jax.numerics.formats import FORMATS, Formats

_WRITING_S = 24 * 3600.0  # the last process's rows, after the first's
_T = TypeVar('_T')


class CheckpointManager(contextlib.AbstractContextManager):
  """The checkpoints of one run, in one directory that all processes see."""

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    keep: int = 2,
    keep_hours: float = 0.0,
    keep_gb: float = 0.0,
    log: Callable[[str], object] = print,
    timeout_s: float = 600.0,
    key: bytes | None = None,
  ):
    """Names a directory of checkpoints; the first save makes it.

    Only `save` changes the disk; an evaluation can read beside a training.

    Args:
      directory: where the steps lie, one directory each; on a disk or on
        gs://. On s3:// and az:// steps can be listed and rows loaded.
      keep: how many of the newest checkpoints stay, at least 1.
      keep_hours: of these, the ones written within so many hours; 0: all.
      keep_gb: of these, as many as fit; 0: all. The newest always stays, and
        so do the steps that it or another kept step needs.
      log: receives a line about everything skipped, removed or unusual, in
        process 0.
      timeout_s: how long to wait for a process that does not make the call
        that the others have made. Orbax waits 300 s within a save.
      key: signs what is saved; what is not signed with it counts as damaged.
    """
    self.directory = storage.absolute_path(directory)
    self._limits = retention.RetentionLimits(keep, keep_hours, keep_gb)
    self._log = log
    self._key = key
    self._steps = StepFinder(self.directory, key, log)
    self._saving = None  # future of the save under way
    self._writer = SaveLock(self.directory)
    self._group = ProcessGroup(str(self.directory), timeout_s)
    self._rows_group = ProcessGroup(f'{self.directory}/rows', _WRITING_S)

  def save(
    self,
    step: int,
    state,
    *,
    data=None,
    host: dict | None = None,
    rows: rows_lib.ProcessRows | None = None,
    wait: bool = False,
  ) -> None:
    """Saves a step; returns when everything is copied off the device.

    Waits for the save before, if that is still under way, and raises its
    failure. Afterwards `state` may be donated, `data` advanced, `host` changed.

    Args:
      step: number of the step, not saved before.
      state: pytree (nested dicts) of jax arrays, none of them empty.
      data: grain DatasetIterator, or whatever has `get_state` and `set_state`,
        saved where it stands: at the same place in all processes.
      host: dict of what JSON can hold; that of process 0 is saved.
      rows: what is saved row by row (see delta.py), and not in `state`.
      wait: return only when the checkpoint is complete.
    """
    self.wait()
    step = int(step)
    if step < 0:
      raise CheckpointError(f'step {step} cannot be saved: it is negative')
    obstacle = storage.find_obstacle(self.directory)
    if obstacle := obstacle or trees.find_obstacle(state):
      raise CheckpointError(f'step {step} cannot be saved: {obstacle}')
    extra = {
      'tree': trees.describe_tree(state),
      'host': json.loads(json.dumps(host)),
      'data': data is not None,
    }
    items = _checkpointables(state, data)
    if rows is not None:
      extra['rows'] = rows.about
      items[row_files.NAME] = dataclasses.replace(
        rows, meet=self._meet_processes
      )
    # Orbax gives a save a number to speak of it with the other processes, and
    # its threads ask for "the present" one.
    if self._group.size > 1:
      under_way.await_saves()
    plan = {'step': step, 'arrays': extra['tree']}
    if data is not None:
      plan['data iterator'] = items['data'].text()
    self._group.decide_together(
      f'saving step {step}',
      lambda sums: self._require_equal_state(step, sums),
      {what: zlib.crc32(json.dumps(x).encode()) for what, x in plan.items()},
    )
    with _make_context():
      written = ocp.save_checkpointables_async(
        self._step_directory(step), items
      )
    thread = concurrent.futures.ThreadPoolExecutor(1)
    self._saving = thread.submit(self._complete_save, step, written, extra)
    under_way.note_save(self._saving)
    thread.shutdown(wait=False)  # it ends with what it was given to do
    if rows is not None:
      rows.taken.await_copies(self._saving.done)
    if wait:
      self.wait()

  def latest(self, *, rows_later: bool = False) -> int | None:
    """The newest whole checkpoint, or None where nothing was ever completed.

    Reads every file of it. Those passed over are named to `log`; if some
    are damaged and none is whole, that is a CheckpointError, never a None.

    Args:
      rows_later: leave the contents of rows to `restore_newest`, which compares
        them as it reads them, so that they are not read twice.
    """
    self.wait()
    with self._steps.leave_rows(rows_later):
      return self._group.decide_together(
        'looking for the newest checkpoint',
        lambda _: self._steps.find_newest(),
      )

  def restore_newest(
    self, load: Callable[[int], _T], *, rows_later: bool = True
  ) -> _T | None:
    """Restores the newest step that can be restored.

    Args:
      load: restores a step, by `restore` and `restore_rows`. If these find
        that it cannot be restored, `load` is called with an earlier one.
      rows_later: `load` reads all rows by `restore_rows`, which compares them.

    Returns:
      What `load` returned; None where nothing was ever completed.
    """
    while (step := self.latest(rows_later=rows_later)) is not None:
      try:
        with self._steps.leave_rows(rows_later):
          return load(step)
      except UnrestorableError as e:
        self._steps.note_unrestorable(step, str(e))
    return None

  def read_manifest(self, step: int | None = None) -> dict:
    """What is known of a checkpoint without its arrays; reads little.

    Args:
      step: None for the newest whole checkpoint, which reads all its files.

    Returns:
      `step`, `host` (as given to `save`), `tree` ({path: 'float32[3953,50]'}),
      `data` (whether an iterator was saved) and `files`.
    """
    if step is None:
      step = self.latest()
    self.wait()
    return self._read_body(
      self._group.decide_together(
        'reading a checkpoint',
        lambda _: self._steps.require_present(step),
        step,
      )
    )

  def restore(
    self,
    abstract_state,
    *,
    step: int | None = None,
    data=None,
    partial: bool = False,
    padded: bool = False,
  ):
    """Loads a checkpoint after comparing every byte with its manifest.

    Args:
      abstract_state: pytree of arrays or `jax.ShapeDtypeStruct`s; the result
        has its shardings (the first device where there is none).
      step: None for the newest whole checkpoint, or an earlier one if that does
        not load; a step asked for by name is loaded or refused.
      data: iterator to put where the saved one stood.
      partial: load only what `abstract_state` has; else it must have all.
      padded: an array may have more rows than were saved; they become zeros.

    Returns:
      (step, state, host); host as given to `save`, after a trip through JSON.
    """

    def load_step(step: int):
      return self._load_step(step, abstract_state, data, partial, padded)

    if step is None:
      newest = self.restore_newest(load_step, rows_later=False)
      if newest is None:
        raise FileNotFoundError(f'no checkpoint in {self.directory}')
      return newest
    self.wait()
    self._group.decide_together(
      'restoring a checkpoint', lambda _: self._steps.require_whole(step), step
    )
    return load_step(step)

  def _load_step(self, step: int, abstract_state, data, partial, padded):
    """What `restore` does with a step that was compared."""
    if obstacle := storage.find_obstacle(self.directory):
      raise CheckpointError(
        f'checkpoint of step {step} cannot be loaded: {obstacle}'
      )
    body = self._read_body(step)
    different = trees.find_difference(
      body['tree'],
      trees.describe_tree(abstract_state),
      partial=partial,
      padded=padded,
    )
    if different:
      raise CheckpointError(
        f'checkpoint of step {step} does not fit: {different}; was it made '
        'with another config?'
      )
    if data is not None and not body['data']:
      raise CheckpointError(f'checkpoint of step {step} has no data iterator')
    items = _checkpointables(trees.to_abstract(abstract_state), data)

    def load_items():
      place = self._step_directory(step)
      array_layouts.check_layouts(place / 'state', items['state'], body['tree'])
      with _make_context(partial, padded):
        return ocp.load_checkpointables(place, items)

    loaded = load_together(self._group, step, load_items)
    return step, loaded['state'], body['host']

  def restore_rows(
    self,
    step: int,
    stacks,
    arrays,
    slots,
    *,
    fresh=None,
    formats: Formats = FORMATS,
  ):
    """Loads what was saved row by row, of a step that was verified.

    Args:
      step: as `restore` has given it.
      stacks: array -> `layout.Stack`, of some tables or of all.
      arrays: array -> `jax.ShapeDtypeStruct` wanted.
      slots: array -> slots of its row optimizer wanted, {} for none.
      fresh: (arrays, slots) to take what was not saved from, see
        `rows.load_rows`.
      formats: the number formats there are, see
        `numerics.formats.extend_formats`.

    Returns:
      `rows.Loaded`.
    """
    bodies = chain.read_chain(self.directory, step, self._key)

    more = {'fresh': fresh, 'formats': formats}

    def load():
      try:
        return rows_lib.load_rows(
          self.directory, bodies, stacks, arrays, slots, **more
        )
      except manifest.DamagedError as e:
        if self._steps.leaves_rows:  # compared only here
          raise
        ago = 'it was whole a moment ago: has another process changed it?'
        raise manifest.DamagedError(f'{e}; {ago}') from e

    return load_together(self._group, step, load)

  def read_row_history(self, step: int | None) -> dict | None:
    """What a next save must know of an earlier one, None if that is gone.

    Returns:
      `rows` (the manifest's entry), `identity`, and `fraction`: how large its
      rows are beside those of its base.
    """
    return self._group.decide_together(
      'looking at the checkpoint before', lambda _: self._about_rows(step)
    )

  def wait(self) -> None:
    """Returns when no save is under way; raises if the last one failed."""
    if self._saving is not None:
      concurrent.futures.wait([self._saving])  # a Ctrl-C here forgets nothing
      saving, self._saving = self._saving, None
      saving.result()

  def close(self) -> None:
    """Waits for the save under way, which the process's end would lose."""
    try:
      self.wait()
    finally:
      self._writer.release()

  def __exit__(self, kind, error, trace):
    try:
      self.close()
    except CheckpointError:
      if error is None:  # else the error that ends the block is the one to show
        raise

  def _step_directory(self, step: int):
    return self.directory / str(step)

  def _read_body(self, step: int) -> dict:
    """The manifest of a step that process 0 has found to be there."""
    try:
      return manifest.read(self._step_directory(step), self._key)
    except manifest.IncompleteError as e:
      raise CheckpointError(
        f'process {self._group.me} does not see what process 0 sees in '
        f'{self._step_directory(step)}; the directory must be one that all '
        'processes share'
      ) from e

  # What process 0 does for all, as `ProcessGroup.decide_together` calls it.

  def _about_rows(self, step: int | None) -> dict | None:
    if step is None:
      return None
    try:
      *parents, body = chain.read_chain(self.directory, step, self._key)
    except CheckpointError:
      return None
    if 'rows' not in body:
      return None
    base = parents[0] if parents else body
    return {
      'rows': body['rows'],
      'identity': chain.read_identity(self._step_directory(step)),
      'fraction': row_files.count_bytes(body)
      / max(row_files.count_bytes(base), 1),
    }

  def _meet_processes(self, error: Exception | None) -> None:
    """In the background, with rows: nobody goes on before all are written."""
    try:
      self._rows_group.decide_together(
        'writing rows',
        failures.raise_first,
        error and failures.explain_failure(error, self.directory),
      )
    except CheckpointError:
      if error is None:
        raise

  def _require_equal_state(self, step: int, sums: list[dict[str, int]]) -> None:
    for process, other in enumerate(sums):
      for what in sums[0] | other:
        if sums[0].get(what) != other.get(what):
          raise CheckpointError(
            f'step {step} cannot be saved: process {process} has another '
            f'{what} than process 0'
          )
    self.directory.mkdir(parents=True, exist_ok=True)
    self._writer.claim_directory()
    retention.make_room(self.directory, step, self._log, self._steps.damaged)

  def _complete_save(self, step: int, written, extra: dict) -> None:
    """In the background: the rest of the save, then what is superfluous."""
    error = None
    try:
      with failures.raise_once():
        self._group.run_in_each_process(written.result)
    except Exception as e:
      error = e
    self._group.decide_together(
      f'saving step {step}',
      lambda reasons: self._finish_save(step, extra, error, reasons),
      error and failures.explain_failure(error, self.directory),
    )

  def _finish_save(
    self,
    step: int,
    extra: dict,
    error: Exception | None,
    reasons: list[str | None],
  ) -> None:
    try:
      if error:
        raise error
      failures.raise_first(reasons)
      self._writer.check()
      chain.check_parents(self.directory, extra)
      manifest.write(
        self._step_directory(step),
        step,
        self._key,
        time=time.time(),
        **extra,
      )
    except Exception as e:
      if not isinstance(e, SupersededError):  # else it may be the other's
        retention.discard_failed(self.directory, step)
      others = ', '.join(map(str, manifest.list_steps(self.directory)))
      failure = CheckpointError(
        f'saving step {step} in {self.directory} failed: '
        f'{failures.explain_failure(e, self.directory)}\n'
        f'Earlier checkpoints are as they were: {others or "there are none"}.'
      )
      self._log(str(failure))  # now; it is raised only at the next call
      raise failure from None if failures.is_of_disk(e) else e
    self._steps.note_saved(step)
    try:
      retention.remove_superfluous(
        self.directory,
        step,
        limits=self._limits,
        damaged=self._steps.damaged,
        log=self._log,
      )
    except OSError as e:  # tried again after the next save
      self._log(f'an old checkpoint could not be removed: {e}')


def _checkpointables(state, data) -> dict:
  more = {} if data is None else {'data': IteratorState(data)}
  return {'state': state} | more


def _make_context(partial: bool = False, padded: bool = False) -> ocp.Context:
  context = ocp.Context()
  # Compressing would take cores from the training for a few per cent of disk.
  context.array_options.saving.use_compression = False
  context.pytree_options.loading.partial_load = partial
  context.array_options.loading.enable_padding_and_truncation = padded
  return context
