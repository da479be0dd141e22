"""Inputs of the jagged_embedding tests, and the backends that run here."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.jagged_embedding import api, shapes

HERE = [n for n, b in api.BACKENDS.items() if b.why_not() is None]
FAST = [n for n in HERE if n != 'reference']
SHAPES = ('tiny', 'narrow', 'wide', 'ml1m_items')


def inputs(name: str, dtype: str = 'float32', seed: int = 0) -> dict:
  """Table, ids, lengths, weights and gradients of the bags of a shape."""
  shape = shapes.SHAPES[name]
  rng = np.random.default_rng(seed + 2)
  lengths = shapes.lengths(shape, seed)
  ids = shapes.ids(shape, seed)
  ids[lengths.sum() :] = -(2**30)  # padding must not be read

  def normal(*size):
    return jnp.float32(rng.normal(size=size))

  return {
    'table': normal(shape.rows, shape.dim).astype(dtype),
    'ids': jnp.asarray(ids),
    'lengths': jnp.asarray(lengths),
    'weights': normal(shape.capacity),
    'grads': normal(shape.bags, shape.dim),
  }


def slots(table: jax.Array, optimizer: str) -> dict:
  """Slots as after some steps: nothing is zero."""
  some = {
    name: 0.1 + jnp.abs(jax.random.normal(jax.random.key(3), x.shape))
    for name, x in api.init_slots(table, optimizer).items()
    if name != 'count'
  }
  return some | ({'count': jnp.int32(4)} if optimizer == 'adam' else {})
