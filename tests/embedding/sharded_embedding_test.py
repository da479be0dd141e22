"""ShardedEmbedding against a dense table, on meshes, saved and restored."""

import dataclasses
import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from genrec_jax.embedding import row_optimizers, sharded_embedding
from genrec_jax.embedding.sharded_embedding import (
  EmbeddingTable,
  Lookup,
  ShardedEmbedding,
)
from tests.kernels.row_update_oracle import plain_update
from tests.tolerances import assert_close

ROWS, WIDTH, BATCH, LENGTH, STEPS = 37, 8, 16, 5, 3
TABLES = {
  'item': EmbeddingTable(ROWS, WIDTH, rate=0.1),
  'user': EmbeddingTable(11, WIDTH, optimizer='adam', rate=0.03),
}


def mesh_of(devices: int) -> Mesh:
  """A mesh as somebody else makes it, with names of their own."""
  return Mesh(np.array(jax.devices()[:devices]), ('data',))


def batch_of(number: int) -> dict:
  """Ids with repetitions, empty bags, weights, and what to predict."""
  rng = np.random.default_rng(number)
  lengths = rng.integers(0, LENGTH + 1, BATCH)
  lengths[0] = 0
  return {
    'ids': {
      'item': rng.integers(0, ROWS, (BATCH, 2)),
      'bag': Lookup(
        rng.integers(0, ROWS, (BATCH, LENGTH)),
        'item',
        'mean',
        lengths,
        rng.normal(size=(BATCH, LENGTH)).astype(np.float32),
      ),
      'user': rng.integers(0, 11, BATCH),
    },
    'wanted': rng.normal(size=(BATCH, WIDTH)).astype(np.float32),
  }


def loss_of(rows, params, wanted):
  mixed = rows['item'].sum(axis=1) + rows['bag'] * rows['user']
  return jnp.mean(jnp.sum((mixed @ params - wanted) ** 2, axis=1))


def dense_rows(tables, ids) -> dict:
  """The same lookups in whole tables, example by example."""
  bag = ids['bag']
  real = np.arange(LENGTH)[None] < bag.lengths[:, None]
  share = np.where(real, bag.weights, 0) / np.maximum(bag.lengths, 1)[:, None]
  of_bag = tables['item'][bag.ids] * share.astype(np.float32)[..., None]
  return {
    'item': tables['item'][ids['item']],
    'bag': of_bag.sum(axis=1),
    'user': tables['user'][ids['user']],
  }


def make_step(emb):
  @jax.jit
  def step(state, params, batch):
    (value, grads), state = emb.value_and_grad(loss_of)(
      state, batch['ids'], params, batch['wanted']
    )
    return state, params - 0.1 * grads, value

  return step


def train(emb, steps=range(STEPS), state=None, params=None):
  """(state, parameters, losses) after some steps."""
  step = make_step(emb)
  state = emb.init(jax.random.key(0)) if state is None else state
  params = jnp.eye(WIDTH) if params is None else params
  losses = []
  for number in steps:
    state, params, value = step(state, params, batch_of(number))
    losses.append(float(value))
  return state, params, losses


@pytest.fixture(scope='module')
def one_device():
  emb = ShardedEmbedding(TABLES, mesh=mesh_of(1))
  return emb, *train(emb)


def test_equals_a_dense_table_and_the_plain_row_optimizer(one_device):
  emb, state, params, losses = one_device
  start = emb.init(jax.random.key(0))
  tables = {name: emb.table(start, name) for name in TABLES}
  slots = {
    'item': {'sum': np.zeros(ROWS)},
    'user': {
      'mean': np.zeros((11, WIDTH)),
      'variance': np.zeros((11, WIDTH)),
      'count': np.zeros(()),
    },
  }
  weights, expected = jnp.eye(WIDTH), []
  for number in range(STEPS):
    batch = batch_of(number)
    ids = batch['ids']

    def loss(tables, weights, batch=batch):
      rows = dense_rows(tables, batch['ids'])
      return loss_of(rows, weights, batch['wanted'])

    tables = {name: jnp.asarray(x, jnp.float32) for name, x in tables.items()}
    value, (grads, of_weights) = jax.value_and_grad(loss, argnums=(0, 1))(
      tables, weights
    )
    expected.append(float(value))
    weights = weights - 0.1 * of_weights
    real = np.arange(LENGTH)[None] < ids['bag'].lengths[:, None]
    touched = {
      'item': np.union1d(ids['item'], ids['bag'].ids[real]),
      'user': np.unique(ids['user']),
    }
    for name, table in TABLES.items():
      tables[name], slots[name] = plain_update(
        row_optimizers.ROW_OPTIMIZERS[table.optimizer],
        table.rate,
        tables[name],
        slots[name],
        touched[name],
        np.asarray(grads[name])[touched[name]],
      )
  assert_close(losses, expected, 'curve', axis=None)
  assert_close(params, weights, name='parameters')
  for name in TABLES:
    assert_close(emb.table(state, name), tables[name], name=name)


@pytest.mark.parametrize('scheme', ['row_wise', 'table_wise', 'column_wise'])
@pytest.mark.parametrize('devices', [2, 4, 8])
def test_is_the_same_on_any_mesh(one_device, devices, scheme):
  whole, wanted, wanted_params, wanted_losses = one_device
  emb = ShardedEmbedding(
    TABLES,
    mesh=mesh_of(devices),
    hosts=min(2, devices // 2),
    scheme=scheme,
    pooled_as='rows' if devices == 4 else 'sums',
  )
  state, params, losses = train(emb)
  assert_close(losses, wanted_losses, 'curve', axis=None)
  assert_close(params, wanted_params, name='parameters')
  for name in TABLES:
    assert_close(emb.table(state, name), whole.table(wanted, name), name=name)
