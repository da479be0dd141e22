"""Logs of one's own, and a plain reader of them that shares no code with ours.

Rows are dicts of texts as `csv` gives them, lists are searched from front to
back, and times are fractions of `fractions`.
"""

import csv
import datetime
import random
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.requests import plain_requests as plain

NAMES = (
  'user_id item at click stars event secs seen page genre size weight kept '
  'shown device'
).split()
START = 1_700_000_000
DEVICES = ('tv', '', 'phone')


def hash_page(page):
  return sum(map(ord, page))


def make_rows(seed, users=7):
  """Rows in no order; some times are shared, some come after long pauses."""
  draw, rows = random.Random(seed), []
  for user in range(users):
    moment = START * 1000 + draw.randrange(90_000_000)
    for visit in range(draw.choice([2, 5, 9])):
      moment += draw.choice([10_000, 40_000_000, 200_000_000])
      for _ in range(draw.choice([1, 2, 4])):
        moment += draw.choice([0, 0, 250, 60_000, 1_800_000, 1_800_001])
        rows.append(
          {
            'user_id': f'u{user}',
            'item': str(draw.randrange(12)),
            'at': str(moment),
            'click': str(draw.randrange(2)),
            'stars': draw.choice(['', '1', '3', '4', '4.5', '5']),
            'event': draw.choice(['view', 'buy', '']),
            'secs': draw.choice(['0', '1.5', '', '77.25']),
            'seen': str(draw.choice([0.5, 3, 9.25])),
            'page': f'{user}-{visit}-{draw.randrange(2)}',
            'genre': draw.choice(['jazz', 'pop', '']),
            'size': draw.choice(['1', '7', '20', '']),
            'weight': draw.choice(['0', '0.5', '2']),
            'kept': draw.choice(['0', '1']),
            'shown': draw.choice(['1', '1', '0']),
            'device': '',  # of a page, see below
          }
        )
  for row in rows:
    row['device'] = DEVICES[hash_page(row['page']) % 3]
  draw.shuffle(rows)
  return rows


def write_csv(path, names, rows):
  with open(path, 'w', newline='') as f:
    table = csv.DictWriter(f, names)
    table.writeheader()
    table.writerows(rows)


def write_parquet(path, names, rows):
  """With types, as a data frame writes them: nulls, floats and booleans."""
  columns = {}
  for name in names:
    cells = [row[name] or None for row in rows]
    if name in ('kept', 'shown'):
      columns[name] = pa.array([x == '1' for x in cells])
    elif name in ('item', 'at', 'click'):
      columns[name] = pa.array([int(x) for x in cells])
    elif name in ('stars', 'secs', 'seen', 'size', 'weight', 'year'):
      columns[name] = pa.array(
        [None if x is None else float(x) for x in cells], pa.float64()
      )
    else:
      columns[name] = pa.array(cells, pa.string()).dictionary_encode()
  pq.write_table(pa.table(columns), path, row_group_size=13)


def read_number(text):
  return float(text) if text else None


def holds(condition, row):
  """A condition of `LogOptions`, by splitting its text."""
  condition = condition.split(': ')[-1]
  if ' >= ' in condition:
    column, least = condition.split(' >= ')
    return row[column] != '' and float(row[column]) >= float(least)
  if ' == ' in condition:
    column, wanted = condition.split(' == ')
    return row[column] == wanted
  return row[condition] == '1'


def name_of(condition):
  if ': ' in condition:
    return condition.split(': ')[0]
  return condition.split(' == ')[-1] if ' == ' in condition else condition


def find_border(text, moments):
  if '-' in text:
    day = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return Fraction(int(day.timestamp()))
  if float(text) < 1:
    return sorted(moments)[int(float(text) * len(moments))]
  return Fraction(text)


