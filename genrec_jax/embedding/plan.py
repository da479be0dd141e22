"""Where the rows of every table live: pure data, with a JSON round trip.

Whatever makes a plan (a hand, a planner) and whatever uses one (lookups,
checkpoints) meet only here. A table is cut into equal column pieces, mostly
one; the rows of a piece lie on one device, on the devices of one host, or on
all devices of a replica group. The schemes are the names of these choices:

| scheme             | pieces | rows of a piece lie on | `at` names, a piece   |
|--------------------|--------|------------------------|-----------------------|
| data_parallel      | 1      | every device, whole    | nothing               |
| table_wise         | 1      | one device             | the device            |
| column_wise        | n      | one device             | the device            |
| table_column_wise  | n      | one device             | devices of one host   |
| table_row_wise     | 1      | devices of one host    | the host              |
| grid               | n      | devices of one host    | the host              |
| row_wise           | 1      | all devices of a group | nothing               |

Devices are numbered through a replica group, host by host. Rows spread over
several devices go round like cards ('mod', which spreads neighbouring hot ids)
or in runs ('block').
"""

import dataclasses
import json
import pathlib

SCHEMES = (
  'data_parallel',
  'table_wise',
  'column_wise',
  'table_column_wise',
  'table_row_wise',
  'grid',
  'row_wise',
)
SPLITS = ('mod', 'block')
VERSION = 1

# How far the rows of a piece are spread.
ONE, HOST, ALL = 'one', 'host', 'all'
_SPREAD = {'table_row_wise': HOST, 'grid': HOST, 'row_wise': ALL}
_MANY_PIECES = ('column_wise', 'table_column_wise', 'grid')


class PlanError(ValueError):
  """A plan that cannot be; the message names the table and what to change."""


@dataclasses.dataclass(frozen=True)
class TablePlan:
  """One table: what it is, and where its rows lie.

  Attributes:
    rows: number of rows.
    dim: width of a row.
    scheme: a name in `SCHEMES`.
    at: device or host of each column piece (see the table above).
    split: 'mod' or 'block', for rows spread over several devices.
    dtype: of the rows.
    optimizer: name of the row optimizer, which says what slots there are.
  """

  rows: int
  dim: int
  scheme: str
  at: tuple[int, ...] = ()
  split: str = 'mod'
  dtype: str = 'float32'
  optimizer: str = 'row_adagrad'

  @property
  def pieces(self) -> int:
    return max(1, len(self.at))

  @property
  def columns(self) -> int:
    """Width of a piece."""
    return self.dim // self.pieces

  @property
  def spread(self) -> str | None:
    """`ONE`, `HOST` or `ALL`; None where every device holds the table."""
    if self.scheme == 'data_parallel':
      return None
    return _SPREAD.get(self.scheme, ONE)


@dataclasses.dataclass(frozen=True)
class Shard:
  """A rectangle of a table on one device of a replica group."""

  device: int
  rows: int
  first_column: int
  columns: int


@dataclasses.dataclass(frozen=True)
class ShardingPlan:
  """The tables of a model over `replicas` groups of `hosts` x `devices`.

  Attributes:
    tables: name -> its plan.
    hosts: hosts of a replica group.
    devices: devices of a host.
    replicas: groups that hold a copy of every table each.
  """

  tables: dict[str, TablePlan]
  hosts: int = 1
  devices: int = 1
  replicas: int = 1

  def __post_init__(self):
    for field in ('hosts', 'devices', 'replicas'):
      if getattr(self, field) < 1:
        raise PlanError(f'a plan for {getattr(self, field)} {field}')
    for name, table in self.tables.items():
      if fault := _fault(self, table):
        raise PlanError(f'plan of table {name!r}: {fault}')

  @property
  def group(self) -> int:
    """Devices that hold one copy of the tables together."""
    return self.hosts * self.devices

  def shards(self, name: str) -> list[Shard]:
    """The rectangles of a table; together they cover it once.

    A table that every device holds whole has one for each device.
    """
    table = self.tables[name]
    if table.spread is None:
      return [Shard(d, table.rows, 0, table.dim) for d in range(self.group)]
    found = []
    for piece in range(table.pieces):
      owners = self.owners(name, piece)
      for place, device in enumerate(owners):
        rows = share(table.rows, len(owners), table.split, place)
        first = piece * table.columns
        found.append(Shard(device, rows, first, table.columns))
    return found

  def owners(self, name: str, piece: int) -> tuple[int, ...]:
    """The devices over which the rows of a column piece are spread."""
    table = self.tables[name]
    if table.spread == ONE:
      return (table.at[piece],)
    if table.spread == HOST:
      first = table.at[piece] * self.devices
      return tuple(range(first, first + self.devices))
    return tuple(range(self.group))

  def to_json(self) -> str:
    """The plan as text; `from_json` is the inverse."""
    body = {
      'version': VERSION,
      'replicas': self.replicas,
      'hosts': self.hosts,
      'devices': self.devices,
      'tables': {n: dataclasses.asdict(t) for n, t in self.tables.items()},
    }
    return json.dumps(body, indent=2)

  def save(self, path) -> None:
    pathlib.Path(path).write_text(self.to_json() + '\n')


