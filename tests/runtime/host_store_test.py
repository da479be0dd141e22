"""Rows that lie on the host: the same curve, to the bit, as on the device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax import contracts
from genrec_jax.contracts import Extensions
from genrec_jax.embedding.stores import DEVICE, DeviceStore
from genrec_jax.features import ExpectedRead, Read, TableSpec
from genrec_jax.runtime.build import build_runtime
from genrec_jax.runtime.host_stage import HostStep
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from tests.runtime.host_store import CachedStore

pytestmark = pytest.mark.usefixtures('optax_promotes')

ROWS, WIDTH, EXAMPLES, BAGS, STEPS, PLACES = 300, 4, 12, 8, 12, 40


class Shops:
  """Predicts a number from an item, a bag of items and a user."""

  measurements, progress_unit = {'loss': 'mean'}, 'examples'

  def __init__(self, update='adam', dtype='float32'):
    self._update, self._dtype = update, dtype

  def tables(self):
    return {
      'items': TableSpec(
        'items', ROWS, WIDTH, 0.5, self._update, dtype=self._dtype
      ),
      'users': TableSpec('users', ROWS, WIDTH, 0.5, self._update),
      'small': TableSpec('small', ROWS, WIDTH, 0.5),
    }

  def init(self, key):
    return {'w': jax.random.normal(key, (WIDTH,))}

  def reads(self, batch, key=None):
    del key
    return self.reads_for('predict', batch)

  def reads_for(self, purpose, batch):
    del purpose
    return {
      'item': Read(batch['item'], 'items'),
      'bag': Read(batch['bag'], 'items', batch['lengths'], pooling='mean'),
      'user': Read(batch['user'], 'users'),
      'small': Read(batch['item'], 'small'),
    }

  def expected_reads(self):
    return {
      'item': ExpectedRead('items', 1.0),
      'bag': ExpectedRead('items', BAGS / EXAMPLES, 'mean'),
      'user': ExpectedRead('users', 1.0),
      'small': ExpectedRead('small', 1.0),
    }

  def loss(self, params, rows, batch, key):
    del key
    x = sum(rows[name].all() for name in ('item', 'bag', 'user', 'small'))
    error = jnp.square(jnp.tanh(x) @ params['w'] - batch['y'])
    return {'loss': (jnp.sum(error), jnp.float32(EXAMPLES))}

  def count(self, batch):
    return jnp.int32(EXAMPLES), jnp.int32(EXAMPLES)


def batch(step):
  """Few items are read often, most of them rarely: some return when evicted."""
  rng = np.random.default_rng(step)

  def draw(count):
    return np.int32(ROWS * rng.power(0.4, count))

  lengths = np.bincount(rng.integers(0, EXAMPLES, BAGS), minlength=EXAMPLES)
  return {
    'item': draw(EXAMPLES),
    'bag': draw(BAGS),
    'lengths': np.int32(lengths),
    'user': draw(EXAMPLES),
    'y': np.float32(rng.normal(size=EXAMPLES)),
  }


def make_config():
  config = config_lib.ranking()
  config.optimizer.rows.learning_rate = 0.1
  config.parallel.pool = 'rows'  # as features of tables on the host travel
  config.train.batch_size = EXAMPLES
  return config


def train(runtime, steps=STEPS):
  """(state behind the last step, losses, gradient norms)."""
  step, state, losses = runtime.step(), runtime.fresh_state(), []
  for i in range(steps):
    state, loss = step(state, batch(i))
    losses.append(np.asarray(loss))
  return state, losses, np.asarray(state.metric_sums['grad_norm'])


def make_stores(config, task, tables, places=PLACES):
  """Caches before the rows that a run on the device begins with."""
  state = SingleDeviceRuntime(config, task, optax.adam(0.01)).fresh_state()
  return {
    name: CachedStore(state.tables[name], state.row_opt_state[name], places)
    for name in tables
  }


def run_both(task, tables):
  """Trains on the device, then with caches of some tables; compares bits."""
  config, tx = make_config(), optax.adam(0.01)
  wanted, curve, norm = train(SingleDeviceRuntime(config, task, tx))
  stores = make_stores(config, task, tables)
  runtime = SingleDeviceRuntime(config, task, tx, Extensions(stores=stores))
  assert isinstance(runtime.step(), HostStep)
  state, losses, norms = train(runtime)
  np.testing.assert_array_equal(losses, curve)
  np.testing.assert_array_equal(norms, norm)
  jax.tree.map(np.testing.assert_array_equal, state.params, wanted.params)
  for name, store in stores.items():
    assert store.calls == STEPS
    assert store.evicted > PLACES, 'hardly anything was evicted'
    assert state.tables[name].shape[0] == PLACES < ROWS
    rows, slots = store.whole(state.tables[name], state.row_opt_state[name])
    np.testing.assert_array_equal(rows, wanted.tables[name])
    for slot, values in slots.items():
      np.testing.assert_array_equal(values, wanted.row_opt_state[name][slot])
  for name in set(task.tables()) - set(stores):
    np.testing.assert_array_equal(state.tables[name], wanted.tables[name])


@pytest.mark.parametrize('update', ['row_sgd', 'row_adagrad', 'adam'])
def test_a_cache_smaller_than_the_table_trains_the_same_bits(update):
  run_both(Shops(update), ['items'])


def test_several_tables_each_with_a_cache():
  run_both(Shops(), ['items', 'users'])


def test_chance_follows_the_row_and_not_its_place():
  task = Shops('adagrad', 'bfloat16')  # whose rows are rounded by chance
  assert make_config().optimizer.rows.stochastic_rounding
  run_both(task, ['items'])


def test_a_batch_with_more_rows_than_places():
  config, task, tx = make_config(), Shops(), optax.adam(0.01)
  stores = make_stores(config, task, ['items'], places=4)
  runtime = SingleDeviceRuntime(config, task, tx, Extensions(stores=stores))
  with pytest.raises(ValueError, match='the cache has 4 places'):
    train(runtime, 1)


def test_what_would_travel_as_sums_travels_as_rows():
  config, task, tx = make_config(), Shops(), optax.adam(0.01)
  config.parallel.pool = 'sums'
  stores = make_stores(config, task, ['items'])
  runtime = SingleDeviceRuntime(config, task, tx, Extensions(stores=stores))
  _, losses, _ = train(runtime)
  config.parallel.pool = 'rows'
  _, wanted, _ = train(SingleDeviceRuntime(config, task, tx))
  np.testing.assert_array_equal(losses, wanted)


def test_a_store_of_ones_own_on_the_device():
  """Without work on the host the step stays one program."""

  @dataclasses.dataclass(frozen=True)
  class Doubled(DeviceStore):
    """Keeps half of each row, and reads it doubled."""

    def read(self, array, places):
      return 2 * super().read(array, places)

  config, task, tx = make_config(), Shops('row_sgd'), optax.adam(0.01)
  runtime = SingleDeviceRuntime(
    config, task, tx, Extensions(stores={'items': Doubled()})
  )
  assert not isinstance(runtime.step(), HostStep)
  _, losses, _ = train(runtime, 2)
  _, others, _ = train(SingleDeviceRuntime(config, task, tx), 2)
  assert losses[0] != others[0]


def test_they_are_stores():
  assert isinstance(DEVICE, contracts.Store)
  assert isinstance(CachedStore(np.ones((3, 2)), {}, 2), contracts.Store)


def refused(match, tables=('items',), task=None, **parallel):
  config, task = make_config(), task or Shops()
  stores = {n: CachedStore(np.ones((ROWS, WIDTH)), {}, PLACES) for n in tables}
  config.parallel.update(parallel)
  with pytest.raises(ValueError, match=match):
    build_runtime(config, task, optax.adam(0.01), Extensions(stores=stores))


def test_what_is_refused():
  refused('stores names shops; the tables that are updated by rows', ['shops'])
  refused('stores names small', ['small'])  # which optax updates
  refused('names items; a mesh keeps rows where its plan says', devices=2)
  refused('parallel.pipeline', pipeline='exact')


def test_checkpoints_by_rows_are_refused():
  config = make_config()
  config.checkpoint.publish.every = 5
  stores = make_stores(make_config(), Shops(), ['items'])
  with pytest.raises(ValueError, match='no rows are marked as changed'):
    SingleDeviceRuntime(
      config, Shops(), optax.adam(0.01), Extensions(stores=stores)
    )


def test_an_evaluation_is_refused():
  config, task = make_config(), Shops()
  stores = make_stores(config, task, ['items'])
  runtime = SingleDeviceRuntime(
    config, task, optax.adam(0.01), Extensions(stores=stores)
  )
  weights = contracts.weights_of(runtime.fresh_state())
  reads = task.reads(batch(0))
  with pytest.raises(ValueError, match='cannot be evaluated'):
    runtime.read_rows(task, weights, reads)


def test_rows_that_nobody_has_brought():
  config, task = make_config(), Shops()
  stores = make_stores(config, task, ['items'])
  runtime = SingleDeviceRuntime(
    config, task, optax.adam(0.01), Extensions(stores=stores)
  )
  state = runtime.fresh_state()
  tables = runtime._tables
  reads = jax.tree.map(lambda x: jnp.asarray(x)[None], task.reads(batch(0)))
  own = {n: read for n, read in reads.items() if read.table in tables.specs}
  routes = tables.route(own)
  with pytest.raises(ValueError, match='call prepare between route and fetch'):
    tables.fetch(state.tables, routes)
