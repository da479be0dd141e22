"""One code for a shard and for the whole, and what its gradient means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from genrec_jax.parallel import collectives as c
from genrec_jax.parallel import mesh as mesh_lib
from tests.tolerances import assert_close

SHAPES = [(1, 1, 8), (2, 2, 2), (1, 2, 1), (1, 1, 1)]


def on_shards(f, shape, out=P(mesh_lib.AXES)):
  return jax.jit(
    jax.shard_map(
      f,
      mesh=mesh_lib.make(*shape),
      in_specs=P(mesh_lib.AXES),
      out_specs=out,
      check_vma=False,
    )
  )


def test_outside_everything_is_plain():
  x = jnp.arange(3.0)
  assert c.axes() == () and c.shard_count() == 1
  assert c.total(x) is x and c.gather(x) is x
  assert c.shard_index() == 0 and c.shard_index().dtype == jnp.int32
  assert c.before(jnp.int32(5)) == 0 and c.before(jnp.int32(5)).dtype == 'int32'
  assert jax.jit(c.axes)() == ()


@pytest.mark.parametrize('shape', SHAPES)
def test_inside_they_speak_to_the_other_shards(shape):
  n = int(np.prod(shape))
  x = jnp.arange(2 * n, dtype=jnp.int32)

  def f(x):
    assert c.axes() == mesh_lib.AXES and c.shard_count() == n
    index = c.shard_index()
    assert index.dtype == jnp.int32
    return {
      'total': c.total({'sum': jnp.sum(x)})['sum'][None],
      'index': index[None],
      'gather': c.gather((x,))[0][None],
      'before': c.before(jnp.sum(x))[None],
    }

  out = on_shards(f, shape)(x)
  sums = np.arange(2 * n).reshape(n, 2).sum(1)
  assert out['total'].tolist() == [sums.sum()] * n
  assert out['index'].tolist() == list(range(n))
  assert out['gather'].tolist() == [list(range(2 * n))] * n
  assert out['before'].tolist() == (np.cumsum(sums) - sums).tolist()
  assert out['before'].dtype == jnp.int32


def summand(w, x, y, weight):
  """A shard's part of a mean in which every example meets all the others."""
  own = x @ w
  scores = own @ c.gather(own).T - (own @ y)[:, None]
  per = jnp.sum(jnp.tanh(scores), axis=1) * weight
  shared = 0.1 * jnp.sum(w**2) / c.shard_count()
  return jnp.sum(per) / c.total(jnp.sum(weight)) + shared


@pytest.mark.parametrize('shape', SHAPES)
def test_gradients_of_summands_add_up_to_the_gradient(shape):
  rng = np.random.default_rng(0)
  w = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
  x = jnp.asarray(rng.normal(size=(16, 4)), jnp.float32)
  y = jnp.asarray(rng.normal(size=3), jnp.float32)
  weight = jnp.asarray(rng.integers(0, 2, 16), jnp.float32)

  def f(x, weight):
    return c.total(jax.value_and_grad(summand)(w, x, y, weight))

  value, grad = on_shards(f, shape, P())(x, weight)
  wanted, wanted_grad = jax.value_and_grad(summand)(w, x, y, weight)
  assert_close(value, wanted)
  assert_close(grad, wanted_grad)
