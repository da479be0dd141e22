"""Checkpoints of jobs of several processes, really started and killed."""

import dataclasses
import os
import random
import resource
import shutil
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from genrec_jax.checkpoint import delta, group, manifest, retention, rows
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.parallel import mesh as mesh_lib
from tests import killing, processes
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint import training
from tests.checkpoint.laid_out import Setting, numbered

ROWS = 64


def shardings(tree):
  """Tables by rows over all devices, the rest on every one."""
  mesh = mesh_lib.make_mesh()
  split = mesh_lib.batch_sharding(mesh)
  return {
    name: split if name.startswith('table') else mesh_lib.replicated(mesh)
    for name in tree
  }


def values(step, rows=ROWS):
  """A state as NumPy arrays, the same in every process."""
  rng = np.random.default_rng(step)
  return {
    'table': rng.normal(size=(rows, 4)).astype(np.float32),
    'table_slot': rng.normal(size=rows).astype(np.float32),
    'weights': rng.normal(size=(3, 5)).astype(np.float32),
    'bf16': rng.normal(size=7).astype(jnp.bfloat16),
    'step': np.int32(step),
  }


def state_of(step, rows=ROWS):
  tree = values(step, rows)
  return {
    name: jax.make_array_from_callback(
      tree[name].shape, sharding, lambda at, name=name: tree[name][at]
    )
    for name, sharding in shardings(tree).items()
  }


def abstract(rows=ROWS):
  tree = values(0, rows)
  return {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    for (name, x), s in zip(tree.items(), shardings(tree).values(), strict=True)
  }


def assert_is(state, step, rows=ROWS):
  """Every shard that this process has is what it must be, bit for bit."""
  for name, want in values(step, rows).items():
    for shard in state[name].addressable_shards:
      got = np.asarray(shard.data)
      assert got.tobytes() == np.ascontiguousarray(want[shard.index]).tobytes()
  assert len(state['table'].sharding.device_set) == len(jax.devices())


def save(checkpoints, step, rows=ROWS, **options):
  checkpoints.save(
    step,
    state_of(step, rows),
    data=content.iterator(step),
    host={'of process': jax.process_index(), 'step': step},
    **options,
  )


def save_all(directory, *steps):
  log = []
  with CheckpointManager(directory, log=log.append) as checkpoints:
    before = checkpoints.latest()
    for step in steps:
      save(checkpoints, step)
    return before, checkpoints.latest(), log


