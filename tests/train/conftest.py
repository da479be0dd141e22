import jax
import pytest


@pytest.fixture
def optax_promotes():
  """optax mixes dtypes; everything else stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield
