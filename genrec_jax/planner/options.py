"""The options for each table among which the planner chooses."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.embedding.layout import MOST_ROWS
from genrec_jax.embedding.plan import (
  SPLITS,
  PlanError,
  ShardingPlan,
  rows_per_owner,
)
from genrec_jax.embedding.scheme import (
  HOST,
  ONE,
  SCHEMES,
  Scheme,
  add_to_schemes,
)
from genrec_jax.planner import storage
from genrec_jax.planner.cost import Cost, shard_cost
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.pooling import PoolingRule, resolve_load
from genrec_jax.planner.workload import DENSE, Load


class ConstraintError(ValueError):
  """A constraint that cannot be kept; the message names the table."""


@dataclasses.dataclass(frozen=True)
class Constraint:
  """What is settled about a table beforehand.

  Attributes:
    schemes: names of those allowed; () for all that are `proposed`, or for a
      table that optax updates the one that keeps it whole.
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
    scheme: its name.
    pieces: column pieces.
    cost: of a piece, on each of its devices.
    bytes: of a piece, on each of its devices.
    buffers: of them what goes in and out in a step.
    devices_per_piece: devices of a piece.
    at: where its pieces must lie; () for anywhere.
    array: pieces with the same word here share an array; '' for none.
    outside: the scheme, if it is none of the built-in ones.
  """

  names: tuple[str, ...]
  scheme: str
  pieces: int
  cost: Cost
  bytes: int
  buffers: int = 0
  devices_per_piece: int = 1
  at: tuple[int, ...] = ()
  array: str = ''
  outside: Scheme | None = None

  @property
  def kind(self) -> Scheme:
    """What the scheme can do."""
    return self.outside or SCHEMES[self.scheme]

  @functools.cached_property
  def time(self) -> float:
    return self.cost.total

  @property
  def shards(self) -> int:
    return self.pieces * self.devices_per_piece

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
  *,
  schemes: Mapping[str, Scheme] | None = None,
  rule: PoolingRule = PoolingRule(),
) -> list[list[Option]]:
  """The options of each table, or of each group that stays together.

  Args:
    loads: tables and the lookups into them.
    topology: the machine.
    batch: examples of a step on all devices together.
    constraints: table -> what is settled about it.
    schemes: from outside the library, by name.
    rule: how rows or sums is decided; each option has what it would send less
      of.
  """
  constraints = constraints or {}
  schemes = add_to_schemes(schemes)
  names = [load.name for load in loads]
  if twice := sorted({n for n in names if names.count(n) > 1}):
    raise ConstraintError(f'there are several tables called {twice}')
  if unknown := sorted(set(constraints) - set(names)):
    raise ConstraintError(
      f'constraints name {unknown}, which are not tables; there are '
      f'{names[:10]}{" ..." if len(names) > 10 else ""}'
    )
  for name, constraint in constraints.items():
    _check_constraint(name, constraint, schemes)
  groups = {}
  for load in loads:
    word = constraints.get(load.name, Constraint()).together
    key = ('together', word) if word else load.name
    groups.setdefault(key, []).append(load)
  turns = {name: turn for turn, name in enumerate(sorted(names))}
  every = _Ways(topology, batch, schemes, rule, turns)
  return [_options_of(group, every, constraints) for group in groups.values()]


@dataclasses.dataclass(frozen=True)
class _Ways:
  """What the options of all tables depend on; `turns` counts their names."""

  topology: Topology
  batch: int
  schemes: Mapping[str, Scheme]
  rule: PoolingRule
  turns: Mapping[str, int]


def _options_of(loads, ways, constraints) -> list[Option]:
  """Options that every table of a group has."""
  shared = None
  for load in loads:
    constraint = constraints.get(load.name, Constraint())
    options = {
      (option.scheme, option.pieces): option
      for option in _options_of_one(load, ways, constraint)
    }
    shared = options if shared is None else _join_options(shared, options)
  if not shared:
    raise ConstraintError(
      f'the tables {[load.name for load in loads]} must stay together, but no '
      'scheme with as many pieces is allowed for all of them'
    )
  return list(shared.values())


def _join_options(first, second):
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


def _options_of_one(load, ways, constraint) -> list[Option]:
  topology, batch = ways.topology, ways.batch
  names = constraint.schemes or _propose_schemes(load, topology, ways.schemes)
  options, deepest = [], 0
  for name in names:
    scheme = ways.schemes[name]
    devices_per_piece = scheme.owners(topology.hosts, topology.devices)
    if scheme.spread is None:
      devices_per_piece = topology.group_size
    elif rows_per_owner(load.rows, devices_per_piece) > MOST_ROWS:
      deepest = rows_per_owner(load.rows, devices_per_piece)
      continue
    at = _settled_places(load, name, ways, constraint)
    for pieces in _propose_pieces(load, scheme, topology, constraint, at):
      columns = load.dim // pieces
      read = resolve_load(load, scheme, pieces, topology, batch, ways.rule)
      args = (read, scheme, columns, topology)
      buffers = storage.buffer_bytes(*args, batch)
      options.append(
        Option(
          names=(load.name,),
          scheme=name,
          pieces=pieces,
          cost=shard_cost(*args, batch, ways.rule.exchange),
          bytes=storage.row_bytes(*args) + buffers,
          buffers=buffers,
          devices_per_piece=devices_per_piece,
          at=at,
          array=''
          if scheme.spread is None
          else f'{columns} {load.dtype} {load.optimizer}',
          outside=None if name in SCHEMES else scheme,
        )
      )
  if not options and deepest:
    raise ConstraintError(
      f'table {load.name!r} would have {deepest:,} rows on a device, which can '
      f'count {MOST_ROWS:,}: allow row_wise'
    )
  if not options:
    raise ConstraintError(
      f'table {load.name!r} of width {load.dim} cannot be '
      f'{" or ".join(names)} on {topology.hosts} hosts of '
      f'{topology.devices} devices in pieces of at least '
      f'{constraint.min_columns} columns: allow another scheme or lower '
      'min_columns'
    )
  return options


def _propose_schemes(
  load: Load, topology: Topology, schemes: Mapping[str, Scheme]
) -> tuple[str, ...]:
  """Names of all schemes that differ on this machine and need no asking."""
  if load.optimizer == DENSE:
    names = (n for n, s in schemes.items() if s.spread is None)
    return (next(names),)
  if topology.group_size == 1:  # there is one place, and all schemes are alike
    return (next(n for n, s in schemes.items() if s == Scheme(ONE)),)
  names = [n for n, s in schemes.items() if s.proposed]
  if topology.hosts == 1:
    # What keeps to a host has a twin that does not.
    names = [n for n in names if not _keeps_to_a_host(schemes[n])]
    # The first of equals is taken: copies, which cost memory, come last.
    names.sort(key=lambda n: schemes[n].spread is None)
  return tuple(names)


def _keeps_to_a_host(scheme: Scheme) -> bool:
  """Whether that is all that makes the scheme."""
  return scheme.places is None and (scheme.one_host or scheme.spread == HOST)


def _settled_places(load, name, ways, constraint) -> tuple[int, ...]:
  """Where the pieces must lie, by a constraint or by the scheme itself."""
  scheme, topology = ways.schemes[name], ways.topology
  shape = topology.hosts, topology.devices
  at, source = constraint.at, 'constraint of'
  if not at and scheme.places is not None:
    at = scheme.place(ways.turns[load.name], load, *shape)
    source = f'scheme {name!r} in'
  if not at:
    return ()
  outside = None if name in SCHEMES else scheme
  plan = load.plan(name, at, constraint.split, outside)
  try:
    ShardingPlan({load.name: plan}, *shape)
  except PlanError as e:
    raise ConstraintError(f'{source} {e}') from None
  return at


def _propose_pieces(load, scheme, topology, constraint, at) -> Iterator[int]:
  """Numbers of column pieces to consider."""
  if at or not scheme.many_pieces:
    yield max(1, len(at))
    return
  most = scheme.most_pieces(topology.hosts, topology.devices)
  pieces = 2
  while (
    pieces <= most
    and load.dim % pieces == 0
    and load.dim // pieces >= constraint.min_columns
  ):
    yield pieces
    pieces *= 2


def _check_constraint(
  name: str, constraint: Constraint, schemes: Mapping[str, Scheme]
) -> None:
  if unknown := sorted(set(constraint.schemes) - set(schemes)):
    raise ConstraintError(
      f'constraint of table {name!r}: {unknown} are not schemes, which are '
      f'{tuple(schemes)}'
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
