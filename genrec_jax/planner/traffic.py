"""What a device sends for its tables in a step, and over which links.

The numbers are those of the compiled program: `tests/planner/traffic_test.py`
and `benchmarks/sharding.py` compare them with every collective of its HLO. For
ids, for rows or sums, and for their gradients together:

| way                | a device sends                   |
|--------------------|----------------------------------|
| rows, `all_to_all` | c M (4 + f + b) (W-1) / W        |
| rows, `gather`     | M (4 + f + b) (W-1)              |
| sums of one device | P S (W-1)                        |
| sums of a host     | P S (H-1 + H (G-1))              |
| sums of all        | P S (W-1)                        |
| copies, as rows    | E (4 + 4 D) (R W-1)              |
| copies, as tables  | 2 T 4 (D+1) (R W-1) / (R W)      |

W = H G devices (H hosts of G) in each of R replica groups; M different rows (or
pieces of rows) at most that a device asks for, each of f bytes and its gradient
of b; c even shares of room in the exchange. S = 4 (N + B + 1) + B (f + b) of B
bags on a device with room for N ids: ids, lengths with one for the padding,
sums and their gradients; weights are 4 N more. All parts of a collective are
equally long, as long as those of the device or host with most pieces, P. E
gradients of rows of a table of T rows and D columns, of which the shorter way
is taken (`copied_tables`). Sums of all devices give way to rows where there are
more of them than there is room for rows (`Exchange.sums_give_way`).

What features under towers send stands in tower_traffic.py.

The rooms have least sizes, tables of gradients are padded, a ragged exchange
depends on the platform: `plan_traffic.list_plan` counts all that.
"""

import dataclasses
import math
from collections.abc import Iterable

from genrec_jax.embedding import copied_tables
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import ALL, ONE, Scheme
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.workload import DENSE, Load

GROUP, HOSTS, DEVICES = ('host', 'dev'), ('host',), ('dev',)
EVERYONE, REPLICAS = ('rep', 'host', 'dev'), ('rep',)
ALL_TO_ALL, ALL_GATHER, ALL_REDUCE = 'all-to-all', 'all-gather', 'all-reduce'
RAGGED = 'ragged-all-to-all'
WORD = 4  # bytes of an id, a length, a weight, a scalar
TPU_ROW = 512  # a ragged exchange of a TPU pads every row to these bytes

Mesh = ShardingPlan | Topology  # both say how many replicas, hosts and devices


@dataclasses.dataclass(frozen=True)
class Transfer:
  """A collective of a step, or several alike.

  Attributes:
    step: 'ids', 'forward' or 'backward'.
    what: 'ids', 'rows' (or sums, or gradients of them), 'copies' (of replica
      groups) or 'scalars'.
    op: the collective, as HLO names it.
    over: axes of the mesh.
    bytes: what a device sends, in one round.
    rounds: how often, as it is expected.
    used: share of the bytes that is expected to be sent; 1 where it is all.
  """

  step: str
  what: str
  op: str
  over: tuple[str, ...]
  bytes: float
  rounds: int = 1
  used: float = 1.0

  @property
  def expected(self) -> float:
    """Bytes that a device is expected to send, in all rounds."""
    return self.bytes * self.rounds * self.used


@dataclasses.dataclass(frozen=True)
class Wire:
  """How values of a table travel.

  Attributes:
    exchange: the way of rows, with the codecs of the table.
    platform: 'cpu', 'gpu' or 'tpu'; only `ragged` depends on it.
  """

  exchange: Exchange = Exchange()
  platform: str = 'gpu'

  def of(self, load: Load) -> 'Wire':
    """With the codecs of a table."""
    exchange = self.exchange.with_codecs(load.codec)
    return dataclasses.replace(self, exchange=exchange)

  def row_bytes(self, columns: int) -> tuple[int, int]:
    """Bytes of a piece of a row, and of its gradient."""
    return (
      self.exchange.row_codec.row_bytes(columns),
      self.exchange.gradient_codec.row_bytes(columns),
    )

  def near_row_bytes(self, columns: int) -> tuple[int, int]:
    """Bytes of a sum on its way to a tower, and of its gradient."""
    return (
      self.exchange.near_row_codec.row_bytes(columns),
      self.exchange.near_gradient_codec.row_bytes(columns),
    )


# --- Collectives of n devices.


def exchanged(held: float, n: int) -> float:
  """All-to-all of what a device holds for all n."""
  return held * (n - 1) / n


def gathered(own: float, n: int) -> float:
  """All-gather of what is a device's own."""
  return own * (n - 1)


def reduced(held: float, n: int) -> float:
  """All-reduce of what a device holds."""
  return 2 * held * (n - 1) / n


# --- The ways of rows, sums and copies, in numbers.


