"""Who can read a config.json with a password, and where it does not go."""

import json
import os
import stat

import pytest

from genrec_jax import config as config_lib
from genrec_jax import sealed
from genrec_jax.library import saved
from genrec_jax.weights import export

SECRET = 'pa55word'
PATH = f's3://key:{SECRET}@bucket/log.csv'


@pytest.fixture(autouse=True)
def open_umask():
  former = os.umask(0o022)
  yield
  os.umask(former)


def rights(path):
  return stat.S_IMODE(path.stat().st_mode)


def write(folder, *overrides):
  path = folder / 'config.json'
  config_lib.save(config_lib.load('own_csv', overrides), path)
  return path


@pytest.mark.parametrize(
  'override, mode',
  [
    (f'data.path={PATH}', 0o600),
    (f'predict.input=https://x.org/a.csv?sig={SECRET}', 0o600),
    ('data.path=s3://bucket/log.csv', 0o644),
    ('data.path=user@host.csv', 0o644),
    ('train.monitor=mrr', 0o644),
  ],
)
def test_only_its_owner_reads_a_config_with_a_password(
  override, mode, tmp_path
):
  path = write(tmp_path, override)
  assert rights(path) == mode
  # What goes on needs all of it.
  assert override.partition('=')[2] in path.read_text()
  assert config_lib.load_saved(path) == config_lib.load('own_csv', [override])


def test_a_file_of_an_earlier_version_is_closed_when_the_run_goes_on(tmp_path):
  path = write(tmp_path, f'data.path={PATH}')
  path.chmod(0o644)
  write(tmp_path, f'data.path={PATH}')
  assert rights(path) == 0o600
  write(tmp_path)
  assert rights(path) == 0o644


def test_a_private_file_is_never_open_to_others(tmp_path, monkeypatch):
  """Not before it has its name, either."""
  seen, replace = [], os.replace

  def watch(source, target):
    seen.append((target.name, rights(source)))
    replace(source, target)

  monkeypatch.setattr(os, 'replace', watch)
  sealed.write_text(tmp_path / 'a', 'x', private=True)
  assert seen == [('a', 0o600), ('.a.seal', 0o644)]


def test_copies_for_others_have_no_password(tmp_path):
  (workdir := tmp_path / 'run').mkdir()
  (copy := tmp_path / 'copy').mkdir()
  path = write(workdir, f'data.path={PATH}')
  saved.copy_files(workdir, copy)
  config = config_lib.read_config(copy / 'config.json')
  assert config['data']['path'] == 's3://***@bucket/log.csv'
  assert SECRET in path.read_text()
  metadata = export._collect_metadata(workdir, 3)
  assert SECRET not in str(metadata)
  assert json.loads(metadata['config']) == json.loads(
    (copy / 'config.json').read_text()
  )


def test_copies_without_a_password_are_the_file(tmp_path):
  (workdir := tmp_path / 'run').mkdir()
  (copy := tmp_path / 'copy').mkdir()
  text = write(workdir, 'data.path=log.csv').read_text()
  saved.copy_files(workdir, copy)
  assert (copy / 'config.json').read_text() == text
  assert export._collect_metadata(workdir, 3)['config'] == text.strip()


def test_what_is_damaged_is_not_sealed_anew(tmp_path):
  (workdir := tmp_path / 'run').mkdir()
  (copy := tmp_path / 'copy').mkdir()
  path = write(workdir, f'data.path={PATH}')
  path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
  saved.copy_files(workdir, copy)
  with pytest.raises(sealed.DamagedError, match='has changed'):
    config_lib.read_config(copy / 'config.json')
  assert rights(copy / 'config.json') == 0o600
