"""Errors for tables that do not fit, with the numbers and what would help."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from genrec_jax.formatting import format_bytes
from genrec_jax.planner import storage
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.options import (
  Constraint,
  ConstraintError,
  enumerate_options,
)
from genrec_jax.planner.partition import Placement, partition_lpt
from genrec_jax.planner.propose import propose_frugal
from genrec_jax.planner.report import Report
from genrec_jax.planner.storage import InsufficientMemory
from genrec_jax.planner.workload import DensePart, Load

SHOWN, MOST_HOSTS, NODE = 10, 1024, 8


def no_memory_left_error(
  topology: Topology, dense: DensePart
) -> InsufficientMemory:
  """The dense part alone fills a device."""
  return InsufficientMemory(
    f'a device of {topology.name!r} has {format_bytes(topology.memory)}; '
    f'{topology.reserve:.0%} are reserved and the dense part takes '
    f'{format_bytes(dense.bytes)}, which leaves nothing for tables: lower '
    'reserve, shard the dense part, or take devices with more memory'
  )


def insufficient_memory_error(report: Report, name: str) -> InsufficientMemory:
  """A given plan puts more on some device than it has."""
  worst = int(report.device_bytes.argmax())
  t = report.topology
  heaviest = sorted(report.tables, key=lambda line: (-line.bytes, line.name))
  lines = [
    f'{name} does not fit: device {worst} would hold '
    f'{format_bytes(report.device_bytes[worst])} '
    f'({format_bytes(report.allocated)} of rows and optimizer, '
    f'{format_bytes(report.buffer_bytes[worst])} of buffers) of '
    f'{format_bytes(report.budget)} ({format_bytes(t.memory)} less '
    f'{t.reserve:.0%} reserve and {format_bytes(report.dense.bytes)} of the '
    f'dense part); {len(report.over)} of {t.group_size} devices have too much.'
  ]
  for line in heaviest[:SHOWN]:
    lines.append(
      f'  {line.name}: {line.rows:,} x {line.dim}, {format_bytes(line.bytes)} '
      f'in all, {line.scheme}'
    )
  if len(heaviest) > SHOWN:
    rest = sum(line.bytes for line in heaviest[SHOWN:])
    lines.append(f'  and {len(heaviest) - SHOWN:,} more: {format_bytes(rest)}')
  lines.append(
    'Cut the large ones over more devices (row_wise over all), move tables '
    'away from the full device, or leave the plan to the planner.'
  )
  return InsufficientMemory('\n'.join(lines))


def no_plan_fits_error(
  loads: Sequence[Load],
  topology: Topology,
  batch: int,
  constraints: Mapping[str, Constraint],
  dense: DensePart,
  **ways,
) -> InsufficientMemory:
  """The arithmetic of a machine that is too small.

  Args:
    loads: tables and the lookups into them.
    topology: the machine.
    batch: examples of a step on all devices together.
    constraints: table -> what is settled about it.
    dense: the rest of the model.
    **ways: further arguments of `enumerate_options`.
  """
  t, cap = topology, storage.table_budget(topology, dense)
  spare, needed = _fewest_bytes(loads, topology, batch, constraints, cap, ways)
  sizes = sorted(
    ((load.bytes_of(load.rows, load.dim), load) for load in loads),
    key=lambda s: (-s[0], s[1].name),
  )
  total = sum(size for size, _ in sizes)
  lines = [
    f'nothing fits: {len(loads):,} tables with their optimizers take '
    f'{format_bytes(total)}, and a group of {t.hosts} hosts x {t.devices} '
    f'devices has {format_bytes(t.group_size * cap)} for them '
    f'({t.group_size} x {format_bytes(cap)}: '
    f'{format_bytes(t.memory)} less {t.reserve:.0%} reserve and '
    f'{format_bytes(dense.bytes)} of the dense part).'
  ]
  least = {name: o for o in spare.options for name in o.names}
  for size, load in sizes[:SHOWN]:
    option = least[load.name]
    lines.append(
      f'  {load.name}: {load.rows:,} x {load.dim} {load.dtype} with '
      f'{load.optimizer}: {format_bytes(size)}; {format_bytes(option.bytes)} '
      f'on each of {option.shards} ({option.scheme})'
    )
  if len(sizes) > SHOWN:
    rest = sum(size for size, _ in sizes[SHOWN:])
    lines.append(f'  and {len(sizes) - SHOWN:,} more: {format_bytes(rest)}')
  lines.append(
    f'At best, with the buffers of {batch:,} examples, the fullest device '
    f'would hold {format_bytes(needed)} of {format_bytes(cap)}.'
  )
  memory = math.ceil((needed + dense.bytes) / (1 - t.reserve))
  lines.append(f'What would fit: devices of {format_bytes(memory)}')
  larger = _larger_machine(
    loads, topology, batch, constraints, dense, total, ways
  )
  if larger:
    lines[-1] += f', or {larger}'
  lines[-1] += ', or narrower rows (dtype bfloat16), or a smaller batch.'
  return InsufficientMemory('\n'.join(lines))


def _fewest_bytes(
  loads, topology, batch, constraints, cap, ways
) -> tuple[Placement, int]:
  """The placement with the fewest bytes: where, and those of a device."""
  items = enumerate_options(loads, topology, batch, constraints, **ways)
  by_name = {load.name: load for load in loads}
  best = None
  for proposal in propose_frugal(items, topology, cap):
    options = [o[i] for o, i in zip(items, proposal, strict=True)]
    placement = partition_lpt(options, topology, math.inf, by='bytes')
    needed = placement.needs(placement.plan(by_name, topology, constraints))
    if best is None or needed < best[1]:
      best = placement, needed
  return best


def _larger_machine(
  loads, topology, batch, constraints, dense, total, ways
) -> str:
  """The smallest machine of the same kind that holds the tables."""
  cap = storage.table_budget(topology, dense)
  least = -(-total // cap)
  for hosts, devices in _larger_machines(topology, least):
    t = dataclasses.replace(topology, hosts=hosts, devices=devices)
    # As many examples a device: buffers grow with the batch of a device.
    examples = batch * t.total // topology.total
    try:
      _, needed = _fewest_bytes(loads, t, examples, constraints, cap, ways)
    except ConstraintError:  # what is settled fits this machine alone
      return ''
    if needed <= cap:
      several = f'{hosts} hosts x ' if hosts > 1 else ''
      return f'{several}{devices} devices'
  return ''


def _larger_machines(topology: Topology, least: int):
  """More devices on the host, up to a node of eight, then more hosts."""
  devices = topology.devices
  if topology.hosts == 1 and devices < NODE:
    for more in range(max(devices + 1, least), NODE + 1):
      yield 1, more
    devices = NODE
  first = max(topology.hosts + 1, -(-least // devices))
  hosts = first
  while hosts <= MOST_HOSTS:
    yield hosts, devices
    # Close to the bound one by one, then in larger steps.
    hosts += max(1, (hosts - first) // 4)
