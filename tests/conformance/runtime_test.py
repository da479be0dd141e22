"""What `contracts.Runtime` and `contracts.EvalRuntime` promise."""

import functools

import jax
import numpy as np
import pytest

from genrec_jax import contracts
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.runtime import measurements
from genrec_jax.runtime.state import flatten_state
from tests.conformance.runtime_cases import (
  RUNTIMES,
  SEED,
  SLOW,
  STEPS,
  Packs,
  curve_of,
  host,
  training_of,
)
from tests.conformance.task_cases import EXAMPLES, PADDED, EveryRead
from tests.tolerances import assert_close

FRESH = 'one device'  # whose state stands for all that is on one device

every_runtime = pytest.mark.parametrize(
  'name', [*RUNTIMES, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)


@every_runtime
def test_it_is_a_runtime(name):
  runtime = training_of(name).runtime
  assert isinstance(runtime, contracts.Runtime)
  assert isinstance(runtime, contracts.EvalRuntime)
  for own, shards in (
    (runtime.local_shards, runtime.shards),
    (runtime.local_eval_shards, runtime.eval_shards),
  ):
    assert own is None or own == range(shards)  # one process makes all


def test_whole_weights_are_evaluated_and_not_trained():
  assert isinstance(SingleDeviceEvalRuntime(), contracts.EvalRuntime)
  assert not isinstance(SingleDeviceEvalRuntime(), contracts.Runtime)


@every_runtime
def test_what_a_state_sums_up(name):
  runtime, task = training_of(name).runtime, EveryRead()
  state = jax.eval_shape(runtime.fresh_state)
  assert sorted(state.metric_sums) == list(runtime.measured)
  assert set(runtime.measured) > set(task.measurements)
  assert set(runtime.measured) <= set(measurements.declare_measurements(task))


@every_runtime
def test_the_abstract_state_is_that_of_a_fresh_one(name):
  runtime = training_of(name).runtime
  abstract, state = runtime.abstract_state(), runtime.fresh_state()
  assert jax.tree.structure(abstract) == jax.tree.structure(state)
  for like, leaf in zip(
    jax.tree.leaves(abstract), jax.tree.leaves(state), strict=True
  ):
    assert (like.shape, like.dtype) == (leaf.shape, leaf.dtype)
    if like.sharding is not None:
      assert like.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)


@every_runtime
def test_what_is_counted_has_no_padding(name):
  training = training_of(name)
  for batch in training.batches():
    counts = training.runtime.count(batch)
    assert [int(n) for n in counts] == [EXAMPLES, EXAMPLES]


@every_runtime
def test_every_runtime_draws_the_same_curve(name):
  found, wanted = curve_of(name), curve_of(FRESH)
  assert len(found.losses) == STEPS
  assert_close(found.losses, wanted.losses, 'curve')
  assert_close(found.norms, wanted.norms, 'curve')
  for measurement in EveryRead.measurements:
    sums = [c.states[-1][f'sums/{measurement}'] for c in (found, wanted)]
    assert_close(*sums, 'curve', name=measurement)
  assert found.states[-1]['step'] == STEPS
  assert found.states[-1]['bad'].tolist() == [-1, -1]


@every_runtime
def test_a_restored_run_goes_on_to_the_bit(name, tmp_path):
  training, whole = training_of(name), curve_of(name)
  batches, stop = training.batches(), 2
  first = [next(batches) for _ in range(stop)]
  state, _ = training.run(batches=first)
  with CheckpointManager(tmp_path) as checkpoints:
    checkpoints.save(
      stop, flatten_state(state), data=batches, host=host_of(training)
    )
  state, batches = training.restored(tmp_path)
  assert_same(host(state), whole.states[stop - 1])
  _, after = training.run(state, batches)
  assert after.losses == whole.losses[stop:]
  assert_same(after.states[-1], whole.states[-1])


@pytest.mark.parametrize('there', ['mesh', 'mesh, microbatches, fsdp', FRESH])
def test_a_runtime_restores_what_another_one_has_saved(there, tmp_path):
  here = FRESH if there != FRESH else 'mesh'
  training, stop = training_of(here), 2
  batches = training.batches()
  state, _ = training.run(batches=[next(batches) for _ in range(stop)])
  with CheckpointManager(tmp_path) as checkpoints:
    checkpoints.save(
      stop, flatten_state(state), data=batches, host=host_of(training)
    )
  other = training_of(there)
  _, after = other.run(*other.restored(tmp_path))
  assert_close(after.losses, curve_of(here).losses[stop:], 'curve')


def host_of(training) -> dict:
  plan = training.runtime.plan
  return {'plan': plan and plan.to_json()}


def assert_same(found: dict, wanted: dict) -> None:
  assert found.keys() == wanted.keys()
  for path, array in wanted.items():
    np.testing.assert_array_equal(found[path], array, err_msg=path)


# ---- Evaluations ------------------------------------------------------------


@functools.cache
def evaluation_of(runtime):
  """(weights, batch, step) -> what the loss measures, each shard by itself."""
  task = EveryRead()

  def measure(weights, batch):
    key = jax.random.fold_in(jax.random.key(SEED), 0)
    params, rows = runtime.read_rows(task, weights, task.reads(batch, key))
    measured = task.loss(params, rows, batch, key)
    return jax.tree.map(lambda x: x[None], measured)

  return runtime.jit(measure, ('split',))


def evaluate(runtime, state) -> float:
  """The loss of the first batch."""
  batch = next(Packs(runtime.eval_shards))
  found = evaluation_of(runtime)(
    contracts.weights_of(state), runtime.put_on_devices(batch)
  )
  total, weight = jax.device_get(found['loss'])
  assert weight.shape == (runtime.eval_shards,)
  return float(total.sum() / weight.sum())


@every_runtime
def test_an_evaluation_sees_the_rows_that_training_does(name):
  """The evaluation takes the key of the first step."""
  training = training_of(name)
  state = training.runtime.fresh_state()
  assert_close(
    evaluate(training.runtime, state), curve_of(name).losses[0], 'curve'
  )


def test_whole_weights_are_evaluated_alike():
  state = training_of(FRESH).runtime.fresh_state()
  assert_close(
    evaluate(SingleDeviceEvalRuntime(), state),
    curve_of(FRESH).losses[0],
    'curve',
  )


@pytest.mark.parametrize('name', [FRESH, 'mesh'])
def test_a_function_gives_shards_or_the_same_on_all(name):
  runtime = training_of(name).runtime
  state = runtime.fresh_state()
  batch = runtime.put_on_devices(next(Packs(runtime.eval_shards)))
  weights = contracts.weights_of(state)
  split = runtime.jit(lambda w, batch: batch['y'], ('split',))(weights, batch)
  np.testing.assert_array_equal(split, next(Packs(1))['y'])
  alike = runtime.jit(lambda w, x: x + 1, ('alike',), 'alike')(
    weights, np.arange(PADDED)
  )
  np.testing.assert_array_equal(alike, np.arange(PADDED) + 1)
