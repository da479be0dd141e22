"""Whole numbers under float32 scales, against a loop over single numbers."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.numerics import integer_formats
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.block_products import round_to_blocks
from genrec_jax.numerics.integer_formats import (
  INTEGER_FORMATS,
  IntegerFormat,
  round_to_integers,
)

F = np.float32


def draw(rows=12, columns=83):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(rows, columns)) * 2.0 ** rng.uniform(-9, 9, (rows, 1))
  x[0], x[1, : columns // 2] = 0, 0
  x[2] *= 1e-39 / np.abs(x[2]).max()
  x[3] *= 3e38 / np.abs(x[3]).max()
  x[4, ::16] *= 1e4
  return x.astype(F)


def find_largest(numbers):
  largest = max(abs(v) for v in numbers)
  return F(0) if largest < 2.0**-110 else F(largest)


def round_one(value, step, f):
  if not step > 0:
    return F(0)
  code = np.rint(F(value) * (F(1) / step))
  return F(max(-f.most, min(f.most, code))) * step


def round_row(row, f):
  if not f.vector:
    step = find_largest(row) * F(1 / f.most)
    return [round_one(v, step, f) for v in row]
  parts = [row[i : i + f.vector] for i in range(0, len(row), f.vector)]
  largest = [find_largest(part) for part in parts]
  first = max(largest) * F(1 / (f.most * (2**f.scale_bits - 1)))
  found = []
  for part, most in zip(parts, largest, strict=True):
    own = F(0)
    if first > 0:
      steps = most * (F(1) / first) * F(1 / f.most)
      own = max(F(1), np.ceil(steps - F(2.0**-12))) * first
    found += [round_one(v, own, f) for v in part]
  return found


@pytest.mark.parametrize('name', INTEGER_FORMATS)
def test_a_loop_finds_the_same_bits(name):
  f, x = INTEGER_FORMATS[name], draw()
  with np.errstate(all='ignore'):
    wanted = np.array([round_row(row, f) for row in x], F)
    found = round_to_integers(x, f)
    across = round_to_integers(np.ascontiguousarray(x.T), f, 0)
  np.testing.assert_array_equal(found, wanted)
  np.testing.assert_array_equal(across.T, wanted)
  program = jax.jit(lambda x: round_to_integers(x, f, xp=jnp))
  np.testing.assert_array_equal(program(x), wanted)
  # Mapped over an axis, a number is rounded as it is in the whole.
  stacked = np.stack([x, -x])
  for one, sign in zip(jax.vmap(program)(stacked), (1, -1), strict=True):
    np.testing.assert_array_equal(one, sign * wanted)


@pytest.mark.parametrize('name', INTEGER_FORMATS)
def test_errors_are_half_a_step(name):
  f = INTEGER_FORMATS[name]
  x = np.random.default_rng(1).normal(size=(40, 64)).astype(F)
  size = f.vector or 64
  vectors = np.abs(x).reshape(40, -1, size).max(-1)
  step = vectors / f.most
  if f.vector:  # rounded up to a step of the second scale
    step += vectors.max(-1, keepdims=True) / f.most / (2**f.scale_bits - 1)
  error = np.abs(round_to_integers(x, f) - x)
  assert (error <= 0.5001 * np.repeat(step, size, -1)).all()
  # A finer scale for each vector is what VSQ is there for.
  if f.vector:
    plain = IntegerFormat('plain', f.bits)
    assert error.mean() < 0.9 * np.abs(round_to_integers(x, plain) - x).mean()


@pytest.mark.parametrize('columns', [1, 3, 8, 16, 17, 64])
@pytest.mark.parametrize('name', INTEGER_FORMATS)
def test_short_axes_have_the_same_bits(name, columns):
  """Where there is one vector, XLA may join the factors of both scales."""
  f, x = INTEGER_FORMATS[name], draw(64, columns)
  wanted = np.array([round_row(row, f) for row in x], F)
  np.testing.assert_array_equal(round_to_integers(x, f), wanted)
  program = jax.jit(lambda x: round_to_integers(x, f, xp=jnp))
  np.testing.assert_array_equal(program(x), wanted)


@pytest.mark.parametrize('rows, columns', [(128, 64), (1024, 96), (490, 16)])
@pytest.mark.parametrize('name', INTEGER_FORMATS)
def test_one_nan_in_many_numbers_stays_visible(name, rows, columns):
  """A maximum of floats in a program leaves it out, in some places."""
  f, x = INTEGER_FORMATS[name], np.ones((rows, columns), F)
  x[3, -1] = np.nan
  program = jax.jit(lambda x: round_to_integers(x, f, xp=jnp))
  for found in (round_to_integers(x, f), program(x)):
    assert np.isnan(found).sum() == columns and np.isnan(found[3]).all()


@pytest.mark.parametrize(
  'x, axis, message',
  [
    (np.ones((2, 3)), 0, 'numbers of float64 cannot be encoded as vsq4'),
    (np.ones((2, 3), np.int32), 0, 'numbers of int32 cannot be encoded'),
    (np.ones((2, 3), F), 2, 'axis is 2, and the array has 2 axes; give -2 to'),
    (np.ones((2, 3), F), -7, 'axis is -7'),
    (np.ones((2, 3), F), True, 'axis is True'),
    (np.ones((2, 3), F), None, 'axis is None'),
    (np.float32(1), 0, 'a single number has no axis'),
  ],
)
def test_arrays_that_are_none(x, axis, message):
  for f in (INTEGER_FORMATS['vsq4'], BLOCK_FORMATS['mx9']):
    message = message.replace('vsq4', f.name)
    with pytest.raises(ValueError, match=message):
      round_to_blocks(jnp.asarray(x) if x.dtype == F else x, f, axis)
    message = message.replace(f.name, 'vsq4')


def test_empty_axes_and_other_roundings():
  for f in (INTEGER_FORMATS['int8'], BLOCK_FORMATS['mx9']):
    for shape in ((0, 3), (3, 0)):
      assert round_to_blocks(jnp.zeros(shape), f, 1).shape == shape
  with pytest.raises(ValueError, match="'down', and int8 has only 'even'"):
    round_to_blocks(jnp.ones((2, 3)), INTEGER_FORMATS['int8'], 0, 'down')


@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', INTEGER_FORMATS)
def test_what_is_not_finite_stays_visible(name, wrong):
  x = draw()[5:8].copy()
  x[1, 7] = wrong
  for xp in (np, jnp):
    with np.errstate(all='ignore'):
      found = np.asarray(round_to_integers(x, INTEGER_FORMATS[name], xp=xp))
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_the_examples_and_what_is_no_format():
  assert doctest.testmod(integer_formats).failed == 0
  with pytest.raises(ValueError, match="'int9' has 9 bits, must be 2 to 8"):
    IntegerFormat('int9', 9)
  with pytest.raises(ValueError, match='both must be 0, or neither'):
    IntegerFormat('vsq', 8, 16)
  with pytest.raises(ValueError, match="scale_bits of 'v' is -4, must"):
    IntegerFormat('v', 4, 16, -4)
  with pytest.raises(ValueError, match="bits of 'v' is 4.5"):
    IntegerFormat('v', 4.5)