def list_rows(
  mesh: Mesh,
  wire: Wire,
  columns: int,
  needed: float,
  room: float,
  total_room: float,
  *,
  expected: float | None = None,
  rounds: int = 1,
) -> list[Transfer]:
  """What travels where rows do.

  Args:
    mesh: the devices.
    wire: how.
    columns: of a row.
    needed: rows that a device asks for at most.
    room: rows for which one peer can be asked, see `Exchange.room`.
    total_room: rows for which all peers of a 'ragged' exchange can be asked.
    expected: rows that a device is expected to ask for; None: `needed`.
    rounds: that are expected.
  """
  n, kind = mesh.group_size, wire.exchange.kind
  forward, backward = wire.row_bytes(columns)
  if kind == 'gather':
    return [
      Transfer('ids', 'ids', ALL_GATHER, GROUP, gathered(needed * WORD, n)),
      Transfer(
        'forward', 'rows', ALL_TO_ALL, GROUP, gathered(needed * forward, n)
      ),
      Transfer(
        'backward', 'rows', ALL_GATHER, GROUP, gathered(needed * backward, n)
      ),
    ]
  found = [list_scalar(mesh, 'ids', GROUP)]  # how full the fullest room is
  parts = ('ids', WORD), ('forward', forward), ('backward', backward)
  for step, size in parts:
    what, used = 'ids' if step == 'ids' else 'rows', 1.0
    # Offsets of parts; those of gradients are known from the ids.
    op, counts = ALL_TO_ALL, 0
    if kind == 'all_to_all':
      held = n * room * size
    elif wire.platform == 'cpu':  # each part is as large as the whole
      held = n * (total_room if step == 'forward' else needed) * size
      counts = {'ids': 3, 'forward': 2}.get(step, 0)
    else:
      op, counts = RAGGED, {'ids': 2, 'forward': 1}.get(step, 0)
      if wire.platform == 'tpu':
        size = TPU_ROW * math.ceil(size / TPU_ROW)
      held = (needed if step == 'forward' else total_room) * size
      real = needed if expected is None else expected
      used = min(1.0, real * size / (held * rounds)) if held else 1.0
    found.append(
      Transfer(step, what, op, GROUP, exchanged(held, n), rounds, used)
    )
    if counts:
      sent = counts * gathered(WORD, n)
      found.append(Transfer(step, 'scalars', ALL_TO_ALL, GROUP, sent, rounds))
  return found


def list_sums(
  mesh: Mesh,
  wire: Wire,
  columns: int,
  spread: str,
  pieces: float,
  ids: float,
  bags: float,
  weighted: bool = False,
) -> list[Transfer]:
  """What travels where sums do.

  Args:
    mesh: the devices.
    wire: how.
    columns: of a sum.
    spread: what holds the rows of a piece.
    pieces: on the device, the host or the group that has most of them.
    ids: for which these have room, of one device.
    bags: of each piece, of one device.
    weighted: whether ids have weights.
  """
  n, hosts, devices = mesh.group_size, mesh.hosts, mesh.devices
  lists = count_list_bytes(pieces, ids, bags, weighted)
  forward, backward = (pieces * bags * x for x in wire.row_bytes(columns))
  if spread == ONE:
    return [
      Transfer(step, what, ALL_TO_ALL, GROUP, exchanged(n * size, n))
      for step, what, size in (
        ('ids', 'ids', lists),
        ('forward', 'rows', forward),
        ('backward', 'rows', backward),
      )
    ]
  if spread == ALL:
    return [
      Transfer('ids', 'ids', ALL_GATHER, GROUP, gathered(lists, n)),
      Transfer('forward', 'rows', ALL_TO_ALL, GROUP, gathered(forward, n)),
      Transfer('backward', 'rows', ALL_GATHER, GROUP, gathered(backward, n)),
    ]
  found = []
  for step, what, size, op in (
    ('ids', 'ids', lists, ALL_GATHER),
    # Partial sums are added where they arrive.
    ('forward', 'rows', forward, ALL_TO_ALL),
    ('backward', 'rows', backward, ALL_GATHER),
  ):
    far, near = (
      exchanged(hosts * size, hosts),
      gathered(hosts * size, devices),
    )
    found += [
      Transfer(step, what, ALL_TO_ALL, HOSTS, far),
      Transfer(step, what, op, DEVICES, near),
    ]
  return found


def count_list_bytes(
  pieces: float, ids: float, bags: float, weighted: bool = False
) -> float:
  """Bytes of the ids of bags, their weights and lengths, as `list_sums`."""
  # One length more for each piece counts its padding.
  return WORD * ids * (2 if weighted else 1) + WORD * pieces * (bags + 1)


def list_gradients_of_copies(
  mesh: Mesh, entries: float, rows: int, columns: int
) -> list[Transfer]:
  """What travels for a table that every device holds.

  Args:
    mesh: the devices.
    entries: gradients of rows that a device has.
    rows: of the table.
    columns: of the table.
  """
  n = mesh.group_size * mesh.replicas
  if copied_tables.travels_as_table(entries, rows, n):
    table = n * WORD * copied_tables.count_entries(rows, columns, n)
    return [
      Transfer('backward', 'rows', op, EVERYONE, exchanged(table, n))
      for op in (ALL_TO_ALL, ALL_GATHER)
    ]
  sent = gathered(entries * WORD * (1 + columns), n)
  return [Transfer('backward', 'rows', ALL_GATHER, EVERYONE, sent)]


