"""Lookups and bags of packed rows, against rows unpacked by NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import packed_rows
from genrec_jax.embedding.packed_rows import PackedTable, pack_table
from genrec_jax.numerics import packed_formats
from genrec_jax.numerics.packed_formats import PACKED_FORMATS

ROWS, WIDE = 11, 8


def make(name, columns=WIDE):
  rows = np.random.default_rng(0).normal(size=(ROWS, columns))
  rows = rows.astype(np.float32)
  table = pack_table(rows, name)
  plain = packed_formats.split_parts(
    PACKED_FORMATS[name], np.asarray(table.rows), columns
  )
  return table, plain


WHOLE = [name for name in PACKED_FORMATS if '_int' in name]
CASES = [
  *((name, 'xla') for name in PACKED_FORMATS),
  *((n, 'cpu') for n in WHOLE),
]


@pytest.mark.parametrize('columns', [WIDE, 83, 5, 1])
@pytest.mark.parametrize('name, implementation', CASES)
def test_a_lookup_gives_the_numbers_of_the_bytes(name, implementation, columns):
  table, plain = make(name, columns)
  ids = jnp.array([[0, 10, 3], [3, 3, 9]])
  look = functools.partial(packed_rows.lookup, implementation=implementation)
  found = jax.jit(look)(table, ids)
  assert found.dtype == jnp.float32
  wanted = plain[np.asarray(ids)]
  if name == 'fbgemm_int8':
    # A code times a scale of 24 bits is rounded, or not, before the sum.
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=3e-7)
  else:
    np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize('implementation', ['xla', 'cpu'])
def test_an_id_that_is_no_row_is_nan(implementation):
  table, plain = make('tbe_int4')
  ids = jnp.array([-1, 2, ROWS])
  found = packed_rows.lookup(table, ids, implementation=implementation)
  found = np.asarray(found)
  assert np.isnan(found[[0, 2]]).all()
  np.testing.assert_array_equal(found[1], plain[2])


@pytest.mark.parametrize('mode', ['sum', 'mean'])
@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize(
  'name, implementation', [('fbgemm_fp8', 'xla'), *((n, 'cpu') for n in WHOLE)]
)
def test_bags(name, implementation, mode, weighted):
  table, plain = make(name)
  lengths = np.array([2, 0, 3, 1])
  ids = np.array([4, 4, 0, 10, 7, 2, 99, -5])  # two of padding
  weights = np.linspace(0.5, 2.0, 8, dtype=np.float32) if weighted else None
  found = packed_rows.embedding_bag(
    table,
    jnp.asarray(ids),
    jnp.asarray(lengths),
    mode=mode,
    weights=None if weights is None else jnp.asarray(weights),
    implementation=implementation,
  )
  wanted = np.zeros((4, WIDE))
  ends = np.cumsum(lengths)
  for bag, (first, end) in enumerate(zip(ends - lengths, ends)):
    for k in range(first, end):
      wanted[bag] += (weights[k] if weighted else 1.0) * plain[ids[k]]
    if mode == 'mean':
      wanted[bag] /= max(lengths[bag], 1)
  np.testing.assert_allclose(np.asarray(found), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize('implementation', ['xla', 'cpu'])
def test_a_subnormal_scale_is_not_lost(implementation):
  # Of these rows the scale is subnormal in float16, and so is the bias.
  rows = np.linspace(1e-6, 4e-6, 8, dtype=np.float32)[None] * [[1.0], [-1.0]]
  table = pack_table(rows, 'tbe_int4')
  ids = jnp.array([0, 1])
  found = packed_rows.lookup(table, ids, implementation=implementation)
  packed = np.asarray(table.rows)
  wanted = packed_formats.split_parts(PACKED_FORMATS['tbe_int4'], packed, 8)
  assert np.abs(wanted).max() > 1e-6
  np.testing.assert_array_equal(np.asarray(found), wanted)


def test_what_no_implementation_does():
  ids, lengths = jnp.array([0]), jnp.array([1])
  table, _ = make('fbgemm_fp8')
  for wrong, error in (('cpu', NotImplementedError), ('gpu', ValueError)):
    with pytest.raises(error, match='implementation'):
      packed_rows.lookup(table, ids, implementation=wrong)
  with pytest.raises(ValueError, match="mode is 'max'"):
    packed_rows.embedding_bag(table, ids, lengths, mode='max')


def test_the_program_holds_no_table_of_numbers():
  table = PackedTable(jnp.zeros((1000, 36), jnp.uint8), 64, 'tbe_int4')
  bag = functools.partial(packed_rows.embedding_bag, implementation='xla')
  text = (
    jax.jit(bag)
    .lower(table, jnp.zeros(10, jnp.int32), jnp.zeros(3, jnp.int32))
    .as_text()
  )
  assert '1000x36xui8' in text and '1000x64' not in text


@pytest.mark.parametrize(
  'rows, columns, name, words',
  [
    (jnp.zeros((3, 8), jnp.uint8), 8, 'int3', 'formats are fbgemm_int8'),
    (jnp.zeros((3, 8), jnp.uint8), 8, 'tbe_int4', r'uint8 \[rows, 8\]'),
    (jnp.zeros((3, 8)), 8, 'tbe_int4', 'these are float32'),
  ],
)
def test_what_is_no_packed_table(rows, columns, name, words):
  if columns == 8 and name == 'tbe_int4' and rows.dtype == jnp.uint8:
    rows = rows[:, :7]
  with pytest.raises(ValueError, match=words):
    PackedTable(rows, columns, name)


@pytest.mark.parametrize('implementation', ['xla', 'cpu'])
@pytest.mark.parametrize(
  'ids, lengths, weights, message',
  [
    ([0, 1, 2], [2, 1], [1.0, 2.0], 'weights must be floats of the shape of'),
    ([0, 1, 2], [2, 1], [1, 2, 3], 'weights must be floats'),
    ([0, 1, 2], [2, 50, 1], None, 'lengths add up to more than the 3 ids'),
    ([0, 1, 2], [5, -3, 1], None, 'lengths holds a negative number'),
    ([0.5, 1.0], [2], None, 'ids must be integers'),
    ([True, False], [2], None, 'ids must be integers'),
    (np.array([2**32 + 1]), [1], None, 'ids holds a number above'),
  ],
)
def test_bags_that_are_none(implementation, ids, lengths, weights, message):
  table, _ = make('tbe_int4')
  with pytest.raises(ValueError, match=message):
    packed_rows.embedding_bag(
      table,
      np.asarray(ids),
      np.asarray(lengths),
      weights=None if weights is None else np.asarray(weights),
      implementation=implementation,
    )


def test_lengths_that_a_program_finds_wrong_are_nan():
  table, _ = make('tbe_int4')
  bag = jax.jit(lambda n: packed_rows.embedding_bag(table, jnp.array([0]), n))
  assert np.isnan(bag(jnp.array([5]))).all()
  assert np.isfinite(bag(jnp.array([1]))).all()


@pytest.mark.parametrize('name', PACKED_FORMATS)
def test_nothing_is_looked_up(name):
  table, _ = make(name)
  for implementation in ('xla', None):
    found = packed_rows.lookup(
      table, jnp.zeros((0,), jnp.int32), implementation=implementation
    )
    assert found.shape == (0, WIDE)
  empty = pack_table(np.zeros((0, WIDE), np.float32), name)
  assert empty.rows.shape == (0, table.rows.shape[1])
  with pytest.raises(ValueError, match='rows must be .n, C. with C of'):
    pack_table(np.zeros((3, 0), np.float32), name)
  with pytest.raises(ValueError, match='rows must be'):
    pack_table(np.zeros(3, np.float32), name)


@pytest.mark.parametrize('mode', ['sum', 'mean'])
def test_the_gradient_of_weights(mode):
  table, plain = make('tbe_int4')
  ids, lengths = jnp.array([3, 1, 1, 9, 7]), jnp.array([2, 0, 2])
  pull = np.random.default_rng(1).normal(size=(3, WIDE)).astype(np.float32)

  def measure(weights, implementation=None):
    bags = packed_rows.embedding_bag(
      table, ids, lengths, weights=weights, mode=mode,
      implementation=implementation,
    )  # fmt: skip
    return (bags * pull).sum()

  found = jax.jit(jax.grad(measure))(jnp.arange(5.0))
  count = 1 if mode == 'sum' else 2
  expected = [plain[i] @ pull[b] / count for i, b in zip(ids, (0, 0, 2, 2))]
  np.testing.assert_allclose(found, [*expected, 0.0], rtol=1e-5)
