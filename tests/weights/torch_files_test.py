"""What torch.save has written, read without PyTorch.

trainer.pt was made by PyTorch: {'epoch', 'model_state_dict',
'optimizer_state_dict'} of a module wrapped for several devices, with views,
a parameter and 16-bit numbers among its weights.
"""

import collections
import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest

from genrec_jax.weights import torch_files
from genrec_jax.weights.safetensors import WeightsError

MADE = pathlib.Path(__file__).parent / 'trainer.pt'
DATA = np.arange(6, dtype=np.float32).tobytes()


def called(module, name, arguments: bytes) -> bytes:
  """The pickle of what a function of a module returns."""
  return f'c{module}\n{name}\n('.encode() + arguments + b'tR'


def number(n: int) -> bytes:
  return f'L{n}L\n'.encode()


def numbers(*values) -> bytes:
  return b'(' + b''.join(map(number, values)) + b't'


STORAGE = b"((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nL6L\ntQ"


def tensor(offset=0, shape=(2, 3), strides=(3, 1)) -> bytes:
  arguments = (
    STORAGE.replace(b'((', b'(')
    + number(offset)
    + numbers(*shape)
    + numbers(*strides)
    + b'I00\n'
    + b'N'
  )
  return called('torch._utils', '_rebuild_tensor_v2', arguments)


def state(value: bytes) -> bytes:
  """The pickle of {'w': value}."""
  return b"(dS'w'\n" + value + b's.'


def archive(path, pickled: bytes, data=DATA, method=zipfile.ZIP_STORED, **more):
  with zipfile.ZipFile(path, 'w', method) as file:
    file.writestr('a/data.pkl', pickled)
    file.writestr('a/data/0', data)
    for name, text in more.items():
      file.writestr(f'a/{name}', text)
  return path


def test_a_file_of_torch():
  found = torch_files.read_state_dict(MADE)
  assert {n: x.tolist() for n, x in found.items()} == {
    'weight': [[0, 1, 2], [3, 4, 5]],
    'bias': [0.5, -1.5],
    'half': [[1.5, -2]],
    'mask': [True, False],
    'turned': [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]],
    'cut': [[6, 7], [10, 11]],
    'param': [1, 2],
    'count': 7,
  }
  assert str(found['half'].dtype) == 'bfloat16'
  with pytest.raises(ValueError):
    found['weight'][0] = 1


def test_a_file_made_here(tmp_path):
  """Otherwise those below would be refused for another reason."""
  path = archive(tmp_path / 'a.pt', state(tensor()))
  found = torch_files.read_state_dict(path)
  assert found['w'].tolist() == [[0, 1, 2], [3, 4, 5]]
  cut = archive(tmp_path / 'b.pt', state(tensor(1, (2, 2), (1, 3))))
  assert torch_files.read_state_dict(cut)['w'].tolist() == [[1, 4], [2, 5]]


@pytest.mark.parametrize(
  'value, message',
  [
    (tensor(offset=1), r'ends at number 6 of a storage of 6'),
    (tensor(strides=(1 << 40, 1)), 'ends at number'),
    (tensor(shape=(1 << 62, 1 << 62)), 'ends at number'),
    (tensor(offset=-1), 'no possible shape'),
    (tensor(strides=(-3, 1)), 'no possible shape'),
    (tensor(strides=(1,)), 'no possible shape'),
    (tensor(shape=(1,) * 40, strides=(0,) * 40), 'no possible shape'),
    (called('os', 'system', b"S'true'\n"), 'asks for os.system'),
    (called('builtins', 'eval', b"S'1'\n"), 'asks for builtins.eval'),
    (called('torch', 'load', b"S'x'\n"), 'asks for torch.load'),
    (STORAGE.replace(b"S'0'", b"S'1'")[1:], "lacks the storage '1'"),
    (b'I3\n', "'w' is a int"),
    (tensor(shape=(10**6, 10**6), strides=(0, 0)), 'more numbers than its'),
    (
      b'ctorch\nBFloat16Storage\n(I3\nNNNNI4096\nI1\nI64\ntb',
      'sets attributes of a _StorageName',
    ),
    (
      b'ctorch._utils\n_rebuild_tensor_v2\n(N(dS"__doc__"\nS"x"\nstb',
      'sets attributes of a function',
    ),
    (tensor() + b'(I1\n(I2\ntNI00\nNtb', 'sets attributes of a ndarray'),
    (b'garbage', 'cannot be read'),
  ],
)
def test_hostile_pickles(tmp_path, value, message):
  path = archive(tmp_path / 'a.pt', state(value))
  with pytest.raises(WeightsError, match=message):
    torch_files.read_state_dict(path)


