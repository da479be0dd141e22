"""Tests of the comparison of costs with an earlier commit."""

import json
import types

import pytest

from benchmarks import both_commits as bench


def turn(base: float, this: float) -> list[dict]:
  return [
    {'times': {'a': base}, 'peak_mb': 100.0},
    {'times': {'a': this, 'new': 1.0}, 'peak_mb': 90.0},
  ]


def test_ratios_are_of_runs_that_followed_each_other():
  turns = [turn(1.0, 1.1), turn(10.0, 9.0), turn(2.0, 2.0)]
  row, mean, process = bench.compare('step', turns)
  assert row['case'] == 'step/a'
  assert (row['base_ms'], row['this_ms']) == (1.0, 1.1)
  ratios = row['least_x'], row['time_x'], row['most_x']
  assert ratios == pytest.approx((0.9, 1.0, 1.1))
  assert mean['time_x'] == pytest.approx(1.0) and mean['cases'] == 1
  assert process['peak_x'] == pytest.approx(0.9)


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
  record = {'times': {'a': 1.0}, 'peak_mb': 2.0}
  (tmp_path / 'train_step.json').write_text(json.dumps(record))
  monkeypatch.setattr(bench.subprocess, 'Popen', None)
  args = types.SimpleNamespace(smoke=False)
  assert bench.measure('train_step', tmp_path, tmp_path, args) == record


def test_a_base_that_is_no_checkout(tmp_path):
  with pytest.raises(SystemExit, match='no checkout'):
    bench.main(['--base', str(tmp_path), '--runs', str(tmp_path)])


@pytest.mark.slow
def test_a_commit_beside_itself(tmp_path, capsys):
  argv = ['--base', str(bench.runs.ROOT), '--runs', str(tmp_path), '--smoke']
  bench.main(argv)
  assert 'jagged_embedding/process' in capsys.readouterr().out
