"""Where the rows of every table live: pure data, with a JSON round trip.

Whatever makes a plan (a hand, a planner) and whatever uses one (lookups,
checkpoints) meet only here. A table is cut by a scheme (scheme.py) into column
pieces, and `at` says where those lie. Devices are numbered through a replica
group, host by host. Rows spread over several devices go round like cards
('mod', which spreads neighbouring hot ids) or in runs ('block').

Besides places a plan says how each pooled feature travels, as rows or as sums.

Version 1 knew tables alone. It is read as the same plan with nothing else,
which is what those runs did.
"""

import dataclasses
import json
import numbers
import pathlib
from collections.abc import Mapping

from genrec_jax.embedding.scheme import (
  ALL as ALL,  # said as plan.ALL where rows are looked up
)
from genrec_jax.embedding.scheme import (
  HOST,
  ONE,
  SCHEMES,
  PlanError,
  Scheme,
  add_to_schemes,
  describe_unknown,
)

SPLITS = ('mod', 'block')
POOLINGS = ('rows', 'sums')
VERSION = 2

# Sections of `ShardingPlan.extra` that this version understands. A plan with
# another one is refused: it was made for something that would not be done.
EXTRA_SECTIONS: frozenset[str] = frozenset({'towers'})

_SHAPE = ('replicas', 'hosts', 'devices')
_KEYS = {1: {'version', 'tables', *_SHAPE}}
_KEYS[2] = _KEYS[1] | {'schemes', 'pooling', 'extra'}


