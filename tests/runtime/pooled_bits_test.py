"""determinism='mesh_invariant' where rows and sums of one table meet."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding import relayout
from genrec_jax.features import ExpectedRead, Read, TableSpec
from genrec_jax.runtime.mesh import MeshRuntime

ROWS, DIM, EXAMPLES, MOST, BLOCKS = 29, 8, 32, 4, 8


class Pooled:
  """A mean of weighted rows, a sum, and single rows of the same table."""

  measurements = {'loss': 'mean'}
  progress_unit = 'examples'

  def tables(self):
    return {n: TableSpec(n, ROWS, DIM, 0.5, 'sgd') for n in ('shared', 'tags')}

  def init(self, key):
    return {'w': jax.random.normal(key, (3, DIM))}

  def reads(self, batch, key=None):
    del key
    mean, total = batch['mean'], batch['sum']
    return {
      'mean': Read(
        mean['ids'], 'shared', mean['lengths'], mean['weights'], 'mean'
      ),
      'one': Read(batch['one'], 'shared'),
      'sum': Read(total['ids'], 'tags', total['lengths'], None, 'sum'),
    }

  def expected_reads(self):
    return {
      'mean': ExpectedRead('shared', MOST, 'mean'),
      'one': ExpectedRead('shared', 1.0),
      'sum': ExpectedRead('tags', MOST, 'sum'),
    }

  def loss(self, params, rows, batch, key):
    del key
    x = jnp.stack([rows[name].all() for name in ('mean', 'one', 'sum')])
    error = jnp.square(jnp.einsum('fbd,fd->b', x, params['w']) - batch['y'])
    return {'loss': (jnp.sum(error), jnp.float32(error.shape[0]))}

  def count(self, batch):
    return batch['y'].shape[0], batch['y'].shape[0]


def batch(seed: int) -> dict:
  """Bags are packed block by block, padding at the end of each."""
  rng = np.random.default_rng(seed)

  def bags():
    lengths = rng.integers(0, MOST, EXAMPLES)  # 3 divides with a rest
    room = EXAMPLES // BLOCKS * MOST
    ids, weights = np.zeros((2, BLOCKS, room))
    for block, own in enumerate(lengths.reshape(BLOCKS, -1)):
      ids[block, : own.sum()] = rng.integers(0, ROWS, own.sum())
      weights[block] = rng.normal(size=room)
    return {
      'ids': np.int32(ids.reshape(-1)),
      'lengths': np.int32(lengths),
      'weights': np.float32(weights.reshape(-1)),
    }

  return {
    'mean': bags(),
    'sum': bags(),
    'one': np.int32(rng.integers(0, ROWS, EXAMPLES)),
    'y': np.float32(rng.normal(size=EXAMPLES)),
  }


@functools.cache
def trained(hosts: int, devices: int, scheme: str, pool: str):
  """(losses, weights, tables, plan) after some steps."""
  config = config_lib.ranking()
  config.optimizer.rows.learning_rate = 0.1
  config.parallel.update(
    dict(hosts=hosts, devices=devices, scheme=scheme, pool=pool)
  )
  config.parallel.update(
    dict(determinism='mesh_invariant', reduction_blocks=BLOCKS)
  )
  runtime = MeshRuntime(config, Pooled(), optax.sgd(0.1))
  state, step, losses = runtime.fresh_state(), runtime.step(), []
  for seed in range(3):
    state, loss = step(state, runtime.put_on_devices(batch(seed)))
    losses.append(float(loss))
  layout = runtime._tables.layout
  tables = {
    n: relayout.gather_table(layout, state.tables, n) for n in ('shared',)
  }
  return losses, np.asarray(state.params['w']), tables, runtime.plan


@pytest.mark.parametrize(
  'scheme, pool, taken',
  [
    ('table_wise', 'auto', 'sums'),
    ('row_wise', 'rows', 'rows'),
    ('data_parallel', 'auto', 'sums'),  # a block on each of eight devices
    ('auto', 'auto', 'rows'),  # other schemes on other meshes
  ],
)
@pytest.mark.parametrize(
  'hosts, devices',
  [(2, 4), pytest.param(1, 2, marks=pytest.mark.slow)],
)
def test_the_mesh_changes_no_bit(hosts, devices, scheme, pool, taken):
  one = trained(1, 1, scheme, pool)
  many = trained(hosts, devices, scheme, pool)
  assert (
    one[3].pooling == many[3].pooling == dict.fromkeys(('mean', 'sum'), taken)
  )
  assert one[0] == many[0]
  np.testing.assert_array_equal(one[1], many[1])
  np.testing.assert_array_equal(one[2]['shared'], many[2]['shared'])
