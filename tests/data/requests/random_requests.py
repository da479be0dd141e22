"""Datasets of requests drawn at random, and what batches of them must hold.

The second is plain Python, one event at a time, and shares no code with what it
is compared with: it hashes with Python's own integers.
"""

import math

import numpy as np

from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec

ROWS = {'item': 50, 'genre': 7, 'user': 40, 'age': 5, 'place': 4}
# Of the context, those that belong to requests.
OF_REQUESTS = {'device': 6, 'tag': 4, 'hour': 25}
TAGS = ['tag.0', 'tag.1', 'tag.2']  # slots of one feature


def make_spec(
  timed=True, watch_time=True, context=True, places=False, devices=False
) -> RequestSpec:
  return RequestSpec(
    items=(FeatureSpec('item', rows=50), FeatureSpec('genre', rows=7)),
    context=tuple(
      FeatureSpec('tag', 'multi_hot', rows=4, max_len=3)
      if name == 'tag'
      else FeatureSpec(name, rows=(ROWS | OF_REQUESTS)[name])
      # Between those of the user, so that places count.
      for name in ('device', 'user', 'tag', 'hour', 'age')
      if (devices if name in OF_REQUESTS else context)
    ),
    actions=(('like', 1), ('share', 4), ('hide', 16)),
    labels=(LabelSpec('liked'), LabelSpec('seconds', 'regression')),
    watch_time=watch_time,
    timed=timed,
    candidates=(FeatureSpec('place', rows=4),) if places else (),
  )


def list_columns(spec) -> list[tuple[str, str]]:
  """(feature, column) of the context."""
  columns = []
  for f in spec.context:
    columns += [(f.name, c) for c in (TAGS if f.name == 'tag' else [f.name])]
  return columns


def make_dataset(
  seed=0,
  *,
  users=12,
  longest=40,
  most_candidates=9,
  steps=0,
  weighted=True,
  **options,
) -> RequestDataset:
  """Users with 0 to `longest` events, and requests at any place in them."""
  rng = np.random.default_rng(seed)
  spec = make_spec(**options)
  lengths = rng.integers(0, longest + 1, users)
  lengths[rng.integers(users)] = 0
  offsets = np.concatenate([[0], np.cumsum(lengths)])
  size = offsets[-1]

  def rows(name, count):
    most = (ROWS | OF_REQUESTS)[name]
    return rng.integers(0, most, count).astype(np.int32)

  time = np.concatenate(
    [np.sort(rng.integers(1e9, 1e9 + 5_000, n)) for n in lengths]
  ).astype(np.int64)
  events = EventStore(
    offsets=offsets,
    items={'item': rows('item', size), 'genre': rows('genre', size)},
    action=rng.choice(np.int32([0, 1, 4, 5, 16, 21]), size),
    time=time if spec.timed else None,
    watch_time=rng.random(size).astype(np.float32) if spec.watch_time else None,
  )
  splits = {
    name: _make_requests(rng, spec, events, count, most_candidates, steps, rows)
    for name, count in (('train', 23), ('test', 11))
  }
  if not weighted:
    for name, split in splits.items():
      splits[name] = Requests(**{**vars(split), 'weight': None})
  return RequestDataset(
    name='random',
    spec=spec,
    events=events,
    # In another order than the spec has them.
    context={
      f.name: rows(f.name, users)
      for f in reversed(spec.context)
      if f.name not in OF_REQUESTS
    },
    splits=splits,
    vocabs={'item': Vocab(np.arange(100, 149)), 'genre': Vocab(list('abcde'))},
    user_ids=np.array([f'u{i}' for i in range(users)]),
  )


def _make_requests(rng, spec, events, count, most_candidates, steps, rows):
  user = rng.integers(0, events.users, count).astype(np.int32)
  begin, last = events.offsets[user], events.offsets[user + 1]
  end = rng.integers(begin, last + 1)
  asked = rng.integers(0, most_candidates + 1, count)
  asked[rng.integers(count)] = 0
  offsets = np.concatenate([[0], np.cumsum(asked)])
  time = None
  if spec.timed:
    before = np.where(end > begin, events.time[np.maximum(end, 1) - 1], 1e9)
    time = before.astype(np.int64) + rng.integers(0, 99, count)
  step = None
  if steps:
    step = np.sort(rng.integers(-1, steps - 1, count)).astype(np.int32)
  return Requests(
    user=user,
    end=end,
    offsets=offsets,
    items={f.name: rows(f.name, offsets[-1]) for f in spec.candidate_features},
    labels={
      'liked': rng.integers(0, 2, offsets[-1]).astype(np.float32),
      'seconds': rng.random(offsets[-1]).astype(np.float32),
    },
    weight=rng.random(offsets[-1]).astype(np.float32),
    time=time,
    step=step,
    context={
      column: rows(name, count)
      for name, column in reversed(list_columns(spec))
      if name in OF_REQUESTS
    },
  )


def mix(x: int) -> int:
  x &= 2**64 - 1
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
  return x ^ (x >> 31)


GOLDEN = 0x9E3779B97F4A7C15


def key_of(*numbers: int) -> int:
  key = 0
  for number in numbers:
    key = mix((key ^ number) + GOLDEN)
  return key


def bits_of(key: int, number: int) -> int:
  return mix(key + GOLDEN * number)


def uniform(bits: int) -> float:
  return ((bits >> 12) + 0.5) / 2**52


