"""A cache of histories under a stream of requests: hits, evictions, cost.

  python -m benchmarks.cache_stream
  python -m benchmarks.cache_stream --requests 500

Users ask by Zipf's law (the n-th most active one 1/n times as often as the
first), each time for 256 candidates and often with some new events. A
generative ranker of three layers with fresh weights answers through
`serve.cached_scorer`. A case is the share of all users' keys and values that
fits on the device, with or without a host tier for the others:

  nothing kept     every history is computed for each request
  device 10 %      a tenth fits, nobody is kept elsewhere
  device 10 % + host   and the host has room for the others
  new weights      everything fits; the weights change every 250 requests, as a
                   service that follows a training does it (`CachedScorer.use`)

`hit_%` is the share of requests that find their user on the device,
`host_hit_%` on the host, `core_ms` processor time of a request, and
`of_nothing_x` how many times longer it takes with nothing kept.
`wrong` counts requests of which some score is off by more than 1e-5 of what it
is with nothing kept.
"""

import dataclasses
import time

import jax
import numpy as np

from benchmarks import cli, mfalcon
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.serve.cached_scorer import CachedScorer, CacheOptions

COLUMNS = (
  'case', 'hit_%', 'host_hit_%', 'evicted', 'moved', 'rebuilt',
  'kept_events', 'extended_events', 'core_ms', 'of_nothing_x', 'device_mb',
  'wrong',
)  # fmt: skip
USERS, REQUESTS, LONGEST, CANDIDATES = 400, 1000, 512, 256
SHARES = (0.05, 0.1, 0.25, 0.5)
EVERY = 250  # requests between two sets of weights
NOTES = (
  'Users by Zipf, 1/n; histories of 32 to 512 events to begin with, three in '
  'four requests with one to three new ones.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A cache under the stream.

  Attributes:
    name: as rows have it.
    device: share of all users' rows that fits on the device.
    host: whether the others are kept on the host.
    keeps: whether anything is kept.
    changes: whether the weights change.
  """

  name: str
  device: float = 1.0
  host: bool = False
  keeps: bool = True
  changes: bool = False


def list_cases() -> list[Case]:
  cases = [Case('nothing kept', keeps=False)]
  for share in SHARES:
    name = f'device {100 * share:g} %'
    cases += [Case(name, share), Case(f'{name} + host', share, True)]
  return [
    *cases,
    Case('all on the device'),
    Case('new weights', changes=True),
    Case('new weights, nothing kept', keeps=False, changes=True),
  ]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('cache_stream', __doc__)
  parser.add_argument('--requests', type=int, default=REQUESTS)
  parser.add_argument('--users', type=int, default=USERS)
  args = parser.parse_args(argv)
  if args.smoke:
    args.requests, args.users = 40, 12
  stream = draw_stream(args)
  rows, scores = [], {}
  for case in list_cases():
    row, found = run(case, stream, args)
    base = scores.setdefault(case.changes, found)
    pairs = zip(found, base, strict=True)
    row['wrong'] = sum(bool(np.abs(a - b).max() > 1e-5) for a, b in pairs)
    rows.append(row)
    print(cli.table([row], COLUMNS).splitlines()[-1], flush=True)
  without = {r['changes']: r['core_ms'] for r in rows if not r['keeps']}
  rows = [
    row | {'of_nothing_x': without[row['changes']] / row['core_ms']}
    for row in rows
  ]
  cli.finish(args, 'cache_stream', rows, COLUMNS, NOTES)


def draw_stream(args) -> tuple[RequestDataset, Requests]:
  """Users with their events, and requests in the order in which they come."""
  rng = np.random.default_rng(0)
  longest = 24 if args.smoke else LONGEST
  chances = 1 / np.arange(1, args.users + 1)
  user = rng.choice(args.users, args.requests, p=chances / chances.sum())
  known = rng.integers(longest // 16 + 1, longest - 3, args.users)
  # A user who asks often would fill any history: it stays within the longest,
  # as of a service that drops users' oldest events at night.
  most = longest - known
  ends = np.zeros(args.requests, np.int64)
  added = np.zeros(args.users, np.int64)
  for r, u in enumerate(user):
    added[u] = min(added[u] + rng.integers(0, 4), most[u])
    ends[r] = known[u] + added[u]
  counts = known + added
  offsets = np.concatenate([[0], np.cumsum(counts)])
  total = int(offsets[-1])
  item = rng.integers(1, mfalcon.ITEMS, total).astype(np.int32)
  times = np.concatenate(
    [np.cumsum(rng.integers(1, 9_000, count)) for count in counts]
  )
  size = 16 if args.smoke else CANDIDATES
  dataset = RequestDataset(
    name='stream',
    spec=mfalcon.SPEC,
    events=EventStore(
      offsets,
      {'item': item, 'category': item % 499 + 1},
      rng.integers(0, 4, total).astype(np.int32),
      times,
    ),
    context={'user': np.arange(1, args.users + 1, dtype=np.int32) % 999},
    splits={},
    vocabs={},
    user_ids=np.arange(args.users),
  )
  asked = rng.integers(1, mfalcon.ITEMS, args.requests * size).astype(np.int32)
  requests = Requests(
    user=user.astype(np.int32),
    end=offsets[user] + ends,
    offsets=np.arange(args.requests + 1) * size,
    items={'item': asked, 'category': asked % 499 + 1},
    labels={},
    time=times[offsets[user] + ends - 1] + 60,
  )
  return dataset, requests


def run(case: Case, stream, args) -> tuple[dict, list[np.ndarray]]:
  """The row of a case, and the scores of its requests."""
  dataset, requests = stream
  longest = 24 if args.smoke else LONGEST
  size = 16 if args.smoke else CANDIDATES
  task, weights = mfalcon.make_task(longest, size, args)
  scorers = [
    mfalcon.make_scorer(
      task, jax.tree.map(lambda x, n=n: x * (1 + 0.01 * n), weights)
    )
    for n in range(2)
  ]
  probe = CachedScorer(scorers[0], CacheOptions(micro_batch=size))
  slots, row_bytes = len(mfalcon.SPEC.context), probe.cache.row_bytes
  counts = np.diff(dataset.events.offsets) + slots
  page = probe.options.page_tokens
  whole = int((-(-counts // page) * page).sum()) * row_bytes
  options = CacheOptions(
    micro_batch=size, extend_by=4,
    device_bytes=max(case.device * whole, 2.0 * (longest + page) * row_bytes),
    host_bytes=whole if case.host else 0,
  )  # fmt: skip
  cached = CachedScorer(scorers[0], options)
  cached.warm_up()
  cached.cache.counts = type(cached.cache.counts)()
  scores, start = [], time.process_time()
  for r in range(len(requests)):
    if case.changes and r and r % EVERY == 0:
      cached.use(scorers[r // EVERY % 2])
    if not case.keeps:
      cached.cache.clear()
    (found,) = cached.score_requests(dataset, requests.take(r))
    scores.append(found)
  spent = time.process_time() - start
  hits, work = cached.cache.counts, cached.work
  asked = len(requests)
  return {
    'case': case.name,
    'keeps': case.keeps,
    'changes': case.changes,
    'hit_%': 100 * hits.hits / asked,
    'host_hit_%': 100 * hits.host_hits / asked,
    'evicted': hits.evicted,
    'moved': hits.moved,
    'rebuilt': work.rebuilt,
    'kept_events': work.kept_events,
    'extended_events': work.extended_events,
    'core_ms': 1e3 * spent / asked,
    'device_mb': options.device_bytes / 1e6,
    'all_mb': whole / 1e6,
    'users_per_gb': 1e9 * args.users / whole,
  }, scores


if __name__ == '__main__':
  main()
