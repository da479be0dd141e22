"""Models on towers: one checkpoint on every number of hosts, and alone."""

import json

import jax
import numpy as np
import pytest

import genrec_jax
from genrec_jax.checkpoint.errors import CheckpointError
from genrec_jax.config import ConfigError, tower_file
from genrec_jax.config.files import load as load_config
from genrec_jax.embedding.scheme import PlanError
from genrec_jax.planner import feature_distances
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop, results, tower_choice
from genrec_jax.weights.export import export_weights
from genrec_jax.weights.start import WeightsError

CONTINUOUS = ('logloss', 'calibration')  # metrics that no rounding turns over
ROWS = [{f'c{i}': str(i + n) for i in range(8)} for n in range(5)]


def configure(arg='smoke', model='dlrm', hosts=1, devices=1, **fields):
  config = load_config(f'dmt_{model}_synthetic:{arg}')
  config.parallel.update(hosts=hosts, devices=devices)
  config.model.update(fields)
  config.report.importance_rows = 0
  config.train.update(steps=4, eval_every=4, checkpoint_every=2)
  return config


def train(config, workdir, steps=4):
  config = config.copy_and_resolve_references()
  config.train.steps = steps
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config.lock(), workdir, TASK_KINDS)


@pytest.mark.parametrize(
  'model',
  [
    'dlrm',
    pytest.param('dcn', marks=pytest.mark.slow),
    pytest.param('wukong', marks=pytest.mark.slow),
  ],
)
def test_a_checkpoint_opens_on_every_number_of_hosts(model, tmp_path):
  meshes = [(1, 1), (2, 2), (4, 1)]
  fields = {'tower_dropout': 0.2}
  whole = train(configure(model=model, **fields), tmp_path / 'whole')
  for steps, (hosts, devices) in zip((1, 2, 4), meshes, strict=True):
    config = configure(model=model, hosts=hosts, devices=devices, **fields)
    parts = train(config, tmp_path / 'parts', steps)
  assert parts['towers'] == whole['towers'] and '4 towers' in whole['towers']
  for name in CONTINUOUS:
    value = whole['last_epoch']['valid'][name]
    assert parts['last_epoch']['valid'][name] == pytest.approx(value, rel=1e-5)
  one, other = (
    Scorer.load(tmp_path / name, checkpoint='latest').score(ROWS)
    for name in ('whole', 'parts')
  )
  np.testing.assert_allclose(one, other, rtol=1e-4)


def test_towers_of_a_run_stay(tmp_path):
  towers = [[f'c{i}', f'c{i + 4}'] for i in range(4)]
  path = tmp_path / 'towers.json'
  tower_file.write_towers(path, tower_file.TowerPlan(tuple(map(tuple, towers))))
  config = configure(towers=str(path))
  train(config, tmp_path / 'run', 1)
  kept = json.loads((tmp_path / 'run' / tower_file.OF_A_RUN).read_text())
  assert kept['towers'] == towers
  # The run is served without the file that it was given.
  path.unlink()
  scores = Scorer.load(tmp_path / 'run').score(ROWS)
  assert scores.shape == (5, 1)
  # So is a copy of it.
  genrec_jax.load(tmp_path / 'run').save(tmp_path / 'copy')
  copied = Scorer.load(tmp_path / 'copy').score(ROWS)
  np.testing.assert_array_equal(copied, scores)
  towers[0], towers[1] = towers[0][::-1], towers[1]
  tower_file.write_towers(path, tower_file.TowerPlan(tuple(map(tuple, towers))))
  with pytest.raises(ConfigError, match='has other towers than this run'):
    train(config, tmp_path / 'run', 2)


def build(config, workdir):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return experiment.build_experiment(
      config.lock(), workdir, TASK_KINDS, log=lambda *_: None
    )


def test_numbers_and_words(tmp_path):
  found = build(configure(towers='2'), tmp_path / 'two')
  assert found.task.towers.features == (
    ('c0', 'c2', 'c4', 'c6'), ('c1', 'c3', 'c5', 'c7'),
  )  # fmt: skip
  found = build(configure(towers='auto', hosts=4, devices=1), tmp_path / 'auto')
  assert found.task.towers.count == 4
  assert found.runtime.plan.extra['towers']['features'] == [
    list(own) for own in found.task.towers.features
  ]
  flat = build(configure('smoke,flat'), tmp_path / 'flat')
  assert flat.task.towers is None and 'modules' not in vars(flat.task)


