"""Files of requests: good ones, how they are read, oracles.

A data set is several files. One of them is damaged, and the others, which are
good, lie beside it: they hold what every split needs.
"""

import functools
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from ml_collections import ConfigDict

from benchmarks import robustness_oracles as oracles
from benchmarks import robustness_parquet as parquet
from benchmarks.robustness_layouts import WORDS, BlockRows
from benchmarks.robustness_oracles import Refusal
from genrec_jax.config.request_sets import (
  KuairandOptions,
  MovielensOptions,
  StreamOptions,
  YambdaOptions,
)
from genrec_jax.data import readers
from genrec_jax.data.ranking import raw
from genrec_jax.data.requests import kuairand, movielens, streaming, yambda
from genrec_jax.data.requests.feature_values import read_values
from genrec_jax.serve.request_inputs import CandidateFile

_DAY = 86_400_000  # milliseconds


def _decode(dataset, name: str, rows: np.ndarray) -> list:
  """Values as the data name them; None for those that nobody knows."""
  values = read_values(dataset.spec, dataset.vocabs)[name].decode(rows)
  return [None if x in (np.ma.masked, '') else x for x in values]


def _list_events(dataset, item: str) -> list[tuple]:
  """(user, item or None, action, watch time or None, seconds) of each event."""
  events = dataset.events
  users = np.repeat(dataset.user_ids, np.diff(events.offsets)).tolist()
  items = [
    None if value is None else int(value)
    for value in _decode(dataset, item, events.items[item])
  ]
  watched = events.watch_time
  seconds = [None] * len(users) if watched is None else watched.tolist()
  return list(
    zip(
      users, items, events.action.tolist(), seconds, events.time.tolist(),
      strict=True,
    )
  )  # fmt: skip


def _sort(rows: Sequence[tuple], *keys: int) -> list[tuple]:
  """By some fields; rows that are equal in them stay in their order."""
  return sorted(rows, key=lambda row: [row[key] for key in keys])


# --- MovieLens

_RATINGS = ('userId', 'movieId', 'rating', 'timestamp')
_PAIR = MovielensOptions(candidates=1)  # four ratings are in all splits


def make_ratings(rng) -> bytes:
  header = [*_RATINGS, 'note']
  rng.shuffle(header)
  lines = [','.join(header)]
  for user in range(1, rng.randrange(2, 5)):
    for _ in range(rng.randrange(4, 7)):
      row = dict(
        userId=user, movieId=rng.randrange(9), note=rng.choice(['', 'x'])
      )
      row['rating'] = rng.choice(['0.5', '1', '3.5', '4.0', '5'])
      row['timestamp'] = rng.choice([0, 978300760, rng.randrange(2**31)])
      lines.append(','.join(str(row[name]) for name in header))
  return ('\n'.join(lines) + '\n').encode()


def read_ratings(path: pathlib.Path, rows: int) -> list:
  with BlockRows(readers, rows):
    return _list_events(movielens.load(path, _PAIR), movielens.ITEM)


def expect_ratings(content: bytes) -> list:
  text = oracles.decode(content, 'utf-8-sig', False)
  found = []
  for user, film, stars, time in oracles.by_names(
    oracles.split_csv(text, ','), list(_RATINGS)
  ):
    stars = oracles.rating(stars)
    if stars not in [x / 2 for x in range(1, 11)]:
      raise Refusal('stars')
    found.append(
      (oracles.whole_id(user), oracles.whole_id(film), stars,
       oracles.moment(time))
    )  # fmt: skip
  found = _sort(found, 0, 3)
  users = {user: [x for x in found if x[0] == user] for user, *_ in found}
  if not any(len(events) >= 4 for events in users.values()):
    raise Refusal('no request in the training split')
  known = {x[1] for events in users.values() for x in events[:-2]}
  return [
    (user, film if film in known else None, 1 << max(int(stars), 1) - 1, None,
     time)
    for user, film, stars, time in found
  ]  # fmt: skip


_RATED = (3, 7, 8)  # users who have ratings


def make_users(rng) -> bytes:
  rows = []
  for user in rng.sample(range(1, 20), 12) + list(_RATED):
    zip_ = rng.choice(['98107-2117', 'T8H1N', '02460', ''])
    row = [user, rng.choice('MF'), rng.choice([1, 18, 56]), rng.randrange(21)]
    rows.append('::'.join(map(str, [*row, zip_])))
  by_user = {row.split('::')[0]: row for row in rows}
  return ('\n'.join(by_user.values()) + '\n').encode('latin-1')


