"""Tests of who may use a workdir."""

import json
import pathlib
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
  config.numerics.policy = (('.*', 'bfloat16'),)
  with pytest.raises(ConfigError, match=r'numerics.policy: saved \[\], now'):
    workdir_lib.claim_workdir(tmp_path, config)
  workdir_lib.claim_workdir(tmp_path, config_lib.retrieval())
  assert json.loads((tmp_path / 'config.json').read_text()) == json.loads(
    config_lib.to_json(config_lib.retrieval())
  )


@pytest.mark.parametrize('model', ['lr', 'fm', 'deepfm', 'wukong'])
def test_a_run_of_before_first_order_was_a_key_goes_on_as_it_was(
  tmp_path, model
):
  def make_config(**fields):
    config = config_lib.ranking()
    config.model = getattr(config_lib, model)(**fields)
    return config.lock()

  def start(config, workdir):
    with workdir_lib.own_workdir(workdir, config):
      pass
    workdir_lib.check_trained(workdir, config)
    saved = json.loads((workdir / 'config.json').read_text())['model']
    assert config.model.get('first_order') == saved.get('first_order')
    return config.model.get('first_order')

  has_key = model != 'wukong'
  assert start(make_config(), tmp_path / 'new') == (
    has_key and 'feature' or None
  )
  saved = json.loads(config_lib.to_json(make_config()))
  saved['model'].pop('first_order', None)
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  # A run that has not made a step is a new one.
  assert start(make_config(), tmp_path) == (has_key and 'feature' or None)
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  (tmp_path / '.config.json.seal').unlink()  # which earlier versions lack
  (tmp_path / 'metrics.jsonl').touch()
  if has_key:
    assert config_lib.read_config(tmp_path / 'config.json')['model'] == {
      **saved['model'],
      'first_order': 'table',
    }
  for _ in range(2):  # and goes on again, the key being saved now
    assert start(make_config(), tmp_path) == (has_key and 'table' or None)
  if has_key:
    (tmp_path / 'new/metrics.jsonl').touch()
    with pytest.raises(ConfigError, match="saved 'feature', now 'table'"):
      start(make_config(first_order='table'), tmp_path / 'new')


def test_what_is_wrong_with_a_workdir_is_told(tmp_path):
  file = tmp_path / 'file'
  file.touch()
  for path, reason in (
    (file, 'is a file'),
    (file / 'run', 'would lie in a file'),
    (pathlib.Path('/proc/nope/run'), 'cannot be made'),
  ):
    with pytest.raises(ConfigError, match=f'the workdir .* {reason}'):
      with workdir_lib.lock_workdir(path):
        pass
    with pytest.raises(ConfigError, match='--workdir'):
      workdir_lib.claim_workdir(path, config_lib.retrieval())
