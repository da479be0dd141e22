"""A parameter from its shards and back, and what backward keeps of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import hlo
from genrec_jax.parallel import gathering
from genrec_jax.parallel import mesh as mesh_lib
from tests.tolerances import assert_close


def on_mesh(f, in_specs, out_specs):
  return jax.jit(
    jax.shard_map(
      f,
      mesh=mesh_lib.make_mesh(2, 2),
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=False,
    )
  )


@pytest.mark.parametrize(
  'axes', [mesh_lib.AXES, ('dev',), mesh_lib.DEVICE_GROUP]
)
@pytest.mark.parametrize('axis', [0, 1, 2])
def test_gathering_and_its_gradient(axis, axes):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(8, 16, 24)), jnp.float32)
  factor = jnp.asarray(rng.normal(size=8), jnp.float32)
  spec = P(*[axes if d == axis else None for d in range(3)])
  wire = gathering.Wire(axes, axis, 'float32', 'float32')

  def f(x, factor):
    whole, back = jax.vjp(lambda x: gathering.gather_again(wire, x), x)
    (grad,) = back(whole * factor[0])
    return whole, grad, gathering.scatter_sum(whole * factor[0], wire)

  run = on_mesh(f, (spec, P(mesh_lib.AXES)), (P(), spec, spec))
  # What is not summed over the other axes is that of the first replica.
  share = {3: 8, 1: 2, 2: 4}[len(axes)]
  whole, grad, scattered = run(x, factor)
  np.testing.assert_array_equal(whole, x)
  np.testing.assert_array_equal(grad, scattered)
  part = np.asarray(grad.addressable_shards[0].data)
  wanted = np.asarray(x * jnp.sum(factor[:share]))
  assert_close(part, wanted[tuple(slice(n) for n in part.shape)])


def test_two_bytes_travel_as_bits():
  wire = gathering.Wire(mesh_lib.AXES, 0, 'bfloat16', 'bfloat16')
  run = on_mesh(
    lambda x: gathering.gather_whole(x, wire), P(mesh_lib.AXES), P()
  )
  x = jnp.linspace(-3, 3, 64)
  out = run(x)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_array_equal(out, x.astype(jnp.bfloat16))
  (found,) = hlo.find_collectives(run.lower(x).compile())
  assert (found.op, found.dtype, found.bytes_result) == (
    'all-gather',
    'u16',
    128,
  )


@jax.custom_vjp
def kernel(x, w):
  return jnp.sin(x) @ w


def kernel_forward(x, w):
  s = jnp.sin(x)
  return s @ w, (x, s, w)


def kernel_backward(kept, g):
  x, s, w = kept
  return (g @ w.T) * jnp.cos(x), s.T @ g


kernel.defvjp(kernel_forward, kernel_backward)


@pytest.mark.parametrize('remat', [False, True])
def test_only_parameters_are_made_again(remat):
  """Kernels with gradients of their own keep what they saved."""
  wire = gathering.Wire(mesh_lib.AXES, 0, 'float32', 'float32')

  def loss(w, x):
    w = gathering.gather_again(wire, w)
    # A transposed copy of a parameter is not kept either.
    return jnp.sum(jnp.tanh(kernel(jnp.exp(x), w) @ w.T))

  def f(w, x):
    return jax.value_and_grad(
      gathering.regather_in_backward(loss) if remat else loss
    )(w, x)

  axes = P(mesh_lib.AXES)
  run = on_mesh(lambda w, x: f(w, x)[1], (axes, axes), axes)
  both = on_mesh(
    lambda w, x: (f(w, x)[0][None], f(w, x)[1]), (axes, axes), axes
  )
  rng = np.random.default_rng(0)
  w = jnp.asarray(rng.normal(size=(16, 16)), jnp.float32)
  x = jnp.asarray(rng.normal(size=(16, 16)), jnp.float32)
  program = both.lower(w, x).compile(hlo.BARRIERS_KEPT)
  text = program.as_text()
  gathers = [c for c in hlo.find_collectives(program) if c.op == 'all-gather']
  assert sum(c.count for c in gathers) == (2 if remat else 1)
  for op, count in (('sine', 1), ('exponential', 1), ('tanh', 1)):
    assert text.count(f' {op}(') == count, op
  grad = jax.grad(lambda w: jnp.sum(jnp.tanh(kernel(jnp.exp(x), w) @ w.T)))(w)
  assert_close(run(w, x), grad)
