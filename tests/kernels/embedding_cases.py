"""Inputs of the jagged_embedding tests, and the backends that run here."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.jagged_embedding import api, shapes
from tests.tolerances import bounds

# The TPU kernels take certain widths alone; tpu_embedding_test.py has them.
HERE = [
  n for n, b in api.BACKENDS.items() if b.why_not() is None and n != 'interpret'
]
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


def padded_inputs(
  rng, lengths, rows: int, width: int, dtype: str, frequent, padding: int
) -> dict:
  """As `inputs`, with a frequent row and with NaN as weights of the padding.

  Args:
    rng: a generator.
    lengths: of the bags.
    rows: of the table.
    width: of a row.
    dtype: of the table.
    frequent: a row, and the share of ids that are made its own.
    padding: ids behind the bags, which are no rows.
  """
  count = lengths.sum() + padding
  ids = rng.integers(0, rows, count, dtype=np.int32)
  ids[rng.random(count) < frequent[1]] = frequent[0]
  ids[-padding:] = -(2**30)
  weights = np.float32(rng.normal(size=count))
  weights[-padding:] = np.nan

  def normal(*size):
    return jnp.asarray(rng.normal(size=size), jnp.float32)

  return {
    'table': normal(rows, width).astype(dtype),
    'ids': jnp.asarray(ids),
    'lengths': jnp.asarray(lengths),
    'weights': jnp.asarray(weights),
    'grads': normal(len(lengths), width),
  }


def slots(table: jax.Array, optimizer, **options) -> dict:
  """Slots as after some steps: nothing is zero."""
  some = {
    name: 0.1 + jnp.abs(jax.random.normal(jax.random.key(3), x.shape))
    for name, x in api.init_slots(table, optimizer, **options).items()
  }
  if 'count' in some:  # four updates, or some number of each row
    count = some['count']
    some['count'] = jnp.round(4 * count) if count.ndim else jnp.int32(4)
  return some


def assert_rounded_once(actual, expected, name: str = ''):
  """Fails where `actual` is not `expected` in its dtype, rounded once.

  Its dtype counts in steps of the size of each element; what it rounds was
  computed in float32.
  """
  about = jnp.finfo(actual.dtype)
  actual = np.asarray(actual, np.float64)
  expected = np.asarray(expected, np.float64)
  assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
  size = np.maximum(np.abs(expected), float(about.smallest_normal))
  step = 2.0 ** (np.floor(np.log2(size)) - about.nmant)
  bound = 0.5 * step + bounds(expected)
  over = np.abs(actual - expected) / bound
  assert np.all(over <= 1), (  # NaN must fail
    f'{name or "values"}: {np.argwhere(~(over <= 1))[:3].tolist()} are off by '
    f'{over.max():.3g} times what rounding allows'
  )
