"""Tests of the comparison with an earlier commit."""

import json
import shutil

import pytest

from benchmarks import runs
from benchmarks import same_curves as bench

LINES = [
  {'step': 1, 'train/loss': 0.5, 'perf/steps_per_s': 3.0},
  {'step': 2, 'train/loss': 0.25, 'test/auc': 0.75},
]
PREDICTIONS = 'row,label\n1,0.5\n2,0.125\n'


@pytest.fixture
def pair(tmp_path):
  """Writes two workdirs: `pair(lines, predictions)` of the later commit."""

  def write(lines=LINES, predictions=PREDICTIONS):
    found = {'base': (LINES, PREDICTIONS), 'this': (lines, predictions)}
    for name, (rows, text) in found.items():
      workdir = tmp_path / name
      workdir.mkdir()
      (workdir / 'metrics.jsonl').write_text(
        ''.join(json.dumps(row) + '\n' for row in rows)
      )
      (workdir / 'predictions.csv').write_text(text)
    return tmp_path / 'base', tmp_path / 'this'

  return write


def test_timings_and_new_measurements_may_differ(pair):
  new = [{**LINES[0], 'perf/steps_per_s': 4.0, 'train/new': 1.0}, LINES[1]]
  found = bench.compare(*pair(new))
  assert found == {
    'same': 'equal',
    'values': 3,
    'added': ['train/new'],
    'predictions': 2,
  }


def test_the_first_number_that_differs_is_told(pair):
  new = [LINES[0], {**LINES[1], 'train/loss': 0.5, 'test/auc': 0.8}]
  found = bench.compare(*pair(new, PREDICTIONS.replace('0.125', '0.25')))
  assert found['same'] == 'curves differ'
  assert found['first'] == 'step 2: train/loss'
  assert (found['was'], found['now']) == (0.25, 0.5)
  assert found['relative'] == 0.5 and found['values_differ'] == 2
  assert found['predictions_differ'] == 1
  assert found['predictions_relative'] == 0.5


def test_predictions_alone_may_differ(pair):
  found = bench.compare(*pair(predictions=PREDICTIONS + '3,0.5\n'))
  assert found['same'] == 'predictions differ'
  assert found['predictions_differ'] == 1


def test_a_measurement_that_is_gone_is_a_difference(pair):
  found = bench.compare(*pair([{'step': 1}, LINES[1]]))
  assert found['first'] == 'step 1: train/loss' and found['now'] is None
  assert 'relative' not in found


def test_a_case_runs_with_both_checkouts(tmp_path, rows, monkeypatch):
  calls = []

  def start(checkout, config, workdir, overrides, *, mode='train'):
    calls.append((checkout, config, mode, tuple(overrides)))
    workdir.mkdir(parents=True, exist_ok=True)
    if mode == 'predict':
      (workdir / 'predictions.csv').write_text(PREDICTIONS)
      return
    report = {'steps': 2, 'core_s': 1.0, 'devices': '1 x cpu'}
    (workdir / 'report.json').write_text(json.dumps(report))
    (workdir / 'metrics.jsonl').write_text(json.dumps(LINES[0]) + '\n')

  base = tmp_path / 'checkout'
  shutil.copytree(runs.ROOT / 'configs', base / 'genrec_jax')
  monkeypatch.setattr(bench.runs, 'start', start)
  monkeypatch.setattr(bench, 'commit', lambda checkout: checkout.name[:3])
  monkeypatch.setenv('GENREC_DATA', str(tmp_path / 'data'))
  options = ['--base', str(base), '--runs', str(tmp_path / 'runs')]
  options += ['--cases', 'hstu/rows', '--results', str(tmp_path)]
  bench.main(options)
  (row,) = rows('same_curves').values()
  assert row['same'] == 'equal' and row['steps'] == 2
  assert '--config.data.path=$GENREC_DATA/ml-1m' in row['options']
  assert str(tmp_path) not in json.dumps(row)
  assert [(c[0], c[2]) for c in calls] == [
    (base, 'train'), (base, 'predict'),
    (runs.ROOT, 'train'), (runs.ROOT, 'predict'),
  ]  # fmt: skip
  assert calls[0][1] == 'configs/hstu_ml1m.py'
  assert calls[0][3][0] == f'data.path={tmp_path / "data" / "ml-1m"}'
  assert 'data.table_update=row_adagrad' in calls[0][3]
  assert calls[1][3][-1] == 'predict.checkpoint=latest'
  bench.main(options)
  assert len(calls) == 4  # what has ended is not run again


@pytest.mark.slow
def test_smoke_trains_this_checkout_twice(tmp_path, rows):
  bench.main([
    *('--smoke', '--base', str(runs.ROOT), '--runs', str(tmp_path / 'runs')),
    *('--results', str(tmp_path)),
  ])  # fmt: skip
  (row,) = rows('same_curves').values()
  assert row['same'] == 'equal'
  assert row['steps'] == 16 and row['predictions'] == 300
  assert row['values'] > 2 * 16


def test_a_directory_that_is_no_checkout_is_refused(tmp_path):
  with pytest.raises(SystemExit, match='genrec_jax is not in it'):
    bench.main(['--base', str(tmp_path), '--runs', str(tmp_path)])
