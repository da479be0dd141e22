"""The benchmark of the ranking step, and the table of Frappe."""

import argparse
import json

import pytest

from benchmarks import frappe, ranking_step


def test_smoke_measures_the_step_and_its_parts(tmp_path, rows):
  ranking_step.main(['--smoke', '--models', 'dnn', '--results', str(tmp_path)])
  found = rows('ranking_step')
  assert list(found) == [
    'dnn',
    'dnn/step',
    'dnn/model',
    'dnn/matmuls',
    'dnn/input',
  ]
  # 6 x (100 x 400 + 400 x 400 x 2 + 400) multiply-accumulates an example
  assert found['dnn']['mflop'] == pytest.approx(2.1624)
  for row in found.values():
    assert row['core_s'] > 0 and row['examples_per_s'] > 0


def test_the_peer_stands_beside_ours_with_as_many_threads(monkeypatch):
  monkeypatch.setenv('NPROC', '1')
  ours = [
    {'case': 'dlrm', 'part': part, 'core_s': c, 'wall_s': c, 'parameters': 5}
    for part, c in (('loop', 0.3), ('step', 0.2))
  ]
  peers = [
    {'model': 'dlrm', 'threads': n, 'core_s': c, 'wall_s': 0.1, 'parameters': 7}
    for n, c in ((1, 0.4), (2, 0.1))
  ]
  loop, step, peer = ranking_step.beside(ours, peers)
  assert step['peer_x'] == loop['peer_x'] == pytest.approx(2)
  assert step['peer_wall_x'] == pytest.approx(0.5)
  assert loop['peer_parameters'] == 7
  assert peer['case'] == 'dlrm/peer' and peer['threads'] == 1


def finished(path, seed, auc):
  path.mkdir(parents=True)
  config = {'data': {'name': 'frappe'}, 'model': {'name': 'fm'}}
  report = {
    'config': config,
    'seed': seed,
    'metrics': {
      'valid': {'auc': auc, 'logloss': 0.2},
      'test': {'auc': auc - 0.01, 'logloss': 0.3},
    },
    'steps': 150,
    'best_step': 100,
    'core_s': 10.0,
    'train_core_s': 9.0,
  }
  (path / 'report.json').write_text(json.dumps(report))
  lines = [{'step': s, 'test/auc': 0.5} for s in (50, 100, 150)]
  (path / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))


def test_frappe_has_a_row_for_each_run_and_their_mean(tmp_path):
  finished(tmp_path / 'frappe_fm_seed0', 0, 0.97)
  finished(tmp_path / 'frappe_fm_seed2', 2, 0.98)
  args = argparse.Namespace(
    data='x',
    runs=tmp_path,
    seeds=[0, 1, 2],
    smoke=True,
    finished=True,
    train_file=None,
  )
  *found, mean = frappe.measure('fm', args)
  assert [row['case'] for row in found] == ['fm/seed0', 'fm/seed2']
  assert [row['epochs'] for row in found] == [2.0, 2.0]
  assert mean['auc'] == pytest.approx(0.965)
  assert mean['auc_std'] == pytest.approx(0.0070710678)
  assert mean['difference'] == pytest.approx(0.965 - 0.9671)
  assert mean['seeds'] == 2