def from_json(text: str) -> ShardingPlan:
  """The plan that `ShardingPlan.to_json` wrote, or somebody by hand."""
  try:
    body = json.loads(text)
  except ValueError as e:
    raise PlanError(f'a plan must be JSON: {e}') from None
  if not isinstance(body, dict) or body.get('version') != VERSION:
    raise PlanError(f'a plan must hold "version": {VERSION}')
  known = {f.name for f in dataclasses.fields(TablePlan)}
  tables = {}
  for name, fields in body.get('tables', {}).items():
    if unknown := set(fields) - known:
      raise PlanError(
        f'plan of table {name!r}: unknown {sorted(unknown)}; known are '
        f'{sorted(known)}'
      )
    if missing := {'rows', 'dim', 'scheme'} - set(fields):
      raise PlanError(f'plan of table {name!r}: {sorted(missing)} is missing')
    tables[name] = TablePlan(**{**fields, 'at': tuple(fields.get('at', ()))})
  sizes = {k: body.get(k, 1) for k in ('hosts', 'devices', 'replicas')}
  return ShardingPlan(tables, **sizes)


def load(path) -> ShardingPlan:
  """Reads a plan file."""
  try:
    return from_json(pathlib.Path(path).read_text())
  except PlanError as e:
    raise PlanError(f'{path}: {e}') from None


def depth(rows: int, owners: int) -> int:
  """Rows kept for a piece on each of its owners, which must be equal."""
  return -(-rows // owners)


def share(rows: int, owners: int, split: str, place: int) -> int:
  """How many real rows of a piece lie on its owner number `place`."""
  if split == 'mod':
    return (rows - place + owners - 1) // owners
  each = depth(rows, owners)
  return min(max(rows - place * each, 0), each)


def _fault(plan: ShardingPlan, table: TablePlan) -> str | None:
  """What is wrong with the plan of a table, in words."""
  if table.scheme not in SCHEMES:
    return f'scheme is {table.scheme!r}, must be one of {SCHEMES}'
  if table.split not in SPLITS:
    return f'split is {table.split!r}, must be one of {SPLITS}'
  if table.rows < 1 or table.dim < 1:
    return f'{table.rows} rows of width {table.dim}'
  names = {ONE: plan.group, HOST: plan.hosts}.get(table.spread)
  if names is None:
    return f'{table.scheme} takes no "at"' if table.at else None
  kind = 'device' if table.spread == ONE else 'host'
  if not table.at:
    return f'{table.scheme} needs "at", the {kind} of each piece'
  if any(not 0 <= place < names for place in table.at):
    return f'at={list(table.at)}, but the {kind}s are 0 .. {names - 1}'
  if len(table.at) > 1 and table.scheme not in _MANY_PIECES:
    return f'{table.scheme} has one piece, at={list(table.at)} names several'
  if table.dim % len(table.at):
    return (
      f'{table.dim} columns cannot be cut into {len(table.at)} equal pieces'
    )
  if table.scheme == 'table_column_wise':
    hosts = sorted({place // plan.devices for place in table.at})
    if len(hosts) > 1:
      return (
        f'its pieces must lie on one host, at={list(table.at)} is on {hosts}'
      )
  return None
