"""The generated file of Taobao's layout, and what is measured of it."""

import collections

import numpy as np

from benchmarks import taobao_prepare
from genrec_jax.data.ranking import taobao_sort


def test_the_file_has_the_layout_in_random_order(tmp_path, monkeypatch):
  path = tmp_path / 'log.csv'
  taobao_prepare.write_log(path, 20_000)
  lines = [line.split(',') for line in path.read_text().splitlines()]
  assert len(lines) == 20_000 and {len(line) for line in lines} == {5}
  user, item, category, word, time = zip(*lines, strict=True)
  assert set(word) == set(taobao_sort.BEHAVIOURS)
  assert collections.Counter(word).most_common(1)[0][0] == 'pv'
  assert len(set(user)) == 198
  per_item = collections.defaultdict(set)
  for one, own in zip(item, category, strict=True):
    per_item[one].add(own)
  assert {len(own) for own in per_item.values()} == {1}
  for column in (user, time):
    rank = np.argsort(np.argsort(np.array(column, np.int64), kind='stable'))
    assert abs(np.corrcoef(rank, np.arange(20_000))[0, 1]) < 0.05
  assert len({*zip(user, time, strict=True)}) > 19_000
  taobao_prepare.write_log(tmp_path / 'again.csv', 20_000)
  assert (tmp_path / 'again.csv').read_text() == path.read_text()
  assert sorted(p.name for p in tmp_path.iterdir()) == ['again.csv', 'log.csv']


def test_a_row_of_the_results(tmp_path):
  path = tmp_path / 'log.csv'
  taobao_prepare.write_log(path, 5_000)
  row = taobao_prepare.measure(str(path), 0)
  assert row['runs'] == 313 and row['users'] == 49
  assert row['examples'] > 100 and row['peak_mb'] >= row['idle_mb'] > 0
  # The sorted events are left of the runs: 21 bytes each.
  assert row['scratch_mb'] == 5_000 * 21 / 2**20
  assert set(row) | {'case', 'rows'} == set(taobao_prepare.COLUMNS)
  assert [p.name for p in tmp_path.iterdir()] == ['log.csv']
