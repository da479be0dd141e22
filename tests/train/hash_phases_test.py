"""Maps that are renewed: what they are of, where rows go, who reads them."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax import sealed
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding.learned_map import MapFile, pack_rows
from genrec_jax.embedding.row_moves import NEW, plan_moves
from genrec_jax.runtime.state import TrainState
from genrec_jax.serve.mapped_rows import MappedRows
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import hash_phases, learn_hash, loop, map_renewal

WINDOW, BATCH, EVERY = 512, 64, 8
ROWS = 12


def make_config(**changes):
  config = config_lib.ranking()
  config_lib.set_model(config, 'dlrm')
  config.model.update(dim=4, bottom=(8,), top=(8,))
  config_lib.set_drifting_stream(config)
  config.data.drift.update(
    windows=4, rows=WINDOW, fields=2, values=40, pairs=1, reborn=0.1, rate=0.3,
    half_life=2.0,
  )  # fmt: skip
  config.data.hash_rows, config.data.init_std = 4, 0.1
  config.train.update(batch_size=BATCH, steps=3 * EVERY - 2, log_every=4)
  config.hash.update(
    rows=ROWS, private=(0.5,), dim=2, renew_every=EVERY, reserved=2
  )
  config.hash.tables = 'c.*'
  for key, value in changes.items():
    config_lib.apply_override(config, f'{key}={value}')
  return config


@pytest.fixture(scope='module', autouse=True)
def mixed_dtypes():
  with jax.numpy_dtype_promotion('standard'):  # for optax
    yield


@pytest.fixture(scope='module')
def renewed(tmp_path_factory):
  """(workdir, what was printed) of a training with three maps."""
  workdir = tmp_path_factory.mktemp('renewed') / 'run'
  changes = {'checkpoint.publish.every': 4, 'checkpoint.publish.keep': 9}
  config = make_config(**changes)
  return workdir, learn_hash.learn_hash(config, workdir, TASK_KINDS)


def read_map(workdir, step: int, name: str = 'c0') -> MapFile:
  return MapFile.load(workdir / 'maps' / f'{step:08d}' / f'{name}.npz')


def load_data(workdir):
  config = config_lib.load_saved(workdir / 'model' / 'config.json')
  return experiment_lib.load_data(config, workdir / 'model', TASK_KINDS)


def test_a_map_is_of_what_came_before(renewed):
  workdir, printed = renewed
  assert sorted(p.name for p in (workdir / 'maps').iterdir()) == [
    '00000000', '00000008', '00000016',
  ]  # fmt: skip
  data = load_data(workdir)
  split, known = data.splits['train'], data.dataset.vocabularies['c0'].counts
  at = split.names.ids.index('c0')
  for step in (0, 8, 16):
    counts = np.zeros(len(read_map(workdir, step).rows), int)
    for row in split.rows(0, len(split)).ids[: step * BATCH, at].tolist():
      counts[row] += 0 < row <= len(known)
    found = read_map(workdir, step)
    np.testing.assert_array_equal(found.counts, counts)
    if step:
      private = (ROWS - 3) // 2
      own = np.flatnonzero(counts > np.sort(counts)[-private - 1])
      assert all((found.rows == found.rows[i]).sum() == 1 for i in own)
      never = found.rows[1:][counts[1:] == 0]
      assert {*never.tolist()} == {ROWS - 2, ROWS - 1}
  assert np.ptp(np.bincount(read_map(workdir, 0).rows)[1:]) <= 1
  assert hash_phases.read_step(workdir / 'model') == 22
  assert hash_phases.read_step(workdir / 'small') == 16
  found = json.loads((workdir / 'hash.json').read_text())
  assert found['best'] == str(workdir / 'model') in printed
  assert 0 < found['metrics']['test']['ne']


def restore(workdir, step, changes):
  """(state at a step of a run as another config has it, task, runtime)."""
  config = config_lib.load_saved(workdir / 'config.json')
  with config.unlocked():
    for key, value in changes.items():
      config_lib.apply_override(config, f'{key}={value}')
  experiment = experiment_lib.build_experiment(config, workdir, TASK_KINDS)
  with CheckpointManager(workdir / 'checkpoints') as checkpoints:
    found = experiment.runtime.restore(checkpoints, step)
  return found.state, experiment.task, experiment.runtime


def gather(state: TrainState, runtime, name: str) -> dict:
  """A table, and its slots, put together."""
  arrays = {n: np.asarray(x) for n, x in state.tables.items()}
  if name not in runtime.stacks and runtime.plan is None:
    return {'table': arrays[name]}
  piece, stack = next(
    (p, s) for s in runtime.stacks.values() for p in s.pieces if p.table == name
  )
  assert piece.columns == 4
  at = stack.index(piece, np.arange(piece.rows))
  size = stack.devices * stack.depth

  def read(array):
    array = np.asarray(array)
    groups = [array[first + at] for first in range(0, len(array), size)]
    for other in groups[1:]:  # replicas
      np.testing.assert_array_equal(other, groups[0])
    return groups[0]

  slots = state.row_opt_state[stack.name]
  found = {n: read(x) for n, x in slots.items() if x.ndim}
  marks = state.dirty_rows.get(stack.name)
  if marks is not None:
    found['dirty'] = read(marks)
  return found | {'table': read(arrays[stack.name])}


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'parallel.devices': 4},
    {'parallel.devices': 2, 'parallel.replicas': 2},
  ],
  ids=['one', 'mesh', 'groups'],
)
def test_rows_move_as_the_oracle_says(renewed, changes, tmp_path):
  workdir = tmp_path / 'model'
  shutil.copytree(renewed[0] / 'model', workdir)
  state, task, runtime = restore(workdir, 22, changes)
  # Back to an earlier map, by its file.
  wanted, before = read_map(renewed[0], 8), read_map(renewed[0], 16)
  path = next(s.map_file for n, s in task.tables().items() if n == 'c0')
  old = gather(state, runtime, 'c0')
  other = gather(state, runtime, 'c1')
  shutil.copy(path, tmp_path / 'kept.npz')
  try:
    wanted.save(path)
    moved = map_renewal.renew_maps(state, task, runtime)
  finally:
    shutil.copy(tmp_path / 'kept.npz', path)
  new = gather(moved, runtime, 'c0')
  counts = np.maximum(wanted.counts[1:], 0.5)
  kept = plan_moves(before.rows[1:], wanted.rows[1:], counts, ROWS, ROWS).kept
  assert 2 < (kept == NEW).sum() + (kept[1:] != np.arange(1, ROWS)).sum()
  for row in range(ROWS):
    ids = 1 + np.flatnonzero(wanted.rows[1:] == row)
    for name, values in new.items():
      if name == 'dirty':
        continue
      if kept[row] != NEW:
        want = old[name][kept[row]]
        np.testing.assert_array_equal(values[row], want)
      elif name in ('table', 'mean'):
        weight = counts[ids - 1]
        members = old[name][before.rows[ids]]
        want = (weight[:, None] * members).sum(0) / weight.sum()
        np.testing.assert_allclose(values[row], want, rtol=1e-5, atol=1e-7)
      else:
        want = old[name][before.rows[ids]].max(0)
        np.testing.assert_array_equal(values[row], want)
  assert (new['dirty'] & 7 == 7).all()
  for name, values in gather(moved, runtime, 'c1').items():
    np.testing.assert_array_equal(values, other[name])
  words = moved.id_states['c0']['words']
  np.testing.assert_array_equal(
    np.asarray(words), pack_rows(wanted.rows, wanted.count)
  )
  # Nothing moves where the file is what the state has, or is gone.
  back = map_renewal.renew_maps(moved, task, runtime)
  assert map_renewal.renew_maps(back, task, runtime) is back
  pathlib.Path(path).rename(tmp_path / 'away.npz')
  try:
    assert map_renewal.renew_maps(moved, task, runtime) is moved
  finally:
    shutil.copy(tmp_path / 'away.npz', path)


def test_an_interrupted_training_ends_alike(renewed, tmp_path, monkeypatch):
  calls, train = [], loop.train_and_evaluate

  def stop(config, workdir, *rest):
    calls.append(workdir.name)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return train(config, workdir, *rest)

  monkeypatch.setattr(loop, 'train_and_evaluate', stop)
  with pytest.raises(KeyboardInterrupt):
    learn_hash.learn_hash(make_config(), tmp_path / 'run', TASK_KINDS)
  assert calls == ['model', 'small', 'model']
  learn_hash.learn_hash(make_config(), tmp_path / 'run', TASK_KINDS)
  assert calls[3:] == ['model', 'small', 'model']
  found, wanted = (
    json.loads((w / 'hash.json').read_text())['metrics']
    for w in (tmp_path / 'run', renewed[0])
  )
  assert found == wanted
  monkeypatch.setattr(loop, 'train_and_evaluate', None)
  learn_hash.learn_hash(make_config(), tmp_path / 'run', TASK_KINDS)


def test_a_report_that_was_not_written_is_written(renewed, tmp_path):
  """Stopped behind the last step, which no checkpoint tells."""
  workdir = tmp_path / 'run'
  shutil.copytree(renewed[0], workdir)
  before = json.loads((workdir / 'hash.json').read_text())
  report = workdir / 'model' / 'report.json'
  saved = json.loads(report.read_text())
  saved['metrics']['valid']['logloss'], saved['steps'] = 9.0, 16
  sealed.write_text(report, json.dumps(saved))
  config = make_config(**{
    'checkpoint.publish.every': 4, 'checkpoint.publish.keep': 9
  })  # fmt: skip
  learn_hash.learn_hash(config, workdir, TASK_KINDS)
  after = json.loads((workdir / 'hash.json').read_text())
  assert after['metrics'] == before['metrics']
  assert json.loads(report.read_text())['steps'] == 22


def test_readers_have_a_map_and_its_rows(renewed, tmp_path):
  workdir = renewed[0] / 'model'
  source = tmp_path / 'source'
  source.mkdir()
  copy, steps = tmp_path / 'copy', []
  ids = np.arange(len(read_map(renewed[0], 0).rows))
  for step in sorted(int(p.name) for p in (workdir / 'published').iterdir()
                     if p.name.isdecimal()):  # fmt: skip
    shutil.copytree(workdir / 'published' / str(step), source / str(step))
    with Follower(source, copy, log=lambda _: None) as follower:
      follower.update()
    reader = MappedRows(source, copy)
    rows, found = reader.read('c0', ids)
    for wrong in (-1, len(ids), 10**6):
      with pytest.raises(ValueError, match=f'has no id {wrong}'):
        reader.read('c0', [3, wrong])
    reader.close()
    assert found == step
    steps.append(step)
    # The first steps of a phase have its map already.
    rows_of = read_map(renewed[0], max(0, (step - 1) // EVERY * EVERY)).rows
    together = {}
    for i, row in zip(ids.tolist(), rows_of.tolist(), strict=True):
      together.setdefault(row, []).append(rows[i])
    assert all(np.ptp(x, axis=0).max() == 0 for x in together.values())
    distinct = {tuple(x[0].tolist()) for x in together.values()}
    assert len(distinct) == len(together)
  assert steps == [4, 8, 12, 16, 20, 22]
  # Of maps that are computed, nothing is published.
  config = config_lib.load_saved(workdir / 'config.json')
  with config.unlocked():
    config.tables = (('c0', {'id_map': 'frequency', 'rows': 9}), ('.*', {}))
  config_lib.save(config, tmp_path / 'config.json')
  reader = MappedRows(source, copy)
  reader._check_plain('c1')
  with pytest.raises(ValueError, match="'c0' has id_map='frequency'"):
    reader._check_plain('c0')
  reader.close()
  scorer = Scorer.load(workdir)
  values = scorer.encoder.vocabularies['c0'].values
  assert len(values) + 4 + 1 == len(ids)


@pytest.mark.parametrize(
  ('changes', 'told'),
  [
    ({'train.shuffle': True}, 'train.shuffle=False'),
    ({'train.steps': 200}, 'train.epochs=1'),
    ({'train.patience': 2}, 'train.patience=0'),
    ({'hash.private': '(0.1, 0.2)'}, 'must be one share'),
    ({'optimizer.schedule': 'cosine'}, 'optimizer.decay_steps'),
  ],
)
def test_what_cannot_be_renewed(renewed, changes, told, tmp_path):
  cache = {'data.cache': str(renewed[0] / 'data')}
  with pytest.raises(config_lib.ConfigError, match=told):
    learn_hash.learn_hash(
      make_config(**changes, **cache), tmp_path / 'run', TASK_KINDS
    )


def test_dense_tables_and_their_moments_move():
  old = np.array([0, 1, 1, 2])
  wanted = MapFile('c0', np.array([0, 2, 1, 1], np.int32), 3)
  rng = np.random.default_rng(0)
  table, mean, square = rng.random((3, 3, 2)).astype(np.float32)
  adam = optax.ScaleByAdamState(
    np.int32(5),
    {'params': {'c0': table}, 'tables': {'c0': jnp.asarray(mean)}},
    {'params': {'c0': table}, 'tables': {'c0': jnp.asarray(square)}},
  )
  words = {'words': jnp.asarray(pack_rows(old, 3))}
  state = TrainState(
    *(0, {}, {'c0': jnp.asarray(table)}, (adam,), {}, {}, 0, 1),
    id_states={'c0': words},
  )
  moves = map_renewal._plan(old, wanted)
  assert moves.kept.tolist() == [0, 2, 1]
  moved = map_renewal._move_rows(
    state, {}, {'c0': moves}, {'c0': pack_rows(wanted.rows, 3)}
  )
  np.testing.assert_array_equal(moved.tables['c0'], table[[0, 2, 1]])
  (found,) = moved.opt_state
  np.testing.assert_array_equal(found.mu['tables']['c0'], mean[[0, 2, 1]])
  np.testing.assert_array_equal(found.nu['tables']['c0'], square[[0, 2, 1]])
  assert found.nu['params']['c0'] is table and found.count == 5