def read_users(path: pathlib.Path, rows: int) -> list:
  ratings = path.with_name('ratings.dat')
  lines = [
    f'{user}::{film}::4::{film}' for user in _RATED for film in range(1, 6)
  ]
  ratings.write_text('\n'.join(lines) + '\n')
  with BlockRows(readers, rows):
    dataset = movielens.load(ratings, _PAIR)
  names = [f.name for f in dataset.spec.context if f.name != 'user_id']
  columns = [_decode(dataset, name, dataset.context[name]) for name in names]
  return list(zip(dataset.user_ids.tolist(), *columns, strict=True))


def expect_users(content: bytes) -> list:
  text = oracles.decode(content, 'latin-1', False)
  rows = oracles.check_widths(oracles.split_plain(text, '::'), 5)
  users = {}
  for user, *features in rows:
    user = oracles.whole_id(user)
    if user in users:
      raise Refusal('twice')
    for word in filter(None, features):
      oracles.text_id(word)
    users[user] = features
  if not {*_RATED} <= {*users}:
    raise Refusal('a user without a line')
  return [(u, *(word or None for word in users[u])) for u in _RATED]


# --- KuaiRand

_TASKS = [name for name, _ in kuairand.ACTIONS]
_LOG = ['user_id', 'video_id', 'time_ms', *_TASKS, 'play_time_ms', 'is_rand']
_VIEWERS = range(1, 6)
# From 2000 to before 2060, as milliseconds.
_YEARS = np.array(['2000', '2060'], 'datetime64[ms]').astype(int).tolist()
_VALID_FROM = 1_650_556_800_000  # 22 April 2022, 0:00 in Beijing
KUAIRAND_LOG = 'log_standard_4_08_to_4_21_pure.csv'


def make_log(rng) -> bytes:
  header = [*_LOG, 'tab', 'date']
  rng.shuffle(header)
  lines = [','.join(header)]
  for _ in range(rng.randrange(1, 9)):
    row = {name: rng.randrange(2) for name in header}
    row |= dict(user_id=rng.choice(_VIEWERS), video_id=rng.randrange(9))
    row['time_ms'] = _VALID_FROM + rng.randrange(-9, 3) * _DAY
    row['play_time_ms'] = rng.choice([0, 1500, rng.randrange(10**6), '1.5'])
    row['is_rand'] = int(rng.random() < 0.2)
    lines.append(','.join(str(row[name]) for name in header))
  return ('\n'.join(lines) + '\n').encode()


def _make_later_log() -> list[tuple]:
  """(user, video, time, action, played, random): user 1, in each split."""
  days = (-12, -10, 1, 9)
  return [(1, 90 + i, _VALID_FROM + d * _DAY, 1, 500.0, 0)
          for i, d in enumerate(days)]  # fmt: skip


def read_log(path: pathlib.Path, rows: int) -> list:
  later = path.with_name('log_standard_4_22_to_5_08_pure.csv')
  lines = [','.join(_LOG)]
  for user, video, time, action, played, is_random in _make_later_log():
    flags = [int(action & bit > 0) for _, bit in kuairand.ACTIONS]
    lines.append(
      ','.join(map(str, [user, video, time, *flags, int(played), is_random]))
    )
  later.write_text('\n'.join(lines) + '\n')
  table = path.with_name('user_features_pure.csv')
  columns = [kuairand.USER, *kuairand.CONTEXT]
  lines = [','.join([str(user)] * len(columns)) for user in _VIEWERS]
  table.write_text('\n'.join([','.join(columns), *lines]) + '\n')
  with BlockRows(readers, rows):
    dataset = kuairand.load(path.parent, KuairandOptions())
  return _list_events(dataset, kuairand.ITEM)


