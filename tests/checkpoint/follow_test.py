"""A copy that follows what is published, against whole saves of each step."""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from genrec_jax.checkpoint import follow, row_files
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.checkpoint.staged_tables import RowWriter
from tests.checkpoint.published import (
  TABLES,
  Published,
  assert_is,
  change,
  file_of,
)

pytestmark = pytest.mark.usefixtures('no_power_cut')


def test_bases_and_deltas_one_after_the_other(run, follower, log, copy):
  assert follower.update() == [] and follower.step is None
  assert follower.update() == [] and log.text().count('nothing is publ') == 1
  run.base(10)
  assert follower.update() == [10]
  assert follower.step == 10 and follower.step_dir == run.directory / '10'
  assert_is(follower, run.whole[10])
  for step in (20, 30, 40):
    run.delta(step)
  assert follower.update() == [20, 30, 40]
  assert_is(follower, run.whole[40])
  assert_is(ServingCopy(copy), run.whole[40])
  assert follower.update() == [] and not follower.refused
  line = r'step 30: delta, [\d,]+ rows, [\d,]+ bytes, .* s ago, 1 newer'
  assert re.search(line, log.text())


def test_the_tables_of_the_follower_are_for_reading(run, follower):
  run.line(1)
  follower.update()
  table = follower.table('item')
  assert isinstance(table, np.memmap) and not table.flags.writeable
  with pytest.raises(CheckpointError, match="'items'; there are: item, odd"):
    follower.table('items')


def test_goes_on_where_it_stopped(run, follower, copy, log):
  run.line(1, 2)
  follower.update()
  follower.close()
  shutil.rmtree(run.directory / '1')  # it is not needed any more
  run.delta(3)
  with Follower(run.directory, copy, log=log) as again:  # and not WORKDIR
    assert again.step == 2
    assert_is(again, run.whole[2])
    assert again.update() == [3]
    assert_is(again, run.whole[3])


def test_a_snapshot_of_hard_links_stays_as_it_is(run, copy, tmp_path, log):
  run.line(1, 2)
  with Follower(run.directory, copy) as follower:
    follower.update()
    table = copy / follower._copy.position.tables['item']['file']
  snapshot, before = tmp_path / 'item.npy', table.read_bytes()
  snapshot.hardlink_to(table)
  run.delta(3)
  with Follower(run.directory, copy, log=log.append) as follower:
    assert follower.update()[-1] == 3
    assert_is(follower, run.whole[3])
  assert snapshot.read_bytes() == before
  assert 'item.npy has a second name (a hard link)' in log[0]


def test_tables_by_name(run, follower, copy, log):
  run.line(1, 2)
  follower.update()
  follower.close()
  with Follower(run.directory, copy, tables=['user'], log=log) as some:
    assert some.update() == [1, 2]  # built anew
    assert_is(some, {'user': run.whole[2]['user']})
    run.delta(3)
    # Rows of other tables are not even read.
    change(sorted((run.directory / '3' / 'rows' / 'item').glob('*'))[0])
    assert some.update() == [3]
    assert_is(some, {'user': run.whole[3]['user']})
  with Follower(run.directory, copy, tables=['user', 'itme'], log=log) as f:
    with pytest.raises(CheckpointError, match="'itme'; there are: item, odd"):
      f.update()
    assert_is(ServingCopy(copy), {'user': run.whole[3]['user']})
  for wrong in ('item', []):
    with pytest.raises(ValueError, match='a list of names'):
      Follower(run.directory, copy, tables=wrong)


def test_a_new_base_is_built_beside_the_old_tables(run, follower, copy):
  run.line(1, 2)
  follower.update()
  reader, old = ServingCopy(copy), follower.table('item')
  run.base(3)
  run.delta(4)
  seen = []
  follower._log = lambda line: seen.append(reader.read('item', [0])[1])
  assert follower.update() == [3, 4]
  assert set(seen) == {2}  # until all of both was there
  assert_is(reader, run.whole[4])
  assert old.tobytes() == run.whole[2]['item'].tobytes()  # who has it keeps it
  directories = [p.name for p in copy.iterdir() if p.is_dir()]
  assert directories == [reader.tables['item']['file'].split('/')[0]] == ['3-2']


