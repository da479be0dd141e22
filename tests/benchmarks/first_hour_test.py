"""What the replayed first hour compares with."""

import csv

import numpy as np
import sklearn.metrics

from benchmarks import first_hour_logs as logs


def test_the_share_of_ordered_pairs_is_the_auc():
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 2, 500)
  scores = rng.integers(0, 40, 500) / 40  # with ties
  wanted = sklearn.metrics.roc_auc_score(labels, scores)
  assert abs(logs.count_auc(labels, scores) - wanted) < 1e-12


def test_six_shapes_hold_one_log(tmp_path):
  shapes = logs.write_shapes(tmp_path)
  assert len(shapes) == 6
  wanted = [tuple(map(str, row)) for row in logs.make_purchases()]
  parts = [tmp_path / 'plain.csv', *sorted((tmp_path / 'days').glob('*.csv'))]
  rows = [[*csv.reader(path.read_text().splitlines())][1:] for path in parts]
  assert [*map(tuple, rows[0])] == wanted
  assert [tuple(row) for part in rows[1:] for row in part] == wanted


def test_recommendations_are_right_among_the_first_three(tmp_path):
  follows = logs.write_new_customers(tmp_path / 'new.csv')
  path = tmp_path / 'next.csv'
  rows = [
    (user, rank, item)
    for user, right in follows.items()
    for rank, item in enumerate(['x', 'y', right], 1)
  ]
  logs.write_table(path, ['user', 'rank', 'item'], rows)
  assert logs.count_right(path, follows) == 3
  late = [(user, rank + 1, item) for user, rank, item in rows]
  logs.write_table(path, ['user', 'rank', 'item'], late)
  assert logs.count_right(path, follows) == 0
