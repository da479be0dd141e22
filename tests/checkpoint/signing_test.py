"""Steps that are signed with a key, and readers that want them so."""

import json
import zlib

import pytest

from genrec_jax import sealed
from genrec_jax.checkpoint import inspect, manifest, signing
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.manifest import CheckpointError, UnsignedError
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint.checkpoint_content import assert_restores, save_all
from tests.checkpoint.published import Published, assert_is, file_of

pytestmark = pytest.mark.usefixtures('no_power_cut')

KEY, OTHER = b'k' * 32, b'o' * 32


@pytest.fixture
def key_file(tmp_path):
  path = tmp_path / 'key'
  path.write_bytes(KEY + b'\n')
  path.chmod(0o600)
  return path


def test_signed_steps_are_followed_by_everyone(tmp_path, key_file, log):
  run = Published(tmp_path / 'run', key=KEY).line(1, 2)
  for name, file in (('a', key_file), ('b', '')):
    with Follower(run.directory, tmp_path / name, key_file=file) as follower:
      assert follower.update() == [1, 2]
      assert_is(follower, run.whole[2])


@pytest.mark.parametrize('key, why', [(None, 'not signed'), (OTHER, 'another')])
def test_steps_of_somebody_else_are_refused(tmp_path, key_file, key, why):
  run = Published(tmp_path / 'run', key=key).line(1)
  with Follower(
    run.directory, tmp_path / 'copy', key_file=key_file
  ) as follower:
    assert follower.update() == []
    assert why in follower.refused[1]
  lines, well = inspect.report(run.directory, key=KEY)
  assert not well and 'not signed' in lines[2] and why in lines[3]
  assert inspect.report(run.directory)[1]


def test_a_rewritten_step_is_refused(tmp_path, key_file):
  run = Published(tmp_path / 'run', key=KEY).line(1, 2)
  path = file_of(run, 2, 'state')
  raw = path.read_bytes()[::-1]
  path.write_bytes(raw)
  written = file_of(run, 2, 'manifest')
  body = json.loads(written.read_bytes())
  del body['crc32']
  body['files']['state/d'][1] = zlib.crc32(raw)
  written.write_bytes(sealed.encode_body(body))
  manifest.verify(run.directory / '2')  # its checksums are right
  with pytest.raises(UnsignedError, match='or changed since'):
    manifest.verify(run.directory / '2', key=KEY)


def test_a_step_written_anew_without_the_key_moves_no_copy_back(
  tmp_path, key_file
):
  run = Published(tmp_path / 'run', key=KEY).line(1, 2)
  copy = tmp_path / 'copy'
  with Follower(run.directory, copy, key_file=key_file) as follower:
    follower.update()
    written = file_of(run, 2, 'manifest')
    body = json.loads(written.read_bytes())
    for key in ('crc32', 'sha256', 'hmac'):
      del body[key]
    written.write_bytes(sealed.encode_body(body | {'time': 7.0}))
    for _ in range(2):
      assert follower.update() == [] and follower.step == 2
  with Follower(run.directory, copy, key_file=key_file) as follower:
    assert follower.update() == []
    assert_is(follower, run.whole[2])


def test_a_delta_planted_in_the_copy_is_not_applied(tmp_path, key_file, log):
  run = Published(tmp_path / 'run', key=KEY).line(1)
  copy = tmp_path / 'copy'
  with Follower(run.directory, copy, key_file=key_file) as follower:
    follower.update()
  run.delta(2)
  forged = copy / 'incoming' / '2'
  forged.parent.mkdir()
  (run.directory / '2').rename(forged)
  written = forged / manifest.NAME
  body = json.loads(written.read_bytes())
  for key in ('crc32', 'sha256', 'hmac'):
    del body[key]
  written.write_bytes(sealed.encode_body(body))
  with Follower(
    run.directory, copy, key_file=key_file, log=log.append
  ) as follower:
    assert 'incoming step 2 is not signed' in log[-1]
    assert follower.update() == [1]
    assert_is(follower, run.whole[1])


def test_contents_with_an_equal_crc_are_refused(tmp_path, monkeypatch):
  # As if somebody could find contents with any checksum, which is not hard.
  monkeypatch.setattr(zlib, 'crc32', lambda raw, before=0: 7)
  run = Published(tmp_path / 'run', key=KEY).line(1)
  path = file_of(run, 1, 'state')
  path.write_bytes(path.read_bytes()[::-1])
  manifest.verify(run.directory / '1')
  with pytest.raises(CheckpointError, match='contents of state/d have changed'):
    manifest.verify(run.directory / '1', key=KEY)


def test_a_run_restores_only_what_it_has_signed(tmp_path, log):
  with CheckpointManager(tmp_path / 'a', log=log, key=KEY) as signed:
    save_all(signed, 1, 2)
    assert_restores(signed, 2)
  with CheckpointManager(tmp_path / 'a', log=log, key=OTHER) as other:
    with pytest.raises(CheckpointError, match='signed with another key'):
      other.latest()
    with pytest.raises(CheckpointError, match='step 2 refused, signed with'):
      other.restore(content.state(0), step=2)
  with CheckpointManager(tmp_path / 'a', log=log) as anyone:
    assert_restores(anyone, 2)


def test_keys_are_read_with_care(tmp_path, key_file, log):
  assert signing.read_key('') is None
  assert signing.read_key(key_file, log) == KEY and not log
  key_file.chmod(0o644)
  assert signing.read_key(key_file, log) == KEY
  assert 'open to other users' in log.text()
  key_file.write_bytes(b'short')
  with pytest.raises(CheckpointError, match='has 5 bytes, must have 16'):
    signing.read_key(key_file, log)
  for wrong in (tmp_path / 'absent', tmp_path):
    with pytest.raises(CheckpointError, match='key file'):
      signing.read_key(wrong, log)


def test_without_a_key_a_manifest_is_as_it_always_was(tmp_path):
  run = Published(tmp_path / 'run').line(1)
  body = json.loads(file_of(run, 1, 'manifest').read_bytes())
  assert set(body) == {'format', 'step', 'files', 'rows', 'crc32'}
