"""The factorisation machine block's algebra."""

import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.models import wukong
from tests.models.ranking import cases
from tests.tolerances import assert_close


@pytest.fixture
def x():
  return jnp.asarray(np.random.default_rng(0).normal(size=(3, 6, 4)), 'float32')


@pytest.mark.parametrize('shape', [(6, 5), (3, 6, 5)])
def test_the_order_of_the_products_does_not_matter(x, shape):
  y = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
  wide = np.asarray(x, np.float64)
  left_to_right = (wide @ wide.transpose(0, 2, 1)) @ np.asarray(y, np.float64)
  assert_close(wukong.multiply_optimised(x.swapaxes(0, 1), y), left_to_right)


def test_with_the_identity_it_is_the_full_machine(x):
  full = np.einsum('bid,bjd->bij', *[np.asarray(x, np.float64)] * 2)
  assert_close(wukong.multiply_optimised(x.swapaxes(0, 1), jnp.eye(6)), full)
  rows, columns = np.tril_indices(6)
  assert_close(wukong.lower_triangle(jnp.asarray(full)), full[:, rows, columns])


def test_parts_are_switched_off_in_a_trained_model():
  model = cases.build('wukong')
  x = cases.inputs('wukong')
  without = cases.build('wukong', zero=('lcb',))
  out = without.both(model.params, x)[0]
  assert_close(
    out[:6], without.statement(model.params, cases.part(x, slice(6)))
  )
  assert np.all(out != model.both(model.params, x)[0])
