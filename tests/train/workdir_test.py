"""Tests of who may use a workdir."""

import subprocess
import sys

import pytest

from genrec_jax.config import ConfigError
from genrec_jax.train import workdir as workdir_lib

HOLD = """
import pathlib, sys, time
from genrec_jax.train.workdir import held
with held(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(60)
"""


def test_a_second_training_is_kept_out_until_the_first_is_gone(tmp_path):
  first = subprocess.Popen(
    [sys.executable, '-c', HOLD, str(tmp_path)], stdout=subprocess.PIPE
  )
  try:
    assert first.stdout.readline() == b'held\n'
    with pytest.raises(ConfigError, match='another process is training'):
      with workdir_lib.held(tmp_path):
        pass
  finally:
    first.kill()
    first.wait()
    first.stdout.close()
  with workdir_lib.held(tmp_path):
    pass
  with workdir_lib.held(tmp_path):  # one process after the other
    pass
