"""Towers between two exchanges: as identity nothing, as a network the same."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import ExpectedRead, Read, TableSpec
from genrec_jax.parallel.cuts import Cut
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures('optax_promotes')

# Tables take turns over the hosts: a and c on the first one, b on the second.
FEATURES, TOWERS = ('a', 'b', 'c'), (('a', 'c'), ('b',))
ROWS, WIDTH, EXAMPLES, ROOM, STEPS = 37, 4, 32, 3, 3
CODECS = ('float32', 'bfloat16', 'float16', 'fp8', 'int8')


class Sums:
  """Predicts a number from the sums of three bags."""

  measurements, progress_unit = {'loss': 'mean'}, 'examples'

  def tables(self):
    return {
      name: TableSpec(name, ROWS, WIDTH, 0.5, 'row_adagrad')
      for name in FEATURES
    }

  def init(self, key):
    return {'w': jax.random.normal(key, (len(FEATURES), WIDTH))}

  def expected_reads(self):
    return {f: ExpectedRead(f, ROOM / 2, 'sum') for f in FEATURES}

  def reads(self, batch, key=None):
    del key
    return {
      f: Read(batch[f], f, batch[f'{f} lengths'], pooling='sum')
      for f in FEATURES
    }

  def loss(self, params, rows, batch, key):
    del key
    x = jnp.stack([rows[f].all() for f in FEATURES])
    scores = jnp.einsum('fbd,fd->b', jnp.tanh(x), params['w'])
    error = jnp.square(scores - batch['y']) * batch['weight']
    return {'loss': (jnp.sum(error), jnp.sum(batch['weight']))}


def batch(seed: int, parts: int) -> dict:
  """The same examples, packed for so many shards and microbatches."""
  rng = np.random.default_rng(seed)
  made = {
    'y': rng.normal(size=EXAMPLES).astype(np.float32),
    'weight': rng.integers(0, 3, EXAMPLES).astype(np.float32),
  }
  for feature in FEATURES:
    lengths = rng.integers(0, ROOM + 1, EXAMPLES).astype(np.int32)
    ids = rng.integers(0, ROWS, (EXAMPLES, ROOM)).astype(np.int32)
    packed = np.zeros((parts, EXAMPLES // parts * ROOM), np.int32)
    for part, rows in enumerate(np.split(np.arange(EXAMPLES), parts)):
      own = np.concatenate([ids[i, : lengths[i]] for i in rows])
      packed[part, : len(own)] = own
    made[feature] = packed.reshape(-1)
    made[f'{feature} lengths'] = lengths
  return made


IDENTITY = Towers(
  TOWERS, lambda key: {'bias': jnp.zeros((2, 1))}, lambda p, x: x
)


def init_network(key):
  return {
    'kernel': jax.random.normal(key, (2, WIDTH, WIDTH)),
    'bias': jnp.zeros((2, WIDTH)),
  }


def apply_network(params, x):
  # Over the features too, so that a tower sees all that its host has.
  mixed = x + jnp.mean(x, axis=0, keepdims=True)
  return jnp.tanh(mixed @ params['kernel'] + params['bias'][None, None])


NETWORK = Towers(TOWERS, init_network, apply_network)


def settings(**parallel):
  c = config_lib.ranking()
  c.optimizer.rows.learning_rate = 0.1
  c.parallel.update(
    pool='sums', scheme='table_row_wise', hosts=2, devices=4, **parallel
  )
  return c


@functools.cache
def train(towers, mesh=True, pipeline='none', microbatches=1, codecs=None):
  """(losses and norms, state after some steps) as NumPy arrays."""
  c = settings(pipeline=pipeline, microbatches=microbatches)
  if codecs:
    c.parallel.exchange.update(forward=codecs[0], backward=codecs[1])
  if not mesh:
    c.parallel.update(hosts=1, devices=1)
  task, tx = Sums(), optax.sgd(0.1)
  runtime = (MeshRuntime if mesh else SingleDeviceRuntime)(
    c, task, tx, Extensions(towers=towers)
  )
  parts = runtime.shards if mesh else 1
  batches = [runtime.put_on_devices(batch(i, parts)) for i in range(STEPS)]
  state, step, measured = runtime.fresh_state(), runtime.step(), []
  for number, now in enumerate(batches):
    if pipeline != 'none':
      following = batches[number + 1] if number + 1 < STEPS else None
      now = now, following
    state, loss = step(state, now)
    measured.append((float(loss), float(state.metric_sums['grad_norm'][0])))
  kept = {
    'params': state.params,
    'modules': state.modules,
    'tables': state.tables,
  }
  return measured, jax.device_get(kept)


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'microbatches': 4},
    {'pipeline': 'exact'},
    {'pipeline': 'stale', 'microbatches': 4},
  ],
  ids=str,
)
def test_an_identity_changes_no_bit(options):
  flat, under = train(None, **options), train(IDENTITY, **options)
  assert flat[0] == under[0]
  for name in ('params', 'tables'):
    jax.tree.map(np.testing.assert_array_equal, flat[1][name], under[1][name])


@pytest.mark.parametrize('backward', CODECS)
@pytest.mark.parametrize('forward', CODECS)
def test_an_identity_with_codecs(forward, backward):
  """Gradients are encoded on each of two ways instead of once for both.

  What is a cast, or scaled by its largest element, encodes to the same bits
  again. The steps of int8 are counted from the least value to the greatest,
  and the greatest does not come back exactly.
  """
  codecs = forward, backward
  flat, one = train(None, codecs=codecs)
  under, other = train(IDENTITY, codecs=codecs)
  if backward == 'int8':
    np.testing.assert_allclose(flat, under, rtol=2e-2)
    return
  assert flat == under
  jax.tree.map(np.testing.assert_array_equal, one['tables'], other['tables'])


@pytest.mark.parametrize(
  'options', [{}, {'microbatches': 4}, {'pipeline': 'exact'}], ids=str
)
def test_a_network_learns_what_it_would_on_one_device(options):
  one, mesh = train(NETWORK, mesh=False), train(NETWORK, **options)
  assert_close(mesh[0], one[0])
  for name in ('params', 'modules'):
    jax.tree.map(assert_close, mesh[1][name], one[1][name])


def test_a_sum_over_the_wrong_axes_is_noticed(monkeypatch):
  """The test above would fail if other hosts' gradients were added."""
  one, right = train(NETWORK, mesh=False), train(NETWORK)
  assert_close(right[1]['modules']['kernel'], one[1]['modules']['kernel'])
  monkeypatch.setattr(
    towers_lib, 'CUT', Cut(0, ('host',), ('dev',)), raising=True
  )
  # A mesh of two replicas, whose gradients are now not added.
  c = settings()
  c.parallel.update(replicas=2, devices=2)
  task = Sums()
  runtime = MeshRuntime(c, task, optax.sgd(0.1), Extensions(towers=NETWORK))
  state = runtime.fresh_state()
  data = runtime.put_on_devices(batch(0, runtime.shards))
  state, _ = runtime.step()(state, data)
  c.parallel.update(replicas=1, hosts=1, devices=1)
  alone = SingleDeviceRuntime(
    c, task, optax.sgd(0.1), Extensions(towers=NETWORK)
  )
  wanted, _ = alone.step()(alone.fresh_state(), batch(0, 1))
  with pytest.raises(AssertionError):
    assert_close(
      state.modules['kernel'], jax.device_get(wanted.modules['kernel'])
    )


def test_what_no_tower_can_see():
  task, tx = Sums(), optax.sgd(0.1)

  def route(c, towers):
    runtime = MeshRuntime(c, task, tx, Extensions(towers=towers))
    state = runtime.fresh_state()
    runtime.step()(state, runtime.put_on_devices(batch(0, 8)))

  with pytest.raises(ValueError, match='1 towers and 2 hosts'):
    route(settings(), dataclasses.replace(IDENTITY, features=(('a',),)))
  wrong = dataclasses.replace(IDENTITY, features=(('a', 'b'), ('c',)))
  with pytest.raises(ValueError, match="'b' is under tower 0: the rows"):
    route(settings(), wrong)
  rows = settings()
  rows.parallel.pool = 'rows'
  with pytest.raises(ValueError, match="set parallel.pool='sums'"):
    route(rows, IDENTITY)
