import json
import os
import threading
import time

import jax
import numpy as np
import pytest

from genrec_jax.data import stream, vocab

COLUMNS = dict(user='user', item='item', time='time')
ITEMS = vocab.Vocab(np.arange(1, 21))


def quiet(_):
  pass


def put(directory, name, seed, events=60, users=8):
  """A part appears the way parts shall appear."""
  rng = np.random.default_rng(seed)
  rows = zip(
    rng.integers(0, users, events),
    rng.integers(1, 21, events),
    rng.integers(0, 100, events) + 1000 * seed,
    strict=True,
  )
  text = 'user,item,time\n' + ''.join(f'{u},{i},{t}\n' for u, i, t in rows)
  (directory / 'unfinished').write_text(text)
  (directory / 'unfinished').rename(directory / name)


def batches(directory, **changed):
  options = dict(
    columns=COLUMNS,
    item_vocab=ITEMS,
    batch_size=3,
    max_len=5,
    poll_s=0.01,
    idle_s=0.0,
    log=quiet,
  )
  return stream.stream_batches(directory, **(options | changed))


def sequences(found):
  """(items and targets) of every sequence, by a loop."""
  out = []
  for batch in found:
    start = 0
    events = batch.jagged['events']
    for n in events.lengths.tolist():
      if n:
        stop = start + n
        out.append([*events['item'][start:stop], events['next_item'][stop - 1]])
        start = stop
  return [list(map(int, s)) for s in out]


def expected_sequences(paths, max_len):
  out = []
  for path in paths:
    users = {}
    for line in path.read_text().splitlines()[1:]:
      user, item, moment = map(int, line.split(','))
      users.setdefault(user, []).append((item, moment))
    for user in sorted(users):
      events = [i for i, _ in sorted(users[user], key=lambda e: e[1])]
      end = len(events) - 1
      while end > 0:
        out.append(events[max(0, end - max_len) : end + 1])
        end -= max_len
  return out


def test_parts_in_order_of_names_equal_a_loop(tmp_path):
  for i in (2, 0, 1):
    put(tmp_path, f'part-{i}.csv', seed=i)
  found = list(batches(tmp_path))
  paths = [tmp_path / f'part-{i}.csv' for i in range(3)]
  assert sequences(found) == expected_sequences(paths, 5)
  assert {b.jagged['events'].lengths.shape for b in found} == {(3,)}


def test_new_parts_are_met_while_the_stream_runs(tmp_path):
  put(tmp_path, 'a.csv', 0)
  it = iter(batches(tmp_path, idle_s=None))
  first = [next(it) for _ in range(3)]

  def later():
    time.sleep(0.05)
    put(tmp_path, 'b.csv', 1)

  thread = threading.Thread(target=later)
  thread.start()
  count = len(expected_sequences([tmp_path / 'a.csv'], 5)) // 3 + 3
  first += [next(it) for _ in range(count - 3)]
  thread.join()
  it.close()
  paths = [tmp_path / 'a.csv', tmp_path / 'b.csv']
  found = sequences(first)
  assert found == expected_sequences(paths, 5)[: len(found)]
  assert len(found) > len(expected_sequences(paths[:1], 5))


def test_stop_ends_a_waiting_stream(tmp_path):
  put(tmp_path, 'a.csv', 0)
  asked = []

  def stop():
    asked.append(1)
    return len(asked) > 3

  assert list(batches(tmp_path, idle_s=None, stop=stop)) and len(asked) == 4


def test_resume_is_exact_at_every_batch(tmp_path):
  for i in range(3):
    put(tmp_path, f'part-{i}.csv', seed=i)
  it = iter(batches(tmp_path))
  states, found = [it.get_state()], []
  for batch in it:
    found.append(batch)
    states.append(json.loads(json.dumps(it.get_state())))
  assert len(found) > 9
  for done, state in enumerate(states):
    again = iter(batches(tmp_path))
    again.set_state(state)
    assert again.get_state() == state
    rest = list(again)
    assert len(rest) == len(found) - done
    for a, b in zip(rest, found[done:], strict=True):
      jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_stream_that_ended_goes_on_when_a_part_appears(tmp_path):
  put(tmp_path, 'a.csv', 0)
  it = iter(batches(tmp_path))
  list(it)
  put(tmp_path, 'b.csv', 1)
  expected = expected_sequences([tmp_path / 'b.csv'], 5)
  again = iter(batches(tmp_path))
  again.set_state(it.get_state())
  assert sequences(it) == expected == sequences(again)


def taken(tmp_path, count=3):
  """A stream that stands within part-1."""
  for i in range(count):
    put(tmp_path, f'part-{i}.csv', seed=i)
  it = iter(batches(tmp_path))
  while it.get_state()['current'] != 'part-1.csv':
    next(it)
  return it.get_state()


def resumed(tmp_path, state, **changed):
  it = iter(batches(tmp_path, **changed))
  it.set_state(state)
  return list(it)


