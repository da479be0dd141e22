"""The cost of a plan: numbers for programs, text for people."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from genrec_jax.planner import report_text, storage
from genrec_jax.planner.balance import measure_imbalance
from genrec_jax.planner.cost import Cost
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.sizing import Sizing
from genrec_jax.planner.tower_report import TowerReport
from genrec_jax.planner.traffic import Transfer
from genrec_jax.planner.workload import DensePart


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
class Report:
  """What a plan costs on the devices of a replica group; `str` of it is text.

  Attributes:
    topology: the machine.
    batch: examples of a step on all devices.
    dense: the rest of the model.
    tables: in the order of the plan.
    times: `[W, 5]` seconds, in the order of `Cost`.
    row_bytes: `[W]` rows and slots.
    buffer_bytes: `[W]` what goes in and out in a step.
    allocated: bytes of the arrays that hold the rows, the same on every device;
      above `row_bytes` it is filling.
    sent: what a device sends in a step.
    sizes: bounds of the machine, and of larger ones.
    formats: 'rows/gradients', the formats in which they travel -> tables.
    pooling: feature -> whether its rows or its sums travel.
    made_by: e.g. 'greedy_max + ldm', or 'by hand'.
    tried: placements compared.
    notes: what else a reader must know.
    towers: what they change; None where there are none, or nobody compares.
  """

  topology: Topology
  batch: int
  dense: DensePart
  tables: tuple[TableLine, ...]
  times: np.ndarray
  row_bytes: np.ndarray
  buffer_bytes: np.ndarray
  allocated: int
  sent: tuple[Transfer, ...]
  sizes: tuple[Sizing, ...]
  formats: Mapping[str, int] = dataclasses.field(default_factory=dict)
  pooling: Mapping[str, str] = dataclasses.field(default_factory=dict)
  made_by: str = 'by hand'
  tried: int = 0
  notes: tuple[str, ...] = ()
  towers: TowerReport | None = None

  @property
  def budget(self) -> int:
    """Bytes of a device for tables and buffers."""
    return storage.table_budget(self.topology, self.dense)

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
    comms = self.times[:, 2:4].sum(axis=1)
    compute = self.times.sum(axis=1) - comms
    return float(compute.max() + comms.max())

  def __str__(self) -> str:
    return self.text()

  def text(self, top: int = 20) -> str:
    """The report, with the `top` most expensive tables."""
    return report_text.render_report(self, top)

  def to_dict(self) -> dict:
    """Everything as JSON can hold it, devices in order."""
    return {
      'topology': dataclasses.asdict(self.topology),
      'batch': self.batch,
      'dense': dataclasses.asdict(self.dense),
      'made_by': self.made_by,
      'tried': self.tried,
      'notes': list(self.notes),
      'step_s': self.step,
      'critical_path_s': self.critical_path,
      'budget_bytes': self.budget,
      'allocated_bytes': self.allocated,
      'fits': not len(self.over),
      'devices': [
        {
          'row_bytes': int(rows),
          'buffer_bytes': int(buffers),
          **{
            f'{field.name}_s': float(x)
            for field, x in zip(dataclasses.fields(Cost), times, strict=True)
          },
        }
        for rows, buffers, times in zip(
          self.row_bytes, self.buffer_bytes, self.times, strict=True
        )
      ],
      'imbalance': {
        'time': measure_imbalance(self.times.sum(axis=1)),
        'bytes': measure_imbalance(self.row_bytes),
      },
      'sizing': [
        {**dataclasses.asdict(size), 'binds': size.binds} for size in self.sizes
      ],
      'sent': [dataclasses.asdict(t) for t in self.sent],
      'formats': dict(self.formats),
      'pooling': dict(self.pooling),
      'towers': self.towers and self.towers.to_dict(),
      'tables': [dataclasses.asdict(t) for t in self.tables],
    }
