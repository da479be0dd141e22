"""Looking a batch ahead: what must not change, and what does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax.features import Read
from genrec_jax.runtime import pipelining, state
from genrec_jax.runtime.step import make_step
from tests.runtime.toy_task import Toy, batch

BATCHES = [batch(seed) for seed in range(5)]
RATE = 0.05


class Numbers:
  """An iterator of batches whose state is how many it has given."""

  def __init__(self, count=5):
    self.at, self.count = 0, count

  def __next__(self):
    if self.at == self.count:
      raise StopIteration
    self.at += 1
    return self.at - 1

  def get_state(self):
    return {'at': self.at}

  def set_state(self, value):
    self.at = value['at']

  def close(self):
    self.at = None


class Drawing(Toy):
  """Reads rows that are drawn anew in every step, as negatives are."""

  def reads(self, batch, key):
    drawn = Read(self._drawn(batch, key), 'items')
    return super().reads(batch, key) | {'drawn': drawn}

  def loss(self, params, rows, batch, key):
    total, count = super().loss(params, rows, batch, key)['loss']
    return {'loss': (total + jnp.sum(jnp.square(rows['drawn'].all())), count)}

  def _drawn(self, batch, key):
    return jax.random.randint(key, batch.shape, 0, self.spec.rows)


def start(update, task=Toy):
  task, tx = task(update), optax.sgd(RATE)
  step = make_step(task, tx, seed=0, row_learning_rate=RATE)
  return step, state.create_state(task, tx, 0, ['grad_norm', 'loss'])


def run(step, state, *, stale):
  prepare, run_ = pipelining.split_step(step, stale=stale)
  step = pipelining.PipelinedStep(
    jax.jit(prepare), jax.jit(run_, donate_argnums=0)
  )
  losses = []
  for i, first in enumerate(BATCHES):
    following = BATCHES[i + 1] if i + 1 < len(BATCHES) else None
    state, loss = step(state, (first, following))
    losses.append(float(loss))
  return state, losses


@pytest.mark.parametrize('task', [Toy, Drawing])
@pytest.mark.parametrize('update', ['dense', 'row_sgd', 'row_adagrad'])
def test_exact_is_what_it_would_be_without(update, task):
  step, first = start(update, task)
  plain, losses = first, []
  for b in BATCHES:
    plain, loss = jax.jit(step)(plain, b)
    losses.append(float(loss))
  found, found_losses = run(step, first, stale=False)
  assert found_losses == losses
  jax.tree.map(np.testing.assert_array_equal, found, plain)


@pytest.mark.parametrize('task', [Toy, Drawing])
def test_stale_rows_are_one_step_old(task):
  """By the definition: rows are fetched before the step in front of theirs."""
  step, first = start('row_sgd', task)
  now, losses = first, []
  routed, _ = step.route(BATCHES[0], now.step, {})
  rows = step.fetch(now, routed)
  for i, b in enumerate(BATCHES):
    (routed, _), early = step.route(b, now.step, {}), None
    if i + 1 < len(BATCHES):
      following, _ = step.route(BATCHES[i + 1], now.step + 1, {})
      early = step.fetch(now, following)
    now, loss = step.learn(now, b, routed, rows, {})
    losses.append(float(loss))
    rows = early
  found, found_losses = run(step, start('row_sgd', task)[1], stale=True)
  np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
  np.testing.assert_allclose(
    found.tables['items'], now.tables['items'], rtol=1e-6
  )
  exact, _ = run(step, start('row_sgd', task)[1], stale=False)
  assert np.any(found.tables['items'] != exact.tables['items'])


def test_pairs_and_where_they_stand():
  pairs = pipelining.LookaheadIterator(Numbers())
  assert pairs.get_state() == {'at': 0}
  found = []
  for pair in pairs:
    found.append(pair)
    # A checkpoint made now must meet the second of the two again.
    assert pairs.get_state() == {'at': pair[0] + 1}
  assert found == [(0, 1), (1, 2), (2, 3), (3, 4), (4, None)]


def test_pairs_go_on_where_they_stood():
  pairs = pipelining.LookaheadIterator(Numbers())
  next(pairs)
  next(pairs)
  saved = pairs.get_state()
  next(pairs)
  pairs.set_state(saved)
  assert next(pairs) == (2, 3)
