"""What binds a machine: capacity, memory, injection, bisection or compute.

A calculator for the choice of hardware, with tables spread perfectly: W devices
in a group, b examples a device, every row read once forward and read and
written once backward. It bounds a plan from below.

| seconds of a step | formula |
|---|---|
| memory    | 3 b W sum(L D s) / (W memory rate) |
| injection | (W - 1) / W (sum(min(b M w, 2 T D s)) + 2 P s) / exchange rate |
| bisection | what half of the devices send to the other half / its rate |
| compute   | 3 F b / (peak utilisation) |

L ids and M rows or sums that come back, of an example, which with its gradient
takes w bytes on the wire; P parameters and F flops of the dense part. Of a
table of T rows, each device may have a copy: it then sends the gradients of
that. Capacity is a share of what the devices may hold.
"""

import dataclasses
from collections.abc import Sequence

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.planner import storage
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.traffic import Wire
from genrec_jax.planner.workload import DensePart, Load

GROWTH = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Sizing:
  """Bounds of one machine; seconds of a step, and a share of its bytes."""

  hosts: int
  devices: int
  capacity: float
  memory: float
  injection: float
  bisection: float
  compute: float

  @property
  def binds(self) -> str:
    """What must grow first."""
    if self.capacity > 1:
      return 'capacity'
    times = {
      'memory bandwidth': self.memory,
      'injection bandwidth': self.injection,
      'bisection': self.bisection,
      'compute': self.compute,
    }
    return max(times, key=times.get)


def size_machine(
  loads: Sequence[Load],
  topology: Topology,
  batch: float,
  dense: DensePart,
  exchange: Exchange = Exchange(),
) -> Sizing:
  """Bounds for a batch of that many examples on all devices together."""
  t, world, everyone = topology, topology.group_size, topology.total
  local = batch / everyone
  read = sum(load.ids * load.row_bytes for load in loads)
  gradient = dense.parameters * dense.parameter_bytes
  # There and back: of rows as they travel, of copies an average of gradients.
  wire = Wire(exchange, topology.platform)
  returned = [
    local * load.values_returned() * sum(wire.of(load).row_bytes(load.dim))
    for load in loads
  ]
  copied = [2 * load.rows * load.row_bytes for load in loads]
  exchanged = sum(map(min, returned, copied)) * (world - 1) / world
  reduced = 2 * gradient * (everyone - 1) / everyone
  # Of what a device sends, all but its own share of one half crosses the cut;
  # a ring of all devices crosses it once each way.
  crossing = 0.0
  if world > 1:
    ways = zip(returned, copied, strict=True)
    crossing = sum(min(world / 4 * x, copy) for x, copy in ways)
    crossing += 2 * gradient
  rows = sum(load.bytes_of(load.rows, load.dim) for load in loads)
  budget = max(storage.table_budget(topology, dense), 1)
  return Sizing(
    hosts=t.hosts,
    devices=world,
    capacity=rows / (world * budget),
    memory=3 * local * read / t.memory_bandwidth,
    injection=(exchanged + reduced) / t.exchange_rate,
    bisection=crossing / t.bisection,
    compute=3 * dense.flops * local / (t.flops * t.utilisation),
  )


def size_growth(
  loads: Sequence[Load],
  topology: Topology,
  batch: int,
  dense: DensePart,
  exchange: Exchange = Exchange(),
) -> list[Sizing]:
  """The same with more hosts, and as many examples a device."""
  return [
    size_machine(
      loads,
      dataclasses.replace(topology, hosts=topology.hosts * factor),
      batch * factor,
      dense,
      exchange,
    )
    for factor in GROWTH
  ]
