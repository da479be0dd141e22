"""Runs with a teacher's scores in their data, from config to predictions."""

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import manifest
from genrec_jax.config import ConfigError
from genrec_jax.serve import score
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from genrec_jax.weights import safetensors
from genrec_jax.weights.export import export_weights
from tests.train.tiny_run import curve

ROWS, BATCH, STEPS = 500, 50, 8


@pytest.fixture(scope='module')
def log(tmp_path_factory):
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp('log') / 'log.csv'
  u, i = rng.integers(0, 7, ROWS), rng.integers(0, 11, ROWS)
  p = 1 / (1 + np.exp(-(u - 3.0) / 2 + (i - 5) / 4))
  label = rng.random(ROWS) < p
  with open(path, 'w') as f:
    f.write('label,u,i,teacher,teacher_weight\n')
    for n in range(ROWS):
      known = n % 5 > 0
      score_ = f'{p[n]:.6f}' if known else '0'
      f.write(f'{int(label[n])},{u[n]},{i[n]},{score_},{int(known)}\n')
  return path


def config_of(log, method, **changes):
  config = config_lib.ranking()
  config.model = config_lib.dlrm(top=(16,), bottom=(8,), dim=4)
  config.data.update(name='csv', path=str(log))
  config.data.features = {name: {'kind': 'categorical'} for name in 'ui'}
  config.data.extras = {'teacher': 'float', 'teacher_weight': 'float'}
  config.distill.method = method
  config.train.update(
    batch_size=BATCH, steps=STEPS, log_every=2, checkpoint_every=4, eval_every=4
  )
  config.optimizer.learning_rate = 0.01
  config.report.importance_rows = 0
  for key, value in changes.items():
    section, _, name = key.partition('__')
    config[section][name] = value
  return config


def train(config, workdir):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config, workdir, TASK_KINDS)


@pytest.fixture(scope='module')
def run(log, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'adapter'
  return (
    config_of(log, 'adapter'),
    workdir,
    train(config_of(log, 'adapter'), workdir),
  )


def test_losses_of_the_teacher_are_logged(run):
  _, workdir, report = run
  rows = [row for row in curve(workdir) if 'train/loss/teacher' in row]
  assert len(rows) == STEPS // 2
  for row in rows:
    assert row['train/teacher/annotated'] == pytest.approx(0.8, abs=0.15)
    parts = ('serving', 'teacher', 'adapted', 'adapter')
    assert all(0 < row[f'train/loss/{name}'] < 2 for name in parts)
    assert row['train/loss'] > row['train/loss/serving']
  assert 0 < report['metrics']['test']['logloss'] < 1


def test_only_checkpoints_know_the_heads(run, tmp_path):
  _, workdir, _ = run

  def names_of(folder):
    directory = workdir / folder
    step = manifest.list_steps(directory)[-1]
    return list(manifest.read(directory / str(step))['tree'])

  assert any(name.startswith('aux/head/') for name in names_of('checkpoints'))
  assert not any('aux' in name for name in names_of('best'))
  for checkpoint in ('best', 'latest'):
    export = tmp_path / f'{checkpoint}.safetensors'
    export_weights(workdir, export, checkpoint)
    names = list(safetensors.open_file(export))
    assert not any('aux' in name for name in names)
    assert any(name.startswith('params/top') for name in names)


@pytest.mark.parametrize('checkpoint', ['best', 'latest'])
def test_predictions_are_those_of_the_head_that_serves(run, checkpoint):
  config, workdir, report = run
  scorer = Scorer.load(workdir, checkpoint=checkpoint)
  scores = scorer.score([{'u': '1', 'i': '2'}, {'u': '6', 'i': '0'}])
  assert scores.shape == (2, 1)
  config.predict.output = str(workdir / 'out.csv')
  assert score.write_scores(config, workdir)['rows'] == ROWS // 10


def test_a_run_that_stops_goes_on_with_its_adapter(run, log, tmp_path):
  _, whole, _ = run
  train(config_of(log, 'adapter', train__steps=4), tmp_path / 'run')
  train(config_of(log, 'adapter'), tmp_path / 'run')
  assert curve(tmp_path / 'run') == curve(whole)


def test_the_method_belongs_to_the_run(run, log):
  _, workdir, _ = run
  with pytest.raises(ValueError, match='distill.method'):
    train(config_of(log, 'head'), workdir)


def test_a_run_without_the_scores_is_refused(log, tmp_path):
  config = config_of(log, 'head')
  config.data.extras = {'teacher': 'float'}
  with pytest.raises(ValueError, match="extra column 'teacher_weight'"):
    train(config, tmp_path / 'run')


def test_unknown_methods_are_refused(log, tmp_path):
  config = config_of(log, 'heads')
  with pytest.raises(ConfigError, match='distill.method'):
    train(config, tmp_path / 'run')


def test_a_head_needs_a_hidden_layer_before_any_data_are_read(log, tmp_path):
  config = config_of(log, 'adapter')
  config.model = config_lib.lr()
  config.data.path = 'not_there.csv'
  with pytest.raises(ConfigError, match="model.name='lr' has none"):
    train(config, tmp_path / 'run')
