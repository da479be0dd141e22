"""The benchmark of what checkpoints of changed rows cost."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from benchmarks import check_n_run

SVG = '{http://www.w3.org/2000/svg}'


@pytest.mark.slow
def test_smoke_measures_every_policy_and_draws(tmp_path, rows, capsys):
  check_n_run.main(['--smoke', '--results', str(tmp_path)])
  found = rows('check_n_run')
  full = found['power law/full/32']
  assert full['written_x'] == full['kept_x'] == 1
  assert full['bases'] == 'all'
  assert full['fraction'] == pytest.approx(0.26, abs=0.03)
  # What changed, what was written: a base and three increments of a quarter.
  last = found['power law/consecutive/32']
  assert last['bases'] == '0'
  assert last['written_x'] == pytest.approx(4 / 1.78, rel=0.1)
  assert last['kept_x'] == pytest.approx(1 / 1.78, rel=0.1)
  assert last['kept_share_each'][0] == pytest.approx(1, abs=0.01)
  once = found['power law/one_shot/4']
  assert once['written_x'] > found['power law/full/4']['written_x'] > 4
  # One delta is kept, though a larger one each time.
  assert once['kept_x'] > found['power law/consecutive/4']['kept_x']
  assert np.all(np.diff(once['written_share_each'][1:]) > 0)
  assert 0.5 < once['error_steps'] < 3 and 'error_steps' not in last
  of = found['power law/intermittent/range']
  assert of['written_x_published'] == '6 – 17'
  root = ET.fromstring(check_n_run.draw(list(found.values())))
  kinds = [p.get('class') for p in root.iter(f'{SVG}path')]
  assert kinds.count('band muted') == 2 * 2  # and in the legend
  assert len(list(root.iter(f'{SVG}circle'))) == 8 * 4


def test_a_restore_that_differs_is_told(tmp_path):
  model = check_n_run.Model({'item': 40})
  run = check_n_run.Run('consecutive', 32, model, tmp_path)
  run.save(0, {})
  run.save(1, model.move({'item': (np.array([3, 7]), np.array([1, 2]))}))
  assert run.bases == [0] and run.kept[1] > run.kept[0]
  model.arrays['item'] = model.arrays['item'].at[5, 5].add(1e-6)
  with pytest.raises(AssertionError, match='consecutive at 32 bits: .* item'):
    run.check(model.quantised(32))


def test_only_touched_rows_move():
  model = check_n_run.Model({'item': 40})
  before = np.array(model.arrays['item'])
  marks = model.move({'item': (np.array([3, 7]), np.array([1, 2]))})
  moved = np.any(np.array(model.arrays['item']) != before, axis=1)
  assert np.flatnonzero(moved).tolist() == [3, 7]
  assert marks['item'].tolist()[:3] == [3, 7, 40]


def test_without_data_it_says_so(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('GENREC_DATA', str(tmp_path))
  with pytest.raises(SystemExit, match='set GENREC_DATA'):
    check_n_run.main(['--streams', '2021', 'ml-1m'])
  assert '2021 is left out' in capsys.readouterr().out


def test_the_last_curve_does_not_hide_the_others():
  row = {'kind': 'run', 'stream': 'x', 'bits': 4}
  row |= {'written_share_each': [1.0, 0.05], 'kept_share_each': [0.01, 0.02]}
  picture = check_n_run.draw([{**row, 'policy': name} for name in 'abc'])
  kinds = [p.get('class') for p in ET.fromstring(picture).iter(f'{SVG}path')]
  curves = [
    kind for kind in kinds if kind.partition(' ')[0] in ('curve', 'dashes')
  ]
  assert curves == 4 * ['curve blue', 'curve orange', 'dashes green']
