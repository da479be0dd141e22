"""Rows or sums: what travels between devices for a pooled feature.

The rows of a bag can travel one by one to the device that has the example, or
the devices that hold them add them up, and sums travel. Neither always sends
fewer bytes. What a device sends in a step either way, for ids, for rows or
sums, and for their gradients together, is counted by the formulas of
traffic.py, with even shares: the padding of a stack, because one device has
more pieces or receives more requests, does not belong to one feature.

Sums over all devices are made by each of them for each bag of all of them.
Where these are more than there is room for rows, the program sends rows,
whatever the plan says (`Exchange.sums_give_way`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.embedding.scheme import ONE, Scheme
from genrec_jax.planner import traffic
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.traffic import Mesh, Wire
from genrec_jax.planner.workload import DENSE, Feature, Load

AUTO, ROWS, SUMS = POOLS = ('auto', 'rows', 'sums')
DETERMINISMS = ('per_mesh', 'mesh_invariant')


@dataclasses.dataclass(frozen=True)
class BagRead:
  """A pooled feature of a step on one device.

  Attributes:
    dim: width of a row.
    bags: how many.
    length: ids for which each has room.
    most_rows: different rows that can be asked for at most.
    distinct: share of the ids that are expected to be different.
    weighted: whether every id has a weight.
  """

  dim: int
  bags: float
  length: float
  most_rows: float = math.inf
  distinct: float = 1.0
  weighted: bool = False

  @property
  def ids(self) -> float:
    return self.bags * self.length


@dataclasses.dataclass(frozen=True)
class PoolingRule:
  """How rows or sums is decided for each pooled feature.

  Attributes:
    pool: 'auto' for what sends fewer bytes (under 'mesh_invariant': for sums
      wherever they are allowed), or 'rows' or 'sums' for all.
    exchange: the way of rows, and the codecs of both.
    determinism: 'mesh_invariant' wants results that do not depend on the mesh.
  """

  pool: str = AUTO
  exchange: Exchange = Exchange()
  determinism: str = 'per_mesh'

  def __post_init__(self):
    for field, allowed in (('pool', POOLS), ('determinism', DETERMINISMS)):
      if getattr(self, field) not in allowed:
        raise ValueError(
          f'{field} is {getattr(self, field)!r}, must be one of {allowed}'
        )

  def allows_sums(self, scheme: Scheme, pieces: int) -> bool:
    """Whether sums keep what determinism promises.

    A sum over devices is made in an order that depends on how many there are;
    only one that a single device makes alone does not.
    """
    if self.determinism != 'mesh_invariant':
      return True
    return scheme.spread is None or (scheme.spread == ONE and pieces == 1)


def choose_pooling(
  read: BagRead,
  scheme: Scheme,
  pieces: int,
  mesh: Mesh,
  rule: PoolingRule = PoolingRule(),
) -> str:
  """'rows' or 'sums', whichever a device sends fewer bytes for.

  Between equals it is sums, of which the device has less to compute.

  >>> from genrec_jax.embedding.scheme import SCHEMES
  >>> read = BagRead(dim=64, bags=1024, length=20)
  >>> choose_pooling(read, SCHEMES['row_wise'], 1, ShardingPlan({}, devices=8))
  'sums'
  >>> choose_pooling(read, SCHEMES['row_wise'], 1, ShardingPlan({}, devices=64))
  'rows'

  Args:
    read: the feature.
    scheme: of its table.
    pieces: column pieces of its table.
    mesh: whatever has `hosts`, `devices` and `replicas`.
    rule: what is settled about it.
  """
  if not rule.allows_sums(scheme, pieces):
    return ROWS
  if rule.pool != AUTO:
    return rule.pool
  if rule.determinism == 'mesh_invariant':
    return SUMS  # bytes depend on the mesh, and the bits on what is chosen
  if rule.exchange.sums_give_way(
    scheme.spread, read.bags, read.ids, mesh.hosts * mesh.devices
  ):
    return ROWS
  rows = rows_bytes(read, scheme, pieces, mesh, rule.exchange)
  sums = sums_bytes(read, scheme, pieces, mesh, rule.exchange)
  return SUMS if sums <= rows else ROWS


def rows_bytes(
  read: BagRead, scheme: Scheme, pieces: int, mesh: Mesh, exchange: Exchange
) -> float:
  """What a device sends in a step if rows travel, see `choose_pooling`."""
  num_rows = min(read.ids, read.most_rows)
  if scheme.spread is None:
    return _copies_bytes(read, num_rows, mesh)
  needed = pieces * num_rows
  expected = pieces * min(read.ids * read.distinct, num_rows)
  room = min(needed, exchange.capacity * needed / mesh.group_size)
  rounds = math.ceil(expected / max(exchange.capacity * needed, 1e-9))
  if exchange.kind == 'gather':
    rounds = 1
  if rounds > 1 and exchange.overflow == 'raise':
    return math.inf  # even shares find no room, so that no step would end
  sent = traffic.list_rows(
    mesh,
    _wire_of(exchange),
    read.dim // pieces,
    needed,
    room,
    exchange.capacity * needed,
    expected=expected,
    rounds=max(1, rounds),
  )
  return _add_up(sent)


def sums_bytes(
  read: BagRead, scheme: Scheme, pieces: int, mesh: Mesh, exchange: Exchange
) -> float:
  """What a device sends in a step if sums travel, see `choose_pooling`."""
  if scheme.spread is None:
    return _copies_bytes(read, read.ids, mesh)
  sent = traffic.list_sums(
    mesh,
    _wire_of(exchange),
    read.dim // pieces,
    scheme.spread,
    1,
    read.ids,
    read.bags,
    read.weighted,
  )
  # The share of a piece, where pieces are spread evenly over those places.
  owners = scheme.owners(mesh.hosts, mesh.devices)
  return _add_up(sent) * pieces * owners / mesh.group_size


def _copies_bytes(read: BagRead, entries: float, mesh: Mesh) -> float:
  """What a device sends for a table that all of them hold."""
  rows = read.most_rows
  if math.isinf(rows):
    rows = 2**62  # so many that a table of gradients never travels
  return _add_up(
    traffic.list_gradients_of_copies(mesh, entries, rows, read.dim)
  )


def _wire_of(exchange: Exchange) -> Wire:
  # Bytes of a ragged exchange as they are where no part is padded.
  return Wire(exchange, 'gpu')


def _add_up(sent: Sequence[traffic.Transfer]) -> float:
  return sum(t.expected for t in sent if t.what != 'scalars')


def resolve_load(
  load: Load,
  scheme: Scheme,
  pieces: int,
  topology: Topology,
  batch: int,
  rule: PoolingRule,
) -> Load:
  """A table as it would be read under a scheme; arguments as `choose_pooling`.

  Args:
    load: the table and the lookups into it.
    scheme: of the table.
    pieces: column pieces of the table.
    topology: the machine.
    batch: examples of a step on all devices together.
    rule: how rows or sums is decided.
  """
  examples = batch / (topology.group_size * topology.replicas)
  where = scheme, pieces, topology
  return load.with_pooling(
    {f.name: _choose_of(load, f, *where, examples, rule) for f in load.choices}
  )


def fill_pooling(
  plan: ShardingPlan,
  loads: Sequence[Load],
  batch: int,
  rule: PoolingRule = PoolingRule(),
) -> ShardingPlan:
  """The plan with 'rows' or 'sums' for every pooled feature that has a name.

  What the plan says already is kept, unless the rule wants one way for all.

  Args:
    plan: where rows lie.
    loads: the tables and the lookups into them.
    batch: examples of a step on all devices together.
    rule: how rows or sums is decided.

  Raises:
    PlanError: the plan names a feature that is not pooled, or sums are wanted
      where determinism rules them out.
  """
  examples = batch / (plan.group_size * plan.replicas)
  pooling = {}
  for load in loads:
    table = plan.tables.get(load.name)
    if table is None:  # whoever evaluates the plan says so
      continue
    where = table.kind, table.pieces
    for feature in load.choices:
      way = rule.pool
      if way == AUTO:
        way = plan.pooling.get(feature.name)
      if way == SUMS and not rule.allows_sums(*where):
        raise PlanError(
          f'feature {feature.name!r} would travel as sums, but its table '
          f'{load.name!r} ({table.scheme}) is cut over devices, and with '
          "parallel.determinism='mesh_invariant' only a device that has all of "
          "a table may add up its rows: set parallel.pool='rows', or keep the "
          "table on one device (scheme 'table_wise')"
        )
      pooling[feature.name] = way or _choose_of(
        load, feature, *where, plan, examples, rule
      )
  if unknown := sorted(set(plan.pooling) - set(pooling)):
    raise PlanError(
      f'the plan has "pooling" of {unknown}, but the pooled features of the '
      f'model are {sorted(pooling)}: take them out of the plan'
    )
  return dataclasses.replace(plan, pooling=pooling)


def _choose_of(
  load: Load, feature: Feature, scheme, pieces, mesh, examples, rule
) -> str:
  """`choose_pooling` where other features may read the table, too."""
  if load.optimizer == DENSE and rule.pool == AUTO:
    return SUMS  # a device reads its own copy, and nothing travels
  # None of a table whose features have been empty so far.
  share = feature.length * feature.poolings / load.ids if load.ids else 1.0
  read = BagRead(
    dim=load.dim,
    bags=examples * feature.poolings,
    length=feature.length,
    # Equal ids of several features are asked for once: each has its share.
    most_rows=load.rows * share,
    distinct=load.distinct,
    weighted=feature.weighted,
  )
  return choose_pooling(read, scheme, pieces, mesh, rule)


def describe_pooling(pooling: Mapping[str, str], top: int) -> list[str]:
  """Lines of a report: which features travel as sums, and which as rows."""
  lines = []
  for way, what in ((SUMS, 'as sums'), (ROWS, 'as rows, though pooled')):
    names = sorted(name for name, chosen in pooling.items() if chosen == way)
    if names:
      more = f' and {len(names) - top:,} more' if len(names) > top else ''
      lines.append(f'travel {what}: {", ".join(names[:top])}{more}')
  return lines
