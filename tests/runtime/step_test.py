"""One step: who updates what, random numbers, measurements, memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding import lookup
from genrec_jax.runtime import measurements, optimizer
from genrec_jax.runtime import state as state_lib
from genrec_jax.runtime.step import make_step
from tests.runtime.toy_task import Toy, batch
from tests.tolerances import assert_close

RATE = 0.05
SEED = 7
MEASURED = ['grad_norm', 'loss']


def start(update='dense', tx=None, **fields):
  task, tx = Toy(update, **fields), tx or optax.sgd(RATE)
  step = make_step(task, tx, seed=SEED, row_learning_rate=RATE)
  return task, jax.jit(step), state_lib.create_state(task, tx, SEED, MEASURED)


def run(update, steps=3, tx=None):
  _, step, state = start(update, tx)
  losses = []
  for i in range(steps):
    state, loss = step(state, batch(i))
    losses.append(float(loss))
  return state, losses


@pytest.mark.usefixtures('optax_promotes')
def test_a_dense_step_is_what_optax_makes_of_the_gradient():
  tx = optax.adam(RATE)
  task, step, state = start(tx=tx)
  after, loss = step(state, batch())

  def loss_fn(trained):
    key = jax.random.fold_in(jax.random.key(SEED), 0)
    reads = task.reads(jnp.asarray(batch()), key)
    rows = lookup.view_tables(trained['tables'], reads)
    total, count = task.loss(trained['params'], rows, batch(), key)['loss']
    return total / count

  trained = {'params': state.params, 'tables': state.tables}
  expected, grads = jax.value_and_grad(loss_fn)(trained)
  updates, _ = tx.update(grads, tx.init(trained), trained)
  wanted = optax.apply_updates(trained, updates)
  assert_close(loss, expected)
  found = {'params': after.params, 'tables': after.tables}
  jax.tree.map(assert_close, found, wanted)
  assert_close(after.metric_sums['grad_norm'], [optax.tree.norm(grads), 1.0])
  assert after.step == 1


def test_touched_rows_learn_what_the_table_would():
  """Plain gradient descent on rows is plain gradient descent on the table."""
  dense, losses = run('dense')
  rows, row_losses = run('row_sgd')
  assert_close(row_losses, losses)
  assert_close(rows.tables['items'], dense.tables['items'])
  assert_close(rows.params['layer']['w'], dense.params['layer']['w'])
  assert_close(rows.metric_sums['grad_norm'], dense.metric_sums['grad_norm'])


@pytest.mark.parametrize('update', ['row_sgd', 'row_adagrad'])
def test_other_rows_keep_their_bits(update):
  _, step, state = start(update)
  after, _ = step(state, batch())
  changed = np.any(after.tables['items'] != state.tables['items'], axis=1)
  assert np.flatnonzero(changed).tolist() == np.unique(batch()).tolist()


@pytest.mark.usefixtures('optax_promotes')
@pytest.mark.parametrize('name', ['sgd', 'adamw'])
@pytest.mark.parametrize('update', ['dense', 'row_sgd', 'row_adagrad'])
def test_a_plateau_divides_every_rate(name, update):
  """A quarter, so that no product is rounded and the bits must agree."""

  def run_at(rate, lr_scale):
    config = config_lib.retrieval().optimizer
    config.update(name=name, learning_rate=rate, weight_decay=0.3)
    task, tx = Toy(update), optimizer.build_optimizer(config)
    step = jax.jit(make_step(task, tx, seed=SEED, row_learning_rate=rate))
    state = state_lib.create_state(task, tx, SEED, MEASURED)
    state = dataclasses.replace(state, lr_scale=jnp.float32(lr_scale))
    for seed in range(3):
      state, _ = step(state, batch(seed))
    return state

  scaled, full, quarter = run_at(0.5, 0.25), run_at(0.5, 1), run_at(0.125, 1)
  assert scaled.lr_scale == 0.25
  for one, other, same in zip(
    jax.tree.leaves((scaled.tables, scaled.params)),
    jax.tree.leaves((full.tables, full.params)),
    jax.tree.leaves((quarter.tables, quarter.params)),
    strict=True,
  ):
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)


def test_random_numbers_are_a_function_of_seed_and_step():
  _, losses = run('dense')
  assert run('dense')[1] == losses
  _, step, state = start()
  _, first = step(state, batch())
  later = dataclasses.replace(state, step=jnp.int32(1))
  _, second = step(later, batch())
  assert first != second


def test_sums_add_up_between_log_lines():
  state, losses = run('dense')
  total, weight = state.metric_sums['loss'].tolist()
  assert weight == 3 * len(batch())
  assert total / weight == pytest.approx(np.mean(losses), rel=1e-6)
  assert state.metric_sums['grad_norm'][1] == 3


@pytest.mark.parametrize('update', ['dense', 'row_adagrad'])
@pytest.mark.parametrize('poison', [np.nan, np.inf])
def test_the_first_bad_step_is_remembered(update, poison):
  _, step, state = start(update)
  state, _ = step(state, batch(0))
  assert state.first_nonfinite.tolist() == [-1, -1]
  item = int(batch(1)[0])
  tables = {'items': state.tables['items'].at[item].set(poison)}
  state = dataclasses.replace(state, tables=tables)
  for i in (1, 2, 3):
    state, _ = step(state, batch(i))
  assert state.first_nonfinite[0] == 2  # the second step
  assert MEASURED[state.first_nonfinite[1]] in ('grad_norm', 'loss')


def test_which_measurement_is_bad():
  """A loss may be finite where its gradient is not: sqrt at zero."""

  class Root(Toy):
    def loss(self, params, rows, batch, key):
      value = jnp.sum(jnp.sqrt(params['layer']['w'] * 0.0))
      return {'loss': (value, jnp.float32(1))}

  task, tx = Root(), optax.sgd(RATE)
  step = make_step(task, tx, seed=SEED)
  state = state_lib.create_state(task, tx, SEED, MEASURED)
  state, loss = jax.jit(step)(state, batch())
  assert loss == 0.0
  assert state.first_nonfinite.tolist() == [1, MEASURED.index('grad_norm')]


def memory_of(update, rows):
  task, tx = Toy(update, rows), optax.sgd(RATE)
  step = make_step(task, tx, seed=SEED, row_learning_rate=RATE)
  state = jax.eval_shape(
    lambda: state_lib.create_state(task, tx, SEED, MEASURED)
  )
  compiled = jax.jit(step, donate_argnums=0).lower(state, batch()).compile()
  table = state.tables['items']
  return compiled.memory_analysis(), table.size * table.dtype.itemsize


def test_a_large_table_is_neither_copied_nor_differentiated():
  memory, table = memory_of('row_adagrad', rows=1_000_000)
  assert memory.alias_size_in_bytes >= table
  assert memory.temp_size_in_bytes < table / 1000
  # The same measure does see the gradient of a dense table.
  memory, table = memory_of('dense', rows=1_000_000)
  assert memory.temp_size_in_bytes >= table / 2


@pytest.mark.usefixtures('optax_promotes')
@pytest.mark.parametrize('microbatches', [1, 4])
def test_l2_pulls_the_parameters_that_a_task_names(microbatches):
  """(l/2)|w|^2 once a step, however the batch is cut or weighs."""

  def take_step(**more):
    task = Toy()
    vars(task).update(more)
    options = dict(seed=SEED, microbatches=microbatches)
    step = jax.jit(make_step(task, optax.sgd(RATE), **options))
    _, _, state = start()
    return state, step(state, batch())

  state, (plain, loss) = take_step()
  _, (after, other_loss) = take_step(param_l2={'layer/w': 0.3})
  assert loss == other_loss
  before = state.params['layer']['w']
  wanted = plain.params['layer']['w'] - RATE * 0.3 * before
  assert np.any(before) and before.size
  assert_close(after.params['layer']['w'], wanted)
  np.testing.assert_array_equal(after.tables['items'], plain.tables['items'])


@pytest.mark.usefixtures('optax_promotes')
def test_l2_pulls_all_rows_and_is_not_in_the_loss():
  """(l/2)|E|^2 of the whole table, once, however often a row is read."""
  strength = 0.3
  plain, step, state = start()
  pulled = Toy()
  pulled.spec = dataclasses.replace(pulled.spec, l2=strength)
  pulled_step = jax.jit(
    make_step(pulled, optax.sgd(RATE), seed=SEED, row_learning_rate=RATE)
  )
  after, loss = step(state, batch())
  other, other_loss = pulled_step(state, batch())
  assert loss == other_loss
  # Plain gradient descent takes `RATE` of what the pull adds to the gradient.
  wanted = after.tables['items'] - RATE * strength * state.tables['items']
  assert_close(other.tables['items'], wanted)
  assert_close(other.params['layer']['w'], after.params['layer']['w'])
  assert other.metric_sums['grad_norm'][0] > after.metric_sums['grad_norm'][0]


class Measuring(Toy):
  """Measures more than its loss."""

  measurements = {'loss': 'mean', 'seen': 'sum', 'largest': 'max'}

  def loss(self, params, rows, batch, key):
    measured = super().loss(params, rows, batch, key)
    count = jnp.float32(batch.shape[0])
    ids = batch.astype(jnp.float32)
    return {**measured, 'seen': (count, 1.0), 'largest': (jnp.max(ids), count)}


@pytest.mark.parametrize('microbatches', [1, 4])
def test_measurements_add_up_as_declared(microbatches):
  task, tx = Measuring(), optax.sgd(RATE)
  step = jax.jit(make_step(task, tx, seed=SEED, microbatches=microbatches))
  names = measurements.measurement_names(task, on_mesh=False)
  state = state_lib.create_state(task, tx, SEED, names)
  batches = [batch(seed) for seed in range(3)]
  with jax.numpy_dtype_promotion('standard'):
    for ids in batches:
      state, _ = step(state, ids)
  sums = {n: [float(x) for x in pair] for n, pair in state.metric_sums.items()}
  logged = {
    name: measurements.read_measurement(
      measurements.declare_measurements(task)[name], *pair
    )
    for name, pair in sums.items()
  }
  assert logged['seen'] == sum(map(len, batches))
  assert logged['largest'] == max(map(max, batches))
  assert logged['loss'] == pytest.approx(
    sums['loss'][0] / sum(map(len, batches)), rel=1e-6
  )


def test_a_largest_value_that_is_not_finite_is_noticed():
  nothing = jnp.zeros(2)
  kinds = {'largest': 'max'}
  for value, wanted in ((np.nan, np.nan), (-7.0, -7.0)):
    pair = jnp.float32(value), jnp.float32(1)
    found = measurements.add_measurements(
      kinds, {'largest': nothing}, {'largest': pair}
    )
    np.testing.assert_array_equal(found['largest'], [wanted, 1.0])


def test_a_mean_over_weights_that_are_small():
  """Weights of labels may add up to less than one example."""

  class Weighing(Toy):
    def loss(self, params, rows, batch, key):
      total, count = super().loss(params, rows, batch, key)['loss']
      return {'loss': (total * self.weight, count * self.weight)}

  def weights_after(weight):
    task = Weighing()
    task.weight = weight
    step = make_step(task, optax.sgd(RATE), seed=SEED, row_learning_rate=RATE)
    state = state_lib.create_state(task, optax.sgd(RATE), SEED, MEASURED)
    state, _ = jax.jit(step)(state, batch())
    return state.params['layer']['w']

  assert_close(weights_after(2.0**-9), weights_after(1.0))
  assert np.all(np.isfinite(weights_after(0.0)))


def test_a_loss_without_its_weight():
  class Bare(Toy):
    def loss(self, params, rows, batch, key):
      return {'loss': super().loss(params, rows, batch, key)['loss'][0]}

  with pytest.raises(
    ValueError, match=r"returns 'loss' as .*\(value, weight\)"
  ):
    run_task(Bare())


def test_weights_of_rows_that_nobody_adds_up():
  class Weighing(Toy):
    def reads_for(self, purpose, batch):
      read = super().reads_for(purpose, batch)['item']
      weights = jnp.ones(read.ids.shape)
      return {'item': dataclasses.replace(read, weights=weights)}

  with pytest.raises(ValueError, match='only pooled reads apply'):
    run_task(Weighing())


def run_task(task):
  step = make_step(task, optax.sgd(RATE), seed=SEED, row_learning_rate=RATE)
  state = state_lib.create_state(task, optax.sgd(RATE), SEED, MEASURED)
  return jax.jit(step)(state, batch())
