"""Specs of parameters and optimizer state, host memory, first values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import placement
from genrec_jax.parallel.dense import DenseOptions
from tests.parallel import toy_mlp

pytestmark = pytest.mark.usefixtures('optax_promotes')

AXES = mesh_lib.AXES
ADAM = optax.adamw(optax.linear_schedule(0.0, 0.1, 5), weight_decay=0.1)


def layout(mode, **fields):
  shapes = jax.eval_shape(toy_mlp.init)
  dense = DenseOptions(mode, toy_mlp.RULES, **fields)
  return dense_lib.make_layout(dense, mesh_lib.make_mesh(2, 2), shapes)


@pytest.mark.parametrize(
  'mode, stored, cut',
  [
    ('ddp', None, None),
    ('grad_op', None, AXES),
    ('fsdp', AXES, AXES),
    ('hybrid', ('dev',), ('dev',)),
  ],
)
def test_specs(mode, stored, cut):
  laid = layout(mode)

  def wanted(axes):
    return {
      'layer_0': {'kernel': P(None, axes) if axes else P(), 'bias': P()},
      'layer_1': {'kernel': P(axes, None) if axes else P(), 'bias': P()},
      'scale': P(),
    }

  assert placement.specs(laid) == wanted(stored)
  assert placement.update_specs(laid) == wanted(cut)
  state = placement.state_specs(laid, ADAM)
  adam, _, schedule = state
  assert adam.mu == adam.nu == wanted(cut)
  assert adam.count == schedule.count == P()


def test_state_of_nested_and_masked_optimizers():
  laid = layout('fsdp')
  label = lambda params: jax.tree_util.tree_map_with_path(  # noqa: E731
    lambda path, _: 'slow' if 'bias' in str(path) else 'fast', params
  )
  tx = optax.partition(
    {'slow': optax.sgd(0.1, 0.9), 'fast': optax.adam(0.1)}, label
  )
  specs = placement.state_specs(laid, tx)
  state = jax.eval_shape(tx.init, laid.params)
  assert jax.tree.structure(specs) == jax.tree.structure(state)
  jax.tree.map(
    lambda leaf, spec: placement.NamedSharding(laid.mesh, spec).shard_shape(
      leaf.shape
    ),
    state,
    specs,
  )
  cut = [s for s in jax.tree.leaves(specs) if s != P()]
  assert sorted(map(str, cut)) == sorted(
    map(str, 2 * [P(None, AXES), P(AXES, None)])
  )


@pytest.mark.parametrize(
  'tx, words',
  [
    (
      optax.chain(optax.clip_by_global_norm(1.0), ADAM),
      'into optimizer.clip_norm; .* set parallel.dense=',
    ),
    (optax.lamb(0.1), 'reduce_sum'),
    (optax.adafactor(0.1), 'would see its shard alone|only state in the shape'),
  ],
)
def test_an_optimizer_that_mixes_elements_is_refused(tx, words):
  with pytest.raises(ValueError, match=words):
    placement.state_specs(layout('fsdp'), tx)
  placement.state_specs(layout('ddp'), optax.lamb(0.1))


def test_state_in_another_shape_is_refused():
  odd = optax.GradientTransformation(
    lambda params: optax.TraceState(jax.tree.map(lambda p: p[None], params)),
    lambda grads, state, params: (grads, state),
  )
  with pytest.raises(ValueError, match=r'keeps \(1, 16\) .* \(16,\)'):
    placement.state_specs(layout('fsdp'), odd)


def kinds(tree):
  return {x.sharding.memory_kind for x in jax.tree.leaves(tree) if x.ndim}


@pytest.mark.parametrize('mode', ['ddp', 'fsdp'])
def test_offloaded_state_trains_the_same(mode):
  mesh = mesh_lib.make_mesh(2, 2)
  ends = []
  for offload in (False, True):
    dense = DenseOptions(mode, toy_mlp.RULES, offload_state=offload)
    params, state, step = toy_mlp.trainer(dense, optax.adam(0.01), mesh)
    rest = {'pinned_host'} if offload else {'device'}
    for i in range(3):
      assert kinds(state) == rest and kinds(params) == {'device'}
      batch = toy_mlp.cut(toy_mlp.batch(i), mesh)
      params, state, *_ = step(params, state, batch)
    assert kinds(state) == rest and state[0].count == 3
    ends.append((params, state))
  jax.tree.map(np.testing.assert_array_equal, *ends)


def test_offload_keeps_the_shards():
  laid = layout('fsdp', offload_state=True)
  resting = placement.state_shardings(laid, ADAM)
  mu = resting[0].mu['layer_1']['kernel']
  assert mu.spec == P(AXES, None) and mu.memory_kind == 'pinned_host'
  assert resting[0].count.memory_kind == 'device'


def test_no_device_ever_holds_the_whole_model():
  """Neither after initialisation nor while it runs."""
  width, mesh = 256, mesh_lib.make_mesh(2, 2)

  def fresh():
    return {'w': 0.1 * jax.random.normal(jax.random.key(3), (width, width))}

  shapes = jax.eval_shape(fresh)
  dense = DenseOptions('fsdp', (('.*', 0),))
  laid = dense_lib.make_layout(dense, mesh, shapes)
  where = placement.shardings(laid)
  params = placement.init_sharded(fresh, where)
  part = (width // 8, width)
  assert [s.data.shape for s in params['w'].addressable_shards] == 8 * [part]
  np.testing.assert_array_equal(params['w'], jax.jit(fresh)()['w'])

  program = jax.jit(fresh, out_shardings=where).lower().compile()
  memory = program.memory_analysis()
  whole = 4 * width * width
  assert memory.output_size_in_bytes == whole / 8
  assert memory.temp_size_in_bytes < whole / 2

  tx = optax.adam(0.1)
  state = placement.init_sharded(
    tx.init, placement.state_shardings(laid, tx), params
  )
  assert {s.data.shape for s in state[0].mu['w'].addressable_shards} == {part}


def test_hybrid_copies_are_equal_after_training():
  mesh = mesh_lib.make_mesh(2, 2)
  dense = dataclasses.replace(
    DenseOptions('hybrid', toy_mlp.RULES), bucket_bytes=64
  )
  params, state, step = toy_mlp.trainer(dense, optax.adam(0.01), mesh)
  for i in range(3):
    params, state, *_ = step(params, state, toy_mlp.cut(toy_mlp.batch(i), mesh))
  for leaf in jax.tree.leaves((params, state)):
    copies = {}
    for shard in leaf.addressable_shards:
      first = copies.setdefault(str(shard.index), np.asarray(shard.data))
      np.testing.assert_array_equal(first, np.asarray(shard.data))
  assert jnp.isfinite(params['scale'])
