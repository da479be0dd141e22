"""The time that a shard of a table needs in a step.

Exchange: what a device sends, over which links, by the formulas of traffic.py,
which are those of the compiled program. Compute: what a device reads and writes
in its memory, for N ids, B bags and M different rows of an example, W devices
with b examples each, s bytes an element, d columns, c even shares of room:

| what travels    | lookup reads, on an owner           | writes      |
|-----------------|-------------------------------------|-------------|
| sums            | b W N ids, b W N max(d, 32) s       | b W B d     |
| rows            | b W c M / n ids, b W c M d s / n    | as it reads |
| copies, nothing | b N ids, b N d s                    | b B d       |

Lists that are put in order take `Topology.ordering` an entry (ordering.py).

Every owner of a piece looks up all ids that it is sent, and those of rows that
lie elsewhere read zeros. A row that is asked for by itself is sought on one of
its n owners; its buffers are read whole, with their room. The way back takes
`Topology.backward` times as long as the lookup; with copies it is in
proportion to the gradients of all devices, or to the table where tables of
gradients travel.

Times are added as if nothing overlapped, because they only serve to compare
placements, and a plan then never looks better than it is. The constants of the
memory (`least_width`, penalties of narrow rows, `backward`, `batched_copy`,
`elementwise`) and the form of the sums are those of torchrec's planner, where
no calibration has replaced them; what travels is not.

What features under towers send stands in tower_traffic.py; they cost as much
memory traffic as other sums.

Shares are even: what a table adds is counted as if all other tables were spread
like it. `evaluate.py` counts a whole plan as its program sends it.
"""

import dataclasses

from genrec_jax.embedding import copied_tables
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner import ordering, tower_traffic, traffic
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.traffic import Reads, Wire
from genrec_jax.planner.workload import DENSE, Load, TowerLoad


@dataclasses.dataclass(frozen=True)
class Cost:
  """Seconds of a step."""

  forward_compute: float = 0.0
  backward_compute: float = 0.0
  forward_comms: float = 0.0
  backward_comms: float = 0.0
  ordering: float = 0.0

  @property
  def total(self) -> float:
    return self.compute + self.comms

  @property
  def compute(self) -> float:
    return self.forward_compute + self.backward_compute + self.ordering

  @property
  def comms(self) -> float:
    return self.forward_comms + self.backward_comms

  def __add__(self, other: 'Cost') -> 'Cost':
    return Cost(
      *(a + b for a, b in zip(self.components, other.components, strict=True))
    )

  @property
  def components(self) -> tuple[float, ...]:
    """In the order of the fields."""
    return dataclasses.astuple(self)


def shard_cost(
  load: Load,
  scheme: Scheme,
  columns: int,
  topology: Topology,
  batch: int,
  exchange: Exchange = Exchange(),
  towers: TowerLoad | None = None,
) -> Cost:
  """Cost of a piece of a table on each of the devices that hold it.

  Args:
    load: the table.
    scheme: what the table is cut by.
    columns: width of the piece.
    topology: the machine.
    batch: examples of a step, on all devices together.
    exchange: how rows travel.
    towers: of the model; None for none.
  """
  local = batch / topology.total
  wire = Wire(exchange, topology.platform).of(load)
  reads = traffic.count_reads(load, scheme.spread, local, topology, wire)
  if scheme.spread is None:
    compute = _compute_copies(load, topology, reads)
  else:
    owners = scheme.owners(topology.hosts, topology.devices)
    compute = _compute_sharded(load, columns, topology, reads, owners, wire)
  under, rest = load.split(towers.names if towers else ())
  args = scheme, columns, topology, local, wire
  sent = traffic.list_piece(rest, *args)
  if under.features:
    sent += tower_traffic.list_piece(under, *args, towers)
  entries = ordering.count_piece(load, scheme, columns, topology, reads, wire)
  return Cost(
    *compute,
    *traffic.measure_time(sent, topology),
    ordering=entries * topology.ordering,
  )


def _compute_sharded(
  load, columns, topology, reads: Reads, owners, wire: Wire
) -> tuple[float, float]:
  """Rows that lie on `owners` devices; one, those of a host, or all."""
  t, world, exchange = topology, topology.group_size, wire.exchange
  by_rows = owners > 1
  # torchrec keeps these two to whole tables, which have one owner.
  width = columns if by_rows else max(columns, t.least_width)
  penal = not by_rows or t.penalise_rows
  row, sent = width * load.item_bytes, wire.row_bytes(columns)[0]
  read = gradients = 0.0
  for bags, ids, weighted in reads.sums:
    read += world * ids * t.id_bytes * (2 if weighted else 1)
    read += world * (ids * load.distinct * row + bags * sent)
    gradients += world * bags * wire.row_bytes(columns)[1]
  asked = {
    'gather': reads.rows * world,
    'all_to_all': reads.rows * min(exchange.capacity, world),
    'ragged': reads.expected,
  }[exchange.kind]
  read += asked * world / owners * (t.id_bytes + row + sent)
  rate = t.memory_bandwidth
  lookup = read * (t.penalty(columns) if penal else 1) / rate
  back = t.backward * lookup
  if any(weighted for _, _, weighted in reads.sums):
    back += t.weighted * lookup
  if by_rows and world > 1:
    back += t.batched_copy * gradients / rate
  return lookup, back


def _compute_copies(load, topology, reads: Reads) -> tuple[float, float]:
  """A whole table on every device."""
  t, row = topology, load.row_bytes
  ids = reads.rows + sum(ids for _, ids, _ in reads.sums)
  bags = sum(bags for bags, _, _ in reads.sums)
  weighted = any(weighted for _, _, weighted in reads.sums)
  read = ids * t.id_bytes * (2 if weighted else 1)
  read += (ids * load.distinct + bags) * row
  if load.optimizer == DENSE:
    rate = t.memory_bandwidth * t.dense_share
    lookup = read / rate
    return lookup, t.backward * lookup + load.rows * row * t.elementwise / rate
  lookup = read / t.memory_bandwidth
  back = t.backward + (t.weighted if weighted else 0)
  if copied_tables.travels_as_table(ids, load.rows, t.total):
    # Laid out, added up, brought together, and walked by the optimizer.
    table = 4 * load.rows * row / t.memory_bandwidth
    return lookup, back * lookup + table
  return lookup, back * lookup * t.total  # the gradients of all devices
