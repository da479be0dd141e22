"""The cost model against numbers worked out by hand from its formulas.

The machine is torchrec's default: 2 hosts of 8 devices, 512 examples a device.
A table of a million rows of 64 floats, ten ids a pooling: 5,120 ids and 512
bags on a device. That programs send these bytes, traffic_test.py shows.
"""

import dataclasses

import pytest

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.planner import Feature, Load, hardware
from genrec_jax.planner.cost import Cost, shard_cost

GIB = 2**30
HBM, INTRA, INTER = 897 * GIB, 600 * GIB, 12.5 * GIB
TWO = hardware.find_topology('torchrec', hosts=2)
BATCH = 512 * 16
TABLE = Load('t', 1_000_000, 64, features=(Feature(10.0),))
SUMS = 512 * 64 * 4  # of a device's bags
LISTS = 4 * (5_120 + 512 + 1)
ALL_SUMS = 16 * SUMS
# ids 5,120 x 16 x 8, rows 5,120 x 16 x 64 x 4, sums written
READ = 655_360 + 20_971_520 + ALL_SUMS


def cost(scheme, load=TABLE, columns=None, topology=TWO, batch=BATCH, **more):
  columns = columns or load.dim
  kind = SCHEMES[scheme]
  return shard_cost(load, kind, columns, topology, batch, Exchange(**more))


def check(found: Cost, forward, backward, there, again):
  times = forward, backward, there, again, 0.0
  assert found.components == pytest.approx(times)
  assert found.total == pytest.approx(forward + backward + there + again)


def exchanged(size):
  """Seconds of as many bytes to each of 7 devices here, and 8 on a host."""
  return size * (7 / INTRA + 8 / INTER)


@pytest.mark.parametrize('scheme', ['table_wise', 'column_wise'])
def test_one_owner_half_block(scheme):
  forward = READ * 1.15 / HBM
  check(
    cost(scheme), forward, 2 * forward, exchanged(LISTS + SUMS), exchanged(SUMS)
  )


def test_narrow_pieces_read_32_columns_in_quarter_blocks():
  # a piece of 16 columns: rows 5,120 x 16 x 32 x 4, sums 512 x 16 x 16 x 4
  forward = (655_360 + 10_485_760 + 524_288) * 1.75 / HBM
  check(
    cost('table_column_wise', columns=16),
    forward, 2 * forward, exchanged(LISTS + SUMS / 4), exchanged(SUMS / 4),
  )  # fmt: skip


def test_full_blocks_have_no_penalty():
  wide = dataclasses.replace(TABLE, dim=128)
  forward = (655_360 + 41_943_040 + 2 * ALL_SUMS) / HBM
  assert cost('table_wise', wide).forward_compute == pytest.approx(forward)


def test_row_wise():
  # Every device is sent all ids. A ring is as fast as its slowest link.
  forward = READ / HBM
  check(
    cost('row_wise'),
    forward,
    2 * forward + 2.455 * ALL_SUMS / HBM,
    15 * LISTS / INTER + exchanged(SUMS),
    15 * SUMS / INTER,
  )


@pytest.mark.parametrize('scheme', ['table_row_wise', 'grid'])
def test_rows_over_a_host(scheme):
  forward = READ / HBM
  # To the other host, and from two hosts to seven devices.
  way = 1 / INTER + 14 / INTRA
  check(
    cost(scheme),
    forward,
    2 * forward + 2.455 * ALL_SUMS / HBM,
    (LISTS + SUMS) * way,
    SUMS * way,
  )


def test_one_host_sends_within_it():
  one = hardware.find_topology('torchrec', hosts=1)
  found = cost('row_wise', topology=one, batch=512 * 8)
  assert found.forward_comms == pytest.approx(7 * (LISTS + SUMS) / INTRA)
  other = cost('table_row_wise', topology=one, batch=512 * 8)
  assert other.components == pytest.approx(found.components)


@pytest.mark.parametrize('hosts, link', [(1, INTRA), (2, INTER), (4, INTER)])
def test_copies_get_the_gradients_of_all(hosts, link):
  topology = hardware.find_topology('torchrec', hosts=hosts)
  devices = 8 * hosts
  found = cost('data_parallel', topology=topology, batch=512 * devices)
  forward = (40_960 + 1_310_720 + 131_072) / HBM
  check(
    found, forward, 2 * forward * devices, 0.0,
    5_120 * (4 + 256) * (devices - 1) / link,
  )  # fmt: skip


def test_small_copies_travel_as_tables():
  small = dataclasses.replace(TABLE, rows=1_600)
  found = cost('data_parallel', small)
  # 5,120 x 16 gradients are more than two tables; a column counts readers.
  # A device's 6,500 entries of 1,600 x 65 travel as 51 lines of 128.
  table = 51 * 128 * 4 * 15
  there = table * (7 / 15 / INTRA + 8 / 15 / INTER) + table / INTER
  assert found.backward_comms == pytest.approx(there)
  lookup = found.forward_compute
  update = 2 * lookup + 4 * 1_600 * 256 / HBM
  assert found.backward_compute == pytest.approx(update)


