"""Checkpoints in a store: the same as on a disk, but for what it cannot do."""

import pathlib

import jax
import numpy as np
import pytest
from etils import epath

from genrec_jax.checkpoint import (
  chain,
  failures,
  inspect,
  manifest,
  retention,
  storage,
)
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint import object_store, rows_content
from tests.checkpoint.object_store import Killed


@pytest.fixture
def store(monkeypatch):
  monkeypatch.setenv('EPATH_USE_TF', 'false')
  with object_store.mounted() as mounted:
    yield mounted


@pytest.fixture
def directory(store):
  return storage.absolute_path('s3://bucket/run/checkpoints')


@pytest.fixture
def chained(directory):
  """A base, and two deltas upon it."""
  rows_content.write(directory, 2)
  rows_content.write(directory, 4, [2])
  rows_content.write(directory, 6, [2])
  return directory


def key(step, file):
  return f'bucket/run/checkpoints/{step}/{file}'


# --- Paths


def test_a_disk_has_paths_of_pathlib(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for given in ('a', pathlib.Path('a'), epath.Path('a'), tmp_path / 'a'):
    place = storage.absolute_path(given)
    assert place == tmp_path / 'a' and storage.is_disk(place)


def test_a_store_has_those_of_epath(store):
  for given in ('s3://b/x', epath.Path('s3://b/x')):
    place = storage.absolute_path(given)
    assert str(place / '7') == 's3://b/x/7' and not storage.is_disk(place)


def test_other_file_systems_are_refused():
  with pytest.raises(ValueError, match='ftp:// is not a file system that'):
    storage.absolute_path('ftp://host/x')


def test_orbax_is_not_sent_where_it_does_not_reach(chained, tmp_path, log):
  with CheckpointManager(chained, log=log) as checkpoints:
    with pytest.raises(CheckpointError, match='step 8 cannot be saved: Orbax'):
      content.save(checkpoints, 8)
    with pytest.raises(CheckpointError, match='alone, not s3://bucket/run'):
      checkpoints.restore(content.state(6))
  assert manifest.list_steps(chained) == [2, 4, 6]
  assert storage.find_obstacle(tmp_path) is None
  assert storage.find_obstacle(storage.absolute_path('gs://bucket/x')) is None


# --- What is written


def test_rows_are_read_as_they_were_written(chained):
  found = rows_content.load(chained, 6)
  arrays, slots, _ = rows_content.state(6)
  jax.tree.map(
    np.testing.assert_array_equal, (found.arrays, found.slots), (arrays, slots)
  )


def test_checkpoints_are_found_in_a_store(chained, store, log):
  del store.objects[key(6, 'state/dense')]
  with CheckpointManager('s3://bucket/run/checkpoints', log=log) as checkpoints:
    assert checkpoints.latest() == 4
    assert checkpoints.read_manifest(4)['host'] == {'x': 0.5}
    assert checkpoints.read_row_history(4)['rows']['kind'] == 'delta'
    arrays, slots, _ = rows_content.state(4)
    stacks = rows_content.stacks()
    found = checkpoints.restore_rows(4, stacks, arrays, slots)
  np.testing.assert_array_equal(found.arrays['s'], arrays['s'])
  assert log == [
    'checkpoint of step 6 skipped, damaged: state/dense is missing'
  ]


def test_the_manifest_is_the_last_of_a_step(chained, store):
  for step in (2, 4, 6):
    names = [n for what, n in store.log if n.startswith(key(step, ''))]
    assert names[-1] == key(step, manifest.NAME)
    assert names.count(names[-1]) == 1
  assert {what for what, _ in store.log} == {'put'}


def test_the_same_bytes_as_on_a_disk(chained, store, tmp_path):
  rows_content.write(tmp_path, 2)
  for name, path in storage.list_files(tmp_path / '2'):
    assert store.objects[key(2, name)] == path.read_bytes()
  assert manifest.read(tmp_path / '2') == manifest.read(chained / '2')


def test_a_save_killed_at_any_object_is_half_written(directory, store):
  rows_content.write(directory, 2)
  puts = len(store.log)
  rows_content.write(directory, 4, [2])
  for until in range(puts, len(store.log)):
    store.log.clear()
    for name in [n for n in store.objects if n.startswith(key(4, ''))]:
      del store.objects[name]
    store.until = ('put', until - puts)
    with pytest.raises(Killed):
      rows_content.write(directory, 4, [2])
    store.until = None
    chain.verify_chain(directory, 2)
    with pytest.raises(manifest.IncompleteError):
      chain.verify_chain(directory, 4)


def test_what_others_write_is_seen_at_once(chained, store):
  assert manifest.list_steps(chained) == [2, 4, 6]
  names = [n for n in store.objects if n.startswith(key(6, ''))]
  for name in names:  # not by way of this process's file system
    store.objects[name.replace('/6/', '/8/')] = store.objects[name]
  assert manifest.list_steps(chained) == [2, 4, 6, 8]
  with pytest.raises(manifest.DamagedError, match='belongs to step 6'):
    manifest.read(chained / '8')
  for name in names:
    del store.objects[name]
  assert manifest.list_steps(chained) == [2, 4, 8]


# --- Damage


@pytest.mark.parametrize(
  'raw, words',
  [
    (None, 'damaged: rows/item/0-00000.npz is missing'),
    (b'short', 'damaged: rows/item/0-00000.npz has 5 bytes instead of'),
    ('flip', 'damaged: the contents of rows/item/0-00000.npz have changed'),
  ],
)
def test_a_damaged_base_damages_its_deltas(chained, store, raw, words):
  name = key(2, 'rows/item/0-00000.npz')
  before = store.objects.pop(name)
  if raw == 'flip':
    raw = before[:-1] + bytes([before[-1] ^ 1])
  if raw is not None:
    store.objects[name] = raw
  with pytest.raises(manifest.DamagedError, match=f'^{words}'):
    chain.verify_chain(chained, 2)
  with pytest.raises(manifest.DamagedError, match=f'step 2, which is {words}'):
    chain.verify_chain(chained, 6)


def test_inspect_looks_into_a_store(chained, store, capsys):
  assert inspect.main(['s3://bucket/run']) == 0
  out = capsys.readouterr().out
  assert out.startswith('s3://bucket/run/checkpoints:\n')
  assert 'step 6: delta, rows at 32 bits' in out
  del store.objects[key(4, manifest.NAME)]
  del store.objects[key(2, 'state/dense')]
  assert inspect.main(['s3://bucket/run']) == 1
  out = capsys.readouterr().out
  assert 'step 4: half-written: it has no MANIFEST.json' in out
  assert 'step 2: damaged: state/dense is missing' in out
  with pytest.raises(SystemExit):
    inspect.main(['s3://bucket/elsewhere'])
  assert 'no checkpoints in s3://bucket/elsewhere' in capsys.readouterr().err


# --- What goes


def prune(directory, saved, log, count=1):
  limits = retention.RetentionLimits(count)
  retention.remove_superfluous(
    directory, saved, limits=limits, damaged=(), log=log
  )


def test_what_a_kept_delta_needs_stays(chained, log):
  prune(chained, 6, log)
  assert manifest.list_steps(chained) == [2, 6]
  chain.verify_chain(chained, 6)
  rows_content.write(chained, 8)
  prune(chained, 8, log)
  assert manifest.list_steps(chained) == [8]
  assert log == []


def test_the_manifest_is_the_first_to_go(chained, store, log):
  store.log.clear()
  rows_content.write(chained, 8)
  prune(chained, 8, log)
  for step in (2, 4, 6):
    gone = [n for w, n in store.log if w == 'delete' and f'/{step}/' in n]
    assert gone[0] == key(step, manifest.NAME)
  steps = [n.split('/')[3] for w, n in store.log if w == 'delete']
  assert list(dict.fromkeys(steps)) == ['6', '4', '2']  # no base before them


def test_a_removal_killed_at_any_object_is_completed_later(chained, store, log):
  rows_content.write(chained, 8)
  before = dict(store.objects)
  count = sum('/8/' not in name for name in before)
  for until in range(count):
    store.objects.clear()
    store.objects.update(before)
    store.log.clear()
    store.until = ('delete', until)
    with pytest.raises(Killed):
      prune(chained, 8, log)
    store.until = None
    for step in manifest.list_steps(chained):
      try:
        chain.verify_chain(chained, step)
      except manifest.IncompleteError:
        assert step != 8
    prune(chained, 8, log)
    assert manifest.list_steps(chained) == [8]
  assert all('/8/' in name for name in store.objects)


def test_room_is_made_where_nothing_was_ever_saved(directory, log):
  retention.make_room(directory, 1, log)
  assert log == []


def test_room_is_made_of_what_is_not_whole(chained, store, log):
  with pytest.raises(manifest.CheckpointError, match='already saved in s3://'):
    retention.make_room(chained, 6, log)
  store.objects[key('9.orbax-checkpoint-tmp-3', 'state/x')] = b'x'
  del store.objects[key(6, 'state/dense')]
  retention.make_room(chained, 6, log)
  assert 'step 6 is replaced, damaged: state/dense is missing' in log.text()
  assert 'left by a killed or failed save' in log.text()
  assert not any('/6' in n or '/9' in n for n in store.objects)
  chain.verify_chain(chained, 4)


def test_a_failed_save_is_discarded(chained, store):
  store.objects[key('6.orbax-checkpoint-tmp-3', 'state/x')] = b'x'
  retention.discard_failed(chained, 6)
  retention.discard_failed(chained, 7)  # of which nothing is there
  assert manifest.list_steps(chained) == [2, 4]
  assert not any('/6' in name for name in store.objects)


def test_a_store_is_asked_for_no_free_space(directory):
  error = OSError(28, 'No space left on device')
  assert failures.explain_failure(error, directory) == str(error)
