"""Sorting Taobao's log on disks that are full or change what they hold."""

import errno
import os
import resource
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.data.ranking import column_files, taobao, taobao_sort
from tests.data.ranking.behaviour_files import make_events, write_events

KINDS = {'a': np.dtype(np.int64), 'b': np.dtype(np.uint8)}


@pytest.fixture
def path(tmp_path):
  rows = make_events(3, [40, 60, 12, 33, 80, 25] * 5, items=60, seconds=9)
  return write_events(tmp_path / 'log.csv', rows)


def sort(path, scratch, memory_mb=0):
  """The columns of all events."""
  with taobao_sort.sort_log(
    path, scratch, memory_mb=memory_mb, log=lambda _: 0
  ) as log:
    return log.read_events(0, int(log.offsets[-1]))


def cut(path, size):
  os.truncate(path, path.stat().st_size - size)


def flip(path, place):
  data = bytearray(path.read_bytes())
  data[place] ^= 0x40
  path.write_bytes(data)


def swap(path):
  other = path.with_name('run-2')
  keep = path.read_bytes()
  path.write_bytes(other.read_bytes())
  other.write_bytes(keep)


DAMAGE = [
  (lambda run: cut(run, 1), '527 bytes where 528 were written'),
  (lambda run: cut(run, 528), ' 0 bytes where 528 were written'),
  (lambda run: flip(run, 3), "column 'user' of sorted events is not what"),
  (lambda run: flip(run, 16 * 16 + 1), "column 'item' of sorted events"),
  (lambda run: flip(run, -1), "column 'behaviour' of sorted events"),
  (swap, 'of sorted events is not what was written; run the command again'),
  (lambda run: run.unlink(), r'sorted events cannot be read \(No such file'),
]


@pytest.mark.parametrize(('damage', 'message'), DAMAGE)
@pytest.mark.parametrize('fan_in', [2, 64])
def test_runs_that_change_are_refused(
  path, tmp_path, monkeypatch, damage, message, fan_in
):
  monkeypatch.setattr(taobao_sort, '_FAN_IN', fan_in)
  write_sorted = taobao_sort._write_sorted

  def write_of_damaged(place, merger, runs, *rest):
    assert len(runs) > fan_in or fan_in == 64
    damage(runs[1].path)
    return write_sorted(place, merger, runs, *rest)

  monkeypatch.setattr(taobao_sort, '_write_sorted', write_of_damaged)
  with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
    sort(path, tmp_path / 's')
  assert 'run-' in str(error.value) and 'data.cache' in str(error.value)
  assert not list((tmp_path / 's').iterdir())


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda file: cut(file, 30), 'bytes where'),
    (lambda file: flip(file, 0), "sorted: the column 'item' of sorted"),
    (lambda file: file.unlink(), r'sorted: sorted events cannot be read'),
  ],
)
def test_a_sorted_file_that_changes_is_refused(path, tmp_path, damage, message):
  options = taobao.TaobaoOptions(history=5, train_quantile=0.5, memory_mb=0)
  with (
    pytest.raises((ValueError, FileNotFoundError), match=message),
    taobao.TaobaoClicks(path, options, tmp_path / 's', lambda _: 0) as clicks,
  ):
    assert list(clicks.read_chunks(['item'], 'train'))
    damage(next((tmp_path / 's').glob('*/sorted')))
    list(clicks.read_chunks(['item'], 'train'))


class FullDisk:
  """A file that has no space for some of its writes, as of a full disk."""

  def __init__(self, file, fails):
    self._file, self._fails = file, fails

  def seek(self, place):
    return self._file.seek(place)

  def write(self, view):
    if next(self._fails):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return self._file.write(view)

  def close(self):
    self._file.close()


@pytest.mark.parametrize('number', [0, 7, 300])
def test_a_write_that_fails_once_is_an_error(
  path, tmp_path, monkeypatch, number
):
  # The space may be there again right after the write that it was missing for.
  fails = iter([*[False] * number, True, *[False] * 10**5])
  named = column_files._NamedErrors
  monkeypatch.setattr(
    column_files,
    '_NamedErrors',
    lambda file, place: named(FullDisk(file, fails), place),
  )
  with pytest.raises(OSError, match='data.cache to a directory') as error:
    sort(path, tmp_path / 's')
  assert error.value.errno == errno.ENOSPC
  assert str(tmp_path / 's') in str(error.value)
  assert not list((tmp_path / 's').iterdir())


