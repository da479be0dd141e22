"""Partitioners: they place the pieces of chosen options on devices.

A partitioner takes one option of every table and the bytes that a device may
hold, and returns a `Placement`, or None if there is no room. Pieces that lie
everywhere or at a fixed place come first; the others follow in order of weight,
each on the device with the least work so far (LPT).
"""

import dataclasses
import heapq
from collections.abc import Callable, Mapping, Sequence

from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import HOST
from genrec_jax.planner import storage
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.options import Constraint, Option
from genrec_jax.planner.workload import Load

BALANCE_STEPS, BALANCE_BYTES, BALANCE_SLACK = 10, 10_000_000, 0.02


@dataclasses.dataclass
class Placement:
  """Where everything lies.

  Attributes:
    options: one of each table.
    at: device or host of each piece of each option, as in a plan.
    time: seconds of each device.
    used: bytes of each device.
    buffers: of them what goes in and out.
  """

  options: tuple[Option, ...]
  at: list[tuple[int, ...]]
  time: list[float]
  used: list[int]
  buffers: list[int]

  @property
  def rate(self) -> float:
    """Seconds of the busiest device."""
    return max(self.time)

  def plan(
    self,
    loads: Mapping[str, Load],
    topology: Topology,
    constraints: Mapping[str, Constraint],
  ) -> ShardingPlan:
    """As data; tables in the order of `loads`."""
    tables = dict.fromkeys(loads)
    for option, at in zip(self.options, self.at, strict=True):
      for name in option.names:
        split = constraints.get(name, Constraint()).split
        tables[name] = loads[name].plan(
          option.scheme, at, split, option.outside
        )
    t = topology
    return ShardingPlan(tables, t.hosts, t.devices, t.replicas)

  def needs(self, plan: ShardingPlan) -> int:
    """Bytes of the fullest device: arrays of its plan, and buffers."""
    return storage.allocated_bytes(plan) + max(self.buffers)


