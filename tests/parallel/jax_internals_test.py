"""The names that JAX does not publish, and a JAX that has moved them."""

import jax
import pytest

from genrec_jax.checkpoint.group import ProcessGroup
from genrec_jax.parallel import jax_internals


def test_this_jax_has_the_names():
  """Fails with a sentence that says which file has to follow."""
  assert jax_internals.find_store() is None
  assert jax_internals.find_coordinator() is None


@pytest.mark.parametrize(
  'name',
  [
    'jax._src.distributed.global_state',
    'jax._src.distributed.State.coordinator_address',
  ],
)
def test_one_process_does_not_miss_a_name_that_moved(monkeypatch, name):
  jax.devices()  # JAX's own start reads them too
  monkeypatch.delattr(name)
  with pytest.raises(RuntimeError, match='elsewhere .*parallel/jax_internals'):
    jax_internals.find_store()
  assert ProcessGroup('alone', 1.0).decide_together('x', len) == 1
