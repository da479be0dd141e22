"""Permutation importance: against doing it by hand, and on planted truth."""

import collections
import dataclasses
import json
import math

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.evaluators import importance, ranking
from genrec_jax.tasks import ranking_metrics as rm
from tests.evaluators.ranking_cases import (
  FEATURES,
  Linear,
  OnDevices,
  State,
  examples,
  logits_of,
  part_of,
)


def columns(rows):
  """Feature -> its value of each example, comparable."""
  bags, found = rows.bags['tags'], {}
  ends = np.cumsum(bags.lengths)
  found['tags'] = [
    tuple(bags.values[e - n : e].tolist())
    for e, n in zip(ends, bags.lengths, strict=True)
  ]
  for i, name in enumerate(('user', 'item')):
    found[name] = rows.ids[:, i].tolist()
  for i, name in enumerate(('age', 'price')):
    found[name] = rows.numbers[:, i].tolist()
  return found


@pytest.mark.parametrize('number', range(len(FEATURES)))
def test_one_feature_moves_and_nothing_else(number):
  rows = examples(50)
  order = np.random.default_rng(3).permutation(50)
  before = columns(rows)
  after = columns(importance.permute_feature(rows, FEATURES, number, order))
  for feature in FEATURES:
    expected = before[feature.name]
    if feature is FEATURES[number]:
      expected = [expected[i] for i in order]
      assert expected != before[feature.name]
    assert after[feature.name] == expected
  assert columns(rows) == before  # the examples themselves are as they were


def test_a_sample_is_of_the_part():
  rows = examples(203)
  part = part_of(rows)
  whole = columns(importance.sample_rows(part, 1000, 0))
  assert whole == columns(rows)
  some = [importance.sample_rows(part, 70, seed) for seed in (0, 0, 1)]
  assert len(some[0]) == 70
  assert columns(some[0]) == columns(some[1]) != columns(some[2])

  def keyed(rows):
    return collections.Counter(zip(*columns(rows).values(), strict=True))

  assert not keyed(some[0]) - keyed(rows)  # each at most as often
  np.testing.assert_array_equal(
    some[0].bags['tags'].lengths, some[1].bags['tags'].lengths
  )


def measured(state):
  return lambda rows: rm.measure_labels(logits_of(state, rows), rows.labels)


def planted(state, rows):
  """Labels that the state explains, up to chance."""
  p = 1 / (1 + np.exp(-2 * logits_of(state, rows)))
  labels = np.random.default_rng(9).random(p.shape) < p
  return dataclasses.replace(rows, labels=labels.astype(np.uint8))


def test_what_the_model_does_not_use_is_worth_nothing():
  state = State()
  state.tables['item'] = 0 * state.tables['item']
  state.tables['user'] = 2 * state.tables['user']
  rows = planted(state, examples(400))
  found = importance.permutation_importance(
    measured(state), rows, FEATURES, repeats=2, seed=1
  )
  assert sorted(r['feature'] for r in found) == sorted(f.name for f in FEATURES)
  by_name = {r['feature']: r for r in found}
  assert found[0]['feature'] == 'user' and found[0]['auc_drop'] > 0.05
  assert found[0]['logloss_rise'] > 0.05 and found[0]['auc_drop_std'] > 0
  assert by_name['item'] == {
    'feature': 'item',
    'kind': 'categorical',
    'auc_drop': 0,
    'auc_drop_std': 0,
    'logloss_rise': 0,
    'logloss_rise_std': 0,
  }
  drops = [r['auc_drop'] for r in found]
  assert drops == sorted(drops, reverse=True)


def test_the_orders_of_a_feature_are_its_own():
  state = State()
  rows = planted(state, examples(200))

  def run(**options):
    found = importance.permutation_importance(
      measured(state), rows, FEATURES, **options
    )
    return {r['feature']: r for r in found}

  one = run(repeats=1, seed=5)
  assert one == run(repeats=1, seed=5) != run(repeats=1, seed=6)
  assert all(r['auc_drop_std'] == 0 for r in one.values())
  with pytest.raises(ValueError, match='report.importance_repeats is 0'):
    run(repeats=0)


def test_a_sample_of_one_label_has_no_auc():
  state, rows = State(), examples(60)
  rows = dataclasses.replace(rows, labels=np.ones_like(rows.labels))
  found = importance.permutation_importance(measured(state), rows, FEATURES)
  rises = [r['logloss_rise'] for r in found]
  assert rises == sorted(rises, reverse=True)
  assert all(math.isnan(r['auc_drop']) for r in found)


@pytest.mark.parametrize('runtime', [SingleDeviceEvalRuntime, OnDevices])
def test_details_for_a_report(runtime):
  state = State(2)
  rows, labels = planted(state, examples(203, labels=2)), ('click', 'buy')
  task = Linear(labels)
  e = ranking.RankingEvaluator(
    task, None, part_of(rows), ConfigDict({'batch_size': 48}), runtime()
  )
  report = ConfigDict(
    {'bins': 5, 'importance_rows': 100, 'importance_repeats': 2}
  )
  found = e.details(state, report, seed=7)
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert found['examples'] == 203
  logits = logits_of(state, rows)
  for i, label in enumerate(labels):
    curve = rm.calibration_curve(logits[:, i], rows.labels[:, i], bins=5)
    assert found['labels'][label]['calibration'] == curve
  # By hand: the same sample and orders, scored by NumPy.
  some = importance.sample_rows(part_of(rows), 100, 7)
  expected = importance.permutation_importance(
    lambda rows: rm.measure_labels(
      logits_of(state, rows), rows.labels, None, None, labels
    ),
    some,
    FEATURES,
    repeats=2,
    seed=7,
  )
  assert found['importance']['features'] == expected
  assert (found['importance']['examples'], found['importance']['repeats']) == (
    100,
    2,
  )
  # One shape for the part, one for all orders of the sample.
  assert task.traced <= 2
  report.importance_rows = 0
  assert 'importance' not in e.details(state, report, seed=7)
