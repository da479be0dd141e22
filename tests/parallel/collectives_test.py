"""One code for a shard and for the whole, and what its gradient means."""

import doctest

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
      mesh=mesh_lib.make_mesh(*shape),
      in_specs=P(mesh_lib.AXES),
      out_specs=out,
      check_vma=False,
    )
  )


def test_outside_everything_is_plain():
  x = jnp.arange(3.0)
  assert c.current_axes() == () and c.shard_count() == 1
  assert c.sum_over_shards(x) is x and c.gather(x) is x
  assert c.shard_index() == 0 and c.shard_index().dtype == jnp.int32
  assert (
    c.sum_before(jnp.int32(5)) == 0
    and c.sum_before(jnp.int32(5)).dtype == 'int32'
  )
  assert jax.jit(c.current_axes)() == ()


@pytest.mark.parametrize('shape', SHAPES)
def test_inside_they_speak_to_the_other_shards(shape):
  n = int(np.prod(shape))
  x = jnp.arange(2 * n, dtype=jnp.int32)

  def f(x):
    assert c.current_axes() == mesh_lib.AXES and c.shard_count() == n
    index = c.shard_index()
    assert index.dtype == jnp.int32
    return {
      'total': c.sum_over_shards({'sum': jnp.sum(x)})['sum'][None],
      'index': index[None],
      'gather': c.gather((x,))[0][None],
      'before': c.sum_before(jnp.sum(x))[None],
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
  return jnp.sum(per) / c.sum_over_shards(jnp.sum(weight)) + shared


@pytest.mark.parametrize('shape', SHAPES)
def test_gradients_of_summands_add_up_to_the_gradient(shape):
  rng = np.random.default_rng(0)
  w = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
  x = jnp.asarray(rng.normal(size=(16, 4)), jnp.float32)
  y = jnp.asarray(rng.normal(size=3), jnp.float32)
  weight = jnp.asarray(rng.integers(0, 2, 16), jnp.float32)

  def f(x, weight):
    return c.sum_over_shards(jax.value_and_grad(summand)(w, x, y, weight))

  value, grad = on_shards(f, shape, P())(x, weight)
  wanted, wanted_grad = jax.value_and_grad(summand)(w, x, y, weight)
  assert_close(value, wanted)
  assert_close(grad, wanted_grad)


# --- Scopes


def test_the_examples_of_the_module():
  assert doctest.testmod(c).failed == 0


def test_outside_a_scope_changes_nothing():
  x = jnp.arange(3.0)
  with c.restrict_axes('host'):
    assert c.current_axes() == () and c.shard_count() == 1
    assert c.sum_over_shards(x) is x and c.gather(x) is x


@pytest.mark.parametrize(
  'scope', [('rep', 'dev'), ('dev', 'rep'), ('host',), mesh_lib.AXES, ()]
)
def test_a_scope_speaks_to_the_shards_of_its_axes_alone(scope):
  shape = (2, 2, 2)
  x = jnp.arange(16, dtype=jnp.int32)
  sums = np.arange(16).reshape(*shape, 2).sum(-1)
  rest = [i for i, name in enumerate(mesh_lib.AXES) if name not in scope]

  def f(x):
    with c.restrict_axes(*scope):
      return {
        'total': c.sum_over_shards(jnp.sum(x))[None],
        'index': c.shard_index()[None],
        'count': jnp.int32(c.shard_count())[None],
        'gather': c.gather(jnp.sum(x)[None])[None],
        'before': c.sum_before(jnp.sum(x))[None],
      }

  out = on_shards(f, shape)(x)
  # [shards outside of the scope, shards inside, in the order of the mesh]
  order = [*rest, *(i for i in range(3) if i not in rest)]
  peers = sums.transpose(order).reshape(2 ** len(rest), -1)

  def in_scope(name):
    found = np.asarray(out[name])
    found = found.reshape(*shape, *found.shape[1:])
    found = found.transpose(*order, *range(3, found.ndim))
    return found.reshape(*peers.shape, *found.shape[3:])

  count = peers.shape[1]
  assert (in_scope('total') == peers.sum(1, keepdims=True)).all()
  assert (in_scope('index') == np.arange(count)).all()
  assert (in_scope('count') == count).all()
  assert (in_scope('gather') == peers[:, None]).all()
  assert (in_scope('before') == np.cumsum(peers, 1) - peers).all()


def test_of_scopes_inside_each_other_the_innermost_counts():
  def f(x):
    with c.restrict_axes('host'):
      with c.restrict_axes('rep', 'dev'):
        assert c.current_axes() == ('rep', 'dev')
      assert c.current_axes() == ('host',)
    assert c.current_axes() == mesh_lib.AXES
    return x

  on_shards(f, (2, 2, 2))(jnp.arange(8))


def test_a_function_that_is_jitted_is_traced_in_every_scope():
  total = jax.jit(c.sum_over_shards)

  def f(x):
    everyone = total(x)
    with c.restrict_axes('host'):
      return everyone, total(x)

  everyone, hosts = on_shards(f, (1, 2, 4))(jnp.arange(8))
  assert everyone.tolist() == [28] * 8
  assert hosts.tolist() == [4, 6, 8, 10] * 2


def test_a_scope_of_axes_that_the_mesh_does_not_have():
  def f(x):
    with c.restrict_axes('rep', 'hosts'):
      return c.sum_over_shards(x)

  with pytest.raises(
    ValueError, match="'hosts'; the axes of this mesh are rep"
  ):
    on_shards(f, (1, 2, 1))(jnp.arange(2))


@pytest.mark.parametrize('count', [2, 3, 4, 5, 7])
def test_the_mean_of_equal_numbers_is_that_number(count):
  rng = np.random.default_rng(count)
  equal = rng.normal(size=200).astype(np.float32)
  equal[:3] = 0.0, 1e-30, -1e30
  copies = np.tile(equal, (count, 1))
  copies[:, 100:] += rng.normal(size=(count, 100)).astype(np.float32)
  f = on_shards(lambda x: c.mean_of_copies(x, 'rep'), (count, 1, 1))
  means = np.asarray(f(jnp.asarray(copies)))
  np.testing.assert_array_equal(means[:, :100], copies[:, :100])
  assert (means == means[0]).all()
  wanted = copies.astype(np.float64).mean(0)
  np.testing.assert_allclose(means[0], wanted, rtol=3e-6, atol=3e-7)
  whole = jnp.arange(count, dtype=jnp.int32)
  assert (f(whole) == whole).all()
