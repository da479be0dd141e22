"""Proposers: they choose which option of each table to try next.

Each yields tuples with the number of an option for every item (a table, or
tables that stay together); the caller places them and keeps the best.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.options import Option

MOST_GRID = 10_000
BINS = 100  # of memory, for each device
FRUGAL = 8  # sizes of pieces

Items = Sequence[Sequence[Option]]
Proposal = tuple[int, ...]


def greedy_max(items: Items, topology, budget) -> Iterator[Proposal]:
  """Begins with the options whose busiest device is the least busy."""
  return _propose_greedy(items, lambda option: option.time)


def greedy_sum(items: Items, topology, budget) -> Iterator[Proposal]:
  """Begins with the options that cost all devices together the least."""
  return _propose_greedy(items, lambda option: option.time * option.shards)


def _propose_greedy(items: Items, key) -> Iterator[Proposal]:
  """Moves the table with the most bytes on to its next best option."""
  ranked = [
    sorted(range(len(o)), key=lambda i, o=o: (key(o[i]), i)) for o in items
  ]
  at, chosen = [0] * len(items), [order[0] for order in ranked]

  def weigh_item(item):
    option = items[item][chosen[item]]
    return -option.bytes, -option.total_bytes, item

  heap = [weigh_item(i) for i in range(len(items)) if len(ranked[i]) > 1]
  heapq.heapify(heap)
  while True:
    yield tuple(chosen)
    if not heap:
      return
    item = heap[0][-1]
    at[item] += 1
    chosen[item] = ranked[item][at[item]]
    if at[item] + 1 < len(ranked[item]):
      heapq.heapreplace(heap, weigh_item(item))
    else:
      heapq.heappop(heap)


def propose_uniform(items: Items, topology, budget) -> Iterator[Proposal]:
  """The same scheme for all tables, with the fastest number of pieces."""
  used = {option.scheme: None for options in items for option in options}
  for scheme in {**SCHEMES, **used}:
    chosen = []
    for options in items:
      having = [i for i, o in enumerate(options) if o.scheme == scheme]
      if not having:
        break
      chosen.append(min(having, key=lambda i: (options[i].time, i)))
    else:
      yield tuple(chosen)


def propose_grid(items: Items, topology, budget) -> Iterator[Proposal]:
  """Everything, where that is not too much."""
  if math.prod(len(options) for options in items) <= MOST_GRID:
    yield from itertools.product(*(range(len(o)) for o in items))


def propose_dynamic(
  items: Items, topology: Topology, budget: int, most: int = 100
) -> Iterator[Proposal]:
  """The least total time for every total of bytes, from many to few.

  Bytes are counted in bins; `most` totals are taken, evenly among those that
  can be reached.
  """
  bins = BINS * topology.group_size
  size = max(1.0, budget * topology.group_size / bins)
  best = np.full(bins + 1, np.inf)
  best[0] = 0.0
  chosen = np.zeros((len(items), bins + 1), np.int16)
  needs = [[round(o.total_bytes / size) for o in opts] for opts in items]
  for item, options in enumerate(items):
    ahead = np.full(bins + 1, np.inf)
    for number, (option, need) in enumerate(
      zip(options, needs[item], strict=True)
    ):
      if need > bins:
        continue
      total = best[: bins + 1 - need] + option.time * option.shards
      better = total < ahead[need:]
      ahead[need:][better] = total[better]
      chosen[item, need:][better] = number
    best = ahead
  reached = np.flatnonzero(np.isfinite(best))[::-1]
  if len(reached) > most:
    reached = reached[np.linspace(0, len(reached) - 1, most).astype(int)]
  for at in reached:
    proposal = []
    for item in reversed(range(len(items))):
      proposal.append(int(chosen[item, at]))
      at -= needs[item][proposal[-1]]
    yield tuple(reversed(proposal))


def propose_frugal(items: Items, topology, budget) -> Iterator[Proposal]:
  """The fewest bytes in all, with pieces that are smaller and smaller.

  A large piece finds no room beside others; small ones have more buffers.
  """
  for halvings in range(FRUGAL):
    most = budget / 2**halvings
    yield tuple(
      min(
        range(len(options)),
        key=lambda i, o=options: (
          max(o[i].bytes, most),
          o[i].total_bytes,
          o[i].time,
        ),
      )
      for options in items
    )


PROPOSERS = {
  'grid': propose_grid,
  'greedy_max': greedy_max,
  'greedy_sum': greedy_sum,
  'uniform': propose_uniform,
  'dynamic': propose_dynamic,
  'frugal': propose_frugal,
}
