"""The arithmetic of every report: the cost of a plan, whoever made it."""

from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.planner import (
  exchange_time,
  ordering,
  plan_traffic,
  sizing,
  storage,
)
from genrec_jax.planner.cost import Cost, shard_cost
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.report import Report, TableLine
from genrec_jax.planner.traffic import Wire
from genrec_jax.planner.workload import DensePart, Load, TowerLoad


def evaluate_plan(
  plan: ShardingPlan,
  loads: Sequence[Load],
  topology: Topology,
  batch: int,
  dense: DensePart = DensePart(),
  exchange: Exchange = Exchange(),
  towers: TowerLoad | None = None,
) -> Report:
  """Costs of a plan.

  All devices send equally much, and put as long lists in order, as the program
  of the plan makes them; what else they compute depends on what lies on them.

  Args:
    plan: made by hand or by `make_plan`.
    loads: its tables and the lookups into them.
    topology: the machine, of the plan's shape.
    batch: examples of a step on all devices together.
    dense: the rest of the model.
    exchange: how rows travel.
    towers: of the model, for which the plan must be made; None for none. What
      they compute belongs to the dense part of a model, which is not timed.
  """
  _require_same_machine(plan, {load.name: load for load in loads}, topology)
  loads = [load.with_pooling(plan.pooling) for load in loads]
  times = np.zeros((plan.group_size, len(Cost().components)))
  rows, buffers = (np.zeros(plan.group_size, np.int64) for _ in range(2))
  lines = []
  for load in loads:
    table = plan.tables[load.name]
    args = (load, table.kind, table.columns, topology)
    cost = shard_cost(*args, batch, exchange, towers)
    row_bytes = storage.row_bytes(*args)
    buffer_bytes = storage.buffer_bytes(*args, batch)
    count = 0
    for piece in range(table.pieces):
      owners = list(plan.owners(load.name, piece))
      # Two pieces of a table may lie on one device.
      times[owners] += cost.components
      rows[owners] += row_bytes
      buffers[owners] += buffer_bytes
      count += len(owners)
    about = load.name, load.rows, load.dim, table.scheme, table.at
    lines.append(TableLine(*about, row_bytes * count, cost))
  wire = Wire(exchange, topology.platform)
  codecs = {load.name: load.codec for load in loads}
  step = plan_traffic.count_step(plan, loads, batch, wire, towers)
  sent, entries = plan_traffic.list_step(step), ordering.count_step(step, wire)
  times[:, 2:] = (
    *exchange_time.measure_plan_time(sent, topology),
    entries * topology.ordering,
  )
  return Report(
    topology=topology,
    batch=batch,
    dense=dense,
    tables=tuple(lines),
    times=times,
    row_bytes=rows,
    buffer_bytes=buffers,
    allocated=storage.allocated_bytes(plan),
    pooling=plan.pooling,
    sent=tuple(sent),
    formats=exchange.count_codecs(plan, codecs),
    sizes=tuple(sizing.size_growth(loads, topology, batch, dense, exchange)),
  )


def _require_same_machine(
  plan: ShardingPlan, loads: Mapping[str, Load], topology: Topology
) -> None:
  shape = [plan.replicas, plan.hosts, plan.devices]
  machine = [topology.replicas, topology.hosts, topology.devices]
  if shape != machine:
    raise PlanError(
      f'the plan is for replicas, hosts, devices = {shape}, the topology '
      f'{topology.name!r} has {machine}: set hosts=, devices= and replicas= of '
      'one of them'
    )
  missing = sorted(set(loads) - set(plan.tables))
  extra = sorted(set(plan.tables) - set(loads))
  if missing or extra:
    raise PlanError(
      f'the plan lacks the tables {missing}; it has {extra}, which the model '
      'does not have'
    )
  for name, load in loads.items():
    table = plan.tables[name]
    for field in ('rows', 'dim', 'dtype', 'optimizer'):
      if getattr(table, field) != getattr(load, field):
        raise PlanError(
          f'plan of table {name!r}: {field} is {getattr(table, field)!r}, the '
          f"model's is {getattr(load, field)!r}"
        )
