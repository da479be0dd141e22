"""Other settings for some parameters."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import placement
from genrec_jax.parallel.dense import DenseOptions
from genrec_jax.runtime import optimizer, parameter_groups
from genrec_jax.runtime import state as state_lib
from tests.parallel import toy_mlp
from tests.parallel.dense_test import assert_same_run
from tests.train import tiny_run

pytestmark = pytest.mark.usefixtures('optax_promotes')

STEPS = 4
GROUPS = (
  ('.*/bias', {'name': 'sgd', 'learning_rate': 0.05}),
  ('layer_1/.*', {'weight_decay': 0.2, 'schedule': 'linear', 'decay_steps': 8}),
)


def settings(*groups, **fields):
  config = config_lib.retrieval().optimizer
  config.update({'learning_rate': 0.01, 'groups': groups, **fields})
  return config


def parameters():
  return {
    'layer_0': {'kernel': jnp.ones((2, 2)), 'bias': jnp.ones(2)},
    'layer_1': {'kernel': jnp.ones(2), 'running_mean': jnp.ones(2)},
  }


def after(config, steps=3):
  """The parameters after some steps."""
  tx, params = optimizer.build_optimizer(config), parameters()
  state = tx.init(params)
  for i in range(steps):
    grads = jax.tree.map(lambda x, i=i: (i + 1.0) * jnp.sin(x), params)
    updates, state = tx.update(grads, state, params, lr_scale=0.5)
    params = optax.apply_updates(params, updates)
  return params


def test_each_group_moves_as_an_optimizer_of_its_settings():
  """The first match counts; the rest has the settings of the section."""
  found = after(settings(GROUPS[0], ('layer_[01]/.*', GROUPS[1][1])))
  sgd = after(settings(name='sgd', learning_rate=0.05))
  adamw = after(settings(weight_decay=0.2, schedule='linear', decay_steps=8))
  np.testing.assert_array_equal(
    found['layer_0']['bias'], sgd['layer_0']['bias']
  )
  jax.tree.map(
    np.testing.assert_array_equal, found['layer_1'], adamw['layer_1']
  )
  rest = after(settings(GROUPS[0]))
  plain = after(settings())
  np.testing.assert_array_equal(
    rest['layer_0']['kernel'], plain['layer_0']['kernel']
  )
  assert np.any(found['layer_0']['kernel'] != plain['layer_0']['kernel'])


def test_frozen_parameters_stay_but_for_running_statistics():
  found = after(settings(('.*', {'frozen': True}), weight_decay=0.1))
  moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), found, parameters())
  assert moved == {
    'layer_0': {'kernel': False, 'bias': False},
    'layer_1': {'kernel': False, 'running_mean': True},
  }
  np.testing.assert_array_equal(
    found['layer_1']['running_mean'],
    after(settings())['layer_1']['running_mean'],
  )


def test_without_groups_checkpoints_name_the_state_as_ever():
  params = {'params': {'w': jnp.ones(2)}, 'tables': {'item': jnp.ones((3, 2))}}
  state = optimizer.build_optimizer(settings()).init(params)
  moments = [f'0/{m}/{p}' for m in ('mu', 'nu') for p in NAMES]
  assert list(state_lib.flatten_state(state)) == [
    '0/count',
    *moments,
    '2/count',
  ]


NAMES = ('params/w', 'tables/item')


def test_with_groups_checkpoints_name_every_state_by_its_group():
  params = {'params': {'w': jnp.ones(2)}, 'tables': {'item': jnp.ones((3, 2))}}
  tx = optimizer.build_optimizer(
    settings(('tables/.*', {'b1': 0.5}), ('.*/w', {'name': 'sgd'}))
  )
  state = tx.init(params)
  named = state_lib.flatten_state(state)
  assert list(named) == [
    'inner_states/group_0/inner_state/0/count',
    'inner_states/group_0/inner_state/0/mu/tables/item',
    'inner_states/group_0/inner_state/0/nu/tables/item',
    'inner_states/group_0/inner_state/2/count',
    'inner_states/group_1/inner_state/1/count',
    'inner_states/rest/inner_state/0/count',
    'inner_states/rest/inner_state/2/count',
  ]
  again = state_lib.unflatten_state(state, named)
  assert jax.tree.structure(again) == jax.tree.structure(state)


# --- On a mesh of two hosts of four devices


@pytest.fixture(scope='module')
def one_device():
  with jax.numpy_dtype_promotion('standard'):
    return toy_mlp.plain(optimizer.build_optimizer(settings(*GROUPS)), STEPS)


@pytest.mark.parametrize(
  'mode, offload',
  [
    ('ddp', False),
    ('grad_op', False),
    ('fsdp', False),
    ('fsdp', True),
    ('hybrid', False),
  ],
)
def test_two_groups_on_a_mesh_train_as_on_one_device(mode, offload, one_device):
  dense = DenseOptions(mode, toy_mlp.RULES, offload_state=offload)
  mesh = mesh_lib.make_mesh(1, 2, 4)
  tx = optimizer.build_optimizer(settings(*GROUPS))
  params, state, step = toy_mlp.trainer(dense, tx, mesh)
  losses, norms = [], []
  for i in range(STEPS):
    batch = toy_mlp.cut(toy_mlp.batch(i), mesh)
    params, state, loss, norm = step(params, state, batch)
    losses.append(float(loss))
    norms.append(float(norm))
  assert_same_run((params, losses, norms), one_device)


def test_the_state_of_a_group_is_cut_as_its_parameters():
  shapes = jax.eval_shape(toy_mlp.init)
  mesh = mesh_lib.make_mesh(1, 2, 4)
  laid = dense_lib.make_layout(
    DenseOptions('fsdp', toy_mlp.RULES), mesh, shapes
  )
  tx = optimizer.build_optimizer(settings(*GROUPS, ('scale', {'frozen': True})))
  specs = state_lib.flatten_state(placement.state_specs(laid, tx))
  cut = {name: spec for name, spec in specs.items() if spec != P()}
  axes = mesh_lib.AXES
  assert cut == {
    f'inner_states/{group}/inner_state/0/{moment}/{kernel}': spec
    for group, kernel, spec in (
      ('group_1', 'layer_1/kernel', P(axes, None)),
      ('rest', 'layer_0/kernel', P(None, axes)),
    )
    for moment in ('mu', 'nu')
  }


# --- What is refused


@pytest.mark.parametrize(
  'groups, words',
  [
    ([('.*/bais', {})], "'.*/bais' matches no .* nearest are 'layer_0/bias'"),
    ([('.*bais', {})], "nearest are 'layer_0/bias'"),
    ([('bias', {})], 'must match the whole path; .*layer_0/bias'),
    (
      [('.*', {}), ('.*/bias', {})],
      r"'.*/bias' matches only parameters .* \(layer_0/bias\); the first",
    ),
    ([('.*(', {})], r"in optimizer.groups, '.*\(': this is not a regex"),
    ([('.*', {'weigth_decay': 1.0})], "'weigth_decay'; did you mean 'weight_d"),
    ([('.*', {'zzz': 1.0})], "there is no key 'zzz'; there are name, learning"),
    ([('.*', {'b1': 'high'})], "b1 is 'high', must be of type float"),
    ([('.*', {'warmup_steps': 1.5})], 'warmup_steps is 1.5, must be of type'),
    ([('.*', {'frozen': 1})], 'frozen is 1, must be of type bool'),
    ([('.*', {'frozen': True, 'b1': 0.5})], 'parameters have no use for b1'),
    ([('.*', {'name': 'adamax'})], "in optimizer.groups, '.*': name is 'adam"),
    ([('.*', {'schedule': 'cosine'})], "groups, '.*': decay_steps is 0"),
    (['.*'], r"holds '.*', which is not a \(pattern, overrides\) pair, as in"),
    ([('.*', 0.1)], 'which is not'),
    ([('.*', {}, {})], 'which is not'),
  ],
)
def test_what_is_no_group(groups, words):
  with pytest.raises(ConfigError, match=words):
    optimizer.build_optimizer(settings(*groups)).init(parameters())


def test_the_examples_of_the_module():
  assert doctest.testmod(parameter_groups).failed == 0


# --- A run


def test_a_run_with_groups_and_a_schedule_continues_exactly(tmp_path):
  overrides = (
    "optimizer.groups=(('params/.*',{'weight_decay':0.1}),)",
    'optimizer.schedule=cosine',
    'optimizer.warmup_steps=2',
  )
  end = 'optimizer.decay_steps=8'  # what the whole run finds by itself
  tiny_run.train(tmp_path / 'whole', *overrides, 'train.steps=8')
  tiny_run.train(tmp_path / 'cut', *overrides, end, 'train.steps=4')
  tiny_run.train(tmp_path / 'cut', *overrides, end, 'train.steps=8')
  whole, cut = (
    [row for row in tiny_run.curve(tmp_path / name) if 'train/loss' in row]
    for name in ('whole', 'cut')
  )
  assert whole == cut and len(whole) == 4
