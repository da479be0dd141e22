"""Batch norm against NumPy in float64, PyTorch's rules, and eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from genrec_jax.models import batch_norm
from genrec_jax.parallel import collectives
from genrec_jax.parallel import mesh as mesh_lib
from tests.tolerances import assert_close


def parameters(width):
  rng = np.random.default_rng(1)
  draw = lambda: jnp.asarray(rng.normal(size=width), jnp.float32)  # noqa: E731
  return dict(
    scale=1 + draw(), shift=draw(), running_mean=draw(), running_variance=draw()
  )


def apply(params, x, weights, training):
  norm = batch_norm.BatchNorm(x.shape[1])
  for name, value in params.items():
    getattr(norm, name)[...] = value
  return norm(x, weights, training)


def stated(params, x, weights):
  p = {name: np.asarray(v, np.float64) for name, v in params.items()}
  real = np.asarray(x, np.float64)[np.asarray(weights) > 0]
  x = np.asarray(x, np.float64)
  unit = (x - real.mean(0)) / np.sqrt(real.var(0) + 1e-5)
  return unit * p['scale'] + p['shift']


@pytest.mark.parametrize('mean', [0.0, 1e4])
@pytest.mark.parametrize('real', [2, 40, 64])
def test_a_batch_is_normalised_by_its_real_examples(real, mean):
  x = np.random.default_rng(0).normal(size=(64, 5)) * np.arange(1, 6) + mean
  x = jnp.asarray(x, jnp.float32)
  weights = jnp.asarray(np.arange(64) < real, jnp.float32)
  params = parameters(5)
  out = jax.jit(apply, static_argnums=3)(params, x, weights, True)
  expected = stated(params, x, weights)
  # The mean itself is rounded: by 1e-7 of its size, in deviations.
  slack = 1 if mean == 0 else 300
  assert np.max(np.abs(out - expected)) < 1e-5 * slack * np.max(expected)


def test_evaluation_uses_the_running_statistics():
  x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
  params = parameters(5)
  params['running_variance'] = jnp.square(params['running_variance'])
  out = apply(params, x, jnp.zeros(4), False)
  p = {name: np.asarray(v, np.float64) for name, v in params.items()}
  unit = (np.asarray(x) - p['running_mean']) / np.sqrt(
    p['running_variance'] + 1e-5
  )
  assert_close(out, unit * p['scale'] + p['shift'])


def test_gradients_are_those_of_the_formula():
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(12, 5)), jnp.float32)
  factors = jnp.asarray(rng.normal(size=(12, 5)), jnp.float32)
  weights = jnp.asarray(np.arange(12) < 9, jnp.float32)
  params = parameters(5)

  def plain(x, scale, shift):
    real = weights[:, None]
    mean = jnp.sum(x * real, axis=0) / 9
    variance = jnp.sum(jnp.square(x - mean[None]) * real, axis=0) / 9
    unit = (x - mean[None]) * jax.lax.rsqrt(variance + 1e-5)[None]
    return jnp.sum(factors * (unit * scale[None] + shift[None]))

  def ours(x, scale, shift):
    out = apply(params | dict(scale=scale, shift=shift), x, weights, True)
    return jnp.sum(factors * out)

  arguments = x, params['scale'], params['shift']
  for a, b in zip(
    jax.jit(jax.grad(ours, argnums=(0, 1, 2)))(*arguments),
    jax.jit(jax.grad(plain, argnums=(0, 1, 2)))(*arguments),
    strict=True,
  ):
    assert_close(a, b)


def test_running_statistics_move_by_their_gradient():
  x = jnp.asarray(np.random.default_rng(0).normal(size=(12, 5)), jnp.float32)
  weights = jnp.asarray(np.arange(12) < 9, jnp.float32)
  params = parameters(5)

  def loss(params):
    return 1e3 * jnp.sum(apply(params, x, weights, True))

  grads = jax.jit(jax.grad(loss))(params)
  real = np.asarray(x[:9], np.float64)
  for name, statistic in (
    ('running_mean', real.mean(0)),
    ('running_variance', real.var(0, ddof=1)),
  ):
    assert_close(grads[name] / 9, params[name] - statistic)


def test_one_example_and_none_are_finite():
  x = jnp.ones((3, 5))
  params = parameters(5)
  value_and_grad = jax.jit(
    jax.value_and_grad(lambda p, w: jnp.sum(apply(p, x, w, True) * w[:, None]))
  )
  for real in (1, 0):
    weights = jnp.asarray(np.arange(3) < real, jnp.float32)
    value, grads = value_and_grad(params, weights)
    for leaf in jax.tree.leaves((value, grads)):
      assert np.all(np.isfinite(leaf))
    assert np.any(grads['running_mean']) == bool(real)


def test_eight_devices_give_what_one_gives():
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(32, 5)) * 3 + 50, jnp.float32)
  factors = jnp.asarray(rng.normal(size=(32, 5)), jnp.float32)
  # The last two shards are padding, the one before it in part.
  weights = jnp.asarray(np.arange(32) < 22, jnp.float32)
  params = parameters(5)

  def local(params, x, factors, weights):
    def loss(params, x):
      out = apply(params, x, weights, True)
      return jnp.sum(out * factors * weights[:, None]), out

    (_, out), (grads, dx) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
      params, x
    )
    return out, dx, grads

  def shard(*arguments):
    out, dx, grads = local(*arguments)
    return out, dx, jax.lax.psum(grads, 'data')

  mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ('data',))
  spread = jax.jit(
    jax.shard_map(
      shard,
      mesh=mesh,
      in_specs=(P(), P('data'), P('data'), P('data')),
      out_specs=(P('data'), P('data'), P()),
      check_vma=False,
    )
  )
  expected = jax.jit(local)(params, x, factors, weights)
  found = spread(params, x, factors, weights)
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    assert_close(a, b)


@pytest.mark.parametrize('again', [False, True])
def test_in_a_tower_statistics_are_those_of_its_own_examples(again):
  """Two hosts of four devices against one device, tower by tower.

  With `again` JAX traces the forward pass for gradients after the scope, too.
  """
  rng = np.random.default_rng(0)
  apart = np.repeat([50.0, -20.0], 16)[:, None]  # the towers' examples
  x = jnp.asarray(rng.normal(size=(32, 5)) * 3 + apart, jnp.float32)
  factors = jnp.asarray(rng.normal(size=(32, 5)), jnp.float32)
  weights = jnp.asarray(np.arange(32) % 16 < 11, jnp.float32)
  params = parameters(5)

  def local(params, x, factors, weights):
    def loss(params, x):
      with collectives.restrict_axes('rep', 'dev'):
        out = apply(params, x, weights, True)
      return jnp.sum(out * factors * weights[:, None]), out

    loss = jax.checkpoint(jax.jit(loss)) if again else loss
    (_, out), (grads, dx) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
      params, x
    )
    return out, dx, grads

  def shard(*arguments):
    out, dx, grads = local(*arguments)
    grads = jax.lax.psum(grads, ('rep', 'dev'))
    return out, dx, jax.tree.map(lambda g: g[None], grads)

  split = P(mesh_lib.AXES)
  out, dx, grads = jax.jit(
    jax.shard_map(
      shard,
      mesh=mesh_lib.make_mesh(1, 2, 4),
      in_specs=(P(), split, split, split),
      out_specs=(split, split, P('host')),
      check_vma=False,
    )
  )(params, x, factors, weights)
  for tower in range(2):
    own = slice(16 * tower, 16 * (tower + 1))
    wanted = jax.jit(local)(params, x[own], factors[own], weights[own])
    found = out[own], dx[own], jax.tree.map(lambda g, t=tower: g[t], grads)
    for a, b in zip(
      jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True
    ):
      assert_close(a, b)


def test_a_module_starts_as_the_identity():
  norm = batch_norm.BatchNorm(3)
  state = nnx.to_pure_dict(nnx.state(norm, nnx.Param))
  assert {k: float(v[0]) for k, v in state.items()} == dict(
    scale=1, shift=0, running_mean=0, running_variance=1
  )
