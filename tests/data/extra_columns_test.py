"""Extra columns of events: from files to the tokens of a batch."""

import hashlib
import json
import tracemalloc
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genrec_jax.data import (
  convert,
  extras,
  histories,
  pipeline,
  readers,
  splits,
  stream,
  vocab,
)
from tests.data.extras_cases import (
  ASKED,
  COLUMNS,
  config,
  load,
  log_of,
  quiet,
  write,
)
from tests.unsealing import unseal

# --- From files to columns, and to the tokens of a batch

rows_of_events = st.lists(
  st.tuples(
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(0, 9),
    st.sampled_from(['', 'buy', 'view', 'a,b', '7', 'ü']),
    st.integers(-5, 5),
    st.one_of(
      st.just(''), st.floats(-1024, 1024, width=32, allow_subnormal=False)
    ),
  ),
  min_size=1,
  max_size=30,
)


def plainly(rows):
  """Events of each user by time, as tuples of what is asked for."""
  kinds = sorted({row[3] or 'none' for row in rows})
  out = {}
  for user, item, time, action, rating, watched in rows:
    event = (
      item,
      time,
      {
        'action': kinds.index(action or 'none') + 1,
        'rating': rating,
        'seconds': time,
        'stars': rating,
        'watched': -1.0 if watched == '' else watched,
      },
    )
    out.setdefault(user, []).append(event)
  ordered = [
    event for u in sorted(out) for event in sorted(out[u], key=lambda e: e[1])
  ]
  return ordered, kinds


@settings(
  max_examples=40,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  rows=rows_of_events, chunk=st.integers(1, 7), partition=st.integers(1, 9)
)
def test_columns_are_those_of_a_plain_statement(
  tmp_path_factory, rows, chunk, partition
):
  tmp = tmp_path_factory.mktemp('x')
  asked = extras.build_extras(ASKED)
  path = write(tmp / 'x.csv', rows)
  chunks = readers.read_csv([path], COLUMNS, extras=asked, chunk_rows=chunk)
  h = convert.convert_log(
    chunks,
    tmp / 'h',
    extras=asked,
    partition_events=partition,
    log=quiet,
  )
  events, kinds = plainly(rows)
  assert h.extra_vocabs['action'].ids.tolist() == kinds
  assert set(h.extras) == set(ASKED) and h.path == tmp / 'h'
  for extra in asked:
    assert h.extras[extra.name].dtype == extra.dtype
    assert h.extras[extra.name].tolist() == [e[2][extra.name] for e in events]
  assert h.vocab.decode(h.items).tolist() == [e[0] for e in events]
  assert h.times.tolist() == [e[1] for e in events]


def test_parquet_gives_what_csv_gives(tmp_path):
  columns = {
    'user': pa.array([1, 1, 2]),
    'item': pa.array([5, 6, 5]),
    'time': pa.array([3, 1, 2]),
    'action': pa.array(['buy', None, 'view']).dictionary_encode(),
    'rating': pa.array([4.0, 2.0, -1.0]),
    'watched': pa.array([0.5, None, 8.25], pa.float32()),
    'flag': pa.array([True, False, None]),
    'code': pa.array([7, 30, 7], pa.int8()),
  }
  pq.write_table(pa.table(columns), tmp_path / 'x.parquet')
  names = list(columns)
  rows = [
    (1, 5, 3, 'buy', 4, 0.5, 1, 7),
    (1, 6, 1, '', 2, '', 0, 30),
    (2, 5, 2, 'view', -1, 8.25, '', 7),
  ]
  write(tmp_path / 'x.csv', rows, names)
  asked = ASKED | {
    'flag': {'kind': 'int', 'fill': 9},
    'code': 'category',
  }
  a, b = (
    load(
      tmp_path / f'x.{n}',
      tmp_path / 'cache',
      name=n,
      id_type='int',
      extras=asked,
    )
    for n in ('csv', 'parquet')
  )
  assert a.extra_vocabs == b.extra_vocabs
  assert a.extra_vocabs['code'].ids.tolist() == ['30', '7']
  for name in asked:
    assert a.extras[name].dtype == b.extras[name].dtype
    assert a.extras[name].tolist() == b.extras[name].tolist(), name
  assert b.extras['flag'].tolist() == [0, 1, 9]


