"""Arrays that are stored otherwise than a save stores them."""

import gzip
import json

import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.errors import CheckpointError

STATE = {'a': {'b.c/d': jnp.arange(2)}, 'l': [jnp.ones((4, 2), jnp.bfloat16)]}
ARRAY = 'a.b.c/d'
CHUNK = 1 << 20  # numbers; larger ones would have ended the process


@pytest.fixture
def rewrite(checkpoints, no_power_cut):
  """Saves step 1, and rewrites an array or a file of it with the manifest."""

  def rewrite(array=None, text=None, **changes):
    checkpoints.save(1, STATE, wait=True)
    step_dir = checkpoints.directory / '1'
    place = {'driver': 'file', 'path': f'{step_dir}/state/'}
    if array:
      store = tensorstore.KvStore.open({'driver': 'ocdbt', 'base': place})
      store = store.result()
      layout = json.loads(store.read(f'{array}/zarr.json').result().value)
      layout |= changes
      store.write(f'{array}/zarr.json', json.dumps(layout).encode()).result()
      raw = gzip.compress(np.arange(CHUNK, dtype=np.int32).tobytes(), 1)
      store.write(f'{array}/c/0', raw).result()
    if text is not None:
      (step_dir / 'state' / '_METADATA').write_text(text)
    body = manifest.read(step_dir)
    (step_dir / manifest.NAME).unlink()
    extra = {k: body[k] for k in ('tree', 'host', 'data')}
    manifest.write(step_dir, 1, **extra)

  return rewrite


BYTES = {'name': 'bytes', 'configuration': {'endian': 'little'}}
GZIP = {'name': 'gzip', 'configuration': {'level': 1}}
GRID = {'name': 'regular', 'configuration': {'chunk_shape': [CHUNK]}}
INDEX = [BYTES, {'name': 'crc32c'}]
INNER = {'chunk_shape': [CHUNK], 'codecs': [BYTES], 'index_codecs': INDEX}


@pytest.mark.parametrize(
  'changes, words',
  [
    (dict(chunk_grid=GRID, codecs=[BYTES, GZIP]), 'chunks of .1048576. for an'),
    (dict(codecs=[BYTES, GZIP]), "codecs are .'bytes', 'gzip'"),
    (dict(shape=[CHUNK]), 'another shape or dtype than its manifest says'),
    (dict(chunk_grid=7), 'array a/b.c/d is not stored as a save stores it'),
    (
      dict(codecs=[{'name': 'sharding_indexed', 'configuration': INNER}]),
      'chunks of .1048576. for an array of .2.',
    ),
    (
      dict(codecs=[
        {
          'name': 'sharding_indexed',
          'configuration': INNER
          | {'chunk_shape': [2], 'index_codecs': [*INDEX, GZIP]},
        }
      ]),
      'its index is packed',
    ),
  ],
)  # fmt: skip
def test_layouts_that_no_save_makes_are_refused(
  checkpoints, rewrite, changes, words
):
  rewrite(ARRAY, **changes)
  with pytest.raises(CheckpointError, match=f'step 1 cannot .*{words}'):
    checkpoints.restore(STATE, step=1, padded=True)


@pytest.mark.parametrize('text', ['{', '{"use_ocdbt": true}', '[]'])
def test_other_formats_of_orbax_are_refused(checkpoints, rewrite, text):
  rewrite(text=text)
  with pytest.raises(CheckpointError, match='state/_METADATA cannot be used'):
    checkpoints.restore(STATE, step=1)


def test_names_are_those_of_orbax(checkpoints, rewrite):
  rewrite()
  _, state, _ = checkpoints.restore(STATE, step=1)
  np.testing.assert_array_equal(state['a']['b.c/d'], [0, 1])
