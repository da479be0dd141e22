"""The weights that a training left in its workdir, put together."""

import dataclasses
import logging
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint import manifest as manifest_lib
from genrec_jax.checkpoint import storage, trees
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.config import tower_file
from genrec_jax.contracts import EvalRuntime, Extensions
from genrec_jax.embedding import id_maps, relayout
from genrec_jax.embedding import layout as layout_lib
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.numerics.policy import Rules
from genrec_jax.numerics.row_formats import (
  choose_formats,
  describe_formats,
  round_table,
)
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.state import flatten_state, unflatten_state
from genrec_jax.tasks import meaning

LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class Weights:
  """What a checkpoint holds of a model; an evaluator takes it for a state."""

  params: Any
  tables: dict[str, jax.Array]
  step: int
  id_states: dict[str, Any] = dataclasses.field(default_factory=dict)
  modules: dict[str, Any] = dataclasses.field(default_factory=dict)


def load_weights(
  workdir: str | os.PathLike,
  task,
  checkpoint: str | int,
  extensions: Extensions | None = None,
  runtime: EvalRuntime | None = None,
  row_formats: Rules = (),
) -> Weights:
  """The weights of a workdir's 'best' or 'latest' checkpoint, or of a step.

  'best' falls back to the latest, with a message, in a run without validation.
  Weights of a run that has diverged come with a warning.

  Args:
    workdir: of the run.
    task: what was trained.
    checkpoint: which; a number is a step in WORKDIR/checkpoints.
    extensions: what is used from outside the library.
    runtime: where the weights shall lie. On a mesh, each device gets its part
      of the tables; None, or one device, has them put together.
    row_formats: (regex of a table, format) pairs, `config.numerics.rows`.
  """
  if row_formats and hasattr(runtime, 'restore_weights'):
    raise ValueError(
      'numerics.rows reads whole tables: evaluate and predict on one device'
    )
  weights = _load(workdir, task, checkpoint, extensions, runtime)
  if not row_formats:
    return weights
  tables = dict(weights.tables)
  chosen = choose_formats(row_formats, list(tables))
  dims = {name: tables[name].shape[-1] for name in chosen}
  LOG.info('%s', describe_formats(chosen, dims))
  for name, number_format in chosen.items():
    tables[name] = round_table(tables[name], number_format)
  return dataclasses.replace(weights, tables=tables)


def _load(workdir, task, checkpoint, extensions, runtime) -> Weights:
  """As `load_weights`, in the numbers of the training."""
  workdir = pathlib.Path(workdir)
  if isinstance(checkpoint, int):
    with CheckpointManager(workdir / 'checkpoints', log=LOG.warning) as steps:
      return _restore_weights(steps, checkpoint, task, extensions, runtime)
  if checkpoint not in ('best', 'latest'):
    raise ValueError(
      f"predict.checkpoint is {checkpoint!r}, not 'best' or 'latest'"
    )
  if checkpoint == 'best':
    with CheckpointManager(workdir / 'best', log=LOG.warning) as best:
      step = best.latest()
      if step is not None:
        return _restore_weights(best, step, task, extensions, runtime)
    LOG.info('no best checkpoint in %s, taking the latest', workdir)
  with CheckpointManager(workdir / 'checkpoints', log=LOG.warning) as latest:
    step = latest.latest()
    if step is None:
      raise CheckpointError(f'{workdir} holds no checkpoint; train first')
    weights = _restore_weights(latest, step, task, extensions, runtime)
    workdir_lib.warn_if_diverged(workdir, latest.read_manifest(weights.step))
    return weights


def choose_checkpoint(config) -> str:
  """Which checkpoint of a run `config.predict.checkpoint` means.

  A stream of requests has no best one, so that nobody need be told that it is
  missing.
  """
  if config.task == 'request_ranking' and config.data.order == 'stream':
    return 'latest'
  return config.predict.checkpoint