def test_a_part_that_changed_is_refused(tmp_path):
  state = taken(tmp_path)
  put(tmp_path, 'part-0.csv', seed=9)
  with pytest.raises(ValueError, match='part-0.csv is not the file that was'):
    resumed(tmp_path, state)
  put(tmp_path, 'part-0.csv', seed=0)  # the same content again
  assert resumed(tmp_path, state)


def test_a_part_that_sorts_before_taken_ones_is_refused(tmp_path):
  state = taken(tmp_path)
  put(tmp_path, 'part-00.csv', seed=9)
  with pytest.raises(ValueError, match='part-00.csv sorts before part-1.csv'):
    resumed(tmp_path, state)
  # Within one run too.
  (tmp_path / 'part-00.csv').unlink()
  it = iter(batches(tmp_path))
  it.set_state(state)
  next(it)
  put(tmp_path, 'part-00.csv', seed=9)
  with pytest.raises(ValueError, match='part-00.csv sorts before part-1.csv'):
    list(it)


def test_used_up_parts_may_be_deleted_but_not_the_current_one(tmp_path):
  state = taken(tmp_path)
  whole = resumed(tmp_path, state)
  (tmp_path / 'part-0.csv').unlink()
  assert len(resumed(tmp_path, state)) == len(whole)
  it = iter(batches(tmp_path))
  it.set_state(state)
  list(it)
  assert set(it.get_state()['taken']) == {'part-1.csv', 'part-2.csv'}
  (tmp_path / 'part-1.csv').unlink()
  with pytest.raises(FileNotFoundError, match='part-1.csv: the stream stopped'):
    resumed(tmp_path, state)


def test_a_part_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
  put(tmp_path, 'a.csv', 0)
  read = stream.readers.read_csv

  def slow(paths, *args, **options):
    yield from read(paths, *args, **options)
    with open(paths[0], 'a') as f:
      f.write('1,2,3\n')
    os.utime(paths[0], ns=(1, 1))

  monkeypatch.setattr(stream.readers, 'read_csv', slow)
  with pytest.raises(ValueError, match='a.csv changed while it was read'):
    next(iter(batches(tmp_path)))


def test_parts_without_sequences_are_passed_over(tmp_path):
  (tmp_path / 'a.csv').write_text('user,item,time\n')
  (tmp_path / 'b.csv').write_text('user,item,time\n1,2,3\n2,2,3\n')
  put(tmp_path, 'c.csv', 0)
  said = []
  found = list(batches(tmp_path, log=said.append))
  assert sequences(found) == expected_sequences([tmp_path / 'c.csv'], 5)
  assert said[0] == 'stream: a.csv: 0 events of 0 users'


def test_unknown_items_are_counted_or_refused(tmp_path):
  (tmp_path / 'a.csv').write_text(
    'user,item,time\n1,2,3\n1,99,4\n1,5,5\n1,98,6\n'
  )
  said = []
  found = list(batches(tmp_path, log=said.append))
  assert sequences(found) == [[2, 5]]
  assert said == [
    'stream: a.csv: 4 events of 1 users, 2 of unknown items skipped'
  ]
  with pytest.raises(ValueError, match='item 99 is not in the vocabulary'):
    list(batches(tmp_path, unknown='error'))


def test_a_damaged_part_is_named_and_nothing_is_lost(tmp_path):
  put(tmp_path, 'a.csv', 0)
  (tmp_path / 'b.csv').write_text('user,item,time\n1,2,3\n1,x\n')
  it = iter(batches(tmp_path))
  found = []
  with pytest.raises(ValueError, match='b.csv, line 3: 2 fields'):
    for batch in it:
      found.append(batch)
  assert sequences(found) == expected_sequences([tmp_path / 'a.csv'], 5)
  (tmp_path / 'b.csv').write_text('user,item,time\n1,2,3\n1,4,5\n')
  assert sequences(it) == [[2, 4]]


def test_parquet_parts_and_parts_without_times(tmp_path):
  pa = pytest.importorskip('pyarrow')
  pq = pytest.importorskip('pyarrow.parquet')
  table = pa.table({'user': [1, 2, 1, 2], 'item': [4, 5, 6, 7]})
  pq.write_table(table, tmp_path / 'a.parquet')
  columns = dict(user='user', item='item')
  found = list(batches(tmp_path, pattern='*.parquet', columns=columns))
  assert sequences(found) == [[4, 6], [5, 7]]


def test_a_part_is_sorted_within_a_second(tmp_path):
  lines = [
    f'1,{item},{1_700_000_000_000 + 100 * item}' for item in range(5, 0, -1)
  ]
  whole = '1,6,1700000001000'
  text = '\n'.join(['user,item,time', whole, *lines])
  (tmp_path / 'a.csv').write_text(text)
  found = batches(tmp_path, time_unit='ms', max_len=8)
  assert sequences(found) == [[1, 2, 3, 4, 5, 6]]


def test_an_absent_directory_is_an_error(tmp_path):
  with pytest.raises(FileNotFoundError, match='x: no such directory'):
    next(iter(batches(tmp_path / 'x')))


