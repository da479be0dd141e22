"""Ranking runs on a growing directory: ends of parts, stops, the end."""

import os
import pathlib
import signal
import threading
import time

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.part_reader import read_part_of
from genrec_jax.config import ConfigError
from genrec_jax.data.growing import END
from genrec_jax.data.part_place import PartPlace
from genrec_jax.progress import Progress
from genrec_jax.runtime.state import flatten_state
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop, settings_checks
from tests.data.ranking.growing_parts import make_rows, put
from tests.train.tiny_run import assert_same_bits, curve, steps_of

CONFIG = f'{pathlib.Path(__file__).parents[2]}/configs/own_clicks.py:fm'
SIZES = (11, 4, 8, 1)  # of the parts, in batches of 4
ENDS = [3, 4, 6, 7]  # steps with which they end
OVERRIDES = (
  'data.features.user.kind=categorical',
  'data.features.item.kind=categorical',
  'data.features.price.kind=numeric',
  'data.features.tags.kind=multi_hot',
  'data.labels=click',
  'data.time=when',
  'data.weight=importance',
  'data.group=user',
  'data.stream.poll_s=0.02',
  'optimizer.rows.name=row_adagrad',
  'optimizer.plateau_factor=1',
  'train.batch_size=4',
  'train.patience=0',
  'train.log_every=2',
  'train.keep_checkpoints=20',
  'checkpoint.at_part_ends=true',
  'checkpoint.publish.every=1000000',
  'checkpoint.publish.keep=20',
  'eval.splits=valid',
  'eval.progressive=window',
  'eval.progressive_windows=part',
  'report.importance_rows=0',
)


def put_parts(directory, sizes=SIZES, first=0):
  for number, size in enumerate(sizes, first):
    put(directory, f'part-{number}.csv', make_rows(number, size))


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """Where base data are, and the parts of a stream that has ended."""
  directory = tmp_path_factory.mktemp('data')
  put(directory, 'base.csv', make_rows(99, 80))
  (directory / 'parts').mkdir()
  put_parts(directory / 'parts')
  (directory / 'parts' / END).touch()
  return directory


def make_config(data, *overrides):
  return config_lib.load(
    CONFIG,
    [
      *OVERRIDES,
      f'data.path={data / "base.csv"}',
      f'data.cache={data / "cache"}',
      f'data.stream.directory={data / "parts"}',
      'train.steps=0',
      *overrides,
    ],
  )


def train(workdir, data, *overrides):
  config = make_config(data, *overrides)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config, workdir, TASK_KINDS)


@pytest.fixture(scope='module')
def whole(data, tmp_path_factory):
  """(workdir, report) of a run that nothing disturbed."""
  workdir = tmp_path_factory.mktemp('whole')
  return workdir, train(workdir, data)


def read_weights(workdir, data) -> dict:
  """{name: array} of the newest checkpoint."""
  pieces = experiment.build_experiment(
    make_config(data), workdir, TASK_KINDS, lambda *_: None
  )
  state = pieces.runtime.abstract_state()
  with CheckpointManager(workdir / 'checkpoints') as checkpoints:
    step, arrays, _ = checkpoints.restore(flatten_state(state))
  return {'step': np.int32(step), **jax.device_get(arrays)}


def assert_same_run(workdir, reference, data):
  assert curve(workdir) == curve(reference)
  assert_same_bits(read_weights(workdir, data), read_weights(reference, data))


def at_update(monkeypatch, action, *steps):
  """Does something when the progress line hears of these steps."""
  update = Progress.update

  def acting(self, step, **shown):
    update(self, step, **shown)
    if step in steps:
      action()

  monkeypatch.setattr(Progress, 'update', acting)


def terminate():
  os.kill(os.getpid(), signal.SIGTERM)


def fail():
  raise RuntimeError('lost')


def test_windows_checkpoints_and_publications_end_with_parts(whole):
  workdir, report = whole
  assert report['steps'] == 7 and report['metrics']['valid']
  assert steps_of(workdir, 'train/loss') == [2, 3, 4, 6, 7]
  assert steps_of(workdir, 'train/ne') == ENDS
  assert steps_of(workdir, 'valid/auc') == [7]
  for which in ('checkpoints', 'published'):
    assert manifest.list_steps(workdir / which) == ENDS
    places = [read_part_of(workdir / which, step) for step in ENDS]
    assert [place.name for place in places] == [
      f'part-{number}.csv' for number in range(4)
    ]
    assert all(place.is_end for place in places)
    assert read_part_of(workdir / which) == PartPlace('part-3.csv', 1, 1, 4)
  # A window of one batch, whose loss the step has measured itself.
  row = next(row for row in curve(workdir) if row['step'] == 4)
  assert row['train/logloss'] == pytest.approx(row['train/loss'], rel=1e-5)


def test_a_window_is_all_of_a_part(whole, data, tmp_path):
  """Lines of the log do not cut it, and their windows add up to it."""
  lines = ('train.log_every=1', 'eval.progressive_windows=log')
  train(tmp_path, data, *lines)
  each = {row['step']: row for row in curve(tmp_path) if 'train/ne' in row}
  sums = np.cumsum([0, *(sum_weights(seed, n) for seed, n in batches_of())])
  parts = {row['step']: row for row in curve(whole[0]) if 'train/ne' in row}
  for first, end in zip([0, *ENDS[:-1]], ENDS, strict=True):
    weights = np.diff(sums)[first:end]
    losses = [each[step]['train/logloss'] for step in range(first + 1, end + 1)]
    mean = np.average(losses, weights=weights)
    assert parts[end]['train/logloss'] == pytest.approx(mean, rel=1e-6)


