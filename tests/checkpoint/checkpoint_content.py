"""Checkpoints whose content is a function of the step."""

import grain
import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint import manifest

DTYPES = ('float32', 'bfloat16', 'int32', 'uint32')


def state(step, rows=64):
  """Nested dict of arrays of random bits, NaNs of every kind among them."""
  rng = np.random.default_rng(step)
  bits = {'bfloat16': np.uint16}
  tables = {
    dtype: jnp.asarray(
      np.frombuffer(
        rng.bytes(rows * 8 * np.dtype(bits.get(dtype, np.uint32)).itemsize),
        jnp.dtype(dtype),
      ).reshape(rows, 8)
    )
    for dtype in DTYPES
  }
  return {'tables': tables, 'opt': {'count': jnp.int32(step), 'none': {}}}


def host(step):
  return {'epoch': step / 7, 'best': {'step': step, 'name': 'ndcg@10'}}


def iterator(step=0):
  """An endless, reshuffled iterator that has given `step` batches."""
  data = grain.MapDataset.range(100).seed(3).shuffle().repeat(None).batch(4)
  no_threads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  it = iter(data.to_iter_dataset(no_threads))
  for _ in range(step):
    next(it)
  return it


def assert_same_bits(got, want):
  assert got['tables'].keys() == want['tables'].keys()
  for name, array in want['tables'].items():
    assert got['tables'][name].dtype == array.dtype
    assert np.asarray(got['tables'][name]).tobytes() == (
      np.asarray(array).tobytes()
    ), name
  assert int(got['opt']['count']) == int(want['opt']['count'])
  assert got['opt']['none'] == {}


def assert_is_step(step, got, got_host, it=None):
  """What was restored is what `step` must have been, to the last bit."""
  rows = got['tables']['float32'].shape[0]
  assert_same_bits(got, state(step, rows))
  assert got_host == host(step)
  if it is not None:
    np.testing.assert_array_equal(next(it), next(iterator(step)))


def save(checkpoints, step, rows=64, **kwargs):
  checkpoints.save(
    step,
    state(step, rows),
    data=iterator(step),
    host=host(step),
    **kwargs,
  )


def save_all(checkpoints, *steps):
  for step in steps:
    save(checkpoints, step)
  checkpoints.wait()


def assert_restores(checkpoints, step, rows=64, by_name=False):
  it = iterator()
  found, got, got_host = checkpoints.restore(
    state(0, rows), data=it, step=step if by_name else None
  )
  assert found == step
  assert_is_step(step, got, got_host, it)


def whole(checkpoints):
  """Steps that have their manifest."""
  return [
    step
    for step in manifest.list_steps(checkpoints.directory)
    if (checkpoints.directory / str(step) / manifest.NAME).exists()
  ]
