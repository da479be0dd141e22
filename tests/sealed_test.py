"""What a seal notices, and what files without one must not do."""

import errno
import json
import os
import pathlib

import numpy as np
import pytest

from genrec_jax import sealed

REMEDY = 'remove the directory'


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  np.save(tmp_path / 'small.npy', np.arange(5, dtype=np.int32))
  np.save(tmp_path / 'large.npy', np.arange(20 * sealed.BLOCK // 8))
  (tmp_path / 'meta.json').write_text('{"rows": 5}')
  return tmp_path


def read_all(folder) -> list:
  files = sealed.SealedDirectory(folder, REMEDY)
  return [
    files.read_array('small.npy').tolist(),
    int(files.map_array('large.npy').sum()),
    files.read_json('meta.json', rows=int),
  ]


def flip(path, at, bit=0):
  content = bytearray(path.read_bytes())
  content[at] ^= 1 << bit
  path.write_bytes(content)


def test_a_directory_with_and_without_a_seal_reads_the_same(folder, caplog):
  caplog.set_level('INFO')
  before = read_all(folder)
  assert 'has no checksums, as if written by an earlier version' in caplog.text
  caplog.clear()
  sealed.seal(folder)
  assert read_all(folder) == before and not caplog.records
  (folder / 'notes.txt').write_text('mine')
  assert read_all(folder) == before
  assert 'notes.txt was not written with its directory' in caplog.text


@pytest.mark.parametrize('name', ['small.npy', 'large.npy', 'meta.json'])
def test_every_damage_is_a_sentence(folder, name):
  sealed.seal(folder)
  whole = (folder / name).read_bytes()
  told = f'{folder / name} is damaged'
  places = np.random.default_rng(0).integers(0, len(whole), 8)
  for at in [0, len(whole) - 1, *places.tolist()]:
    flip(folder / name, at, at % 8)
    with pytest.raises(
      sealed.DamagedError, match=f'{told} .*has changed.; {REMEDY}'
    ):
      read_all(folder)
    (folder / name).write_bytes(whole)
  for content in (b'', whole[:-1], whole[: len(whole) // 2], whole * 2):
    (folder / name).write_bytes(content)
    with pytest.raises(
      sealed.DamagedError, match=f'{told} .*bytes instead of .*; {REMEDY}'
    ):
      read_all(folder)
  (folder / name).unlink()
  with pytest.raises(FileNotFoundError, match=f'{name}: no such file; remove'):
    read_all(folder)


def test_the_megabyte_is_named(folder):
  sealed.seal(folder)
  flip(folder / 'large.npy', 18 * sealed.BLOCK + 7)
  with pytest.raises(ValueError, match='bytes 18,874,368 to 19,922,944 has'):
    read_all(folder)


@pytest.mark.parametrize(
  'change', [b'', b'{}', b'[1]', b'{"crc32": 0}', b'\xff']
)
def test_a_seal_that_is_not_whole_is_damaged(folder, change):
  sealed.seal(folder)
  (folder / sealed.NAME).write_bytes(change)
  with pytest.raises(sealed.DamagedError, match='SEAL.json is damaged'):
    read_all(folder)
  sealed.seal(folder)
  seal = folder / sealed.NAME
  for at in range(0, seal.stat().st_size, 37):
    sealed.seal(folder)
    flip(seal, at)
    with pytest.raises(sealed.DamagedError, match='SEAL.json is damaged'):
      read_all(folder)


@pytest.mark.parametrize(
  'body',
  [
    {},
    {'format': 2, 'files': {}},
    {'format': 1, 'files': []},
    {'format': 1, 'files': {'small.npy': 7}},
    {'format': 1, 'files': {'small.npy': [148, []]}},
    {'format': 1, 'files': {'small.npy': ['148', [0]]}},
    {'format': 1, 'files': {'small.npy': [148, None]}},
  ],
)
def test_a_seal_must_make_sense(folder, body):
  (folder / sealed.NAME).write_bytes(sealed.encode_body(body))
  with pytest.raises(sealed.DamagedError, match='SEAL.json is damaged'):
    read_all(folder)


def test_a_file_that_came_later_is_not_read(folder):
  (folder / 'meta.json').rename(folder / 'later.json')
  sealed.seal(folder)
  (folder / 'later.json').rename(folder / 'meta.json')
  with pytest.raises(sealed.DamagedError, match='SEAL.json does not know it'):
    read_all(folder)


def test_a_file_with_a_seal_of_its_own(tmp_path, caplog):
  path = tmp_path / 'config.json'

  def read():
    return sealed.open_file(path, 'undo it').read_json('config.json', steps=int)

  for steps in (3, 3, 4):
    sealed.write_text(path, f'{{"steps": {steps}}}')
    (tmp_path / 'other.txt').write_text('of a workdir')
    assert read() == {'steps': steps}
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    '.config.json.seal', 'config.json', 'other.txt',
  ]  # fmt: skip
  path.write_text('{"steps": 5}')
  with pytest.raises(ValueError, match='config.json is damaged .*; undo it'):
    read()
  sealed.seal_of(path).unlink()  # a version that knew none, or a kill
  assert read() == {'steps': 5} and not caplog.records
  sealed.write_text(path, '{"steps": 5}')
  flip(sealed.seal_of(path), 30)
  with pytest.raises(ValueError, match='.config.json.seal is damaged'):
    read()


def test_a_full_disk_leaves_nothing_beside_a_file(tmp_path, monkeypatch):
  path = tmp_path / 'config.json'
  sealed.write_text(path, 'old')

  def fail(descriptor):
    raise OSError(errno.ENOSPC, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', fail)
    with pytest.raises(OSError, match='No space left'):
      sealed.write_text(path, 'new')
  assert path.read_text() == 'old' and list(tmp_path.iterdir()) == [path]


def header(text: str, rest: bytes = b'') -> bytes:
  text = text.encode().ljust(117) + b'\n'
  return b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text + rest


HEADERS = {
  'of 256 GiB': header(
    "{'descr': '<i8', 'fortran_order': False, 'shape': (34359738368,), }"
  ),
  'beyond all integers': header(
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1" + '0' * 40 + ',)}'
  ),
  'negative': header(
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }"
  ),
  'of objects': header(
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)
  ),
  'an open bracket': header("{'descr': '<i8', 'fortran_order': False, 'sh((("),
  'an unknown type': header(
    "{'descr': '<q9', 'fortran_order': False, 'shape': (1,), }", bytes(8)
  ),
  'by columns': header(
    "{'descr': '<i8', 'fortran_order': True, 'shape': (1,), }", bytes(8)
  ),
  'another version': b'\x93NUMPY\x09\x00' + bytes(200),
  'a pickle': b'\x80\x04N.',
  'nothing': b'',
}


@pytest.mark.parametrize('content', HEADERS.values(), ids=HEADERS)
def test_headers_are_not_believed(folder, content):
  (folder / 'small.npy').write_bytes(content)
  files = sealed.SealedDirectory(folder, REMEDY)
  for read in (files.read_array, files.map_array):
    with pytest.raises(sealed.DamagedError, match='small.npy is damaged'):
      read('small.npy', np.int64)


def test_any_bit_of_a_header_is_a_sentence_or_harmless(folder):
  path = folder / 'small.npy'
  whole = path.read_bytes()
  files = sealed.SealedDirectory(folder, REMEDY)
  for at in range(128):
    for bit in range(8):
      flip(path, at, bit)
      try:
        assert files.read_array('small.npy', np.int32, (5,)).sum() == 10
      except sealed.DamagedError:
        pass
      path.write_bytes(whole)


def test_types_and_shapes_are_compared(folder):
  files = sealed.SealedDirectory(folder, REMEDY)
  with pytest.raises(ValueError, match=r'int32 \(5,\) instead of int64 \(5,\)'):
    files.read_array('small.npy', np.int64)
  with pytest.raises(ValueError, match=r'int32 \(5,\) instead of int32 \(6,\)'):
    files.map_array('small.npy', shape=(6,))
  with pytest.raises(ValueError, match="meta.json is damaged .it has no x"):
    files.read_json('meta.json', x=int)
  (folder / 'meta.json').write_text('[' * 100_000)
  with pytest.raises(ValueError, match='meta.json is damaged'):
    files.read_json('meta.json')
  (folder / 'meta.json').write_text('7')
  with pytest.raises(ValueError, match='meta.json is damaged'):
    files.read_json('meta.json', x=int)


@pytest.mark.parametrize('name', ['small.npy', sealed.NAME])
def test_what_is_no_file_is_not_waited_for(folder, name):
  sealed.seal(folder)
  path = folder / name
  path.unlink()
  os.mkfifo(path)
  with pytest.raises(ValueError, match=f'{name} is damaged .it is not a file'):
    read_all(folder)
  path.unlink()
  path.symlink_to(path)
  with pytest.raises(ValueError, match=f'{name} is damaged .Too many levels'):
    read_all(folder)
  path.unlink()
  path.mkdir()
  with pytest.raises(ValueError, match=f'{name} is damaged .*directory'):
    read_all(folder)


def test_a_body_is_its_own_witness():
  raw = sealed.encode_body({'a': 1.5, 'b': [None, 'ö']})
  assert sealed.decode_body(raw) == {'a': 1.5, 'b': [None, 'ö']}
  assert json.loads(raw)['crc32']
  with pytest.raises(ValueError, match='not as it was written'):
    sealed.decode_body(raw.replace(b'1.5', b'1.50'))


def test_sizes_are_compared_before_anything_is_read(folder):
  sealed.seal(folder)
  for name in ('meta.json', sealed.NAME):
    whole = (folder / name).read_bytes()
    os.truncate(folder / name, 1 << 40)  # a sparse file
    with pytest.raises(sealed.DamagedError, match='1,099,511,627,776 bytes'):
      read_all(folder)
    (folder / name).write_bytes(whole)
  read_all(folder)


def test_planted_links_are_not_followed(tmp_path):
  victim, path = tmp_path / 'victim', tmp_path / 'config.json'
  victim.write_text('precious')
  for name in (f'.config.json.{os.getpid()}', '.config.json.seal'):
    (tmp_path / name).symlink_to(victim)
  sealed.write_text(path, '{}')
  assert path.read_text() == '{}' and not path.is_symlink()
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'folder' / sealed.NAME).symlink_to(victim)
  sealed.seal(tmp_path / 'folder')
  assert victim.read_text() == 'precious'


@pytest.mark.parametrize('name', ['config.json', '.config.json.seal'])
def test_what_is_written_anew_is_not_waited_for(tmp_path, name):
  path = tmp_path / 'config.json'
  for place in (os.mkfifo, lambda path: path.symlink_to('/dev/zero')):
    sealed.write_text(path, 'old')
    (tmp_path / name).unlink()
    place(tmp_path / name)
    sealed.write_text(path, 'new')
    assert sealed.open_file(path, REMEDY).read('config.json') == b'new'


def test_without_a_seal_nothing_without_end_is_read(tmp_path):
  path = tmp_path / 'config.json'
  path.touch()
  os.truncate(path, 6 << 30)
  with pytest.raises(sealed.DamagedError, match='bytes instead of at most 67'):
    sealed.open_file(path, REMEDY).read_json('config.json')
  (tmp_path / sealed.NAME).touch()
  os.truncate(tmp_path / sealed.NAME, 120 << 20)
  with pytest.raises(sealed.DamagedError, match='bytes instead of at most 16'):
    sealed.SealedDirectory(tmp_path, REMEDY)
