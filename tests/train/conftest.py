import jax
import pytest

from tests.train import tiny_run


@pytest.fixture
def optax_promotes():
  """optax mixes dtypes; everything else stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture(scope='module')
def compiled_once(tmp_path_factory):
  with tiny_run.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield
