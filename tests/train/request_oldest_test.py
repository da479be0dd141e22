"""The oldest events of long histories, in training and evaluation."""

import types

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import request_models
from genrec_jax.data.requests.packing import Draws
from genrec_jax.data.requests.stochastic_length import StochasticLength
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.train.request_data import RequestData
from tests.data.requests.random_requests import (
  make_dataset,
  read_slowly,
  unpack,
)

LIMITS = dict(max_history=16, max_candidates=9)
DATA = make_dataset(1, longest=60, steps=3)
RUNTIME = types.SimpleNamespace(shards=1, local_shards=None)
TASK = types.SimpleNamespace(spec=DATA.spec)
MEASURING = SingleDeviceEvalRuntime()


def make_config(*quirks, **data):
  config = config_lib.request_smoke(config_lib.request_ranking())
  config.data.update(**LIMITS, order='shuffled', **data)
  config.model.reference_compat = quirks
  return config


def read_batches(batches, count):
  found = {}
  for batch, _ in zip(batches, range(count), strict=False):
    found |= {x['row']: x for x in unpack(batch, DATA.spec)[0]}
  return found


@pytest.mark.parametrize('quirks', [(), ('oldest_events', 'pi_3_14')])
@pytest.mark.parametrize('alpha', [0.0, 1.5])
@pytest.mark.parametrize('order', ['shuffled', 'stream'])
def test_training_and_evaluation_read_the_same_end(quirks, alpha, order):
  config = make_config(*quirks)
  config.data.order = order
  config.data.stochastic_length.alpha = alpha
  data, oldest = RequestData(DATA, config), bool(quirks)
  assert data.fingerprint() == DATA.fingerprint()  # the same data
  steps = data.steps_per_epoch(config.train.batch_size)
  made = data.train_batches(config, RUNTIME, None, lambda line: None)
  cutting = config.data.stochastic_length
  how = StochasticLength(alpha, cutting.selector) if alpha else None
  found = read_batches(made, steps)
  train = DATA.splits['train']
  draws = Draws(config.seed, 0, how)
  assert found == {
    row: read_slowly(DATA, train, row, draws=draws, oldest=oldest, **LIMITS)
    for row in found
  }
  assert len(found) == (train.offsets[1:] > train.offsets[:-1]).sum()
  evaluator = data.evaluator(TASK, 'test', config.eval, MEASURING)
  test = DATA.splits['test']
  found = read_batches(evaluator._make_batches(1, None, 0), 99)
  assert len(found) > 8
  assert found == {
    row: read_slowly(DATA, test, row, chunk=0, oldest=oldest, **LIMITS)
    for row in found
  }
  if order == 'stream':
    following = data.evaluator(TASK, 'next', config.eval, MEASURING)
    for done in (0, *sorted(data.step_ends.values())[:-1]):
      found = read_batches(following._make_batches(1, None, done), 99)
      assert found == {
        row: read_slowly(DATA, train, row, chunk=0, oldest=oldest, **LIMITS)
        for row in found
      }


def test_what_says_so_is_one_of_the_quirks():
  for quirk in request_models.QUIRKS:
    asked = make_config(quirk).model
    assert request_models.reads_oldest(asked) == (quirk == 'oldest_events')
  # A ranking model over pools has no quirks.
  assert not request_models.reads_oldest({'name': 'dlrm'})