def batches_of():
  """(part, first row) of every batch."""
  return [
    (seed, first)
    for seed, size in enumerate(SIZES)
    for first in range(0, size, 4)
  ]


def sum_weights(seed, first):
  rows = make_rows(seed, SIZES[seed])[first : first + 4]
  return sum(row['importance'] for row in rows)


def test_a_run_that_is_stopped_anywhere_goes_on_as_if_it_were_not(
  whole, data, tmp_path, monkeypatch
):
  with monkeypatch.context() as m:
    at_update(m, terminate, 1, 3, 5)
    for _ in range(3):
      assert train(tmp_path, data) is None
  assert read_part_of(tmp_path / 'checkpoints') == PartPlace(
    'part-2.csv', 1, 2, 3
  )
  assert train(tmp_path, data)['steps'] == 7
  assert_same_run(tmp_path, whole[0], data)
  assert manifest.list_steps(tmp_path / 'checkpoints') == [1, 3, 4, 5, 6, 7]
  assert manifest.list_steps(tmp_path / 'published') == ENDS


@pytest.mark.parametrize('lost', (4, 5))
def test_a_lost_run_goes_on_from_the_end_of_a_part(
  whole, data, tmp_path, monkeypatch, lost
):
  with monkeypatch.context() as m:
    at_update(m, fail, lost)
    with pytest.raises(RuntimeError, match='lost'):
      train(tmp_path, data)
  assert manifest.list_steps(tmp_path / 'checkpoints')[-1] == {4: 3, 5: 4}[lost]
  train(tmp_path, data)
  assert_same_run(tmp_path, whole[0], data)
  assert manifest.list_steps(tmp_path / 'checkpoints') == ENDS
  assert manifest.list_steps(tmp_path / 'published') == ENDS


def test_a_publication_that_a_kill_prevented_is_made_up_for(
  whole, data, tmp_path, monkeypatch
):
  with monkeypatch.context() as m:
    m.setattr(loop.Saver, 'publish', lambda *args, **more: fail())
    with pytest.raises(RuntimeError, match='lost'):
      train(tmp_path, data)
  assert manifest.list_steps(tmp_path / 'checkpoints') == [3]
  train(tmp_path, data)
  assert_same_run(tmp_path, whole[0], data)
  assert manifest.list_steps(tmp_path / 'published') == ENDS


def test_devices_that_share_batches_meet_the_same_ends(whole, data, tmp_path):
  train(tmp_path, data, 'parallel.devices=2')  # which reads ahead
  assert steps_of(tmp_path, 'train/ne') == ENDS
  assert manifest.list_steps(tmp_path / 'checkpoints') == ENDS
  places = [read_part_of(tmp_path / 'published', step) for step in ENDS]
  assert places == [read_part_of(whole[0] / 'published', s) for s in ENDS]
  losses = [
    [row['train/loss'] for row in curve(path) if 'train/loss' in row]
    for path in (tmp_path, whole[0])
  ]
  np.testing.assert_allclose(*losses, rtol=1e-5)


def test_parts_that_appear_while_a_run_waits(whole, data, tmp_path):
  growing = tmp_path / 'parts'
  growing.mkdir()
  put_parts(growing, SIZES[:2])

  def write():
    while not manifest.list_steps(tmp_path / 'run' / 'checkpoints')[1:]:
      time.sleep(0.02)  # all that is there is trained on, and saved
    put_parts(growing, SIZES[2:], first=2)
    (growing / END).touch()

  thread = threading.Thread(target=write)
  thread.start()
  train(tmp_path / 'run', data, f'data.stream.directory={growing}')
  thread.join()
  assert_same_run(tmp_path / 'run', whole[0], data)


def test_a_run_of_some_steps_ends_within_a_part(whole, data, tmp_path):
  report = train(tmp_path, data, 'train.steps=5', 'eval.splits=()')
  assert report['steps'] == 5
  assert manifest.list_steps(tmp_path / 'checkpoints') == [3, 4, 5]
  assert not read_part_of(tmp_path / 'published').is_end
  assert steps_of(tmp_path, 'train/ne') == [3, 4, 5]


@pytest.mark.parametrize(
  ('overrides', 'words'),
  (
    (('checkpoint.at_part_ends=false',), 'checkpoint_every or checkpoint.at_'),
    (('data.stream.directory=',), 'at_part_ends is True.* no parts'),
    (('eval.progressive=none',), "progressive_windows is 'part'.* no windows"),
    (('data.example_id=row',), "data.example_id='row' numbers the rows"),
    (('optimizer.schedule=cosine',), 'train.steps must be set where data.st'),
  ),
)
def test_settings_that_make_no_stream_are_refused(data, overrides, words):
  with pytest.raises(ConfigError, match=words):
    settings_checks.check_settings(make_config(data, *overrides))
  settings_checks.check_settings(make_config(data))


def test_nothing_is_said_of_parts_without_a_stream(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  assert read_part_of(tmp_path / 'checkpoints') is None
