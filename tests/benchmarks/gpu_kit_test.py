"""Tests of `benchmarks/gpu`: its runner, its rows, and a rehearsal."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.gpu import measure, rows, training


def run(module: str, *words: str) -> str:
  done = subprocess.run(
    [sys.executable, '-m', module, *words], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def read(path) -> dict[str, dict]:
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  return {row['case']: row for row in lines}


@pytest.mark.parametrize('workers', ['1', '3'])
def test_a_case_that_fails_dies_or_hangs_costs_its_own_row(tmp_path, workers):
  module = 'tests.benchmarks.gpu_kit_cases'
  run(module, '--out', str(tmp_path), '--workers', workers)
  path = tmp_path / 'gpu_kit_cases.jsonl'
  found = read(path)
  assert found['good']['ms'] == found['good again']['ms'] == 1.0
  assert found['raises']['error'] == 'ValueError: no such kernel'
  assert 'status 7' in found['dies']['error']
  assert 'no answer in 2 s' in found['hangs']['error']
  assert len(found) == 5
  # Only what has no good row is done again.
  words = ('--out', str(tmp_path), '--done', str(path), '--only', 'good|raises')
  assert ': 1 cases' in run(module, *words)


def test_a_rehearsal_and_its_results(tmp_path):
  words = ('--out', str(tmp_path), '--rehearse', '--workers', '1')
  run('benchmarks.gpu.smoke', *words, '--only', 'machine|float32, none bias')
  run('benchmarks.gpu.embedding', *words, '--only', 'copy|xla: sgd.*64, zipf')
  found = read(tmp_path / 'smoke.jsonl')
  assert all(row['ok'] for row in found.values()) and len(found) == 2
  results = tmp_path / 'results'
  for commit in ('aaa', 'bbb'):
    words = [str(tmp_path), '--commit', commit, '--machine', 'h100']
    rows.main([*words, '--results', str(results), '--date', '2026-01-01'])
  document = json.loads((results / 'h100/gpu_embedding.json').read_text())
  assert [row['commit'] for row in document['rows']] == ['aaa'] * 2 + [
    'bbb'
  ] * 2
  assert 'copy_share' in document['rows'][1]


def test_the_best_of_each_kernel_is_marked(tmp_path):
  path = tmp_path / 'h100/gpu_tune.json'
  case = dict(bias='both', width=64, what='kernel forward')
  tried = [
    dict(case='a', sizes=[64, 64, 4, 2], ms=2.0, tflops=0.0, **case),
    dict(case='b', sizes=[32, 64, 4, 2], ms=1.0, tflops=9.0, **case),
    dict(case='c', sizes=[16, 64, 4, 2], error='no', **case),
  ]
  assert '1 of them failed' in rows.write(
    path, 'tune', tried, 'aaa', '2026-1-1'
  )
  kept = json.loads(path.read_text())['rows']
  assert [row.get('best') for row in kept] == [False, True, None]
  assert 'tflops' not in kept[0]


def test_batches_and_flops_of_a_case():
  sizes = measure.lengths(1024, 0.5)
  assert sizes[0] == sizes.max() == 1024 and len(sizes) == 256
  assert sizes.mean() == pytest.approx(512, rel=0.1)
  # Two products of a full causal half: 2 * 2 * n * n / 2 * d.
  assert measure.attention_flops([10], 1, 8, 2) == 2 * 2 * 10 * 10 / 2 * 8


def test_a_training_is_rehearsed_and_its_flops_are_those_of_the_program(
  tmp_path,
):
  words = (
    '--out',
    str(tmp_path),
    '--rehearse',
    '--only',
    '8 heads, both.*kept',
  )
  run('benchmarks.gpu.training', *words)
  (row,) = read(tmp_path / 'training.jsonl').values()
  assert row['tokens_per_s'] > 0 and np.isfinite(row['loss'])
  case = dict(training.TINY, heads=1)
  # By hand: two layers of 5 * 32 * 32 weights, 3 histories, 129 scores.
  lengths = np.array([3, 5, 2])
  forward = 2 * 2 * 10 * 5 * 32 * 32 + 2 * 10 * 129 * 32
  forward += 2 * 2 * 2 * (9 + 25 + 4) / 2 * 32
  assert training.count_flops(case, lengths) == 3 * forward
