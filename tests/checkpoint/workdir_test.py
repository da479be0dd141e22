"""Tests of who may use a workdir."""

import json
import subprocess
import sys

import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.config import ConfigError

HOLD = """
import pathlib, sys, time
from genrec_jax.checkpoint.workdir import lock_workdir
with lock_workdir(pathlib.Path(sys.argv[1])):
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
      with workdir_lib.lock_workdir(tmp_path):
        pass
  finally:
    first.kill()
    first.wait()
    first.stdout.close()
  with workdir_lib.lock_workdir(tmp_path):
    pass
  with workdir_lib.lock_workdir(tmp_path):  # one process after the other
    pass


def test_a_workdir_of_before_a_section_was_added_is_continued(tmp_path):
  config = config_lib.retrieval()
  saved = json.loads(config_lib.to_json(config))
  del saved['numerics']
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  (tmp_path / 'metrics.jsonl').touch()
  config.numerics.products = (('.*', 'bfloat16'),)
  with pytest.raises(ConfigError, match=r'numerics.products: saved \[\], now'):
    workdir_lib.claim_workdir(tmp_path, config)
  workdir_lib.claim_workdir(tmp_path, config_lib.retrieval())
  assert json.loads((tmp_path / 'config.json').read_text()) == json.loads(
    config_lib.to_json(config_lib.retrieval())
  )