def restore_newest(directory):
  it, log = content.iterator(), []
  with CheckpointManager(directory, log=log.append) as checkpoints:
    step, state, host = checkpoints.restore(abstract(), data=it)
  assert_is(state, step)
  assert host == {'of process': 0, 'step': step}
  assert (next(it) == next(content.iterator(step))).all()
  return step, log


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Steps 2 and 3, saved by two processes of two devices; 1 has gone."""
  directory = tmp_path_factory.mktemp('saved')
  assert processes.run(save_all, directory, 1, 2, 3) == [(None, 3, [])] * 2
  return directory


@pytest.mark.parametrize('count, devices', [(1, 4), (4, 1), (2, 2), (1, 1)])
def test_what_two_processes_saved_any_number_restores(saved, count, devices):
  found = processes.run(restore_newest, saved, processes=count, devices=devices)
  assert found == [(3, [])] * count


def grow(directory):
  """Two of the arrays, one of them with more rows, on another mesh."""
  want = abstract(rows=96)
  want = {name: want[name] for name in ('table', 'step')}
  with CheckpointManager(directory) as checkpoints:
    step, state, _ = checkpoints.restore(want, partial=True, padded=True)
  padded = np.zeros((96, 4), np.float32)
  padded[:ROWS] = values(step)['table']
  return [
    np.array_equal(shard.data, padded[shard.index])
    for shard in state['table'].addressable_shards
  ]


def test_a_part_is_loaded_with_more_rows(saved):
  found = processes.run(grow, saved, processes=3, devices=1)
  assert found == [[True]] * 3


def test_everything_is_written_once(saved):
  names = sorted(p.name for p in saved.iterdir())
  assert names == ['.writer', '2', '3']
  body = manifest.verify(saved / '3')
  assert body['host'] == {'of process': 0, 'step': 3}
  assert body['tree']['table'] == 'float32[64,4]'  # as if it were not split
  assert [f for f in body['files'] if f.startswith('data/')] == [
    'data/process_0-of-1.json'
  ]
  for owner in (0, 1):  # and each process wrote its own arrays
    assert any(f'process_{owner}/' in f for f in body['files'])


def test_what_one_process_saved_several_restore(tmp_path):
  with CheckpointManager(tmp_path) as checkpoints:
    save(checkpoints, 7)
  assert processes.run(restore_newest, tmp_path) == [(7, [])] * 2


def test_all_agree_to_pass_over_a_damaged_step(saved, tmp_path):
  shutil.copytree(saved, tmp_path / 'c')
  files = [p for p in (tmp_path / 'c/3/state').rglob('*') if p.is_file()]
  max(files, key=lambda p: p.stat().st_size).write_bytes(b'x')
  (first, log), second = processes.run(restore_newest, tmp_path / 'c')
  assert first == 2 and second == (2, [])
  assert 'step 3 skipped, damaged: state/' in log[0]


# --- Refusals


def message_of(call) -> str:
  try:
    call()
  except (CheckpointError, FileNotFoundError) as e:
    return f'{type(e).__name__}: {e}'
  return 'nothing was raised'


def refused(directory):
  me = jax.process_index()
  checkpoints = CheckpointManager(directory, log=print)
  out = [
    message_of(lambda: checkpoints.restore(abstract())),
    message_of(lambda: checkpoints.restore(abstract(), step=8)),
    message_of(
      lambda: checkpoints.save(1, state_of(1), data=content.iterator(me))
    ),
    message_of(lambda: checkpoints.save(1 + me, state_of(1))),
    message_of(lambda: checkpoints.save(1, {'x': jnp.zeros(3)})),
  ]
  save(checkpoints, 1)
  return [
    *out,
    message_of(lambda: save(checkpoints, 1)),
    message_of(lambda: checkpoints.restore(abstract(rows=128))),
    checkpoints.restore(abstract())[0],
  ]


def test_all_processes_raise_the_same(tmp_path):
  first, second = processes.run(refused, tmp_path)
  for got in (first, second):
    assert 'FileNotFoundError: no checkpoint in' in got[0]
    assert 'FileNotFoundError: no checkpoint of step 8 in' in got[1]
    assert 'process 1 has another data iterator than process 0' in got[2]
    assert 'cannot be saved: process 1 has another step than' in got[3]
    assert 'x lies on devices of this process alone' in got[4]
    assert 'step 1 is already saved' in got[5]
    assert 'table is float32[64,4] in the checkpoint and float32[128' in got[6]
    assert got[7] == 1


def fail_to_write(directory, loser):
  """The second save fails in one process, while the others write on."""
  with CheckpointManager(directory, log=print) as checkpoints:
    save(checkpoints, 1, wait=True)
    state = state_of(2, rows=200_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if jax.process_index() == loser:
      resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    since = time.monotonic()
    out = message_of(lambda: checkpoints.save(2, state, wait=True))
    took = time.monotonic() - since
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = [checkpoints.latest(), manifest.list_steps(checkpoints.directory)]
    save(checkpoints, 3)
  return out, took, left


@pytest.mark.parametrize('loser', [0, 1])
def test_what_fails_in_one_process_fails_in_all(tmp_path, loser):
  for out, took, left in processes.run(fail_to_write, tmp_path, loser):
    assert 'saving step 2 in' in out and 'File too large' in out
    assert ('process 1:' in out) == (loser == 1)
    assert 'Earlier checkpoints are as they were: 1.' in out
    assert took < 30  # Orbax alone waits for 300 s
    assert left == [1, [1]]
  assert manifest.list_steps(tmp_path) == [1, 3]


def stay_away(directory):
  """Process 1 never saves; it ends when process 0 has."""
  checkpoints = CheckpointManager(directory, timeout_s=0.5)
  if jax.process_index() == 0:
    return message_of(lambda: save(checkpoints, 4))
  return None


def test_a_process_that_does_not_come_is_named(tmp_path):
  message, _ = processes.run(stay_away, tmp_path)
  assert (
    'saving step 4: process 1 of 2 did not come within 0.5 s; has it ended'
  ) in message


# --- Savers beside a training


def train(directory):
  """Steps with collectives, which two savers must not disturb."""
  mesh = mesh_lib.make_mesh()
  step_fn = jax.jit(
    jax.shard_map(
      lambda x: x + jax.lax.psum(x.sum(), mesh_lib.AXES) / x.size,
      mesh=mesh,
      in_specs=P(mesh_lib.AXES),
      out_specs=P(mesh_lib.AXES),
    ),
    donate_argnums=0,
  )
  x = mesh_lib.batch_sharding(mesh)
  x = jax.make_array_from_callback(
    (1 << 16,), x, lambda at: np.ones(1 << 16, np.float32)[at]
  )
  with (
    CheckpointManager(directory / 'a', log=print) as often,
    CheckpointManager(directory / 'b', log=print) as seldom,
  ):
    for step in range(1, 41):
      x = step_fn(x) / 5.0
      if step % 10 == 0:
        often.save(step, {'x': x})
      if step % 20 == 0:
        seldom.save(step, {'x': x})
    _, state, _ = often.restore({'x': x})
    _, other, _ = seldom.restore({'x': x})
  return [
    np.array_equal(a.data, c.data) and np.array_equal(b.data, c.data)
    for a, b, c in zip(
      state['x'].addressable_shards,
      other['x'].addressable_shards,
      x.addressable_shards,
      strict=True,
    )
  ]


def test_two_savers_beside_steps_with_collectives(tmp_path):
  assert processes.run(train, tmp_path) == [[True, True]] * 2
  assert manifest.list_steps(tmp_path / 'a') == [30, 40]
  assert manifest.list_steps(tmp_path / 'b') == [20, 40]


# --- Kills


def kill_at(phase):
  """Makes one process kill itself at the nth call of a function."""
  victim, module, name, nth, _ = PHASES[phase]
  if jax.process_index() != victim:
    return
  killing.at_call(module, name, nth)


def save_to_death(directory, phase):
  kill_at(phase)
  save_all(directory, 1, 2, 3, 4, 5)


# Killed in the third save: the process, the function, and what is then newest.
PHASES = {
  'process 1 still writes': (
    1,
    group.ProcessGroup,
    'run_in_each_process',
    3,
    2,
  ),
  'process 0 still writes': (
    0,
    group.ProcessGroup,
    'run_in_each_process',
    3,
    2,
  ),
  'Orbax is done, no manifest': (0, manifest, 'write', 3, 2),
  'manifest not yet renamed': (0, os, 'replace', 3, 2),
  'complete, nothing removed yet': (0, retention, 'remove_superfluous', 3, 3),
}


def phases():
  """All of them; those that one process has too (full_kill_test) are slow."""
  alike = ('process 0 still writes', 'manifest not yet renamed')
  for phase in PHASES:
    marks = [pytest.mark.slow] if phase in alike else []
    yield pytest.param(phase, marks=marks)


@pytest.mark.parametrize('phase', list(phases()))
def test_killed_in_a_phase_of_a_save(tmp_path, phase):
  victim, *_, expected = PHASES[phase]
  found = processes.outcomes(save_to_death, tmp_path, phase)
  assert found[victim].exitcode == -signal.SIGKILL, found[victim].output
  with CheckpointManager(tmp_path, log=lambda message: None) as checkpoints:
    step, state, _ = checkpoints.restore(abstract())
    assert step == expected
    assert_is(state, step)
    # And the next job goes on, over what was left.
    save(checkpoints, expected + 1)
    save(checkpoints, expected + 2)
  names = sorted(p.name for p in tmp_path.iterdir())
  assert names == ['.writer', str(expected + 1), str(expected + 2)]


def go_on(directory, victim, delay):
  """Saves for ever from where the last job was killed."""
  it, step = content.iterator(), 0
  checkpoints = CheckpointManager(directory, log=lambda message: None)
  if checkpoints.latest() is not None:
    step, state, _ = checkpoints.restore(abstract(20_000), data=it)
    assert_is(state, step, 20_000)
  if jax.process_index() == victim:
    signal.signal(
      signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    )
    signal.setitimer(signal.ITIMER_REAL, delay)
  while True:
    step += 1
    next(it)
    checkpoints.save(step, state_of(step, 20_000), data=it)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
  rng, reached = random.Random(0), 0
  for trial in range(30):
    victim = trial % 2
    found = processes.outcomes(go_on, tmp_path, victim, rng.uniform(0.2, 1.0))
    assert found[victim].exitcode == -signal.SIGKILL, found[victim].output
    with CheckpointManager(tmp_path, log=lambda message: None) as checkpoints:
      step = checkpoints.latest() or 0
    assert step >= reached
    for other in manifest.list_steps(tmp_path):  # not one is damaged
      try:
        manifest.verify(tmp_path / str(other))
      except manifest.IncompleteError:
        pass
    reached = step
  assert reached > 30


# --- Rows


def save_rows(directory):
  """A base and a delta of tables that lie on the devices of all processes."""
  setting = Setting('rows')
  with CheckpointManager(directory, keep=9, log=lambda _: None) as checkpoints:
    saver = delta.RowSaver(
      checkpoints,
      setting.stacks,
      delta.DeltaOptions('consecutive', chunk_rows=3),
    )
    dense = {'step': state_of(0)['step']}
    for step, added in ((1, 0), (2, 0.5)):
      setting.arrays, setting.slots = setting.put(
        numbered(setting.layout, added)
      )
      tables = delta.RowTables(
        setting.arrays, setting.slots, setting.dirty_rows(7)
      )
      saver.save(step, dense, tables)
  return jax.process_index()


def restore_rows(directory, which, step, added):
  setting = Setting(which)
  with CheckpointManager(directory, log=lambda _: None) as checkpoints:
    checkpoints.restore({'step': abstract()['step']}, step=step)
    found = checkpoints.restore_rows(step, setting.stacks, *setting.like())
  setting.assert_holds(found, numbered(setting.layout, added))
  return step


def test_rows_that_two_processes_saved_go_anywhere(tmp_path):
  assert processes.run(save_rows, tmp_path, devices=4) == [0, 1]
  names = [p.name for p in (tmp_path / '1/rows/a').iterdir()]
  assert {name[0] for name in names} == {'0', '1'}
  for count, devices, which in ((1, 4, 'columns'), (2, 2, 'hosts')):
    for step, added in ((1, 0), (2, 0.5)):
      found = processes.run(
        *(restore_rows, tmp_path, which, step, added),
        processes=count,
        devices=devices,
      )
      assert found == [step] * count


def fail_to_write_rows(directory):
  """Process 1 has no room for its rows, once."""
  setting, log = Setting('rows'), []
  dense = {'step': state_of(0)['step']}
  tables = delta.RowTables(setting.arrays, setting.slots, setting.dirty_rows(7))
  write = rows.write_chunks
  with CheckpointManager(directory, log=log.append) as checkpoints:
    saver = delta.RowSaver(
      checkpoints, setting.stacks, delta.DeltaOptions('consecutive')
    )
    if jax.process_index() == 1:
      rows.write_chunks = training.disk_full
    saver.save(1, dense, tables)
    try:
      checkpoints.wait()
    except CheckpointError as e:
      log.append(str(e))
    rows.write_chunks = write
    saver.save(
      2, dense, dataclasses.replace(tables, dirty_rows=setting.dirty_rows(0))
    )
    return checkpoints.latest(), log[-1]


def test_rows_that_one_process_cannot_write_are_saved_by_none(tmp_path):
  for step, said in processes.run(fail_to_write_rows, tmp_path, devices=4):
    assert step == 2
    assert 'saving step 1' in said and 'the disk is full' in said
  assert manifest.list_steps(tmp_path) == [2]
  assert manifest.read(tmp_path / '2')['rows']['kind'] == 'base'
