"""The time of exchanges, flat and by towers, against its formula by hand."""

import doctest
import itertools

import pytest

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.planner import (
  Feature,
  Load,
  evaluate_plan,
  exchange_time,
  hardware,
  make_plan,
  traffic,
)
from genrec_jax.planner.exchange_time import (
  count_messages,
  list_flat,
  list_towers,
  measure_plan_time,
  time_exchange,
)
from genrec_jax.planner.traffic import Transfer, Wire

WIRE = Wire(Exchange(forward='bfloat16', backward='bfloat16'))
SIZES = 26, 128, 16_384  # features, columns, examples of a device
V = 26 * 128 * 16_384 * 2  # bytes of a device, each way
HOSTS, DEVICES = 8, 8
MACHINE = hardware.find_topology('h100', hosts=HOSTS)
LATE = hardware.replace_numbers(
  MACHINE, near_latency=2e-6, far_latency=8e-6
)  # fmt: skip


def time_flat(topology):
  return time_exchange(list_flat(topology, WIRE, *SIZES), topology)


def time_towers(topology, *args):
  return time_exchange(list_towers(topology, WIRE, *SIZES, *args), topology)


def test_flat_by_hand():
  n, a, h = 64, (2e-6, 8e-6), (40_000.0, 100_000.0)
  machine = hardware.replace_numbers(
    LATE, near_half_message=h[0], far_half_message=h[1]
  )
  message = V / n

  def one_way(peers, latency, half, rate):
    rate *= message / (message + half)
    return peers * (latency + message / rate)

  expected = one_way(7, a[0], h[0], 450e9) + one_way(56, a[1], h[1], 50e9)
  assert time_flat(machine).total == pytest.approx(2 * expected)


def test_towers_by_hand():
  machine = hardware.replace_numbers(LATE, far_half_message=100_000.0)
  message = V / 4 / HOSTS
  rate = 50e9 * message / (message + 100_000.0)
  near = 7 * 2e-6 + V * 7 / 8 / 450e9
  far = 7 * (8e-6 + message / rate)
  assert time_towers(machine, 4).total == pytest.approx(2 * (near + far))


def test_partial_sums_are_as_many_as_devices():
  near, far, *_ = list_towers(MACHINE, WIRE, *SIZES, 2, True)
  assert near.bytes == pytest.approx(V * 7)
  assert far.bytes == pytest.approx(V / 2 * 7 / 8)
  # The same as table_row_wise sends, which towers are made of.
  sums = traffic.list_sums(MACHINE, WIRE, 128, 'host', 26 / 8, 0, 16_384)
  ours = list_towers(MACHINE, WIRE, *SIZES, 1, True)
  rows = [t for t in sums if t.what == 'rows']
  key = lambda t: (t.step, t.over)  # noqa: E731
  assert sorted(ours, key=key) == sorted(rows, key=key)


def test_towers_without_compression_send_the_same_bytes_to_fewer_peers():
  (flat, _), (near, far, *_) = (
    list_flat(MACHINE, WIRE, *SIZES),
    list_towers(MACHINE, WIRE, *SIZES),
  )
  _, far_bytes = traffic.split_by_link(flat, MACHINE)
  assert far.bytes == pytest.approx(far_bytes)
  peers, far_peers = count_messages(flat, MACHINE)[1], HOSTS - 1
  assert peers == 64 - DEVICES
  assert count_messages(far, MACHINE) == (0, far_peers)
  assert far.bytes / far_peers == pytest.approx(DEVICES * far_bytes / peers)
  assert count_messages(near, MACHINE) == (DEVICES - 1, 0)


def test_without_latency_and_with_endless_far_rates_towers_are_no_faster():
  """All that is left is near, of which towers have more."""
  fast = hardware.replace_numbers(MACHINE, inter=1e30)
  flat = time_flat(fast)
  assert flat.peers == flat.messages == 0 and flat.far < 1e-15
  for compression in (1, 2, 16):
    towers = time_towers(fast, compression)
    assert towers.near == pytest.approx(flat.near * 64 / DEVICES)
    assert towers.total > flat.total


