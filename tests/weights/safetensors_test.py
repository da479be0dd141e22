"""Files of arrays: what is written is read, and nothing else is believed."""

import doctest
import json
import os

import ml_dtypes
import numpy as np
import pytest

from genrec_jax.weights import convert, names, safetensors
from genrec_jax.weights.safetensors import Spec, WeightsError
from genrec_jax.weights.torch_files import read_state_dict


def file_of(path, header, data=b'', length=None):
  """Writes a file with this header, a dict or its very text."""
  raw = header if isinstance(header, bytes) else json.dumps(header).encode()
  length = len(raw) if length is None else length
  path.write_bytes(length.to_bytes(8, 'little') + raw + data)
  return path


def entry(dtype='F32', shape=(2,), begin=0, end=8):
  return {'dtype': dtype, 'shape': list(shape), 'data_offsets': [begin, end]}


@pytest.mark.parametrize('module', [safetensors, names])
def test_examples(module):
  assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize('code', safetensors.DTYPES)
def test_every_dtype_survives(tmp_path, code):
  dtype = safetensors.DTYPES[code]
  rng = np.random.default_rng(0)
  bits = rng.integers(0, 2 if code == 'BOOL' else 256, (3, 5, dtype.itemsize))
  array = bits.astype(np.uint8).view(dtype)[..., 0]
  safetensors.write_file(tmp_path / 'a', {'x': array})
  again = safetensors.open_file(tmp_path / 'a')
  assert again.specs['x'] == Spec(dtype, (3, 5))
  assert again['x'].tobytes() == array.tobytes()


def test_shapes_order_and_metadata(tmp_path):
  arrays = {
    'narrow': np.arange(3, dtype=np.uint8),
    'scalar': np.float64(2.5),
    'empty': np.zeros((0, 4), np.float32),
    'turned': np.arange(6, dtype=np.int32).reshape(2, 3).T,
    'foreign': np.arange(4, dtype='>f4'),
    'half': np.ones((2, 2), ml_dtypes.bfloat16),
  }
  metadata = {'config': '{"a": 1}', 'ünï': 'code'}
  safetensors.write_file(tmp_path / 'a', arrays, metadata)
  file = safetensors.open_file(tmp_path / 'a')
  assert file.metadata == metadata
  assert set(file) == set(arrays) and len(file) == 6
  for name, array in arrays.items():
    assert file[name].shape == array.shape
    np.testing.assert_array_equal(file[name], array)
  raw = (tmp_path / 'a').read_bytes()
  length = int.from_bytes(raw[:8], 'little')
  header = json.loads(raw[8 : 8 + length])
  assert length % 8 == 0  # so that the values are aligned
  for name in arrays:
    itemsize = file.specs[name].dtype.itemsize
    assert header[name]['data_offsets'][0] % itemsize == 0


def test_a_table_is_written_in_runs(tmp_path, monkeypatch):
  """Nobody asks for more rows at once than fit the limit."""
  monkeypatch.setattr(safetensors, '_COPIED', 64)
  asked = []

  class Rows:
    dtype, shape = np.dtype(np.float32), (10, 4)

    def __getitem__(self, rows):
      asked.append(rows)
      return np.arange(40, dtype=np.float32).reshape(10, 4)[rows]

  safetensors.write_file(tmp_path / 'a', {'table': Rows()})
  assert max(r.stop - r.start for r in asked) == 4
  assert safetensors.open_file(tmp_path / 'a')[
    'table'
  ].ravel().tolist() == list(range(40))


def test_a_failure_leaves_the_older_file(tmp_path):
  safetensors.write_file(tmp_path / 'a', {'x': np.ones(2)})
  with pytest.raises(RuntimeError):
    with safetensors.create_file(tmp_path / 'a', {'y': Spec.of(np.ones(3))}):
      raise RuntimeError
  assert list(safetensors.open_file(tmp_path / 'a')) == ['x']
  assert os.listdir(tmp_path) == ['a']


def test_a_read_file_is_read_only(tmp_path):
  safetensors.write_file(tmp_path / 'a', {'x': np.ones(2)})
  with pytest.raises(ValueError):
    safetensors.open_file(tmp_path / 'a')['x'][0] = 2


