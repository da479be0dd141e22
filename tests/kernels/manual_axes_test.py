"""Kernels inside `jax.shard_map` with its account of what differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pallas_kernels as pk
from pallas_kernels import manual_axes
from pallas_kernels.jagged_embedding import cpu
from tests.tolerances import assert_close

IDS = jnp.array([0, 1, 2, 2])
TABLE = jnp.arange(1.0, 4.0)[:, None]
needs_cpp = pytest.mark.skipif(cpu.why_not() is not None, reason='needs C++')


def shard(one, *in_specs, out_specs=P()):
  mesh = jax.sharding.Mesh(jax.devices()[:2], 'x')
  return jax.shard_map(one, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def differentiate(one, table, *others, specs):
  """Loss and gradient, over two parts and over none."""

  def total(table, *others):
    return jax.lax.psum((one(table, *others) ** 2).sum(), 'x')

  apart = shard(total, P(), *specs)
  together = lambda *args: (one(*args) ** 2).sum()  # noqa: E731
  return tuple(
    jax.jit(jax.value_and_grad(f))(table, *others) for f in (apart, together)
  )


@needs_cpp
@pytest.mark.parametrize(
  'one, others, specs',
  [
    (pk.gather, (IDS,), (P('x'),)),
    (pk.embedding_bag, (IDS, jnp.array([2, 2])), (P('x'), P('x'))),
    (
      lambda t, i, n, w: pk.embedding_bag(t, i, n, weights=w),
      (IDS, jnp.array([2, 2]), jnp.arange(4.0)),
      (P('x'),) * 3,
    ),
    (
      lambda t, q, i: pk.score_rows(q, t, i),
      (jnp.ones((4, 1)), IDS[:, None]),
      (P('x'), P('x')),
    ),
    (
      lambda t, q, i: pk.score_rows(q, t, i),
      (jnp.ones((1, 1)), IDS[None]),
      (P(), P(None, 'x')),
    ),
  ],
  ids=['gather', 'bags', 'weights', 'scores', 'scores by columns'],
)
def test_gradients_of_what_is_shared_are_summed(one, others, specs):
  (loss, grad), (expected_loss, expected) = differentiate(
    one, TABLE, *others, specs=specs
  )
  assert_close(loss, expected_loss)
  assert_close(grad, expected)


@needs_cpp
def test_what_differs_is_not_returned_as_equal():
  with pytest.raises(ValueError, match='replicated|varying'):
    shard(pk.gather, P(), P('x'))(TABLE, IDS)
  found = shard(pk.gather, P(), P('x'), out_specs=P('x'))(TABLE, IDS)
  np.testing.assert_array_equal(found, TABLE[IDS])


@needs_cpp
def test_rows_are_updated_apart():
  def move(table, ids):
    merged = pk.merge_rows(ids, jnp.ones((2, 1)), rows=3)
    return pk.update_rows(
      table, {}, *merged, optimizer='sgd', learning_rate=0.5
    )[0]

  found = shard(move, P('x'), P('x'), out_specs=P('x'))(jnp.zeros((6, 1)), IDS)
  assert found[:, 0].tolist() == [-0.5, -0.5, 0, 0, 0, -1.0]


def test_attention_by_xla_in_parts():
  q = jax.random.normal(jax.random.key(0), (8, 1, 2))
  bias = jnp.linspace(-1.0, 1.0, 7)
  lengths = jnp.array([3, 1, 2, 2])

  def one(bias, q, lengths):
    return pk.hstu_attention(
      q, q, q, lengths, max_len=4, position_bias=bias, implementation='xla'
    )

  (loss, grad), (expected_loss, expected) = differentiate(
    one, bias, q, lengths, specs=(P('x'), P('x'))
  )
  assert_close(loss, expected_loss)
  assert_close(grad, expected)


def test_outside_nothing_changes():
  x = jnp.ones(3)
  assert manual_axes.vary_alike(x, None) == (x, None)
  assert manual_axes.varying_axes(x) == frozenset()


def test_what_is_not_there_stays_so_and_the_others_differ_alike():
  seen = []

  def one(part, whole):
    found = manual_axes.vary_alike(part, None, whole)
    seen.extend(found)
    return found[0] + found[2]

  out = shard(one, P('x'), P(), out_specs=P('x'))(jnp.arange(4.0), jnp.ones(2))
  assert out.tolist() == [1.0, 2.0, 3.0, 4.0]
  assert seen[1] is None
  assert [manual_axes.varying_axes(x) for x in (seen[0], seen[2])] == [
    {'x'}
  ] * 2


@pytest.mark.parametrize('mode', ['sum', 'mean'])
def test_bags_by_xla_in_parts(mode):
  def one(table, ids, lengths):
    return pk.embedding_bag(
      table, ids, lengths, mode=mode, implementation='xla'
    )

  (loss, grad), (expected_loss, expected) = differentiate(
    one, TABLE, IDS, jnp.array([2, 2]), specs=(P('x'), P('x'))
  )
  assert_close(loss, expected_loss)
  assert_close(grad, expected)
