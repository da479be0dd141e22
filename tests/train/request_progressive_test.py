"""`eval.progressive` of requests, on one device and on eight."""

import pathlib

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.tolerances import assert_close

CONFIG = f'{pathlib.Path(__file__).parents[2]}/configs/gr_streaming.py:smoke'
OVERRIDES = (
  'model.blocks=1',
  'eval.progressive=window',
  'eval.splits=()',
  'model.input_dropout=0.0',
  'model.dropout=0.0',
  # Fresh weights of the published settings say next to nothing.
  'model.action_std=0.1',
  'model.token_scale=None',
  'model.head_inputs=product',
  'model.tied_start=false',
  'optimizer.rows.learning_rate=0.05',
  'optimizer.average=0',  # the loss is that of the weights themselves
  'train.steps=5',
  'train.log_every=2',
  'train.checkpoint_every=5',
)


def train(workdir, *overrides):
  config = config_lib.load(CONFIG, [*OVERRIDES, *overrides])
  with jax.numpy_dtype_promotion('standard'):  # for optax
    loop.train_and_evaluate(config, workdir, TASK_KINDS)
  return read_jsonl(workdir / 'metrics.jsonl')


@pytest.fixture(scope='module')
def one(tmp_path_factory):
  return train(tmp_path_factory.mktemp('one') / 'run')


def test_the_training_line_says_ne_and_auc(tmp_path, capfd, one):
  again = train(tmp_path / 'run')
  line = capfd.readouterr().err.splitlines()[-1]
  last = again[-2]  # the last line before the last step
  assert f'ne {last["train/ne"]:.4g}' in line
  assert f'auc {last["train/auc"]:.4g}' in line
  assert 'tokens/s' in line
  wanted = [(row['train/ne'], row['train/auc']) for row in one]
  assert [(row['train/ne'], row['train/auc']) for row in again] == wanted


def test_windows_hold_each_batch_before_its_step(one):
  assert [row['step'] for row in one] == [2, 4, 5]
  # The first window begins with weights that know nothing.
  assert abs(one[0]['train/ne'] - 1) < 0.25
  # The last one is of one batch, whose loss the step measured itself.
  assert one[-1]['train/logloss'] == pytest.approx(
    one[-1]['train/loss'], rel=1e-5
  )


def test_eight_devices_measure_the_same(tmp_path, one):
  many = train(tmp_path / 'run', 'parallel.devices=8')
  for name in ('train/ne', 'train/auc', 'train/gauc', 'train/logloss'):
    assert_close(
      np.array([row[name] for row in many]),
      np.array([row[name] for row in one]),
      'curve' if name in ('train/ne', 'train/logloss') else 'float32',
    )
