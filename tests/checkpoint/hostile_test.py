"""Directories that somebody hostile has written, and damaged copies."""

import os

import pytest

from benchmarks import robustness_manifests
from genrec_jax.checkpoint import manifest, manifest_rules, retention
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.save_lock import SaveLock
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.checkpoint.workdir import lock_workdir
from genrec_jax.features import TableSpec
from tests.checkpoint.published import assert_is, change, file_of

pytestmark = pytest.mark.usefixtures('no_power_cut')

# Worth a look each time; the others are drawn.
ALWAYS = (
  "rows are '../precious'",
  'rows is a pipe',
  'rows is a link to a file outside',
  'an extra file is empty',
  'a chunk has 4e9 ids',
  'a chunk is a bomb',
  'LOCK of the copy is a link to a file outside',
  'POSITION.json of the copy is a link to a file outside',
  'incoming of the copy is a link to a directory',
  'bit 300 of TABLES/item.npy of the copy',
)


@pytest.mark.parametrize(
  'drawn', [24, pytest.param(None, marks=pytest.mark.slow)]
)
def test_hostile_directories_end_in_a_sentence(drawn, monkeypatch):
  cases = list(robustness_manifests.collect_cases())
  assert len(cases) >= 300 and len({name for name, *_ in cases}) == len(cases)
  if drawn:
    chosen = [case for case in cases if case[0] in ALWAYS]
    assert len(chosen) == len(ALWAYS)
    others = [case for case in cases if case[0] not in ALWAYS]
    chosen += others[:: len(others) // drawn]
    monkeypatch.setattr(robustness_manifests, 'collect_cases', lambda: chosen)
  rows = robustness_manifests.run(seed=0)
  bad = [r for r in rows if r['outcome'] not in robustness_manifests.GOOD]
  assert not bad
  assert {r['kind'] for r in rows} == set(robustness_manifests.KINDS)


@pytest.mark.parametrize(
  'name, plain',
  [
    ('state/d/ab', True),
    ('rows/user%20id/0-00000.npz', True),
    ('a/..b/c', True),
    ('rows/item/../../x', False),
    ('/etc/passwd', False),
    ('a//b', False),
    ('a\\b', False),
    ('a\0', False),
    (7, False),
  ],
)
def test_names_stay_below_their_directory(name, plain):
  assert manifest_rules.is_plain_name(name) == plain


@pytest.mark.parametrize('name', ['..', '../../x', 'a/../b', 'a\\..\\b', ''])
def test_tables_whose_names_lead_elsewhere_are_refused(name):
  table = {'rows': 1, 'dim': 1, 'dtype': 'float32'}
  with pytest.raises(ValueError, match='a table is .*, not a name'):
    manifest_rules.check_tables({name: table})
  if name:  # those of a config
    with pytest.raises(ValueError, match='without .. for a part'):
      TableSpec(name, 1, 1)


def test_other_names_of_tables_are_opened():
  table = {'rows': 1, 'dim': 1, 'dtype': 'float32'}
  names = ['item', 'a/b', 'user.id', 'x..y', '/x', 'a\\b', '商品', ' ']
  assert list(manifest_rules.check_tables(dict.fromkeys(names, table))) == names


def test_a_file_more_is_named_until_it_is_removed(run, follower):
  run.line(1, 2)
  backup = run.directory / '2' / 'state' / 'd.bak'
  backup.write_bytes(b'')
  assert follower.update() == [1]
  wanted = (
    f"damaged: its manifest does not list the file '{backup}'; remove that file"
  )
  assert follower.refused == {2: wanted}
  backup.rename(backup.with_name('.DS_Store'))  # a desktop has shown it
  assert follower.update() == [2]


def test_a_pipe_in_the_list_is_not_waited_for(run, follower):
  run.line(1, 2)
  path = file_of(run, 2, 'state')
  path.unlink()
  os.mkfifo(path)
  assert follower.update() == [1]
  assert 'state/d cannot be read (it is a special file' in follower.refused[2]
  with pytest.raises(manifest.DamagedError, match='special file'):
    manifest.verify(run.directory / '2')


def test_a_lock_that_is_a_link_truncates_nothing(run, copy, tmp_path):
  (tmp_path / 'precious').write_text('precious')
  copy.mkdir()
  for name, action in (
    ('LOCK', lambda: Follower(run.directory, copy)),
    ('.writer', SaveLock(copy).claim_directory),
    ('.lock', lambda: lock_workdir(copy).__enter__()),
  ):
    (copy / name).symlink_to(tmp_path / 'precious')
    with pytest.raises((CheckpointError, OSError), match=name):
      action()
  (copy / 'LOCK').unlink()
  os.link(tmp_path / 'precious', copy / 'LOCK')
  with pytest.raises(CheckpointError, match='LOCK has another name, too'):
    Follower(run.directory, copy)
  assert (tmp_path / 'precious').read_text() == 'precious'


def test_what_has_another_name_is_not_written_to(run, copy, tmp_path, log):
  run.line(1)
  with Follower(run.directory, copy, log=log) as follower:
    follower.update()
    names = 'generation.npy', follower.tables['item']['file']
  for name in names:
    os.link(copy / name, tmp_path / copy.joinpath(name).name)
  before = [(tmp_path / name.split('/')[-1]).read_bytes() for name in names]
  run.delta(2)
  with Follower(run.directory, copy, log=log) as follower:
    assert log.text().count('has a second name (a hard link)') == 2
    assert follower.update() == [1, 2]
    assert_is(follower, run.whole[2])
  (copy / names[0]).unlink()
  (tmp_path / 'precious').write_text('precious')
  os.link(tmp_path / 'precious', copy / names[0])
  with Follower(run.directory, copy, log=log) as follower:
    assert follower.step == 2 and ServingCopy(copy).step == 2
  assert (tmp_path / 'precious').read_text() == 'precious'
  after = [(tmp_path / name.split('/')[-1]).read_bytes() for name in names]
  assert after == before


def test_nothing_is_received_through_a_link(run, follower, copy, tmp_path):
  run.line(1)
  follower.update()
  (tmp_path / 'elsewhere').mkdir()
  (copy / 'incoming').symlink_to(tmp_path / 'elsewhere')
  (copy / 'POSITION.json.tmp').symlink_to(tmp_path / 'elsewhere/precious')
  run.delta(2)
  assert follower.update() == [2]
  assert_is(follower, run.whole[2])
  assert list((tmp_path / 'elsewhere').iterdir()) == []


# --- The tables of a copy


def table_of(copy, follower, name='item'):
  return copy / follower.tables[name]['file']


def test_a_copy_that_was_damaged_at_rest_is_built_anew(
  run, follower, copy, log
):
  run.line(1, 2)
  follower.update()
  follower.close()
  change(table_of(copy, follower))
  with pytest.raises(CheckpointError, match='item.npy is damaged in block 0'):
    ServingCopy(copy)
  with Follower(run.directory, copy, log=log) as again:
    assert 'built anew: ' in log.text() and 'damaged in block 0' in log.text()
    assert again.step is None and again.update() == [1, 2]
    assert_is(again, run.whole[2])
  assert_is(ServingCopy(copy), run.whole[2])


def test_a_large_copy_is_compared_as_it_is_read(
  run, follower, copy, log, monkeypatch
):
  monkeypatch.setattr('genrec_jax.checkpoint.serving_copy.WHOLE_BYTES', 100)
  monkeypatch.setattr('genrec_jax.checkpoint.table_file.BLOCK', 256)
  run.line(1, 2)
  follower.update()
  follower.close()
  path = table_of(copy, follower)
  raw = bytearray(path.read_bytes())
  raw[-1] ^= 1  # of row 39
  path.write_bytes(raw)
  reader = ServingCopy(copy)
  assert reader.read('item', [3])[0].tobytes() == (
    run.whole[2]['item'][[3]].tobytes()
  )
  with pytest.raises(CheckpointError, match='damaged in block 4 of'):
    reader.read('item', [3, 39])
  with pytest.raises(CheckpointError, match='damaged in block 4 of'):
    ServingCopy(copy, verify=True)
  with Follower(run.directory, copy, log=log) as again:
    assert again.step == 2
    assert again.rows('item', [3]).shape == (1, 6)
    with pytest.raises(CheckpointError, match='the next update builds it anew'):
      again.rows('item', [39])
    assert again.update() == [1, 2]
    assert_is(again, run.whole[2])
  path = table_of(copy, again)
  raw = bytearray(path.read_bytes())
  raw[-1] ^= 1
  path.write_bytes(raw)
  with Follower(run.directory, copy, log=log, verify=True) as again:
    assert again.step is None


def test_a_delta_does_not_vouch_for_what_was_damaged_before(
  run, follower, copy, log, monkeypatch
):
  monkeypatch.setattr('genrec_jax.checkpoint.serving_copy.WHOLE_BYTES', 100)
  run.line(1, 2)
  follower.update()
  follower.close()
  change(table_of(copy, follower))
  run.delta(3)
  with Follower(run.directory, copy, log=log) as again:
    assert again.update() == [1, 2, 3]
    assert 'built anew: ' in log.text() and 'damaged in block 0' in log.text()
    assert_is(again, run.whole[3])


def test_a_copy_without_checksums_gets_them(run, follower, copy, log):
  run.line(1, 2)
  follower.update()
  follower.close()
  for path in copy.rglob('*.crc32.npy'):
    path.unlink()
  position = follower._copy.position
  for about in position.tables.values():
    del about['checksums']
  (copy / 'POSITION.json').write_bytes(position.to_bytes())
  assert_is(ServingCopy(copy), run.whole[2])
  with Follower(run.directory, copy, log=log) as again:
    assert again.step == 2 and 'anew' not in log.text()
  change(table_of(copy, follower))
  with pytest.raises(CheckpointError, match='damaged in block 0'):
    ServingCopy(copy)


# --- What is removed


def test_what_lies_in_the_place_of_a_directory_is_removed(tmp_path, log):
  steps, behind = tmp_path / 'checkpoints', tmp_path / 'behind'
  for folder in (steps, behind):
    folder.mkdir()
  (behind / 'precious').touch()
  os.mkfifo(steps / '5.removed')
  os.mkfifo(steps / '7')
  (steps / '6.removed').symlink_to(behind)
  retention.make_room(steps, 7, log)
  assert not list(steps.iterdir())
  assert sum('left by a killed' in line for line in log) == 2
  for target in (behind, tmp_path / 'nowhere'):
    (steps / '7').symlink_to(target)
    retention.make_room(steps, 7, log)
    assert not list(steps.iterdir())
  assert list(behind.iterdir()) == [behind / 'precious']
