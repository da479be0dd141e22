"""Towers: parameters of which every host has a part of its own.

A toy of four towers, two on each of two hosts. A tower sees its columns of all
examples, which travel between the devices of equal number of the hosts, and
takes off their mean, which only its own devices may add up.
"""

import dataclasses
import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from genrec_jax.parallel import collectives, cuts, placement
from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel.cuts import Cut
from genrec_jax.parallel.dense import DenseOptions
from genrec_jax.parallel.single_device import SingleDeviceLayout
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures('optax_promotes')

TOWERS, WIDTH, OUT, EXAMPLES, STEPS, LIMIT = 4, 6, 4, 32, 3, 0.5
TOWER = Cut(0, ('host',), ('rep', 'dev'))
ADAM = optax.adamw(0.01, weight_decay=0.1)
RULES = (('top/kernel', 0), ('.*', None))
WAYS = {
  'ddp': DenseOptions('ddp', bucket_bytes=100),
  'grad_op': DenseOptions('grad_op', RULES),
  'fsdp': DenseOptions('fsdp', RULES),
  'fsdp, kept': DenseOptions('fsdp', RULES, keep_gathered=True),
  'hybrid': DenseOptions('hybrid', RULES),
}


def init():
  def values(*shape):
    return jnp.sin(17.0 * jnp.arange(np.prod(shape))).reshape(shape) * 0.5

  return {
    'towers': {
      'kernel': values(TOWERS, WIDTH, OUT),
      'bias': values(TOWERS, OUT),
    },
    'top': {'kernel': values(TOWERS * OUT, 3), 'bias': jnp.zeros(3)},
  }


def batch(seed):
  rng = np.random.default_rng(seed)
  return {
    'x': rng.normal(size=(EXAMPLES, TOWERS, WIDTH)).astype(np.float32),
    'y': rng.normal(size=EXAMPLES).astype(np.float32),
    'weight': rng.integers(0, 3, EXAMPLES).astype(np.float32),
  }


def swap(x, here: int, there: int):
  """Columns `here` to the hosts of their towers, against examples `there`."""
  with collectives.restrict_axes('host'):
    over = collectives.current_axes()
  if not over:
    return x
  return jax.lax.all_to_all(x, over, here, there, tiled=True)


def summand(params, batch):
  """This shard's part of the mean over all examples."""
  towers, top = params['towers'], params['top']
  x = swap(batch['x'], 1, 0)  # [examples of the peers, towers here, width]
  x = jnp.einsum('btw,two->bto', x, towers['kernel'])
  with collectives.restrict_axes('host'):
    weight = collectives.gather(batch['weight'])
  with collectives.restrict_axes('rep', 'dev'):
    sums = collectives.sum_over_shards(jnp.einsum('b,bto->to', weight, x))
    x = x - (sums / collectives.sum_over_shards(jnp.sum(weight)))[None]
  x = swap(jnp.tanh(x + towers['bias'][None]), 0, 1).reshape(-1, TOWERS * OUT)
  out = jnp.sum(jnp.tanh(x @ top['kernel'] + top['bias'][None]), axis=1)
  error = jnp.square(out - batch['y']) * batch['weight']
  return jnp.sum(error) / collectives.sum_over_shards(jnp.sum(batch['weight']))


def step(layout):
  """The same step for one device and, inside `shard_map`, for a shard."""

  def run(params, state, batch):
    held = layout.gather(params)
    loss = layout.remat(lambda held, batch: summand(layout.use(held), batch))
    value, grads = jax.value_and_grad(loss)(held, batch)
    grads = layout.reduce(grads)
    norm = layout.norm(grads)
    params, state = layout.apply(ADAM, layout.clip(grads, norm), state, params)
    return params, state, grads, (collectives.sum_over_shards(value), norm)

  return run


def train(run, params, state):
  """(parameters, gradients of the first step, losses and norms)."""
  run, first, measured = jax.jit(run), None, []
  for i in range(STEPS):
    params, state, grads, numbers = run(params, state, batch(i))
    first = grads if first is None else first
    measured.append([float(x) for x in numbers])
  return jax.device_get((params, first, measured))


def on_mesh(dense, tower, shape=(1, 2, 4)):
  mesh = mesh_lib.make_mesh(*shape)
  dense = dataclasses.replace(dense, clip_norm=LIMIT)
  shapes = jax.eval_shape(init)
  layout = dense_lib.make_layout(dense, mesh, shapes, {'towers/.*': tower})
  stored = placement.specs(layout)
  states = placement.state_specs(layout, ADAM)
  mapped = jax.shard_map(
    step(layout),
    mesh=mesh,
    in_specs=(stored, states, P(mesh_lib.AXES)),
    out_specs=(stored, states, placement.update_specs(layout), P()),
    check_vma=False,
  )
  params = placement.init_sharded(init, placement.shardings(layout))
  resting = placement.state_shardings(layout, ADAM)
  return train(
    mapped, params, placement.init_sharded(ADAM.init, resting, params)
  )


