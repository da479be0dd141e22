import subprocess
import sys

import numpy as np
import pytest

from benchmarks import event_log
from genrec_jax.data import convert, histories, readers, vocab


def quiet(_):
  pass


def log_of(n, seed=0, users=40, items=30, text=False, ties=20):
  rng = np.random.default_rng(seed)
  user = rng.integers(0, users, n)
  item = (items * rng.random(n) ** 2).astype(np.int64)  # some are rare
  if text:
    user, item = np.char.add('u', user.astype(str)), item.astype(str)
  return dict(
    user=user,
    item=item,
    time=rng.integers(0, ties, n),
    rating=rng.integers(1, 6, n).astype(np.float32),
  )


def chunks_of(log, size):
  n = len(log['user'])
  for a in range(0, n, size):
    part = {k: None if v is None else v[a : a + size] for k, v in log.items()}
    yield readers.Events(**part, where=lambda i, a=a: f'log, line {a + i + 1}')


def assert_same(a, b):
  for name in ('offsets', 'items', 'times', 'ratings'):
    np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
    if getattr(a, name) is not None:
      assert getattr(a, name).dtype == getattr(b, name).dtype
  assert a.users == b.users and a.vocab == b.vocab


def slowly(log, min_rating, min_item, min_user, item_ids=None):
  """{user: [(item, time, rating), ...]} by plain loops."""
  rows = list(zip(*(log[k].tolist() for k in log), strict=True))
  rows = [r for r in rows if min_rating is None or r[3] >= min_rating]
  if item_ids is not None:
    rows = [r for r in rows if r[1] in item_ids]
  users, items = {}, {}
  for user, item, *_ in rows:
    users[user] = users.get(user, 0) + 1
    items[item] = items.get(item, 0) + 1
  out = {}
  for user, item, time, rating in rows:
    if users[user] >= min_user and items[item] >= min_item:
      out.setdefault(user, []).append((item, time, rating))
  return {u: sorted(out[u], key=lambda e: e[1]) for u in sorted(out)}


def as_lists(h):
  ids = h.vocab.decode(h.items).tolist()
  return {
    user: list(
      zip(ids[a:b], h.times[a:b].tolist(), h.ratings[a:b].tolist(), strict=True)
    )
    for user, a, b in zip(
      h.users.ids.tolist(),
      h.offsets[:-1].tolist(),
      h.offsets[1:].tolist(),
      strict=True,
    )
  }


@pytest.mark.parametrize('text', [False, True])
@pytest.mark.parametrize('chunk, partition', [(7, 50), (100, 1), (1000, 10**6)])
@pytest.mark.parametrize(
  'min_rating, min_item, min_user', [(None, 0, 0), (2.0, 9, 0), (3.0, 14, 12)]
)
def test_conversion_equals_a_loop(
  tmp_path, monkeypatch, text, chunk, partition, min_rating, min_item, min_user
):
  monkeypatch.setattr(convert, 'SPILL_CHUNK', 64)
  log = log_of(700, text=text)
  h = convert.convert_log(
    chunks_of(log, chunk),
    tmp_path / 'h',
    min_rating=min_rating,
    min_item_events=min_item,
    min_user_events=min_user,
    partition_events=partition,
    log=quiet,
  )
  expected = slowly(log, min_rating, min_item, min_user)
  assert as_lists(h) == expected
  kept = sorted({e[0] for events in expected.values() for e in events})
  if not min_user:  # a dropped user's items stay in the vocabulary
    assert h.vocab.ids.tolist() == kept
  if min_item:
    assert len(h.vocab) < len(set(log['item'].tolist()))
  if (min_rating, min_item, min_user) == (None, 0, 0):
    assert_same(h, histories.from_arrays(**log))


@pytest.mark.parametrize('missing', ['time', 'rating'])
def test_absent_columns_stay_absent(tmp_path, missing):
  log = log_of(300) | {missing: None}
  h = convert.convert_log(chunks_of(log, 90), tmp_path / 'h', log=quiet)
  assert_same(h, histories.from_arrays(**log))


