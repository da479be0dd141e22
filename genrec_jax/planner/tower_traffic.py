"""What a device sends for features under towers, by formula.

Of H hosts of L devices, W = H L, for T towers. All that a device sends in a
step for ids, for sums, for what the towers make, and for gradients together:

| way                         | over | a device sends                         |
|-----------------------------|------|----------------------------------------|
| ids to the host, whole      | host | P (4 N + 4 (B+1)) W (H-1) / H          |
| ids in the host, whole      | dev  | P (4 N + 4 (B+1)) W (L-1) / L          |
| ids to the host, by rows    | host | P (4 N + 4 (B+1)) (H-1)                |
| ids in the host, by rows    | dev  | P (4 N + 4 (B+1)) H (L-1)              |
| sums and their gradients    | dev  | P B (f + b) W (L-1) / L                |
| vectors and their gradients | host | T M B (g + c) (H-1) / H                |
| numbers of examples, drawn  | host | 4 B (H-1)                              |

A table is whole on a device, or its rows are spread over those of the host. P
pieces of tables are on the device (the host) that has most, each with room for
N ids of the B bags of a device; weights are 4 N more. A sum of f bytes has a
gradient of b bytes: of the near formats of the exchange, as g and c bytes of a
vector of a tower are of the far ones. All sums share one collective, whatever
their width. M is how many vectors the largest tower gives away: the others send
padding. `tests/planner/tower_traffic_test.py` and `benchmarks/dmt.py` hold all
of it to the compiled program.
"""

from genrec_jax.embedding.scheme import ONE, Scheme
from genrec_jax.planner import traffic
from genrec_jax.planner.traffic import (
  ALL_GATHER,
  ALL_TO_ALL,
  DEVICES,
  HOSTS,
  WORD,
  Mesh,
  Transfer,
  Wire,
)
from genrec_jax.planner.workload import Load, TowerLoad


def list_ids(
  mesh: Mesh,
  spread: str,
  pieces: float,
  ids: float,
  bags: float,
  weighted: bool = False,
) -> list[Transfer]:
  """Ids, lengths and weights, to the host and then to its devices.

  Args:
    mesh: the devices.
    spread: whether one device holds the rows of a piece, or those of a host.
    pieces: on the device or the host that has most of them.
    ids: for which these have room, of one device.
    bags: of each piece, of one device.
    weighted: whether ids have weights.
  """
  hosts, devices = mesh.hosts, mesh.devices
  held = hosts * traffic.count_list_bytes(pieces, ids, bags, weighted)
  if spread == ONE:
    held *= devices  # each device of a host is asked for other pieces
    op, within = ALL_TO_ALL, traffic.exchanged(held, devices)
  else:  # each of them looks for its own rows in all ids
    op, within = ALL_GATHER, traffic.gathered(held, devices)
  return [
    Transfer('ids', 'ids', ALL_TO_ALL, HOSTS, traffic.exchanged(held, hosts)),
    Transfer('ids', 'ids', op, DEVICES, within),
  ]


def list_sums(mesh: Mesh, forward: float, backward: float) -> list[Transfer]:
  """Sums within the host, and their gradients.

  Args:
    mesh: the devices.
    forward: bytes of the sums that a device makes for one other.
    backward: bytes of their gradients.
  """
  return [
    Transfer(
      step,
      'rows',
      ALL_TO_ALL,
      DEVICES,
      traffic.exchanged(mesh.group_size * size, mesh.devices),
    )
    for step, size in (('forward', forward), ('backward', backward))
  ]


def list_vectors(
  mesh: Mesh, wire: Wire, towers: TowerLoad, bags: float, share: float = 1.0
) -> list[Transfer]:
  """What towers make, on its way between hosts, and the gradients of it.

  Args:
    mesh: the devices.
    wire: how values travel.
    towers: of the model.
    bags: examples of a device.
    share: of all that is counted.
  """
  vectors = share * bags * towers.count * towers.most
  found = []
  if towers.draws:
    found.append(
      Transfer(
        'forward',
        'ids',
        ALL_GATHER,
        HOSTS,
        traffic.gathered(share * bags * WORD, mesh.hosts),
      )
    )
  sizes = wire.row_bytes(towers.dim)
  for step, size in zip(('forward', 'backward'), sizes, strict=True):
    sent = traffic.exchanged(vectors * size, mesh.hosts)
    found.append(Transfer(step, 'rows', ALL_TO_ALL, HOSTS, sent))
  return found


def list_piece(
  load: Load,
  scheme: Scheme,
  columns: int,
  mesh: Mesh,
  examples: float,
  wire: Wire,
  towers: TowerLoad,
) -> list[Transfer]:
  """`traffic.list_piece` of a table under towers.

  What the towers make is shared among tables by the columns of their sums.

  Args:
    load: the table, with its features under towers alone.
    scheme: what it is cut by.
    columns: of the piece.
    mesh: the devices.
    examples: of a device.
    wire: how values travel.
    towers: of the model.
  """
  wire, found = wire.of(load), []
  reads = traffic.count_reads(load, scheme.spread, examples, mesh, wire)
  forward, backward = wire.near_row_bytes(columns)
  # As if all devices, or hosts, had as much.
  turns = mesh.group_size / scheme.owners(mesh.hosts, mesh.devices)
  for bags, ids, weighted in reads.sums:
    found += list_ids(mesh, scheme.spread, 1, ids, bags, weighted)
    found += list_sums(mesh, bags * forward, bags * backward)
    share = turns * columns / (sum(towers.vectors) * towers.width)
    found += list_vectors(mesh, wire, towers, bags, share)
  return found
