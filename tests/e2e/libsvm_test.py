"""Logistic regression on libsvm files, from the file to predictions."""

import csv
import json

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config.comparison import keep_former_values, read_config
from genrec_jax.serve import score
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.train import tiny_run
from tests.unsealing import unseal

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


def load_config(path, *overrides):
  config = config_lib.ranking()
  config.model = config_lib.lr()
  config.data.update(name='libsvm', path=str(path))
  config.data.split.update(valid_fraction=0.1, test_fraction=0.3)
  config.optimizer.learning_rate = 0.05
  config.train.update(batch_size=256, steps=80, eval_every=80, epochs=0)
  config.train.update(checkpoint_every=40, log_every=20)
  config.report.importance_rows = 0
  return config_lib.override(config, overrides) if overrides else config


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


@pytest.mark.parametrize('has_all', [True, False])
def test_a_model_of_values_is_learned(tmp_path, has_all):
  path = tmp_path / 'x.libsvm'
  p = write_file(path, has_all)[-900:]
  config = load_config(path)
  train(config, tmp_path / 'run')
  result = tiny_run.curve(tmp_path / 'run')[-1]
  labels, records = read_records(path, 900)
  best = auc(p, labels)
  assert best > 0.9
  (reached,) = [v for k, v in result.items() if k.endswith('test/auc')] or [0]
  assert reached > best - 0.01, result
