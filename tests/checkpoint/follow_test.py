"""A copy that follows what is published, against whole saves of each step."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from genrec_jax.checkpoint import chunks, follow, manifest, row_files
from genrec_jax.checkpoint.chunks import Chunk, Encoding
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.serving_copy import ServingCopy
from tests.checkpoint.published import TABLES, Published, assert_is


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch):
  """Nothing here is about what the disk has; waiting for it takes long."""
  monkeypatch.setattr(os, 'fsync', lambda file: None)


@pytest.fixture
def run(tmp_path):
  return Published(tmp_path / 'run' / 'published')


@pytest.fixture
def copy(tmp_path):
  return tmp_path / 'copy'


@pytest.fixture
def follower(tmp_path, copy, log, run):
  with Follower(tmp_path / 'run', copy, log=log) as f:
    yield f


def change(path, how='flip'):
  raw = bytearray(path.read_bytes())
  if how == 'flip':
    raw[len(raw) // 2] ^= 1
  path.write_bytes(raw[: len(raw) // 2] if how == 'cut' else raw)


def files(run, step, kind):
  """Some of the files of a step."""
  step_dir = run.directory / str(step)
  return {
    'rows': sorted(step_dir.rglob('*.npz'))[3],
    'state': step_dir / 'state' / 'd',
    'manifest': step_dir / manifest.NAME,
  }[kind]


# --- what is applied


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


# --- what is not applied


def test_half_written_steps_are_waited_for(run, follower, log):
  run.line(1, 2)
  written = files(run, 2, 'manifest')
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
  path = files(run, 3, kind)
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
  change(files(run, 3, kind))
  assert follower.update() == [] and set(follower.refused) == {3, 4}
  assert_is(follower, run.whole[2])
  run.base(5)
  assert follower.update() == [5] and not follower.refused
  assert_is(follower, run.whole[5])


def test_the_step_of_the_copy_may_be_damaged_later(run, follower):
  run.line(1, 2)
  follower.update()
  for kind in ('rows', 'manifest'):
    change(files(run, 2, kind))
    assert follower.update() == [] and follower.step == 2


def test_a_base_that_lacks_rows_is_refused(run, follower):
  rows = {n: np.arange(rows) for n, (rows, *_) in TABLES.items()}
  run.save(1, 'base', rows | {'user': np.arange(21)})
  assert follower.update() == []
  assert follower.refused[1] == 'damaged: it lacks 2 rows of table \'user\''


@pytest.mark.parametrize(
  'wrong',
  [
    Chunk('user', 0, np.arange(4), np.zeros((4, 4), 'float32'), {}),
    Chunk('item', 0, np.arange(38, 42), np.zeros((4, 6), 'float32'), {}),
    Chunk('item', 3, np.arange(4), np.zeros((4, 4), 'float32'), {}),
    Chunk('item', 0, np.arange(4), np.zeros((4, 6), 'float64'), {}),
  ],
)
def test_rows_that_do_not_fit_are_refused(run, follower, wrong):
  run.line(1, 2)
  path = files(run, 2, 'rows')
  path.write_bytes(chunks.to_bytes(wrong, Encoding()))
  body = manifest.read(path.parents[2])
  files(run, 2, 'manifest').unlink()
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
  reader, put, found = ServingCopy(copy), follow.copy_writer._put, []

  def reading(arrays, chunk):
    put(arrays, chunk)
    found.append(reader.read('item', [0, 1])[1])

  monkeypatch.setattr(follow.copy_writer, '_put', reading)
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
  change(files(run, 3, 'state'))
  code, said = once()
  assert code == 1 and 'step 3 is passed over, damaged' in said.out
  assert ServingCopy(copy).step == 2


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM])
def test_follows_until_it_is_told_to_end(run, copy, how):
  module = 'genrec_jax.checkpoint.follow'
  command = (
    'import runpy, sys\n'
    f'sys.argv[1:] = [{str(run.directory)!r}, {str(copy)!r}, "--poll=0.01"]\n'
    f'try: runpy.run_module({module!r}, run_name="__main__")\n'
    'except SystemExit as e:\n'
    '  assert "jax" not in sys.modules, "JAX was imported"\n'
    '  raise'
  )
  process = subprocess.Popen(
    [sys.executable, '-c', command], stdout=subprocess.PIPE, text=True
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
      out, _ = process.communicate(timeout=30)
    finally:
      process.kill()
  assert process.returncode == 0 and out.endswith('start it again\n')
  assert_is(ServingCopy(copy), run.whole[2])


def test_follow_stops_when_asked(run, follower):
  run.line(1)
  calls = iter([False, False, False, True, True])
  start = time.monotonic()
  follower.follow(poll_s=60, stop=lambda: next(calls))
  assert follower.step == 1 and time.monotonic() - start < 30


# --- killed


@pytest.fixture(scope='module')
def processes():
  """Starts processes in milliseconds, without JAX."""
  import multiprocessing

  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(['grain', 'genrec_jax.checkpoint.full'])
  return context


# What an update does with a base and two deltas, and at which call of what
# function it is killed; the step whose rows are left to the next follower.
PHASES = {
  'half a base': ('copy_writer._put', 5, None),
  'a base, not yet on the disk': ('copy_writer.Building.sync', 1, None),
  'tables that no position names': ('storage.put', 1, None),
  'tables just named': ('copy_writer.Writer._remove_others', 2, 2),
  'half of a delta received': ('row_files.decoded', 35, 2),
  'a delta received, without its manifest': ('storage.put', 2, 2),
  'none of its rows applied': ('copy_writer.Writer._apply', 1, 4),
  'half of its rows applied': ('copy_writer._put', 36, 4),
  'rows applied, not the position': ('storage.put', 3, 4),
  'position written, delta still there': ('shutil.rmtree', 3, 4),
}


def die_at(name, nth):
  """Makes this process kill itself at the nth call of a function."""
  from genrec_jax.checkpoint import copy_writer, storage

  parts = {
    'copy_writer': copy_writer,
    'storage': storage,
    'row_files': row_files,
    'shutil': shutil,
  }
  owner, *names, last = name.split('.')
  owner = parts[owner]
  for part in names:
    owner = getattr(owner, part)
  original, calls = getattr(owner, last), 0

  def wrapper(*args, **kwargs):
    nonlocal calls
    calls += 1
    if calls == nth:
      os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)

  setattr(owner, last, wrapper)


def follow_to_death(source, copy, later, phase):
  die_at(*PHASES[phase][:2])
  with Follower(source, copy, log=lambda line: None) as follower:
    follower.update()
    pathlib.Path(later).rename(source / '4')
    follower.update()
    os._exit(0)


@pytest.mark.parametrize('phase', PHASES)
def test_killed_in_a_phase_of_an_update(processes, run, copy, tmp_path, phase):
  run.line(1, 2, 4)
  later = tmp_path / 'later'
  (run.directory / '4').rename(later)
  process = processes.Process(
    target=follow_to_death,
    args=(run.directory, copy, later, phase),
    daemon=True,
  )
  process.start()
  process.join(60)
  assert process.exitcode == -signal.SIGKILL
  wanted = PHASES[phase][-1]
  with Follower(tmp_path / 'gone', copy, log=lambda line: None) as alone:
    assert alone.step == wanted  # with no help of the source
    if wanted:
      assert_is(alone, run.whole[wanted])
      reader = ServingCopy(copy)
      assert_is(reader, run.whole[wanted])
      assert reader.read('item', [0])[1] == wanted
  if later.exists():
    later.rename(run.directory / '4')
  with Follower(run.directory, copy, log=lambda line: None) as again:
    again.update()
    assert_is(again, run.whole[4])
  assert len([p for p in copy.iterdir() if p.is_dir()]) == 1


def follow_for_ever(source, copy, pipe):
  os.fsync = lambda file: None
  with Follower(source, copy, log=pipe.send) as follower:
    follower.follow(poll_s=0.002)


@pytest.mark.parametrize(
  'trials, seed', [(8, 0), pytest.param(200, 1, marks=pytest.mark.slow)]
)
def test_killed_at_random_moments(processes, tmp_path, copy, trials, seed):
  rng = np.random.default_rng(seed)
  tables = {'item': (6000, 12, 'float32'), 'user': (3000, 8, 'float32')}
  run = Published(tmp_path / 'run', seed=seed, tables=tables).line(0)
  step, interrupted = 0, 0
  for _ in range(trials):  # each goes on where the one before ended
    for _ in range(3):
      step += 1
      run.base(step) if rng.random() < 0.1 else run.delta(step)
    parent, child = processes.Pipe(duplex=False)
    process = processes.Process(
      target=follow_for_ever, args=(run.directory, copy, child), daemon=True
    )
    process.start()
    child.close()
    for _ in range(rng.integers(1, 3)):  # steps it has applied
      assert parent.poll(60), 'the follower does nothing'
      parent.recv()
    time.sleep(rng.uniform(0, 0.15))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    parent.close()
    lines = []
    with Follower(tmp_path / 'gone', copy, log=lines.append) as alone:
      interrupted += 'after an interruption' in '\n'.join(lines)
      if alone.step is not None:
        assert_is(alone, run.whole[alone.step])
        assert ServingCopy(copy).read('item', [0])[1] == alone.step
  with Follower(run.directory, copy, log=lambda line: None) as last:
    last.update()
    assert_is(last, run.whole[step])
  print(f'{trials} kills, {interrupted} of them within a delta')
