"""The reader of KuaiRand against a plain one, on files of its layout.

Layout: https://kuairand.com ("Data Descriptions": the columns of log_xxx.csv
and user_features.csv with their types and examples, tab in [0, 14], is_rand 0
or 1; the structure of files: the 27K logs have two parts). Of the example
there, time_ms 1650485801301 stands beside date 20220421 and hourmin 400: days
are of Beijing.
Ranges of users such as "(0,10]" hold a comma, so the CSV quotes them; the
user_active_degree of some users is UNKNOWN, and onehot_feat columns have empty
fields. Rows of one page have one time_ms, as in the preview of
https://huggingface.co/datasets/valeriol29/KuaiRand-Star.
"""

import csv
import datetime
import random

import pytest

from genrec_jax.data import readers
from genrec_jax.data.requests import datasets, kuairand
from genrec_jax.data.requests.kuairand import KuairandOptions
from tests.data.requests import plain_requests as plain

LOG = (
  'user_id video_id date hourmin time_ms is_click is_like is_follow is_comment '
  'is_forward is_hate long_view play_time_ms duration_ms profile_stay_time '
  'comment_stay_time is_profile_enter is_rand tab'
).split()
USERS = (
  'user_id user_active_degree is_lowactive_period is_live_streamer '
  'is_video_author follow_user_num follow_user_num_range fans_user_num '
  'fans_user_num_range friend_user_num friend_user_num_range register_days '
  'register_days_range'
).split() + [f'onehot_feat{i}' for i in range(18)]
DEGREES = ['full_active', 'high_active', 'middle_active', 'UNKNOWN']
FOLLOWS = ['0', '(0,10]', '(10,50]', '500+', '']
FANS = ['0', '[1,10)', '[100,1k)', '[5k,1w)']
FRIENDS = ['0', '[1,5)', '[5,30)', '250+']
DAYS = ['15-30', '366-730', '730+']
BITS = {
  'is_click': 1, 'is_like': 2, 'is_follow': 4, 'is_comment': 8,
  'is_forward': 16, 'is_hate': 32, 'long_view': 64, 'is_profile_enter': 128,
}  # fmt: skip
BEIJING = datetime.timezone(datetime.timedelta(hours=8))
CONTEXT = [
  'user_id', 'user_active_degree', 'follow_user_num_range',
  'fans_user_num_range', 'friend_user_num_range', 'register_days_range',
]  # fmt: skip


def read_day(text):
  day = datetime.datetime.fromisoformat(text).replace(tzinfo=BEIJING)
  return int(day.timestamp()) * 1000


def make_rows(draw, begin, end, users, is_rand):
  """Rows of a log, pages of one moment, in no order."""
  rows, moments = [], [begin, end - 1]
  for user in users:
    # Some come closely after one another, some at the very border of a day.
    times = [draw.choice(moments)]
    while len(times) < draw.choice([1, 5, 9]):
      times.append(draw.randrange(begin, end))
    for start in times:
      for _ in range(draw.choice([1, 2, 4])):
        start += draw.choice([0, 0, 700, 90_000, 1_800_000, 1_800_001])
        if start >= end:
          continue
        when = datetime.datetime.fromtimestamp(start / 1000, BEIJING)
        row = dict.fromkeys(LOG, 0)
        row |= {name: int(draw.random() < 0.3) for name in BITS}
        row['user_id'], row['video_id'] = user, draw.randrange(60)
        row['date'], row['hourmin'] = f'{when:%Y%m%d}', when.hour * 100
        row['time_ms'], row['play_time_ms'] = start, draw.randrange(200_000)
        row['tab'] = draw.randrange(15)
        row['is_rand'] = int(is_rand or draw.random() < 0.1)
        rows.append(row)
  draw.shuffle(rows)
  return rows


def write_table(path, names, rows):
  with open(path, 'w', newline='') as f:
    table = csv.DictWriter(f, names)
    table.writeheader()
    table.writerows(rows)


def write(folder, version='1k', seed=0):
  folder.mkdir(parents=True, exist_ok=True)
  draw = random.Random(seed)
  parts = ['_part1', '_part2'] if version == '27k' else ['']
  users = draw.sample(range(40), 9)
  borders = [read_day(f'2022-{x}') for x in ('04-08', '04-22', '05-09')]
  periods = ['4_08_to_4_21', '4_22_to_5_08']
  for begin, end, period in zip(borders, borders[1:], periods, strict=False):
    for part in parts:
      # Some users come in later.
      rows = make_rows(draw, begin, end, draw.sample(users, 7), 0)
      path = folder / f'log_standard_{period}_{version}{part}.csv'
      write_table(path, LOG, rows)
  rows = make_rows(draw, borders[1], borders[2], users[:5], 1)
  write_table(folder / f'log_random_{periods[1]}_{version}.csv', LOG, rows)
  rows = []
  for user in range(40):
    row = dict.fromkeys(USERS, 0) | {'user_id': user, 'onehot_feat4': ''}
    row['user_active_degree'] = draw.choice(DEGREES)
    row['follow_user_num_range'] = draw.choice(FOLLOWS)
    row['fans_user_num_range'] = draw.choice(FANS)
    row['friend_user_num_range'] = draw.choice(FRIENDS)
    row['register_days_range'] = draw.choice(DAYS)
    rows.append(row)
  draw.shuffle(rows)
  write_table(folder / f'user_features_{version}.csv', USERS, rows)
  return folder