def test_a_given_vocabulary(tmp_path):
  items = vocab.Vocab(np.array([29, 3, 0, 77]))
  log = log_of(300)
  with pytest.raises(ValueError, match=r'log, line \d+: item \d+ is not in'):
    convert.convert_log(
      chunks_of(log, 90), tmp_path / 'h', item_vocab=items, log=quiet
    )
  assert not list(tmp_path.iterdir())
  said = []
  h = convert.convert_log(
    chunks_of(log, 90),
    tmp_path / 'h',
    item_vocab=items,
    unknown='skip',
    log=said.append,
  )
  assert h.vocab == items
  assert as_lists(h) == slowly(log, None, 0, 0, {29, 3, 0})
  skipped = 300 - len(h.items)
  assert f'{skipped} skipped unknown item' in said[-1]


def test_the_error_names_the_line_of_the_unknown_item_after_filtering(tmp_path):
  log = dict(
    user=np.arange(5),
    item=np.array([1, 1, 1, 9, 1]),
    time=None,
    rating=np.array([1, 5, 1, 5, 5], np.float32),
  )
  with pytest.raises(ValueError, match='log, line 4: item 9 is not'):
    convert.convert_log(
      chunks_of(log, 5),
      tmp_path / 'h',
      item_vocab=vocab.Vocab(np.array([1])),
      min_rating=2,
      log=quiet,
    )


def test_conversion_happens_once(tmp_path):
  log = log_of(50)
  out = tmp_path / 'a' / 'h'
  first = convert.convert_log(
    chunks_of(log, 20), out, fingerprint='x', log=quiet
  )

  def unread():
    raise AssertionError('the source was read again')
    yield

  again = convert.convert_log(unread(), out, fingerprint='x', log=quiet)
  assert_same(first, again)
  for other in ('y', ''):
    with pytest.raises(ValueError, match='made from other files'):
      convert.convert_log(unread(), out, fingerprint=other, log=quiet)


def test_a_failed_conversion_leaves_nothing(tmp_path):
  def breaks():
    yield from chunks_of(log_of(50), 20)
    raise OSError('the disk went away')

  with pytest.raises(OSError, match='went away'):
    convert.convert_log(breaks(), tmp_path / 'h', log=quiet)
  assert not list(tmp_path.iterdir())


_KILLED = """
import os, signal, sys
from benchmarks import event_log
from genrec_jax.data import convert
where = sys.argv[2]
def chunks():
  chunks = event_log.generate_events(4000, 50, 40, chunk_rows=500)
  for i, chunk in enumerate(chunks):
    if where == 'read' and i == 5:
      os.kill(os.getpid(), signal.SIGKILL)
    yield chunk
if where == 'write':
  convert._Columns.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)
convert.convert_log(chunks(), sys.argv[1])
"""


@pytest.mark.parametrize('where', ['read', 'write'])
def test_a_killed_conversion_is_never_opened_and_is_cleared(tmp_path, where):
  out = tmp_path / 'h'
  killed = subprocess.run(
    [sys.executable, '-c', _KILLED, str(out), where], check=False
  )
  assert killed.returncode == -9
  assert not out.exists() and len(list(tmp_path.iterdir())) == 1
  events = event_log.generate_events(4000, 50, 40, chunk_rows=500)
  h = convert.convert_log(events, out, log=quiet)
  assert len(h.items) == 4000
  assert list(tmp_path.iterdir()) == [out]


def test_errors(tmp_path):
  def run(log, **options):
    convert.convert_log(
      chunks_of(log, 20), tmp_path / 'h', log=quiet, **options
    )

  log = log_of(50)
  with pytest.raises(ValueError, match="unknown must be 'error' or 'skip'"):
    run(log, unknown='drop')
  with pytest.raises(ValueError, match='min_rating needs a log with ratings'):
    run(log | {'rating': None}, min_rating=3)
  with pytest.raises(ValueError, match=r'no events remain of the 50 read \(50'):
    run(log, min_rating=6)
  with pytest.raises(ValueError, match='falls to min_item_events'):
    run(log, min_item_events=100)
  with pytest.raises(ValueError, match='no events remain of the 0 read'):
    convert.convert_log([], tmp_path / 'h', log=quiet)
  with pytest.raises(ValueError, match='times or ratings in some files'):
    mixed = [*chunks_of(log, 50), *chunks_of(log | {'time': None}, 50)]
    convert.convert_log(mixed, tmp_path / 'h', log=quiet)
  with pytest.raises(ValueError, match='integers in one place and as text'):
    mixed = [*chunks_of(log, 50), *chunks_of(log_of(50, text=True), 50)]
    convert.convert_log(mixed, tmp_path / 'h', log=quiet)
  assert not list(tmp_path.iterdir())


