"""Runs whose tables are saved by rows: nothing but the files is different."""

import json
import os
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint import rows as rows_lib
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.progress import Progress
from genrec_jax.runtime.saving import Saver
from genrec_jax.serve import weights as weights_lib
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment
from tests.e2e.spread_runs import assert_same_curve
from tests.train import tiny_run
from tests.train.tiny_run import assert_same_bits, curve, train

# All of them mark rows: a step that does not is another program, and its last
# bits may be others.
ROWS = (
  'optimizer.rows.name=row_adagrad',
  'loss.sampler=shared',
  'checkpoint.publish.every=1000',
)
CONSECUTIVE = 'checkpoint.policy=consecutive'


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A run without checkpoints by rows."""
  workdir = tmp_path_factory.mktemp('whole')
  train(workdir, *ROWS)
  return workdir


@pytest.fixture(scope='module')
def by_rows(tmp_path_factory):
  """The same with them, and with something to follow."""
  workdir = tmp_path_factory.mktemp('by_rows')
  more = ('checkpoint.publish.every=6', 'checkpoint.publish.bits=8')
  train(workdir, *ROWS, CONSECUTIVE, *more)
  return workdir


def state_of(workdir) -> dict:
  """Every array of a run's newest checkpoint, however it was saved."""
  pieces = experiment.build_experiment(
    tiny_run.config(*ROWS), workdir, TASK_KINDS, lambda *_: None
  )
  with tiny_run.CheckpointManager(workdir / 'checkpoints') as checkpoints:
    found = pieces.runtime.restore(checkpoints, checkpoints.latest())
  return jax.device_get(tiny_run.flatten_state(found.state))


def rows_of(workdir, which='checkpoints'):
  directory = workdir / which
  return {
    step: manifest.verify(directory / str(step))['rows']
    for step in manifest.list_steps(directory)
  }


def stop_at(monkeypatch, step):
  update = Progress.update

  def stopping(self, now, **shown):
    update(self, now, **shown)
    if now == step:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(Progress, 'update', stopping)


def test_the_same_curve_and_the_same_state(whole, by_rows):
  assert curve(by_rows) == curve(whole)
  assert_same_bits(state_of(by_rows), state_of(whole))
  rows = rows_of(by_rows)
  assert [r['kind'] for r in rows.values()] == ['base'] + ['delta'] * 4
  assert list(rows) == [4, 8, 12, 16, 20]


def test_a_run_goes_on_whatever_way_it_was_saved(whole, tmp_path, monkeypatch):
  policies = ('', 'intermittent', 'consecutive', 'one_shot')
  for stop, policy in zip((3, 9, 14, None), policies):
    with monkeypatch.context() as m:
      stop_at(m, stop)
      train(tmp_path, *ROWS, f'checkpoint.policy={policy}')
  assert curve(tmp_path) == curve(whole)
  assert_same_bits(state_of(tmp_path), state_of(whole))
  saved = manifest.read(tmp_path / 'checkpoints/20')
  assert saved['host']['restores'] == 3
  assert saved['rows']['kind'] == 'delta'


def test_a_run_with_a_key_signs_what_it_saves(tmp_path):
  path = tmp_path / 'key'
  path.write_bytes(b'k' * 32)
  config = tiny_run.config(f'checkpoint.sign_key_file={path}')
  runtime = types.SimpleNamespace(stacks={}, extensions=Extensions())
  with Saver(config, tmp_path, runtime, None) as saver:
    saver.checkpoints.save(4, {'w': jnp.ones(2)})
    saver.wait()
  assert manifest.verify(tmp_path / 'checkpoints/4', key=b'k' * 32)['hmac']
  with pytest.raises(manifest.UnsignedError):
    manifest.verify(tmp_path / 'checkpoints/4', key=b'o' * 32)


