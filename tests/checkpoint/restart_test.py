"""What a restart reads, and what it does with a step that does not load."""

import os
import pathlib
import time

import pytest
from orbax.checkpoint import v1 as ocp

from genrec_jax.checkpoint import inspect, manifest, storage
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint.checkpoint_content import (
  assert_restores,
  save,
  save_all,
)
from tests.checkpoint.training import Training

pytestmark = pytest.mark.usefixtures('no_power_cut')


def grow_old(directory):
  """As if all files had been written an hour ago."""
  for _, path in storage.list_files(directory):
    os.utime(path, (time.time() - 3600,) * 2)


def count_read():
  """Bytes that this process has read so far."""
  text = pathlib.Path('/proc/self/io').read_text()
  return int(text.split()[1])


def bytes_of(directory, below=''):
  return sum(
    storage.count_bytes(path)
    for name, path in storage.list_files(directory)
    if below in f'/{name}'
  )


@pytest.mark.skipif(
  not os.access('/proc/self/io', os.R_OK), reason='no count of bytes read'
)
def test_a_restart_reads_rows_once_and_arrays_twice(tmp_path, log):
  rows = Training(tmp_path / 'rows', policy='full', chunk_rows=10)
  rows.train().save()
  rows.checkpoints.wait()
  with CheckpointManager(tmp_path / 'arrays', log=log) as arrays:
    save(arrays, 1, rows=100_000)
  for name in ('rows', 'arrays'):
    grow_old(tmp_path / name)

  with Training(tmp_path / 'rows', log=log).checkpoints as checkpoints:
    again = Training(tmp_path / 'rows', log=log)
    again.checkpoints = checkpoints
    reads, read = [], manifest.read_file
    manifest.read_file = lambda *args: reads.append(args[1]) or read(*args)
    try:
      assert checkpoints.latest(rows_later=True) == 1
      checkpoints.restore_newest(again.restore)
    finally:
      manifest.read_file = read
  files = manifest.read(tmp_path / 'rows/1')['files']
  assert sorted(reads) == sorted(n for n in files if n.startswith('rows/'))

  whole = bytes_of(tmp_path / 'arrays')
  with CheckpointManager(tmp_path / 'arrays', log=log) as checkpoints:
    before = count_read()
    assert checkpoints.latest() == 1
    compared = count_read()
    assert compared - before < 1.1 * whole
    checkpoints.restore(content.state(0, 100_000), step=1)
    assert count_read() - compared < 1.1 * whole


def test_a_changed_file_is_compared_again(checkpoints, log):
  save_all(checkpoints, 1, 2)
  grow_old(checkpoints.directory)
  assert checkpoints.latest() == 2
  path = max(
    (checkpoints.directory / '2').rglob('*'), key=lambda p: p.stat().st_size
  )
  raw = bytearray(path.read_bytes())
  raw[-1] ^= 1
  path.write_bytes(raw)
  assert checkpoints.latest() == 1


def test_a_file_more_is_told_and_the_step_before_is_taken(checkpoints, log):
  save_all(checkpoints, 1, 2)
  place = checkpoints.directory / '2' / 'state' / 'array_metadatas'
  place.mkdir(exist_ok=True)
  (place / 'process_0.bak').write_text('{}')
  assert_restores(checkpoints, 1)
  why = (
    f"damaged: its manifest does not list the file '{place}/process_0.bak'; "
    'remove that file'
  )
  assert f'checkpoint of step 2 skipped, {why}' in log.text()
  lines, well = inspect.report(checkpoints.directory)
  assert not well and f'  step 2: {why}' in lines
  (place / 'process_0.bak').unlink()
  assert_restores(checkpoints, 2)


@pytest.mark.parametrize(
  'error', [MemoryError(), ValueError('page 1\npage 2'), KeyError('x')]
)
def test_a_step_that_does_not_load_leaves_the_one_before(
  checkpoints, log, monkeypatch, error
):
  save_all(checkpoints, 1, 2)
  load = ocp.load_checkpointables

  def load_but_2(path, *args):
    if path.name == '2':
      raise error
    return load(path, *args)

  monkeypatch.setattr(ocp, 'load_checkpointables', load_but_2)
  assert_restores(checkpoints, 1)
  assert 'checkpoint of step 2 skipped, step 2 cannot be restored (' in (
    log.text()
  )
  assert type(error).__name__ in log.text() and 'page 2' not in log.text()
  with pytest.raises(CheckpointError, match='step 2 cannot be restored'):
    checkpoints.restore(content.state(0), step=2)
  # The run reaches step 2 again, and its save is not refused.
  save_all(checkpoints, 2)
  monkeypatch.undo()
  assert_restores(checkpoints, 2)


def test_a_run_goes_on_before_rows_that_are_damaged(tmp_path, log):
  run = Training(tmp_path, policy='full', keep=9)
  run.train().save()
  run.train().save()
  run.checkpoints.wait()
  path = next((tmp_path / '2/rows').rglob('*.npz'))
  raw = bytearray(path.read_bytes())
  raw[len(raw) // 2] ^= 1
  path.write_bytes(raw)
  again = Training(tmp_path, log=log)
  assert again.checkpoints.latest(rows_later=True) == 2
  assert again.checkpoints.restore_newest(again.restore).step == 1
  assert 'step 2 cannot be restored (damaged: the contents of' in log.text()
  again.assert_same(Training(tmp_path / 'other').train())
