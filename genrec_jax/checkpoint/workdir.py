"""Ties a workdir to the config with which its run was started."""

import contextlib
import json
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import storage
from genrec_jax.checkpoint.workdir_files import (
  FREE_KEYS,
  list_traces,
  make_workdir,
)
from genrec_jax.parallel import job

LOG = logging.getLogger('genrec_jax')
# What is evaluated, and how, does not change the weights either.
FREE_AFTER_TRAINING = (*FREE_KEYS, 'eval', 'numerics', 'train.monitor')
# Where a process finds its data may differ between hosts.
FREE_OF_PROCESSES = ('data.path', 'data.cache', 'compile_cache')


@contextlib.contextmanager
def own_workdir(workdir: pathlib.Path, config, defaults=None) -> Iterator[None]:
  """Claims the workdir and keeps it locked, for all processes of a job.

  Args:
    workdir: of the run.
    config: of the run.
    defaults: `TaskKind.defaults`, where it may be from outside the library.
  """
  config_lib.use_new_names(config, defaults)
  _keep_former_values(workdir, config, defaults)
  with contextlib.ExitStack() as stack:
    with job.fail_together('taking the workdir'):
      lead = job.broadcast_from_leader(config_lib.to_json(config))
      lines = config_lib.describe_differences(
        json.loads(lead), config, FREE_OF_PROCESSES
      )
      if lines:
        raise config_lib.ConfigError(
          'the processes of a job must have one config; that of process 0 is '
          'called saved here:' + ''.join(f'\n  {line}' for line in lines)
        )
      if job.is_leader():
        stack.enter_context(lock_workdir(workdir))
        claim_workdir(workdir, config, defaults)
    yield


@contextlib.contextmanager
def lock_workdir(workdir: pathlib.Path) -> Iterator[None]:
  """Keeps a second training out of `workdir` while the context lasts.

  The lock goes with the process, however it ends. A file system without locks
  is used without one.
  """
  make_workdir(workdir)
  with storage.open_lock(workdir / '.lock') as file:
    if not storage.lock_file(file):
      raise config_lib.ConfigError(
        f'another process is training in {workdir}; use another --workdir, or '
        'wait until it has ended'
      )
    yield


def claim_workdir(workdir: pathlib.Path, config, defaults=None) -> None:
  """Marks `workdir` as this config's, or refuses what belongs to another."""
  make_workdir(workdir)
  path = workdir / 'config.json'
  trained = list_traces(workdir)
  # A run that ended before its first step, at a misspelt column say, left
  # nothing to protect: the mended config may have its workdir.
  if trained and path.exists():
    _refuse_others(path, config, FREE_KEYS, defaults)
  elif trained:
    raise config_lib.ConfigError(
      f'the workdir {workdir} holds {trained[0]} but no config.json; use '
      'another --workdir'
    )
  config_lib.save(config, path)


def check_trained(workdir: pathlib.Path, config, defaults=None) -> None:
  """Refuses a workdir that this config has not trained; changes nothing."""
  config_lib.use_new_names(config, defaults)
  _keep_former_values(workdir, config, defaults)
  path = workdir / 'config.json'
  if not path.exists():
    raise FileNotFoundError(
      f'{workdir} is not the workdir of a run (no config.json); train first: '
      'the same command with --mode=train'
    )
  _refuse_others(path, config, FREE_AFTER_TRAINING, defaults)


def _keep_former_values(workdir: pathlib.Path, config, defaults) -> None:
  """A run older than a key goes on as before, see `comparison.FORMER`."""
  if list_traces(workdir):
    try:
      saved = config_lib.read_config(workdir / 'config.json', defaults)
    except (OSError, ValueError):
      return  # whoever claims or checks the workdir says so
    config_lib.keep_former_values(config, saved, defaults)


def _refuse_others(
  path: pathlib.Path, config, free: Sequence[str], defaults
) -> None:
  lines = config_lib.describe_differences(
    config_lib.read_config(path, defaults),
    config,
    free,
    placement=False,
    defaults=defaults,
  )
  if lines:
    raise config_lib.ConfigError(
      f'the workdir {path.parent} belongs to another config; use another '
      '--workdir, or undo:' + ''.join(f'\n  {line}' for line in lines)
    )


def warn_if_diverged(workdir: pathlib.Path, manifest: Mapping) -> None:
  """Says of a checkpoint that is read that its run had diverged.

  Args:
    workdir: of the run.
    manifest: of the checkpoint, see `CheckpointManager.read_manifest`.
  """
  # Weights that are the best, and checkpoints of earlier versions, lack it.
  health = (manifest['host'] or {}).get('health') or {}
  if diverged := health.get('diverged'):
    LOG.warning(
      'The weights of step %d in %s are those of a run that diverged at step '
      '%d: %s. Their predictions are worthless: train again, in another '
      '--workdir.',
      manifest['step'],
      workdir,
      diverged['step'],
      diverged['why'],
    )