@dataclasses.dataclass(frozen=True)
class TablePlan:
  """One table: what it is, and where its rows lie.

  Attributes:
    rows: number of rows.
    dim: width of a row.
    scheme: a name in `SCHEMES`, or of the scheme `outside`.
    at: device or host of each column piece, as the scheme says.
    split: 'mod' or 'block', for rows spread over several devices.
    dtype: of the rows.
    optimizer: name of the row optimizer, which says what slots there are.
    outside: the scheme, if it is none of the built-in ones.
  """

  rows: int
  dim: int
  scheme: str
  at: tuple[int, ...] = ()
  split: str = 'mod'
  dtype: str = 'float32'
  optimizer: str = 'row_adagrad'
  outside: Scheme | None = None

  @property
  def kind(self) -> Scheme:
    """What the scheme can do."""
    return self.outside or SCHEMES[self.scheme]

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
    return self.kind.spread


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
    pooling: feature -> 'rows' or 'sums': how what a pooled feature reads
      travels. The rows of a feature that is not here travel one by one.
    extra: name of a section in `EXTRA_SECTIONS` -> its content.
  """

  tables: dict[str, TablePlan]
  hosts: int = 1
  devices: int = 1
  replicas: int = 1
  pooling: dict[str, str] = dataclasses.field(default_factory=dict)
  extra: dict[str, dict] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for field in ('hosts', 'devices', 'replicas'):
      if not _is_whole(getattr(self, field)):
        raise PlanError(
          f'a plan for {getattr(self, field)!r} {field}, must be a whole number'
        )
      if getattr(self, field) < 1:
        raise PlanError(f'a plan for {getattr(self, field)} {field}')
    for name, table in self.tables.items():
      if fault := _find_fault(self, table):
        raise PlanError(f'plan of table {name!r}: {fault}')
    for feature, way in self.pooling.items():
      if way not in POOLINGS:
        raise PlanError(
          f'pooling of feature {feature!r} is {way!r}, must be one of '
          f'{POOLINGS}'
        )
    if unknown := sorted(set(self.extra) - EXTRA_SECTIONS):
      raise PlanError(
        f'the plan has sections {unknown} in "extra", which this version does '
        f'not know; it knows {sorted(EXTRA_SECTIONS)}. Use the version that '
        'made the plan, or take them out'
      )
    if 'towers' in self.extra:
      if fault := _find_tower_fault(self.extra['towers']):
        raise PlanError(f'the section "towers" of the plan: {fault}')
    self._added_schemes()

  @property
  def group_size(self) -> int:
    """Devices that hold one copy of the tables together."""
    return self.hosts * self.devices

  def same_placement(self, other: 'ShardingPlan | None') -> bool:
    """Whether every row lies in the same place, however it travels.

    >>> one = ShardingPlan({'t': TablePlan(9, 4, 'row_wise')})
    >>> one.same_placement(dataclasses.replace(one, pooling={'f': 'sums'}))
    True
    """
    if other is None:
      return False
    return dataclasses.replace(self, pooling=other.pooling) == other

  def shards(self, name: str) -> list[Shard]:
    """The rectangles of a table; together they cover it once.

    A table that every device holds whole has one for each device.
    """
    table = self.tables[name]
    if table.spread is None:
      return [
        Shard(d, table.rows, 0, table.dim) for d in range(self.group_size)
      ]
    rectangles = []
    for piece in range(table.pieces):
      owners = self.owners(name, piece)
      for place, device in enumerate(owners):
        rows = count_real_rows(table.rows, len(owners), table.split, place)
        first = piece * table.columns
        rectangles.append(Shard(device, rows, first, table.columns))
    return rectangles

  def owners(self, name: str, piece: int) -> tuple[int, ...]:
    """The devices over which the rows of a column piece are spread."""
    table = self.tables[name]
    if table.spread == ONE:
      return (table.at[piece],)
    if table.spread == HOST:
      first = table.at[piece] * self.devices
      return tuple(range(first, first + self.devices))
    return tuple(range(self.group_size))

  def to_json(self) -> str:
    """The plan as text; `from_json` is the inverse.

    The plan describes schemes from outside by what they can do, so that it can
    be read without them.
    """
    body = {
      'version': VERSION,
      'replicas': self.replicas,
      'hosts': self.hosts,
      'devices': self.devices,
      'tables': {n: _table_fields(t) for n, t in self.tables.items()},
    }
    schemes = {n: _scheme_fields(s) for n, s in self._added_schemes().items()}
    sections = dict(schemes=schemes, pooling=self.pooling, extra=self.extra)
    body |= {name: section for name, section in sections.items() if section}
    return json.dumps(body, indent=2)

  def _added_schemes(self) -> dict[str, Scheme]:
    """The schemes in use that are not built in."""
    schemes = {}
    for name, table in self.tables.items():
      if table.outside is None:
        continue
      if schemes.setdefault(table.scheme, table.outside) != table.outside:
        raise PlanError(
          f'plan of table {name!r}: another table has another scheme by the '
          f'name {table.scheme!r}'
        )
    return schemes

  def save(self, path) -> None:
    pathlib.Path(path).write_text(self.to_json() + '\n')


def from_json(
  text: str, schemes: Mapping[str, Scheme] | None = None
) -> ShardingPlan:
  """The plan that `ShardingPlan.to_json` wrote, or somebody by hand.

  Args:
    text: JSON.
    schemes: from outside the library, by name; not needed for those that the
      text describes.

  Raises:
    PlanError: it is not a plan that can be; it says why.
  """
  try:
    body = json.loads(text)
  except ValueError as e:
    raise PlanError(f'a plan must be JSON: {e}') from None
  version = body.get('version') if isinstance(body, dict) else None
  if version not in _KEYS:
    raise PlanError(
      f'a plan must hold "version": {VERSION}, or one of {sorted(_KEYS)}'
    )
  unknown = set(body) - _KEYS[version]
  if version == 1:  # it overlooked what it did not know
    unknown &= _KEYS[VERSION]
  if unknown:
    raise PlanError(
      f'a plan of version {version} holds no {sorted(unknown)}; known are '
      f'{sorted(_KEYS[version])}'
    )
  schemes = _described_schemes(body.get('schemes', {}), schemes or {})
  known = {f.name for f in dataclasses.fields(TablePlan)} - {'outside'}
  tables = {}
  for name, fields in body.get('tables', {}).items():
    if unknown := set(fields) - known:
      raise PlanError(
        f'plan of table {name!r}: unknown {sorted(unknown)}; known are '
        f'{sorted(known)}'
      )
    if missing := {'rows', 'dim', 'scheme'} - set(fields):
      raise PlanError(f'plan of table {name!r}: {sorted(missing)} is missing')
    at, outside = tuple(fields.get('at', ())), schemes.get(fields['scheme'])
    tables[name] = TablePlan(**{**fields, 'at': at, 'outside': outside})
  return ShardingPlan(
    tables,
    **{k: body.get(k, 1) for k in _SHAPE},
    pooling=body.get('pooling', {}),
    extra=body.get('extra', {}),
  )


def load_plan(
  path, schemes: Mapping[str, Scheme] | None = None
) -> ShardingPlan:
  """Reads a plan file; `schemes` as in `from_json`."""
  try:
    return from_json(pathlib.Path(path).read_text(), schemes)
  except PlanError as e:
    raise PlanError(f'{path}: {e}') from None
  except (
    ValueError, TypeError, AttributeError, LookupError, RecursionError,
  ) as e:  # fmt: skip
    raise PlanError(f'{path}: it is not a plan ({str(e)[:200]})') from None


def _described_schemes(described, handed_in) -> dict[str, Scheme]:
  """Schemes from outside: those a plan describes, and those handed in."""
  schemes = dict(handed_in)
  for name, fields in described.items():
    try:
      scheme = Scheme(**fields)
    except (TypeError, PlanError) as e:
      raise PlanError(f'scheme {name!r} of the plan: {e}') from None
    if schemes.setdefault(name, scheme) != scheme:
      raise PlanError(
        f'scheme {name!r} was {fields} when the plan was made, and what is '
        f'handed in now is {_scheme_fields(schemes[name])}'
      )
  add_to_schemes(schemes)  # refuses names of built-in ones
  return schemes


def _table_fields(table: TablePlan) -> dict:
  fields = dataclasses.asdict(dataclasses.replace(table, outside=None))
  del fields['outside']
  return fields


def _scheme_fields(scheme: Scheme) -> dict:
  """What a plan says of a scheme: the fields that two equal ones share."""
  return {
    field.name: getattr(scheme, field.name)
    for field in dataclasses.fields(Scheme)
    if field.compare
  }


def rows_per_owner(rows: int, owners: int) -> int:
  """Rows kept for a piece on each of its owners, which must be equal."""
  return -(-rows // owners)


def count_real_rows(rows: int, owners: int, split: str, place: int) -> int:
  """How many real rows of a piece lie on its owner number `place`."""
  if split == 'mod':
    return (rows - place + owners - 1) // owners
  each = rows_per_owner(rows, owners)
  return min(max(rows - place * each, 0), each)


def _is_whole(number) -> bool:
  return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def _find_fault(plan: ShardingPlan, table: TablePlan) -> str | None:
  """What is wrong with the plan of a table, in words."""
  if table.outside is None and table.scheme not in SCHEMES:
    return describe_unknown(table.scheme, SCHEMES)
  if table.outside is not None and table.scheme in SCHEMES:
    return f'{table.scheme!r} is built in, a scheme from outside has its name'
  if table.split not in SPLITS:
    return f'split is {table.split!r}, must be one of {SPLITS}'
  for field in ('rows', 'dim', 'at'):
    found = getattr(table, field)
    if not all(map(_is_whole, found if field == 'at' else (found,))):
      return f'{field} is {found!r}, must be whole numbers'
  if table.rows < 1 or table.dim < 1:
    return f'{table.rows} rows of width {table.dim}'
  scheme, kind = table.kind, table.kind.at_names
  if kind is None:
    return f'{table.scheme} takes no "at"' if table.at else None
  names = plan.group_size if scheme.spread == ONE else plan.hosts
  if not table.at:
    return f'{table.scheme} needs "at", the {kind} of each piece'
  if any(not 0 <= place < names for place in table.at):
    return f'at={list(table.at)}, but the {kind}s are 0 .. {names - 1}'
  if len(table.at) > 1 and not scheme.many_pieces:
    return f'{table.scheme} has one piece, at={list(table.at)} names several'
  if table.dim % len(table.at):
    return (
      f'{table.dim} columns cannot be cut into {len(table.at)} equal pieces'
    )
  if scheme.one_host:
    hosts = sorted({place // plan.devices for place in table.at})
    if len(hosts) > 1:
      return (
        f'its pieces must lie on one host, at={list(table.at)} is on {hosts}'
      )
  return None


def _find_tower_fault(section) -> str | None:
  """What is wrong with the section of towers, in words; None of nothing."""
  towers = section.get('features') if isinstance(section, dict) else None
  if not isinstance(towers, list) or not all(
    isinstance(own, list) and all(isinstance(name, str) for name in own)
    for own in towers
  ):
    return 'it must hold "features", a list of the names of each tower'
  return None


def from_checkpoint(host: dict | None) -> ShardingPlan | None:
  """The plan that a checkpoint was written under; None for one device.

  Args:
    host: what its manifest keeps of the host.
  """
  text = (host or {}).get('plan')
  return from_json(text) if text else None
