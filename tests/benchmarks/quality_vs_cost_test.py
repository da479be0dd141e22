"""Tests of the curve of quality against cost."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks import quality_vs_cost

SVG = '{http://www.w3.org/2000/svg}'


@pytest.fixture
def written(tmp_path, finished, rows):
  a = finished('configs/sasrec_ml1m.py', 'a')
  b = finished('configs/hstu_ml1m.py', 'b', level=0.35)
  quality_vs_cost.main(
    [
      *('--run', f'sasrec_ml1m={a}', '--run', f'hstu_ml1m:validated={b}'),
      *('--results', str(tmp_path)),
    ]
  )
  return rows('quality_vs_cost')


def test_evaluations_are_placed_at_their_share_of_the_cost(written):
  row = written['sasrec_ml1m/50']
  assert row['train_core_s'] == 50.0
  assert row['run'] == 'SASRec' and row['hr@10'] == pytest.approx(0.27)
  assert row['kind'] == 'shown' and row['of_run'] == 0.5
  assert 'kind' not in written['sasrec_ml1m/75']
  peer = written['RecBole SASRec, one epoch']
  assert peer['train_core_s'] == 14_000 and 'hr@10' not in peer


def test_the_picture_has_a_curve_for_each_run_and_metric(written):
  root = ET.fromstring(quality_vs_cost.draw(list(written.values())))
  drawn = [(p.get('class'), p.get('d')) for p in root.iter(f'{SVG}path')]
  paths = [kind for kind, _ in drawn]
  curves = [d for kind, d in drawn if kind.startswith('curve') and 'L' in d]
  assert len(curves) == 4 and paths.count('reference muted') == 2 * 2
  levels = ('reference blue', 'reference orange')
  assert sum(kind in levels for kind in paths) == 4
  texts = [t.text for t in root.iter(f'{SVG}text')]
  assert 'HSTU, validated' in texts and '10,000' in texts
  # Costlier is further right; better is higher up.
  x, y = zip(*(map(float, p.split()) for p in curves[0][1:].split('L')),
             strict=True)  # fmt: skip
  assert list(x) == sorted(x) and min(y) == y[2]


def test_a_run_that_has_not_ended_is_told(tmp_path):
  with pytest.raises(SystemExit, match='the run has not ended'):
    quality_vs_cost.main(['--smoke', '--run', f'hstu_ml1m={tmp_path}'])
