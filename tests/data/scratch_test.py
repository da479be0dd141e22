"""Directories that several threads and processes make at once."""

import os
import socket
import subprocess
import sys
import time

import pytest

from genrec_jax.data import scratch


def test_blocks_at_once_have_directories_of_their_own(tmp_path):
  out = tmp_path / 'out'
  with scratch.staged_directory(out) as first:
    (first / 'a').write_text('first')
    with pytest.raises(FileExistsError, match='out exists already; choose an'):
      with scratch.staged_directory(out) as second:
        (second / 'a').write_text('second')
        first.rename(out)  # as if the other one ended in the meantime
    assert (out / 'a').read_text() == 'first'
    out.rename(first)
  assert [x.name for x in tmp_path.iterdir()] == ['out']
  with scratch.staged_directory(out, 'a') as third:  # the same: that stays
    (third / 'a').write_text('third')
  assert (out / 'a').read_text() == 'first'
  assert [x.name for x in tmp_path.iterdir()] == ['out']


def test_what_dead_processes_left_is_removed(tmp_path):
  code = 'import os; print(os.getpid())'
  dead = subprocess.check_output([sys.executable, '-c', code], text=True)
  stem = f'out.partial-{socket.gethostname()}-'
  leftovers = [
    f'{stem}{dead.strip()}',
    f'{stem}{dead.strip()}_5_0',
    f'{stem}{os.getpid()}_5_0',  # an earlier process of this number
  ]
  others = [f'{stem}{os.getppid()}_5_0', f'{stem}x-{dead.strip()}_5_0']
  for name in leftovers + others:
    (tmp_path / name).mkdir()
  with scratch.staged_directory(tmp_path / 'out'):
    assert not any((tmp_path / name).exists() for name in leftovers)
  assert {x.name for x in tmp_path.iterdir()} == {'out', *others}


def test_processes_of_other_containers_are_believed_for_a_day(tmp_path):
  """Their numbers say nothing here, though the host has the same name."""
  code = 'import os; print(os.getpid())'
  dead = subprocess.check_output([sys.executable, '-c', code], text=True)
  stem = f'out.partial-{socket.gethostname()}-'
  here = os.stat('/proc/self/ns/pid').st_ino
  working = [f'{stem}{dead.strip()}_5_0_7', f'{stem}{os.getpid()}_5_0_7']
  forgotten = f'{stem}{os.getppid()}_5_0_7'
  written = f'{stem}{os.getpid()}_6_0_7'
  ours = f'{stem}{os.getpid()}_5_0_{here}'
  for name in [*working, forgotten, written, ours]:
    (tmp_path / name).mkdir()
  (tmp_path / written / 'part').write_text('')
  for name in (forgotten, written):
    os.utime(tmp_path / name, (0, time.time() - 90_000))
  with scratch.staged_directory(tmp_path / 'out') as work:
    assert work.name.endswith(f'_{here}')
  left = {x.name for x in tmp_path.iterdir()}
  assert left == {'out', *working, written}


def test_a_directory_is_replaced_whole(tmp_path):
  for text in ('first', 'second'):
    with scratch.replaced_directory(tmp_path / 'items') as partial:
      partial.mkdir()
      (partial / 'a').write_text(text)
  assert (tmp_path / 'items' / 'a').read_text() == 'second'
  with pytest.raises(OSError, match='no room'):
    with scratch.replaced_directory(tmp_path / 'items') as partial:
      partial.mkdir()
      raise OSError('no room')
  assert (tmp_path / 'items' / 'a').read_text() == 'second'
  assert [x.name for x in tmp_path.iterdir()] == ['items']


def test_a_file_replaces_another_when_it_is_whole(tmp_path):
  path = tmp_path / 'a[1].csv'
  path.write_text('old')
  with pytest.raises(RuntimeError):
    with scratch.replaced_file(path) as partial:
      partial.write_text('half')
      raise RuntimeError
  assert path.read_text() == 'old'
  with scratch.replaced_file(path) as partial:
    partial.write_text('new')
    assert path.read_text() == 'old'
  assert path.read_text() == 'new'
  assert list(tmp_path.iterdir()) == [path]


def test_a_killed_process_leaves_no_file_for_ever(tmp_path):
  path = tmp_path / 'a[1].csv'
  killed = (
    'import os, pathlib, sys\n'
    'from genrec_jax.data import scratch\n'
    'with scratch.replaced_file(pathlib.Path(sys.argv[1])) as partial:\n'
    '  partial.write_text("half")\n'
    '  os.kill(os.getpid(), 9)\n'
  )
  subprocess.run([sys.executable, '-c', killed, path])
  (left,) = tmp_path.iterdir()
  assert left.name.startswith('.a[1].csv.') and left.stat().st_mode & 0o77 == 0
  with scratch.replaced_file(path) as partial:
    partial.write_text('new')
  assert list(tmp_path.iterdir()) == [path]


def test_a_number_that_no_process_has_is_of_none(tmp_path):
  left = tmp_path / f'.a.csv.{socket.gethostname()}-{"9" * 20}'
  left.mkdir()
  with scratch.replaced_file(tmp_path / 'a.csv') as partial:
    partial.write_text('new')
  assert not left.exists()