def require_weights(workdir: str | os.PathLike) -> None:
  """Refuses a workdir without weights, looking at names and sizes of files.

  `load_weights` reads them and compares every byte.

  Raises:
    CheckpointError: there are none, or files of them are missing.
  """
  for folder in ('best', 'checkpoints'):
    directory = storage.absolute_path(pathlib.Path(workdir) / folder)
    problem = ''
    for step in reversed(manifest_lib.list_steps(directory)):
      try:
        manifest_lib.verify(directory / str(step), quick=True)
        return
      except manifest_lib.IncompleteError:
        continue
      except CheckpointError as e:
        problem = problem or f'{directory / str(step)} is {e}'
    if problem:
      raise CheckpointError(problem)
  raise CheckpointError(f'{workdir} holds no checkpoint; train first')


def _by_rows(
  checkpoints: CheckpointManager,
  step: int,
  like,
  rows,
  extensions: Extensions,
) -> Weights:
  stacks = relayout.sources_of_whole(rows)
  step, leaves, _ = checkpoints.restore(
    flatten_state(like), step=step, partial=True
  )
  leaves = unflatten_state(like, leaves)
  arrays = {
    n: jax.ShapeDtypeStruct((s.rows, s.dim), s.dtype) for n, s in rows.items()
  }
  leaves['tables'] |= checkpoints.restore_rows(
    step, stacks, arrays, {}, formats=extend_formats(extensions.formats)
  ).arrays
  return _make_weights(leaves, step)


def _make_weights(leaves: dict, step: int) -> Weights:
  averaged = leaves.pop('averaged', None)
  if averaged is not None:
    leaves['params'] = averaged
  return Weights(**leaves, step=step)


def _check_model(manifest: dict, task) -> None:
  """Refuses weights that mean something else, whose shapes may be the same."""
  _check_towers(manifest, task)
  saved = (manifest.get('host') or {}).get('model')
  if differences := meaning.list_differences(saved, task):
    raise CheckpointError(
      f'the checkpoint has the weights of another model: '
      f'{"; ".join(differences)}. Read it with the config.json with which it '
      'was trained'
    )


def _check_towers(manifest: dict, task) -> None:
  """Refuses weights of other towers, whose shapes may be the same."""
  towers = getattr(task, 'towers', None)
  saved = (manifest.get('host') or {}).get('data')
  if towers is None or not isinstance(saved, str):
    return
  if not tower_file.same_towers(saved, towers.features):
    raise CheckpointError(
      'the checkpoint has the weights of other towers than '
      f'{tower_file.OF_A_RUN} in the workdir says; put back the file with '
      'which the run was trained'
    )


def _restore_weights(
  checkpoints: CheckpointManager,
  step: int,
  task,
  extensions: Extensions | None,
  runtime: EvalRuntime | None,
) -> Weights:
  extensions = extensions or Extensions()
  if hasattr(runtime, 'restore_weights'):  # a mesh: nothing is put together
    _check_model(checkpoints.read_manifest(step), task)
    return _make_weights(runtime.restore_weights(checkpoints, step), step)
  manifest = checkpoints.read_manifest(step)
  _check_model(manifest, task)
  like = jax.eval_shape(
    lambda: state_lib.init_optax_params(
      task, 0, state_lib.find_towers(task, extensions)
    )
  )
  like.pop('aux', None)  # of training alone
  like[trees.find_params(manifest['tree'])] = like.pop('params')
  maps = id_maps.collect_maps(task, extensions.id_maps)
  like['id_states'] = jax.eval_shape(maps.init)
  rows = state_lib.row_specs(task)
  if 'rows' in manifest:
    return _by_rows(checkpoints, step, like, rows, extensions)
  plan = plan_lib.from_checkpoint(manifest['host'])
  if plan:
    layout = layout_lib.lay_out(plan)
    arrays = {
      name: trees.shape_of(manifest['tree'][f'tables/{name}'])
      for name in relayout.find_stacks(layout)
    }
  else:
    arrays = {
      name: jax.ShapeDtypeStruct((spec.rows, spec.dim), spec.dtype)
      for name, spec in rows.items()
    }
  like['tables'] |= arrays
  step, leaves, _ = checkpoints.restore(
    flatten_state(like), step=step, partial=True
  )
  leaves = unflatten_state(like, leaves)
  tables = leaves['tables']
  if plan:
    host = {name: np.asarray(tables[name]) for name in arrays}
    for name in arrays:
      del tables[name]
    for name in rows:
      tables[name] = jnp.asarray(relayout.gather_table(layout, host, name))
  return _make_weights(leaves, step)
