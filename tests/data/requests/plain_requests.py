"""Requests in plain Python: the oracle of the readers, and what they made.

Loops over dicts, which share no line with the package.
"""

import struct

UNKNOWN, MISSING = '<unknown>', '<missing>'


def cut(
  events, asked, breaks, *, most, min_history=1, history='order', from_end=False
):
  """Pairs (events of the history, candidates) of one user, as lists.

  Args:
    events: of the user, in order of time; 'moment' is the time.
    asked: numbers of the events that are candidates.
    breaks: whether the second of two candidates begins another request.
    most: candidates of a request.
    min_history: fewest events of a history.
    history: 'order' or 'before'.
    from_end: pieces are cut from the end.
  """
  runs = []
  for number in asked:
    if not runs or breaks(events[runs[-1][-1]], events[number]):
      runs.append([])
    runs[-1].append(number)
  requests = []
  for run in runs:
    pieces = []
    while run:
      if from_end:
        pieces.insert(0, run[-most:])
        run = run[:-most]
      else:
        pieces.append(run[:most])
        run = run[most:]
    for piece in pieces:
      past = events[: piece[0]]
      if history == 'before':
        now = events[piece[0]]['moment']
        past = [event for event in past if event['moment'] < now]
      if len(past) >= min_history:
        requests.append((past, [events[number] for number in piece]))
  return requests


def encode(value, known):
  """The value as a model sees it, given those that training knows."""
  if value == '':
    return MISSING
  return value if value in known else UNKNOWN


def count_values(values):
  counts = {}
  for value in values:
    counts[value] = counts.get(value, 0) + 1
  return counts


def decode(dataset, feature, rows):
  """The values of rows of the table of a feature."""
  ids = dataset.vocabs[feature.source].ids.tolist()
  assert feature.rows == len(ids) + 2
  names = [MISSING, *ids, UNKNOWN]
  return [names[row] for row in rows.tolist()]


def expand(dataset, split):
  """What a data set says of each request of a split, as `describe`."""
  events, requests = dataset.events, dataset.splits[split]
  spec = dataset.spec
  items = {f.name: decode(dataset, f, events.items[f.name]) for f in spec.items}
  asked = {
    f.name: decode(dataset, f, requests.items[f.name])
    for f in (*spec.items, *spec.candidates)
  }
  of_user, of_request = (
    {
      f.name: decode(dataset, f, owner.context[f.name])
      for f in spec.context
      if f.name in owner.context
    }
    for owner in (dataset, requests)
  )
  out = []
  for r in range(len(requests)):
    user = int(requests.user[r])
    past = range(int(events.offsets[user]), int(requests.end[r]))
    ahead = range(int(requests.offsets[r]), int(requests.offsets[r + 1]))
    out.append(
      {
        'user': dataset.user_ids[user].item(),
        'context': {name: values[user] for name, values in of_user.items()}
        | {name: values[r] for name, values in of_request.items()},
        'history': [
          {name: values[i] for name, values in items.items()}
          | {'action': int(events.action[i]), 'time': int(events.time[i])}
          | (
            {'watch_time': float(events.watch_time[i])}
            if spec.watch_time
            else {}
          )
          for i in past
        ],
        'candidates': [
          {name: values[i] for name, values in asked.items()}
          | {x.name: float(requests.labels[x.name][i]) for x in spec.labels}
          for i in ahead
        ],
        'time': int(requests.time[r]),
        'step': None if requests.step is None else int(requests.step[r]),
      }
    )
  return out


def check_shapes(dataset):
  """What the contract says of every data set."""
  events = dataset.events
  count = len(events)
  assert events.offsets[0] == 0 and len(dataset.user_ids) == events.users
  assert events.offsets.dtype == events.time.dtype == 'int64'
  assert events.action.dtype == 'int32' and len(events.action) == count
  for feature in dataset.spec.items:
    assert events.items[feature.name].dtype == 'int32'
    assert len(events.items[feature.name]) == len(events.time) == count
  if dataset.spec.watch_time:
    assert events.watch_time.dtype == 'float32'
  for rows in dataset.context.values():
    assert rows.dtype == 'int32' and len(rows) == events.users
  for requests in dataset.splits.values():
    for rows in requests.context.values():
      assert rows.dtype == 'int32' and len(rows) == len(requests)
    owned = [*dataset.context, *requests.context]
    assert sorted(owned) == sorted(f.name for f in dataset.spec.context)
    assert requests.user.dtype == 'int32'
    assert requests.end.dtype == requests.offsets.dtype == 'int64'
    assert requests.offsets[0] == 0
    assert len(requests.offsets) == len(requests) + 1 == len(requests.end) + 1
    assert (requests.time >= events.time[requests.end - 1]).all()
    assert (requests.end <= events.offsets[requests.user + 1]).all()
    for label in dataset.spec.labels:
      assert requests.labels[label.name].dtype == 'float32'
      assert len(requests.labels[label.name]) == requests.candidates
    names = {f.name for f in (*dataset.spec.items, *dataset.spec.candidates)}
    assert set(requests.items) == names
    for rows in requests.items.values():
      assert rows.dtype == 'int32' and len(rows) == requests.candidates
    if requests.step is not None:
      assert requests.step.dtype == 'int32'
      assert sorted(requests.step) == requests.step.tolist()


def round_to_float32(value):
  return struct.unpack('f', struct.pack('f', value))[0]
