"""Karmarkar and Karp's differencing, for many devices, with a cap on bytes.

Every piece begins as a partition of its own: its time on one device and nothing
on the others. The two least even partitions are merged, the busiest device of
one with the least busy device of the other, until only one partition is left.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from genrec_jax.embedding.scheme import HOST
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.options import Option
from genrec_jax.planner.partition import (
  PartialPlacement,
  Placement,
  partition_lpt,
)


def partition_ldm(
  options: Sequence[Option], topology: Topology, cap: int
) -> Placement | None:
  """Largest differencing for pieces of one device; the others as in `lpt`.

  A device with too many bytes gives up its smallest pieces. Where nobody can
  take them, the answer is that of `lpt`.
  """
  filling = PartialPlacement(options, topology, cap)
  if not filling.begin():
    return None
  units = []
  for index in sorted(
    filling.unplaced_options(), key=lambda i: (-filling.options[i].time, i)
  ):
    option = filling.options[index]
    if option.kind.spread == HOST:
      placed = filling.place_on_host(index)
    elif option.kind.one_host:
      placed = filling.place_within_host(index)
    else:
      units += [(index, piece) for piece in range(option.pieces)]
      continue
    if not placed:
      return partition_lpt(options, topology, cap)
  times = [filling.options[index].time for index, _ in units]
  bins = difference_times(times, filling.time)
  for device, members in enumerate(bins):
    for unit in members:
      filling.put(filling.options[units[unit][0]], (device,))
  if not _repair_placement(filling, units, bins):
    return partition_lpt(options, topology, cap)
  for device, members in enumerate(bins):
    for unit in members:
      index, piece = units[unit]
      filling.at[index][piece] = device
  return filling.build_placement()


def difference_times(
  times: Sequence[float], begun: Sequence[float]
) -> list[list[int]]:
  """Splits `times` over the devices.

  Args:
    times: of each piece, in seconds.
    begun: seconds each device has to do already.

  Returns:
    The numbers of the pieces on each device.
  """
  count = len(begun)
  # (-spread, order, sums from high to low, members of each, devices or None)
  order = np.argsort(-np.asarray(begun), kind='stable')
  sums = np.asarray(begun)[order]
  heap = [(sums[-1] - sums[0], 0, sums, [()] * count, order)]
  for number, time in enumerate(times):
    sums = np.zeros(count)
    sums[0] = time
    members = [(number,)] + [()] * (count - 1)
    heap.append((-time if count > 1 else 0.0, number + 1, sums, members, None))
  heapq.heapify(heap)
  while len(heap) > 1:
    _, first, a, mine, devices = heapq.heappop(heap)
    _, second, b, yours, others = heapq.heappop(heap)
    if devices is None and others is not None:
      a, mine, devices, b, yours = b, yours, others, a, mine
    sums = a + b[::-1]
    order = np.argsort(-sums, kind='stable')
    members = [mine[i] + yours[count - 1 - i] for i in order.tolist()]
    sums = sums[order]
    if devices is not None:
      devices = devices[order]
    merged = (sums[-1] - sums[0], min(first, second), sums, members, devices)
    heapq.heappush(heap, merged)
  _, _, _, members, devices = heap[0]
  bins = [[] for _ in range(count)]
  for place, device in enumerate(devices):
    bins[device] = sorted(members[place])
  return bins


def _repair_placement(filling: PartialPlacement, units, bins) -> bool:
  """Moves the smallest pieces from where there are too many bytes."""
  for device, members in enumerate(bins):
    members.sort(key=lambda u: (filling.options[units[u][0]].bytes, u))
    while filling.used[device] > filling.cap:
      if not members:
        return False
      option = filling.options[units[members[0]][0]]
      free = [
        d
        for d in range(len(bins))
        if d != device and filling.room(option, (d,))
      ]
      if not free:
        return False
      target = min(free, key=lambda d: (filling.time[d], d))
      filling.put(option, (target,))
      filling.take(option, device)
      bins[target].append(members.pop(0))
  return True
