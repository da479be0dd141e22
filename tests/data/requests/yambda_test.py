"""The reader of Yambda against a plain one, on files of its layout.

Layout: https://huggingface.co/datasets/yandex/yambda (flat/SIZE/*.parquet:
uid, timestamp and item_id are uint32, is_organic uint8; in the preview rows are
sorted by uid and timestamp, many share a timestamp, and all are multiples of 5;
listens have played_ratio_pct, which may exceed 100, and track_length_seconds;
multi_event adds event_type, and has nulls in the columns of listens elsewhere;
the folder sequential holds lists). The splits are those of
benchmarks/yambda/constants.py and processing/timesplit.py there: LAST_TIMESTAMP
26,000,000, a day of test and one of validation, GAP_SIZE 1,800; train is before
last - day - gap - day - gap. The bits 1, 2, 4 of listen_plus, like and skip are
those of MLPerf's dlrm_v4_hstu, see
https://github.com/mlcommons/training/blob/master/recommendation/README.MD
"""

import random

import numpy as np
import pytest

from benchmarks.yambda_log import KINDS, TYPES, write
from genrec_jax.data import readers
from genrec_jax.data.requests import datasets, yambda
from genrec_jax.data.requests.yambda import YambdaOptions
from tests.data.requests import plain_requests as plain

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')

BITS = {
  'listen_plus': 1, 'like': 2, 'skip': 4, 'dislike': 8, 'unlike': 16,
  'undislike': 32,
}  # fmt: skip
TEST, VALID_END, VALID, TRAIN_END = (
  25_913_600,
  25_911_800,
  25_825_400,
  25_823_600,
)
BORDERS = (TRAIN_END, VALID, VALID_END, TEST)


