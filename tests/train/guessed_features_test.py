"""Runs that say nothing of their features."""

import jax
import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import feature_guesses
from genrec_jax.serve import score
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop


def build_config(path, steps):
  config = config_lib.ranking()
  config.data.name, config.data.path = 'csv', str(path)
  config.data.numeric = 'standardize'
  config.model = config_lib.lr()
  config.train.batch_size, config.train.steps = 32, steps
  config.train.checkpoint_every = 2
  config.report.importance_rows = 0
  return config


def train(path, workdir, steps):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(
      build_config(path, steps), workdir, TASK_KINDS
    )


def test_a_run_keeps_the_features_it_has_begun_with(
  tmp_path, monkeypatch, caplog
):
  """As where an earlier version took every column for a category."""
  rng = np.random.default_rng(0)
  path = tmp_path / 'x.csv'
  with open(path, 'w') as f:
    f.write('label,row,user,price,cost\n')
    for i in range(400):
      cost = 0.1 if i < 330 else 0.2  # constant in training
      f.write(
        f'{rng.integers(2)},{i},{rng.integers(9)},{rng.random():.3f},{cost}\n'
      )
  # What the former default made of a column.
  with monkeypatch.context() as patch:
    patch.setattr(
      feature_guesses._Look,
      'guess',
      lambda *_: feature_guesses.Guess({'kind': 'categorical'}, 'a column'),
    )
    former = train(path, tmp_path / 'former', 2)
  caplog.set_level('INFO')
  # A damaged encoder is written again, with the features of the data.
  encoder = tmp_path / 'former' / 'encoder' / 'encoder.json'
  encoder.write_text(encoder.read_text().replace('price', 'prise'))
  again = train(path, tmp_path / 'former', 4)
  assert again['steps'] == 4
  assert 'the features are those that' in caplog.text
  assert 'row, user, price, cost' in caplog.text
  config = build_config(path, 4)
  config.predict.output = str(tmp_path / 'out.csv')
  assert score.write_scores(config, tmp_path / 'former')['rows'] == 40
  # A new run looks, and its log loss is bounded though the cost changes.
  fresh = train(path, tmp_path / 'fresh', 4)
  assert fresh['metrics']['test']['logloss'] < 1
  assert former['data'] != fresh['data']
