"""The training loop in one process: duties, refusals, early ends."""

import dataclasses
import json
import os
import pathlib
import resource
import shutil
import signal
import time

import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax import interruption
from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.evaluators.retrieval import RetrievalEvaluator
from genrec_jax.progress import Progress
from genrec_jax.runtime import restoring
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.train import loop, settings_checks
from tests.train import tiny_run
from tests.train.tiny_run import assert_same_run, curve, steps_of, train


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """(workdir, report) of a run that nothing disturbed."""
  workdir = tmp_path_factory.mktemp('whole')
  return workdir, train(workdir, 'report.users=1')


def saved_steps(workdir, which='checkpoints'):
  return manifest.list_steps(pathlib.Path(workdir) / which)


# --- A whole run


def test_what_a_run_leaves(whole):
  workdir, report = whole
  found = {path.name.split('.')[0] for path in workdir.glob('[!.]*')}
  assert found == {
    'config', 'metrics', 'report', 'events', 'checkpoints', 'best', 'items'
  }  # fmt: skip
  assert (workdir / 'report.html').stat().st_size > 10_000
  assert len(report['users']) == 1
  assert saved_steps(workdir) == [16, 20]
  assert steps_of(workdir, 'train/loss') == list(range(2, 21, 2))
  assert steps_of(workdir, 'valid/ndcg@10') == [4, 8, 12, 16, 20]
  assert all(np.isfinite(list(row.values())).all() for row in curve(workdir))
  losses = [row['train/loss'] for row in curve(workdir) if 'train/loss' in row]
  assert losses[-1] < losses[0]
  events = [p for p in workdir.iterdir() if p.name.startswith('events.')]
  assert len(events) == 1 and b'valid/ndcg@10' in events[0].read_bytes()


def test_the_report_keeps_the_contract(whole):
  workdir, report = whole
  assert json.loads((workdir / 'report.json').read_text()).keys() >= {
    'config', 'seed', 'metrics', 'last_epoch', 'baselines', 'steps', 'wall_s',
    'core_s', 'examples_per_s', 'versions',
  }  # fmt: skip
  assert report['steps'] == 20 and report['seed'] == 0
  names = {'hr@1', 'hr@10', 'ndcg@1', 'ndcg@10', 'mrr'}
  for metrics in (
    report['metrics'],
    report['last_epoch'],
    report['baselines']['popularity'],
  ):
    assert metrics['valid'].keys() == names
  assert report['versions'].keys() >= {'python', 'jax', 'numpy'}
  assert report['wall_s'] > 0 and report['core_s'] > 0


def test_the_best_is_chosen_by_the_monitor(whole):
  workdir, report = whole
  rows = [row for row in curve(workdir) if 'valid/ndcg@10' in row]
  best = max(rows, key=lambda row: row['valid/ndcg@10'])  # the first of equals
  assert report['best_step'] == best['step']
  assert report['metrics']['valid']['ndcg@10'] == best['valid/ndcg@10']
  assert report['last_epoch']['valid']['mrr'] == rows[-1]['valid/mrr']
  assert saved_steps(workdir, 'best') == [best['step']]


def test_a_line_is_the_mean_since_the_line_before(whole, tmp_path):
  """The steps compared are those of full batches, of one weight."""
  train(tmp_path, 'train.log_every=1', 'train.steps=6')
  for name in ('train/loss', 'train/grad_norm'):
    each = [row[name] for row in curve(tmp_path) if name in row]
    both = [row[name] for row in curve(whole[0]) if name in row]
    assert np.mean(np.reshape(each, (3, 2)), 1) == pytest.approx(both[:3])


def test_the_same_again_is_the_same_run(whole, tmp_path):
  train(tmp_path)
  assert_same_run(tmp_path, whole[0])


def test_an_ended_run_started_again_only_reports(whole, tmp_path, said):
  workdir = tmp_path / 'copy'
  shutil.copytree(whole[0], workdir)
  (workdir / 'report.json').unlink()
  report = train(workdir)
  assert report['steps'] == 20 and (workdir / 'report.json').exists()
  assert 'continuing from the checkpoint of step 20' in said()
  assert_same_run(workdir, whole[0])


def test_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
  train(tmp_path, 'train.steps=4')
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == 'compiling program 1 of 1'
  assert lines[1].startswith('step 1/4 · ')
  assert lines[-1].startswith('step 4/4 · ') and 'loss ' in lines[-1]
  assert not any('\r' in line or '\x1b' in line for line in lines)


