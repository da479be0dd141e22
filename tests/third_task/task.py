"""A task from outside: minutes watched, of a sequence, a bag and a teacher."""

import jax
import jax.numpy as jnp

from genrec_jax.features import ExpectedRead, Read, TableSpec

WIDTH, TAUGHT = 4, 0.5  # of rows; what the teacher counts


class Minutes:
  """Predicts a number; learns from what happened and from a teacher's value."""

  measurements = {
    'loss': 'mean',
    'teacher_error': 'mean',
    'examples': 'sum',
    'worst': 'max',
  }
  progress_unit = 'examples'

  def __init__(self, features, settings):
    self._features = [f for f in features if f.pooled]
    self._tables = {}
    for f in self._features:
      spec = TableSpec(f.source, f.rows, WIDTH, 0.3, 'row_adagrad')
      self._tables[f.source] = settings(spec)

  def tables(self):
    return self._tables

  def init(self, key):
    shape = len(self._features), WIDTH
    return {'w': jax.random.normal(key, shape), 'bias': jnp.zeros(())}

  def reads(self, batch, key=None):
    del key
    return {
      f.name: Read(bag[f.name], f.source, bag.lengths, pooling=f.pooling)
      for f in self._features
      for bag in [batch.jagged[f.name]]
    }

  def reads_for(self, purpose, batch):
    del purpose
    return self.reads(batch)

  def expected_reads(self):
    return {
      f.name: ExpectedRead(f.source, float(f.max_len), f.pooling)
      for f in self._features
    }

  def count(self, batch):
    examples = (batch.weights > 0).sum()
    return examples, examples

  def predict(self, params, rows, batch):
    del batch
    x = jnp.stack([rows[f.name].all() for f in self._features])
    return jnp.einsum('fbd,fd->b', jnp.tanh(x), params['w']) + params['bias']

  def loss(self, params, rows, batch, key):
    del key
    minutes, weights = self.predict(params, rows, batch), batch.weights
    error = jnp.square(minutes - batch.labels['minutes']) * weights
    taught = jnp.square(minutes - batch.extra('teacher')) * weights
    count = jnp.sum(weights)
    return {
      'loss': (jnp.sum(error + TAUGHT * taught), count),
      'teacher_error': (jnp.sum(taught), count),
      'examples': (count, 1.0),
      'worst': (jnp.max(error), count),
    }