@pytest.mark.parametrize('windows', ['latest', 'all'])
@pytest.mark.parametrize(
  'shards, own', [(1, None), (4, None), (4, range(1, 3))]
)
def test_tokens_have_the_extras_of_their_events(windows, shards, own):
  h = histories.from_arrays(**log_of(400))
  ids = np.concatenate([[0], h.vocab.ids])
  for examples in (
    splits.keep_whole(h, windows=windows, max_len=6),
    splits.to_predict(h),
  ):
    for first in range(0, len(examples), 16):
      options = dict(max_len=6, batch_size=16, shards=shards, own=own)
      which = np.arange(first, min(first + 16, len(examples)))
      batch = pipeline.collate_examples(h, examples, which, **options)
      events = batch.jagged['events']
      for ahead in ('', 'next_'):
        items = events[f'{ahead}item']
        tens, tenth = events[f'{ahead}tens'], events[f'{ahead}tenth']
        assert tens.dtype == np.int32 and tenth.dtype == np.float32
        np.testing.assert_array_equal(tens, 10 * ids[items])
        np.testing.assert_array_equal(tenth, np.float32(ids[items] / 10))
        np.testing.assert_array_equal(events[f'{ahead}name'], items)


def test_histories_without_extras_give_none():
  h = histories.from_arrays([1, 1], [2, 3])
  batch = pipeline.collate_examples(
    h, splits.keep_whole(h), [0], max_len=4, batch_size=1
  )
  events = batch.jagged['events']
  assert events.columns.names == pipeline.EVENT_COLUMNS
  assert events.floats is None


@pytest.mark.parametrize('name', ['next_item', 'next_tens'])
def test_two_columns_of_one_name_are_refused(name):
  log = dict(user=[1, 1], item=[2, 3])
  h = histories.from_arrays(**log, extras={'tens': [1, 2], name: [3, 4]})
  with pytest.raises(ValueError, match=f'another column {name!r}'):
    pipeline.collate_examples(
      h, splits.keep_whole(h), [0], max_len=4, batch_size=1
    )


def test_what_is_wider_than_a_batch_is_refused():
  h = histories.from_arrays([1, 1], [2, 3], extras={'n': [1 << 40, 2]})
  with pytest.raises(ValueError, match='1099511627776 does not fit.*n=float'):
    pipeline.collate_examples(
      h, splits.keep_whole(h), [0], max_len=4, batch_size=1
    )


def test_events_that_are_left_out_take_their_extras_along(tmp_path):
  log = log_of(300)
  items = vocab.Vocab(np.arange(1, 20))
  rating = np.arange(300) % 5
  chunks = [
    readers.Events(
      **{k: v[a : a + 70] for k, v in log.items() if k != 'extras'},
      rating=rating[a : a + 70],
      extras={k: v[a : a + 70] for k, v in log['extras'].items()},
    )
    for a in range(0, 300, 70)
  ]
  asked = extras.build_extras(
    {'tens': 'int', 'tenth': 'float', 'name': 'category'}
  )
  h = convert.convert_log(
    chunks,
    tmp_path / 'h',
    item_vocab=items,
    unknown='skip',
    min_rating=2,
    min_item_events=3,
    extras=asked,
    log=quiet,
  )
  assert 0 < len(h.items) < 200
  ids = h.vocab.decode(h.items)
  np.testing.assert_array_equal(h.extras['tens'], 10 * ids)
  np.testing.assert_array_equal(h.extras['tenth'], np.float32(ids / 10))
  names = h.extra_vocabs['name'].decode(h.extras['name'])
  assert names.tolist() == [f'n{i:03}' for i in ids]


def test_a_vocabulary_of_an_earlier_run_is_applied(tmp_path):
  write(tmp_path / 'old.csv', [(1, 1, 1, 'view', 1, 1), (1, 1, 2, 'buy', 1, 1)])
  asked = {'action': 'category'}
  old = load(tmp_path / 'old.csv', tmp_path / 'c', extras=asked)
  asked = {
    'action': {
      'kind': 'category',
      'vocabulary': str(old.path / 'extra-0-ids.npy'),
    }
  }
  new = write(
    tmp_path / 'new.csv', [(1, 1, 1, 'view', 1, 1), (1, 1, 2, 'gift', 1, 1)]
  )
  with pytest.raises(ValueError, match="line 3: action 'gift' is not in its"):
    load(new, tmp_path / 'c', extras=asked)
  h = load(new, tmp_path / 'c', extras=asked, unknown_items='skip')
  assert h.extra_vocabs == old.extra_vocabs
  assert h.extras['action'].tolist() == [2, 0]


def test_official_layouts_keep_their_ratings(tmp_path):
  (tmp_path / 'u.data').write_text('9\t30\t4\t200\n9\t10\t5\t100\n')
  (tmp_path / 'u.item').write_text('30|Trent|x\n10|Ten|y\n')
  asked = {'rating': 'category', 'stars': {'kind': 'int', 'column': 'rating'}}
  h = load(tmp_path, tmp_path / 'c', name='ml100k', extras=asked)
  assert h.extras['stars'].tolist() == [5, 4]
  assert h.extras['rating'].tolist() == [2, 1]
  (tmp_path / 's.txt').write_text('1 2\n1 3\n')
  with pytest.raises(ValueError, match="no column 'rating' for the extra"):
    load(tmp_path / 's.txt', tmp_path / 'c', name='sasrec_text', extras=asked)


