"""`genrec learn_hash`: what it leaves, who reads it, and what it refuses."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import trees, workdir_files
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding.learned_map import MapFile, pack_rows
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import hash_tables, learn_hash, loop, search
from genrec_jax.weights.__main__ import main as weights

VALUES, FIELDS, ROWS = 60, 2, 12


def make_config(**changes):
  config = config_lib.ranking()
  config_lib.set_model(config, 'dlrm')
  config.model.update(dim=8, bottom=(8,), top=(8,))
  config.data.clicks.update(
    rows=2_500, fields=FIELDS, values=VALUES, numbers=1, traits=2, terms=3,
    orders=(1, 2),
  )  # fmt: skip
  config.data.init_std = 0.1
  config.hash.update(rows=ROWS, private=(0.5,), dim=2)
  config.optimizer.rows.name = 'adam'
  config.train.update(batch_size=256, epochs=1)
  config.report.importance_rows = 0
  for key, value in changes.items():
    config_lib.apply_override(config, f'{key}={value}')
  return config


@pytest.fixture(scope='module', autouse=True)
def mixed_dtypes():
  with jax.numpy_dtype_promotion('standard'):  # for optax
    yield


@pytest.fixture(scope='module')
def learned(tmp_path_factory):
  """(workdir, what was printed) of maps that were learned."""
  workdir = tmp_path_factory.mktemp('learned') / 'run'
  return workdir, learn_hash.learn_hash(make_config(), workdir, TASK_KINDS)


def read_map(workdir, name='c0') -> MapFile:
  return MapFile.load(workdir / 'private_0.50' / 'maps' / f'{name}.npz')


def test_it_leaves_maps_and_a_run(learned):
  workdir, printed = learned
  found = json.loads((workdir / 'hash.json').read_text())
  assert found['best'] == str(workdir / 'private_0.50') in printed
  assert set(found['tables']) == {'c0', 'c1'}
  table, a_map = found['tables']['c0'], read_map(workdir)
  assert table['rows'] == a_map.count == ROWS
  assert table['ids'] == len(a_map.rows) == VALUES + 2
  assert table['bytes'] == ROWS * 8 * 4 and table['map_bytes'] == 4 * 9
  valid = found['trials']['0.50']['valid']
  assert f'{valid["auc"]:.4f}' in printed
  # The most frequent ids are alone, and what is unseen is with nobody.
  rows = a_map.rows
  assert rows[:6].tolist() == [0, 1, 2, 3, 4, 5] and rows[-1] == ROWS - 1
  assert {*rows[6:-1].tolist()} == {*range(6, ROWS - 1)}


def test_the_same_command_trains_nothing_again(learned, monkeypatch):
  workdir, printed = learned

  def refuse(*args, **kwargs):
    raise AssertionError('trained again')

  monkeypatch.setattr(loop, 'train_and_evaluate', refuse)
  again = learn_hash.learn_hash(make_config(), workdir, TASK_KINDS)
  assert again == printed


def test_other_settings_want_another_workdir(learned):
  with pytest.raises(config_lib.ConfigError, match='hash.shrink: saved 10'):
    learn_hash.learn_hash(
      make_config(**{'hash.shrink': 3.0}), learned[0], TASK_KINDS
    )


def make_rows(count: int):
  rng = np.random.default_rng(5)
  rows = {f'c{i}': rng.integers(1, VALUES, count).tolist() for i in range(2)}
  return rows | {'n0': rng.normal(size=count).tolist()}


def test_what_was_refused_leaves_the_workdir_free(tmp_path):
  config = make_config(**{'data.clicks.rows': 600, 'hash.rows': 2})
  with pytest.raises(config_lib.ConfigError, match='2 rows are too few'):
    learn_hash.learn_hash(config, tmp_path / 'run', TASK_KINDS)
  config = make_config(**{
    'data.clicks.rows': 600, 'hash.method': 'frequency', 'hash.rows': 9,
    'hash.private': (0.501, 0.504),
  })  # fmt: skip
  learn_hash.learn_hash(config, tmp_path / 'run', TASK_KINDS)
  found = json.loads((tmp_path / 'run' / 'hash.json').read_text())
  assert list(found['trials']) == ['0.501', '0.504']
  # Other devices are no other settings.
  config.parallel.devices = 2
  learn_hash.learn_hash(config, tmp_path / 'run', TASK_KINDS)
  report = tmp_path / 'run' / 'private_0.501' / 'report.json'
  report.write_text(report.read_text().replace('"logloss": 0', '"logloss": 1'))
  with pytest.raises(ValueError, match='private_0.501.*remove it; the same'):
    learn_hash.learn_hash(config, tmp_path / 'run', TASK_KINDS)


def test_a_series_is_no_run(learned, tmp_path):
  workdir = learned[0]
  with pytest.raises(config_lib.ConfigError, match='private_0.50, small'):
    workdir_files.refuse_series(workdir)
  with pytest.raises(config_lib.ConfigError, match='of `genrec learn_hash`'):
    search.search_models(make_config(), workdir, TASK_KINDS)
  with pytest.raises(config_lib.ConfigError, match='holds checkpoints of a'):
    learn_hash.learn_hash(make_config(), workdir / 'small', TASK_KINDS)


def test_tables_that_would_be_no_smaller_stay(tmp_path, caplog):
  config = make_config(**{'data.clicks.rows': 900, 'hash.rows': 0})
  config.hash.compression = 50.0  # two rows for 62 ids
  data, task = hash_tables.load_data_and_task(
    config, tmp_path, TASK_KINDS, None
  )
  known = data.dataset.encoder.vocabularies
  with pytest.raises(config_lib.ConfigError, match='no table has its ids'):
    hash_tables.choose_tables(config, task, known)
  ids = task.tables()['c0'].rows
  for rows, chosen in ((ids - 1, False), (ids // 2, True)):
    config.hash.rows = rows
    if chosen:
      assert {*hash_tables.choose_tables(config, task, known)} == {'c0', 'c1'}
    else:  # the map has more bytes than one row
      with pytest.raises(config_lib.ConfigError, match='no table has its ids'):
        hash_tables.choose_tables(config, task, known)


def test_a_row_for_each_is_trained_to_compare(learned, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(learned[0], workdir)
  # It may be asked for when all else has been learned.
  cache = {'data.cache': str(learned[0] / 'data')}
  config_lib.save(make_config(**cache), workdir / 'config.json')
  compared = make_config(**{'hash.compare': True}, **cache)
  said = learn_hash.learn_hash(compared, workdir, TASK_KINDS)
  found = json.loads((workdir / 'hash.json').read_text())
  assert found['whole']['valid']['auc'] > 0.5 and 'a row for each' in said
  tables = json.loads((workdir / 'whole' / 'report.json').read_text())
  assert tables['parameters']['tables'] == FIELDS * (VALUES + 2) * 8


def test_a_start_from_weights_has_the_map_that_is_named(learned, tmp_path):
  """Weights come with the map of their own run."""
  run = learned[0] / 'private_0.50'
  config = config_lib.load_saved(run / 'config.json')
  own = read_map(learned[0])
  turned = np.concatenate([[0], own.rows[1:][::-1]]).astype(np.int32)
  MapFile('c0', turned, own.count, own.vocabulary, {}, own.counts).save(
    tmp_path / 'turned.npz'
  )
  tables = [
    (name, dict(settings, map=str(tmp_path / 'turned.npz')))
    if name == 'c0'
    else (name, settings)
    for name, settings in config.tables
  ]
  file = tmp_path / 'own.safetensors'
  weights(['export', str(run), str(file)])
  with config.unlocked():
    config.tables = tuple(tables)
    config.train.update(steps=1, init_from=str(file))
  loop.train_and_evaluate(config, tmp_path / 'run', TASK_KINDS)
  with CheckpointManager(tmp_path / 'run' / 'checkpoints') as steps:
    wanted = 'id_states/c0/words'
    manifest = steps.read_manifest(steps.latest())
    shape = {wanted: trees.shape_of(manifest['tree'][wanted])}
    _, found, _ = steps.restore(shape, step=steps.latest(), partial=True)
  np.testing.assert_array_equal(
    np.asarray(found[wanted]), pack_rows(turned, own.count)
  )


def test_hashed_values_are_counted_and_unseen_ones_are_not(tmp_path):
  config = make_config(**{'data.clicks.rows': 900, 'hash.rows': 9})
  config.data.min_count = 15
  config.data.features = {
    'c0': {'kind': 'categorical', 'vocabulary': 'hashed', 'hash_rows': 40},
    'c1': {'kind': 'categorical'},
  }
  data, task = hash_tables.load_data_and_task(
    config, tmp_path, TASK_KINDS, None
  )
  tables = hash_tables.choose_tables(
    config, task, data.dataset.encoder.vocabularies
  )
  counts = hash_tables.count_ids(data.dataset, tables)
  assert counts['c0'].sum() == len(data.splits['train'])
  known = data.dataset.vocabularies['c1'].counts
  assert 0 < len(known) < VALUES
  np.testing.assert_array_equal(counts['c1'][1 : 1 + len(known)], known)
  assert not counts['c1'][1 + len(known) :].any()
  read = hash_tables.read_counts(data.dataset, tables)
  assert {*read} == {*counts}
  for name, found in counts.items():
    np.testing.assert_array_equal(read[name], found)


def test_a_scorer_needs_no_file_of_a_map(learned, tmp_path):
  run = learned[0] / 'private_0.50'
  moved = tmp_path / 'moved'
  shutil.copytree(run, moved)
  shutil.rmtree(moved / 'maps')
  rows = make_rows(20)
  scorer = Scorer.load(moved)
  found = scorer.score(rows)
  np.testing.assert_array_equal(found, Scorer.load(run).score(rows))
  # Values of one row are one value to the model.
  ids = scorer.encoder.vocabularies['c0']
  a_map = read_map(learned[0])
  together = [
    ids.values[i - 1] for i in np.flatnonzero(a_map.rows == 7).tolist()
  ]
  assert len(together) > 1
  rows = {'c0': together, 'c1': ['1'] * len(together)}
  rows['n0'] = [0.5] * len(together)
  scores = scorer.score(rows)
  assert np.ptp(scores) == 0


def test_a_map_of_another_vocabulary(learned, tmp_path):
  workdir = learned[0]
  saved = config_lib.load_saved(workdir / 'private_0.50' / 'config.json')
  other = saved.copy_and_resolve_references()
  with other.unlocked():
    other.data.clicks.seed = 3
    other.data.cache = ''
  with pytest.raises(ValueError, match='its ids are of other values'):
    loop.train_and_evaluate(other, tmp_path, TASK_KINDS)


@pytest.mark.parametrize(
  ('changes', 'told'),
  [
    ({'hash.rows': 2}, "table 'c0': 2 rows are too few"),
    ({'hash.rows': 100}, 'no table has its ids put together'),
    ({'hash.tables': 'x.*'}, "hash.tables is 'x.*'"),
    ({'hash.rows': 9, 'hash.reserved': 8}, '10 are the least'),
  ],
)
def test_what_cannot_be(changes, told, learned, tmp_path):
  config = make_config(**changes, **{'data.cache': str(learned[0] / 'data')})
  with pytest.raises(config_lib.ConfigError, match=told):
    learn_hash.learn_hash(config, tmp_path / 'run', TASK_KINDS)


def test_vectors_of_another_run(learned, tmp_path):
  """They are of any width; a run whose ids share rows already has none."""
  workdir = learned[0]
  cache = {'data.cache': str(workdir / 'data')}
  config = make_config(**cache, **{'hash.vectors': str(workdir / 'small')})
  learn_hash.learn_hash(config, tmp_path / 'run', TASK_KINDS)
  np.testing.assert_array_equal(
    read_map(tmp_path / 'run').rows, read_map(workdir).rows
  )
  assert not (tmp_path / 'run' / 'small').exists()
  of = workdir / 'private_0.50'
  config = make_config(**cache, **{'hash.vectors': str(of)})
  with pytest.raises(config_lib.ConfigError, match='share rows already'):
    learn_hash.learn_hash(config, tmp_path / 'other', TASK_KINDS)


def test_the_settings_of_tables_stay(learned):
  config = make_config()
  config.tables = (('c0', {'rate': 0.3}), ('c1', {}), ('.*', {'rate': 0.2}))

  @dataclasses.dataclass
  class Tables:
    names: tuple

    def tables(self):
      return dict.fromkeys(self.names)

  spec = hash_tables.TableIds(None, None, rows=9)
  changed = hash_tables.set_maps(
    config, Tables(('c0', 'c1')), {'c0': spec}, {'c0': pathlib.Path('m.npz')}
  )
  learned_map = {'id_map': 'learned', 'rows': 9, 'map': 'm.npz'}
  assert changed.tables == (('c0', {'rate': 0.3} | learned_map), ('c1', {}))