def test_one_host_has_nothing_to_compress():
  alone = hardware.find_topology('h100')
  flat, towers = time_flat(alone), time_towers(alone, 4)
  assert towers == flat and flat.far == 0


@pytest.mark.parametrize('field', ['inter', 'intra'])
def test_a_faster_link_takes_less(field):
  faster = hardware.replace_numbers(LATE, **{field: 2 * getattr(LATE, field)})
  for time in (time_flat, time_towers):
    assert time(faster).total < time(LATE).total


def test_what_grows_and_what_shrinks():
  times = [time_towers(LATE, c).total for c in (1, 2, 4, 8, 16)]
  assert times == sorted(times, reverse=True)
  fields = (
    'near_latency', 'far_latency', 'near_half_message', 'far_half_message',
  )  # fmt: skip
  for field, time in itertools.product(fields, (time_flat, time_towers)):
    more = hardware.replace_numbers(LATE, **{field: 1e5})
    assert time(more).total > time(LATE).total
  # More hosts: flat has more peers, of which towers see few.
  gains = [
    time_flat(m).total / time_towers(m).total
    for m in (hardware.replace_numbers(LATE, hosts=n) for n in (2, 8, 32))
  ]
  assert gains == sorted(gains)


def test_a_small_message_is_a_latency():
  """The curve and a latency of h / rate a peer are the same."""
  curve = hardware.replace_numbers(MACHINE, far_half_message=100_000.0)
  late = hardware.replace_numbers(MACHINE, far_latency=100_000.0 / 50e9)
  for time in (time_flat, time_towers):
    assert time(curve).total == pytest.approx(time(late).total)
    assert time(curve).messages == pytest.approx(time(late).peers)


def test_a_torus_is_bound_by_its_middle():
  pod = hardware.find_topology('v5p', hosts=128, devices=4)
  flat, _ = list_flat(pod, WIRE, *SIZES)
  assert time_exchange([flat], pod).far == pytest.approx(
    512 * V / 4 / pod.bisection
  )


@pytest.mark.parametrize(
  'op, over, messages',
  [
    (traffic.ALL_TO_ALL, traffic.EVERYONE, (3, 20)),
    (traffic.ALL_TO_ALL, traffic.HOSTS, (0, 2)),
    (traffic.ALL_GATHER, traffic.DEVICES, (3, 0)),
    (traffic.ALL_GATHER, traffic.GROUP, (0, 11)),
    (traffic.ALL_REDUCE, traffic.GROUP, (0, 22)),
  ],
)
def test_messages_of_a_collective(op, over, messages):
  mesh = hardware.find_topology('h100', hosts=3, devices=4, replicas=2)
  assert count_messages(Transfer('forward', 'rows', op, over, 9.0), mesh) == (
    messages
  )
  twice = Transfer('forward', 'rows', op, over, 9.0, rounds=2)
  assert count_messages(twice, mesh) == tuple(2 * n for n in messages)
  assert count_messages(Transfer('ids', 'ids', op, over, 0.0), mesh) == (0, 0)


TABLES = [
  Load('tags', 70_000, 64, features=(Feature(9.0, name='tags'),)),
  Load('clicks', 90_000, 64, features=(Feature(5.0, pooled=False),)),
  Load('cities', 300, 64, features=(Feature(1.0, name='cities'),)),
]


@pytest.mark.parametrize('name', hardware.PRESETS)
def test_presets_predict_what_they_did_before_there_were_latencies(name):
  machine = hardware.find_topology(name, hosts=2)
  plan, report = make_plan(TABLES, machine, batch=4096)
  before = traffic.measure_time(report.sent, machine)
  # Bit by bit, not nearly.
  assert measure_plan_time(report.sent, machine) == before
  assert tuple(report.times[0, 2:4]) == before
  late = hardware.replace_numbers(machine, far_latency=1e-5)
  slower = evaluate_plan(plan, TABLES, late, 4096)
  assert slower.sent == report.sent
  assert (slower.times[:, 2:4] > report.times[:, 2:4]).all()


def test_examples_in_docstrings():
  found = doctest.testmod(exchange_time)
  assert found.attempted and not found.failed
