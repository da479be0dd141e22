"""The gradient of rounding to blocks is that of what was not rounded."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.numerics import block_products
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.block_products import round_to_blocks
from tests.tolerances import assert_close

# Through a cast to e4m3 the first would come back as NaN, and the second with
# three bits of its mantissa.
BACK = (1000.0, 0.001234, -3e5, 1e-7, 0.0)


def test_the_examples_in_the_docstrings():
  assert doctest.testmod(block_products).failed == 0


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('axis', [0, -1])
@pytest.mark.parametrize('name', ['mxfp8_e4m3', 'mxfp4_e2m1', 'mx6', 'mxint8'])
def test_what_comes_back_is_passed_on_as_it_is(name, axis, dtype):
  x = jax.random.normal(jax.random.key(0), (5, 5)).astype(dtype)
  back = jnp.outer(jnp.array(BACK), jnp.array([1, 2, -1, 0.5, 4])).astype(dtype)

  def run(x):
    return round_to_blocks(x, BLOCK_FORMATS[name], axis)

  for one in (run, jax.jit(run)):
    rounded, pull = jax.vjp(one, x)
    assert rounded.dtype == x.dtype and bool(jnp.any(rounded != x))
    (found,) = pull(back)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, back)
  # Mapped over an axis, a number is rounded as it is in the whole.
  stacked = jnp.stack([x, 2 * x, -x])
  mapped = jax.vmap(jax.grad(lambda x: (run(x) * back).sum()))(stacked)
  for one in mapped:
    np.testing.assert_array_equal(one, back)


@pytest.mark.parametrize('name', ['mx4', 'int4', 'vsq4'])
def test_each_gradient_is_rounded_along_its_own_sum(name, key):
  """Against NumPy: three products of operands that nothing has rounded."""
  recipe = block_products.RECIPES[name]
  keys = jax.random.split(key, 3)
  x = jax.random.normal(keys[0], (40, 48))
  w = jax.random.normal(keys[1], (48, 36))
  dy = jax.random.normal(keys[2], (40, 36))
  y, pull = jax.vjp(lambda x, w: recipe(x, w, spec='bi,io->bo'), x, w)
  dx, dw = pull(dy)

  def rounded(operand, axis):
    return np.asarray(
      round_to_blocks(operand, recipe.weights, axis), np.float64
    )

  assert_close(y, rounded(x, 1) @ rounded(w, 0))
  assert_close(dx, rounded(dy, 1) @ rounded(w, 1).T)
  assert_close(dw, rounded(x, 0).T @ rounded(dy, 0))


@pytest.mark.parametrize(
  'size', [256, pytest.param(2048, marks=pytest.mark.slow)]
)
def test_a_product_keeps_what_was_measured(size, key):
  """27.6 dB of a product of normal numbers in MXFP8, at 2,048 cubed."""
  x, w = jax.random.normal(key, (2, size, size))
  found = block_products.RECIPES['mxfp8_e4m3'](x, w, spec='bi,io->bo')
  wanted = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
  error = ((np.asarray(found, np.float64) - wanted) ** 2).sum()
  assert 10 * np.log10((wanted**2).sum() / error) == pytest.approx(
    27.6, abs=0.3
  )


def test_a_product_of_no_format():
  with pytest.raises(ValueError, match="no format 'mx5' of products; .*mx9"):
    block_products.BlockProduct.of('mx5')


def test_small_gradients_count_on_average_where_they_are_rounded_by_chance(key):
  """A tenth of the last step, of one sign: to the nearest it is lost."""
  rows = 4096
  small = 0.02 + 0.01 * jax.random.uniform(key, (rows, 31))
  dy = jnp.concatenate([jnp.ones((rows, 1)), small], axis=1)

  def pull_back(name):
    recipe = block_products.RECIPES[name]
    _, pull = jax.vjp(
      lambda x: recipe(x, jnp.eye(32), spec='bi,io->bo'),
      jnp.ones((rows, 32)),
    )
    return np.asarray(jax.jit(pull)(dy)[0])[:, 1:]

  assert not pull_back('mxfp4_e2m1').any()
  found = pull_back('mxfp4_e2m1_stochastic')
  assert set(np.unique(found)) == {0.0, 0.125}
  # Deviation of a mean of all: .0005 of the step, and of a column .003.
  assert found.mean() == pytest.approx(float(small.mean()), abs=3e-4)
  columns = found.mean(0) - np.asarray(small).mean(0)
  assert np.abs(columns).max() < 3.5 * 0.125 * 0.4 / rows**0.5
  # Neighbours in a row are independent of each other.
  apart = np.corrcoef(found[:, 0], found[:, 1])[0, 1]
  assert abs(apart) < 3.5 / rows**0.5


def test_only_gradients_are_rounded_by_chance(key):
  plain = block_products.RECIPES['mx4']
  recipe = block_products.RECIPES['mx4_stochastic']
  x, w = jax.random.normal(key, (2, 64, 64))
  dy = jax.random.normal(jax.random.key(7), (64, 64))
  args = dict(spec='bi,io->bo')
  assert (recipe(x, w, **args) == plain(x, w, **args)).all()

  def pull_back(recipe, rows=slice(None)):
    _, pull = jax.vjp(lambda x, w: recipe(x, w, **args), x[rows], w)
    return pull(dy[rows])

  whole = pull_back(recipe)
  assert not (whole[0] == pull_back(plain)[0]).all()
  # A device with half of the examples rounds as one with all of them.
  halves = [pull_back(recipe, slice(32 * i, 32 * i + 32)) for i in range(2)]
  assert (jnp.concatenate([dx for dx, _ in halves]) == whole[0]).all()
  assert_close(halves[0][1] + halves[1][1], whole[1])