def test_a_run_that_begins_again_with_other_tables(run, follower):
  run.line(1, 2)
  follower.update()
  shutil.rmtree(run.directory)
  other = Published(
    run.directory, seed=1, tables={**TABLES, 'item': (50, 6, 'float32')}
  ).line(1, 2)
  assert follower.update() == [1, 2]
  assert_is(follower, other.whole[2])


def test_a_base_that_was_removed_underneath(run, follower, log):
  run.line(1, 2, 3)
  follower.update()
  for step in (3, 2, 1):  # as after a new base
    shutil.rmtree(run.directory / str(step))
  assert follower.update() == [] and follower.step == 3
  assert_is(follower, run.whole[3])
  run.delta(5)  # its parents are not there, but the copy is the last of them
  assert follower.update() == [5]
  run.delta(6)
  run.delta(7)
  shutil.rmtree(run.directory / '6')
  assert follower.update() == [] and follower.step == 5
  assert 'it needs step 6, which is half-written' in follower.refused[7]
  run.base(8)
  run.delta(9)
  assert follower.update() == [8, 9]
  assert_is(follower, run.whole[9])


def test_deltas_since_a_base_are_laid_upon_it_alone(run, follower, log):
  run.line(1, 2)
  follower.update()
  parents = run._parents[:1]
  run.save(3, 'delta', {'item': np.arange(40), 'user': np.arange(23)}, parents)
  assert follower.update() == [1, 3]  # step 2 may have had other rows
  assert 'step 3 is not made from step 2 as it is here' in log.text()
  run.whole[3]['odd name/1'] = run.whole[1]['odd name/1']
  assert_is(follower, run.whole[3])


def test_a_step_of_the_same_number_is_another_one(run, follower, tmp_path):
  run.line(1, 2)
  follower.update()
  other = Published(tmp_path / 'other', seed=1).line(1, 2, 3)
  for step in (1, 2):  # a delta on top of another base, as it were
    shutil.rmtree(other.directory / str(step))
    shutil.copytree(run.directory / str(step), other.directory / str(step))
  shutil.rmtree(run.directory)
  shutil.copytree(other.directory, run.directory)
  assert follower.update() == []
  assert 'another one' in follower.refused[3]
  assert_is(follower, run.whole[2])


def test_a_run_that_went_back(run, follower):
  run.line(1, 2, 3)
  follower.update()
  shutil.rmtree(run.directory / '3')
  assert follower.update() == [1, 2]
  assert_is(follower, run.whole[2])


# --- readers


def test_readers_know_of_what_step_rows_are(tmp_path, copy):
  """Deltas change every row while another thread reads."""
  tables = {'item': (3000, 16, 'float32')}
  run = Published(tmp_path / 'run', tables=tables).line(1)
  with Follower(tmp_path / 'run', copy, log=lambda line: None) as follower:
    follower.update()
    reader, steps = ServingCopy(copy), []

    def publish():
      for step in range(2, 12):
        run.base(step) if step == 7 else run.delta(step, share=1.0)
        follower.update()

    thread = threading.Thread(target=publish)
    thread.start()
    rng = np.random.default_rng(0)
    while thread.is_alive():
      ids = rng.integers(0, 3000, 500)
      rows, step = reader.read('item', ids, wait_s=5.0)
      assert rows.tobytes() == run.whole[step]['item'][ids].tobytes()
      steps.append(step)
    thread.join()
  assert len(set(steps)) > 3 and sorted(steps) == steps


def test_readers_are_told_of_rows_of_two_steps(
  run, follower, copy, monkeypatch
):
  run.line(1, 2)
  follower.update()
  reader, put, found = ServingCopy(copy), RowWriter.put, []

  def reading(writer, chunk):
    put(writer, chunk)
    found.append(reader.read('item', [0, 1])[1])

  monkeypatch.setattr(RowWriter, 'put', reading)
  run.delta(3)
  follower.update()
  assert set(found) == {None} and reader.read('item', [0])[1] == 3


def test_a_reader_without_a_copy(tmp_path):
  with pytest.raises(FileNotFoundError, match='holds no tables yet'):
    ServingCopy(tmp_path)


# --- as a program


