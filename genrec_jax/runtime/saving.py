"""Saves the state of a run, whole or with tables by rows, and publishes it."""

import contextlib
import dataclasses
import functools
import logging
import math
import pathlib

from genrec_jax.checkpoint import signing
from genrec_jax.checkpoint.delta import (
  DeltaOptions,
  RowSaver,
  RowTables,
  copy_all_rows,
)
from genrec_jax.checkpoint.follow import PUBLISHED
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Weights, weights_of
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.restoring import ResumePoint
from genrec_jax.runtime.state import TrainState, flatten_state

LOG = logging.getLogger('genrec_jax')


def tracks_dirty_rows(config) -> bool:
  """Whether steps mark the rows they touch."""
  return bool(config.checkpoint.policy or config.checkpoint.publish.every)


class Saver(contextlib.AbstractContextManager):
  """The checkpoints of a run, and what it publishes, as configured.

  Attributes:
    checkpoints: where a run is restored from.
    key: signs what is saved; None if nothing is to be signed.
  """

  def __init__(self, config, workdir: pathlib.Path, runtime, task):
    """Reads the config; nothing is written before the first save.

    Args:
      config: of the experiment.
      workdir: of the run.
      runtime: where its state lies.
      task: what is trained.
    """
    c = config.checkpoint
    if tracks_dirty_rows(config) and not runtime.stacks:
      raise ConfigError(
        'checkpoint.policy and checkpoint.publish are for tables that are '
        'updated by rows, and there are none; set optimizer.rows.name'
      )
    self._task, self._every = task, c.publish.every
    self._runtime = runtime
    self.key = signing.read_key(c.sign_key_file, LOG.warning)
    self.checkpoints = CheckpointManager(
      workdir / 'checkpoints',
      keep=config.train.keep_checkpoints,
      keep_hours=c.keep_hours,
      keep_gb=c.keep_gb,
      log=LOG.warning,
      key=self.key,
    )
    self._rows = self._readers = None
    self._copying = dict(
      chunk_rows=c.chunk_rows, most_bytes=math.ceil(c.copy_gb * 1e9)
    )
    self._newest = None  # step published
    formats = extend_formats(runtime.extensions.formats)
    if c.policy:
      options = _delta_options(
        c,
        c.policy,
        slots=c.row_state_dtype,
        expected_restores=c.expected_restores,
        **self._copying,
        formats=formats,
      )
      self._rows = RowSaver(
        self.checkpoints, runtime.stacks, options, log=LOG.warning
      )
    if self._every:
      self._published = CheckpointManager(
        workdir / PUBLISHED,
        keep=c.publish.keep,
        log=LOG.warning,
        key=self.key,
      )
      options = _delta_options(
        c.publish, 'consecutive', **self._copying, formats=formats
      )
      self._readers = RowSaver(
        self._published,
        runtime.stacks,
        options,
        published=True,
        log=LOG.info,
      )

  def restore(self, data) -> ResumePoint | None:
    """The newest step that can be restored, None where nothing was saved.

    Args:
      data: iterator to put where the saved one stood.
    """
    return self.checkpoints.restore_newest(
      lambda step: self._runtime.restore(self.checkpoints, step, data)
    )

  def note_restore(self, step: int) -> None:
    """The run goes on from this step."""
    if self._rows:
      self._rows.note_restore(step)

  def save(self, step: int, state: TrainState, *, data, host) -> TrainState:
    """Saves a step; the state is given away, and given back."""
    if not self._rows:
      self.checkpoints.save(step, flatten_state(state), data=data, host=host)
      return state
    stacks = state.row_opt_state  # the arrays that are updated by rows
    dense = dataclasses.replace(
      state,
      tables={n: x for n, x in state.tables.items() if n not in stacks},
      row_opt_state={},
    )
    dirty_rows = self._rows.save(
      step,
      flatten_state(dense),
      _row_tables(state),
      data=data,
      host=host,
      restores=host['restores'],
    )
    return dataclasses.replace(state, dirty_rows=dirty_rows)

  def split_weights(self, weights: Weights):
    """Weights, cut as checkpoints of this run hold tables.

    Returns:
      path -> array of what is saved as it is; and what copies the rest row by
      row, or None where checkpoints hold whole arrays.
    """
    if not self._rows:
      return flatten_state(weights), None
    tables = weights['tables']
    stacks = self._runtime.stacks
    arrays = {name: tables[name] for name in stacks}
    others = {n: x for n, x in tables.items() if n not in stacks}
    copy_rows = functools.partial(
      copy_all_rows, stacks, arrays, **self._copying
    )
    return flatten_state({**weights, 'tables': others}), copy_rows

  def is_publish_step(self, step: int, ended: bool = False) -> bool:
    """Whether a step is one to publish; so is the one that ended a run."""
    return self._every > 0 and step > 0 and (ended or step % self._every == 0)

  def write_plan(self, workdir: pathlib.Path) -> None:
    """Leaves in the workdir where rows lie, as `parallel.plan` takes it."""
    plan = self._runtime.plan
    if plan is not None and plan.tables:
      (workdir / 'plan.json').write_text(plan.to_json())

  def publish(
    self, step: int, state: TrainState, host: dict | None = None
  ) -> TrainState:
    """Publishes a step.

    A failure is logged, and the next publication includes its rows.

    Args:
      step: its number.
      state: the state; it is given away, and given back.
      host: what readers find in the manifest, or None.
    """
    try:
      if self._newest is None:
        self._newest = self._published.latest() or 0
      if step <= self._newest:  # by the run that was lost; not to be undone
        LOG.info('step %d was published before the restart', step)
        return state
      dense = state_lib.collect_optax_params(
        self._task, weights_of(state)['params'], state.tables
      )
      # A map belongs to its rows: readers get both, or neither.
      dense |= {'id_states': state.id_states} if state.id_states else {}
      tables = dataclasses.replace(_row_tables(state), slots={})
      dirty_rows = self._readers.save(
        step, flatten_state(dense), tables, host=host
      )
    except CheckpointError as e:
      LOG.warning('step %d is not published: %s', step, e)
      return state
    return dataclasses.replace(state, dirty_rows=dirty_rows)

  def wait(self) -> None:
    """Returns when nothing is being written; raises if a save has failed."""
    self.checkpoints.wait()
    self._end_publishing()

  def _end_publishing(self) -> None:
    """The last publication may fail as any other may."""
    if self._every:
      try:
        self._published.close()
      except CheckpointError as e:
        LOG.warning('the last step is not published: %s', e)

  def __exit__(self, kind, error, trace):
    self._end_publishing()
    self.checkpoints.__exit__(kind, error, trace)


def _row_tables(state: TrainState) -> RowTables:
  arrays = {n: state.tables[n] for n in state.row_opt_state}
  return RowTables(arrays, state.row_opt_state, state.dirty_rows)


def _delta_options(section, policy: str, **more) -> DeltaOptions:
  return DeltaOptions(
    policy=policy,
    bits=section.bits,
    method=section.method,
    full_every=section.full_every,
    **more,
  )