def test_a_growing_directory_reads_them_too(tmp_path):
  write(tmp_path / '1.csv', [(1, 5, 1, 'buy', 1, ''), (1, 6, 2, '', 2, 3.5)])
  asked = extras.build_extras(ASKED)
  options = dict(
    columns=COLUMNS,
    item_vocab=vocab.Vocab(np.array([5, 6])),
    batch_size=2,
    max_len=4,
    log=quiet,
    stop=lambda: True,
  )
  with pytest.raises(ValueError, match='needs a vocabulary that is known'):
    stream.stream_batches(tmp_path, extras=asked, **options)
  kinds = vocab.Vocab(np.array(['view', 'buy']))
  batches = iter(
    stream.stream_batches(
      tmp_path, extras=asked, extra_vocabs={'action': kinds}, **options
    )
  )
  events = next(batches).jagged['events']
  assert events['item'][:2].tolist() == [1, 0]
  assert events['action'][0] == 2 and events['next_action'][0] == 0
  assert events['watched'][0] == -1 and events['next_watched'][0] == 3.5
  found = batches._part.histories.extras
  assert found['action'].tolist() == [2, 0]  # 'none' is not known
  assert found['watched'].tolist() == [-1, 3.5]


# --- What was there before


def test_a_cache_without_extras_stays_and_is_not_used_for_others(tmp_path):
  path = write(tmp_path / 'x.csv', [(1, 1, 1, 'b', 1, 1)])
  said = []
  plain = load(path, tmp_path / 'cache', said.append)
  # The name that this cache had before there were extra columns.
  stat = path.stat()
  options = {
    'columns': dict(config(path).columns),  # in its own order
    'ids': 'auto',
    'time_unit': 's',
    'delimiter': ',',
    'min_rating': None,
    'min_item_events': 0,
    'min_user_events': 0,
    'unknown': 'error',
  }
  source = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
  told = json.dumps([[source], options, '']).encode()
  fingerprint = hashlib.sha256(told).hexdigest()[:16]
  assert plain.path.name == f'csv-{fingerprint}'
  assert json.loads((plain.path / 'meta.json').read_text())['format'] == 1
  said.clear()
  load(path, tmp_path / 'cache', said.append, extras={})
  assert not said
  rich = load(path, tmp_path / 'cache', said.append, extras={'rating': 'int'})
  assert rich.path != plain.path
  assert f'{plain.path} was made without the extra columns rating' in said[0]
  assert json.loads((rich.path / 'meta.json').read_text())['format'] == 2
  for name in ('items.npy', 'times.npy', 'offsets.npy', 'item_ids.npy'):
    assert (rich.path / name).read_bytes() == (plain.path / name).read_bytes()
  said.clear()
  load(path, tmp_path / 'cache', said.append, extras={'rating': 'int'})
  assert not said


# crc32 of each file, made by the version that knew no extra columns.
BEFORE = {
  'item_ids.npy': 3635786672,
  'items.npy': 2898658515,
  'meta.json': 773743201,
  'offsets.npy': 1805003118,
  'ratings.npy': 1786178256,
  'times.npy': 3196798658,
  'user_ids.npy': 3863375556,
}


def test_without_extras_every_file_is_what_it_was(tmp_path):
  number = range(300)
  log = dict(
    user=np.array([(i * i * 7 + 3 * i) % 41 for i in number]),
    item=np.array([f'i{(i * i + 5 * i) % 23}' for i in number]),
    time=np.array([(i * 13) % 17 for i in number]),
    rating=np.array([1 + i % 5 for i in number], np.float32),
  )
  chunks = [
    readers.Events(**{k: v[a : a + 70] for k, v in log.items()})
    for a in range(0, 300, 70)
  ]
  out = tmp_path / 'h'
  convert.convert_log(
    chunks,
    out,
    min_rating=2,
    min_item_events=3,
    fingerprint='golden',
    partition_events=50,
    log=quiet,
  )
  unseal(out)
  found = {p.name: zlib.crc32(p.read_bytes()) for p in out.iterdir()}
  assert found == BEFORE


# --- Memory


def test_extras_take_memory_of_a_chunk_and_not_of_the_log(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(convert, 'SPILL_CHUNK', 4096)
  asked = extras.build_extras(
    {'tens': 'int', 'tenth': 'float', 'name': 'category'}
  )

  def chunks(count):
    for seed in range(count):
      yield readers.Events(**log_of(2048, seed, users=1000))

  peaks = []
  for count in (4, 24):
    tracemalloc.start()
    convert.convert_log(
      chunks(count),
      tmp_path / f'{count}',
      extras=asked,
      partition_events=2048,
      log=quiet,
    )
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
  assert peaks[1] < 1.3 * peaks[0], peaks