def test_once(run, copy, capsys):
  def once(*more):
    code = follow.main([str(run.directory.parent), str(copy), '--once', *more])
    return code, capsys.readouterr()

  code, said = once()
  assert code == 1 and 'nothing is published' in said.out
  run.line(1, 2)
  code, said = once('--tables=item,user')
  assert code == 0 and said.out.count('rows') == 2
  code, said = once('--tables=nothing')
  assert code == 2 and "no table 'nothing'; there are: item" in said.err
  run.delta(3)
  change(file_of(run, 3, 'state'))
  code, said = once()
  assert code == 1 and 'step 3 is passed over, damaged' in said.out
  assert ServingCopy(copy).step == 2


@pytest.mark.parametrize(
  'how, status', [(signal.SIGINT, 130), (signal.SIGTERM, 0)]
)
def test_follows_until_it_is_told_to_end(run, copy, how, status):
  module = 'genrec_jax.checkpoint.follow'
  command = (
    'import os, runpy, sys\n'
    'leave = os._exit\n'
    'def check(status):\n'
    '  print("JAX was imported" if "jax" in sys.modules else "", flush=True)\n'
    '  leave(status)\n'
    'os._exit = check\n'
    f'sys.argv[1:] = [{str(run.directory)!r}, {str(copy)!r}, "--poll=0.01"]\n'
    f'runpy.run_module({module!r}, run_name="__main__")\n'
  )
  process = subprocess.Popen(
    [sys.executable, '-c', command],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )

  def line():
    while 'half-written' in (found := process.stdout.readline()):
      pass  # it has looked while a step was being saved
    return found

  with process:
    try:
      assert 'nothing is published' in line()
      run.base(1)
      assert line().startswith('step 1: base, 68 rows')
      run.delta(2)
      assert line().startswith('step 2: delta, ')
      process.send_signal(how)
      out, errors = process.communicate(timeout=30)
    finally:
      process.kill()
  assert process.returncode == status and not out.strip()
  assert errors.endswith('; to go on, start it again\n')
  assert_is(ServingCopy(copy), run.whole[2])


def test_follow_stops_when_asked(run, follower):
  run.line(1)
  calls = iter([False, False, False, True, True])
  start = time.monotonic()
  follower.follow(poll_s=60, stop=lambda: next(calls))
  assert follower.step == 1 and time.monotonic() - start < 30


@pytest.mark.parametrize('bad', [-1, 20_000, 1.5, True, 'a'])
def test_an_id_that_is_no_row_is_named(run, follower, copy, bad):
  run.line(1)
  follower.update()
  rows = len(follower.table('item'))
  wanted = f"table 'item' has no row {bad!r}; .* from 0 to {rows - 1}$"
  for read in (ServingCopy(copy).read, follower.rows):
    with pytest.raises(ValueError, match=wanted):
      read('item', [bad])
    read('item', [])
    read('item', np.array([0, rows - 1], np.uint8))


NAMES = {
  name: (4, 2, 'float32') for name in ('price€', 'price ac', 'süß', '😀')
}


def test_tables_with_any_name_have_files_of_their_own(tmp_path, log):
  run = Published(tmp_path / 'run', tables=NAMES).line(1)
  run.save(2, 'delta', {'price ac': np.array([1])})
  with Follower(run.directory, tmp_path / 'copy', log=log) as follower:
    assert follower.update() == [1, 2]
    assert_is(follower, run.whole[2])
    files = {about['file'] for about in follower.tables.values()}
    assert len(files) == len(NAMES)


def test_files_named_by_an_earlier_version_are_read(tmp_path, log, monkeypatch):
  one = {name: NAMES[name] for name in ('price€', 'süß', '😀')}
  with monkeypatch.context() as patch:
    patch.setattr(row_files, 'file_name', row_files.former_file_name)
    run = Published(tmp_path / 'run', tables=one).line(1)
    with Follower(run.directory, tmp_path / 'copy', log=log) as follower:
      assert follower.update() == [1]
  assert (run.directory / '1' / 'rows' / 'price%20ac').is_dir()
  run.delta(2)
  with Follower(run.directory, tmp_path / 'copy', log=log) as follower:
    assert follower.update() == [2]
    assert_is(follower, run.whole[2])
    assert ServingCopy(tmp_path / 'copy').step == 2
