"""The loss and the metrics of requests with labels of both kinds, by NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.evaluators.requests import CandidateScores, RequestEvaluator
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec
from genrec_jax.tasks.request_ranking import RequestRanking, Scored

SPEC = RequestSpec(
  items=(FeatureSpec('item', rows=9),),
  actions=(('seen', 1),),
  labels=(
    LabelSpec('click'),
    LabelSpec('stars', 'regression'),
    LabelSpec('buy'),
  ),
)
TASK_WEIGHTS = 0.2, 0.5, 3.0
# The third candidate does not count, and the last two are padding.
WEIGHTS = np.array([1, 0.5, 0, 2, 1, 1, 0, 0], np.float32)
USERS, REQUESTS = [0, 0, 0, 1, 1, 2, -1, -1], [0, 0, 0, 1, 2, 3, -1, -1]


def draw_scores() -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(0)
  outputs = np.float32(3 * rng.normal(size=(8, 3)))
  outputs[7] = np.nan  # what padding has may be anything
  labels = [rng.integers(0, 2, 8), 9 * rng.random(8), rng.integers(0, 2, 8)]
  return outputs, np.stack(labels, axis=1).astype(np.float32)


@pytest.fixture
def task(monkeypatch):
  model = config_lib.pool_history(config_lib.lr()).to_dict()
  made = RequestRanking(
    model.pop('name'),
    model,
    {'task_weights': TASK_WEIGHTS},
    spec=SPEC,
    max_history=4,
    max_candidates=3,
  )
  scored = map(jnp.asarray, (*draw_scores(), WEIGHTS, USERS, REQUESTS))
  scored = Scored(*scored)
  monkeypatch.setattr(made, 'score', lambda *args, **kwargs: scored)
  return made


def test_the_loss_is_the_weighted_sum_of_those_of_the_labels(task):
  outputs, labels = (x[WEIGHTS > 0].astype(np.float64) for x in draw_scores())
  weights = WEIGHTS[WEIGHTS > 0].astype(np.float64)
  chances = 1 / (1 + np.exp(-outputs))
  each = -labels * np.log(chances) - (1 - labels) * np.log(1 - chances)
  each[:, 1] = (outputs[:, 1] - labels[:, 1]) ** 2
  by_label = weights @ each
  found = task.loss(None, None, None, None)
  for name, value in zip(task.labels, by_label, strict=True):
    np.testing.assert_allclose(found[f'loss/{name}'][0], value, rtol=1e-6)
    np.testing.assert_allclose(found[f'loss/{name}'][1], weights.sum())
  total, weight = found['loss']
  np.testing.assert_allclose(total, by_label @ TASK_WEIGHTS, rtol=1e-6)
  np.testing.assert_allclose(weight, weights.sum())


def test_the_errors_of_a_number(task):
  real = WEIGHTS > 0
  outputs, labels = (x[real] for x in draw_scores())
  weights, users = WEIGHTS[real], np.array(USERS)[real]
  found = RequestEvaluator(task, lambda *_: ()).measure(
    CandidateScores(outputs, labels, weights, users, np.array(REQUESTS)[real])
  )
  errors = np.float64(outputs[:, 1]) - labels[:, 1]
  (mse,) = [v for name, v in found.items() if 'mse' in name.split('/')]
  (mae,) = [v for name, v in found.items() if 'mae' in name.split('/')]
  total = weights.sum()
  np.testing.assert_allclose(mse, weights @ errors**2 / total, rtol=1e-6)
  np.testing.assert_allclose(mae, weights @ np.abs(errors) / total, rtol=1e-6)
