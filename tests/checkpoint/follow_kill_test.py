"""Really kills followers, and looks at the copies they leave."""

import multiprocessing
import os
import pathlib
import signal
import time

import numpy as np
import pytest

from genrec_jax.checkpoint import (
  row_files,
  storage,
)
from genrec_jax.checkpoint.copy_writer import ReplicaWriter
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.checkpoint.staged_tables import RowWriter, StagedTables
from tests import killing
from tests.checkpoint.published import Published, assert_is

pytestmark = pytest.mark.usefixtures('no_power_cut')


@pytest.fixture(scope='module')
def processes():
  """Starts processes in milliseconds, without JAX."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(['grain', 'genrec_jax.checkpoint.manager'])
  return context


# What an update does with a base and two deltas, and at which call of what
# function it is killed; the step whose rows are left to the next follower.
PHASES = {
  'half a base': (RowWriter, 'put', 5, None),
  'a base, not yet on the disk': (StagedTables, 'sync', 1, None),
  'tables that no position names': (storage, 'write_file', 1, None),
  'tables just named': (ReplicaWriter, '_remove_others', 2, 2),
  'half of a delta received': (row_files, 'decode_chunk', 35, 2),
  'a delta received, without its manifest': (storage, 'write_file', 2, 2),
  'none of its rows applied': (ReplicaWriter, '_apply_delta', 1, 4),
  'half of its rows applied': (RowWriter, 'put', 36, 4),
  'rows applied, not the position': (storage, 'write_file', 3, 4),
  'position written, delta still there': (storage, 'remove_directory', 3, 4),
}


def die_at(phase):
  """Makes this process kill itself at the nth call of a function."""
  owner, name, nth, _ = PHASES[phase]
  killing.at_call(owner, name, nth)


def follow_to_death(source, copy, later, phase):
  os.fsync = lambda file: None
  die_at(phase)
  with Follower(source, copy, log=lambda line: None) as follower:
    follower.update()
    pathlib.Path(later).rename(source / '4')
    follower.update()
    os._exit(0)


@pytest.mark.parametrize('phase', PHASES)
def test_killed_in_a_phase_of_an_update(processes, run, copy, tmp_path, phase):
  run.line(1, 2, 4)
  later = tmp_path / 'later'
  (run.directory / '4').rename(later)
  process = processes.Process(
    target=follow_to_death,
    args=(run.directory, copy, later, phase),
    daemon=True,
  )
  process.start()
  process.join(60)
  assert process.exitcode == -signal.SIGKILL
  wanted = PHASES[phase][-1]
  with Follower(tmp_path / 'gone', copy, log=lambda line: None) as alone:
    assert alone.step == wanted  # with no help of the source
    if wanted:
      assert_is(alone, run.whole[wanted])
      reader = ServingCopy(copy)
      assert_is(reader, run.whole[wanted])
      assert reader.read('item', [0])[1] == wanted
  if later.exists():
    later.rename(run.directory / '4')
  with Follower(run.directory, copy, log=lambda line: None) as again:
    again.update()
    assert_is(again, run.whole[4])
  assert len([p for p in copy.iterdir() if p.is_dir()]) == 1


def follow_for_ever(source, copy, pipe):
  os.fsync = lambda file: None
  with Follower(source, copy, log=pipe.send) as follower:
    follower.follow(poll_s=0.002)


@pytest.mark.parametrize(
  'trials, seed', [(8, 0), pytest.param(200, 1, marks=pytest.mark.slow)]
)
def test_killed_at_random_moments(processes, tmp_path, copy, trials, seed):
  rng = np.random.default_rng(seed)
  tables = {'item': (6000, 12, 'float32'), 'user': (3000, 8, 'float32')}
  run = Published(tmp_path / 'run', seed=seed, tables=tables).line(0)
  step, interrupted = 0, 0
  for _ in range(trials):  # each goes on where the one before ended
    for _ in range(3):
      step += 1
      run.base(step) if rng.random() < 0.1 else run.delta(step)
    parent, child = processes.Pipe(duplex=False)
    process = processes.Process(
      target=follow_for_ever, args=(run.directory, copy, child), daemon=True
    )
    process.start()
    child.close()
    assert parent.poll(60), 'the follower does nothing'
    time.sleep(rng.uniform(0, 0.25))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    parent.close()
    lines = []
    with Follower(tmp_path / 'gone', copy, log=lines.append) as alone:
      interrupted += 'after an interruption' in '\n'.join(lines)
      if alone.step is not None:
        assert_is(alone, run.whole[alone.step])
        assert ServingCopy(copy).read('item', [0])[1] == alone.step
  with Follower(run.directory, copy, log=lambda line: None) as last:
    last.update()
    assert_is(last, run.whole[step])
  print(f'{trials} kills, {interrupted} of them within a delta')