@pytest.mark.parametrize(
  'fields, parallel, error, message',
  [
    (dict(towers='9'), {}, ConfigError, 'asks for 9 towers, and there are 8'),
    (dict(towers='0'), {}, ConfigError, 'at least 1 tower'),
    (dict(towers='auto:x'), {}, ConfigError, 'there is no such file'),
    (dict(towers='3'), dict(hosts=2), PlanError, '3 towers .* among 2 hosts'),
    (
      {}, dict(hosts=2, devices=2, scheme='row_wise'), PlanError,
      'is under a tower, whose host',
    ),
    (
      {}, dict(hosts=2, devices=2, pool='rows'), PlanError,
      "parallel.pool='rows' and towers",
    ),
    (
      {}, dict(hosts=2, devices=2, determinism='mesh_invariant'), PlanError,
      'do not go together',
    ),
  ],
)  # fmt: skip
def test_what_cannot_be(fields, parallel, error, message, tmp_path):
  config = configure(**fields)
  config.parallel.update(parallel)
  with pytest.raises(error, match=message):
    build(config, tmp_path)


def test_a_plan_of_other_towers(tmp_path):
  config = configure(towers='2', hosts=2, devices=2)
  plan = build(config, tmp_path / 'one').runtime.plan
  plan.save(tmp_path / 'plan.json')
  config = configure(towers='auto:2', hosts=2, devices=2)
  config.parallel.plan = str(tmp_path / 'plan.json')
  with pytest.raises(PlanError, match='the plan was made for the towers'):
    build(config, tmp_path / 'two')


@pytest.mark.slow
def test_tables_that_optax_updates(tmp_path):
  """Every device has them, and runs all towers on its own examples."""
  config = configure()
  config.optimizer.rows.name = 'dense'
  one = train(config, tmp_path / 'one')
  config.parallel.update(hosts=2, devices=2)
  many = train(config, tmp_path / 'many')
  for name in CONTINUOUS:
    value = one['metrics']['valid'][name]
    assert many['metrics']['valid'][name] == pytest.approx(value, rel=1e-5)


def test_l2_of_towers(tmp_path):
  """Weights are pulled to zero, wherever the towers are."""
  first = {}
  for name, mesh in (('one', (1, 1)), ('many', (2, 2)), ('none', (1, 1))):
    config = configure(hosts=mesh[0], devices=mesh[1])
    config.loss.net_l2 = 0.0 if name == 'none' else 10.0
    config.optimizer.name, config.optimizer.learning_rate = 'sgd', 0.01
    found = build(config, tmp_path / name)
    state, step = found.runtime.fresh_state(), found.runtime.step()
    batches = found.runtime.batches(iter(found.train_batches(config)))
    for _ in range(3):
      state, _ = step(state, next(batches))
    first[name] = jax.device_get(state.modules)['flat']['kernel']
  np.testing.assert_allclose(first['many'], first['one'], rtol=1e-5, atol=1e-6)
  assert np.linalg.norm(first['one']) < 0.8 * np.linalg.norm(first['none'])


def test_averages_and_requests(tmp_path):
  config = configure()
  config.optimizer.average = 0.9
  with pytest.raises(ConfigError, match='optimizer.average'):
    build(config, tmp_path)
  config = load_config('gr_streaming:smoke,dlrm')
  config.model.towers = '2'
  with pytest.raises(ValueError, match='models of requests stand on no towers'):
    build(config, tmp_path / 'requests')


def test_weights_of_other_towers(tmp_path):
  """No shape tells towers apart: what is saved remembers them."""
  towers = [[f'c{i}', f'c{i + 4}'] for i in range(4)]

  def write(path, towers):
    plan = tower_file.TowerPlan(tuple(map(tuple, towers)))
    tower_file.write_towers(path, plan)

  path = tmp_path / 'towers.json'
  write(path, towers)
  config = configure(towers=str(path))
  train(config, tmp_path / 'run', 2)
  export_weights(tmp_path / 'run', tmp_path / 'run.safetensors')
  kept = tmp_path / 'run' / tower_file.OF_A_RUN
  kept.unlink()
  write(path, towers[::-1])
  with pytest.raises(ConfigError, match='was trained on other data .*towers'):
    train(config, tmp_path / 'run', 4)
  write(kept, towers[::-1])
  for checkpoint in ('best', 'latest'):
    with pytest.raises(CheckpointError, match='weights of other towers'):
      Scorer.load(tmp_path / 'run', checkpoint=checkpoint)
  config.train.init_from = str(tmp_path / 'run.safetensors')
  with pytest.raises(WeightsError, match='weights of other towers'):
    train(config, tmp_path / 'other', 2)
  write(path, towers)
  train(config, tmp_path / 'same', 2)
  config.model.towers = ''
  with pytest.raises(WeightsError, match='on towers, and this run has none'):
    train(config, tmp_path / 'flat', 2)


