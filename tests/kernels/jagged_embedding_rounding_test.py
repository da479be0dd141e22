"""Rounding of 16-bit tables: without bias, and nowhere else than it should."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import integers
from pallas_kernels.jagged_embedding import api
from tests.kernels.embedding_cases import HERE

# dtype -> NumPy's type, the largest finite number.
TYPES = {
  'bfloat16': (ml_dtypes.bfloat16, 3.3895313892515355e38),
  'float16': (np.float16, 65504.0),
}
STEP = {'bfloat16': 2.0**-8, 'float16': 2.0**-11}  # below one


def rounded(x, dtype, name, seed=None, numbers=None, first_column=0):
  """`x` `[rows, D]` through an update: 0 - 1 * -x."""
  x = jnp.asarray(x, jnp.float32)
  key = None if seed is None else jnp.uint32(seed)
  first_column = jnp.asarray(first_column, jnp.uint32)
  return np.asarray(_rounded(dtype, name, x, key, numbers, first_column))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rounded(dtype, name, x, seed, numbers, first_column):
  new, _ = api.update_rows(
    jnp.zeros(x.shape, dtype), {}, jnp.arange(len(x)), -x, learning_rate=1.0,
    optimizer='sgd', implementation=name, stochastic_rounding_seed=seed,
    row_numbers=numbers, first_column=first_column,
  )  # fmt: skip
  return new


def numbers():
  """All kinds of float32, `[rows, D]`; those next to where things change."""
  rng = np.random.default_rng(0)
  special = np.float32([
    0, 1, 65504, 65519.9, 65520, 65536, 1e9, 3.38953e38, 3.3961e38, 3.4e38,
    np.inf, np.nan, 2.0**-14, 2.0**-24, 2.0**-25, 5 * 2.0**-25, 1e-30,
    1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8,
  ])  # fmt: skip
  near = [np.nextafter(special, np.float32(to)) for to in (0, np.inf)]
  powers = 2.0 ** rng.integers(-28, 18, 800)
  kinds = np.concatenate([special, *near, powers * rng.uniform(1, 2, 800)])
  kinds = np.concatenate([kinds, -kinds])
  return np.float32(np.resize(kinds, (48, 48)))


def plain_bits(seed, row, column):
  def mix(x):
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) % 2**32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) % 2**32
    return x ^ (x >> 16)

  return mix((mix(seed ^ mix(row)) + column * 0x9E3779B9) % 2**32)


def plain_rounding(x, bits, dtype):
  """One float32 by chance: the definition, with Python's exact numbers."""
  kind, largest = TYPES[dtype]
  if not abs(x) <= largest:
    with np.errstate(over='ignore'):
      return float(kind(np.float32(x)))
  least, digits = (-133, 7) if dtype == 'bfloat16' else (-24, 10)
  power = np.frexp(abs(x))[1] - 1 if x else -1000
  step = 2.0 ** max(power - digits, least)
  below = abs(x) // step
  random = (bits >> 16) / 2**16 if dtype == 'bfloat16' else (bits >> 8) / 2**24
  share = abs(x) / step - below
  up = share + random >= 1 if dtype == 'bfloat16' else random < share
  return float(np.copysign((below + up) * step, x))


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('name', HERE)
def test_to_the_nearest_as_numpy(name, dtype):
  x = numbers()
  with np.errstate(over='ignore'):
    expected = x.astype(TYPES[dtype][0])
  np.testing.assert_array_equal(
    rounded(x, dtype, name).astype(np.float64), expected.astype(np.float64)
  )


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('name', HERE)
def test_by_chance_as_defined(name, dtype):
  """The same bits from each backend; what is too large goes to the nearest."""
  x = numbers()
  expected = [
    [plain_rounding(v, plain_bits(7, i, j), dtype) for j, v in enumerate(row)]
    for i, row in enumerate(x.astype(np.float64))
  ]
  found = rounded(x, dtype, name, seed=7).astype(np.float64)
  # XLA's threads take numbers below 2 ** -126 for zeros.
  found, expected = (np.where(np.abs(x) < 1e-37, 0, y) for y in
                     (found, expected))  # fmt: skip
  np.testing.assert_array_equal(found, expected)
  finite = np.abs(x) <= TYPES[dtype][1]
  assert np.all(np.isfinite(found[finite]))


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('name', HERE)
def test_every_16_bit_number_stays(name, dtype):
  """Also subnormal ones: a gradient of zero changes no bit."""
  bits = np.arange(2**16, dtype=np.uint16)
  exponent = bits & (0x7F80 if dtype == 'bfloat16' else 0x7C00)
  bits[exponent == exponent.max()] = 0  # NaN; infinity
  if dtype == 'bfloat16':
    bits[exponent == 0] &= 0x8000  # XLA's threads take these for zeros
  table = jnp.asarray(bits.view(TYPES[dtype][0]).reshape(-1, 64))
  for seed in (None, 3):
    new, _ = jax.jit(
      lambda table, seed=seed: api.update_rows(
        table, {}, jnp.arange(len(table)), jnp.zeros(table.shape),
        learning_rate=1.0, optimizer='sgd', implementation=name,
        stochastic_rounding_seed=seed,
      )
    )(table)  # fmt: skip
    assert np.asarray(new).tobytes() == np.asarray(table).tobytes()


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('name', HERE)
def test_small_steps_count_on_average(name, dtype):
  """A step of a quarter of the last bit moves a quarter of the elements."""
  rows, dim = 400, 48
  step = STEP[dtype]
  x = np.full((rows, dim), 1 - step / 4)
  first, other = (rounded(x, dtype, name, seed=s) for s in (7, 8))
  assert set(np.unique(first)) == {1, 1 - step}
  first, other = first < 1, other < 1
  share = np.mean(first)
  deviation = np.sqrt(0.25 * 0.75 / first.size)
  assert abs(share - 0.25) < 5 * deviation
  # Neither rows nor columns nor seeds go together.
  assert np.mean(first, axis=0).std() < 2 * np.sqrt(0.1875 / rows)
  assert np.mean(first, axis=1).std() < 2 * np.sqrt(0.1875 / dim)
  assert abs(np.mean(first & other) - 1 / 16) < 6 * deviation


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize('x', [3e-8, 1.1e-7, 2.0**-14 - 1e-9, 1e-3, 777.77])
def test_the_mean_of_float16_is_the_number(name, x):
  """Subnormal numbers too, where one step is a large part of the number."""
  found = rounded(np.full((500, 64), x), 'float16', name, seed=5)
  found = found.astype(np.float64)
  x = float(np.float32(x))
  low, high = np.unique(found)
  assert low < x < high
  step = high - low
  assert step == np.spacing(np.float16(low)).astype(float)
  assert abs(found.mean() - x) < 5 * 0.5 * step / np.sqrt(found.size)


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('name', HERE)
def test_rounding_does_not_depend_on_where_a_row_lies(name, dtype):
  """Rows dealt out to shards, and a block of columns, keep their bits."""
  x = np.random.default_rng(1).normal(size=(12, 40))
  whole = rounded(x, dtype, name, seed=3)
  assert np.any(whole != rounded(x[::-1], dtype, name, seed=3)[::-1])
  for shard in range(3):
    numbers = jnp.arange(4, dtype=jnp.uint32) * 3 + shard
    part = rounded(x[shard::3], dtype, name, seed=3, numbers=numbers)
    np.testing.assert_array_equal(part, whole[shard::3])
  part = rounded(x[:, 24:], dtype, name, seed=3, first_column=24)
  np.testing.assert_array_equal(part, whole[:, 24:])
  # Two blocks of columns as rows of one table.
  rows = np.tile(np.arange(12), 2)
  first = np.repeat([0, 20], 12)
  pieces = np.concatenate([x[:, :20], x[:, 20:]])
  pieces = rounded(pieces, dtype, name, 3, jnp.asarray(rows), first)
  np.testing.assert_array_equal(np.concatenate([*pieces.reshape(2, 12, 20)], 1),
                                whole)  # fmt: skip


def test_row_numbers_are_for_rounding_alone():
  table = jnp.ones((5, 3))
  ids, grads = jnp.int32([1, 4]), jnp.ones((2, 3))
  options = dict(learning_rate=0.1, optimizer='sgd')
  plain, _ = api.update_rows(table, {}, ids, grads, **options)
  numbered, _ = jax.jit(
    lambda n: api.update_rows(
      table, {}, ids, grads, row_numbers=n, first_column=n[0], **options
    )
  )(jnp.int32([7, 9]))
  np.testing.assert_array_equal(plain, numbered)


@pytest.mark.parametrize('seed', [-1, 2**32 - 1, 2**40 - 1, np.int64(-1)])
def test_any_integer_is_a_seed(seed):
  assert int(integers.to_seed('seed', seed)) == 2**32 - 1
  assert int(integers.to_seed('seed', jnp.int32(-1))) == 2**32 - 1
  for wrong in (1.5, jax.random.key(0), jax.random.PRNGKey(0)):
    with pytest.raises(ValueError, match='seed must be an integer'):
      integers.to_seed('seed', wrong)
