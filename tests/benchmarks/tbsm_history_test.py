"""Tests of what is told of the weights of events."""

import numpy as np
import pytest

from benchmarks import tbsm_history
from genrec_jax.data.ranking import interests, raw

LOG = interests.InterestLog()


def test_cells_of_all_kinds():
  numbers = raw.NumberColumn(np.array([4, 5, 6]))
  assert tbsm_history.list_cells(numbers) == [4, 5, 6]
  assert tbsm_history.list_cells(['a', 'b']) == ['a', 'b']
  lists = raw.ListColumn(numbers, np.array([2, 0, 1]))
  assert tbsm_history.list_cells(lists) == [[4, 5], [], [6]]


def test_weights_of_kinds_are_compared_with_those_of_others():
  day = LOG.period_s
  events = {
    'category': [1, 2],
    'history_category': [[1, 3, 1], [2]],
    # Two days, and half of one; of the second row a tenth of a second day.
    'history_age': [[2 * day, day, day // 2], [day // 10]],
  }
  weights = np.array([[0.9, 0.2, 0.3], [0.0, 0.0, 0.6]])
  found = tbsm_history.measure_head(weights, events, LOG)
  assert found['same_category_x'] == pytest.approx(0.6 / 0.2)
  assert found['whole_days_x'] == pytest.approx(0.9 / 0.45)
  if day == 86_400:
    assert found['last_day_x'] == pytest.approx(0.45 / 0.9)


def test_the_history_that_is_shown_is_full_and_clicked():
  events = {
    'category': [1, 1, 1],
    'label': [1, 0, 1],
    'history_category': [[1], [1, 1, 2], [1, 2, 1]],
    'history_age': [[1], [3, 2, 1], [86_400, 2, 1]],
  }
  shown = tbsm_history.show_history(np.full((3, 2, 3), 0.5), events)
  assert shown['categories'] == [1, 2, 1] and shown['days'][0] == 1
  heads = [
    {'kind': 'head', 'head': i, 'share': [0.7, 0.2, 0.1]} for i in range(2)
  ]
  drawn = tbsm_history.draw([*heads, shown])
  assert drawn.count('class="title"') == 2 and '>head 1<' in drawn
