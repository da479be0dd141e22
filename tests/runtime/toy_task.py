"""A task of a few lines, which is all that a training step knows of one."""

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.features import ExpectedRead, Read, TableSpec

WIDTH = 4


class Toy:
  """Predicts 1 from w . row(item), with noise on w; table 'items'."""

  measurements = {'loss': 'mean'}
  progress_unit = 'examples'

  def __init__(self, update='dense', rows=40):
    self.spec = TableSpec('items', rows, WIDTH, 0.5, update)

  def tables(self):
    return {'items': self.spec}

  def init(self, key):
    return {'layer': {'w': jax.random.normal(key, (WIDTH,))}}

  def reads(self, batch, key):
    del key
    return self.reads_for('predict', batch)

  def reads_for(self, purpose, batch):
    del purpose
    return {'item': Read(batch, 'items')}

  def expected_reads(self):
    return {'item': ExpectedRead('items', 1.0)}

  def predict(self, params, rows, batch):
    del batch
    return rows['item'].all() @ params['layer']['w']

  def count(self, batch):
    return jnp.int32(batch.shape[0]), jnp.int32(batch.shape[0])

  def loss(self, params, rows, batch, key):
    noise = 1.0 + 0.1 * jax.random.normal(key, (WIDTH,))
    score = rows['item'].all() @ (params['layer']['w'] * noise)
    total = jnp.sum(jnp.square(score - 1.0))
    count = jnp.float32(batch.shape[0])
    return {'loss': (total, count)}


def batch(seed=0, rows=40, size=8):
  """Item ids of the first half of the table, with repeats."""
  ids = np.random.default_rng(seed).integers(0, rows // 2, size)
  return np.int32(ids)
