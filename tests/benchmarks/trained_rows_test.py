"""Tests of the benchmark of tables trained in few bits."""

import pytest

from benchmarks import trained_rows


def test_a_run_is_compared_with_its_own_seed(tmp_path, rows, monkeypatch):
  """Two processes, one for each seed, write one file."""
  aucs = {1: 0.9, 2: 0.8}

  def measure(args, workdir, name, seed):
    auc = aucs[seed] - (0.1 if name != 'float32' else 0)
    found = {'auc': auc, 'logloss': 0.1, 'core_s': 1.0}
    return found | ({} if name == 'float32' else {'later_auc': auc - seed})

  monkeypatch.setattr(trained_rows, 'measure', measure)
  monkeypatch.setattr(trained_rows, 'train', lambda *_: None)
  for seed in '12':
    trained_rows.main([
      '--runs', str(tmp_path), '--data', '.', '--results', str(tmp_path),
      '--seeds', seed, '--formats', 'tbe_int4',
    ])  # fmt: skip
  found = rows('trained_rows')
  assert 'tbe_int2, by chance' not in found
  row = found['tbe_int4, by chance']
  assert row['seeds'] == 2 and row['minus'] == pytest.approx(-0.1)
  assert row['minus_se'] == pytest.approx(0)
  assert row['minus_packed'] == pytest.approx(1.5)
  assert row['minus_packed_se'] == pytest.approx(0.5)
