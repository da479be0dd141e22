"""States of a ShardedEmbedding that are carried to another mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from genrec_jax.embedding.sharded_embedding import (
  EmbeddingTable,
  ShardedEmbedding,
)
from tests.embedding.sharded_embedding_test import mesh_of

ROWS = 39  # as many rows of padding on 6 devices as on 8, on 2 as on 3


def make_embedding(devices: int, **options) -> ShardedEmbedding:
  table = EmbeddingTable(ROWS, 2, rate=1.0)
  return ShardedEmbedding({'t': table}, mesh=mesh_of(devices), **options)


@pytest.mark.parametrize('counts', [(8, 6), (6, 8), (2, 3), (3, 2)])
def test_another_number_of_devices_is_refused(counts, tmp_path):
  """Shapes agree, and rows are in another order."""
  old, new = map(make_embedding, counts)
  given = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
  state = old.init(jax.random.key(0), {'t': given})
  fresh = new.init(jax.random.key(0))
  shapes, other_shapes = (
    jax.tree.map(jnp.shape, x.arrays) for x in (state, fresh)
  )
  assert shapes == other_shapes
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / 'state', state)
    checkpointer.wait_until_finished()
    with pytest.raises(ValueError, match=f'rows_of_{counts[0]}_devices'):
      checkpointer.restore(tmp_path / 'state', fresh)
  host = jax.tree.map(np.array, state)
  with pytest.raises(ValueError, match=f'rows_of_{counts[1]}_devices'):
    jax.device_put(host, new.state_sharding)
  words = f'rows_of_{counts[0]}_.*rows_of_{counts[1]}_.*begin with `init.key, '
  step = new.value_and_grad(lambda rows, w: jnp.sum(rows['t']) * w)
  ids = {'t': np.arange(24)}
  for read in (
    lambda: new.table(host, 't'),
    lambda: new.lookup(state, ids),
    lambda: step(state, ids, jnp.float32(1)),
  ):
    with pytest.raises(ValueError, match=words):
      read()
  carried = new.init(jax.random.key(1), {'t': old.table(state, 't')})
  np.testing.assert_array_equal(new.table(carried, 't'), given)


def test_a_state_from_the_host_goes_on_and_is_given_away():
  emb = make_embedding(6)
  host = jax.tree.map(np.array, emb.init(jax.random.key(0)))
  state = jax.device_put(host, emb.state_sharding)
  run = emb.value_and_grad(lambda rows, w: jnp.sum(rows['t']) * w)
  step = jax.jit(run, donate_argnums=0)
  _, state = step(state, {'t': np.arange(6)}, jnp.float32(1))
  _, state = step(state, {'t': np.arange(6)}, jnp.float32(1))
  assert int(state.step) == 2 and emb.table(state, 't').shape == (ROWS, 2)


def test_whole_tables_go_to_any_number_of_devices():
  old, new = (make_embedding(n, scheme='data_parallel') for n in (8, 6))
  state = old.init(jax.random.key(0))
  host = jax.tree.map(np.array, state)
  there = jax.device_put(host, new.state_sharding)
  np.testing.assert_array_equal(new.table(there, 't'), old.table(state, 't'))
