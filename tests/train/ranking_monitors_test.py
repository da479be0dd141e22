"""What a ranking run does with metrics that mean nothing."""

import functools
import math

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.ranking.rows import ColumnNames, Rows
from genrec_jax.evaluators.ranking import find_undefined
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from genrec_jax.weights.export import export_weights
from tests.ranking_examples import hold_in_memory
from tests.train.tiny_run import curve

ROWS, BATCH = 500, 100
EPOCH = 4  # steps; 400 rows train, and 50 validate and test each


def write_log(path, label, group):
  lines = [f'{label(n)},{n % 7},{n % 11},{group(n)}\n' for n in range(ROWS)]
  path.write_text('label,u,i,g\n' + ''.join(lines))
  return path


def drawn(n):
  return (n * n + n // 3) % 7 % 2


def config(path, *overrides, **changes):
  config = config_lib.ranking()
  config.model = config_lib.lr()
  config.data.update(name='csv', path=str(path), group='g')
  config.data.features = {name: {'kind': 'categorical'} for name in ('u', 'i')}
  config.train.batch_size = BATCH
  config.train.epochs = 3
  config.train.log_every = 3
  config.report.importance_rows = 0
  config.optimizer.learning_rate = 0.1
  for key, value in changes.items():
    section, _, name = key.partition('__')
    config[section][name] = value
  return config


def train(workdir, path, **changes):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config(path, **changes), workdir, TASK_KINDS)


