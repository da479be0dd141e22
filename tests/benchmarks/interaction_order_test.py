"""The data of the interaction order benchmark, and a small run of it."""

import numpy as np

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