class PartialPlacement:
  """A placement under way.

  `array_caps`, if given, limits the bytes of each array on a device.
  """

  def __init__(
    self,
    options: Sequence[Option],
    topology: Topology,
    cap: int,
    array_caps: Mapping[str, float] | None = None,
  ):
    self.options, self.cap = tuple(options), cap
    self.array_caps = array_caps or {}
    self.arrays = {name: [0] * topology.group_size for name in self.array_caps}
    self.hosts, self.devices = topology.hosts, topology.devices
    group_size = topology.group_size
    self.time, self.used = [0.0] * group_size, [0] * group_size
    self.buffers = [0] * group_size
    self.host_time = [0.0] * self.hosts
    self.at = [[None] * o.pieces for o in self.options]

  def room(self, option: Option, devices) -> bool:
    if any(self.used[d] + option.bytes > self.cap for d in devices):
      return False
    if option.array not in self.array_caps:
      return True
    array, cap = self.arrays[option.array], self.array_caps[option.array]
    return all(array[d] + option.row_bytes <= cap for d in devices)

  def put(self, option: Option, devices, sign: int = 1) -> None:
    for d in devices:
      self.time[d] += sign * option.time
      self.used[d] += sign * option.bytes
      self.buffers[d] += sign * option.buffers
      self.host_time[d // self.devices] += sign * option.time
    if option.array in self.arrays:
      for d in devices:
        self.arrays[option.array][d] += sign * option.row_bytes

  def take(self, option: Option, device: int) -> None:
    self.put(option, (device,), -1)

  def host(self, number: int) -> range:
    """Its devices."""
    return range(number * self.devices, (number + 1) * self.devices)

  def begin(self) -> bool:
    """Places what has no choice; False if there is no room."""
    for index, option in enumerate(self.options):
      if option.kind.at_names is None:  # on all devices alike
        self.at[index] = []
        places = [range(len(self.time))]
      elif option.at:
        self.at[index] = list(option.at)
        on_host = option.kind.spread == HOST
        places = [self.host(p) if on_host else (p,) for p in option.at]
      else:
        continue
      for devices in places:
        self.put(option, devices)
    return max(self.used) <= self.cap

  def unplaced_options(self) -> list[int]:
    """Numbers of the options that have no place yet."""
    return [i for i, at in enumerate(self.at) if None in at]

  def place_on_host(self, index: int) -> bool:
    """Rows over a host, or pieces over hosts next to each other."""
    option, pieces = self.options[index], self.options[index].pieces
    windows = sorted(
      (sum(self.host_time[first : first + pieces]), first)
      for first in range(self.hosts - pieces + 1)
    )
    for _, first in windows:
      last = first + pieces - 1
      devices = range(self.host(first).start, self.host(last).stop)
      if self.room(option, devices):
        self.put(option, devices)
        self.at[index] = list(range(first, first + pieces))
        return True
    return False

  def place_within_host(self, index: int) -> bool:
    """Every piece on one device of the same host."""
    option = self.options[index]
    for _, number in sorted((t, h) for h, t in enumerate(self.host_time)):
      added = []
      for _ in range(option.pieces):
        free = [d for d in self.host(number) if self.room(option, (d,))]
        if not free:
          break
        device = min(free, key=lambda d: (self.time[d], d))
        self.put(option, (device,))
        added.append(device)
      if len(added) == option.pieces:
        self.at[index] = added
        return True
      for device in added:
        self.take(option, device)
    return False

  def build_placement(self) -> Placement:
    at = [tuple(places) for places in self.at]
    return Placement(self.options, at, self.time, self.used, self.buffers)


def partition_lpt(
  options: Sequence[Option],
  topology: Topology,
  cap: int,
  *,
  by: str | None = None,
  array_caps: Mapping[str, float] | None = None,
) -> Placement | None:
  """The heaviest first, each to the device with the least to do.

  Args:
    options: one of each table.
    topology: the machine.
    cap: bytes a device may hold.
    by: what weight is: 'time' or 'bytes'; None tries them in this order.
    array_caps: bytes of each array that a device may hold.
  """
  if by is None:
    return partition_lpt(
      options, topology, cap, by='time', array_caps=array_caps
    ) or partition_lpt(
      options, topology, cap, by='bytes', array_caps=array_caps
    )
  filling = PartialPlacement(options, topology, cap, array_caps)
  if not filling.begin():
    return None
  heap = [(t, d) for d, t in enumerate(filling.time)]
  heapq.heapify(heap)
  for index in _by_weight(filling, by):
    if not _place_option(filling, index, heap):
      return None
  return filling.build_placement()


def _by_weight(filling: PartialPlacement, by: str) -> list[int]:
  return sorted(
    filling.unplaced_options(),
    key=lambda i: (-getattr(filling.options[i], by), i),
  )


def _place_option(filling: PartialPlacement, index: int, heap: list) -> bool:
  option = filling.options[index]
  if option.kind.spread == HOST:
    return filling.place_on_host(index)
  if option.kind.one_host:
    return filling.place_within_host(index)
  for piece in range(option.pieces):
    device = _least_busy(filling, option, heap)
    if device is None:
      return False
    filling.at[index][piece] = device
  return True


def _least_busy(
  filling: PartialPlacement, option: Option, heap: list
) -> int | None:
  """Takes the device with the least to do among those with room."""
  full, least_busy = [], None
  while heap and least_busy is None:
    time, device = heapq.heappop(heap)
    if time != filling.time[device]:  # work came to it past the heap
      heapq.heappush(heap, (filling.time[device], device))
    elif filling.room(option, (device,)):
      least_busy = device
    else:
      full.append((time, device))
  if least_busy is not None:
    filling.put(option, (least_busy,))
    heapq.heappush(heap, (filling.time[least_busy], least_busy))
  for entry in full:
    heapq.heappush(heap, entry)
  return least_busy


def memory_balanced(
  options: Sequence[Option], topology: Topology, cap: int
) -> Placement | None:
  """As even in bytes as hardly costs any time.

  Halves the way between the least bytes a device could hold and what
  `partition_lpt` needs, as long as the busiest device has at most 2% more to
  do.
  """
  best = partition_lpt(options, topology, cap)
  if best is None:
    return None
  slowest = best.rate * (1 + BALANCE_SLACK)
  low = max(sum(best.used) // len(best.used), max(o.bytes for o in options))
  high = max(best.used)
  for _ in range(BALANCE_STEPS):
    if high - low <= BALANCE_BYTES:
      break
    middle = (low + high) // 2
    placement = partition_lpt(options, topology, middle)
    if placement is not None and placement.rate <= slowest:
      best, high = placement, max(placement.used)
    else:
      low = middle
  return best


def even_arrays(
  options: Sequence[Option], topology: Topology, cap: int, slack: float
) -> Placement | None:
  """`partition_lpt` with every array about as deep on all devices.

  Devices hold the same piece of an array, however few rows they have of it
  (embedding/layout.py).

  Args:
    options: one of each table.
    topology: the machine.
    cap: bytes a device may hold.
    slack: share by which a device may be above the mean.
  """
  total, largest = {}, {}
  for option in options:
    if name := option.array:
      total[name] = total.get(name, 0) + option.row_bytes * option.shards
      largest[name] = max(largest.get(name, 0), option.row_bytes)
  caps = {
    name: (1 + slack) * max(total[name] / topology.group_size, largest[name])
    for name in total
  }
  return partition_lpt(options, topology, cap, array_caps=caps)


Partitioner = Callable[[Sequence[Option], Topology, int], Placement | None]
