"""How long the lists are that a device puts in order in a step.

Before rows travel, their addresses are sorted by owner; where several features
read one table by sums, their gradients are sorted by feature; the squares of
rows that are cut into columns are sorted by the device that adds them up. Equal
ids of a device become one row, and what arrives at an owner is merged: sorts as
well, but for CPUs, whose kernel needs next to no time for it.
`tests/planner/ordering_test.py` compares the numbers with the sorts of compiled
programs.
"""

from genrec_jax.embedding import copied_tables
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.planner import plan_traffic
from genrec_jax.planner.plan_traffic import Step
from genrec_jax.planner.traffic import Mesh, Reads, Wire
from genrec_jax.planner.workload import DENSE, Load


def count_step(step: Step, wire: Wire) -> float:
  """Entries of a device in a step under a plan."""
  return count_routed(step) + count_merged(step, wire)


def count_routed(step: Step) -> float:
  """Entries that are sorted before they travel."""
  total = 0.0
  for name, groups in step.groups.items():
    stack = step.laid.stacks[name]
    for group in groups:
      if _sorts(group.wire):
        total += group.needed
      if group.shared:
        total += group.arrivals
    if plan_traffic.exchanges_squares(stack, step.loads):
      for wire, arrivals, rounds in plan_traffic.list_arrivals(groups):
        if _sorts(wire):
          total += rounds * min(arrivals, stack.depth)
  return total


def count_merged(step: Step, wire: Wire) -> float:
  """Entries that are sorted to add up those of one row."""
  if wire.platform == 'cpu':
    return 0.0
  plan, total = step.plan, sum(read.ids for read in step.reads.values())
  for name in step.laid.whole:
    total += _count_copies(step.loads[name], step.reads[name], plan)
  for name, groups in step.groups.items():
    stack = step.laid.stacks[name]
    squares = plan_traffic.exchanges_squares(stack, step.loads)
    for of_wire, arrivals, rounds in plan_traffic.list_arrivals(groups):
      total += rounds * arrivals
      if squares:
        needed = min(arrivals, stack.depth)
        received = plan_traffic.count_arrivals(
          of_wire.exchange, needed, plan.group_size
        )
        total += rounds * received
  return total


def count_piece(
  load: Load,
  scheme: Scheme,
  columns: int,
  mesh: Mesh,
  reads: Reads,
  wire: Wire,
) -> float:
  """Entries that a piece of a table adds on each of its owners.

  Shares are as even as in `traffic.list_piece`.

  Args:
    load: the table.
    scheme: what it is cut by.
    columns: of the piece.
    mesh: the devices.
    reads: what a device reads of the table.
    wire: how values of the table travel.
  """
  merges = wire.platform != 'cpu'
  if scheme.spread is None:
    return reads.ids + _count_copies(load, reads, mesh) if merges else 0.0
  owners, n = scheme.owners(mesh.hosts, mesh.devices), mesh.group_size
  total = arrivals = 0.0
  for _, ids, _ in reads.sums:
    arrivals += n * ids
  if len(reads.sums) > 1:
    total += arrivals
  if reads.rows:
    # What one owner has, as if all devices had as much.
    needed = reads.rows * n / owners
    total += needed if _sorts(wire) else 0.0
    arrivals += _count_arrivals(wire, needed, n)
  if merges:
    total += arrivals + reads.ids * n / owners
  if load.needs_row_squares and columns < load.dim and _sorts(wire):
    needed = min(arrivals, load.rows / owners)
    total += needed
    if merges:
      total += _count_arrivals(wire, needed, n)
  return total


def _sorts(wire: Wire) -> bool:
  """Whether addresses are sorted by owner: 'gather' asks all for all."""
  return wire.exchange.kind != 'gather'


def _count_arrivals(wire: Wire, needed: float, n: int) -> float:
  """Entries that owners get of rows of which a device needs so many."""
  return needed * (wire.exchange.capacity if _sorts(wire) else n)


def _count_copies(load: Load, reads: Reads, mesh: Mesh) -> float:
  """Entries of a table that every device holds."""
  n = mesh.group_size * mesh.replicas
  entries = reads.rows + sum(ids for _, ids, _ in reads.sums)
  if load.optimizer == DENSE or copied_tables.travels_as_table(
    entries, load.rows, n
  ):
    return 0.0
  return n * entries
