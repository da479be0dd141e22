"""Saved runs: where they go, and what of them is damaged."""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

import genrec_jax
from tests.library.retrieval_test import fit, make_events
from tests.unsealing import unseal


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return fit(make_events(), tmp_path_factory.mktemp('fit') / 'run')


def test_of_two_that_save_to_one_path_the_second_fails(run, tmp_path):
  def save(_):
    try:
      return run.save(tmp_path / 'kept')
    except FileExistsError as e:
      assert 'exists already' in str(e)

  with ThreadPoolExecutor() as threads:
    saved = [path for path in threads.map(save, range(4)) if path]
  assert saved == list(tmp_path.iterdir()) == [tmp_path / 'kept']
  assert genrec_jax.load(tmp_path / 'kept').metrics == run.metrics


def flip_bit(path) -> None:
  contents = bytearray(path.read_bytes())
  contents[len(contents) // 2] ^= 1
  path.write_bytes(contents)


@pytest.mark.parametrize(
  'name',
  [
    'config.json', '.config.json.seal', 'report.json', '.report.json.seal',
    'items/SEAL.json', 'items/meta.json', 'items/ids.npy', 'items/titles.json',
  ],
)  # fmt: skip
def test_a_damaged_saved_run_is_not_opened(run, tmp_path, name):
  path = run.save(tmp_path / 'kept') / name
  whole = path.read_bytes()
  flip_bit(path)
  with pytest.raises(ValueError, match=f'{name} is damaged .*put back a '):
    genrec_jax.load(tmp_path / 'kept')
  path.write_bytes(whole)
  genrec_jax.load(tmp_path / 'kept')
  path.unlink()
  if name.startswith('items/') and name != 'items/SEAL.json':
    with pytest.raises(FileNotFoundError, match=f'{name}: no such file; '):
      genrec_jax.load(tmp_path / 'kept')


def test_what_an_earlier_version_saved_is_compared_and_sealed_again(
  run, tmp_path
):
  old = run.save(tmp_path / 'old')
  for seal in old.glob('.*.seal'):
    seal.unlink()
  unseal(old / 'items')
  files = ['config.json', 'report.json', 'items/ids.npy']
  checksums = {name: zlib.crc32((old / name).read_bytes()) for name in files}
  (old / 'checksums.json').write_text(json.dumps(checksums))
  again = genrec_jax.load(old).save(tmp_path / 'again')
  assert genrec_jax.load(again).metrics == run.metrics
  names = (path.name for path in again.rglob('*'))
  assert sorted(name for name in names if 'seal' in name.lower()) == [
    '.config.json.seal', '.report.json.seal', 'SEAL.json',
  ]  # fmt: skip
  (again / 'items' / 'SEAL.json').unlink()
  with pytest.raises(ValueError, match='SEAL.json is missing, .*mode=train'):
    genrec_jax.load(again)
  flip_bit(old / 'items' / 'ids.npy')
  with pytest.raises(ValueError, match='ids.npy is damaged .it is not the'):
    genrec_jax.load(old)
  for text in ('5', '{}', '{'):
    (old / 'checksums.json').write_text(text)
    with pytest.raises(ValueError, match='checksums.json is damaged'):
      genrec_jax.load(old)


@pytest.mark.parametrize('is_sealed', [True, False])
@pytest.mark.parametrize(
  'name', ['config.json', 'report.json', 'items', 'items/counts.npy', 'best']
)
def test_what_is_no_file_is_not_read(run, tmp_path, name, is_sealed):
  kept = run.save(tmp_path / 'kept')
  if not is_sealed:
    for seal in kept.glob('.*.seal'):
      seal.unlink()
    unseal(kept / 'items')
  path = kept / name
  path.rename(tmp_path / 'moved')
  path.symlink_to(path)  # a loop
  with pytest.raises(ValueError, match=f'{name}.* is damaged .Too many levels'):
    genrec_jax.load(kept)
  path.unlink()
  if '.' in name:
    path.mkdir()
    with pytest.raises(ValueError, match=f'{name} is damaged .*irectory'):
      genrec_jax.load(kept)


@pytest.mark.parametrize('place', ['best/m', 'items/x', 'checkpoints/55'])
def test_a_run_is_not_saved_inside_itself(run, place):
  with pytest.raises(ValueError, match='is inside .*; save to a path outside'):
    run.save(run.workdir / place)
  assert not (run.workdir / place).exists()
