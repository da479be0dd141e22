"""What a codec loses, what it never loses, and how many bytes it makes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.parallel import codecs

# Of the formats of blocks three: `numerics/block_rows_test.py` has them all.
NAMES = [
  name
  for name in codecs.names()
  if name not in BLOCK_FORMATS or name in ('mx6', 'mxfp6_e3m2', 'mxint8')
]
# Formats whose steps are of one size over the range of a row.
STEPS = {'int8': 255, 'fbgemm_int8': 255, 'fbgemm_int4': 15, 'fbgemm_int2': 3}
BOTH = pytest.mark.parametrize('backward', [False, True], ids=['', 'backward'])


def there_and_back(name, x, backward=False):
  codec = codecs.find_codec(name, backward=backward)
  return np.asarray(jax.jit(lambda x: decoded(codec, x))(x))


def decoded(codec, x):
  return codec.decode(codec.encode(x), x.shape[-1])


def bound(name, x, backward):
  """Largest error of each element: half a step where the element lies."""
  largest = np.max(np.abs(x), axis=-1, keepdims=True)
  if name in STEPS:
    span = np.max(x, -1, keepdims=True) - np.min(x, -1, keepdims=True)
    error = span / STEPS[name] / 2 + 1e-6 * largest
    if STEPS[name] == 255:
      # FBGEMM adds this to the range, so that codes are a little too small.
      return error + (1e-8 if name == 'fbgemm_int8' else 0)
    # Scale and bias are rounded to float16, in which 1e-7 is a step.
    return 1.05 * error + 2.0**-11 * largest + 2.0**-25 * STEPS[name]
  if name == 'fbgemm_mx4' or name in BLOCK_FORMATS:
    own = BLOCK_FORMATS.get(name, BLOCK_FORMATS['mxfp4_e2m1'])
    blocks = np.zeros((*x.shape[:-1], -(-x.shape[-1] // own.block) * own.block))
    blocks[..., : x.shape[-1]] = np.abs(x)
    blocks = blocks.reshape(*x.shape[:-1], -1, own.block).max(-1)
    blocks = np.repeat(blocks, own.block, -1)[..., : x.shape[-1]]
    # The largest saturate below the next power of two, by a step at most.
    return blocks * 2.0 ** -max(own.mantissa_bits, 2)
  half_step, least = {
    'float16': (2.0**-11, 2.0**-25),
    'bfloat16': (2.0**-8, 0.0),
    # 3 and 2 bits of mantissa; below the normal numbers steps are even.
    'fp8': (2.0**-3, 2.0**-17 / 2.0**15 * largest)
    if backward
    else (2.0**-4, 2.0**-10 / 2.0**8 * largest),
    'fbgemm_fp8': (2.0**-3, 2.0**-17 / 57344 * largest)
    if backward
    else (2.0**-4, 2.0**-10 / 240 * largest),
  }[name]
  return (1 + 1e-6) * np.maximum(np.abs(x) * half_step, least)


@BOTH
@pytest.mark.parametrize('size', [1e-3, 1.0, 300.0])
@pytest.mark.parametrize('name', NAMES)
def test_errors_stay_below_half_a_step(name, size, backward):
  rng = np.random.default_rng(3)
  x = size * rng.normal(size=(4, 31, 24)) * rng.uniform(size=(4, 31, 1)) ** 4
  x = x.astype(np.float32)
  found = there_and_back(name, x, backward)
  assert found.dtype == np.float32
  if name == 'float32':
    np.testing.assert_array_equal(found, x)
    return
  assert np.all(np.abs(found - x) <= bound(name, x, backward))
  assert np.any(found != x)


@BOTH
@pytest.mark.parametrize('name', NAMES)
def test_zeros_stay_zeros(name, backward):
  np.testing.assert_array_equal(
    there_and_back(name, np.zeros((3, 8), np.float32), backward), 0
  )
  row = np.array([[0.0, 3.0, -5.0, 0.0]], np.float32)
  if name not in STEPS:  # steps over the row, none of which is zero
    found = there_and_back(name, row, backward)
    np.testing.assert_array_equal(found[:, [0, 3]], 0)


@BOTH
@pytest.mark.parametrize('name', NAMES)
def test_a_row_of_one_value(name, backward):
  for value in (1.0, -0.75, 2.0**-14):
    row = np.full((1, 8), value, np.float32)
    found = there_and_back(name, row, backward)
    # Of the block formats, only powers of two and sums of two have these.
    off = 0.0 if name in (*BLOCK_FORMATS, 'fbgemm_mx4') else 1e-6
    np.testing.assert_allclose(found, row, rtol=off)


@BOTH
@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', NAMES)
def test_what_is_not_finite_stays_visible(name, wrong, backward):
  for columns in (8, 16, 64):
    x = np.random.default_rng(columns).normal(size=(40, columns))
    x = x.astype(np.float32)
    places = np.arange(0, 40, 2), np.arange(20) % columns
    x[places] = wrong
    found = there_and_back(name, x, backward)
    assert not np.any(np.isfinite(found[places]))
    if np.isnan(wrong):
      assert np.all(np.isnan(found[places]))
    assert np.all(np.isfinite(found[1::2]))


@BOTH
@pytest.mark.parametrize('columns', [1, 8, 65])
@pytest.mark.parametrize('name', NAMES)
def test_the_bytes_of_a_row(name, columns, backward):
  codec = codecs.find_codec(name, backward=backward)
  bits = jax.eval_shape(codec.encode, jnp.zeros((2, 5, columns)))
  assert bits.shape[:-1] == (2, 5)
  assert bits.shape[-1] * bits.dtype.itemsize == codec.row_bytes(columns)
  assert codec.exact == (name == 'float32')
  if not codec.exact:
    assert jnp.issubdtype(bits.dtype, jnp.unsignedinteger)


def test_gradients_get_range_and_rows_get_precision():
  row = np.array([[2.0, 1.125, 2.0**-20]], np.float32)
  np.testing.assert_allclose(there_and_back('fp8', row)[0, 1], 1.125)
  assert there_and_back('fp8', row)[0, 2] != row[0, 2]
  found = there_and_back('fp8', row, backward=True)
  assert found[0, 1] != 1.125
  np.testing.assert_allclose(found[0, 2], row[0, 2])


def test_a_scale_moves_the_range_of_float16_and_rounds_nothing():
  plain = codecs.find_codec('float16', backward=True)
  scaled = dataclasses.replace(plain, scale=4096.0)
  rng = np.random.default_rng(5)
  sizes = 2.0 ** rng.uniform(-14, 3, (40, 64))  # of normal numbers, at most 8
  x = (np.sign(rng.normal(size=(40, 64))) * sizes).astype(np.float32)
  one, other = (
    np.asarray(jax.jit(decoded, static_argnums=0)(c, x))
    for c in (plain, scaled)
  )
  np.testing.assert_array_equal(one, other)
  assert scaled.row_bytes(64) == plain.row_bytes(64) == 128
  small = np.float32([[1e-9, -1e-9, 3e-8, 1e-11, 0.0]])
  assert not decoded(plain, small)[0, :2].any()
  np.testing.assert_allclose(
    decoded(scaled, small), small, rtol=8e-3, atol=8e-12
  )
  large = np.float32([[15.9, 17.0, np.nan, -np.inf]])
  found = np.asarray(decoded(scaled, large))
  np.testing.assert_allclose(found, [[15.9, np.inf, np.nan, -np.inf]], 1e-3)


def test_a_name_nobody_knows():
  with pytest.raises(ValueError, match="no codec 'fp4', must be one of floa"):
    codecs.find_codec('fp4')