def read_plainly(folder, options):
  """User -> events in order of time."""
  paths = sorted(folder.glob('log_standard_*'))
  paths += sorted(folder.glob('log_random_*')) if options.random else []
  events = {}
  for path in paths:
    with open(path, newline='') as f:
      for row in csv.DictReader(f):
        if row['is_rand'] == '1' and not options.random:
          continue
        event = {name: float(row[name]) for name in BITS}
        event['action'] = sum(b for x, b in BITS.items() if row[x] == '1')
        event['moment'] = int(row['time_ms'])
        event['time'] = event['moment'] // 1000
        event['video_id'], event['tab'] = int(row['video_id']), int(row['tab'])
        event['play_time'] = plain.round_to_float32(
          int(row['play_time_ms']) / 1000
        )
        events.setdefault(int(row['user_id']), []).append(event)
  first = min(x['moment'] for some in events.values() for x in some)
  day = datetime.datetime.fromtimestamp(first / 1000, BEIJING)
  midnight = read_day(f'{day:%Y-%m-%d}')
  for user, some in events.items():
    some.sort(key=lambda event: event['moment'])  # stable
    if options.duplicates == 'drop':
      kept = []
      for event in some:
        key = event['moment'], event['video_id']
        if key not in [(x['moment'], x['video_id']) for x in kept]:
          kept.append(event)
      events[user] = some = kept
    for event in some:
      event['split'] = 'train'
      if event['moment'] >= read_day(options.valid_from):
        event['split'] = 'valid'
      if event['moment'] >= read_day(options.test_from):
        event['split'] = 'test'
      event['step'] = None
      if options.step_s:
        event['step'] = (event['moment'] - midnight) // (options.step_s * 1000)
  return events


def describe_plainly(folder, options):
  """Split -> requests, as `plain.expand`."""
  events = read_plainly(folder, options)
  features = {}
  with open(next(folder.glob('user_features_*')), newline='') as f:
    for row in csv.DictReader(f):
      features[int(row['user_id'])] = {name: row[name] for name in CONTEXT}
      features[int(row['user_id'])]['user_id'] = int(row['user_id'])

  def breaks(a, b):
    pause = options.pause_s and b['moment'] - a['moment'] > (
      1000 * options.pause_s
    )
    other_tab = options.request_tab and a['tab'] != b['tab']
    other_step = a['split'] != b['split'] or a['step'] != b['step']
    return pause or other_step or other_tab

  found, videos, tabs = {'train': [], 'valid': [], 'test': []}, [], set()
  for user in sorted(events):
    learned = [x for x in events[user] if x['split'] == 'train']
    videos += [x['video_id'] for x in learned]
    tabs |= {x['tab'] for x in learned}
    for past, ahead in plain.cut(
      events[user],
      range(len(events[user])),
      breaks,
      most=options.candidates,
      min_history=options.min_history,
      history=options.history,
    ):
      found[ahead[0]['split']].append((user, past, ahead))
  if options.step_s:
    for requests in found.values():
      requests.sort(key=lambda x: (x[2][0]['step'], x[2][0]['moment'], x[0]))
  counts = plain.count_values(videos)
  videos = {video for video, n in counts.items() if n >= options.min_count}
  users = {user for user, _, _ in found['train']}
  known = {name: {features[user][name] for user in users} for name in CONTEXT}

  def describe_item(event, with_tab=options.tab):
    item = {'video_id': plain.encode(event['video_id'], videos)}
    return item | (
      {'tab': plain.encode(event['tab'], tabs)} if with_tab else {}
    )

  of_candidates = options.tab or options.candidate_tab

  return {
    split: [
      {
        'user': user,
        'context': {
          name: plain.encode(value, known[name])
          for name, value in features[user].items()
        }
        | (
          {'tab': plain.encode(ahead[0]['tab'], tabs)}
          if options.request_tab
          else {}
        ),
        'history': [
          describe_item(event)
          | {
            'action': event['action'],
            'time': event['time'],
            'watch_time': event['play_time'],
          }
          for event in past
        ],
        'candidates': [
          describe_item(event, of_candidates)
          | {name: event[name] for name in options.labels}
          for event in ahead
        ],
        'time': past[-1]['time']
        if options.asked_at == 'last_event'
        else ahead[0]['time'],
        'step': ahead[0]['step'],
      }
      for user, past, ahead in requests
    ]
    for split, requests in found.items()
  }


