"""Half-written and damaged checkpoints, and saves that fail."""

import contextlib
import errno
import resource
import shutil
import subprocess

import numpy as np
import pytest

from genrec_jax.checkpoint import manifest, storage
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint.checkpoint_content import (
  assert_restores,
  save,
  save_all,
  whole,
)

# --- What was left by a kill


def test_nothing_there(checkpoints, tmp_path):
  assert checkpoints.latest() is None
  with pytest.raises(FileNotFoundError, match='no checkpoint in'):
    checkpoints.restore(content.state(0))
  with pytest.raises(FileNotFoundError, match='no checkpoint of step 4 in'):
    checkpoints.restore(content.state(0), step=4)
  assert list(tmp_path.iterdir()) == []  # reading makes no directories


def test_a_half_written_step_is_skipped_refused_and_replaced(checkpoints, log):
  save_all(checkpoints, 1, 2)
  (checkpoints.directory / '2' / manifest.NAME).unlink()
  assert checkpoints.latest() == 1
  assert log == ['checkpoint of step 2 skipped, half-written: it has no '
                 'MANIFEST.json']  # fmt: skip
  with pytest.raises(CheckpointError, match='step 2 refused, half-written'):
    checkpoints.restore(content.state(0), step=2)
  save_all(checkpoints, 2)
  assert_restores(checkpoints, 2)


def test_only_a_half_written_step_means_nothing_was_ever_saved(
  checkpoints, log
):
  save_all(checkpoints, 1)
  (checkpoints.directory / '1' / manifest.NAME).unlink()
  assert checkpoints.latest() is None
  assert 'step 1 skipped, half-written' in log.text()


def test_debris_goes_with_the_next_save_and_not_by_looking(checkpoints, log):
  save_all(checkpoints, 1)
  for name in ('2.orbax-checkpoint-tmp', '7.removed', 'best', 'notes.2'):
    (checkpoints.directory / name / 'deep').mkdir(parents=True)
  assert checkpoints.latest() == 1
  assert log == []
  save_all(checkpoints, 2)
  left = sorted(p.name for p in checkpoints.directory.iterdir())
  assert left == ['.writer', '1', '2', 'best', 'notes.2']
  assert '2.orbax-checkpoint-tmp' in log.text()
  assert '7.removed' in log.text()


# --- Damage


def files_of(checkpoints, step):
  root = checkpoints.directory / str(step)
  return sorted(p for p in root.rglob('*') if p.is_file())


@contextlib.contextmanager
def damaged(path, data):
  """Bytes other than those written, or no file where `data` is None."""
  before = path.read_bytes()
  path.unlink() if data is None else path.write_bytes(data)
  yield
  path.write_bytes(before)


def variants(data, seed):
  """The data with one bit flipped, cut short, grown, or gone."""
  yield 'missing', None
  yield 'grown', data + b'\0'
  if not data:
    return
  yield 'cut short', data[:-1]
  yield 'empty', b''
  rng = np.random.default_rng(seed)
  for bit in {0, len(data) * 8 - 1, *rng.integers(len(data) * 8, size=3)}:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << (bit % 8)
    yield f'bit {bit} flipped', bytes(flipped)


def test_no_damage_to_any_file_is_ever_loaded(checkpoints, log):
  save_all(checkpoints, 1, 2)
  state = content.state(0)
  files = files_of(checkpoints, 2)
  assert len(files) > 8
  for i, path in enumerate(files):
    for what, data in variants(path.read_bytes(), seed=i):
      with damaged(path, data):
        log.clear()
        assert checkpoints.latest() == 1, (path, what)
        assert len(log) == 1 and 'step 2 skipped' in log[0], (path, what)
        reason = 'half-written' if data is None else 'damaged'
        if path.name != manifest.NAME:
          reason = 'damaged'
          assert path.name in log[0]
        assert reason in log[0], (path, what)
        with pytest.raises(CheckpointError, match='step 2 refused'):
          checkpoints.restore(state, step=2)
  assert_restores(checkpoints, 2)


def test_with_a_damaged_newest_the_one_before_is_restored(checkpoints, log):
  save_all(checkpoints, 1, 2)
  max(files_of(checkpoints, 2), key=lambda p: p.stat().st_size).unlink()
  assert_restores(checkpoints, 1)
  assert 'checkpoint of step 2 skipped, damaged: state/' in log.text()
  # The damaged one is no reason to let the last whole one go.
  save_all(checkpoints, 3)
  assert manifest.list_steps(checkpoints.directory) == [1, 3]


