"""The evaluator over many batches, against example-by-example NumPy."""

import dataclasses
import math

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.evaluators import ranking
from genrec_jax.tasks import ranking_metrics as rm
from tests.evaluators.ranking_cases import (
  Linear,
  OnDevices,
  State,
  examples,
  logits_of,
  part_of,
)


def evaluator(rows, labels=('label',), batch_size=16, runtime=None):
  return ranking.RankingEvaluator(
    Linear(labels),
    None,
    part_of(rows),
    ConfigDict({'batch_size': batch_size}),
    runtime or SingleDeviceEvalRuntime(),
  )


def expected(state, rows, labels=('label',)):
  return rm.measure_labels(
    logits_of(state, rows), rows.labels, None, rows.group, labels
  )


@pytest.mark.parametrize('grouped', [True, False])
@pytest.mark.parametrize('labels', [('label',), ('click', 'buy')])
def test_metrics(labels, grouped):
  rows = examples(labels=len(labels), grouped=grouped)
  state = State(len(labels))
  e = evaluator(rows, labels)
  found = dict(e.run(state))
  assert found == expected(state, rows, labels)
  assert e.names() == list(found)
  assert ('gauc' in found) == grouped


def test_a_split_with_one_class_is_known_before_anything_is_scored():
  rows = examples(130, labels=2)  # three blocks
  state, both = State(labels=2), ('click', 'buy')
  for value in (0, 1):
    for which in range(2):
      labels = rows.labels.copy()
      labels[:, which] = value
      e = evaluator(dataclasses.replace(rows, labels=labels), both)
      found = dict(e.run(state))
      nan = {name for name, x in found.items() if math.isnan(x)}
      assert e.undefined.keys() == nan
      metrics = ('auc', 'gauc', 'ne', 'calibration')[: 4 - value]
      assert nan == {f'{m}/{both[which]}' for m in metrics}
      assert e.undefined[f'auc/{both[which]}'] == (
        f"label '{both[which]}' is {value} in all 130 examples of the test "
        'split'
      )
  alike = dataclasses.replace(rows, labels=np.zeros_like(rows.labels))
  e = evaluator(alike, both)
  assert e.undefined.keys() == {n for n, x in e.run(state) if math.isnan(x)}
  assert e.undefined['auc'].count('in all 130 examples') == 2
  # The last row alone makes both of it.
  labels = np.zeros_like(rows.labels)
  labels[-1] = 1
  assert (
    evaluator(dataclasses.replace(rows, labels=labels), both).undefined == {}
  )
  assert evaluator(rows, both).undefined == {}


def test_groups_of_one_class():
  rows = examples(130)
  group = 2 * (np.arange(130) // 10) + rows.labels[:, 0]
  rows = dataclasses.replace(rows, group=group.astype(np.int32))
  e = evaluator(rows)
  nan = {name for name, x in e.run(State()) if math.isnan(x)}
  assert e.undefined.keys() == nan == {'gauc'}
  assert e.undefined['gauc'].startswith('no group (data.group) of the test spl')
  group[-1], group[0] = group[-2], -1
  rows = dataclasses.replace(rows, group=group.astype(np.int32))
  assert bool(evaluator(rows).undefined) == (rows.labels[-1] == rows.labels[-2])


@pytest.mark.parametrize('runtime', [SingleDeviceEvalRuntime, OnDevices])
@pytest.mark.parametrize('batch_size', [1, 7, 1000])
def test_metrics_do_not_depend_on_batches_or_devices(batch_size, runtime):
  rows, state = examples(), State()
  if batch_size == 1 and runtime is SingleDeviceEvalRuntime:
    rows = rows.slice_rows(0, 12)  # one at a time
  e = evaluator(rows, batch_size=batch_size, runtime=runtime())
  scores = e.scores(state)
  np.testing.assert_array_equal(scores.logits, logits_of(state, rows))
  np.testing.assert_array_equal(scores.labels, rows.labels)
  np.testing.assert_array_equal(scores.group, rows.group)
  assert np.all(scores.weights == 1)
  assert dict(e.run(state)) == expected(state, rows)


def test_a_constant_prediction():
  rows = examples(labels=2)
  e = evaluator(rows, ('click', 'buy'))
  rates = np.array([0.3, 0.5])
  found = e.constant(rates)
  for i, label in enumerate(('click', 'buy')):
    y = rows.labels[:, i]
    loss = -np.mean(y * np.log(rates[i]) + (1 - y) * np.log(1 - rates[i]))
    assert found[f'logloss/{label}'] == pytest.approx(loss, rel=1e-12)
    calibration = rates[i] / y.mean()
    assert found[f'calibration/{label}'] == pytest.approx(calibration)
    assert found[f'auc/{label}'] == found[f'gauc/{label}'] == 0.5
  assert list(found) == e.names()
  # The part's own rate is as good as its entropy.
  own = e.constant(rows.labels.mean(axis=0))
  assert own['ne'] == pytest.approx(1, rel=1e-12)
  assert all(map(math.isfinite, e.constant([0.0, 1.0]).values()))


def test_no_example_is_no_number():
  e = evaluator(examples().slice_rows(0, 0))
  assert all(math.isnan(value) for _, value in e.run(State()))
  assert all(math.isnan(value) for value in e.constant([0.5]).values())


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(value):
  rows, state = examples(), State()
  state.params['numbers'] = state.params['numbers'].at[0].set(value)
  with pytest.raises(FloatingPointError, match='NaN or infinite'):
    dict(evaluator(rows).run(state))


def test_padding_is_not_looked_at():
  # Row 0 is what padding reads: its score is NaN, and no example has it.
  rows, state = examples(), State()
  rows = dataclasses.replace(rows, ids=np.maximum(rows.ids, 1))
  state.tables['user'] = state.tables['user'].at[0].set(np.nan)
  assert dict(evaluator(rows).run(state)) == expected(state, rows)


def test_config_is_checked():
  with pytest.raises(ValueError, match='eval.batch_size is 0'):
    evaluator(examples(), batch_size=0)