# A tuple of 2^64 Nones that takes a few bytes.
BOMB = b'(NNt' + b'2\x86' * 64
TUPLE = 'has a tuple as a key'


@pytest.mark.parametrize(
  'pickled, message',
  [
    (b'}' + BOMB + b'Ns.', TUPLE),
    (b'}(' + BOMB + b'Nu.', TUPLE),
    (b'(' + BOMB + b'Nd.', TUPLE),
    (b'\x8f(' + BOMB + b'\x90.', TUPLE),
    (b'(' + BOMB + b'\x91.', TUPLE),
    (
      called('collections', 'OrderedDict', b']' + BOMB + b'N\x86a') + b'.',
      TUPLE,
    ),
    (b'}\x8a\x09' + b'\x01' * 9 + b'Ns.', 'has a int as a key'),
    (b'(' + BOMB + b'NNtQ.', r'holds a \(\(\('),
    (STORAGE.replace(b"S'0'\n", BOMB)[1:] + b'.', 'storage of no name'),
    (b"(dS'" + b'w' * 10**6 + b"'\nNs.", r'holds no state_dict: .w+.\.\.\.'),
    (BOMB + b'.', 'holds no state_dict'),
  ],
)
def test_what_would_take_for_ever_is_refused_at_once(
  tmp_path, pickled, message
):
  path = archive(tmp_path / 'a.pt', pickled)
  with pytest.raises(WeightsError, match=message) as error:
    torch_files.read_state_dict(path)
  assert len(str(error.value)) < 1000


def test_dicts_that_trainers_save(tmp_path):
  made = {'state': {0: {'step': 1.0}, None: {b'x', True}}, 'state_dict': {}}
  ordered = called(
    'collections', 'OrderedDict', b"](](S'w'\n" + tensor() + b'ee'
  )
  pickled = pickle.dumps(made, 4)[:-1] + b"S'state_dict'\n" + ordered + b's.'
  path = archive(tmp_path / 'a.pt', pickled)
  assert list(torch_files.read_state_dict(path)) == ['w']


def test_damage_to_a_storage(tmp_path):
  path = archive(tmp_path / 'a.pt', state(tensor()))
  path.write_bytes(path.read_bytes().replace(DATA, DATA[:-1] + b'!'))
  with pytest.raises(WeightsError, match="damaged in storage '0'"):
    torch_files.read_state_dict(path)


def test_attributes_of_a_state_dict_are_skipped(tmp_path):
  pickled = (
    b"ccollections\nOrderedDict\n(tR(S'w'\n"
    + tensor()
    + b"u(dS'_metadata'\n(dsb."
  )
  found = torch_files.read_state_dict(archive(tmp_path / 'a.pt', pickled))
  assert found['w'].shape == (2, 3)


def test_other_files(tmp_path):
  def refused(path, message):
    with pytest.raises(WeightsError, match=message):
      torch_files.read_state_dict(path)

  old = tmp_path / 'old.pt'
  old.write_bytes(pickle.dumps(collections.OrderedDict()))
  refused(old, 'PyTorch 1.6 and later')
  refused(archive(tmp_path / 'list.pt', b'(l.'), 'holds no state_dict')
  big = archive(tmp_path / 'big.pt', state(tensor()), byteorder='big')
  refused(big, 'big-endian')
  deflated = archive(
    tmp_path / 'z.pt', state(tensor()), method=zipfile.ZIP_DEFLATED
  )
  refused(deflated, 'lacks the storage')
  short = archive(tmp_path / 'short.pt', state(tensor()), data=DATA[:-4])
  refused(short, 'storage of 5')
  with zipfile.ZipFile(tmp_path / 'other.zip', 'w') as file:
    file.writestr('x', 'y')
  refused(tmp_path / 'other.zip', 'no data.pkl')
  whole = MADE.read_bytes()
  (tmp_path / 'cut.pt').write_bytes(whole[: len(whole) // 2])
  refused(tmp_path / 'cut.pt', 'not an archive')
  (tmp_path / 'name.pt').write_bytes(whole.replace(b'byteorder', b'\xff' * 9))
  refused(tmp_path / 'name.pt', 'not an archive')
  assert os.path.exists(MADE)
