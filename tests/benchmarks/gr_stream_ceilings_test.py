"""Tests of what can be reached on the generated stream."""

import itertools

import numpy as np
import pytest

from benchmarks import gr_stream_ceilings as ceilings
from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests.stream_ceilings import (
  measure_cases,
  predict_labels,
  tabulate_cases,
)
from genrec_jax.data.requests.streaming import (
  generate_requests,
  reveal_truth,
)
from genrec_jax.tasks.ranking_metrics import metrics
from tests.data.requests.slow_stream import what_ratings

STEPS = np.arange(90, 100)
ITEMS = {5: 0.2, 4: 0.25, 3: 0.25, 2: 0.2, 1: 0.1}


def list_cases():
  """(step, place, item rating, label, chance), one by one."""
  for step, place, (item, share) in itertools.product(
    range(90, 100), range(4), ITEMS.items()
  ):
    for rating, chance in zip(*what_ratings(place, 4, step), strict=True):
      liked = (rating + item) / 2 >= 3.5
      yield step, place, item, liked, chance * share / 40


@pytest.mark.parametrize('told', ceilings.TOLD)
def test_predictions_are_the_shares_of_equal_cases(told):
  axes = ceilings.TOLD[told]
  cases = tabulate_cases(STEPS, 4)
  predictions = predict_labels(cases, axes, cases.shape[:-1])
  chances = {}
  for *case, liked, chance in list_cases():
    key = tuple(case[axis] for axis in axes)
    chances.setdefault(key, np.zeros(2))[int(liked)] += chance
  for i, step in enumerate(STEPS):
    for place in range(4):
      for k, item in enumerate(ITEMS):
        case = (step, place, item)
        negative, positive = chances[tuple(case[axis] for axis in axes)]
        assert predictions[i, place, k] == pytest.approx(
          positive / (negative + positive)
        )


@pytest.mark.parametrize('told', ceilings.OTHERS)
def test_ceilings_are_those_of_another_program(told):
  cases = tabulate_cases(STEPS, 4)
  predictions = predict_labels(cases, ceilings.TOLD[told], cases.shape[:-1])
  measured = measure_cases(cases, predictions)
  # Theirs are of a simulation, and rounded.
  values = [measured[name] for name in ceilings.METRICS]
  np.testing.assert_allclose(values, ceilings.OTHERS[told], atol=1.1e-3)


def test_metrics_are_those_of_the_library():
  rng = np.random.default_rng(0)
  counts = rng.integers(0, 9, (5, 10, 4, 5, 2))
  counts[2, 3, ..., 1] = 0  # a request without a positive has no AUC
  counts[4, 1] = 0
  predictions = rng.choice([0.1, 0.25, 0.5, 0.7, 0.9], (10, 4, 5))
  labels, logits, groups = [], [], []
  for (user, step, q, i, label), n in np.ndenumerate(counts):
    p = predictions[step, q, i]
    logits += [np.log(p / (1 - p))] * n
    labels += [label] * n
    groups += [10 * user + step] * n
  expected = metrics.measure_labels(
    np.array(logits)[:, None],
    np.array(labels, np.float32)[:, None],
    group=np.array(groups),
  )
  measured = measure_cases(counts.sum(axis=0), predictions)
  assert measured['ne'] == pytest.approx(expected['ne'])
  assert measured['auc'] == pytest.approx(expected['auc'])
  right = (np.array(logits) >= 0) == np.array(labels)
  assert measured['accuracy'] == pytest.approx(right.mean())
  within = ceilings.measure_within(counts, predictions)
  assert within == pytest.approx(expected['gauc'])


def test_candidates_are_counted_by_user_and_case():
  options = StreamOptions(
    users=3, items=4_000, inference_events=64, inference_candidates=40
  )
  requests = generate_requests(options).splits['test']
  truth = reveal_truth(options, 'test')
  counts = np.zeros((3, 10, 4, 5, 2), int)
  for number, user in enumerate(requests.user):
    for place in range(requests.offsets[number], requests.offsets[number + 1]):
      counts[
        user,
        requests.step[number] - 90,
        truth.place[place],
        5 - truth.item_rating[place],
        int(requests.labels['liked'][place]),
      ] += 1
  np.testing.assert_array_equal(ceilings.count_cases(options, requests), counts)


def test_the_smoke_writes_a_row_for_each_question(tmp_path, rows):
  ceilings.main(['--smoke', '--results', str(tmp_path)])
  found = rows('gr_stream_ceilings')
  assert [r['kind'] for r in found.values()] == [
    'rate', *['ceiling'] * 7, 'published', 'speed',
  ]  # fmt: skip
  assert found['base rate']['rate'] == pytest.approx(0.426, abs=5e-4)
  assert found['base rate']['rate@92'] == pytest.approx(0.5125)
  for told in ceilings.TOLD:
    row = found[told]
    # What is told the best there is on the stream is so but for luck.
    assert abs(row['generated_ne'] - row['ne']) < 5 * row['generated_ne_error']
    assert row.get('learned_ne', row['ne']) >= row['ne']
  assert found['place, step']['ne@96'] < 1
  assert found['generating']['users'] == 40
