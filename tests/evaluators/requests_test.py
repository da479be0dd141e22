"""What the metrics of requests are grouped by, beside pairs counted by hand."""

import collections
import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.data.requests import batches
from genrec_jax.embedding import lookup
from genrec_jax.evaluators.requests import CandidateScores, RequestEvaluator
from tests.conformance.task_cases import batch_of, task_of
from tests.data.requests.random_requests import make_dataset

LIMITS = dict(max_history=8, max_candidates=4)


def count_pairs(scored) -> tuple[float, float]:
  """(weight, AUC) of (score, label, weight); (0, 0) without both labels."""
  up = [(s, w) for s, y, w in scored if y]
  down = [(s, w) for s, y, w in scored if not y]
  pairs = sum(v * w for _, v in up for _, w in down)
  if not pairs:
    return 0.0, 0.0
  wins = sum(
    v * w * ((a > b) + (a == b) / 2) for a, v in up for b, w in down
  )  # fmt: skip
  return sum(w for _, _, w in scored), wins / pairs


def test_gauc_is_by_user_and_not_by_request():
  data = make_dataset(3, users=5, most_candidates=9)
  split = data.splits['train']

  def make_batches(shards, own, step):
    del shards, own, step
    return batches.eval_batches(data, split, batch_size=4, **LIMITS)

  evaluator = RequestEvaluator(
    types.SimpleNamespace(spec=data.spec, labels=('liked', 'seconds')),
    make_batches,
  )
  score = np.sin(np.arange(50)).astype(np.float32)  # by the row of the item
  found = evaluator.constant(
    lambda batch: np.stack([score[batch.jagged['candidates']['item']]] * 2, 1)
  )
  grouped = {'user': collections.defaultdict(list)}
  grouped['request'] = collections.defaultdict(list)
  for request in range(len(split)):
    for at in range(split.offsets[request], split.offsets[request + 1]):
      one = (
        float(score[split.items['item'][at]]),
        float(split.labels['liked'][at]),
        float(split.weight[at]),
      )
      grouped['user'][int(split.user[request])].append(one)
      grouped['request'][request].append(one)
  values = {}
  for by, groups in grouped.items():
    counted = [count_pairs(some) for some in groups.values()]
    total = sum(weight for weight, _ in counted)
    values[by] = sum(weight * auc for weight, auc in counted) / total
  assert found['gauc'] == pytest.approx(values['user'], rel=1e-6)
  assert abs(values['user'] - values['request']) > 0.01


def test_candidates_of_a_model_have_the_group_of_their_batch():
  """Which `gauc` groups by: users, and not requests."""
  task, batch = task_of('requests, stu'), batch_of('requests, stu')
  batch = dataclasses.replace(batch, group=batch.row * 7 + 3)
  batch = jax.tree.map(jnp.asarray, batch)
  key = jax.random.key(0)
  tables = {
    name: jnp.ones((spec.rows, spec.dim), jnp.float32)
    for name, spec in task.tables().items()
  }
  views = lookup.view_tables(tables, task.reads_for('predict', batch))
  scored = task.score(task.init(key), views, batch)
  lengths = np.asarray(batch.jagged['candidates'].lengths)
  rows = np.repeat(np.asarray(batch.row), lengths)
  assert np.all(rows >= 0)
  np.testing.assert_array_equal(scored.group[: len(rows)], rows * 7 + 3)
  np.testing.assert_array_equal(scored.request[: len(rows)], rows)


def test_each_binary_label_has_the_curve_of_its_own_column():
  kinds = {'liked': 'binary', 'seconds': 'number', 'shared': 'binary'}
  task = types.SimpleNamespace(
    spec=types.SimpleNamespace(
      labels=[types.SimpleNamespace(kind=kind) for kind in kinds.values()]
    ),
    labels=tuple(kinds),
  )
  rng = np.random.default_rng(0)
  labels = (rng.random((400, 3)) < (0.2, 0.5, 0.7)).astype(np.float32)
  outputs = np.float32([-1.0, 9.0, 2.0]) + rng.normal(size=(400, 3)) / 10
  weights = rng.uniform(0.5, 2, 400).astype(np.float32)
  rows = np.zeros(400, np.int32)
  evaluator = RequestEvaluator(task, None)
  evaluator.scores = lambda state: CandidateScores(
    outputs.astype(np.float32), labels, weights, rows, rows
  )
  found = evaluator.measure(evaluator.scores(None))
  for name, column in (('liked', 0), ('shared', 2)):
    right = [
      (output >= 0) == (label == 1)
      for output, label in zip(outputs[:, column], labels[:, column])
    ]
    assert found[f'accuracy/{name}'] == pytest.approx(
      np.average(right, weights=weights), rel=1e-6
    )
  assert found['accuracy'] == pytest.approx(
    (found['accuracy/liked'] + found['accuracy/shared']) / 2
  )
  page = evaluator.details(None, types.SimpleNamespace(bins=5), seed=0)
  assert list(page['labels']) == ['liked', 'shared']
  for name, column in (('liked', 0), ('shared', 2)):
    bins = page['labels'][name]['calibration']
    share = np.array([b['weight'] for b in bins]) / weights.sum()
    assert share @ [b['rate'] for b in bins] == pytest.approx(
      np.average(labels[:, column], weights=weights), rel=1e-5
    )
    assert share @ [b['prediction'] for b in bins] == pytest.approx(
      np.average(1 / (1 + np.exp(-outputs[:, column])), weights=weights),
      rel=1e-5,
    )
