"""The small pieces against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from genrec_jax.models import layers
from tests.tolerances import assert_close


@pytest.fixture
def x():
  values = np.random.default_rng(0).normal(3.0, 2.0, (5, 8))
  return jnp.asarray(values, jnp.float32)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('affine', [False, True])
def test_layer_norm(x, affine, dtype):
  norm = layers.LayerNorm(8, eps=0.1, affine=affine)
  wide = np.asarray(x.astype(dtype), np.float64)
  centred = wide - wide.mean(-1, keepdims=True)
  expected = centred / np.sqrt(wide.var(-1, keepdims=True) + 0.1)
  if affine:
    norm.scale[...] = jnp.arange(8.0)
    norm.shift[...] = jnp.ones(8)
    expected = expected * np.arange(8) + 1
  out = norm(x.astype(dtype))
  assert out.dtype == dtype
  assert_close(out, expected, dtype)


def test_layer_norm_of_a_constant_has_a_finite_gradient():
  norm = layers.LayerNorm(8, eps=1e-8)
  grad = jax.grad(lambda x: jnp.sum(norm(x)[:, 0]))(jnp.ones((2, 8)))
  assert np.all(np.isfinite(grad))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('use_bias', [False, True])
def test_linear(x, use_bias, dtype):
  linear = layers.Linear(
    8,
    3,
    bias_init=layers.fan_in_uniform(8),
    use_bias=use_bias,
    rngs=nnx.Rngs(0),
  )
  out = linear(x.astype(dtype))
  expected = np.asarray(x) @ np.asarray(linear.kernel[...])
  if use_bias:
    expected = expected + np.asarray(linear.bias[...])
  assert out.dtype == dtype
  assert_close(out, expected, dtype)


def test_dropout_drops_its_share_and_keeps_the_mean(key):
  rate, size = 0.2, 100_000
  out = np.asarray(layers.apply_dropout(jnp.ones(size), rate, key))
  noise = np.sqrt(rate * (1 - rate) / size)
  assert abs(np.mean(out == 0) - rate) < 6 * noise
  assert_close(np.unique(out), [0.0, 1 / (1 - rate)])


def test_dropout_is_off_without_a_key_or_a_rate(x, key):
  assert layers.apply_dropout(x, 0.5, None) is x
  assert layers.apply_dropout(x, 0.0, key) is x


def test_split(key):
  assert layers.split_key(None, 3) == [None] * 3
  keys = layers.split_key(key, 3)
  assert len({int(jax.random.bits(k)) for k in keys}) == 3


def test_l2_normalize(x):
  unit = layers.l2_normalize(x)
  expected = np.asarray(x) / np.linalg.norm(x, axis=-1, keepdims=True)
  assert_close(unit, expected)
  tiny = jnp.full((1, 4), 1e-8)
  assert_close(layers.l2_normalize(tiny), np.full((1, 4), 1e-2))  # / 1e-6
  assert layers.l2_normalize(x.astype('bfloat16')).dtype == jnp.float32


def test_l2_normalize_has_a_finite_gradient_at_zero():
  grad = jax.grad(lambda x: jnp.sum(layers.l2_normalize(x)))(jnp.zeros((2, 4)))
  assert np.all(np.isfinite(grad))
