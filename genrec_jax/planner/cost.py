"""The time that a shard of a table needs in a step, by torchrec's formulas.

With W devices in a group, G of them on a host, H hosts, b examples a device, N
ids of a table and M rows that come back (a pooling is one) an example, both
times b; s bytes an element, d columns:

| scheme                      | lookup reads, on a device       | sends    |
|-----------------------------|---------------------------------|----------|
| table-, column-, t.-c.-wise | N W ids, N W max(d, 32) s       | M W d    |
| row_wise                    | N ids, N d s                    | M W d    |
| table_row_wise, grid        | N W / G ids, N W d s / G        | M W d    |
| data_parallel               | N ids, N d s                    | gradient |

A row that is not summed is sent only by its owner, so M is divided like N. What
is sent is first written to memory. The way back takes twice the time of the
lookup. Times are added as if nothing overlapped, because they only serve to
compare placements, and a plan then never looks better than it is.

Two differences: on a group of one device nothing is sent, and for equal ids
(`Load.distinct`) a row is read once and, if it is not summed, sent once.
"""

import dataclasses

from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.workload import DENSE, Load


@dataclasses.dataclass(frozen=True)
class Cost:
  """Seconds of a step."""

  forward_compute: float = 0.0
  backward_compute: float = 0.0
  forward_comms: float = 0.0
  backward_comms: float = 0.0

  @property
  def total(self) -> float:
    return self.compute + self.comms

  @property
  def compute(self) -> float:
    return self.forward_compute + self.backward_compute

  @property
  def comms(self) -> float:
    return self.forward_comms + self.backward_comms

  def __add__(self, other: 'Cost') -> 'Cost':
    return Cost(
      *(a + b for a, b in zip(self.components, other.components, strict=True))
    )

  @property
  def components(self) -> tuple[float, float, float, float]:
    """In the order of the fields."""
    return dataclasses.astuple(self)


def shard_cost(
  load: Load, scheme: Scheme, columns: int, topology: Topology, batch: int
) -> Cost:
  """Cost of a piece of a table on each of the devices that hold it.

  Args:
    load: the table.
    scheme: what the table is cut by.
    columns: width of the piece.
    topology: the machine.
    batch: examples of a step, on all devices together.
  """
  local = batch / topology.total
  if scheme.spread is None:
    return _cost_replicated(load, topology, local)
  owners = scheme.owners(topology.hosts, topology.devices)
  return _cost_sharded(load, columns, topology, local, owners)


def _cost_sharded(load, columns, topology, local, owners) -> Cost:
  """Rows that lie on `owners` devices; one, those of a host, or all."""
  t, s = topology, load.item_bytes
  forward_bytes = s if load.forward_bytes is None else load.forward_bytes
  backward_bytes = s if load.backward_bytes is None else load.backward_bytes
  world = t.group_size
  ids = load.ids * local * world / owners
  outputs = load.values_returned(owners) * local * world
  by_rows = owners > 1
  # The original keeps these two to whole tables, which have one owner.
  width = columns if by_rows else max(columns, t.least_width)
  penal = not by_rows or t.penalise_rows
  sent = outputs * columns * forward_bytes
  returned = outputs * columns * backward_bytes
  read = ids * t.id_bytes * (2 if load.weighted else 1)
  rows = ids * load.distinct * width * s
  rate = t.memory_bandwidth
  rate *= t.dense_share if load.optimizer == DENSE else 1
  lookup = (read + rows + sent) * (t.penalty(columns) if penal else 1) / rate
  back = t.backward * lookup + (t.weighted * lookup if load.weighted else 0)
  if world == 1:
    return Cost(lookup, back)
  if owners in (1, world):  # W = G: a host is all there is
    there, again = sent / t.exchange_rate, returned / t.exchange_rate
  else:
    # Summed on its host, one device in G of it goes on to other hosts.
    there = sent / t.intra + sent / t.devices / t.inter
    again = returned / t.intra + returned / t.devices / t.inter
  if by_rows:
    again += t.batched_copy * returned / rate
  return Cost(lookup, back, there, again)


def _cost_replicated(load, topology, local) -> Cost:
  """A whole table on every device, whose gradients are all-reduced."""
  t, s = topology, load.item_bytes
  rate = t.memory_bandwidth * t.dense_share
  ids, outputs = load.ids * local, load.values_returned() * local
  read = ids * t.id_bytes * (2 if load.weighted else 1)
  rows = ids * load.distinct * load.dim * s
  lookup = (read + rows + outputs * load.dim * s) / rate
  back = t.backward * lookup + (t.weighted * lookup if load.weighted else 0)
  table = load.rows * load.row_bytes
  back += table * t.elementwise / rate
  if t.group_size == 1:
    return Cost(lookup, back)
  nodes = min(t.hosts, 2)
  reduce = table * (2 * nodes - 1) / nodes / t.reduce_rate
  return Cost(lookup, back, 0.0, reduce * (2 if t.hosts > 2 else 1))
