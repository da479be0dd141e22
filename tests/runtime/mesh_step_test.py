"""A step of a few lines on a mesh: its memory, and an exchange without room."""

import functools

import numpy as np
import optax

from genrec_jax import config as config_lib
from genrec_jax.runtime import measurements
from genrec_jax.runtime.mesh import MeshRuntime
from tests.runtime.toy_task import Toy

ROWS = 400


@functools.cache
def runtime(**parallel) -> MeshRuntime:
  config = config_lib.ranking()
  config.parallel.devices = 4
  config.parallel.scheme = 'row_wise'
  overflow = parallel.pop('overflow', None)
  config.parallel.update(parallel)
  if overflow:
    config.parallel.exchange.update(capacity=0.1, overflow=overflow)
  return MeshRuntime(config, Toy('row_adagrad', ROWS), optax.sgd(0.1))


def batches(count=2):
  for _ in range(count):
    yield np.arange(ROWS, dtype=np.int32)


def test_the_state_is_given_away_to_a_step_that_looks_ahead():
  run = runtime(pipeline='exact')
  state, step = run.fresh_state(), run.step()
  first, second = (run.put_on_devices(x) for x in batches())
  after, _ = step(state, (first, second))
  assert state.tables and after.tables
  for before in state.tables.values():
    assert before.is_deleted()


def measured(overflow: str) -> np.ndarray:
  run = runtime(overflow=overflow)
  step, state = run.step(), run.fresh_state()
  for examples in batches():
    state, _ = step(state, run.put_on_devices(examples))
  return np.asarray(state.metric_sums['exchange_overflow'])


def test_steps_without_room_are_counted():
  value, weight = measured('rounds')
  # One array of rows had no room, in each of two steps.
  assert measurements.read_measurement('mean', value, weight) == 1.0


def test_steps_without_room_are_errors_where_they_shall_be():
  value, _ = measured('raise')
  assert np.isnan(value)


def test_a_step_with_room_counts_nothing():
  run = runtime()
  state, _ = run.step()(run.fresh_state(), run.put_on_devices(next(batches())))
  value, weight = np.asarray(state.metric_sums['exchange_overflow'])
  assert (value, weight) == (0.0, 1.0)
