"""A third kind of task, from outside: its whole life, on one device and 2x4."""

import json

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.extensions import add_to_kinds
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, results
from tests.third_task.parts import EXTENSIONS
from tests.tolerances import assert_close

ROWS, STEPS, STOP = 400, 12, 5
KINDS = add_to_kinds(TASK_KINDS, EXTENSIONS)


@pytest.fixture(scope='module')
def log_file(tmp_path_factory):
  """Minutes that the last tag and the history explain, and a noisy teacher."""
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp('minutes') / 'train.csv'
  worth = rng.normal(size=30)
  lines = ['history,tags,minutes,teacher']
  for _ in range(ROWS):
    history = rng.integers(0, 30, rng.integers(0, 5))
    tags = rng.choice(30, rng.integers(1, 4), replace=False)
    minutes = (
      3 + worth[tags].sum() + (worth[history].mean() if len(history) else 0)
    )
    lists = ('|'.join(f'v{i}' for i in ids) for ids in (history, tags))
    teacher = minutes + 0.1 * rng.normal()
    lines.append(f'{",".join(lists)},{minutes:.4f},{teacher:.4f}')
  path.write_text('\n'.join(lines) + '\n')
  return path


def config(log_file, *, mesh: bool, steps: int = STEPS):
  c = config_lib.ranking()
  c.task = 'minutes'
  c.data.name, c.data.path = 'csv', str(log_file.parent)
  c.data.files.train = log_file.name
  c.data.labels = ('minutes',)
  for override in (
    'data.features.history.kind=sequence',
    'data.features.history.max_len=4',
    'data.features.history.pooling=mean',
    'data.features.tags.kind=multi_hot',
    'data.features.tags.max_len=3',
    'data.label_kinds.minutes=float',
    'data.extras.teacher=float',
  ):
    config_lib.apply_override(c, override)
  c.tables = (('tags', {'rate': 0.2}), ('.*', {}))
  c.train.update(
    batch_size=64,
    steps=steps,
    log_every=1,
    eval_every=6,
    checkpoint_every=STOP,
    monitor='r2',
    nan_every=4,
  )
  c.eval.batch_size = 64
  if mesh:
    c.parallel.update(hosts=2, devices=4, scheme='table_row_wise')
  return c.lock()


def run(workdir, log_file, **options):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(
      config(log_file, **options), workdir, KINDS, EXTENSIONS
    )


def curve(workdir) -> list[dict]:
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return [
    {k: v for k, v in row.items() if k.split('/')[0] in ('train', 'valid')}
    for row in rows
  ]


@pytest.fixture(scope='module', params=[False, True], ids=['1 device', '2x4'])
def trained(request, tmp_path_factory, log_file):
  workdir = tmp_path_factory.mktemp('whole')
  report = run(workdir, log_file, mesh=request.param)
  return workdir, request.param, report


def test_it_trains_and_is_logged_with_its_own_measurements(trained):
  workdir, _, report = trained
  rows = [row for row in curve(workdir) if 'train/loss' in row]
  assert rows[-1]['train/loss'] < rows[0]['train/loss']
  for row in rows:
    assert row['train/examples'] == 64  # a sum, over 8 devices or one
    assert row['train/worst'] >= row['train/loss'] / 1.5 > 0
    assert row['train/teacher_error'] > 0
  assert set(report['metrics']) == {'valid', 'test'}
  assert report['metrics']['test']['mse'] > 0
  assert report['directions'] == {'mse': 'lower'}


def test_its_curve_does_not_depend_on_the_devices(trained, tmp_path, log_file):
  workdir, mesh, _ = trained
  run(tmp_path, log_file, mesh=not mesh)
  for one, other in zip(curve(workdir), curve(tmp_path), strict=True):
    shared = one.keys() - {'train/exchange_overflow'}
    for key in shared & other.keys():
      assert_close(other[key], one[key], 'curve')


def test_it_goes_on_bit_by_bit(trained, tmp_path, log_file):
  workdir, mesh, _ = trained
  run(tmp_path, log_file, mesh=mesh, steps=STOP)
  run(tmp_path, log_file, mesh=mesh)
  by_step = {r: row for r, row in enumerate(curve(workdir))}
  training = [row for row in by_step.values() if 'train/loss' in row]
  again = [row for row in curve(tmp_path) if 'train/loss' in row]
  assert again[-(STEPS - STOP) :] == training[-(STEPS - STOP) :]


def test_it_is_evaluated_and_predicted(trained, log_file):
  workdir, mesh, report = trained
  c = config(log_file, mesh=mesh)
  with jax.numpy_dtype_promotion('standard'):
    found = results.evaluate_run(c, workdir, KINDS, EXTENSIONS)
    KINDS['minutes'].predict(c, workdir, EXTENSIONS)
  wanted = report['metrics']['test']['mse']
  assert_close(found['metrics']['test']['mse'], wanted)
  predictions = np.loadtxt(workdir / 'predictions.csv')
  assert len(predictions) == ROWS // 10 and np.all(np.isfinite(predictions))


def test_an_extension_under_a_name_that_exists():
  with pytest.raises(ValueError, match="a kind of task 'minutes' already"):
    add_to_kinds(KINDS, EXTENSIONS)