def test_the_first_line_of_a_stopped_and_continued_run(tmp_path, whole, said):
  """More steps than before: train.steps is free to change."""
  train(tmp_path, 'train.steps=8')
  train(tmp_path)
  assert 'starting from scratch' in said()
  assert 'continuing from the checkpoint of step 8' in said()
  assert_same_run(tmp_path, whole[0])


# --- What ends a run before its first step


def test_without_evaluations(tmp_path, whole):
  report = train(tmp_path, 'eval.splits=()')
  assert report['metrics'] == {} and not (tmp_path / 'report.html').exists()
  trained = [row for row in curve(tmp_path) if 'train/loss' in row]
  assert trained == [row for row in curve(whole[0]) if 'train/loss' in row]


def test_a_workdir_of_another_config_is_refused(whole):
  workdir, _ = whole
  before = curve(workdir)
  with pytest.raises(ConfigError) as e:
    train(workdir, 'train.batch_size=8', 'model.blocks=2', 'report.users=3')
  assert f'{workdir} belongs to another config' in str(e.value)
  assert str(e.value).splitlines()[1:] == [
    '  model.blocks: saved 1, now 2',
    '  train.batch_size: saved 16, now 8',
  ]
  assert curve(workdir) == before


def write_log(path, seed):
  """120 events of twelve users: other seeds, other order."""
  rng = np.random.default_rng(seed)
  items = np.concatenate([rng.permutation(10) for _ in range(12)])
  lines = [f'{n // 10},{item},{n}' for n, item in enumerate(items)]
  path.write_text('\n'.join(['user,item,time', *lines]) + '\n')


CSV = ('data.name=csv', 'split.name=leave_last_out', 'report.users=0')


def test_other_data_are_refused(tmp_path, monkeypatch):
  """Also those with the same users, items and number of events."""
  log, workdir = tmp_path / 'log.csv', tmp_path / 'run'
  overrides = (*CSV, f'data.path={log}')
  write_log(log, 0)
  with monkeypatch.context() as m:
    at_update(m, terminate, 1)  # a checkpoint, and no evaluation
    assert train(workdir, *overrides) is None
  grown = log.read_text() + '99,3,1\n99,4,2\n99,5,3\n99,6,4\n'
  write_log(log, 1)
  with pytest.raises(ConfigError, match='was trained on other data'):
    train(workdir, *overrides)
  log.write_text(grown)
  with pytest.raises(ConfigError, match='was trained on other data'):
    train(workdir, *overrides)


def test_weights_of_another_model_are_not_trained_on(tmp_path, monkeypatch):
  """Of the same shapes, in a workdir whose config.json somebody has edited."""
  with monkeypatch.context() as m:
    at_update(m, terminate, 1)
    assert train(tmp_path) is None
  config = tmp_path / 'config.json'
  text = config.read_text()
  assert text.count('"alpha": null') == 1
  config.write_text(text.replace('"alpha": null', '"alpha": 2.0'))
  (tmp_path / '.config.json.seal').unlink()
  with pytest.raises(
    ConfigError, match='weights of another model: model.alpha'
  ):
    train(tmp_path, 'model.alpha=2.0')


# --- Numbers that are not finite


def test_a_poisoned_table_stops_before_it_is_saved(tmp_path, monkeypatch):
  """The step and the measurement are named, though looked at later."""
  train(tmp_path, 'train.steps=8')
  restored = restoring.unflatten_state

  def poisoned(abstract, arrays):
    state = restored(abstract, arrays)
    tables = {n: t.at[3].set(jnp.nan) for n, t in state.tables.items()}
    return dataclasses.replace(state, tables=tables)

  monkeypatch.setattr(restoring, 'unflatten_state', poisoned)
  with pytest.raises(
    loop.NonFiniteError,
    match='^train/grad_norm is not finite at step 9. Nothing was saved since',
  ):
    train(tmp_path)
  assert saved_steps(tmp_path) == [4, 8]


def test_scores_that_are_not_finite_stop_an_evaluation(tmp_path, monkeypatch):
  """The loss looks at few items, an evaluation at all of them."""
  vectors = Retrieval.vectors
  monkeypatch.setattr(
    Retrieval,
    'vectors',
    lambda self, rows: vectors(self, rows).at[7].set(jnp.inf),
  )
  with pytest.raises(
    loop.NonFiniteError, match='valid split, step 4: the model'
  ):
    train(tmp_path)
  assert saved_steps(tmp_path) == []


# --- Early stopping and the best