def list_scalar(mesh: Mesh, step: str, over: tuple[str, ...]) -> Transfer:
  """A number that all devices know afterwards."""
  n = mesh.group_size * (mesh.replicas if over == EVERYONE else 1)
  return Transfer(step, 'scalars', ALL_REDUCE, over, reduced(WORD, n))


# --- One table by itself, as if all others were like it.


def list_piece(
  load: Load,
  scheme: Scheme,
  columns: int,
  mesh: Mesh,
  examples: float,
  wire: Wire,
) -> list[Transfer]:
  """What a piece of a table adds to what each of its owners sends.

  Shares are even: where the pieces of all tables are spread evenly, these add
  up to what a device sends.

  Args:
    load: the table.
    scheme: what it is cut by.
    columns: of the piece.
    mesh: the devices.
    examples: of a device.
    wire: how values travel.
  """
  wire = wire.of(load)
  reads = count_reads(load, scheme.spread, examples, mesh, wire)
  if scheme.spread is None:
    return list_whole(load, reads, mesh)
  found = []
  for bags, ids, weighted in reads.sums:
    found += list_sums(
      mesh, wire, columns, scheme.spread, 1, ids, bags, weighted
    )
  if reads.rows:
    # What one owner has, as if all devices had as much.
    owners = scheme.owners(mesh.hosts, mesh.devices)
    needed = reads.rows * mesh.group_size / owners
    asked = reads.expected * mesh.group_size / owners
    room = min(1.0, wire.exchange.capacity / mesh.group_size) * needed
    rounds = max(1, math.ceil(asked / max(room * mesh.group_size, 1e-9) - 1e-9))
    found += list_rows(
      mesh, wire, columns, needed, room, wire.exchange.capacity * needed,
      expected=asked, rounds=rounds,
    )  # fmt: skip
  return [t for t in found if t.what != 'scalars']


@dataclasses.dataclass(frozen=True)
class Reads:
  """What a device reads of a table.

  Attributes:
    rows: different rows at most, where rows travel.
    expected: different rows as expected.
    sums: (bags, ids, weighted) of each feature whose sums travel.
    ids: of the features whose rows travel.
  """

  rows: float
  expected: float
  sums: tuple[tuple[float, float, bool], ...]
  ids: float


def count_reads(
  load: Load,
  spread: str | None,
  examples: float,
  mesh: Mesh,
  wire: Wire,
  exact: bool = False,
) -> Reads:
  """What a device reads of a table.

  Args:
    load: the table.
    spread: what holds the rows of a piece.
    examples: of a device.
    mesh: the devices.
    wire: how values travel.
    exact: whether ids and bags are counted whole.
  """
  whole = round_up if exact else float
  ids_of_rows, sums = 0.0, []
  for feature in load.features:
    bags = whole(examples * feature.poolings)
    ids = whole(examples * feature.poolings * feature.length)
    if feature.pooled and not wire.exchange.sums_give_way(
      spread, bags, ids, mesh.group_size
    ):
      sums.append((bags, ids, feature.weighted))
    else:
      ids_of_rows += ids
  rows = min(ids_of_rows, load.rows)
  expected = min(ids_of_rows * load.distinct, rows)
  return Reads(rows, expected, tuple(sums), ids_of_rows)


def round_up(x: float) -> int:
  return math.ceil(x - 1e-9)


def list_whole(load: Load, reads: Reads, mesh: Mesh) -> list[Transfer]:
  """A table that every device holds."""
  if load.optimizer == DENSE:  # the gradient of all of it, with the dense part
    n = mesh.group_size * mesh.replicas
    sent = reduced(load.rows * load.dim * WORD, n)
    return [Transfer('backward', 'rows', ALL_REDUCE, EVERYONE, sent)]
  entries = reads.rows + sum(ids for _, ids, _ in reads.sums)
  if not entries:
    return []
  return list_gradients_of_copies(mesh, entries, load.rows, load.dim)


# --- Links.


def split_by_link(transfer: Transfer, mesh: Mesh) -> tuple[float, float]:
  """Expected bytes to devices of the same host, and to those of others."""
  sent, over = transfer.expected, transfer.over
  members = mesh.hosts if 'host' in over else 1
  members *= mesh.replicas if 'rep' in over else 1
  if members == 1:
    return sent, 0.0
  if 'dev' not in over:
    return 0.0, sent
  if transfer.op in (ALL_TO_ALL, RAGGED):  # to each of the others as much
    near = sent * (mesh.devices - 1) / (members * mesh.devices - 1)
    return near, sent - near
  return 0.0, sent  # a ring is as fast as its slowest link


def measure_time(
  transfers: Iterable[Transfer], topology: Topology
) -> tuple[float, float]:
  """Seconds of what travels before the loss, and of gradients behind it.

  Nothing overlaps. Means over replica groups, which not every step takes, are
  left out.
  """
  forward = backward = 0.0
  for transfer in transfers:
    if transfer.what == 'copies':
      continue
    near, far = split_by_link(transfer, topology)
    time = near / topology.intra + far / topology.inter
    if transfer.step == 'backward':
      backward += time
    else:
      forward += time
  return forward, backward