def keep_events(ages, most, alpha, selector, key) -> list[int]:
  """Places of the events that stochastic length keeps, one history."""
  n = len(ages)
  threshold = math.floor(round(most ** (alpha / 2), 9))
  if n <= threshold or uniform(bits_of(key, 0)) >= 1 - most**alpha / n**2:
    return list(range(n))
  if selector == 'greedy':
    return list(range(n - threshold, n))
  keys = [bits_of(key, 1 + i) for i in range(n)]
  if selector == 'feature_weighted' and sum(ages):
    weights = [1 - age / sum(ages) for age in ages]
    keys = [
      -math.log1p(-uniform(k)) / w if w else math.inf
      for k, w in zip(keys, weights, strict=True)
    ]
  return sorted(sorted(range(n), key=keys.__getitem__)[:threshold])


def read_slowly(
  dataset,
  split,
  request,
  *,
  max_history,
  max_candidates,
  chunk=None,
  draws=None,
  oldest=False,
) -> dict:
  """What an example must hold; columns are lists."""
  events, spec = dataset.events, dataset.spec
  user = int(split.user[request])
  begin, end = int(events.offsets[user]), int(split.end[request])
  at = list(range(begin, end))
  at = at[:max_history] if oldest else at[-max_history:]
  now = int(split.time[request]) if spec.timed else 0
  ages = [now - int(events.time[p]) if spec.timed else 0 for p in at]
  if draws and draws.stochastic:
    key = key_of(draws.seed, draws.epoch, user, request, 0)
    how = draws.stochastic
    places = keep_events(ages, max_history, how.alpha, how.selector, key)
    at, ages = [at[i] for i in places], [ages[i] for i in places]
  asked = list(range(split.offsets[request], split.offsets[request + 1]))
  if chunk is not None:
    asked = asked[chunk * max_candidates : (chunk + 1) * max_candidates]
  elif len(asked) > max_candidates:
    key = key_of(draws.seed, draws.epoch, user, request, 1)
    order = sorted(range(len(asked)), key=lambda i: bits_of(key, i))
    asked = [asked[i] for i in sorted(order[:max_candidates])]
  monday = 4 * 86_400  # 1970
  return {
    'row': request,
    'group': user,
    'week_second': (now - monday) % (7 * 86_400) if spec.timed else 0,
    'context': [
      int(split.context[column][request])
      if name in OF_REQUESTS
      else int(dataset.context[column][user])
      for name, column in list_columns(spec)
    ],
    'history': [
      [int(events.items[f.name][p]) for f in spec.items]
      + [int(events.action[p]), age]
      for p, age in zip(at, ages, strict=True)
    ],
    'watch_time': (
      [float(events.watch_time[p]) for p in at] if spec.watch_time else None
    ),
    'candidates': [
      [int(split.items[f.name][p]) for f in (*spec.items, *spec.candidates)]
      for p in asked
    ],
    'floats': [
      [float(split.labels[x.name][p]) for x in spec.labels]
      + [1.0 if split.weight is None else float(split.weight[p])]
      for p in asked
    ],
  }


def unpack(batch, spec, shards=1) -> list[list[dict]]:
  """The examples of each shard of a batch, as `read_slowly` has them."""
  history, candidates = batch.jagged['history'], batch.jagged['candidates']
  items = [f.name for f in spec.items]
  assert history.columns.names == (*items, 'action', 'age')
  alone = [f.name for f in spec.candidates]
  assert candidates.columns.names == (*items, *alone)
  labels = tuple(x.name for x in spec.labels)
  assert candidates.floats.names == (*labels, 'weight')
  assert batch.int_extras.names == ('week_second',)
  if spec.watch_time:
    assert history.floats.names == ('watch_time',)
  else:
    assert history.floats is None
  if spec.context:
    assert batch.ids.names == tuple(column for _, column in list_columns(spec))
  else:
    assert batch.ids is None
  for array in (history.columns.values, candidates.columns.values, batch.row,
                batch.group, history.lengths, candidates.lengths,
                batch.int_extras.values, history.first, candidates.first,
                batch.first):  # fmt: skip
    assert array.dtype == np.int32
  assert candidates.floats.values.dtype == np.float32
  share = len(batch.row) // shards
  out = []
  for shard in range(shards):
    places = [0, 0]
    out.append([])
    for i in range(shard * share, (shard + 1) * share):
      spans = []
      for kind, jagged in enumerate((history, candidates)):
        size = len(jagged.columns.values) // shards
        begin = shard * size + places[kind]
        places[kind] += int(jagged.lengths[i])
        assert places[kind] <= size
        spans.append(slice(begin, begin + int(jagged.lengths[i])))
      if batch.row[i] < 0:
        assert batch.group[i] == -1 and batch.weights[i] == 0
        assert not history.lengths[i] and not candidates.lengths[i]
        assert not batch.int_extras.values[i].any()
        assert batch.ids is None or not batch.ids.values[i].any()
        continue
      assert batch.weights[i] == 1
      out[-1].append({
        'row': int(batch.row[i]),
        'group': int(batch.group[i]),
        'week_second': int(batch.int_extras.values[i, 0]),
        'context': batch.ids.values[i].tolist() if spec.context else [],
        'history': history.columns.values[spans[0]].tolist(),
        'watch_time': (
          history.floats.values[spans[0], 0].tolist()
          if spec.watch_time
          else None
        ),
        'candidates': candidates.columns.values[spans[1]].tolist(),
        'floats': candidates.floats.values[spans[1]].tolist(),
      })  # fmt: skip
    # Behind the last value of a shard there is nothing.
    for kind, jagged in enumerate((history, candidates)):
      size = len(jagged.columns.values) // shards
      rest = slice(shard * size + places[kind], (shard + 1) * size)
      assert not jagged.columns.values[rest].any()
      assert jagged.floats is None or not jagged.floats.values[rest].any()
  return out
