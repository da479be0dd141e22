"""Which cases of the common suite the interpreted TPU kernel runs by default.

Compiling what interprets a kernel takes seconds a case. The default run takes
those that meet all of the kernel's lines; `pytest -m slow` takes the others.
And what simulates the memory of a TPU.
"""

import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import dispatch
from pallas_kernels.jagged_embedding import api, tpu

# Test -> its cases that run by default, as their ids stand in brackets
# (without the backend's name); None for all of them.
INTERPRETED = {
  'test_each_option_alone_and_all_together': (
    'silu-everything',
    'softmax-everything',
  ),
  'test_each_mask_alone_and_combined': (
    'contextual+targets+full_tail',
    'contextual+targets+window+full_tail+queries',
  ),
  'test_real_models_at_their_widths': ('ranking_cached',),
  'test_bfloat16_stays_close_to_float32': ('softmax',),
  'test_a_normaliser_for_each_query': ('names0',),
  'test_random_lengths': ('silu',),
  'test_padding_tokens_are_never_read': None,
  'test_an_empty_batch_yields_zeros': None,
  'test_a_length_beyond_max_len_is_nan_and_not_a_wrong_number': None,
}


def chosen(test: str, case: str) -> bool:
  """Whether a case of the interpreted kernel runs by default."""
  if test not in INTERPRETED:
    return False
  cases = INTERPRETED[test]
  if cases is None:
    return True
  name = '-'.join(part for part in case.split('-') if part != 'interpret')
  return name in cases


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  for item in items:
    parameters = getattr(item, 'callspec', None)
    if parameters is None or parameters.params.get('backend') != 'interpret':
      continue
    if not chosen(item.originalname, parameters.id):
      item.add_marker(pytest.mark.slow)


@pytest.fixture
def simulator(request, monkeypatch, capfd):
  """Name of an implementation of embeddings whose memory is simulated.

  Copies arrive as late as they may, what nobody wrote is NaN, and a race fails
  the test. Its parameter False looks for no races, which takes longer than all
  else and rises with the square of the copies.
  """
  params = pltpu.InterpretParams(
    uninitialized_memory='nan',
    detect_races=getattr(request, 'param', True),
    dma_execution_mode='on_wait',
  )
  kernels = tpu.Kernels(interpret=params)
  backend = dispatch.Backend(lambda: kernels)
  monkeypatch.setitem(api.BACKENDS, 'simulated', backend)
  yield 'simulated'
  assert 'RACE' not in ''.join(capfd.readouterr())