def test_a_damaged_step_reached_again_is_replaced(checkpoints, log):
  save_all(checkpoints, 1, 2)
  files_of(checkpoints, 2)[-1].write_bytes(b'')
  save_all(checkpoints, 2)
  assert 'checkpoint of step 2 is replaced, damaged' in log.text()
  assert_restores(checkpoints, 2)


def test_all_damaged_is_an_error_that_lists_them(checkpoints):
  save_all(checkpoints, 1, 2)
  files_of(checkpoints, 1)[-1].unlink()
  files_of(checkpoints, 2)[-1].write_bytes(b'x')
  for call in (
    checkpoints.latest,
    lambda: checkpoints.restore(content.state(0)),
  ):
    with pytest.raises(
      CheckpointError, match='no checkpoint in .* is whole'
    ) as e:
      call()
    assert 'step 1: damaged' in str(e.value)
    assert 'step 2: damaged' in str(e.value)
    assert 'move this directory away' in str(e.value)


# --- Failing saves


@contextlib.contextmanager
def small_files(limit):
  """No file of this process may grow beyond `limit` bytes."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_loses_nothing(checkpoints, log, caplog):
  save_all(checkpoints, 1, 2)
  with small_files(1_000_000):
    save(checkpoints, 3, rows=100_000)  # returns, fails later
    with pytest.raises(
      CheckpointError, match='saving step 3 .* File too large'
    ):
      checkpoints.latest()
  assert 'Earlier checkpoints are as they were: 1, 2' in log.text()
  assert '_SignalingThread' not in caplog.text  # hundreds of lines of Orbax
  left = sorted(p.name for p in checkpoints.directory.iterdir())
  assert left == ['.writer', '1', '2']
  assert_restores(checkpoints, 2)
  save(checkpoints, 3, rows=100_000, wait=True)
  assert_restores(checkpoints, 3, rows=100_000)
  assert whole(checkpoints) == [2, 3]


def test_a_full_disk_loses_nothing(tmp_path, log):
  disk = tmp_path / 'disk'
  disk.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', str(disk)]
  if (
    not shutil.which('mount')
    or subprocess.run(mount, capture_output=True).returncode
  ):
    pytest.skip('mounting a small tmpfs is not permitted here')
  try:
    with CheckpointManager(disk / 'checkpoints', log=log) as checkpoints:
      save_all(checkpoints, 1)
      with pytest.raises(CheckpointError, match='the disk is full'):
        save(checkpoints, 2, rows=200_000, wait=True)
      assert_restores(checkpoints, 1)
      (disk / 'other').write_bytes(bytes(3_000_000))
      with pytest.raises(CheckpointError, match='the disk is full'):
        save(checkpoints, 2, rows=20_000, wait=True)
      (disk / 'other').unlink()
      save(checkpoints, 2, wait=True)
      assert_restores(checkpoints, 2)
  finally:
    subprocess.run(['umount', str(disk)], check=True)


def test_a_disk_that_fills_up_before_the_manifest(
  checkpoints, monkeypatch, log
):
  save_all(checkpoints, 1)

  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  with monkeypatch.context() as m:
    m.setattr(storage.os, 'replace', full)
    save(checkpoints, 2)
    with pytest.raises(CheckpointError, match='the disk is full'):
      save(checkpoints, 3)
  assert manifest.list_steps(checkpoints.directory) == [1]
  save_all(checkpoints, 2)
  assert_restores(checkpoints, 2)


def test_the_error_that_ends_the_block_is_the_one_to_see(
  tmp_path, monkeypatch, log
):
  def broken(*_, **__):
    raise OSError('broken')

  monkeypatch.setattr(manifest, 'write', broken)
  with pytest.raises(KeyError, match='mine'):
    with CheckpointManager(tmp_path, log=log) as checkpoints:
      save(checkpoints, 1)
      raise KeyError('mine')
  assert 'saving step 1' in log.text()
  with pytest.raises(CheckpointError, match='broken'):
    with CheckpointManager(tmp_path, log=log) as checkpoints:
      save(checkpoints, 1)


def test_an_interrupted_wait_forgets_no_failure(checkpoints, monkeypatch):
  def broken(*_, **__):
    raise OSError('broken')

  def interrupted(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as m:
    m.setattr(manifest, 'write', broken)
    save(checkpoints, 1)
    with m.context() as inner:
      inner.setattr('concurrent.futures.wait', interrupted)
      with pytest.raises(KeyboardInterrupt):
        checkpoints.wait()
    with pytest.raises(CheckpointError, match='saving step 1'):
      save(checkpoints, 2)
  save_all(checkpoints, 2)
  assert whole(checkpoints) == [2]
