"""The time of an exchange: bytes over rates, and what every peer adds.

An all-to-all of V bytes a device among n, in messages of V / n, takes

    a (n - 1) + V (n - 1) / n / rate(V / n),   rate(m) = r m / (m + h)

with the latency `a` of a peer and the message `h` at half rate, which are
fields of the topology, for near peers (of the same host) and far ones. The
curve makes it (n - 1) (a + h / r) + V (n - 1) / n / r: a message costs h / r
whatever its size. So fewer peers and larger messages are one thing, and no
measurement of times can tell the two constants apart.

Near and far parts are added, as everywhere in the planner. Both constants are 0
by default, and bytes alone are left.

The two ways of pooled vectors, H hosts of L devices, V = B F d bytes a device:

| way    | near peers, bytes    | far peers, bytes          |
|--------|----------------------|---------------------------|
| flat   | L - 1, V (L-1) / G   | G - L, V (G-L) / G        |
| towers | L - 1, V (L-1) / L   | H - 1, V / C (H-1) / H    |

Towers (SPTT, arXiv 2403.00877) exchange within hosts first; what they send to
other hosts is smaller by their compression C, and goes in messages L / C times
as large to fewer peers. Where rows of a table are spread over the devices of
the host, V (L-1) bytes of partial sums travel near.
"""

import dataclasses
from collections.abc import Iterable

from genrec_jax.embedding.scheme import HOST, ONE
from genrec_jax.planner import traffic
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.traffic import (
  ALL_REDUCE,
  ALL_TO_ALL,
  DEVICES,
  HOSTS,
  RAGGED,
  Mesh,
  Transfer,
  Wire,
)


@dataclasses.dataclass(frozen=True)
class ExchangeTime:
  """Seconds of one exchange or several, by what takes them.

  Attributes:
    near: bytes to devices of the same host, at the full rate.
    far: bytes to other hosts, at the full rate.
    peers: latencies of peers.
    messages: what is lost because messages are small.
  """

  near: float = 0.0
  far: float = 0.0
  peers: float = 0.0
  messages: float = 0.0

  @property
  def total(self) -> float:
    return self.near + self.far + self.peers + self.messages

  def __add__(self, other: 'ExchangeTime') -> 'ExchangeTime':
    pairs = zip(
      dataclasses.astuple(self), dataclasses.astuple(other), strict=True
    )
    return ExchangeTime(*(a + b for a, b in pairs))


def count_messages(transfer: Transfer, mesh: Mesh) -> tuple[float, float]:
  """Messages that a device sends to peers of its host, and to others.

  An all-to-all has one for each peer, a ring one for each of its steps, which
  are as slow as its slowest link.

  >>> from genrec_jax.planner.hardware import find_topology
  >>> flat = Transfer('forward', 'rows', ALL_TO_ALL, traffic.GROUP, 1e6)
  >>> count_messages(flat, find_topology('h100', hosts=8))
  (7.0, 56.0)
  """
  if not transfer.expected:
    return 0.0, 0.0
  over = transfer.over
  far = mesh.hosts if 'host' in over else 1
  far *= mesh.replicas if 'rep' in over else 1
  near = mesh.devices if 'dev' in over else 1
  if transfer.op in (ALL_TO_ALL, RAGGED):
    counts = near - 1, (far - 1) * near
  else:
    steps = (near * far - 1) * (2 if transfer.op == ALL_REDUCE else 1)
    counts = (0, steps) if far > 1 else (steps, 0)
  return float(counts[0] * transfer.rounds), float(counts[1] * transfer.rounds)


def time_transfer(transfer: Transfer, topology: Topology) -> ExchangeTime:
  """Seconds of a collective, by what takes them."""
  t = topology
  near, far = traffic.split_by_link(transfer, t)
  near_count, far_count = count_messages(transfer, t)
  return ExchangeTime(
    near / t.intra,
    far / t.inter,
    near_count * t.near_latency + far_count * t.far_latency,
    near_count * t.near_half_message / t.intra
    + far_count * t.far_half_message / t.inter,
  )


