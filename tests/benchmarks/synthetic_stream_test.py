"""Tests of the benchmark of the paper's ordering."""

import json

import pytest

from benchmarks import synthetic_stream

CONFIG = 'configs/synthetic_stream.py'
TINY = {
  'records': 40,
  'length': 8,
  'items': 60,
  'categories': 4,
  'per_record': 2,
  'seed': 0,
}


def _report(level):
  metrics = {'hr@10': level, 'hr@50': 3 * level, 'ndcg@10': level / 2}
  popular = dict.fromkeys(metrics, 0.01)
  return {
    'config': {'data': {'synthetic': TINY}},
    'metrics': {'test': metrics},
    'baselines': {'popularity': {'test': popular}},
    'core_s': 1.0,
  }


def test_the_order_is_counted_seed_by_seed():
  levels = {'hstu': (0.3, 0.32), 'softmax': (0.2, 0.33), 'sasrec': (0.1, 0.1)}
  reports = {
    (model, seed): _report(value)
    for model, values in levels.items()
    for seed, value in enumerate(values)
  }
  rows = {row['case']: row for row in synthetic_stream.table(reports)}
  assert len(rows) == 3 * 2 + 2 * 2 + 5
  assert rows['hstu/mean']['hr@10'] == pytest.approx(0.31)
  assert rows['hstu/mean']['hr@10_std'] == pytest.approx(0.02 / 2**0.5)
  above = {n: rows[f'{n}/mean'].get('above_next') for n in (*levels,)}
  assert above == {'hstu': '1 of 2', 'softmax': '2 of 2', 'sasrec': '2 of 2'}
  assert 'above_next' not in rows['popularity/mean']
  assert 'above_next' not in rows['ceiling/mean']
  assert rows['softmax/mean']['paper_hr@10'] == 0.0617


@pytest.mark.slow
def test_smoke_runs_in_a_process_and_is_not_repeated(tmp_path, rows):
  command = [
    *('--smoke', '--workdir', str(tmp_path / 'runs'), '--models', 'softmax'),
    *('--seeds', '1', '--results', str(tmp_path)),
  ]
  synthetic_stream.main(command)
  path = tmp_path / 'runs' / 'softmax_seed1' / 'report.json'
  report = json.loads(path.read_text())
  assert report['config']['model']['attention'] == 'softmax'
  assert report['seed'] == report['config']['data']['synthetic']['seed'] == 1
  found = rows('synthetic_stream')
  assert set(found) == {
    'softmax/seed1',
    'popularity/seed1',
    'softmax/mean',
    'popularity/mean',
    'ceiling/seed1',
    'ceiling/mean',
  }
  before = path.stat().st_mtime_ns
  synthetic_stream.main(command)
  assert path.stat().st_mtime_ns == before


def test_a_workdir_of_another_seed_or_config_is_refused(finished, tmp_path):
  finished(f'{CONFIG}:sasrec', 'sasrec_seed0', seed=1)
  with pytest.raises(ValueError, match='another seed'):
    synthetic_stream.run(tmp_path, 'sasrec', 0, False, [])
  finished(f'{CONFIG}:sasrec', 'sasrec_seed2', seed=2,
           data__synthetic__seed=2, model__blocks=3)  # fmt: skip
  with pytest.raises(ValueError, match='model.blocks: saved 3'):
    synthetic_stream.run(tmp_path, 'sasrec', 2, False, [])


def test_the_ceiling_of_a_single_category_is_chance():
  found = synthetic_stream.ceiling({**TINY, 'categories': 1}, 0.5)
  open_items = 60 * (0.4 + 0.6 * 0.75)  # of the middle test record
  assert found['hr@10'] == pytest.approx(10 / open_items, rel=0.05)
  assert found['hr@50'] <= 1.0
