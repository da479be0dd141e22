"""What a follower must not apply, and what it does instead."""

import os

import numpy as np
import pytest

from genrec_jax.checkpoint import chunks, manifest
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding
from genrec_jax.checkpoint.copy_writer import ReplicaWriter
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.serving_copy import ServingCopy
from tests.checkpoint.published import TABLES, assert_is, change, file_of

pytestmark = pytest.mark.usefixtures('no_power_cut')


def test_half_written_steps_are_waited_for(run, follower, log):
  run.line(1, 2)
  written = file_of(run, 2, 'manifest')
  raw = written.read_bytes()
  written.unlink()
  for _ in range(3):
    follower.update()
    assert follower.step == 1 and not follower.refused
    assert_is(follower, run.whole[1])
  assert log.text().count('step 2 is waited for, it is half-written') == 1
  written.write_bytes(raw)
  assert follower.update() == [2]


@pytest.mark.parametrize('how', ['flip', 'cut', 'remove'])
@pytest.mark.parametrize('kind', ['rows', 'state', 'manifest'])
def test_damaged_deltas_are_passed_over(run, follower, log, kind, how):
  run.line(1, 2, 3, 4)
  path = file_of(run, 3, kind)
  raw = path.read_bytes()
  path.unlink() if how == 'remove' else change(path, how)
  assert follower.update() == [1, 2]
  assert follower.update() == []  # step 4 needs what is damaged
  half = kind == 'manifest' and how == 'remove'
  assert set(follower.refused) == ({4} if half else {3, 4})
  assert 'it needs step 3' in follower.refused[4]
  assert log.text().count('step 3 is passed over, damaged: ') == 1 - half
  assert_is(follower, run.whole[2])
  path.write_bytes(raw)
  assert follower.update() == [3, 4]
  assert_is(follower, run.whole[4])


@pytest.mark.parametrize('kind', ['rows', 'state', 'manifest'])
def test_a_damaged_base_leaves_the_copy_as_it_is(run, follower, kind):
  run.line(1, 2)
  follower.update()
  run.base(3)
  run.delta(4)
  change(file_of(run, 3, kind))
  assert follower.update() == [] and set(follower.refused) == {3, 4}
  assert_is(follower, run.whole[2])
  run.base(5)
  assert follower.update() == [5] and not follower.refused
  assert_is(follower, run.whole[5])


def test_the_step_of_the_copy_may_be_damaged_later(run, follower):
  run.line(1, 2)
  follower.update()
  for kind in ('rows', 'manifest'):
    change(file_of(run, 2, kind))
    assert follower.update() == [] and follower.step == 2


def test_a_base_that_lacks_rows_is_refused(run, follower):
  rows = {n: np.arange(rows) for n, (rows, *_) in TABLES.items()}
  run.save(1, 'base', rows | {'user': np.arange(21)})
  assert follower.update() == []
  assert follower.refused[1] == 'damaged: it lacks 2 rows of table \'user\''


@pytest.mark.parametrize(
  'wrong',
  [
    RowChunk('user', 0, np.arange(4), np.zeros((4, 4), 'float32'), {}),
    RowChunk('item', 0, np.arange(38, 42), np.zeros((4, 6), 'float32'), {}),
    RowChunk('item', 3, np.arange(4), np.zeros((4, 4), 'float32'), {}),
    RowChunk('item', 0, np.arange(4), np.zeros((4, 6), 'float16'), {}),
  ],
)
def test_rows_that_do_not_fit_are_refused(run, follower, wrong):
  run.line(1, 2)
  path = file_of(run, 2, 'rows')
  path.write_bytes(chunks.to_bytes(wrong, RowEncoding()))
  body = manifest.read(path.parents[2])
  file_of(run, 2, 'manifest').unlink()
  manifest.write(path.parents[2], 2, rows=body['rows'])  # not damaged as such
  assert follower.update() == [1] and 'do not fit' in follower.refused[2]
  assert_is(follower, run.whole[1])


def test_a_table_that_changes_without_a_base_is_refused(run, follower):
  run.line(1)
  run._about = {**TABLES, 'user': (24, *TABLES['user'][1:])}
  run.save(2, 'delta', {'item': np.arange(5)})
  assert follower.update() == [1] and 'rows of table' in follower.refused[2]


def test_checkpoints_without_rows_are_an_error(tmp_path, follower):
  (tmp_path / 'run' / '5').mkdir(parents=True)
  manifest.write(tmp_path / 'run' / '5', 5)
  with pytest.raises(CheckpointError, match='step 5 .* not saved by rows'):
    follower.update()


def test_two_followers_of_one_copy_are_refused(run, follower, copy):
  with pytest.raises(CheckpointError, match=f'process {os.getpid()}'):
    Follower(run.directory, copy)
  follower.close()
  Follower(run.directory, copy).close()


def test_a_directory_of_something_else_is_no_copy(run, tmp_path):
  (tmp_path / 'home').mkdir()
  (tmp_path / 'home' / 'thesis.txt').touch()
  with pytest.raises(CheckpointError, match='not empty, and no serving copy'):
    Follower(run.directory, tmp_path / 'home')


@pytest.mark.parametrize('what', ['POSITION.json', 'table'])
def test_a_copy_that_was_damaged_is_built_anew(run, follower, copy, log, what):
  run.line(1, 2)
  follower.update()
  follower.close()
  path = copy / what
  if what == 'table':
    path = copy / follower.tables['item']['file']
  change(path, 'cut')
  with Follower(run.directory, copy, log=log) as again:
    assert 'the tables will be built anew' in log.text()
    assert again.step is None and again.update() == [1, 2]
    assert_is(again, run.whole[2])


def test_a_received_delta_that_changes_costs_the_copy_but_no_reader(
  run, follower, copy, log, monkeypatch
):
  run.line(1, 2)
  follower.update()
  reader, apply, seen = ServingCopy(copy), ReplicaWriter._apply_delta, []

  def spoiled(self, step):
    change(sorted((copy / 'incoming').rglob('*.npz'))[4])
    apply(self, step)

  def tell(line):
    log(line)
    seen.append(reader.read('item', [0])[1])

  monkeypatch.setattr(ReplicaWriter, '_apply_delta', spoiled)
  follower._copy._log = follower._log = tell
  run.delta(3)
  assert follower.update() == [1, 2, 3]
  assert 'the tables will be built anew: incoming step 3 is dam' in log.text()
  assert set(seen) == {None}
  assert_is(follower, run.whole[3])
  assert_is(reader, run.whole[3])