def test_patience(scripted, tmp_path, said):
  scripted(0.1, 0.3, 0.2, 0.3, 0.25, 0.9)
  report = train(
    tmp_path, 'train.patience=3', 'train.steps=40', 'train.keep_checkpoints=9'
  )
  assert report['steps'] == 20  # three evaluations behind the second
  assert report['best_step'] == 8
  assert report['metrics']['valid']['ndcg@10'] == 0.3
  assert report['last_epoch']['valid']['ndcg@10'] == 0.25
  assert 'Stopped early: 3 evaluations without a better' in report['notes'][0]
  best = tiny_run.weights(tmp_path, 'best')
  then = tiny_run.weights(tmp_path, step=8)
  tiny_run.assert_same_bits(best, {name: then[name] for name in best})
  # Started again, it stays stopped.
  report = train(
    tmp_path, 'train.patience=3', 'train.steps=40', 'train.keep_checkpoints=9'
  )
  assert report['steps'] == 20 and report['best_step'] == 8
  assert 'continuing from the checkpoint of step 20' in said()


def test_a_run_without_validation_reports_its_last_evaluation(tmp_path):
  report = train(tmp_path, 'eval.splits=test', 'train.steps=6')
  assert report['metrics'] == report['last_epoch']
  assert (
    report['best_step'] == 6 and 'No validation split' in report['notes'][0]
  )
  assert saved_steps(tmp_path, 'best') == []


# --- Signals


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


def test_sigterm_between_two_checkpoints(whole, tmp_path, monkeypatch, said):
  handler = signal.getsignal(signal.SIGTERM)
  with monkeypatch.context() as m:
    at_update(m, terminate, 3, 5, 10)
    for step in (3, 5, 10):
      assert train(tmp_path) is None
      assert f'stopped by SIGTERM at step {step} of 20' in said()
      assert 'the same command continues' in said()
      assert saved_steps(tmp_path)[-1] == step
  assert train(tmp_path)['steps'] == 20
  assert signal.getsignal(signal.SIGTERM) == handler
  assert_same_run(tmp_path, whole[0])


def test_ctrl_c_in_a_notebook_saves_and_raises(whole, tmp_path, monkeypatch):
  handler = signal.getsignal(signal.SIGINT)
  with monkeypatch.context() as m:
    at_update(m, lambda: signal.raise_signal(signal.SIGINT), 5)
    with pytest.raises(KeyboardInterrupt, match='stopped by Ctrl-C at step 5'):
      train(tmp_path)
  assert saved_steps(tmp_path)[-1] == 5
  assert signal.getsignal(signal.SIGINT) == handler
  train(tmp_path)
  assert_same_run(tmp_path, whole[0])


def test_sigterm_during_an_evaluation(whole, tmp_path, monkeypatch):
  """Broken off, saved, and made again: with one line in metrics.jsonl."""
  every = 'train.checkpoint_every=100'
  run = RetrievalEvaluator.run

  def terminated(self, state):
    terminate()
    return run(self, state)

  with monkeypatch.context() as m:
    m.setattr(RetrievalEvaluator, 'run', terminated)
    assert train(tmp_path, every) is None
  assert saved_steps(tmp_path) == [4]
  train(tmp_path, every)
  assert_same_run(tmp_path, whole[0])


def test_sigterm_before_the_first_step(whole, tmp_path, monkeypatch):
  with monkeypatch.context() as m:
    points = interruption.SafePoints
    m.setattr(points, '__enter__', lambda self: self.request(signal.SIGTERM))
    assert train(tmp_path) is None
  assert saved_steps(tmp_path) == []
  train(tmp_path)
  assert_same_run(tmp_path, whole[0])


def test_a_run_cut_short_where_it_stands_is_evaluated(tmp_path, monkeypatch):
  with monkeypatch.context() as m:
    at_update(m, terminate, 6)
    train(tmp_path)
  report = train(tmp_path, 'train.steps=6')
  assert report['steps'] == 6
  assert steps_of(tmp_path, 'valid/ndcg@10') == [4, 6]


# --- Disks


