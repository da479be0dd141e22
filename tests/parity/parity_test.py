"""This library against a NumPy statement of the published code, in float64.

Copied weights, no dropout, given negatives: outputs, loss, every gradient, and
the weights and losses of ten optimizer steps of the real training step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax import config
from genrec_jax.embedding.lookup import view_tables
from genrec_jax.runtime import optimizer, state
from genrec_jax.runtime.step import make_step
from genrec_jax.tasks.retrieval import Retrieval
from tests import sequences
from tests.parity import optimizer as numpy_optimizer
from tests.parity import statement
from tests.tolerances import TOLERANCE, assert_close

ITEMS, NEGATIVES, CAPACITY = 30, 5, 24
LENGTHS = (5, 0, 12, 1, 3)
SIZES = dict(
  dim=8, blocks=2, heads=2, max_len=12, dropout=0.0, embedding_dropout=0.0
)
MODELS = {
  'hstu': config.hstu(**SIZES, dqk=3, dv=5),
  'sasrec': config.sasrec(**SIZES, ffn_dim=6),
}
STEPS = 10
# SASRec's key bias adds the same to all scores of a query: its gradient is
# zero, ours is rounding, which Adam blows up to whole steps without effect.
WITHOUT_GRADIENT = 'key/bias'


class FixedNegatives(Retrieval):
  """The task with given negatives instead of drawn ones."""

  def _draw_negatives(self, batch, key):
    return jnp.asarray(negatives(), jnp.int32)


def negatives():
  """`[T, R]`; collisions with the positive are among them."""
  return np.random.default_rng(3).integers(1, ITEMS + 1, (CAPACITY, NEGATIVES))


def negatives_of(users):
  ends = np.cumsum([len(events.item) for events in users])
  return np.split(negatives()[: ends[-1]], ends[:-1])


class Setup:
  """One model on both sides, with the same weights."""

  def __init__(self, name):
    self.config = MODELS[name].to_dict()
    fields = dict(self.config)
    loss = config.retrieval().loss.to_dict() | {'negatives': NEGATIVES}
    self.task = FixedNegatives(
      fields.pop('name'),
      fields,
      loss,
      corpus=np.arange(1, ITEMS + 1),
      rows=ITEMS + 1,
    )
    self.tx = optimizer.build_optimizer(config.retrieval().optimizer)
    self.state = jax.jit(
      lambda: state.create_state(self.task, self.tx, 0, ['grad_norm', 'loss'])
    )()
    # Two batches in turn: rows that only one of them reads keep moving.
    self.users = [
      sequences.draw(LENGTHS, ITEMS, seed=0),
      sequences.draw(LENGTHS[::-1], ITEMS, seed=1),
    ]
    self.batches = [sequences.pack(u, CAPACITY) for u in self.users]

  def weights(self, train_state):
    """The other side's form of the weights."""
    pair = {
      'params': train_state.params,
      'table': train_state.tables['items'],
    }
    return jax.tree.map(lambda x: np.asarray(x, np.float64), pair)

  def numpy_loss(self, weights, turn=0):
    users = self.users[turn]
    return statement.loss(weights, self.config, users, negatives_of(users))

  def loss(self, params, table, turn=0):
    batch, key = self.batches[turn], jax.random.key(0)
    rows = view_tables({'items': table}, self.task.reads(batch, key))
    total, count = self.task.loss(params, rows, batch, key)['loss']
    return total / count


@pytest.fixture(scope='module', params=MODELS)
def setup(request):
  return Setup(request.param)


def test_batches_hold_collisions_and_repeats(setup):
  """Otherwise the masking and the tied gradients would not be tested."""
  users = setup.users[0]
  drawn = np.concatenate(negatives_of(users))
  targets = np.concatenate([events.next_item for events in users])
  assert np.any(drawn == targets[:, None])
  assert len(set(targets)) < len(targets)


def test_representations(setup):
  train_state, batch = setup.state, setup.batches[0]
  reads = setup.task.reads_for('predict', batch)
  rows = view_tables(train_state.tables, reads)
  actual = jax.jit(setup.task.encode)(train_state.params, rows, batch)
  weights = setup.weights(train_state)
  expected = [
    statement.encode(weights['params'], setup.config, weights['table'], events)
    for events in setup.users[0]
    if len(events.item)
  ]
  assert_close(actual[: sum(LENGTHS)], np.concatenate(expected))


def test_loss_and_every_gradient(setup):
  train_state = setup.state
  value, (params, table) = jax.jit(
    jax.value_and_grad(setup.loss, argnums=(0, 1))
  )(train_state.params, train_state.tables['items'])
  weights = setup.weights(train_state)
  assert_close(value, setup.numpy_loss(weights))
  expected = numpy_optimizer.gradient(setup.numpy_loss, weights)
  largest = max(np.abs(g).max() for g in jax.tree.leaves(expected))
  for path, actual in jax.tree_util.tree_leaves_with_path(
    {'params': params, 'table': table}
  ):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    grad = leaf(expected, path)
    if name.endswith(WITHOUT_GRADIENT):
      assert np.abs(grad).max() < 1e-12 * largest
      assert np.abs(actual).max() < TOLERANCE['float32'] * largest
    else:
      assert_close(actual, grad, name=name)


def test_ten_optimizer_steps(setup):
  step = jax.jit(make_step(setup.task, setup.tx, seed=0))
  train_state, moments = setup.state, None
  weights = start = setup.weights(train_state)
  for i in range(STEPS):
    turn = i % 2
    with jax.numpy_dtype_promotion('standard'):  # optax is not strict
      train_state, loss = step(train_state, setup.batches[turn])

    def fn(weights, turn=turn):
      return setup.numpy_loss(weights, turn)

    assert_close(loss, fn(weights))
    grads = numpy_optimizer.gradient(fn, weights)
    weights, moments = numpy_optimizer.adamw(weights, grads, moments, i + 1)
  moved = jax.tree.map(np.subtract, setup.weights(train_state), start)
  expected = jax.tree.map(np.subtract, weights, start)
  for path, distance in jax.tree_util.tree_leaves_with_path(moved):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if not name.endswith(WITHOUT_GRADIENT):
      assert_close(distance, leaf(expected, path), 'ten_adam_steps', name)


def leaf(tree, path):
  for key in path:
    tree = tree[key.key]
  return tree