@pytest.mark.parametrize('compression', [1e-9, 1e-300])
def test_more_vectors_than_anybody_wants(compression, tmp_path):
  config = configure(towers='2', tower_compression=compression)
  with pytest.raises(ValueError, match='raise model.tower_compression'):
    build(config, tmp_path)
  config = configure(towers='9' * 5_000)
  with pytest.raises(ConfigError, match='there is no such file'):
    build(config, tmp_path)
  config = configure(towers='/dev/zero')
  with pytest.raises(ConfigError, match='is no regular file'):
    build(config, tmp_path)


@pytest.mark.slow
def test_the_identity_is_trained(tmp_path):
  config = configure(tower='identity', hosts=2, devices=2)
  train(config, tmp_path / 'two', 2)
  config.parallel.update(hosts=1, devices=1)
  report = train(config, tmp_path / 'two', 4)
  whole = train(config, tmp_path / 'one', 4)
  for name in CONTINUOUS:
    value = whole['last_epoch']['valid'][name]
    assert report['last_epoch']['valid'][name] == pytest.approx(value, rel=1e-5)


def test_a_file_of_towers_is_needed_once(tmp_path, caplog):
  towers = tuple((f'c{i}', f'c{i + 4}') for i in range(4))
  path = tmp_path / 'towers.json'
  tower_file.write_towers(path, tower_file.TowerPlan(towers))
  config = configure(towers=str(path))
  train(config, tmp_path / 'run', 2)
  wanted = evaluate(config, tmp_path / 'run')
  tower_file.write_towers(path, tower_file.TowerPlan(towers[::-1]))
  assert evaluate(config, tmp_path / 'run') == wanted
  assert 'which keeps those of' in caplog.text
  path.unlink()
  assert evaluate(config, tmp_path / 'run') == wanted
  train(config, tmp_path / 'run', 3)  # goes on without it
  with pytest.raises(ConfigError, match='there is no such file; it must be'):
    train(config, tmp_path / 'other', 2)
  # With both files gone, whatever reads the run says the same.
  (tmp_path / 'run' / tower_file.OF_A_RUN).unlink()
  with pytest.raises(ConfigError, match='put back one of the two'):
    train(config, tmp_path / 'run', 4)
  with pytest.raises(ConfigError, match='put it back, or put back .*towers.js'):
    Scorer.load(tmp_path / 'run')


def evaluate(config, workdir) -> dict:
  with jax.numpy_dtype_promotion('standard'):  # for optax
    found = results.evaluate_run(config.lock(), workdir, TASK_KINDS)
  return found['metrics']


def test_auto_looks_at_labels_by_the_seed_of_the_run(tmp_path, monkeypatch):
  """Fields that are drawn apart meet in the label alone."""
  seen, measure = [], feature_distances.measure_cooccurrence
  partition = tower_choice.partition_features

  def look(codes, present, strata):
    seen.append(strata)
    return measure(codes, present, strata)

  def divide(*args, seed):
    seen.append(seed)
    return partition(*args, seed=seed)

  monkeypatch.setattr(feature_distances, 'measure_cooccurrence', look)
  monkeypatch.setattr(tower_choice, 'partition_features', divide)
  config = configure(towers='auto:2')
  config.seed = 7
  build(config, tmp_path)
  strata, seed = seen
  assert seed == 7 and {*np.unique(strata)} == {0, 1}


def test_words_are_judged_before_any_data_are_read(tmp_path):
  config = configure(towers='auto:four')
  with pytest.raises(ConfigError, match="'auto' or 'auto:N'"):
    train(config, tmp_path / 'run')
  assert not (tmp_path / 'run' / 'data').exists()


def test_numbers_stay_outside_of_towers(tmp_path):
  path = tmp_path / 'towers.json'
  towers = (tuple(f'c{i}' for i in range(8)), ('n0',))
  tower_file.write_towers(path, tower_file.TowerPlan(towers))
  config = configure(towers=str(path))
  config.data.clicks.numbers = 1
  with pytest.raises(ConfigError, match="'n0' is numeric"):
    build(config, tmp_path / 'run')


def test_a_compression_that_is_not_reached_is_said(tmp_path):
  found = build(configure(towers='4', tower_compression=50.0), tmp_path / 'run')
  assert '(not 50, because every tower' in found.task.describe_towers()