def test_dense_tables_are_reduced_and_walked_whole():
  dense = dataclasses.replace(TABLE, optimizer='dense')
  found = cost('data_parallel', dense)
  rate = HBM / 2  # half the memory's rate
  forward = (40_960 + 1_310_720 + 131_072) / rate
  check(
    found, forward, 2 * forward + 256_000_000 * 9.22 / rate, 0.0,
    2 * 256_000_000 * 15 / 16 / INTER,
  )  # fmt: skip


def test_weights_double_the_ids_and_cost_a_gradient():
  weighted = dataclasses.replace(
    TABLE, features=(Feature(10.0, weighted=True),)
  )
  forward = (READ + 655_360) * 1.15 / HBM
  found = cost('table_wise', weighted)
  assert found.forward_compute == pytest.approx(forward)
  assert found.backward_compute == pytest.approx(3.1 * forward)
  there = exchanged(LISTS + 4 * 5_120 + SUMS)
  assert found.forward_comms == pytest.approx(there)


SEQUENCE = dataclasses.replace(TABLE, features=(Feature(10.0, pooled=False),))


@pytest.mark.parametrize(
  'scheme, owners', [('table_wise', 1), ('row_wise', 16)]
)
def test_sequences_come_back_row_by_row(scheme, owners):
  found = cost(scheme, SEQUENCE)
  # Room for two even shares of what 16 devices ask for: a 16th to each.
  room = 2 * 5_120 / owners
  assert found.forward_comms == pytest.approx(exchanged(room * (4 + 256)))
  assert found.backward_comms == pytest.approx(exchanged(room * 256))
  read = 16 * room * (8 + 256 + 256)
  penalty = 1.15 if owners == 1 else 1.0
  assert found.forward_compute == pytest.approx(read * penalty / HBM)


def test_gather_brings_everything_to_all():
  found = cost('row_wise', SEQUENCE, kind='gather')
  there = 15 * 5_120 * 4 / INTER + exchanged(5_120 * 256)
  assert found.forward_comms == pytest.approx(there)
  assert found.backward_comms == pytest.approx(15 * 5_120 * 256 / INTER)


def test_several_features_add_up():
  two = dataclasses.replace(TABLE, features=(Feature(4.0, 2.0), Feature(2.0)))
  # ten ids an example, but three poolings; a bag of padding for each feature
  found = cost('table_wise', two)
  lists = 4 * (5_120 + 3 * 512 + 2)
  assert found.forward_comms == pytest.approx(exchanged(lists + 3 * SUMS))
  forward = (655_360 + 20_971_520 + 3 * ALL_SUMS) * 1.15 / HBM
  assert found.forward_compute == pytest.approx(forward)


def test_a_table_may_be_both_summed_and_read_row_by_row():
  both = dataclasses.replace(
    TABLE, features=(Feature(10.0, pooled=False), Feature(10.0))
  )
  found, sums, rows = (cost('row_wise', x) for x in (both, TABLE, SEQUENCE))
  assert found.components == pytest.approx((sums + rows).components)


def test_sums_of_all_devices_give_way_to_rows():
  short = dataclasses.replace(TABLE, features=(Feature(8.0),))
  rows = dataclasses.replace(TABLE, features=(Feature(8.0, pooled=False),))
  assert cost('row_wise', short) == cost('row_wise', rows)
  assert cost('table_row_wise', short) != cost('table_row_wise', rows)


def test_equal_ids_travel_once_where_parts_have_their_real_length():
  few = dataclasses.replace(SEQUENCE, distinct=0.25)
  rooms = cost('table_wise', few), cost('table_wise', SEQUENCE)
  assert rooms[0].forward_comms == rooms[1].forward_comms
  real = cost('table_wise', few, kind='ragged')
  assert real.backward_comms == pytest.approx(exchanged(5_120 / 4 * 256))


def test_rows_may_be_penalised_like_tables():
  fair = dataclasses.replace(TWO, penalise_rows=True)
  found, plain = cost('row_wise', topology=fair), cost('row_wise')
  assert found.forward_compute == pytest.approx(1.15 * plain.forward_compute)
  assert found.forward_comms == plain.forward_comms


def test_narrow_exchange_and_repeated_ids_cost_less():
  narrow = dataclasses.replace(TABLE, codec=('float16', 'int8'), distinct=0.5)
  found = cost('table_wise', narrow)
  assert found.forward_comms == pytest.approx(exchanged(LISTS + SUMS / 2))
  assert found.backward_comms == pytest.approx(exchanged(512 * (64 + 8)))
  forward = (655_360 + 20_971_520 / 2 + ALL_SUMS / 2) * 1.15 / HBM
  assert found.forward_compute == pytest.approx(forward)


def test_one_device_exchanges_nothing():
  alone = hardware.find_topology('torchrec', hosts=1, devices=1)
  for scheme in ('table_wise', 'row_wise', 'data_parallel'):
    assert cost(scheme, topology=alone, batch=512).comms == 0


def test_groups_share_the_batch():
  twice = hardware.find_topology('torchrec', hosts=2, replicas=2)
  assert cost('row_wise', topology=twice, batch=2 * BATCH) == cost('row_wise')
