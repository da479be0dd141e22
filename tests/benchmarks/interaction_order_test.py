"""The data of the interaction order benchmark, and a small run of it."""

import numpy as np
import pytest

from benchmarks import interaction_order


def test_any_fewer_fields_say_nothing():
  batch = interaction_order.population(4)
  labels, ids = batch.labels.values[:, 0], batch.ids.values
  assert len(np.unique(ids, axis=0)) == len(labels) == 16
  for left_out in range(4):
    rest = np.delete(ids, left_out, axis=1)
    for values in np.unique(rest, axis=0):
      assert labels[(rest == values[None]).all(axis=1)].mean() == 0.5


def test_one_layer_finds_pairs(tmp_path, rows):
  interaction_order.main(
    ['--smoke', '--norms', 'centring', '--results', str(tmp_path)]
  )
  found = rows('interaction_order')
  assert found['centring/order2/layers1']['auc'] == 1


@pytest.mark.parametrize('order', [1, 2, 4])
def test_the_order_task_needs_all_fields(order):
  specs, batch = interaction_order.order_task(4_000, order, values=4, seed=1)
  assert [spec.rows for spec in specs] == [6] * order
  assert batch.ids.values.min() == 1 and batch.ids.values.max() == 4
  # Rows with the same signs of all fields have the same label ...
  signs = np.where(batch.ids.values % 2, 1, -1)
  np.testing.assert_array_equal(
    batch.labels.values[:, 0], signs.prod(axis=1) > 0
  )
  # ... and those of all but one say nothing.
  for value in (1, 2) if order > 1 else ():
    some = (batch.ids.values[:, :-1] % 2 == value % 2).all(axis=1)
    assert abs(batch.labels.values[some].mean() - 0.5) < 0.1
  with pytest.raises(ValueError, match='even'):
    interaction_order.order_task(10, 2, values=3)