@pytest.mark.parametrize('limit', [100, 500, 5_000, 20_000])
def test_files_beyond_a_limit_are_an_error(path, tmp_path, limit):
  # A run of 16 rows has 528 bytes, the sorted file about 26,000, so that the
  # end of a file or its middle is what cannot be written.
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    with pytest.raises(OSError, match='make space there, or set data.ca') as e:
      sort(path, tmp_path / 's')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)
  assert e.value.errno == errno.EFBIG
  assert str(tmp_path / 's') in str(e.value)


def test_a_cache_that_cannot_be_made_is_named(path, tmp_path):
  (tmp_path / 'file').write_text('')
  for place in (tmp_path / 'file', tmp_path / 'file' / 'below'):
    with pytest.raises(OSError, match='set data.cache to a directory') as e:
      sort(path, place)
    assert str(place) in str(e.value)


@settings(max_examples=60, deadline=None)
@given(
  st.lists(st.integers(0, 60), max_size=6),
  st.tuples(st.integers(0, 400), st.integers(0, 400)),
  st.integers(0, 10**6),
)
def test_column_files_give_what_was_written(
  tmp_path_factory, sizes, bounds, place
):
  before, column_files.BLOCK = column_files.BLOCK, 16
  try:
    rng, rows = np.random.default_rng(place), sum(sizes)
    pieces = [
      {'a': rng.integers(-99, 99, size), 'b': rng.integers(9, size=size)}
      for size in sizes
    ]
    path = tmp_path_factory.mktemp('x') / 'file'
    with column_files.write_columns(path, KINDS, rows) as writer:
      for piece in pieces:
        writer.add(piece)
    written = writer.finish()
    first, stop = sorted(min(bound, rows) for bound in bounds)
    with written.open() as file:
      found = written.read(file, first, stop)
    for name, kind in KINDS.items():
      wanted = np.concatenate([[], *(piece[name] for piece in pieces)])
      assert found[name].tolist() == wanted[first:stop].tolist()
      assert found[name].dtype == kind
    if rows:
      flip(path, place % path.stat().st_size)
      with (
        pytest.raises(ValueError, match='is not what was written'),
        written.open() as file,
      ):
        written.read(file, 0, rows)
  finally:
    column_files.BLOCK = before


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('7,9999999999999999999,9,pv,5', 'column 1: the item .* is too large for'),
    ('-9999999999999999999,8,9,pv,5', 'column 0: the user .* is too small for'),
    ('7,8,9,pv,9999999999999999999.0', 'column 4: the time .* is too large'),
    ('7,8,9,pv,1099511627776', 'column 4: the time .* not milliseconds; mend'),
    ('7,8,09999999999999999999,pv,5', 'column 2: the category .* is no whole'),
  ],
)
def test_numbers_that_are_too_large_are_refused(tmp_path, line, message):
  path = tmp_path / 'log.csv'
  path.write_text(f'1,2,3,pv,1099511627775\n{line}\n')
  with pytest.raises(ValueError, match=f'log.csv, line 2, {message}'):
    sort(path, tmp_path / 's')


@pytest.mark.parametrize(
  ('lengths', 'options', 'split', 'message'),
  [
    ([5] * 3, {}, 'train', 'users with 11 events or more, of whom the log has '
     '0 among 4 users, .*; give a log whose users have more events'),
    ([30] * 3, {'most': 10}, 'valid', 'the log has 3 among 4 users, .*; set '
     'data.taobao.most, which is 10, to 11 or more'),
    ([30] * 3, {'train_quantile': 0.01}, 'train', 'the log has 3 among 4 '
     'users, and this split 0 among [01]; raise data.taobao.train_quantile'),
    ([30] * 3, {'valid_share': 1e-9}, 'valid', 'and this split 0 among 0; '
     'raise data.taobao.valid_share'),
    ([30] * 3, {'train_quantile': 0.99}, 'test', 'users with 2 events or more, '
     '.* this split 0 among 0; lower data.taobao.train_quantile'),
  ],
)  # fmt: skip
def test_a_split_without_examples_says_what_to_change(
  tmp_path, lengths, options, split, message
):
  rows = make_events(0, lengths, seconds=10**6)
  path = write_events(tmp_path / 'log.csv', rows)
  clicks = taobao.TaobaoClicks(
    path, taobao.TaobaoOptions(**options), tmp_path / 's', lambda _: 0
  )
  with pytest.raises(
    ValueError,
    match=f'log.csv, {split} split: holds no rows, since .*{message}',
  ):
    next(clicks.read_chunks(['user'], split))