def time_exchange(
  transfers: Iterable[Transfer], topology: Topology
) -> ExchangeTime:
  """Seconds of collectives one after another, by what takes them.

  On a torus, an all-to-all takes at least as long as its bytes need to cross
  the middle: half of what each device sends goes to the other half.

  Args:
    transfers: such as those of `list_flat` or `list_towers`.
    topology: the machine.
  """
  found = ExchangeTime()
  for transfer in transfers:
    time = time_transfer(transfer, topology)
    if topology.torus and transfer.op in (ALL_TO_ALL, RAGGED):
      time = dataclasses.replace(
        time, far=max(time.far, _time_to_cross(transfer, topology))
      )
    found += time
  return found


def _time_to_cross(transfer: Transfer, topology: Topology) -> float:
  if 'host' not in transfer.over or topology.hosts == 1:
    return 0.0
  n = topology.hosts * (topology.devices if 'dev' in transfer.over else 1)
  held = transfer.expected * n / (n - 1)  # with what a device keeps
  return topology.group_size * held / 4 / topology.bisection


def measure_plan_time(
  transfers: Iterable[Transfer], topology: Topology
) -> tuple[float, float]:
  """`traffic.measure_time` of a whole plan, with what each peer adds."""
  transfers = list(transfers)
  times = list(traffic.measure_time(transfers, topology))
  for transfer in transfers:
    if transfer.what != 'copies':
      time = time_transfer(transfer, topology)
      times[transfer.step == 'backward'] += time.peers + time.messages
  return times[0], times[1]


# --- Pooled vectors, flat and by towers.


def list_flat(
  topology: Topology, wire: Wire, features: int, columns: int, bags: float
) -> list[Transfer]:
  """Vectors and their gradients in one all-to-all each way.

  Whole tables lie on all devices evenly; ids are left out.

  Args:
    topology: the machine.
    wire: how values travel.
    features: of an example, each of one pooled vector.
    columns: of a vector.
    bags: examples of a device.
  """
  pieces = features / topology.group_size
  sent = traffic.list_sums(topology, wire, columns, ONE, pieces, 0, bags)
  return _keep_vectors(sent)


def list_towers(
  topology: Topology,
  wire: Wire,
  features: int,
  columns: int,
  bags: float,
  compression: float = 1.0,
  rows_in_host: bool = False,
) -> list[Transfer]:
  """Vectors and their gradients within hosts, then between them.

  >>> from genrec_jax.planner.hardware import find_topology
  >>> machine = find_topology('h100', hosts=8)
  >>> near, far, *_ = list_towers(machine, Wire(), 26, 128, 16_384, 2)
  >>> near.over, int(near.bytes), far.over, int(far.bytes)
  (('dev',), 190840832, ('host',), 95420416)

  Args:
    topology: the machine; a tower is on each host.
    wire: how values travel.
    features: of an example, each of one pooled vector.
    columns: of a vector.
    bags: examples of a device.
    compression: bytes that a tower is given over those that it returns.
    rows_in_host: whether the rows of a table are spread over the devices of its
      host, which then send partial sums; otherwise one device has all of them.
  """
  pieces = features / topology.hosts  # of a host
  args = columns, HOST, pieces / compression, 0, bags
  # Towers come between the two: far bytes are those of their outputs.
  far = [t for t in traffic.list_sums(topology, wire, *args) if t.over == HOSTS]
  if rows_in_host:
    args = columns, HOST, pieces, 0, bags
    near = [
      t for t in traffic.list_sums(topology, wire, *args) if t.over == DEVICES
    ]
  else:
    # As if the host were alone, with the examples of all its peers.
    host = dataclasses.replace(topology, hosts=1, replicas=1)
    near = [
      dataclasses.replace(t, over=DEVICES)
      for t in traffic.list_sums(
        host,
        wire,
        columns,
        ONE,
        pieces / host.devices,
        0,
        topology.hosts * bags,
      )
    ]
  near, far = _keep_vectors(near), _keep_vectors(far)
  return [near[0], far[0], far[1], near[1]]


def _keep_vectors(sent: list[Transfer]) -> list[Transfer]:
  return [t for t in sent if t.what == 'rows']