OPTIONS = [
  KuairandOptions(),
  KuairandOptions(history='order', candidates=3, min_history=2),
  KuairandOptions(
    random=True, tab=True, min_count=3, step_s=86_400, pause_s=0,
  ),
  KuairandOptions(
    pause_s=0, asked_at='first_candidate', candidates=1, candidate_tab=True,
  ),
  KuairandOptions(request_tab=True, candidates=4, history='order'),
  KuairandOptions(
    labels=('long_view', 'play_time'), valid_from='2022-04-20',
    test_from='2022-05-01', step_s=3_600, duplicates='drop', pause_s=60,
  ),
]  # fmt: skip


@pytest.mark.parametrize('options', OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize('rows', [7, 1 << 18])
def test_requests_are_those_of_the_plain_reader(
  tmp_path, monkeypatch, options, rows
):
  monkeypatch.setattr(readers, 'CHUNK_ROWS', rows)
  for seed, version in enumerate(['pure', '1k', '27k']):
    folder = write(tmp_path / version / 'data', version, seed)
    got = datasets.DATASETS['kuairand'](tmp_path / version, options)
    plain.check_shapes(got)
    expected = describe_plainly(folder, options)
    for split, requests in expected.items():
      assert plain.expand(got, split) == requests
    assert got.name == f'kuairand-{version}'
    assert dict(got.spec.actions) == BITS
    assert [(x.name, x.kind) for x in got.spec.labels] == [
      (name, 'regression' if name == 'play_time' else 'binary')
      for name in options.labels
    ]


def edit(path, line, name, value):
  """Writes a value into a line of a CSV file, the header being line 1."""
  with open(path, newline='') as f:
    rows = list(csv.reader(f))
  rows[line - 1][rows[0].index(name)] = value
  with open(path, 'w', newline='') as f:
    csv.writer(f).writerows(rows)


def refuse(folder, message, options=None):
  with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
    kuairand.load(folder, options)
  assert '\n' not in str(error.value)


FIRST = 'log_standard_4_08_to_4_21_1k.csv'


@pytest.mark.parametrize(
  'name, value, message',
  [
    ('user_id', 'x', "user_id is 'x' for user 'x', not a whole number"),
    ('video_id', '', "video_id is '' for user .*, not a whole number"),
    ('time_ms', '-1', "time_ms is '-1' for user .* milliseconds since 1970"),
    ('time_ms', '1.5', '.*not a time from 2000 to 2059 in whole milliseconds'),
    ('time_ms', '0', "time_ms is '0' for user .*; mend or remove the line"),
    ('time_ms', '1650485801', '.*not a time from 2000 to 2059 in whole milli'),
    ('time_ms', '1650485801301000', '.*not a time from 2000'),
    ('time_ms', str(2**63 - 1), '.*not a time from 2000'),
    ('time_ms', '946684799999', '.*not a time from 2000'),
    ('time_ms', '2840140800000', '.*not a time from 2000'),
    ('is_click', '2', "is_click is '2' for user .*, not 0 or 1; mend"),
    ('is_hate', '', "is_hate is '' for user"),
    ('long_view', '10', "long_view is '10' for user"),
    ('is_rand', 'no', "is_rand is 'no' for user .*, not 0 or 1"),
    ('play_time_ms', 'nan', "play_time_ms is 'nan' for user"),
    ('play_time_ms', '-7', '.*not a time in milliseconds, 0 or more'),
    ('user_id', '77', r'user 77 has events and no line in .*features_1k.csv'),
  ],
)
def test_a_bad_value_is_named(tmp_path, name, value, message):
  write(tmp_path)
  edit(tmp_path / FIRST, 9, name, value)
  refuse(tmp_path, f'{FIRST}, line 9: {message}')


def test_the_first_and_last_times_have_steps(tmp_path):
  """Steps of a second from 2000 to 2059, as a clock counts them."""
  write(tmp_path)
  path = tmp_path / FIRST
  with open(path, newline='') as f:
    rows = list(csv.DictReader(f))
  utc = datetime.UTC
  first = datetime.datetime(2000, 1, 1, tzinfo=utc)
  last = datetime.datetime(2059, 12, 31, 23, 59, 59, tzinfo=utc)
  user = rows[7]['user_id']
  ends = [{**rows[7], 'time_ms': int(first.timestamp()) * 1000}]
  ends += [{**rows[7], 'time_ms': int(last.timestamp()) * 1000 + 999}] * 2
  write_table(path, LOG, rows + ends)
  data = kuairand.load(tmp_path, KuairandOptions(step_s=1, min_history=1))
  test = data.splits['test']
  # The first day began at midnight of Beijing, eight hours into that of UTC.
  wanted = (last - first).total_seconds() + 8 * 3600
  assert test.step[-1] == wanted and (test.step >= 0).all()
  assert data.user_ids[test.user[-1]] == int(user)


def test_an_empty_field_does_not_make_up_for_a_longer_one(tmp_path):
  write(tmp_path)
  edit(tmp_path / FIRST, 8, 'is_like', '')
  edit(tmp_path / FIRST, 9, 'is_like', '10')
  refuse(tmp_path, f"{FIRST}, line 8: is_like is '' for user")


@pytest.mark.parametrize('name', ['video_id', 'is_hate', 'time_ms', 'is_rand'])
def test_a_missing_column_is_named(tmp_path, name):
  write(tmp_path)
  edit(tmp_path / FIRST, 1, name, name.replace('_', ''))
  hint = f'; did you mean {name.replace("_", "")!r}'
  refuse(tmp_path, f'{FIRST}: no column {name!r}, which a log .*{hint}')


def test_bad_files(tmp_path):
  write(tmp_path)
  features = tmp_path / 'user_features_1k.csv'
  good = features.read_text()
  edit(features, 1, 'fans_user_num_range', 'fans')
  refuse(tmp_path, "no column 'fans_user_num_range', which the file of the")
  features.write_text(good)
  edit(features, 5, 'user_id', good.split('\n')[1].split(',')[0])
  refuse(tmp_path, r'features_1k.csv, line 5: user \d+ already has line 2;')
  features.write_text(good.replace('\n', '\n7,8\n', 1))
  refuse(tmp_path, 'line 2: 2 fields instead of 31')
  features.unlink()
  refuse(tmp_path, 'features_1k.csv: no such file')
  features.write_text(good)
  path = tmp_path / FIRST
  log = path.read_text()
  path.write_text(log.split('\n')[0] + '\n')
  refuse(tmp_path, f'{FIRST}: the file holds no events')
  path.write_text('')
  refuse(tmp_path, f'{FIRST}: the file is empty')
  path.write_text(log.replace('tab', 'is_rand', 1))
  refuse(tmp_path, "the column 'is_rand' is there twice")
  path.write_text(log)
  (tmp_path / 'log_random_4_22_to_5_08_1k.csv').unlink()
  kuairand.load(tmp_path)
  refuse(tmp_path, 'log_random_.*_1k.csv: no such file; unpack the whole',
         KuairandOptions(random=True))  # fmt: skip
  (tmp_path / 'log_standard_4_08_to_4_21_pure.csv').write_text(log)
  refuse(tmp_path, 'files of the versions pure, 1k; put each version into')
  refuse(tmp_path / 'absent', 'no file log_standard_4_08.*kuairand.com')


@pytest.mark.parametrize('name', [FIRST, 'user_features_1k.csv'])
def test_a_file_that_changes_is_refused(tmp_path, monkeypatch, name):
  write(tmp_path)

  def sort_and_change(*args):
    with open(tmp_path / name, 'a') as f:
      f.write('\r\n')
    return sort_events(*args)

  sort_events = kuairand.sort_events
  monkeypatch.setattr(kuairand, 'sort_events', sort_and_change)
  refuse(tmp_path, f'changed while they were read .*{name}')


def test_bad_options(tmp_path):
  write(tmp_path)

  def refuse_option(message, **options):
    refuse(tmp_path, message, KuairandOptions(**options))

  refuse_option("labels is .*; did you mean 'is_click'", labels=('click',))
  refuse_option('labels is .., must be one value or more', labels=())
  refuse_option('tab and candidate_tab are', tab=True, candidate_tab=True)
  refuse_option('tab and request_tab are set', tab=True, request_tab=True)
  refuse_option("valid_from is '4/22'; give a day as", valid_from='4/22')
  refuse_option('test_from 2022-04-22 does not lie', test_from='2022-04-22')
  refuse_option("history is 'all', must be one", history='all')
  refuse_option('step_s is -1, must be at least 0', step_s=-1)
  refuse_option('pause_s is -5, must', pause_s=-5)
  refuse_option('min_history is 0, must be at least 1', min_history=0)
  refuse_option('candidates is 0, must be at least 1', candidates=0)
  refuse_option("split 'train'; change valid_from", valid_from='2022-04-01')
  refuse_option("split 'test'; change", test_from='2022-05-20')