def test_a_stream_feeds_the_usual_grain_transformations(tmp_path):
  for i in range(2):
    put(tmp_path, f'part-{i}.csv', seed=i)
  dataset = batches(tmp_path).map(
    lambda batch: int(batch.jagged['events'].lengths.sum())
  )
  it = iter(dataset)
  found, states = [], []
  for value in it:
    found.append(value)
    states.append(it.get_state())
  again = iter(dataset)
  again.set_state(states[2])
  assert list(again) == found[3:]


def test_a_stream_in_shards_is_the_same_stream(tmp_path):
  for i in range(2):
    put(tmp_path, f'part-{i}.csv', seed=i)
  whole = list(batches(tmp_path, batch_size=4))
  shards = list(batches(tmp_path, batch_size=4, shards=2))
  for a, b in zip(whole, shards, strict=True):
    np.testing.assert_array_equal(a.row, b.row)
    a, b = a.jagged['events'], b.jagged['events']
    np.testing.assert_array_equal(a.lengths, b.lengths)
    split, tokens = a.lengths[:2].sum(), a.lengths.sum()
    assert b.first.tolist() == [0, split]
    low, high = np.split(b['item'], 2)
    joined = np.concatenate([low[:split], high[: tokens - split]])
    np.testing.assert_array_equal(joined, a['item'][:tokens])


def test_a_stream_is_for_one_process(tmp_path):
  with pytest.raises(
    ValueError, match='train.batch_size is 3, .* a multiple of 2'
  ):
    batches(tmp_path, shards=2)
  with pytest.raises(ValueError, match='read by one process.* 1 of 2 shards'):
    batches(tmp_path, batch_size=4, shards=2, own=range(1))


def test_closing_ends_the_wait_for_a_part(tmp_path):
  it = iter(batches(tmp_path, idle_s=None))
  threading.Timer(0.05, it.close).start()
  assert next(it, None) is None


def test_the_state_does_not_grow_with_the_parts(tmp_path, monkeypatch):
  monkeypatch.setattr(stream, 'KEPT_PARTS', 3)
  for i in range(8):
    put(tmp_path, f'part-{i}.csv', seed=i)
  it = iter(batches(tmp_path))
  whole = list(it)
  state = it.get_state()
  assert sorted(state['taken']) == ['part-5.csv', 'part-6.csv', 'part-7.csv']
  assert state['older'] == 5
  # Every state on the way goes on exactly.
  it = iter(batches(tmp_path))
  for done in range(len(whole)):
    again = iter(batches(tmp_path))
    again.set_state(json.loads(json.dumps(it.get_state())))
    assert len(list(again)) == len(whole) - done
    next(it)


def test_a_late_part_before_all_that_are_remembered(tmp_path, monkeypatch):
  monkeypatch.setattr(stream, 'KEPT_PARTS', 3)
  for i in range(8):
    put(tmp_path, f'part-{i}.csv', seed=i)
  it = iter(batches(tmp_path))
  while it.get_state()['current'] != 'part-6.csv':
    next(it)
  state = it.get_state()
  (tmp_path / 'part-0.csv').unlink()  # as may be
  assert resumed(tmp_path, state)
  put(tmp_path, 'part-00.csv', seed=9)
  put(tmp_path, 'part-01.csv', seed=9)
  with pytest.raises(ValueError, match='5 parts that sort before part-4.csv'):
    resumed(tmp_path, state)


def test_a_state_of_an_earlier_version_with_all_parts(tmp_path, monkeypatch):
  for i in range(5):
    put(tmp_path, f'part-{i}.csv', seed=i)
  it = iter(batches(tmp_path))
  while it.get_state()['current'] != 'part-3.csv':
    next(it)
  state = it.get_state()
  assert state.pop('older') == 0
  monkeypatch.setattr(stream, 'KEPT_PARTS', 2)
  assert resumed(tmp_path, state)


def test_names_are_read_when_the_directory_has_changed(tmp_path, monkeypatch):
  put(tmp_path, 'a.csv', 0)
  reads = []
  monkeypatch.setattr(
    stream.os, 'scandir', lambda p, s=os.scandir: reads.append(p) or s(p)
  )
  directory = stream._Directory(tmp_path, '*.csv')
  # What has just changed may change again within the same tick.
  for _ in range(3):
    assert directory.list_names('').names == ['a.csv']
  assert len(reads) == 3
  os.utime(tmp_path, (1e9, 1e9))
  for _ in range(100):
    directory.list_names('')
  assert len(reads) == 4
  put(tmp_path, 'b.csv', 1)
  assert directory.list_names('').names == ['a.csv', 'b.csv']
  assert directory.list_names('b').before == 1


def test_parts_of_all_sizes_have_few_shapes(tmp_path):
  rng = np.random.default_rng(0)
  for i in range(24):
    users = np.repeat(np.arange(8), rng.integers(2, 400))
    rows = [f'{u},{3},{t}' for t, u in enumerate(users)]
    part = 'user,item,time\n' + '\n'.join(rows) + '\n'
    (tmp_path / f'part-{i:02}.csv').write_text(part)
  found = list(batches(tmp_path, batch_size=8, max_len=400))
  sizes = {b.jagged['events']['item'].shape[0] for b in found}
  assert len(sizes) <= 10 and len(found) >= 24
