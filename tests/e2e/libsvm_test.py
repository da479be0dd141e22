"""Logistic regression on libsvm files, from the file to predictions."""

import csv
import json

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.serve import score
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.tolerances import assert_close
from tests.train import tiny_run

ROWS, NOISE = 3000, 12


def write_file(path, has_all: bool) -> np.ndarray:
  """Rows whose label goes by the sign of feature 3; its probabilities.

  Args:
    path: of the file.
    has_all: whether rows have all indices, in the order of their numbers; else
      some of them in any order.
  """
  rng = np.random.default_rng(0)
  x = rng.normal(size=(ROWS, NOISE))
  p = 1 / (1 + np.exp(-3 * x[:, 3]))
  with open(path, 'w') as file:
    for row, label in zip(x, rng.random(ROWS) < p, strict=True):
      others = np.delete(np.arange(NOISE), 3)
      rng.shuffle(others)
      some = np.append(others[: rng.integers(1, 5)], 3)
      rng.shuffle(some)
      order = range(NOISE) if has_all else some
      pairs = ' '.join(f'{i}:{row[i]:.5f}' for i in order)
      file.write(f'{"+1" if label else "-1"} {pairs}\n')
  return p


def load_config(path):
  config = config_lib.ranking()
  config.model = config_lib.lr()
  config.data.update(name='libsvm', path=str(path))
  config.data.split.update(valid_fraction=0.1, test_fraction=0.3)
  config.optimizer.learning_rate = 0.05
  config.train.update(batch_size=256, steps=80, eval_every=80, epochs=0)
  config.train.update(checkpoint_every=40, log_every=20)
  config.report.importance_rows = 0
  return config


def train(config, workdir) -> dict:
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config, workdir, TASK_KINDS)


def auc(scores, labels) -> float:
  order = np.argsort(scores)
  ranks = np.empty(len(scores))
  ranks[order] = np.arange(1, len(scores) + 1)
  ones = labels.sum()
  least = ones * (ones + 1) / 2
  return (ranks[labels > 0].sum() - least) / (ones * (len(labels) - ones))


def read_records(path, count: int):
  labels, records = [], []
  for line in path.read_text().splitlines()[-count:]:
    label, *pairs = line.split()
    labels.append(label == '+1')
    cut = [pair.split(':') for pair in pairs]
    records.append(
      {
        'indices': [int(index) for index, _ in cut],
        'values': [float(value) for _, value in cut],
      }
    )
  return np.array(labels), records


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(file, its probabilities, workdir) of a run on rows of any length."""
  directory = tmp_path_factory.mktemp('libsvm')
  path = directory / 'x.libsvm'
  p = write_file(path, False)
  train(load_config(path), directory / 'run')
  return path, p, directory / 'run'


def read_auc(workdir) -> float:
  line = tiny_run.curve(workdir)[-1]
  (value,) = [v for key, v in line.items() if key.endswith('test/auc')]
  return value


def test_a_weighted_set_is_learned(run):
  path, p, workdir = run
  labels, _ = read_records(path, 900)
  best = auc(p[-900:], labels)
  assert best > 0.9 and read_auc(workdir) > best - 0.01


def test_a_vector_of_numbers_is_learned(tmp_path):
  p = write_file(tmp_path / 'x.libsvm', True)
  train(load_config(tmp_path / 'x.libsvm'), tmp_path / 'run')
  labels, _ = read_records(tmp_path / 'x.libsvm', 900)
  assert read_auc(tmp_path / 'run') > auc(p[-900:], labels) - 0.01


def test_files_and_records_get_the_same_scores_in_any_order(run, tmp_path):
  path, _, workdir = run
  lines = path.read_text().splitlines()[-50:]
  turned = [' '.join(line.split()[:0:-1]) for line in lines]  # no label
  (tmp_path / 'new.libsvm').write_text('\n'.join(turned) + '\n')
  config = load_config(path)
  config.predict.input = str(tmp_path / 'new.libsvm')
  config.predict.output = str(tmp_path / 'scores.csv')
  score.write_scores(config, workdir)
  with open(tmp_path / 'scores.csv') as file:
    by_file = [float(row['score']) for row in csv.DictReader(file)]
  _, records = read_records(path, 50)
  by_record = Scorer.load(workdir).score(records)[:, 0]
  assert_close(np.array(by_file), by_record)
  assert np.ptp(by_record) > 0.5


def test_a_run_that_is_continued_is_the_run_as_a_whole(run, tmp_path):
  path, _, whole = run
  for steps in (40, 80):
    config = load_config(path)
    config.train.steps = steps
    train(config, tmp_path / 'run')
  assert tiny_run.curve(tmp_path / 'run')[-1] == tiny_run.curve(whole)[-1]


def test_a_run_of_before_the_key_goes_on_by_place(run, tmp_path):
  path, _, _ = run
  workdir = tmp_path / 'run'
  for steps in (40, 80):
    config = load_config(path)
    config.train.steps = steps
    saved = workdir / 'config.json'
    if steps == 40:
      config.data.pairs = 'by_place'
    else:
      content = json.loads(saved.read_text())
      del content['data']['pairs']
      content.pop('sealed', None)
      saved.with_name('.config.json.seal').unlink()
      saved.write_text(json.dumps(content))
    train(config, workdir)
  (feature,) = Scorer.load(workdir).encoder.features
  assert feature.name == 'indices' and not feature.weighted
  assert read_auc(workdir) < 0.7
