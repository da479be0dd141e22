"""Costs to an AUC, of made-up runs."""

import json

import pytest

from benchmarks import frappe_cost


def run(directory, seed, aucs, train_core_s):
  workdir = directory / f'frappe_dlrm_seed{seed}'
  workdir.mkdir(parents=True)
  (workdir / 'report.json').write_text(
    json.dumps({'train_core_s': train_core_s})
  )
  lines = [
    {'step': 50 * i, 'valid/auc': auc, 'test/auc': auc}
    for i, auc in enumerate(aucs, 1)
  ]
  (workdir / 'metrics.jsonl').write_text(
    '\n'.join(json.dumps(line) for line in lines)
  )


def test_every_run_reaches_the_least_final_auc(tmp_path, rows):
  run(tmp_path / 'runs', 0, [0.90, 0.97, 0.98], 30)
  run(tmp_path / 'runs', 1, [0.96, 0.98, 0.979], 30)
  peer = {
    'model': 'dlrm',
    'seed': 0,
    'curve': [[1, 0.9, 0.9, 20], [2, 0.95, 0.95, 40], [3, 0.97, 0.97, 60]],
    'versions': {'other': '1.2'},
  }
  (tmp_path / 'peer.json').write_text(json.dumps([peer]))
  frappe_cost.main(
    [
      *('--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)),
      *('--peer', str(tmp_path / 'peer.json')),
    ]
  )
  found = rows('frappe_cost')
  ours, theirs = found['dlrm/genrec_jax'], found['dlrm/peer']
  assert ours['target_auc'] == theirs['target_auc'] == 0.97
  assert ours['epochs'] == 2 and ours['core_s'] == pytest.approx(20)
  assert theirs['core_s'] == 60 and ours['peer_x'] == pytest.approx(3)
  assert theirs['library'] == 'other 1.2' and ours['auc'] == 0.98


def test_nothing_to_compare_is_said(tmp_path):
  (tmp_path / 'peer.json').write_text('[]')
  with pytest.raises(SystemExit, match='no model has ended runs'):
    frappe_cost.main(
      ['--runs', str(tmp_path), '--peer', str(tmp_path / 'peer.json')]
    )