def make_events(seed, users=12):
  """Rows as dicts, sorted by uid and timestamp, with many ties."""
  draw = random.Random(seed)
  rows = []
  for number in range(users):
    # As many bits as the files have; the last users come in late.
    uid = [10, 20, 2**31 + 30, 100, 4_000_000_000][number % 5] + number
    first = BORDERS[number % 4] if number > 9 else 25_000_000
    times = [draw.choice([first, 25_820_000, *BORDERS])]
    for _ in range(draw.choice([4, 15, 40])):
      times.append(times[-1] + 5 * draw.choice([0, 0, 1, 30, 360, 361, 5000]))
    if number < 3:  # no split shall be empty, whatever is asked for
      ends = (TRAIN_END, VALID_END, 26_000_000)
      times += [end - 400 - 5 * (k // 2) for end in ends for k in range(9)]
    for border in BORDERS:  # on both sides of it
      times += [border - 5, border] * draw.choice([0, 1])
    for time in sorted(t for t in times if first <= t <= 26_000_000):
      kind = draw.choice([*TYPES[:1] * 6, *TYPES])
      is_listen = kind == 'listen'
      rows.append(
        {
          'uid': uid,
          'timestamp': time,
          'item_id': draw.choice([50, 51, 52, 9_390_000, 2**31 + 7]),
          'is_organic': draw.randrange(2),
          'event_type': kind,
          # Nulls beside other events; a number there is nobody's business.
          'played_ratio_pct': draw.choice([0, 49, 50, 51, 100, 250])
          if is_listen
          else draw.choice([None, None, 70]),
          'track_length_seconds': draw.randrange(30, 600)
          if is_listen
          else draw.choice([None, None, 90]),
        }
      )
  return sorted(rows, key=lambda row: (row['uid'], row['timestamp']))


def describe_plainly(rows, options):
  """Split -> requests, as `plain.expand`; rows in the order of files."""
  test = options.last_time - options.test_s
  end = test - options.gap_s
  windows = {'train': (-1, end), 'test': (test, 10**9)}
  if options.valid_s:
    windows['valid'] = (end - options.valid_s, end)
    windows['train'] = (-1, end - options.valid_s - options.gap_s)
  end = windows['train'][1]
  if options.train_s:
    windows['train'] = (end - options.train_s, end)
  users = {}
  for row in rows:
    kind = row['event_type']
    event = {'item_id': row['item_id'], 'time': row['timestamp']}
    event['moment'], event['watch_time'] = event['time'], 0.0
    if kind == 'listen':
      played = row['played_ratio_pct']
      kind = 'listen_plus' if played >= options.threshold else 'skip'
      seconds = played * row['track_length_seconds'] / 100
      event['watch_time'] = plain.round_to_float32(seconds)
    elif kind not in options.feedback:
      continue
    event['action'], event['is_listen'] = BITS[kind], kind in (
      'listen_plus', 'skip',
    )  # fmt: skip
    event['listen_plus'] = float(kind == 'listen_plus')
    event['step'] = None
    if options.step_s:
      event['step'] = event['time'] // options.step_s
    users.setdefault(row['uid'], []).append(event)
  for uid in [*users]:
    users[uid].sort(key=lambda event: event['time'])  # stable
    if users[uid][0]['time'] >= end:
      del users[uid]

  def breaks(a, b):
    pause = b['time'] - a['time']
    return (options.pause_s and pause > options.pause_s) or (
      a['step'] != b['step']
    )

  found = {split: [] for split in windows}
  tracks = []
  for uid in sorted(users):
    tracks += [x['item_id'] for x in users[uid] if x['time'] < end]
    for split, (first, last) in windows.items():
      asked = [
        i
        for i, x in enumerate(users[uid])
        if x['is_listen'] and first <= x['time'] < last
      ]
      found[split] += [
        (uid, *request)
        for request in plain.cut(
          users[uid],
          asked,
          breaks,
          most=options.candidates,
          min_history=options.min_history,
          history=options.history,
        )
      ]
  if options.step_s:
    for requests in found.values():
      requests.sort(key=lambda x: (x[2][0]['step'], x[2][0]['time'], x[0]))
  counts = plain.count_values(tracks)
  tracks = {track for track, n in counts.items() if n >= options.min_count}
  known = {uid for uid, _, _ in found['train']}
  kept = ['action', 'time'] + ['watch_time'] * options.watch_time
  return {
    split: [
      {
        'user': uid,
        'context': {'uid': plain.encode(uid, known)},
        'history': [
          {'item_id': plain.encode(event['item_id'], tracks)}
          | {name: event[name] for name in kept}
          for event in past
        ],
        'candidates': [
          {
            'item_id': plain.encode(event['item_id'], tracks),
            'listen_plus': event['listen_plus'],
          }
          for event in ahead
        ],
        'time': ahead[0]['time']
        if options.asked_at == 'first_candidate'
        else past[-1]['time'],
        'step': ahead[0]['step'],
      }
      for uid, past, ahead in requests
    ]
    for split, requests in found.items()
  }


def assert_same(got, expected):
  plain.check_shapes(got)
  assert [*got.splits] == [
    x for x in ('train', 'valid', 'test') if x in expected
  ]
  for split, requests in expected.items():
    assert plain.expand(got, split) == requests


OPTIONS = [
  YambdaOptions(),
  YambdaOptions(candidates=4, history='before', step_s=3_600, min_count=9),
  YambdaOptions(feedback=(), valid_s=0, watch_time=True, step_s=0),
  YambdaOptions(
    feedback=('undislike', 'like', 'dislike'), asked_at='last_event',
    pause_s=0, candidates=3, min_history=3, threshold=51, watch_time=True,
  ),
  YambdaOptions(train_s=3_600, gap_s=0, feedback=('unlike',)),
]  # fmt: skip


@pytest.mark.parametrize('options', OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize('rows', [7, 1 << 18])
def test_requests_are_those_of_the_plain_reader(
  tmp_path, monkeypatch, options, rows
):
  monkeypatch.setattr(readers, 'CHUNK_ROWS', rows)
  for seed in range(3):
    events = make_events(seed)
    folder = write(tmp_path / str(seed), events)
    got = datasets.DATASETS['yambda'](folder, options)
    assert_same(got, describe_plainly(events, options))
    named = ['listen_plus', 'skip', *options.feedback]
    assert dict(got.spec.actions) == {name: BITS[name] for name in named}
    assert [(x.name, x.kind) for x in got.spec.labels] == [
      ('listen_plus', 'binary')
    ]


def replace(options, **changes):
  return YambdaOptions(**(vars(options) | changes))


@pytest.mark.parametrize('options', OPTIONS, ids=range(len(OPTIONS)))
def test_files_of_one_type_each(tmp_path, options):
  events = make_events(3)
  write(tmp_path, events, 'listens')
  # Those of one time are in the order of the files.
  order = ['listen', *options.feedback]
  expected = [e for kind in order for e in events if e['event_type'] == kind]
  assert_same(
    yambda.load(tmp_path, options), describe_plainly(expected, options)
  )
  write(tmp_path, events)  # now there is a file of all events, too
  by_type = yambda.load(tmp_path, replace(options, source='listens'))
  assert_same(by_type, describe_plainly(expected, options))
  assert_same(yambda.load(tmp_path, options), describe_plainly(events, options))


def test_rows_in_another_order_are_sorted_when_asked(tmp_path):
  events = make_events(4)
  random.Random(0).shuffle(events)
  write(tmp_path, events)
  options = YambdaOptions(sort=True)
  assert_same(yambda.load(tmp_path, options), describe_plainly(events, options))


@pytest.mark.parametrize(
  'kind',
  [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_types_may_be_texts_of_any_kind(tmp_path, kind):
  events = make_events(5)
  whole = dict(played_ratio_pct=pa.float64(), uid=pa.int64())
  write(tmp_path / 'a', events)
  write(tmp_path / 'b', events, event_type=kind, **whole)
  first = yambda.load(tmp_path / 'a').fingerprint()
  assert yambda.load(tmp_path / 'b').fingerprint() == first
  by_file = yambda.load(tmp_path / 'b' / 'multi_event.parquet')
  assert by_file.fingerprint() == first


def test_a_file_of_listens_alone(tmp_path):
  events = make_events(6)
  write(tmp_path, events, 'listens')
  listens = [e for e in events if e['event_type'] == 'listen']
  expected = describe_plainly(listens, YambdaOptions(feedback=()))
  assert_same(yambda.load(tmp_path / 'listens.parquet'), expected)


def test_borders_of_the_splits_by_hand(tmp_path):
  """The answer by hand, so that no oracle may share a mistake."""
  times = [5, TRAIN_END - 5, TRAIN_END, VALID, VALID_END - 5, VALID_END, TEST]
  row = make_events(0)[0] | {'event_type': 'listen', 'played_ratio_pct': 50}
  row['track_length_seconds'] = 200
  write(tmp_path, [row | {'timestamp': time} for time in times])
  got = yambda.load(tmp_path)
  assert got.splits['train'].time.tolist() == [TRAIN_END - 5]
  assert got.splits['valid'].time.tolist() == [VALID, VALID_END - 5]
  assert got.splits['test'].time.tolist() == [TEST]
  assert got.splits['test'].end.tolist() == [6]
  assert got.splits['valid'].step.tolist() == [298, 299]
  assert got.splits['valid'].labels['listen_plus'].tolist() == [1, 1]


def refuse(folder, message, options=None):
  with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
    yambda.load(folder, options)
  assert '\n' not in str(error.value)


def find_row(rows, **values):
  """Number, from 0, of a row with those values, whose user has one before."""
  return next(
    i
    for i, row in enumerate(rows)
    if i > 15
    and row['uid'] == rows[i - 1]['uid']
    and all(row[name] == x for name, x in values.items())
  )


@pytest.mark.parametrize(
  'name, value, message',
  [
    ('uid', None, 'uid is None, not a whole number of 32 bits; mend'),
    ('item_id', None, 'item_id is None'),
    ('timestamp', None, 'timestamp is None'),
    ('event_type', 'play', "event_type of user .* is 'play', none of listen, "),
    ('event_type', None, 'event_type of user .* is None'),
    ('played_ratio_pct', None, 'played_ratio_pct of a listen of user .* None'),
    ('track_length_seconds', None, 'track_length_seconds of a listen'),
    ('timestamp', 0, 'the time of user .* runs backwards, from .* to 0; sort'),
    ('uid', 3, 'user 3 stands behind user .*; sort the file by uid and'),
  ],
)
@pytest.mark.parametrize('rows', [4, 1 << 18])
def test_a_bad_value_is_named(
  tmp_path, monkeypatch, name, value, message, rows
):
  monkeypatch.setattr(readers, 'CHUNK_ROWS', rows)
  events = make_events(0)
  bad = find_row(events, event_type='listen')
  events[bad] = events[bad] | {name: value}
  write(tmp_path, events)
  where = f'multi_event.parquet, row {bad + 1}: '
  refuse(tmp_path, where + message, YambdaOptions(watch_time=True))


@pytest.mark.parametrize('value', [-1, 2**32])
def test_numbers_of_more_bits(tmp_path, value):
  events = make_events(0)
  events[5]['item_id'] = value
  write(tmp_path, events, item_id=pa.int64())
  refuse(tmp_path, f'row 6: item_id is {value}, not a whole number of 32 bits')


def test_times_without_room_for_steps_are_named(tmp_path):
  events = make_events(0)
  last = next(
    i
    for i in range(30, len(events) - 1)
    if events[i]['uid'] != events[i + 1]['uid']
    and events[i]['event_type'] == 'listen'
    and events[i - 1]['uid'] == events[i]['uid']
  )
  user = events[last]['uid']
  events[last]['timestamp'] = 2**31 - 1
  write(tmp_path, events)
  data = yambda.load(tmp_path, YambdaOptions(step_s=1, last_time=26_000_000))
  test = data.splits['test']
  assert test.step[-1] == 2**31 - 1 and (test.step > 0).all()
  assert data.user_ids[test.user[-1]] == user
  events[last]['timestamp'] = 2**31
  write(tmp_path, events)
  where = f'multi_event.parquet, row {last + 1}: '
  message = f'timestamp of user {user} is {2**31}, more than .*; is it in milli'
  refuse(tmp_path, where + message)


def test_files_of_another_layout(tmp_path):
  events = make_events(0)
  path = tmp_path / 'multi_event.parquet'

  def refuse_columns(message, **columns):
    given = {name: [row[name] for row in events] for name in KINDS}
    given = {name: x for name, x in (given | columns).items() if x is not None}
    pq.write_table(pa.table(given), path)
    refuse(tmp_path, f'multi_event.parquet.*{message}')

  count = len(events)
  refuse_columns("no column 'item_id', which a file of all", item_id=None)
  refuse_columns("no column 'event_type'.*; the columns are", event_type=None)
  refuse_columns("no column 'played_ratio_pct'", played_ratio_pct=None)
  refuse_columns(
    "'item_id' holds lists, as in the folder", item_id=[[1]] * count
  )
  refuse_columns("'uid' is of type string, not of whole", uid=['7'] * count)
  refuse_columns("'timestamp' is of type double", timestamp=[1.5] * count)
  refuse_columns(
    "'event_type' is of type int64, not of te", event_type=[0] * count
  )
  refuse_columns(
    "'played_ratio_pct' is of type str", played_ratio_pct=['a'] * count
  )
  path.write_bytes(b'uid,timestamp\n')
  refuse(tmp_path, 'multi_event.parquet: not a readable Parquet file')
  write(tmp_path, [])
  refuse(tmp_path, 'multi_event.parquet: the file holds no events')
  path.unlink()
  refuse(tmp_path, 'listens.parquet: no such file; give a directory such as')
  refuse(
    tmp_path,
    'multi_event.parquet: no such',
    YambdaOptions(source='multi_event'),
  )
  write(tmp_path, events, 'listens')
  (tmp_path / 'likes.parquet').unlink()
  refuse(tmp_path, 'likes.parquet: no such file; .*leave its events out of')


def test_data_that_give_no_request(tmp_path):
  write(tmp_path, make_events(0))

  def refuse_option(message, **options):
    refuse(tmp_path, message, YambdaOptions(**options))

  refuse_option(
    "split 'test'; its listens lie from 29,913,600 seconds on, and "
    'the latest event is at 25,',
    last_time=30_000_000,
    valid_s=0,
  )
  refuse_option("split 'train'; its listens lie from 0 to", last_time=200_000)
  refuse_option('min_history is 0, must', min_history=0)
  refuse_option('candidates is 0, must', candidates=0)
  refuse_option("feedback is .* mean 'like'", feedback=('likes',))
  refuse_option("source is 'all', must be one of 'auto'", source='all')
  refuse_option('test_s is 0, must be at least 1', test_s=0)
  refuse_option('gap_s is -1, must', gap_s=-1)
  refuse_option("history is 'all'", history='all')
  refuse_option("asked_at is 'now'", asked_at='now')


def test_a_file_that_changes_is_refused(tmp_path, monkeypatch):
  events = make_events(0)
  write(tmp_path, events)
  read = yambda.yambda_files.read_files

  def read_and_change(*args):
    columns = read(*args)
    write(tmp_path, events[:-1])
    return columns

  monkeypatch.setattr(yambda.yambda_files, 'read_files', read_and_change)
  refuse(tmp_path, 'raw files changed while they were read')


def test_memory_follows_the_events(tmp_path):
  """Columns are numbers, and an event is 16 bytes of them."""
  got = yambda.load(write(tmp_path, make_events(0)))
  arrays = [got.events.action, got.events.time, *got.events.items.values()]
  assert sum(x.nbytes for x in arrays) == 16 * len(got.events)
  assert all(x.dtype != np.dtype(object) for x in got.arrays().values())
