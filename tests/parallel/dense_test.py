"""Every way to spread a model trains it as one device does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from genrec_jax.parallel import dense as dense_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel.cuts import Cut
from genrec_jax.parallel.dense import DenseOptions
from tests.parallel import toy_mlp
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures('optax_promotes')

STEPS = 4
LIMIT = 1.0
ADAM = optax.adamw(0.01, weight_decay=0.1)
KEPT = dict(rules=toy_mlp.RULES, keep_gathered=True)
WAYS = {
  'ddp': DenseOptions('ddp', bucket_bytes=2000),
  'grad_op': DenseOptions('grad_op', toy_mlp.RULES),
  'fsdp': DenseOptions('fsdp', toy_mlp.RULES),
  'fsdp, kept': DenseOptions('fsdp', **KEPT),
  'hybrid': DenseOptions('hybrid', toy_mlp.RULES, bucket_bytes=500),
  'hybrid, kept': DenseOptions('hybrid', **KEPT),
}


def train(dense, tx=ADAM, mesh=(2, 2, 2), micro=1, steps=STEPS):
  mesh = mesh_lib.make_mesh(*mesh)
  params, state, step = toy_mlp.trainer(dense, tx, mesh)
  losses, norms = [], []
  for i in range(steps):
    batch = toy_mlp.cut(toy_mlp.batch(i), mesh, micro)
    params, state, loss, norm = step(params, state, batch)
    losses.append(float(loss))
    norms.append(float(norm))
  return params, losses, norms


def assert_same_run(got, wanted, dtype='float32', moved='ten_adam_steps'):
  assert_close(got[1], wanted[1], dtype, 'losses')
  assert_close(got[2], wanted[2], dtype, 'norms')
  jax.tree.map(
    lambda a, b, s: assert_close(np.asarray(a) - s, np.asarray(b) - s, moved),
    got[0],
    wanted[0],
    toy_mlp.start(),
  )


@pytest.fixture(scope='module')
def oracle():
  with jax.numpy_dtype_promotion('standard'):
    return toy_mlp.plain(ADAM, STEPS)


@pytest.fixture(scope='module')
def clipped():
  with jax.numpy_dtype_promotion('standard'):
    return toy_mlp.plain(ADAM, STEPS, clip=LIMIT)


@pytest.mark.parametrize('way', WAYS)
def test_a_mode_is_plain_training(way, clipped):
  """Microbatches and clipping included."""
  assert min(clipped[2]) > LIMIT, 'nothing is clipped'
  got = train(dataclasses.replace(WAYS[way], clip_norm=LIMIT), micro=4)
  assert_same_run(got, clipped)


@pytest.mark.parametrize(
  'way, mesh',
  [('ddp', (1, 4, 2)), ('fsdp', (1, 1, 4)), ('hybrid', (1, 1, 1))],
)
def test_any_mesh(way, mesh, oracle):
  """Without microbatches, and with gradients too short to be clipped."""
  dense = dataclasses.replace(WAYS[way], clip_norm=2 * max(oracle[2]))
  assert_same_run(train(dense, mesh=mesh), oracle)


@pytest.mark.parametrize(
  'way, tx', [('grad_op', optax.sgd(0.05, 0.9)), ('hybrid', optax.adam(0.01))]
)
def test_other_optimizers(way, tx):
  assert_same_run(train(WAYS[way], tx), toy_mlp.plain(tx, STEPS))


def mixed(tx, steps, dense):
  """Float32 masters, bfloat16 in the model, rounded sums: on one device."""

  def summed(path, grads):
    grads = grads.astype(dense.reduce_dtype)  # [rep * host * dev, ...]
    if dense.mode == 'hybrid' and 'kernel' in str(path):
      grads = grads.reshape(4, 2, *grads.shape[1:]).astype('float32')
      grads = jnp.sum(grads, 1).astype(dense.reduce_dtype)
    total = jnp.sum(grads.astype('float32'), 0)
    return total.astype(dense.reduce_dtype).astype('float32')

  def gradients(params, batch):
    weight = jnp.sum(batch['weight'])
    cast = jax.tree.map(lambda p: p.astype(dense.gather_dtype), params)
    parts = jax.tree.map(lambda x: x.reshape(8, -1, *x.shape[1:]), batch)
    losses, grads = jax.vmap(
      jax.value_and_grad(toy_mlp.summand), in_axes=(None, 0, None)
    )(cast, parts, weight)
    return jnp.sum(losses), jax.tree_util.tree_map_with_path(summed, grads)

  return toy_mlp.plain(tx, steps, gradients=gradients)


@pytest.mark.parametrize(
  'way, reduce_dtype',
  [
    ('ddp', 'bfloat16'),
    ('grad_op', 'float32'),
    ('fsdp', 'bfloat16'),
    ('hybrid, kept', 'bfloat16'),
  ],
)
def test_mixed_precision(way, reduce_dtype):
  dense = dataclasses.replace(
    WAYS[way], gather_dtype='bfloat16', reduce_dtype=reduce_dtype
  )
  tx = optax.sgd(0.05)
  got = train(dense, tx)
  # Under jax.checkpoint every bfloat16 is really rounded; elsewhere XLA may
  # skip roundings inside a fusion, in the oracle too.
  near, moved = 'float32', 'float32'
  if dense.gathers_again:
    near, moved = 'bfloat16', 'bfloat16_steps'
  assert_same_run(got, mixed(tx, STEPS, dense), near, moved)
  assert {p.dtype for p in jax.tree.leaves(got[0])} == {jnp.dtype('float32')}


def test_mixed_precision_rounds():
  """The masters do not: small steps would be lost in bfloat16."""
  dense = dataclasses.replace(WAYS['fsdp'], gather_dtype='bfloat16')
  tx = optax.sgd(1e-5)
  params, losses, _ = train(dense, tx)
  wanted = toy_mlp.plain(tx, STEPS)
  assert np.max(np.abs(np.subtract(losses, wanted[1]))) > 1e-4
  moved = params['layer_1']['kernel'] - toy_mlp.start()['layer_1']['kernel']
  assert np.mean(np.asarray(moved) != 0) > 0.9


def test_accumulation_sums_in_float32():
  small = jnp.full((300, 1), 1, jnp.bfloat16)
  total = dense_lib.accumulate_sums(lambda x: {'a': x}, small)
  assert total['a'].dtype == jnp.float32 and total['a'] == 300
  one = dense_lib.accumulate_sums(lambda x: x, small[:1])
  assert one.dtype == jnp.float32 and one.shape == (1,)
  with pytest.raises(ValueError, match='agree on their number'):
    dense_lib.accumulate_sums(lambda x: x[0], (jnp.zeros(2), jnp.zeros(3)))


@pytest.mark.parametrize(
  'fields, words',
  [
    ({'mode': 'zero'}, r"parallel.dense is 'zero', must be one of \('ddp'"),
    ({'gather_dtype': 'int8'}, 'parallel.gather_dtype'),
    ({'reduce_dtype': 'float16'}, 'parallel.reduce_dtype'),
    ({'bucket_bytes': 0}, 'parallel.bucket_mb makes 0 bytes'),
  ],
)
def test_what_is_not_known_is_an_error(fields, words):
  with pytest.raises(ValueError, match=words):
    DenseOptions(**fields)


def test_rules_must_fit_the_mode():
  mesh = mesh_lib.make_mesh(2, 2)
  with pytest.raises(ValueError, match=r"'w' of shape \(4,\).* into 8"):
    dense_lib.make_layout(DenseOptions('fsdp'), mesh, {'w': jnp.zeros(4)})
  layout = dense_lib.make_layout(
    DenseOptions('hybrid', (('.*', 0),)), mesh, {'w': jnp.zeros(4)}
  )
  assert layout.cuts == {'w': Cut(0, ('dev',))}
  layout = dense_lib.make_layout(DenseOptions(), mesh, {'w': jnp.zeros(4)})
  assert layout.cuts == {'w': Cut()}
  with pytest.raises(ValueError, match="'n' is int32"):
    dense_lib.make_layout(DenseOptions(), mesh, {'n': jnp.zeros(4, jnp.int32)})
