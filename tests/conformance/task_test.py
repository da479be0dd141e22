"""What `contracts.Task` promises, of every task in `task_cases.CASES`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from genrec_jax import contracts
from genrec_jax.embedding import lookup
from genrec_jax.embedding.init import init_table
from genrec_jax.parallel import collectives
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.runtime import measurements
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.step import make_step
from genrec_jax.runtime.views import cut_microbatches
from tests import row_views
from tests.conformance.task_cases import (
  CASES,
  EXAMPLES,
  EveryRead,
  batch_of,
  task_of,
)
from tests.runtime.toy_task import Toy
from tests.tolerances import assert_close

PADDING = [name for name, case in CASES.items() if case.pads]
KEY = jax.random.key(3)
NO_ROW = 10**6


@pytest.fixture(params=CASES)
def name(request):
  return request.param


@functools.cache
def weights_of(name: str):
  """(parameters, whole tables) of a task."""
  task = task_of(name)

  @jax.jit
  def make(key):
    tables = {n: init_table(s, key) for n, s in task.tables().items()}
    return task.init(key), tables

  return make(jax.random.key(1))


@functools.cache
def loss_of(name: str):
  """(parameters, tables, batch, key) -> what a task measures, compiled."""
  task = task_of(name)

  def measure(params, tables, batch, key):
    rows = lookup.view_tables(tables, task.reads(batch, key))
    return task.loss(params, rows, batch, key)

  return jax.jit(measure)


@functools.cache
def measured_of(name: str, parts: int = 1, **size) -> dict:
  return jax.device_get(
    loss_of(name)(*weights_of(name), batch_of(name, parts, **size), KEY)
  )


def assert_same_measurements(found, wanted):
  for measurement, pair in wanted.items():
    assert_close(found[measurement][0], pair[0], name=measurement)
    assert found[measurement][1] == pair[1], measurement


def merge(kinds, measured):
  """Measurements of shards, merged as the step does it."""
  sums, largest = measurements.split_measurements(kinds, measured)
  largest = jax.tree.map(lambda x: x[None], largest)
  return collectives.sum_over_shards(sums) | measurements.merge_largest(largest)


def test_it_is_a_task(name):
  task = task_of(name)
  assert isinstance(task, contracts.Task)
  assert measurements.declare_measurements(task)['loss'] == 'mean'
  assert task.progress_unit and isinstance(task.progress_unit, str)
  for table, spec in task.tables().items():
    assert spec.name == table


def test_reads_depend_on_batch_and_key_alone(name):
  task, batch = task_of(name), batch_of(name)
  plain = task.reads(batch, KEY)
  for other in (
    task.reads(batch, KEY),
    jax.jit(task.reads)(batch, KEY),
    jax.tree.map(
      lambda x: x[0],
      jax.vmap(lambda b: task.reads(b, KEY))(
        jax.tree.map(lambda x: np.stack([x, x]), batch)
      ),
    ),
  ):
    assert set(other) == set(plain)
    assert all(other[f].table == r.table for f, r in plain.items())
    jax.tree.map(np.testing.assert_array_equal, dict(other), dict(plain))


def test_reads_are_of_declared_tables_and_expected(name):
  task, batch = task_of(name), batch_of(name)
  reads, expected = task.reads(batch, KEY), task.expected_reads()
  every = {**reads, **task.reads_for('predict', batch)}
  assert {read.table for read in every.values()} <= set(task.tables())
  # Planners are told of what is looked up; a whole table is not.
  assert set(expected) == {f for f, r in reads.items() if r.ids is not None}
  for feature, read in expected.items():
    assert read.table == reads[feature].table, feature
    assert read.pooling == reads[feature].pooling, feature
    assert read.ids >= 0


def test_the_loss_returns_what_was_declared(name):
  measured = measured_of(name)
  assert set(measured) == set(task_of(name).measurements)
  for value, weight in measured.values():
    assert np.shape(value) == np.shape(weight) == ()
    assert np.isfinite(value) and weight > 0


def test_a_prediction_needs_what_it_announces(name):
  task, batch = task_of(name), batch_of(name)
  params, tables = weights_of(name)

  @jax.jit
  def predict(params, tables, batch):
    rows = lookup.view_tables(tables, task.reads_for('predict', batch))
    return task.predict(params, rows, batch)

  found = np.asarray(predict(params, tables, batch))
  assert np.all(np.isfinite(found[:EXAMPLES]))


# ---- Padding, microbatches, shards ------------------------------------------


@pytest.mark.parametrize('name', PADDING)
def test_padding_changes_nothing(name):
  padded, tight = measured_of(name), measured_of(name, size=EXAMPLES)
  assert_same_measurements(padded, tight)


@pytest.mark.parametrize('name', PADDING)
def test_padding_is_not_counted(name):
  task = task_of(name)
  tight = [int(n) for n in task.count(batch_of(name, size=EXAMPLES))]
  assert tight[1] == EXAMPLES and tight[0] >= EXAMPLES
  for parts in (1, 4):
    assert [int(n) for n in task.count(batch_of(name, parts))] == tight


@pytest.mark.parametrize('name', [n for n, c in CASES.items() if c.adds_up])
def test_microbatches_add_up_to_the_batch(name):
  """The third of four is half empty, the last one has no example."""
  task, batch = task_of(name), batch_of(name, 4)
  parts = cut_microbatches(batch, 4)
  if hasattr(batch, 'whole'):
    whole = jax.tree.map(lambda x: np.broadcast_to(x, (4, *x.shape)), batch)
    parts = dataclasses.replace(parts, whole=whole)
  params, tables = weights_of(name)
  each = jax.jit(
    lambda parts: jax.lax.map(
      lambda part: loss_of(name)(params, tables, part, KEY), parts
    )
  )(parts)
  kinds = measurements.declare_measurements(task)
  sums, largest = measurements.split_measurements(kinds, each)
  merged = jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)
  merged |= measurements.merge_largest(largest)
  assert_same_measurements(merged, measured_of(name))


def test_shards_add_up_to_the_batch(name):
  kinds = measurements.declare_measurements(task_of(name))
  mesh = mesh_lib.make_mesh(1, 2, 2)

  def on_shard(weights, batch):
    return merge(kinds, loss_of(name)(*weights, batch, KEY))

  sharded = jax.jit(
    jax.shard_map(
      on_shard,
      mesh=mesh,
      in_specs=(PartitionSpec(), PartitionSpec(mesh_lib.AXES)),
      out_specs=PartitionSpec(),
      check_vma=False,
    )
  )
  found = sharded(weights_of(name), batch_of(name, 4))
  assert_same_measurements(jax.device_get(found), measured_of(name))


# ---- Rows that were not announced, or are none ------------------------------


def test_a_feature_that_was_not_announced(name):
  """The error names those that were."""
  task, batch = task_of(name), batch_of(name)
  params, tables = weights_of(name)
  every = task.reads(batch, KEY)
  for missing in every:
    reads = {f: r for f, r in every.items() if f != missing}
    views = lookup.view_tables(tables, reads)
    told = ', '.join(sorted(reads)) or 'nothing'
    with pytest.raises(KeyError, match=f'it announced only {told}') as error:
      jax.eval_shape(
        lambda params, views: task.loss(params, views, batch, KEY),
        params,
        views,
      )
    assert repr(missing) in str(error.value)


@functools.cache
def losses_of_reads(name: str):
  """(parameters, tables, reads, batch) -> the loss, for each way of reading."""
  task = task_of(name)

  @jax.jit
  def run(params, tables, reads, batch):
    ways = {'dense': lookup.view_tables(tables, reads)}
    if not CASES[name].needs_whole:
      for way in ('rows', 'sums'):
        fetched, view = row_views.fetch(
          tables, reads, dict.fromkeys(reads, way)
        )
        ways[way] = view(fetched)
    return {
      way: task.loss(params, views, batch, KEY)['loss'][0]
      for way, views in ways.items()
    }

  return run


def test_every_way_of_reading_is_the_same(name):
  task, batch = task_of(name), batch_of(name)
  found = losses_of_reads(name)(
    *weights_of(name), task.reads(batch, KEY), batch
  )
  for way, loss in found.items():
    assert_close(loss, measured_of(name)['loss'][0], name=way)


@pytest.mark.parametrize('wrong', [-1, NO_ROW])
def test_an_id_outside_its_table_makes_the_loss_nan(name, wrong):
  task, batch = task_of(name), batch_of(name)
  every = task.reads(batch, KEY)
  for feature, read in every.items():
    if read.ids is None:
      continue
    ids = np.array(read.ids)
    # The first id of all is not padding: nor is the first one of a bag.
    assert read.lengths is None or np.sum(read.lengths) > 0
    ids[(0,) * ids.ndim] = wrong
    reads = {**every, feature: dataclasses.replace(read, ids=ids)}
    found = losses_of_reads(name)(*weights_of(name), reads, batch)
    for way, loss in found.items():
      assert np.isnan(loss), (feature, way)


# ---- What a step refuses, in words ------------------------------------------


def trace(task, batch):
  """Builds a step of a task and traces it; nothing runs."""
  with jax.numpy_dtype_promotion('standard'):  # for optax
    step = make_step(task, optax.sgd(0.1), seed=0)
    names = measurements.measurement_names(task, on_mesh=False)
    jax.eval_shape(
      lambda batch: step(
        state_lib.create_state(task, optax.sgd(0.1), 0, names), batch
      ),
      batch,
    )


class Odd:
  """A task with some members of another."""

  def __init__(self, task, **members):
    self._task = task
    vars(self).update(members)

  def __getattr__(self, member):
    return getattr(self._task, member)


BASES = {'toy': Toy(), 'every read': EveryRead()}


@pytest.mark.parametrize('base', BASES)
@pytest.mark.parametrize(
  'declared, told',
  [
    ({'extra': 'mean'}, 'declares extra in `measurements`, and its loss does'),
    ({'loss': None}, "declares 'loss': 'mean' among"),
    ({'loss': 'sum'}, "declares 'loss': 'mean' among"),
    ({'extra': 'median'}, "'extra' is of kind 'median', must be one of"),
    ({'grad_norm': 'mean'}, "'grad_norm' is one of the step"),
    ({'exchange_overflow': 'mean'}, "'exchange_overflow' is one of the step"),
  ],
)
def test_measurements_that_do_not_fit(base, declared, told):
  task = BASES[base]
  kinds = {**task.measurements, **declared}
  kinds = {n: kind for n, kind in kinds.items() if kind is not None}
  with pytest.raises(ValueError, match=told):
    trace(Odd(task, measurements=kinds), batch_of(base))


@pytest.mark.parametrize('base', BASES)
def test_a_measurement_that_was_not_declared(base):
  task = BASES[base]

  def loss(*args):
    return {**task.loss(*args), 'more': (jnp.float32(1), jnp.float32(1))}

  trace(task, batch_of(base))
  with pytest.raises(ValueError, match='returns more, which the task does not'):
    trace(Odd(task, loss=loss), batch_of(base))


@pytest.mark.parametrize('base', BASES)
@pytest.mark.parametrize(
  'changes, told',
  [
    ({'table': 'other'}, "reads table 'other', which the task does not"),
    ({'pooling': 'max'}, "has pooling='max', must be one of"),
    ({'pooling': 'sum', 'lengths': None}, "pooled by 'sum' and has no lengths"),
  ],
)
def test_reads_that_cannot_be(base, changes, told):
  task = BASES[base]

  def reads(batch, key):
    found = task.reads(batch, key)
    feature = min(found)
    return {**found, feature: dataclasses.replace(found[feature], **changes)}

  with pytest.raises(ValueError, match=told):
    trace(Odd(task, reads=reads), batch_of(base))