def test_a_mesh_begins_and_one_device_ends(whole, tmp_path, monkeypatch):
  mesh = ('parallel.hosts=2', 'parallel.devices=2')
  with monkeypatch.context() as m:
    stop_at(m, 10)  # a line is written there: sums begin anew on a mesh
    train(tmp_path, *ROWS, *mesh, CONSECUTIVE)
  assert [r['kind'] for r in rows_of(tmp_path).values()][-1] == 'delta'
  train(tmp_path, *ROWS, 'checkpoint.policy=one_shot')
  assert_same_curve(tmp_path, whole)
  assert manifest.read(tmp_path / 'checkpoints/20')['rows']['kind'] == 'delta'


def test_a_server_reads_either(whole, by_rows):
  task = experiment.build_experiment(
    tiny_run.config(*ROWS), whole, TASK_KINDS, lambda *_: None
  ).task
  for which in ('latest', 'best'):
    one, other = (
      weights_lib.load_weights(w, task, which) for w in (whole, by_rows)
    )
    assert one.step == other.step
    jax.tree.map(
      np.testing.assert_array_equal,
      (one.params, one.tables),
      (other.params, other.tables),
    )


def test_the_best_weights_are_exact_bases_without_slots(by_rows):
  found = rows_of(by_rows, 'best')
  for about in found.values():
    assert (about['kind'], about['parents'], about['bits']) == ('base', [], 32)
    assert all(t['slots'] == {} for t in about['tables'].values())
  assert found


def test_what_is_published_is_a_chain_of_weights(by_rows):
  rows = rows_of(by_rows, 'published')
  assert [r['kind'] for r in rows.values()] == ['base', *3 * ['delta']]
  assert list(rows) == [6, 12, 18, 20]  # each sixth step, and the last
  assert {r['bits'] for r in rows.values()} == {8}
  assert all(t['slots'] == {} for t in rows[18]['tables'].values())
  tree = manifest.read(by_rows / 'published/18')['tree']
  assert {name.split('/')[0] for name in tree} == {'params'}


def test_a_restart_publishes_a_base_and_nothing_twice(tmp_path, monkeypatch):
  options = (*ROWS, CONSECUTIVE, 'checkpoint.publish.every=3')
  options += ('checkpoint.publish.keep=9', 'train.checkpoint_every=50')
  with monkeypatch.context() as m:

    def die(self, now, **shown):
      if now == 7:
        raise KeyboardInterrupt

    m.setattr(Progress, 'update', die)
    with pytest.raises(KeyboardInterrupt):
      train(tmp_path, *options)
  assert list(rows_of(tmp_path, 'published')) == [3, 6]
  train(tmp_path, *options, 'train.steps=12')
  kinds = {s: r['kind'] for s, r in rows_of(tmp_path, 'published').items()}
  assert kinds == {3: 'base', 6: 'delta', 9: 'base', 12: 'delta'}


def test_a_last_publication_that_fails_does_not_fail_the_run(
  tmp_path, monkeypatch, caplog
):
  write = rows_lib.write_chunks

  def fail(directory, *args):
    if 'published' in str(directory):
      raise OSError('no such server')
    write(directory, *args)

  monkeypatch.setattr(rows_lib, 'write_chunks', fail)
  options = (*ROWS, 'checkpoint.publish.every=4', 'train.steps=4')
  assert train(tmp_path, *options)['steps'] == 4
  assert 'the last step is not published' in caplog.text
  assert rows_of(tmp_path, 'published') == {}


def test_tables_that_no_row_optimizer_updates_are_refused(tmp_path):
  with pytest.raises(ConfigError, match='set optimizer.rows.name'):
    train(tmp_path, CONSECUTIVE)


@pytest.mark.parametrize(
  'limit',
  [
    'checkpoint.keep_hours=1e-9',  # microseconds
    'checkpoint.keep_gb=1e-6',  # a thousand bytes
  ],
)
def test_only_the_newest_outlives_a_tight_limit(tmp_path, limit):
  train(tmp_path, 'train.steps=8', 'train.keep_checkpoints=9', limit)
  assert manifest.list_steps(tmp_path / 'checkpoints') == [8]


def test_the_manifest_names_the_choice(by_rows):
  body = json.loads((by_rows / 'checkpoints/20' / manifest.NAME).read_text())
  assert body['rows']['bits'] == 32 and body['rows']['slots'] == 'float32'
