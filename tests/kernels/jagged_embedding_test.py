"""Every backend against loops over NumPy arrays, forward and backward."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels.jagged_embedding import api
from tests.kernels.embedding_cases import (
  FAST,
  HERE,
  SHAPES,
  assert_rounded_once,
  inputs,
)
from tests.tolerances import assert_close


def plain_bags(table, ids, lengths, weights, mode):
  """The definition, bag after bag."""
  table = np.asarray(table, np.float64)
  ids, weights = np.asarray(ids), np.asarray(weights, np.float64)
  out, start = np.zeros((len(lengths), table.shape[1])), 0
  for b, length in enumerate(np.asarray(lengths)):
    for k in range(start, start + length):
      out[b] += weights[k] * table[ids[k]]
    out[b] /= length if mode == 'mean' and length else 1
    start += length
  return out


def plain_row_gradient(shape, ids, lengths, weights, grads, mode):
  out, start = np.zeros(shape), 0
  ids, weights = np.asarray(ids), np.asarray(weights, np.float64)
  grads = np.asarray(grads, np.float64)
  for b, length in enumerate(np.asarray(lengths)):
    scale = 1 / length if mode == 'mean' and length else 1
    for k in range(start, start + length):
      out[ids[k]] += scale * weights[k] * grads[b]
    start += length
  return out


def both(case, weighted):
  """Weights for the plain statement and for the operator."""
  if weighted:
    return case['weights'], case['weights']
  return np.ones(len(case['ids'])), None


@pytest.mark.parametrize('mode', api.checks.MODES)
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('name', HERE)
def test_bags(name, shape, weighted, mode):
  dtype = {'wide': 'bfloat16', 'narrow': 'float16'}.get(shape, 'float32')
  case = inputs(shape, dtype)
  plain, weights = both(case, weighted)
  args = case['table'], case['ids'], case['lengths']
  out = api.embedding_bag(
    *args, mode=mode, weights=weights, implementation=name
  )
  assert out.dtype == dtype
  assert_rounded_once(out, plain_bags(*args, plain, mode))


@pytest.mark.parametrize('mode', api.checks.MODES)
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('name', HERE)
def test_row_gradients_are_merged(name, shape, weighted, mode):
  case = inputs(shape)
  rows = case['table'].shape[0]
  plain, weights = both(case, weighted)
  args = case['ids'], case['lengths']
  merged = api.bag_row_gradient(
    case['grads'], *args, rows, mode=mode, weights=weights, implementation=name
  )
  used = np.unique(np.asarray(args[0])[: int(args[1].sum())])
  size = min(len(args[0]), rows)
  np.testing.assert_array_equal(merged.ids[: len(used)], used)
  np.testing.assert_array_equal(merged.ids[len(used) :], rows)
  assert merged.ids.shape == (size,) and merged.ids.dtype == jnp.int32
  expected = plain_row_gradient(
    case['table'].shape, *args, plain, case['grads'], mode
  )
  assert_close(merged.grads[: len(used)], expected[used])
  assert not np.any(merged.grads[len(used) :])


@pytest.mark.parametrize('mode', api.checks.MODES)
@pytest.mark.parametrize('name', HERE)
def test_gradients_for_table_and_weights(name, mode):
  """What `jax.grad` gives is the gradient of the plain statement in jnp."""
  case = inputs('narrow')
  ids, lengths = case['ids'], case['lengths']
  total = int(lengths.sum())
  bags = np.repeat(np.arange(len(lengths)), lengths)
  divisor = jnp.maximum(lengths, 1).astype(jnp.float32)[:, None]

  def plain(table, weights):
    rows = weights[:total, None] * table[ids[:total]]
    out = jnp.zeros((len(lengths), table.shape[1])).at[bags].add(rows)
    out = out if mode == 'sum' else out / divisor
    return jnp.sum(jnp.sin(out) * case['grads'])

  def ours(table, weights):
    out = api.embedding_bag(
      table, ids, lengths, mode=mode, weights=weights, implementation=name
    )
    return jnp.sum(jnp.sin(out) * case['grads'])

  args = case['table'], case['weights']
  expected = jax.grad(plain, argnums=(0, 1))(*args)
  for got in (
    jax.grad(ours, argnums=(0, 1))(*args),
    jax.jit(jax.grad(ours, argnums=(0, 1)))(*args),
  ):
    assert_close(got[0], expected[0])
    assert_close(got[1], expected[1])


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('name', HERE)
def test_gather_and_its_gradient(name, dtype):
  case = inputs('wide', dtype)
  table, ids, lengths = case['table'], case['ids'], case['lengths']
  total = int(lengths.sum())
  out = api.gather(table, ids, lengths=lengths, implementation=name)
  np.testing.assert_array_equal(out[:total], table[ids[:total]])
  assert not np.any(out[total:]) and out.dtype == dtype
  pull = jax.random.normal(jax.random.key(1), out.shape).astype(dtype)

  def loss(table):
    rows = api.gather(table, ids, lengths=lengths, implementation=name)
    return jnp.sum((rows * pull).astype(jnp.float32))

  expected = np.zeros(table.shape)
  np.add.at(expected, ids[:total], np.asarray(pull, np.float64)[:total])
  got = jax.grad(loss)(table)
  assert got.dtype == dtype
  assert_rounded_once(got, expected)


@pytest.mark.parametrize('name', HERE)
def test_merge_rows_leaves_out_what_is_no_row(name):
  ids = jnp.int32([7, 3, 9, 3, 9])
  grads = jnp.arange(10.0).reshape(5, 2)
  merged = api.merge_rows(ids, grads, 9, implementation=name)
  assert merged.ids.tolist() == [3, 7, 9, 9, 9]
  assert merged.grads[:2].tolist() == [[8, 10], [0, 1]]
  assert not np.any(merged.grads[2:])
  assert api.distinct_rows(ids, 9, implementation=name).tolist() == [
    3, 7, 9, 9, 9,
  ]  # fmt: skip


@pytest.mark.parametrize('name', HERE)
def test_nothing_to_do(name):
  table = jnp.ones((4, 3))
  none = jnp.zeros(0, jnp.int32)
  for lengths in (none, jnp.zeros(2, jnp.int32)):
    out = api.embedding_bag(table, none, lengths, implementation=name)
    np.testing.assert_array_equal(out, np.zeros((len(lengths), 3)))
  merged = api.merge_rows(none, jnp.zeros((0, 3)), 4, implementation=name)
  assert merged.ids.shape == (0,) and merged.grads.shape == (0, 3)
  new, _ = api.embedding_bag_backward_and_update(
    table, {}, none, none, jnp.zeros((0, 3)),
    learning_rate=1.0, optimizer='sgd', implementation=name,
  )  # fmt: skip
  np.testing.assert_array_equal(new, table)


@pytest.mark.parametrize('name', HERE)
def test_one_long_bag_among_many_empty_ones(name):
  rng = np.random.default_rng(0)
  lengths = np.zeros(30, np.int32)
  lengths[[4, 7]] = 55, 2
  args = np.float32(rng.normal(size=(9, 3))), rng.integers(0, 9, 64), lengths
  out = api.embedding_bag(jnp.asarray(args[0]), *args[1:], implementation=name)
  assert_close(out, plain_bags(*args, np.ones(64), 'sum'))


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  lengths=st.lists(st.integers(0, 7), min_size=9, max_size=9),
  rows=st.sampled_from([1, 12]),
  seed=st.integers(0, 2**16),
)
def test_random_bags(lengths, rows, seed):
  rng = np.random.default_rng(seed)
  ids = rng.integers(0, rows, 64, dtype=np.int32)
  table = np.float32(rng.normal(size=(rows, 3)))
  grads = np.float32(rng.normal(size=(9, 3)))
  bags, merged = {}, {}
  for name in HERE:
    bags[name], merged[name] = _random_case(name, rows)(
      table, ids, np.int32(lengths), grads
    )
  for name in FAST:
    assert_close(bags[name], bags['reference'])
    np.testing.assert_array_equal(merged[name].ids, merged['reference'].ids)
    assert_close(merged[name].grads, merged['reference'].grads)


_COMPILED = {}


def _random_case(name, rows):
  def run(table, ids, lengths, grads):
    return api.embedding_bag(
      table, ids, lengths, implementation=name
    ), api.bag_row_gradient(grads, ids, lengths, rows, implementation=name)

  return _COMPILED.setdefault((name, rows), jax.jit(run))
