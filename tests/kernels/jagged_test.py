"""Packed sequences against loops over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged import api as jagged

CAPACITY = 12
BATCHES = {
  'mixed': [3, 0, 5, 1, 0],
  'full': [3, 0, 5, 4, 0],
  'empty_first': [0, 0, 4, 0, 2],
  'all_empty': [0, 0, 0, 0, 0],
  'one': [0, 0, 6, 0, 0],
}


@pytest.fixture(params=BATCHES)
def batch(request):
  values = np.random.default_rng(0).normal(size=(CAPACITY, 2))
  return np.array(BATCHES[request.param], np.int32), values.astype('float32')


def tokens(lengths):
  """(token, sequence, position) of every real token."""
  token = 0
  for sequence, length in enumerate(lengths):
    for position in range(length):
      yield token, sequence, position
      token += 1


def test_offsets(batch):
  lengths, _ = batch
  expected = [sum(lengths[:i]) for i in range(len(lengths))]
  assert jagged.offsets(jnp.asarray(lengths)).tolist() == expected


def test_segment_ids_and_positions(batch):
  lengths, _ = batch
  segment = np.full(CAPACITY, len(lengths))
  position = np.zeros(CAPACITY, int)
  for t, s, p in tokens(lengths):
    segment[t], position[t] = s, p
  actual = jagged.segment_ids(jnp.asarray(lengths), CAPACITY)
  assert actual.dtype == jnp.int32
  np.testing.assert_array_equal(actual, segment)
  actual = jagged.positions(jnp.asarray(lengths), CAPACITY)
  np.testing.assert_array_equal(actual, position)


@pytest.mark.parametrize('max_len', [6, 9])
def test_to_dense_and_back(batch, max_len):
  lengths, values = batch
  dense = np.zeros((len(lengths), max_len, 2), 'float32')
  packed = np.zeros((CAPACITY, 2), 'float32')
  for t, s, p in tokens(lengths):
    dense[s, p] = packed[t] = values[t]
  actual = jagged.to_dense(jnp.asarray(values), jnp.asarray(lengths), max_len)
  np.testing.assert_array_equal(actual, dense)
  dirty = jnp.where(actual == 0, 9.0, actual)  # 9 stands behind a sequence
  back = jagged.to_jagged(dirty, jnp.asarray(lengths), CAPACITY)
  np.testing.assert_array_equal(back, packed)


def test_last_tokens(batch):
  lengths, values = batch
  expected = np.zeros((len(lengths), 2), 'float32')
  for t, s, _ in tokens(lengths):
    expected[s] = values[t]
  actual = jagged.last_tokens(jnp.asarray(values), jnp.asarray(lengths))
  np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize('prefix', [0, 2])
def test_concat_and_split(batch, prefix):
  lengths, values = batch
  left = np.array([2, 1, 0, 3, 0], np.int32)
  other = np.random.default_rng(1).normal(size=(8, 2)).astype('float32')
  expected = np.zeros((24, 2), 'float32')
  token = a = b = 0
  for mine, theirs in zip(left, lengths, strict=True):
    head = min(prefix, theirs)
    row = np.concatenate(
      [values[b : b + head], other[a : a + mine], values[b + head : b + theirs]]
    )
    expected[token : token + len(row)] = row
    token, a, b = token + len(row), a + mine, b + theirs
  sizes = jnp.asarray(left), jnp.asarray(lengths)
  joined = jagged.concat(
    jnp.asarray(other),
    sizes[0],
    jnp.asarray(values),
    sizes[1],
    24,
    prefix=prefix,
  )
  np.testing.assert_array_equal(joined, expected)
  dirty = joined.at[token:].set(9.0)
  back = jagged.split(dirty, *sizes, 8, CAPACITY, prefix=prefix)
  np.testing.assert_array_equal(back[0][:a], other[:a])
  np.testing.assert_array_equal(back[1][:b], values[:b])
  assert not np.any(back[0][a:]) and not np.any(back[1][b:])


def test_the_gradient_of_concat_is_split():
  left, right = jnp.array([2, 0, 1]), jnp.array([1, 3, 0])
  weights = jnp.arange(1.0, 9.0)

  def joined(x, y):
    return jnp.sum(weights * jagged.concat(x, left, y, right, 8, prefix=1))

  grads = jax.grad(joined, argnums=(0, 1))(jnp.ones(4), jnp.ones(5))
  expected = jagged.split(weights.at[7:].set(0.0), left, right, 4, 5, prefix=1)
  for actual, wanted in zip(grads, expected, strict=True):
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize('dtype', ['int8', 'uint8', 'int64'])
def test_lengths_of_any_integers(dtype):
  """`arange` to the capacity does not fit into their dtype."""
  lengths = np.array([2, 3], dtype)
  counts = np.bincount(jagged.segment_ids(lengths, 300))
  assert counts.tolist() == [2, 3, 295]
  assert jagged.positions(lengths, 300)[:6].tolist() == [0, 1, 0, 1, 2, 0]
  assert jagged.offsets(jnp.asarray(lengths)).tolist() == [0, 2]


def test_arrays_of_numpy_are_taken():
  values, lengths = np.arange(5), np.array([2, 3])
  assert jagged.to_dense(values, lengths, 2).tolist() == [[0, 1], [2, 3]]
  assert jagged.last_tokens(values, lengths).tolist() == [1, 4]
  dense = jagged.to_jagged(values[:4].reshape(2, 2), np.array([1, 2]), 4)
  assert dense.tolist() == [0, 2, 3, 0]


# --- Wrong lengths

MANY = [2**31 - 1, 2**31 - 1, 2]  # their sum is 0 in int32


def _join(values, lengths):
  return jagged.concat(values, lengths, values[:4], jnp.array([1, 1, 0]), 16)


def _join_on_the_right(values, lengths):
  return jagged.concat(values[:4], jnp.array([1, 1, 0]), values, lengths, 16)


def _part(values, lengths):
  return jagged.split(values, lengths, jnp.array([1, 1, 0]), 8, 4)


OF_PACKED = {
  'to_dense': lambda values, lengths: jagged.to_dense(values, lengths, 4),
  'last_tokens': jagged.last_tokens,
  'concat': _join,
  'concat on the right': _join_on_the_right,
  'split': _part,
}
OPS = OF_PACKED | {
  'to_jagged': lambda values, lengths: jagged.to_jagged(
    values.reshape(3, 4), lengths, 8
  )
}
WRONG = {
  **{(name, 'negative'): [3, -1, 2] for name in OPS},
  **{(name, 'many'): [5, 4, 4] for name in OF_PACKED},
  **{(name, 'wraps'): MANY for name in OPS},
  ('split', 'both sides'): [5, 3, 3],
}
MESSAGES = {
  'negative': 'lengths holds a negative number',
  'many': 'lengths add up to more than the 12 tokens',
  'wraps': 'lengths add up to more than',
  'both sides': 'left_lengths and right_lengths add up to more than the 12 tok',
}


@pytest.mark.parametrize(
  'dtype', ['float32', 'bfloat16', 'int32', 'uint8', bool]
)
@pytest.mark.parametrize('case', WRONG, ids=' '.join)
def test_wrong_lengths_raise_or_mark_everything(case, dtype):
  op, lengths = OPS[case[0]], jnp.array(WRONG[case], jnp.int32)
  values = jnp.ones(12, dtype)
  with pytest.raises(ValueError, match=MESSAGES[case[1]]):
    op(values, lengths)
  for out in jax.tree.leaves(jax.jit(op)(values, lengths)):
    assert out.dtype == values.dtype
    if jnp.issubdtype(dtype, jnp.floating):
      assert np.all(np.isnan(out))
    else:
      mark = {'int32': -(2**31), 'uint8': 255, bool: True}[dtype]
      assert np.all(out == mark)


def test_tokens_that_a_dense_row_does_not_have():
  dense = jnp.arange(1.0, 13.0).reshape(3, 4)
  lengths = jnp.array([2, 6, 1])
  with pytest.raises(ValueError, match='holds a number above the 4 columns'):
    jagged.to_jagged(dense, lengths, 10)
  out = jax.jit(jagged.to_jagged, static_argnums=2)(dense, lengths, 10)
  nan = np.nan
  np.testing.assert_array_equal(out, [1, 2, 5, 6, 7, 8, nan, nan, 9, 0])


def test_what_does_not_fit_is_cut_off_and_no_mistake():
  values, lengths = jnp.arange(1, 7), jnp.array([4, 2])
  assert jagged.to_dense(values, lengths, 3).tolist() == [[1, 2, 3], [5, 6, 0]]
  dense = jagged.to_dense(values, lengths, 4)
  assert jagged.to_jagged(dense, lengths, 5).tolist() == [1, 2, 3, 4, 5]
  none = jnp.zeros(2, int)
  joined = jagged.concat(values, lengths, values, none, 5)
  assert joined.tolist() == [1, 2, 3, 4, 5]
  left, right = jagged.split(values, lengths, none, 3, 2)
  assert (left.tolist(), right.tolist()) == ([1, 2, 3], [0, 0])


def test_inside_shard_map_each_part_is_marked_alone():
  mesh = jax.sharding.Mesh(jax.devices()[:2], 'x')
  spec = jax.sharding.PartitionSpec('x')
  one = jax.shard_map(
    lambda lengths: jagged.last_tokens(jnp.arange(1.0, 4.0), lengths),
    mesh=mesh,
    in_specs=spec,
    out_specs=spec,
  )
  out = jax.jit(one)(jnp.array([2, 1, 2, 2]))
  np.testing.assert_array_equal(out, [2.0, 3.0, np.nan, np.nan])


NONE = np.zeros(0, np.int32)
SIX = np.arange(1.0, 7.0)


@pytest.mark.parametrize(
  ('call', 'expected'),
  {
    'no tokens': (lambda: jagged.to_dense(SIX[:0], [0, 0], 3), [[0] * 3] * 2),
    'no last token': (lambda: jagged.last_tokens(SIX[:0], [0, 0]), [0, 0]),
    'no rows': (lambda: jagged.to_jagged(np.zeros((0, 3)), NONE, 2), [0, 0]),
    'no columns': (
      lambda: jagged.to_jagged(np.ones((2, 0)), [0, 0], 2),
      [0, 0],
    ),
    'concat of none': (
      lambda: jagged.concat(SIX, NONE, SIX, NONE, 2),
      [0, 0],
    ),
    'concat, one side empty': (
      lambda: jagged.concat(SIX[:0], [0, 0], SIX, [2, 3], 5, prefix=1),
      [1, 2, 3, 4, 5],
    ),
    'split of none': (
      lambda: jagged.split(SIX, NONE, NONE, 1, 2)[1],
      [0, 0],
    ),
    'positions': (lambda: jagged.positions(NONE, 2), [0, 0]),
  }.values(),
)
def test_nothing_at_all_is_a_batch_too(call, expected):
  assert np.asarray(call()).tolist() == expected


ROWS = np.arange(9.0).reshape(3, 3)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: jagged.to_jagged(ROWS, [1], 6), 'a number for each row of dense'),
    (lambda: jagged.to_jagged(ROWS, [1] * 4, 6), 'for each row of dense'),
    (lambda: jagged.to_jagged(ROWS, 1, 6), r'lengths must be \[B\]'),
    (lambda: jagged.to_dense(SIX, [[1, 1]], 3), r'lengths must be \[B\]'),
    (lambda: jagged.last_tokens(SIX, 1), r'lengths must be \[B\]'),
    (lambda: jagged.concat(SIX, [1], SIX, [1, 1], 9), 'the same sequences'),
    (lambda: jagged.split(SIX, [1], [1, 1], 4, 4), 'the same sequences'),
    (lambda: jagged.concat(ROWS, [1], ROWS[:, :1], [1], 9), 'must agree after'),
    (
      lambda: jagged.concat(SIX, [1], SIX, [1], 9, prefix=-1),
      'prefix must not be negative',
    ),
  ],
)
@pytest.mark.parametrize('traced', [False, True])
def test_lengths_of_another_shape_are_refused(call, message, traced):
  with pytest.raises(ValueError, match=message):
    jax.jit(call)() if traced else call()