def expect_log(content: bytes) -> list:
  rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
  if rows and len(rows) == 1:
    raise Refusal('no events')
  found = []
  for user, video, time, *flags, played, is_random in oracles.by_names(
    rows, _LOG
  ):
    bits = [_read_flag(flag) for flag in flags]
    action = sum(
      bit for on, (_, bit) in zip(bits, kuairand.ACTIONS, strict=True) if on
    )
    played = oracles.rating(played)
    if played < 0:
      raise Refusal('play time')
    time = _read_whole(time)
    if not _YEARS[0] <= time < _YEARS[1]:
      raise Refusal('time')
    found.append(
      (oracles.whole_id(user), oracles.whole_id(video), time,
       action, played, _read_flag(is_random))
    )  # fmt: skip
  if not {row[0] for row in found if not row[-1]} <= {*_VIEWERS}:
    raise Refusal('a user without a line')
  found = [row for row in found + _make_later_log() if not row[-1]]
  found = _sort(found, 0, 2)
  known = {row[1] for row in found if row[2] < _VALID_FROM}
  return [
    (user, video if video in known else None, action,
     float(np.float32(played) / np.float32(1000)), time // 1000)
    for user, video, time, action, played, _ in found
  ]  # fmt: skip


def _read_whole(word: str) -> int:
  """A whole number of 64 bits, 0 or more; 3.0 is one."""
  value = oracles.number(word)
  if not math.isfinite(value) or value != math.floor(value):
    raise Refusal('whole number')
  try:
    value = int(word)
  except ValueError:  # with a point or an exponent: what floats tell apart
    if value >= 2**53:
      raise Refusal('whole number') from None
  if not 0 <= value < 2**63:
    raise Refusal('whole number')
  return int(value)


def _read_flag(word: str) -> int:
  if (value := _read_whole(word)) > 1:
    raise Refusal('flag')
  return value


# --- Yambda

_SPLITS = dict(train=(0, 780), valid=(790, 890), test=(900, 10**9))
_WINDOWS = YambdaOptions(
  last_time=1000, test_s=100, valid_s=100, gap_s=10, step_s=0
)
_PLAYED = 'played_ratio_pct'


def make_yambda(rng) -> bytes:
  rows = []
  for user in range(1, rng.randrange(3, 6)):
    times = [rng.randrange(1000) for _ in range(rng.randrange(4))]
    times += [rng.randrange(100), rng.randrange(200, 780), 800, 950]
    rows += [(user, time) for time in sorted(times)]
  kinds = rng.choices(['listen', 'like', 'dislike'], [8, 2, 1], k=len(rows))
  kinds[:4] = ['listen'] * 4
  played = [rng.randrange(120) if x == 'listen' else None for x in kinds]
  whole = rng.choice([pa.uint32(), pa.int64(), pa.int32()])
  word = rng.choice([pa.string(), pa.dictionary(pa.int8(), pa.string())])
  return parquet.write_table(
    rng,
    {
      'uid': pa.array([user for user, _ in rows], whole),
      'timestamp': pa.array([time for _, time in rows], whole),
      'item_id': pa.array([rng.randrange(9) for _ in rows], whole),
      'event_type': pa.array(kinds).cast(word),
      _PLAYED: pa.array(played, rng.choice([pa.uint16(), pa.float32()])),
    },
  )


def read_yambda(path: pathlib.Path, rows: int) -> list:
  with BlockRows(readers, rows):
    dataset = yambda.load(path, _WINDOWS)
  return _list_events(dataset, yambda.ITEM)


def expect_yambda(content: bytes) -> list:
  names = ['uid', 'item_id', 'timestamp', 'event_type', _PLAYED]
  table = parquet.load_table(content, names)
  columns = [parquet.list_values(table, name) for name in names]
  for name in names:
    if pa.types.is_temporal(table.schema.field(name).type):
      raise Refusal('type')
  found, before = [], (0, 0)
  for user, item, time, kind, played in zip(*columns, strict=True):
    for number in (user, item, time):
      if number is None or number != number or not 0 <= number < 2**32:
        raise Refusal('number')
      if number != math.floor(number):
        raise Refusal('whole number')
    if time >= 2**31:
      raise Refusal('time')
    if kind not in ('listen', 'like', 'dislike', 'unlike', 'undislike'):
      raise Refusal('type')
    if kind == 'listen' and (
      played is None or not math.isfinite(played) or played < 0
    ):
      raise Refusal('share')
    if (user, time) < before:
      raise Refusal('order')
    before = user, time
    bits = dict(listen=1 if kind == 'listen' and played >= 50 else 4, like=2)
    if kind in bits:
      found.append((int(user), int(item), bits[kind], int(time)))
  users = {user: [x for x in found if x[0] == user] for user, *_ in found}
  train_end = _SPLITS['train'][1]
  users = {u: events for u, events in users.items() if events[0][3] < train_end}
  for low, high in _SPLITS.values():
    if not any(
      bits in (1, 4) and low <= time < high
      for events in users.values()
      for _, _, bits, time in events[1:]
    ):
      raise Refusal('a split without requests')
  kept = [x for events in users.values() for x in events]
  known = {item for _, item, _, time in kept if time < train_end}
  return [
    (user, item if item in known else None, bits, None, time)
    for user, item, bits, time in kept
  ]


# --- Candidates to predict for

_ASKED = ConfigDict(
  {
    'format': '',
    'columns': {'user': 'u', 'item': 'i', 'time': 't'},
  }
)


@functools.cache
def _make_dataset():
  """A stream with times, of users and items that are numbers."""
  return streaming.generate_requests(
    StreamOptions(
      users=3, items=40, categories=4, categories_per_user=2, steps=3,
      train_steps=2, events=5, deviation=1, train_candidates=2,
      inference_events=3, inference_candidates=2, true_time=True,
    )
  )  # fmt: skip


def make_candidates(rng) -> bytes:
  header = ['u', 'i', 't', 'note']
  rng.shuffle(header)
  lines = [','.join(header)]
  for _ in range(rng.randrange(1, 9)):
    row = dict(u=rng.choice([0, 1, 1, 2, 9, *WORDS[:2]]), note='x')
    row |= dict(i=rng.choice([3, 17, 39, 40, 'x']), t=rng.randrange(9) * 3600)
    lines.append(','.join(str(row[name]) for name in header))
  return ('\n'.join(lines) + '\n').encode()


def read_candidates(path: pathlib.Path, rows: int) -> list:
  """(request, user, item, events of the history, time) of each candidate."""
  dataset = _make_dataset()
  values = read_values(dataset.spec, dataset.vocabs)
  out = []
  with BlockRows(raw, rows):
    file = CandidateFile(path, _ASKED, dataset, values, 8)
    for block in file.read():
      asked = block.requests
      counts = np.diff(asked.offsets)
      begin = file.dataset.events.offsets[asked.user]
      columns = [asked.user, asked.end - begin, asked.time]
      user, events, time = (np.repeat(x, counts).tolist() for x in columns)
      item = asked.items['item'].tolist()
      out += zip(
        block.number.tolist(), user, item, events, time, strict=True
      )  # fmt: skip
  return out


def expect_candidates(content: bytes) -> list:
  text = oracles.decode(content, 'utf-8-sig', False)
  rows = oracles.split_csv(text, oracles.find_mark(text, ['u', 'i']))
  dataset = _make_dataset()
  stranger, unknown = dataset.events.users, dataset.spec.items[0].rows - 1
  out, number, before = [], 0, None
  if rows and len(set(map(str.strip, rows[0]))) < len(rows[0]):
    raise Refusal('columns')
  for user, item, time in oracles.by_names(rows, ['u', 'i', 't']):
    user, item, time = _tidy(user), _tidy(item), oracles.moment(time)
    if not user or not item:
      raise Refusal('nobody, or nothing')
    number += (user, time) != before
    before = user, time
    row = next(
      (i for i, x in enumerate(dataset.user_ids.tolist()) if str(x) == user),
      stranger,
    )
    events = 0
    if row < stranger:
      first, last = dataset.events.offsets[row : row + 2]
      events = sum(dataset.events.time[first:last].tolist()[i] <= time
                   for i in range(last - first))  # fmt: skip
      if events:
        oldest = dataset.events.time[first + max(0, events - 8)]
        if time - oldest >= 2**31:
          raise Refusal('a time of another unit')
    is_known = item.isdecimal() and item.isascii() and int(item) < unknown - 1
    is_known &= item == str(int(item)) if is_known else False
    place = int(item) + 1 if is_known else unknown
    out.append((number, row, place, events, time))
  return out


def _tidy(word: str) -> str:
  """7.0 is 7."""
  head, point, zeros = word.partition('.')
  whole = head.removeprefix('-')
  is_whole = whole.isdecimal() and whole.isascii() and str(int(whole)) == whole
  if is_whole and (not point or (zeros and not zeros.strip('0'))):
    return '0' if head == '-0' else head
  return word
