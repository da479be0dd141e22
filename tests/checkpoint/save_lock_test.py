"""Two that would save in one directory."""

import subprocess
import sys

import pytest

from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.save_lock import NAME, SaveLock
from tests.checkpoint.checkpoint_content import save, save_all, whole

HOLDS = """
import pathlib, sys, time
from genrec_jax.checkpoint.save_lock import SaveLock
writer = SaveLock(pathlib.Path(sys.argv[1]))
writer.claim_directory()
print('claimed', flush=True)
time.sleep(600)
"""


def test_the_second_process_is_refused_until_the_first_has_died(tmp_path):
  other = subprocess.Popen(
    [sys.executable, '-c', HOLDS, str(tmp_path)], stdout=subprocess.PIPE
  )
  try:
    assert other.stdout.readline() == b'claimed\n'
    with CheckpointManager(tmp_path) as checkpoints:
      with pytest.raises(CheckpointError, match='another process is saving in'):
        save(checkpoints, 1)
      assert checkpoints.latest() is None  # to look is free
      other.kill()
      other.wait()
      save_all(checkpoints, 1)
      assert whole(checkpoints) == [1]
  finally:
    other.kill()
    other.stdout.close()


def test_one_process_may_have_several_objects(tmp_path):
  with (
    CheckpointManager(tmp_path, keep=9) as one,
    CheckpointManager(tmp_path) as other,
  ):
    save_all(one, 1)
    save_all(other, 2)


def test_in_a_store_the_first_finds_the_name_of_the_second(tmp_path):
  directory = _Store(tmp_path)
  one, other = SaveLock(directory), SaveLock(directory)
  one.claim_directory()
  one.check()
  other.claim_directory()
  other.check()
  with pytest.raises(CheckpointError, match='another process has begun'):
    one.check()
  assert (tmp_path / NAME).exists()


class _Store:
  """A directory that is not known to lie on a disk."""

  def __init__(self, path):
    self._path = path

  def __truediv__(self, name):
    return self._path / name
