"""The cost model against numbers worked out by hand from its formulas.

The machine is torchrec's default: 2 hosts of 8 devices, 512 examples a device.
A table of a million rows of 64 floats, ten ids a pooling: N = 5,120, M = 512.
"""

import dataclasses

import pytest

from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.planner import Feature, Load, hardware
from genrec_jax.planner.cost import Cost, shard_cost

GIB = 2**30
HBM, INTRA, INTER = 897 * GIB, 600 * GIB, 12.5 * GIB
TWO = hardware.find_topology('torchrec', hosts=2)
BATCH = 512 * 16
TABLE = Load('t', 1_000_000, 64, features=(Feature(10.0),))
SENT = 2_097_152  # 512 examples x 16 devices x 64 columns x 4 bytes


def cost(scheme, load=TABLE, columns=None, topology=TWO, batch=BATCH):
  columns = columns or load.dim
  return shard_cost(load, SCHEMES[scheme], columns, topology, batch)


def check(found: Cost, forward, backward, there, again):
  assert found.components == pytest.approx((forward, backward, there, again))
  assert found.total == pytest.approx(forward + backward + there + again)


@pytest.mark.parametrize('scheme', ['table_wise', 'column_wise'])
def test_one_owner_half_block(scheme):
  # ids 5,120 x 16 x 8, rows 5,120 x 16 x 64 x 4, sums written
  forward = (655_360 + 20_971_520 + SENT) * 1.15 / HBM
  check(cost(scheme), forward, 2 * forward, SENT / INTER, SENT / INTER)


def test_narrow_pieces_read_32_columns_in_quarter_blocks():
  # a piece of 16 columns: rows 5,120 x 16 x 32 x 4, sums 512 x 16 x 16 x 4
  forward = (655_360 + 10_485_760 + 524_288) * 1.75 / HBM
  check(
    cost('table_column_wise', columns=16),
    forward, 2 * forward, 524_288 / INTER, 524_288 / INTER,
  )  # fmt: skip


def test_full_blocks_have_no_penalty():
  wide = dataclasses.replace(TABLE, dim=128)
  forward = (655_360 + 41_943_040 + 2 * SENT) / HBM
  assert cost('table_wise', wide).forward_compute == pytest.approx(forward)


def test_row_wise():
  # a 16th of the ids: 320 x 16 x 8; rows 320 x 16 x 64 x 4
  forward = (40_960 + 1_310_720 + SENT) / HBM
  check(
    cost('row_wise'),
    forward,
    2 * forward,
    SENT / INTER,
    SENT / INTER + 2.455 * SENT / HBM,
  )


@pytest.mark.parametrize('scheme', ['table_row_wise', 'grid'])
def test_rows_over_a_host(scheme):
  # an eighth of the ids; 512 x 2 x 64 x 4 go on to other hosts
  forward = (81_920 + 2_621_440 + SENT) / HBM
  there = SENT / INTRA + 262_144 / INTER
  check(cost(scheme), forward, 2 * forward, there, there + 2.455 * SENT / HBM)


def test_one_host_sends_within_it():
  one = hardware.find_topology('torchrec', hosts=1)
  sent = SENT // 2
  found = cost('row_wise', topology=one, batch=512 * 8)
  assert found.forward_comms == pytest.approx(sent / INTRA)
  assert cost('table_row_wise', topology=one, batch=512 * 8) == found


@pytest.mark.parametrize('hosts, factor', [(1, 1.0), (2, 1.5), (4, 3.0)])
def test_data_parallel(hosts, factor):
  # Half the memory's rate; all-reduce at eight adapters: (2 n - 1) / n for
  # n = min(hosts, 2), twice that above two hosts.
  topology = hardware.find_topology('torchrec', hosts=hosts)
  found = cost('data_parallel', topology=topology, batch=512 * 8 * hosts)
  rate = HBM / 2
  forward = (40_960 + 1_310_720 + 131_072) / rate
  check(
    found,
    forward,
    2 * forward + 256_000_000 * 9.22 / rate,
    0.0,
    256_000_000 * factor / (8 * INTER),
  )


def test_weights_double_the_ids_and_cost_a_gradient():
  weighted = dataclasses.replace(
    TABLE, features=(Feature(10.0, weighted=True),)
  )
  forward = (1_310_720 + 20_971_520 + SENT) * 1.15 / HBM
  found = cost('table_wise', weighted)
  assert found.forward_compute == pytest.approx(forward)
  assert found.backward_compute == pytest.approx(3.1 * forward)


def test_sequences_come_back_row_by_row():
  sequence = dataclasses.replace(TABLE, features=(Feature(10.0, pooled=False),))
  found = cost('table_wise', sequence)
  assert found.forward_comms == pytest.approx(20_971_520 / INTER)
  # Its owner alone sends a row: a 16th of them.
  found = cost('row_wise', sequence)
  assert found.forward_comms == pytest.approx(1_310_720 / INTER)


def test_several_features_add_up():
  two = dataclasses.replace(TABLE, features=(Feature(4.0, 2.0), Feature(2.0)))
  # ten ids an example, but three poolings
  found = cost('table_wise', two)
  assert found.forward_comms == pytest.approx(3 * SENT / INTER)
  forward = (655_360 + 20_971_520 + 3 * SENT) * 1.15 / HBM
  assert found.forward_compute == pytest.approx(forward)


def test_a_table_may_be_both_summed_and_read_row_by_row():
  both = dataclasses.replace(
    TABLE, features=(Feature(10.0, pooled=False), Feature(10.0))
  )
  found = cost('row_wise', both)
  assert found.forward_comms == pytest.approx((1_310_720 + SENT) / INTER)


def test_equal_ids_of_a_sequence_travel_once():
  sequence = dataclasses.replace(
    TABLE, features=(Feature(10.0, pooled=False),), distinct=0.25
  )
  found = cost('table_wise', sequence)
  assert found.forward_comms == pytest.approx(20_971_520 / 4 / INTER)


def test_rows_may_be_penalised_like_tables():
  fair = dataclasses.replace(TWO, penalise_rows=True)
  found, plain = cost('row_wise', topology=fair), cost('row_wise')
  assert found.forward_compute == pytest.approx(1.15 * plain.forward_compute)
  assert found.forward_comms == plain.forward_comms


def test_narrow_exchange_and_repeated_ids_cost_less():
  narrow = dataclasses.replace(
    TABLE, forward_bytes=2, backward_bytes=1, distinct=0.5
  )
  found = cost('table_wise', narrow)
  assert found.forward_comms == pytest.approx(SENT / 2 / INTER)
  assert found.backward_comms == pytest.approx(SENT / 4 / INTER)
  forward = (655_360 + 20_971_520 / 2 + SENT / 2) * 1.15 / HBM
  assert found.forward_compute == pytest.approx(forward)


def test_one_device_exchanges_nothing():
  alone = hardware.find_topology('torchrec', hosts=1, devices=1)
  for scheme in ('table_wise', 'row_wise', 'data_parallel'):
    assert cost(scheme, topology=alone, batch=512).comms == 0


def test_groups_share_the_batch():
  twice = hardware.find_topology('torchrec', hosts=2, replicas=2)
  assert cost('row_wise', topology=twice, batch=2 * BATCH) == cost('row_wise')
