"""What a plan costs, whoever made it: the arithmetic behind every report."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.planner import sizing, storage
from genrec_jax.planner.cost import Cost, shard_cost
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.workload import Dense, Load


@dataclasses.dataclass(frozen=True)
class TableLine:
  """One table of a report.

  Attributes:
    name: of the table.
    rows: of the table.
    dim: width.
    scheme: how it is cut.
    at: device or host of each piece.
    bytes: rows and slots on all devices of a group together.
    cost: of a piece, on each of its devices.
  """

  name: str
  rows: int
  dim: int
  scheme: str
  at: tuple[int, ...]
  bytes: int
  cost: Cost


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What a plan costs on the devices of a replica group.

  Attributes:
    topology: the machine.
    batch: examples of a step on all devices.
    dense: the rest of the model.
    tables: in the order of the plan.
    times: `[W, 4]` seconds, in the order of `Cost`.
    row_bytes: `[W]` rows and slots.
    buffer_bytes: `[W]` what goes in and out in a step.
    allocated: bytes of the arrays that hold the rows, the same on every device;
      above `row_bytes` it is filling.
    sizes: bounds of the machine, and of larger ones.
  """

  topology: Topology
  batch: int
  dense: Dense
  tables: tuple[TableLine, ...]
  times: np.ndarray
  row_bytes: np.ndarray
  buffer_bytes: np.ndarray
  allocated: int
  sizes: tuple[sizing.Sizing, ...]

  @property
  def budget(self) -> int:
    """Bytes of a device for tables and buffers."""
    return storage.budget(self.topology, self.dense)

  @property
  def device_bytes(self) -> np.ndarray:
    """`[W]` what tables and buffers take on each device."""
    return self.allocated + self.buffer_bytes

  @property
  def over(self) -> np.ndarray:
    """Devices on which that is too much."""
    return np.flatnonzero(self.device_bytes > self.budget)

  @property
  def step(self) -> float:
    """Seconds of the busiest device."""
    return float(self.times.sum(axis=1).max())

  @property
  def critical_path(self) -> float:
    """Longest compute and longest exchange, wherever they are."""
    compute, comms = (
      self.times[:, :2].sum(axis=1),
      self.times[:, 2:].sum(axis=1),
    )
    return float(compute.max() + comms.max())


def evaluate(
  plan: ShardingPlan,
  loads: Sequence[Load],
  topology: Topology,
  batch: int,
  dense: Dense = Dense(),
) -> Evaluation:
  """Costs of a plan.

  Args:
    plan: made by hand or by `make_plan`.
    loads: its tables and the lookups into them.
    topology: the machine, of the plan's shape.
    batch: examples of a step on all devices together.
    dense: the rest of the model.
  """
  _check(plan, {load.name: load for load in loads}, topology)
  times = np.zeros((plan.group, 4))
  rows, buffers = (np.zeros(plan.group, np.int64) for _ in range(2))
  lines = []
  for load in loads:
    table = plan.tables[load.name]
    args = (load, table.scheme, table.columns, topology)
    cost = shard_cost(*args, batch)
    row_bytes = storage.row_bytes(*args)
    buffer_bytes = storage.buffer_bytes(*args, batch)
    count = 0
    for piece in range(table.pieces):
      owners = list(plan.owners(load.name, piece))
      if table.scheme == 'data_parallel':
        owners = list(range(plan.group))
      # Two pieces of a table may lie on one device.
      times[owners] += cost.parts
      rows[owners] += row_bytes
      buffers[owners] += buffer_bytes
      count += len(owners)
    lines.append(
      TableLine(
        load.name,
        load.rows,
        load.dim,
        table.scheme,
        table.at,
        row_bytes * count,
        cost,
      )
    )
  return Evaluation(
    topology=topology,
    batch=batch,
    dense=dense,
    tables=tuple(lines),
    times=times,
    row_bytes=rows,
    buffer_bytes=buffers,
    allocated=storage.allocated(plan),
    sizes=tuple(sizing.growth(loads, topology, batch, dense)),
  )


def imbalance(values: Sequence[float]) -> dict[str, float]:
  """How uneven a load is over the devices.

  `max_over_mean` is 1 when it is even; then the distances of its shares p from
  even ones, q = 1 / W, are 0: total variation sum |p - q| / 2, KL
  sum p log(p / q), chi2 sum (p - q)^2 / q.
  """
  values = np.asarray(values, float)
  count = len(values)
  if not values.sum() > 0:
    return dict(max_over_mean=1.0, total_variation=0.0, kl=0.0, chi2=0.0)
  p = values / values.sum()
  logs = np.log(p * count, out=np.zeros(count), where=p > 0)
  return {
    'max_over_mean': float(p.max() * count),
    'total_variation': float(np.abs(p - 1 / count).sum() / 2),
    'kl': float((p * logs).sum()),
    'chi2': float(((p - 1 / count) ** 2).sum() * count),
  }


def _check(
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
