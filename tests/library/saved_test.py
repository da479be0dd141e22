"""Saved runs: where they go, and what of them is damaged."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import genrec_jax
from tests.library.retrieval_test import fit, make_events


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
  'change, words',
  [
    (lambda p: flip_bit(p / 'config.json'), 'config.json is damaged: it is'),
    (lambda p: flip_bit(p / 'report.json'), 'report.json is damaged: it is'),
    (lambda p: flip_bit(p / 'items' / 'meta.json'), 'or save the run again'),
    (lambda p: flip_bit(p / 'items' / 'ids.npy'), 'ids.npy is damaged: it is '),
    (lambda p: flip_bit(p / 'checksums.json'), 'save the run again'),
    (lambda p: (p / 'checksums.json').write_text('5'), 'it holds no checksums'),
    (lambda p: (p / 'items' / 'ids.npy').unlink(), 'ids.npy: no such file; '),
  ],
)  # fmt: skip
def test_a_damaged_saved_run_is_not_opened(run, tmp_path, change, words):
  saved = run.save(tmp_path / 'kept')
  change(saved)
  with pytest.raises((ValueError, FileNotFoundError), match=words):
    genrec_jax.load(saved)


@pytest.mark.parametrize('is_saved', [True, False])
@pytest.mark.parametrize(
  'name', ['config.json', 'report.json', 'items', 'items/counts.npy']
)
def test_what_is_no_file_is_not_read(run, tmp_path, name, is_saved):
  kept = run.save(tmp_path / 'kept')
  if not is_saved:
    (kept / 'checksums.json').unlink()
  path = kept / name
  path.rename(tmp_path / 'moved')
  path.symlink_to(path)  # a loop
  with pytest.raises(ValueError, match=f'{name}.* is damaged .Too many levels'):
    genrec_jax.load(kept)
  path.unlink()
  if name != 'items':
    path.mkdir()
    with pytest.raises(ValueError, match=f'{name} is damaged .Is a directory'):
      genrec_jax.load(kept)


@pytest.mark.parametrize('place', ['best/m', 'items/x', 'checkpoints/55'])
def test_a_run_is_not_saved_inside_itself(run, place):
  with pytest.raises(ValueError, match='is inside .*; save to a path outside'):
    run.save(run.workdir / place)
  assert not (run.workdir / place).exists()
