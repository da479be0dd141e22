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
