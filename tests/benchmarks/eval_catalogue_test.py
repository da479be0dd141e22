"""Tests of the evaluation benchmark."""

import pytest

from benchmarks import eval_catalogue


@pytest.mark.slow
def test_smoke_measures_evaluation_beside_an_epoch(tmp_path, rows):
  eval_catalogue.main(
    [
      *('--smoke', '--models', 'sasrec', '--filters', 'history'),
      *('--results', str(tmp_path)),
    ]
  )
  (row,) = rows('eval_catalogue').values()
  assert row['case'] == 'sasrec/history'
  assert (row['users'], row['items'], row['epoch_steps']) == (48, 60, 6)
  assert row['users_x_items_bytes'] == 48 * 60 * 4
  for key in ('core_s', 'encode_core_s', 'rank_core_s', 'epoch_core_s'):
    assert row[key] > 0
  assert row['rank_bytes'] > 0
  assert 0 < row['tokens'] <= 48 * 16