@pytest.fixture(scope='module')
def one_device():
  with jax.numpy_dtype_promotion('standard'):
    return train(step(SingleDeviceLayout(LIMIT)), init(), ADAM.init(init()))


def assert_same_run(got, wanted):
  params, grads, measured = got
  assert_close(np.array(measured), np.array(wanted[2]), 'float32', 'measured')
  jax.tree.map(assert_close, grads, wanted[1])
  jax.tree.map(
    lambda a, b, start: assert_close(a - start, b - start, 'ten_adam_steps'),
    params,
    wanted[0],
    jax.device_get(init()),
  )


@pytest.mark.parametrize('way', WAYS)
def test_towers_train_as_on_one_device(way, one_device):
  """Gradients, norm, clipping and updated parameters."""
  assert min(norm for _, norm in one_device[2]) > LIMIT, 'nothing is clipped'
  assert_same_run(on_mesh(WAYS[way], TOWER), one_device)


def test_replicas_share_the_towers_of_a_host(one_device):
  assert_same_run(on_mesh(WAYS['ddp'], TOWER, (2, 2, 2)), one_device)


@pytest.mark.parametrize('summed', [('rep',), ('dev',), ()])
def test_another_sum_of_gradients_is_another_run(summed, one_device):
  """So the tests above would see it."""
  tower = dataclasses.replace(TOWER, summed=summed)
  with pytest.raises(AssertionError):
    assert_same_run(on_mesh(WAYS['ddp'], tower, (2, 2, 2)), one_device)


def test_towers_of_a_host_that_its_devices_share(one_device):
  """Stored by the devices of the host in parts, whole when computed with."""
  tower = Cut(0, ('host', 'dev'), ('rep', 'dev'))
  for way in ('grad_op', 'fsdp'):
    assert_same_run(on_mesh(WAYS[way], tower, (2, 2, 2)), one_device)


def test_specs_of_towers():
  mesh, shapes = mesh_lib.make_mesh(1, 2, 4), jax.eval_shape(init)
  for way, top in (('grad_op', P()), ('fsdp', P(mesh_lib.AXES, None))):
    layout = dense_lib.make_layout(
      WAYS[way], mesh, shapes, {'towers/.*': TOWER}
    )
    specs = placement.specs(layout)
    assert specs['towers']['kernel'] == P(('host',), None, None)
    assert specs['top'] == {'kernel': top, 'bias': P()}
    state = placement.state_specs(layout, ADAM)[0]
    assert state.mu['towers']['bias'] == P(('host',), None)


@pytest.mark.parametrize(
  'overrides, words',
  [
    ({'tower/.*': TOWER}, "'tower/.*' matches no parameter; .*towers/kernel"),
    ({'top/bias': TOWER}, r"'top/bias' of shape \(3,\): 3 does not divide"),
    ({'top/bias': Cut(1, ('host',), ())}, 'there is no dimension 1'),
    ({'top/bias': Cut(0, ('hosts',), ())}, r"names \['hosts'\]; the axes"),
    ({'top/bias': Cut(0)}, 'needs both a dimension and axes'),
    ({'top/bias': Cut(None, ('host',))}, 'needs both a dimension and axes'),
    (
      {'towers/.*': Cut(0, ('dev', 'host'), ('rep', 'dev'))},
      r"must stand first, \('host', 'dev'\)",
    ),
  ],
)
def test_overrides_that_do_not_fit(overrides, words):
  mesh, shapes = mesh_lib.make_mesh(1, 2, 2), jax.eval_shape(init)
  with pytest.raises(cuts.RuleError, match=words):
    dense_lib.make_layout(DenseOptions(), mesh, shapes, overrides)


def test_the_first_override_counts():
  mesh, shapes = mesh_lib.make_mesh(1, 2, 2), jax.eval_shape(init)
  overrides = {'towers/bias': Cut(), 'towers/.*': TOWER}
  layout = dense_lib.make_layout(DenseOptions(), mesh, shapes, overrides)
  assert layout.cuts['towers/bias'] == Cut() == layout.cuts['top/bias']
  assert layout.cuts['towers/kernel'] == TOWER


def test_the_examples_of_the_module():
  assert doctest.testmod(cuts).failed == 0