def read_events(rows, o):
  """User -> rows in order, each with what it means."""
  events = {}
  for number, row in enumerate(rows):
    event = dict(row)
    event['is_asked'] = not o.candidate_if or holds(o.candidate_if, row)
    event['is_kept'] = not o.event_if or holds(o.event_if, row)
    if not (event['is_asked'] or event['is_kept']):
      continue
    units = {'s': 1, 'ms': 1000, 'us': 1_000_000}
    event['moment'] = (
      Fraction(row[o.time]) / units[o.time_unit] if o.time else Fraction(number)
    )
    event['action'] = sum(
      2**i for i, x in enumerate(o.actions) if holds(x, row)
    )
    events.setdefault(row[o.user], []).append(event)
  for user, some in events.items():
    some.sort(key=lambda event: event['moment'])  # stable
    if o.duplicates == 'drop':
      kept = []
      for event in some:
        key = event['moment'], event[o.item]
        if key not in [(x['moment'], x[o.item]) for x in kept]:
          kept.append(event)
      events[user] = kept
  every = [x for some in events.values() for x in some]
  asked = [x['moment'] for x in every if x['is_asked']]
  first = min(x['moment'] for x in every)
  midnight = first - first % 86_400
  test = find_border(o.test_from, asked)
  valid = find_border(o.valid_from, asked) if o.valid_from else test
  for event in every:
    event['split'] = 'train'
    if event['moment'] >= valid:
      event['split'] = 'valid'
    if event['moment'] >= test:
      event['split'] = 'test'
    event['step'] = None
    if o.step_s:
      event['step'] = int((event['moment'] - midnight) // o.step_s)
  return events


def cut_user(some, o):
  """Pairs (rows before, candidates) of one user."""
  asked = [i for i, event in enumerate(some) if event['is_asked']]

  def breaks(a, b):
    pause = o.pause_s and o.time and b['moment'] - a['moment'] > o.pause_s
    other = any(a[x] != b[x] for x in o.request_features)
    return pause or other or a['split'] != b['split'] or a['step'] != b['step']

  if not o.request:
    return plain.cut(some, asked, breaks, most=o.candidates, history=o.history)
  groups = []
  for i in asked:
    key = some[i][o.request], some[i]['split'], some[i]['step']
    for known, members in groups:
      if known == key:
        members.append(i)
        break
    else:
      groups.append((key, [i]))
  found = []
  for _, members in groups:
    first = members[0]
    past = some[:first]
    if o.history == 'before':
      past = [x for x in past if x['moment'] < some[first]['moment']]
    found.append((past, [some[i] for i in members]))
  return found


def read_id(texts, text):
  """A number where all texts but '' are whole numbers."""
  is_whole = all(x == '' or (x.isdecimal() and str(int(x)) == x) for x in texts)
  return int(text) if is_whole and text else text


def describe(rows, o, items=(), users=()):
  """Split -> requests, as `plain.expand` gives them."""
  events = read_events(rows, o)
  of_item, of_user = {}, {}
  if o.item_features:
    of_item = {row[o.items_id or o.item]: row for row in items}
  if o.user_features:
    of_user = {row[o.users_id or o.user]: row for row in users}
  found = {'train': [], 'valid': [], 'test': []}
  for user in sorted(events, key=lambda x: read_id(events, x)):
    for past, ahead in cut_user(events[user], o):
      past = [event for event in past if event['is_kept']]
      if len(past) >= o.min_history:
        found[ahead[0]['split']].append((user, past, ahead))
  if o.step_s:
    for requests in found.values():
      requests.sort(
        key=lambda x: (
          x[2][0]['step'],
          x[2][0]['moment'],
          read_id(events, x[0]),
        )
      )
  every = [x for some in events.values() for x in some]

  def look_up(event, name):
    if name in o.item_features:
      return of_item.get(event[o.item], {}).get(name, '')
    return event[name]

  names = [o.item, *o.features, *o.item_features]
  all_texts, known = {}, {}
  for name in (*names, *o.candidate_features):
    table = [row[name] for row in items] if name in o.item_features else []
    all_texts[name] = {look_up(x, name) for x in every} | {*table}
    counts = plain.count_values(
      [look_up(x, name) for x in every if x['split'] == 'train']
    )
    least = o.min_count if name == o.item else 1
    known[name] = {x for x, n in counts.items() if n >= least}
  trained = {user for user, _, _ in found['train']}

  def describe_value(event, name):
    text = plain.encode(look_up(event, name), known[name])
    if text in (plain.MISSING, plain.UNKNOWN):
      return text
    return read_id(all_texts[name], text)

  def describe_user(user):
    context = {
      o.user: plain.UNKNOWN if user not in trained else read_id(events, user)
    }
    for name in o.user_features:
      values = {x: row[name] for x, row in of_user.items()}
      seen = {values.get(x, '') for x in trained}
      text = plain.encode(values.get(user, ''), seen)
      if text not in (plain.MISSING, plain.UNKNOWN):
        text = read_id([*values.values()], text)
      context[name] = text
    return context

  firsts = [ahead[0] for _, _, ahead in found['train']]

  def describe_request(user, first):
    context = describe_user(user)
    for name in o.request_features:
      text = plain.encode(first[name], {x[name] for x in firsts})
      if text not in (plain.MISSING, plain.UNKNOWN):
        text = read_id({x[name] for x in every}, text)
      context[name] = text
    return context

  def describe_candidate(event):
    out = {x: describe_value(event, x) for x in (*names, *o.candidate_features)}
    out |= {name_of(x): float(holds(x, event)) for x in o.labels}
    return out | {
      name_of(x): plain.round_to_float32(float(event[x.split(': ')[-1]]))
      for x in o.regression
    }

  return {
    split: [
      {
        'user': read_id(events, user),
        'context': describe_request(user, ahead[0]),
        'history': [
          {x: describe_value(event, x) for x in names}
          | {'action': event['action'], 'time': int(event['moment'])}
          | (
            {'watch_time': float(event[o.watch_time] or 0)}
            if o.watch_time
            else {}
          )
          for event in past
        ],
        'candidates': [describe_candidate(event) for event in ahead],
        'weights': [
          float(event[o.weight]) if o.weight else 1.0 for event in ahead
        ],
        'time': int(
          (past[-1] if o.asked_at == 'last_event' else ahead[0])['moment']
        ),
        'step': ahead[0]['step'],
      }
      for user, past, ahead in requests
    ]
    for split, requests in found.items()
  }
