"""The smoke run of the benchmark finds the model equal to its oracle."""

import numpy as np
import pytest

from benchmarks import gr_parity


@pytest.mark.slow  # tests/models/stu_test.py asks the same oracle
def test_smoke(tmp_path, rows):
  case = ['--cases', 'interleaved']
  gr_parity.main(['--smoke', '--results', str(tmp_path), *case])
  row = rows('gr_parity')['interleaved']
  assert row['tokens'] > 150
  for column in ('block', 'encoder', 'scores', 'loss', 'gradients'):
    assert 0 < row[column] < 1e-5, column
  assert row['swap_exact'] is True and row['company_exact'] is True
  assert row['training_layout'] < 1e-5


def test_a_difference_is_a_share_of_the_largest_number():
  assert gr_parity.differ([1.0, 8.0], np.array([1.5, -10.0])) == 1.8
