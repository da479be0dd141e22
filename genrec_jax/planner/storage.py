"""The bytes that a plan needs on a device.

Rows with their optimizer's slots, and the buffers of a step: ids that arrive,
rows or sums that leave. `N` and `M` as in cost.py:

| scheme               | ids              | rows that leave       |
|----------------------|------------------|-----------------------|
| data_parallel        | N                | M D                   |
| one owner for a row  | N W              | M W d                 |
| rows over n devices  | N W / n          | M W d                 |

Rows spread over n devices take `plan.rows_per_owner` rows on each, the rest is
padding. On the devices, pieces of one width, dtype and optimizer share an array
that is equally deep everywhere (embedding/layout.py): what a device with fewer
rows must add is its filling.
"""

from genrec_jax.embedding import layout
from genrec_jax.embedding.plan import ShardingPlan, rows_per_owner
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.workload import (
  DensePart,
  Load,
  slot_bytes,
  tree_bytes,
)


class InsufficientMemory(ValueError):
  """No plan fits; the message holds the numbers."""


def table_budget(topology: Topology, dense: DensePart) -> int:
  """Bytes of a device that tables and their buffers may take."""
  return int(topology.memory * (1 - topology.reserve)) - dense.bytes


def row_bytes(
  load: Load, scheme: Scheme, columns: int, topology: Topology
) -> int:
  """Rows and slots of a piece on each of its devices."""
  owners = scheme.owners(topology.hosts, topology.devices)
  rows = rows_per_owner(load.rows, owners)
  return load.bytes_of(rows, columns)


def buffer_bytes(
  load: Load, scheme: Scheme, columns: int, topology: Topology, batch: int
) -> int:
  """What goes in and out of a piece in a step, on each of its devices."""
  t, local = topology, batch / topology.total
  world, spread = t.group_size, scheme.owners(t.hosts, t.devices)
  if scheme.spread is None:
    world = 1
  ids = load.ids * local * world / spread
  outputs = load.values_returned(spread) * local * world
  ids *= t.id_bytes * (2 if load.weighted else 1) * t.input_buffers
  return int(ids + outputs * columns * load.item_bytes)


def allocated_bytes(plan: ShardingPlan) -> int:
  """Bytes of the arrays with rows and slots on every device."""
  laid = layout.lay_out(plan)
  return sum(
    tree_bytes(array) + slot_bytes(laid.optimizers[name], *array.shape)
    for name, array in laid.shapes().items()
  )