def test_progress_is_told(tmp_path, monkeypatch):
  monkeypatch.setattr(convert, 'LOG_SECONDS', 0.0)
  said = []
  convert.convert_log(
    chunks_of(log_of(50), 20), tmp_path / 'h', log=said.append
  )
  assert said[0] == 'reading: 20 events'
  assert said[-1] == 'converted 50 events: kept 50 of 25 users'
  assert 'writing columns: 50 events' in said


_PEAK = """
import sys, tempfile, pathlib
from benchmarks import event_log
from genrec_jax.data import convert
def anonymous():
  for line in open('/proc/self/status'):
    if line.startswith('RssAnon'):
      return int(line.split()[1]) / 1024
peak = 0.
def watch(chunks):
  for chunk in chunks:
    yield chunk
convert_records = convert._records
def note(*_):
  global peak
  peak = max(peak, anonymous())
convert._Progress.__call__ = note
grouped = convert.histories_lib.group_events
def watched(*a):
  out = grouped(*a)
  note()
  return out
convert.histories_lib.group_events = watched
with tempfile.TemporaryDirectory() as tmp:
  n = int(sys.argv[1])
  h = convert.convert_log(
    event_log.generate_events(n, 20_000, 5_000), pathlib.Path(tmp) / 'h',
    partition_events=1 << 18)
  assert len(h.items) == n
  note()
print('PEAK', peak)
"""


def _peak(events: int) -> float:
  done = subprocess.run(
    [sys.executable, '-c', _PEAK, str(events)],
    check=True,
    capture_output=True,
    text=True,
  )
  return float(done.stdout.rsplit('PEAK', 1)[1])


@pytest.mark.slow
@pytest.mark.skipif(
  not sys.platform.startswith('linux'), reason='reads /proc/self/status'
)
def test_memory_does_not_grow_with_the_log():
  small, large = _peak(1_000_000), _peak(4_000_000)
  assert large < small * 1.15, (small, large)


def test_equal_events_are_kept_and_told_or_dropped(tmp_path):
  """Equal in user, item and time; those of one item at other times are not."""
  log = log_of(3000, users=30, items=12, ties=40)
  rows = list(zip(*(log[k].tolist() for k in log), strict=True))
  first = {row[:3]: row for row in reversed(rows)}
  told = []
  kept = convert.convert_log(
    chunks_of(log, 700), tmp_path / 'keep', partition_events=500,
    log=told.append,
  )  # fmt: skip
  count = len(rows) - len(first)
  assert len(kept.items) == len(rows) and count > 100
  assert told[-2].startswith(f'{count:,} events have user, item and time')
  assert "data.duplicates='drop'" in told[-2]
  once = convert.convert_log(
    chunks_of(log, 700), tmp_path / 'drop', partition_events=500,
    duplicates='drop', log=told.append,
  )  # fmt: skip
  assert told[-2].endswith('dropped')
  firsts = sorted(first.values(), key=rows.index)
  columns = zip(log, zip(*firsts, strict=True), strict=True)
  alone = {name: np.array(column) for name, column in columns}
  expected = convert.convert_log(
    chunks_of(alone, 700), tmp_path / 'alone', log=told.append
  )
  assert 'earlier one' not in ''.join(told[-2:])
  assert_same(once, expected)


def test_without_times_nothing_is_a_duplicate(tmp_path):
  log = {**log_of(500), 'time': None}
  told = []
  convert.convert_log(chunks_of(log, 100), tmp_path / 'keep', log=told.append)
  assert 'earlier one' not in ''.join(told)
  with pytest.raises(ValueError, match='the log has no times'):
    convert.convert_log(
      chunks_of(log, 100), tmp_path / 'drop', duplicates='drop', log=quiet
    )
  with pytest.raises(ValueError, match="'keep' or 'drop'"):
    convert.convert_log(
      chunks_of(log, 100), tmp_path / 'x', duplicates='dorp', log=quiet
    )