def test_a_save_that_fails_loses_nothing(tmp_path, whole):
  """The table no longer fits; afterwards the run goes on where it was."""
  train(tmp_path, 'train.steps=4')
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
  try:
    with pytest.raises(CheckpointError, match='step 8 .*(?s:.*)File too large'):
      train(tmp_path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  with CheckpointManager(tmp_path / 'checkpoints') as checkpoints:
    assert checkpoints.latest() == 4
  train(tmp_path)
  assert_same_run(tmp_path, whole[0])


# --- Damage


def damage(workdir, step):
  files = (workdir / 'checkpoints' / str(step)).rglob('*')
  largest = max(
    (p for p in files if p.is_file()), key=lambda p: p.stat().st_size
  )
  data = bytearray(largest.read_bytes())
  data[len(data) // 2] ^= 1
  largest.write_bytes(data)


def test_a_damaged_newest_checkpoint_is_skipped_aloud(whole, tmp_path, said):
  train(tmp_path, 'train.steps=12')
  damage(tmp_path, 12)
  train(tmp_path)
  assert said().count('checkpoint of step 12 skipped, damaged: ') == 1
  assert 'continuing from the checkpoint of step 8' in said()
  assert_same_run(tmp_path, whole[0])


def test_nothing_but_damaged_checkpoints_is_refused(tmp_path):
  train(tmp_path, 'train.steps=8')
  before = curve(tmp_path)
  damage(tmp_path, 4)
  damage(tmp_path, 8)
  with pytest.raises(CheckpointError, match='is whole:(?s:.*)move this dir'):
    train(tmp_path)
  assert curve(tmp_path) == before


# --- Profile, row optimizers, streams


def test_a_profile_of_a_window(tmp_path, said):
  train(tmp_path, 'train.steps=6', 'train.profile_steps=2,4')
  traces = list((tmp_path / 'profile').rglob('*.xplane.pb'))
  assert len(traces) == 1 and traces[0].stat().st_size > 1000
  assert f'profile written to {tmp_path / "profile"}' in said()


@pytest.mark.slow  # saving_test.py stops and continues such runs
def test_a_row_optimizer_trains_and_resumes(tmp_path, monkeypatch):
  overrides = ('optimizer.rows.name=row_adagrad', 'loss.sampler=shared')
  with monkeypatch.context() as m:
    at_update(m, terminate, 6)
    assert train(tmp_path / 'stopped', *overrides) is None
  train(tmp_path / 'stopped', *overrides)
  train(tmp_path / 'whole', *overrides)
  assert curve(tmp_path / 'stopped') == curve(tmp_path / 'whole')
  losses = [
    r['train/loss'] for r in curve(tmp_path / 'whole') if 'train/loss' in r
  ]
  assert losses[-1] < losses[0]


def test_a_stream_that_is_stopped_or_runs_dry(tmp_path, monkeypatch):
  """Nothing is logged, evaluated or saved twice at the step where it ends."""
  parts = tmp_path / 'parts'
  parts.mkdir()
  write_log(tmp_path / 'log.csv', 0)
  for n in range(2):
    write_log(parts / f'{n}.csv', n + 1)
  overrides = (
    *CSV,
    f'data.path={tmp_path / "log.csv"}',
    f'data.stream.directory={parts}',
    'data.stream.poll_s=0.05',
    'data.stream.idle_s=0.5',
    'train.batch_size=4',
    'train.steps=50',
  )
  train(tmp_path / 'whole', *overrides)
  assert steps_of(tmp_path / 'whole', 'train/loss') == [2, 4, 6]
  assert steps_of(tmp_path / 'whole', 'valid/mrr') == [4, 6]
  assert saved_steps(tmp_path / 'whole') == [4, 6]
  with monkeypatch.context() as m:
    at_update(m, terminate, 4)
    assert train(tmp_path / 'stopped', *overrides) is None
  train(tmp_path / 'stopped', *overrides)
  assert curve(tmp_path / 'stopped') == curve(tmp_path / 'whole')


def test_host_stores_are_refused_before_the_first_step(whole):
  class OnHost:
    on_host = True

  extensions = Extensions(stores={'items': OnHost()})
  config = tiny_run.config()
  with pytest.raises(ConfigError, match='items work on the host.*eval.splits'):
    settings_checks.check_settings(config, extensions)
  config = tiny_run.config('eval.splits=()', 'train.patience=0')
  settings_checks.check_settings(config, extensions)


def test_the_time_of_the_last_save_counts(tmp_path, monkeypatch):
  begin, end = [], []
  keep_in, save = loop.PhaseClock.keep_in, loop.Saver.save

  def starting(clock, host):
    begin.append(time.monotonic())
    keep_in(clock, host)

  def slow(*args, **kwargs):
    found = save(*args, **kwargs)
    time.sleep(0.2)
    end.append(time.monotonic())
    return found

  monkeypatch.setattr(loop.PhaseClock, 'keep_in', starting)
  monkeypatch.setattr(loop.Saver, 'save', slow)
  report = train(tmp_path, 'train.steps=2')
  assert report['wall_s'] >= end[-1] - begin[0] - 0.01