@pytest.mark.parametrize(
  'header, data, message',
  [
    ({'x': entry()}, b'\0' * 7, 'the file has 7 for them'),
    ({'x': entry()}, b'\0' * 9, 'the file has 9 for them'),
    ({'x': entry(end=4)}, b'\0' * 4, 'float32.2., 8 bytes, and .* span 4'),
    ({'x': entry(begin=8, end=0)}, b'\0' * 8, 'span -8'),
    ({'x': entry(begin=4, end=12)}, b'\0' * 12, 'leaves a gap'),
    (
      {'x': entry(), 'y': entry(begin=4, end=12)},
      b'\0' * 12,
      "'y' begins at byte 4 and overlaps",
    ),
    ({'x': entry(dtype='F31')}, b'', "dtype 'F31'; known are BOOL"),
    ({'x': entry(dtype=['F32'])}, b'', 'known are'),
    ({'x': entry(shape=[-2])}, b'', 'not whole numbers'),
    ({'x': entry(shape=[2.0])}, b'', 'not whole numbers'),
    ({'x': entry(shape=[True, 2])}, b'', 'not whole numbers'),
    ({'x': entry(shape=[1 << 63], end=0)}, b'', 'whole numbers from 0 to 9'),
    ({'x': entry(shape=[0, 1 << 62], end=0)}, b'', 'too large to be addressed'),
    ({'x': entry(shape=[1 << 40, 0, 1 << 40], end=0)}, b'', 'too large to be'),
    ({'x': entry(shape=[1 << 60])}, b'', 'bytes, and its data_offsets span'),
    ({'x': entry(shape=[1] * 33)}, b'', '33 axes'),
    ({'x': {'dtype': 'F32'}}, b'', 'lacks its dtype, its shape'),
    ({'x': entry() | {'data_offsets': [0]}}, b'', 'lacks'),
    ({'x': 3}, b'', 'lacks'),
    ({'__metadata__': {'a': 1}}, b'', 'something else than texts'),
    ({'__metadata__': []}, b'', 'something else than texts'),
    (b'{"x": 1, "x": 2}', b'', "the name 'x' appears twice"),
    (b'{"x": NaN}', b'', 'holds NaN'),
    (b'[]', b'', 'not a JSON object'),
    (b'{', b'', 'not JSON'),
    (b'\xff\xff', b'', 'not JSON'),
    (b'[' * 100_000, b'', 'not JSON'),
    (b'{"x": ' + b'9' * 5000 + b'}', b'', 'not JSON'),
  ],
)
def test_hostile_headers(tmp_path, header, data, message):
  path = file_of(tmp_path / 'a', header, data)
  with pytest.raises(WeightsError, match=message):
    safetensors.open_file(path)


@pytest.mark.parametrize(
  'length, message',
  [
    (3, 'not JSON'),
    (15, 'the file has 22'),
    (99_999_999, 'and the file has'),
    (100_000_001, 'more than the 100,000,000'),
    (2**64 - 1, 'more than the'),
  ],
)
def test_hostile_lengths(tmp_path, length, message):
  path = file_of(tmp_path / 'a', b'{"x": {}}     ', length=length)
  with pytest.raises(WeightsError, match=message):
    safetensors.open_file(path)


def test_what_is_no_file(tmp_path):
  os.mkfifo(tmp_path / 'pipe.pt')  # to open it would wait for a writer
  for read in (safetensors.open_file, convert.read_arrays, read_state_dict):
    with pytest.raises(WeightsError, match='a pipe or a device, must be a fi'):
      read(tmp_path / 'pipe.pt')
    with pytest.raises(WeightsError, match='is a directory, must be a file'):
      read(tmp_path)
    with pytest.raises(FileNotFoundError, match='No such file: .*nothing'):
      read(tmp_path / 'nothing')


def test_too_short_for_a_header(tmp_path):
  (tmp_path / 'a').write_bytes(b'1234')
  with pytest.raises(WeightsError, match='has 4 bytes'):
    safetensors.open_file(tmp_path / 'a')


@pytest.mark.parametrize(
  'arrays, metadata, message',
  [
    ({'x': np.zeros(2, np.complex64)}, {}, 'complex64.2., of a dtype'),
    ({'__metadata__': np.zeros(2)}, {}, 'no array may be called'),
    ({'x': np.zeros(2)}, {'step': 3}, "metadata 'step' is 3, must be a text"),
  ],
)
def test_what_cannot_be_written(tmp_path, arrays, metadata, message):
  with pytest.raises(WeightsError, match=message):
    safetensors.write_file(tmp_path / 'a', arrays, metadata)
  assert not os.listdir(tmp_path)
