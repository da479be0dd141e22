"""What may be done with each table: the options a planner chooses among."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.embedding.layout import MOST_ADDRESSES
from genrec_jax.embedding.plan import (
  SCHEMES,
  SPLITS,
  PlanError,
  ShardingPlan,
  depth,
)
from genrec_jax.planner import storage
from genrec_jax.planner.cost import Cost, shard_cost
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.workload import DENSE, Load

EVERYWHERE = ('data_parallel', 'row_wise')
ON_A_HOST = ('table_row_wise', 'grid')


class ConstraintError(ValueError):
  """A constraint that cannot be kept; the message names the table."""


@dataclasses.dataclass(frozen=True)
class Constraint:
  """What is settled about a table beforehand.

  Attributes:
    schemes: those allowed; () for all but 'grid', or for a table that optax
      updates 'data_parallel' alone.
    at: device or host of each piece, if that is settled; needs one scheme.
    together: tables with the same word here lie on the same devices.
    min_columns: no narrower pieces.
    split: of rows that go over several devices.
  """

  schemes: tuple[str, ...] = ()
  at: tuple[int, ...] = ()
  together: str = ''
  min_columns: int = 32
  split: str = 'mod'


@dataclasses.dataclass(frozen=True)
class Option:
  """One way to place one table, or tables that stay together.

  Attributes:
    names: of the tables.
    scheme: a name in `plan.SCHEMES`.
    pieces: column pieces.
    cost: of a piece, on each of its devices.
    bytes: of a piece, on each of its devices.
    buffers: of them what goes in and out in a step.
    spread: devices of a piece.
    at: where its pieces must lie; () for anywhere.
    array: pieces with the same word here share an array; '' for none.
  """

  names: tuple[str, ...]
  scheme: str
  pieces: int
  cost: Cost
  bytes: int
  buffers: int = 0
  spread: int = 1
  at: tuple[int, ...] = ()
  array: str = ''

  @functools.cached_property
  def time(self) -> float:
    return self.cost.total

  @property
  def shards(self) -> int:
    return self.pieces * self.spread

  @property
  def row_bytes(self) -> int:
    return self.bytes - self.buffers

  @property
  def total_bytes(self) -> int:
    return self.bytes * self.shards


def enumerate_options(
  loads: Sequence[Load],
  topology: Topology,
  batch: int,
  constraints: Mapping[str, Constraint] | None = None,
) -> list[list[Option]]:
  """The options of each table, or of each group that stays together."""
  constraints = constraints or {}
  names = [load.name for load in loads]
  if twice := sorted({n for n in names if names.count(n) > 1}):
    raise ConstraintError(f'there are several tables called {twice}')
  if unknown := sorted(set(constraints) - set(names)):
    raise ConstraintError(
      f'constraints name {unknown}, which are no tables; there are '
      f'{names[:10]}{" ..." if len(names) > 10 else ""}'
    )
  for name, constraint in constraints.items():
    _check(name, constraint)
  groups = {}
  for load in loads:
    word = constraints.get(load.name, Constraint()).together
    groups.setdefault(('together', word) if word else load.name, []).append(
      load
    )
  return [
    _options_of(group, topology, batch, constraints)
    for group in groups.values()
  ]


def _options_of(loads, topology, batch, constraints) -> list[Option]:
  """Options that every table of a group has."""
  shared = None
  for load in loads:
    constraint = constraints.get(load.name, Constraint())
    found = {
      (option.scheme, option.pieces): option
      for option in _options_of_one(load, topology, batch, constraint)
    }
    shared = found if shared is None else _joined(shared, found)
  if not shared:
    raise ConstraintError(
      f'the tables {[load.name for load in loads]} must stay together, but no '
      'scheme with as many pieces is allowed for all of them'
    )
  return list(shared.values())


def _joined(first, second):
  both = {}
  for key, a in first.items():
    b = second.get(key)
    if b is None or (a.at and b.at and a.at != b.at):
      continue
    both[key] = dataclasses.replace(
      a,
      names=a.names + b.names,
      cost=a.cost + b.cost,
      bytes=a.bytes + b.bytes,
      buffers=a.buffers + b.buffers,
      at=a.at or b.at,
      array=a.array if a.array == b.array else '',
    )
  return both


def _options_of_one(load, topology, batch, constraint) -> list[Option]:
  schemes = constraint.schemes or _schemes(load, topology)
  found, deepest = [], 0
  for scheme in schemes:
    spread = storage.owners(scheme, topology)
    if scheme == 'data_parallel':
      spread = topology.group
    elif depth(load.rows, spread) > MOST_ADDRESSES // topology.group - 1:
      deepest = depth(load.rows, spread)
      continue
    for pieces in _pieces(load, scheme, topology, constraint):
      columns = load.dim // pieces
      args = (load, scheme, columns, topology)
      buffers = storage.buffer_bytes(*args, batch)
      found.append(
        Option(
          names=(load.name,),
          scheme=scheme,
          pieces=pieces,
          cost=shard_cost(*args, batch),
          bytes=storage.row_bytes(*args) + buffers,
          buffers=buffers,
          spread=spread,
          at=constraint.at,
          array=''
          if scheme == 'data_parallel'
          else f'{columns} {load.dtype} {load.optimizer}',
        )
      )
  if not found and deepest:
    raise ConstraintError(
      f'table {load.name!r} would have {deepest:,} rows on a device, but '
      f'{topology.group} devices can address '
      f'{MOST_ADDRESSES // topology.group - 1:,} each: allow row_wise'
    )
  if not found:
    raise ConstraintError(
      f'table {load.name!r} of width {load.dim} cannot be '
      f'{" or ".join(schemes)} on {topology.hosts} hosts of '
      f'{topology.devices} devices in pieces of at least '
      f'{constraint.min_columns} columns: allow another scheme or lower '
      'min_columns'
    )
  return found


def _schemes(load: Load, topology: Topology) -> tuple[str, ...]:
  """All that differ on this machine; a grid is only made when asked for."""
  if load.optimizer == DENSE:
    return ('data_parallel',)
  if topology.group == 1:
    return ('table_wise',)
  if topology.hosts == 1:
    return ('table_wise', 'column_wise', 'row_wise', 'data_parallel')
  return tuple(s for s in SCHEMES if s != 'grid')


def _pieces(load, scheme, topology, constraint) -> Iterator[int]:
  """Numbers of column pieces to consider."""
  if constraint.at:
    plan = load.plan(scheme, constraint.at, constraint.split)
    try:
      ShardingPlan({load.name: plan}, topology.hosts, topology.devices)
    except PlanError as e:
      raise ConstraintError(f'constraint of {e}') from None
    yield len(constraint.at)
    return
  if scheme in ('data_parallel', 'row_wise', 'table_wise', 'table_row_wise'):
    yield 1
    return
  most = {
    'column_wise': topology.group,
    'table_column_wise': topology.devices,
    'grid': topology.hosts,
  }[scheme]
  pieces = 2
  while (
    pieces <= most
    and load.dim % pieces == 0
    and load.dim // pieces >= constraint.min_columns
  ):
    yield pieces
    pieces *= 2


def _check(name: str, constraint: Constraint) -> None:
  if unknown := sorted(set(constraint.schemes) - set(SCHEMES)):
    raise ConstraintError(
      f'constraint of table {name!r}: {unknown} are no schemes, which are '
      f'{SCHEMES}'
    )
  if constraint.split not in SPLITS:
    raise ConstraintError(
      f'constraint of table {name!r}: split is {constraint.split!r}, must be '
      f'one of {SPLITS}'
    )
  if constraint.at and len(constraint.schemes) != 1:
    raise ConstraintError(
      f'constraint of table {name!r}: at={list(constraint.at)} needs one '
      f'scheme, schemes={list(constraint.schemes)}'
    )
