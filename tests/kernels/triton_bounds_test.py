"""No load of the Triton attention kernels leaves its array.

  pip install 'genrec_jax[triton]' && python -m pytest -m triton

Triton's interpreter is asked for the address of every load. Arrays of a GPU
have neighbours, so a load beyond an array goes unseen there.
"""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import dispatch, triton_call
from pallas_kernels.hstu_attention import api, blocks, gpu
from tests.kernels.hstu_attention_triton_test import table

pytestmark = [
  pytest.mark.triton,
  pytest.mark.filterwarnings('ignore:Conversion of an array with ndim'),
]


@pytest.fixture(scope='module')
def loads():
  """Counts loads: those inside the kernel's arrays and those outside."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('TRITON_INTERPRET', '1')
    pytest.importorskip('triton', reason="pip install 'genrec_jax[triton]'")
    from triton.runtime import interpreter

    from tests.kernels import triton_interpreter

    found = collections.Counter()
    arrays = []

    class Tensor(triton_interpreter._Tensor):
      def __init__(self, array):
        super().__init__(array)
        begin = array.ctypes.data
        arrays.append((begin, begin + array.nbytes))

    builder = interpreter.InterpreterBuilder
    original = builder.create_masked_load

    def load(self, pointers, mask, *others):
      at = np.asarray(pointers.data)[np.asarray(mask.data).astype(bool)]
      at = at.astype(np.int64).ravel()
      size = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty()))
      inside = np.zeros(at.shape, bool)
      for begin, end in arrays:
        inside |= (at >= begin) & (at + size.itemsize <= end)
      found['inside'] += int(inside.sum())
      found['outside'] += int((~inside).sum())
      return original(self, pointers, mask, *others)

    patch.setattr(builder, 'create_masked_load', load)
    patch.setattr(triton_interpreter, '_Tensor', Tensor)
    patch.setattr(triton_call, 'run', triton_interpreter.run)
    patch.setitem(api.BACKENDS, 'triton', dispatch.Backend(gpu.attention))
    key = ('triton', dispatch.device_kind())
    patch.setitem(blocks.TABLE, key, table(16, 32, 16, 1))
    yield found


CALLS = {
  'plain': dict(lengths=[40, 25]),
  'a token each': dict(lengths=[1, 1, 0]),
  'tail': dict(lengths=[40, 25], asking=[5, 3]),
  # The first token of q belongs to the second sequence.
  'none asked first': dict(lengths=[40, 25], asking=[0, 3]),
  # Keys of targets that no query sees, long before the first one.
  'targets before the queries': dict(
    lengths=[330, 17], asking=[1, 1], targets=[330, 1]
  ),
  'context': dict(lengths=[45, 18], contextual=5),
  'window, prefix': dict(lengths=[45, 18], window=8, prefix=4),
  'targets, context, window': dict(
    lengths=[45, 20], targets=[3, 2], contextual=3, window=8, full_tail=4
  ),
}


@pytest.mark.parametrize('call', CALLS)
def test_no_load_leaves_its_array(loads, call):
  options = dict(CALLS[call])
  lengths = np.array(options.pop('lengths'))
  asking = np.array(options.pop('asking', lengths))
  rng = np.random.default_rng(0)
  time = np.concatenate([np.sort(rng.integers(0, 10**6, n)) for n in lengths])
  ends = np.cumsum(lengths)
  asked = np.concatenate(
    [time[e - n : e] for e, n in zip(ends, asking, strict=True)]
  )
  longest = int(lengths.max())
  options |= dict(
    lengths=jnp.asarray(lengths),
    max_len=longest,
    time=jnp.asarray(time),
    query_time=jnp.asarray(asked),
    implementation='triton',
  )
  if len(asked) < len(time):
    options['query_lengths'] = jnp.asarray(asking)
  if 'targets' in options:
    options['targets'] = jnp.asarray(options['targets'])

  def loss(q, k, v, position_bias, time_bias):
    out = pallas_kernels.hstu_attention(
      q, k, v, position_bias=position_bias, time_bias=time_bias, **options
    )
    return jnp.sum(out**2)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), 'float32')

  loads.clear()
  gradients = jax.grad(loss, range(5))(
    normal(len(asked), 1, 16),
    normal(len(time), 1, 16),
    normal(len(time), 1, 16),
    normal(2 * longest - 1),
    normal(129),
  )
  assert all(bool(jnp.isfinite(x).all()) for x in gradients)
  assert loads['inside'] > 1000
  assert loads['outside'] == 0
