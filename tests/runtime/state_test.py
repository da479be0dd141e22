"""What a run remembers, and its names in a checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax.runtime import state as state_lib
from tests.runtime.toy_task import WIDTH, Toy

MEASURED = ('grad_norm', 'loss')


def create(update='dense', seed=0):
  return state_lib.create_state(Toy(update), optax.adam(0.1), seed, MEASURED)


def test_a_fresh_state():
  state = create()
  assert state.step == 0 and state.step.dtype == jnp.int32
  assert state.first_nonfinite.tolist() == [-1, -1]
  assert {n: s.tolist() for n, s in state.metric_sums.items()} == {
    'grad_norm': [0, 0],
    'loss': [0, 0],
  }
  assert state.row_opt_state == {}


def test_the_seed_is_all_there_is():
  one, same, other = create(), create(), create(seed=1)
  jax.tree.map(np.testing.assert_array_equal, one, same)
  assert np.any(one.tables['items'] != other.tables['items'])
  assert np.any(one.params['layer']['w'] != other.params['layer']['w'])


@pytest.mark.parametrize('update', ['dense', 'row_adagrad', 'row_sgd'])
def test_a_table_belongs_to_one_optimizer(update):
  """optax holds moments of the dense tables alone."""
  state = create(update)
  dense = state_lib.dense_specs(Toy(update))
  assert list(dense) == (['items'] if update == 'dense' else [])
  assert list(state.row_opt_state) == ([] if update == 'dense' else ['items'])
  shapes = {leaf.shape for leaf in jax.tree.leaves(state.opt_state)}
  assert ((40, WIDTH) in shapes) == (update == 'dense')


def test_shapes_without_arrays():
  abstract = jax.eval_shape(create)
  assert abstract.tables['items'].shape == (40, WIDTH)
  assert jax.tree.structure(abstract) == jax.tree.structure(create())


@pytest.mark.parametrize('update', ['dense', 'row_adagrad'])
def test_names_lead_there_and_back(update):
  state = create(update)
  arrays = state_lib.flatten_state(state)
  assert len(arrays) == len(jax.tree.leaves(state))
  assert {'step', 'bad', 'params/layer/w', 'tables/items', 'sums/loss'} <= set(
    arrays
  )
  assert ('slots/items/sum' in arrays) == (update == 'row_adagrad')
  back = state_lib.unflatten_state(jax.eval_shape(lambda: state), arrays)
  assert jax.tree.structure(back) == jax.tree.structure(state)
  jax.tree.map(np.testing.assert_array_equal, back, state)


@pytest.mark.parametrize('seed', [0, 7])
def test_keys_of_fresh_weights_are_those_of_no_step(seed):
  """Neither a step's key nor what a step splits it into."""
  fresh = jax.random.key_data(state_lib.init_keys(seed)).tolist()
  steps = [
    jax.random.fold_in(jax.random.key(seed), step) for step in range(100)
  ]
  drawn = [jax.random.key_data(key).tolist() for key in steps]
  drawn += [
    each for key in steps
    for each in jax.random.key_data(jax.random.split(key)).tolist()
  ]  # fmt: skip
  assert not [key for key in fresh if key in drawn]
