"""The scaling-law harness: its fit, its intervals, its picture, its runs."""

import dataclasses
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from benchmarks import scaling_law, scaling_law_runs
from genrec_jax.data.ranking import clicks

SVG = '{http://www.w3.org/2000/svg}'


def test_the_fit_recovers_a_planted_law():
  x = np.geomspace(5e-5, 0.1, 6)
  for b, c, floor in ((99.56, -0.00071, -100.0), (0.08, -0.3, 0.0)):
    found = scaling_law.fit(x, floor + b * x**c, floor)
    assert found == pytest.approx((b, c), rel=1e-6)


def test_the_papers_points_give_its_exponent_with_a_minus():
  # It prints y = -100 + 99.56 x^0.00071, which rises.
  row = scaling_law.published('wukong')
  assert row['exponent'] == pytest.approx(-0.00071, abs=1e-5)
  assert row['factor'] == pytest.approx(99.56, abs=0.05)


def test_the_exponents_of_ladders_with_noise_are_within_their_interval():
  rng = np.random.default_rng(0)
  x = np.geomspace(0.05, 10, 6)
  found = {}
  for size, gflop in enumerate(x / 1000):
    found['dnn', size] = [
      {
        'mflop_total': x[size],
        'excess': 0.1 * gflop**-0.25 * (1 + 0.01 * noise),
        'relative': -100 + 99.5 * gflop**-0.004 * (1 + 1e-4 * noise),
      }
      for noise in rng.normal(size=5)
    ]
  row = scaling_law.fit_row('dnn', found, bayes=0.3)
  for key, planted in (('exponent', -0.004), ('floor_exponent', -0.25)):
    assert row[f'{key}_t95'] < 0.1 * abs(planted)
    assert abs(row[key] - planted) < 2 * row[f'{key}_t95']
  assert row['gain'] > row['gain_t95'] > 0
  assert row['range_x'] == pytest.approx(200)


def test_an_interval_is_students():
  found = scaling_law.interval('auc', [0.1, 0.2, 0.3])
  assert found['auc'] == pytest.approx(0.2)
  # t(0.975, 2) = 4.3027, over sqrt(3) of the deviation 0.1
  assert found['auc_t95'] == pytest.approx(0.24841, rel=1e-4)
  assert scaling_law.interval('auc', [0.1]) == {'auc': pytest.approx(0.1)}


def test_a_rate_is_that_of_the_nearest_size_that_was_tuned():
  rates = {0: 0.008, 2: 0.004, 4: 0.002}
  found = [scaling_law.nearest(rates, size) for size in range(6)]
  assert found == [0.008, 0.008, 0.004, 0.004, 0.002, 0.002]


def test_the_truth_has_no_excess():
  log = dataclasses.replace(scaling_law_runs.LOG, rows=512)
  bench = scaling_law_runs.Bench(log, 512, None)
  p = clicks.true_probabilities(log, 1024, 1536)  # behind validation rows
  found = bench.measure(np.log(p) - np.log1p(-p), 'test')
  assert found['excess'] == pytest.approx(0.0, abs=1e-6)
  assert found['logloss'] == pytest.approx(bench.bayes('test'), abs=0.1)


def test_ladders_span_two_orders_of_magnitude():
  log = dataclasses.replace(scaling_law_runs.LOG, rows=1)
  bench = scaling_law_runs.Bench(log, 1, None)
  for family in scaling_law_runs.NAMES:
    costs = [bench.macs(family, size).total for size in range(6)]
    assert costs == sorted(costs) and costs[-1] > 100 * costs[0]


@pytest.mark.slow
def test_smoke_writes_runs_means_fits_and_the_picture(tmp_path, rows):
  scaling_law.main(['--smoke', '--results', str(tmp_path)])
  found = rows('scaling_law')
  kinds = [row['kind'] for row in found.values()]
  counts = {'mean': 2, 'fit': 4, 'run': 4, 'tuning': 2}
  assert {kind: kinds.count(kind) for kind in kinds} == counts
  mean = found['dlrm/1']
  each = [found[f'dlrm/1/rate{mean["rate"]:g}/seed{i}'] for i in (0, 1)]
  assert mean['excess'] == pytest.approx(
    np.mean([row['excess'] for row in each]), rel=1e-3
  )
  assert mean['excess_t95'] > 0
  # 28 products of 8 vectors, two layers of 64: (28 x 64 + 64 x 64 + 64)
  assert mean['mflop'] == pytest.approx(6e-6 * 5952, rel=1e-4)
  root = ET.fromstring(scaling_law.draw(list(found.values())))
  kinds = [p.get('class') for p in root.iter(f'{SVG}path')]
  assert kinds.count('band blue') == kinds.count('curve blue') == 2


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
  log = dataclasses.replace(scaling_law_runs.LOG, rows=512)
  first = scaling_law_runs.Bench(log, 64, tmp_path).run('dnn', 0, 0.01, 3)
  (path,) = tmp_path.glob('*.json')
  stored = json.loads(path.read_text())
  again = scaling_law_runs.Bench(log, 64, tmp_path)
  monkeypatch.setattr(again, '_program', None)  # nothing to train with
  assert again.run('dnn', 0, 0.01, 3) == first
  path.write_text(json.dumps(stored | {'settings': {}}))
  with pytest.raises(SystemExit, match='other settings'):
    scaling_law_runs.Bench(log, 64, tmp_path).run('dnn', 0, 0.01, 3)