def test_a_log_sorted_by_its_label(tmp_path, said):
  path = write_log(tmp_path / 'a.csv', lambda n: n // 250, lambda n: n % 9)
  report = train(
    tmp_path / 'run', path, train__patience=1, optimizer__plateau_factor=0.1
  )
  told = said()
  before, _, after = told.partition('starting from scratch')
  for split in ('valid', 'test'):
    assert (
      f"label 'label' is 1 in all 50 examples of the {split} split" in before
    )
  assert 'the valid split, so that auc, gauc, ne are not defined' in before
  assert 'train.monitor is auc, and it will be NaN: label' in before
  assert after.count('is NaN (label') == 1  # at the first evaluation
  assert 'learning rates are now' not in told
  # Neither early, nor served from the first evaluation.
  assert report['steps'] == report['best_step'] == 3 * EPOCH
  assert "is the best by auc (label 'label' is 1" in report['notes'][0]
  rows = [r for r in curve(tmp_path / 'run') if 'valid/auc' in r]
  assert len(rows) == 3 and all(math.isnan(r['valid/auc']) for r in rows)


@pytest.mark.parametrize(
  'labels, weight, group, undefined',
  [
    ([0, 1], None, None, set()),
    ([0.3, 0.3], None, None, set()),  # a share of both classes
    ([0.7, 1], None, None, set()),
    ([1, 1], None, None, {'auc', 'ne'}),
    ([0, 0], None, None, {'auc', 'ne', 'calibration'}),
    ([0, 1], [1, 0], None, {'auc', 'ne', 'calibration'}),
    ([0, 1], None, [3, 3], set()),
    ([0, 1], None, [2, 3], {'gauc'}),
    ([0, 1], None, [-1, -1], {'gauc'}),  # of no group
  ],
)
def test_what_has_no_value_on_a_split(labels, weight, group, undefined):
  rows = Rows(
    np.float32(labels)[:, None],
    np.zeros((2, 0), np.int32),
    np.zeros((2, 0), np.float32),
    None if group is None else np.int32(group),
    {},
    weight=None if weight is None else np.float32(weight),
  )
  split = hold_in_memory('valid', rows, ColumnNames(('click',)), 1)
  assert set(find_undefined(split, ['click'])) == undefined


def test_a_sum_with_a_part_that_is_nan(tmp_path, said):
  """Each group has examples of one label: there is an AUC, and no gAUC."""
  path = write_log(tmp_path / 'a.csv', drawn, drawn)
  report = train(
    tmp_path / 'run', path, train__monitor='auc:1,gauc:1', train__patience=1
  )
  told = said()
  assert 'no group (data.group) of the valid split holds' in told
  assert 'gauc of the valid split, by which train.monitor' in told
  assert report['best_step'] == 3 * EPOCH
  report = train(tmp_path / 'auc', path)
  values = {
    r['step']: r['valid/auc']
    for r in curve(tmp_path / 'auc')
    if 'valid/auc' in r
  }
  assert report['best_step'] == max(values, key=values.get)


def test_a_label_that_is_one_in_training(tmp_path, said):
  path = write_log(tmp_path / 'a.csv', lambda n: n < 400 or n % 2, drawn)
  path.write_text(path.read_text().replace('True', '1'))
  train(tmp_path / 'run', path, train__epochs=1)
  before = said().partition('starting from scratch')[0]
  assert "label 'label' is 1 in all 400 examples of the train split" in before


# --- Predict, then train


@pytest.fixture(scope='module')
def log(tmp_path_factory):
  path = tmp_path_factory.mktemp('log') / 'a.csv'
  return write_log(path, drawn, lambda n: n % 5)


@pytest.mark.parametrize('shuffle', [False, True])
def test_only_the_first_pass_is_progressive(tmp_path, log, said, shuffle):
  once, thrice, stopped = (
    functools.partial(
      train,
      tmp_path / name,
      log,
      eval__progressive='lifetime',
      train__shuffle=shuffle,
    )
    for name in ('once', 'thrice', 'stopped')
  )
  once(train__epochs=1)
  assert 'passes over the data' not in said()
  thrice()
  assert (
    'lifetime measures the first of 3 passes over the data, 4 steps' in said()
  )
  stopped(train__steps=3)
  stopped(train__steps=7)  # more than one pass
  stopped()
  curves = {
    name: {
      row['step']: {k: v for k, v in row.items() if k[:5] == 'train'}
      for row in curve(tmp_path / name)
      if any('lifetime' in k for k in row)
    }
    for name in ('once', 'thrice', 'stopped')
  }
  # The line behind the end of a pass has the rest of its window.
  assert list(curves['once']) == [3, 4] and list(curves['thrice']) == [3, 6]
  for name, value in curves['once'][4].items():
    if name not in ('train/loss', 'train/grad_norm'):  # of step 5 and 6, too
      assert value == curves['thrice'][6][name]
      assert value == curves['stopped'][6][name]
  assert curves['thrice'] == curves['stopped']
  assert 0 <= curves['thrice'][6]['train/auc_max_error'] <= 0.5


# --- Before the first step


def test_the_start_is_evaluated(tmp_path, log, said):
  late = dict(train__eval_first=True, optimizer__learning_rate=0.0)
  report = train(tmp_path / 'run', log, **late)
  lines = curve(tmp_path / 'run')
  rows = [r for r in lines if 'valid/auc' in r]
  assert [r['step'] for r in rows] == [0, 4, 8, 12]
  assert [r['step'] for r in lines if 'test/auc' in r] == [0, 4, 8, 12]
  # Without a rate nothing is better than the start.
  assert report['best_step'] == 0
  assert report['metrics']['valid'] == report['last_epoch']['valid']
  assert 'diverged' not in said()


def test_the_start_counts_and_a_run_that_is_stopped_goes_on(tmp_path, log):
  first = dict(train__eval_first=True, train__checkpoint_every=2)
  train(tmp_path / 'whole', log, **first)
  train(tmp_path / 'stopped', log, train__steps=2, **first)
  train(tmp_path / 'stopped', log, **first)
  whole, stopped = (
    [r for r in curve(tmp_path / name) if r['step'] not in (2,)]
    for name in ('whole', 'stopped')
  )
  evaluations = [
    [r for r in rows if 'valid/auc' in r] for rows in (whole, stopped)
  ]
  assert evaluations[0] == evaluations[1]
  assert [r['step'] for r in evaluations[0]] == [0, 4, 8, 12]
  train(tmp_path / 'usual', log)
  usual = [r for r in curve(tmp_path / 'usual') if 'valid/auc' in r]
  assert usual == evaluations[0][1:]


def test_fine_tuning_shows_its_start(tmp_path, log):
  first = train(tmp_path / 'first', log)
  export_weights(tmp_path / 'first', tmp_path / 'w.safetensors')
  report = train(
    tmp_path / 'second',
    log,
    train__init_from=str(tmp_path / 'w.safetensors'),
    train__eval_first=True,
    optimizer__learning_rate=100.0,
  )
  [start, *_] = [r for r in curve(tmp_path / 'second') if 'valid/auc' in r]
  assert start['step'] == report['best_step'] == 0
  assert report['metrics']['valid'] == pytest.approx(first['metrics']['valid'])
