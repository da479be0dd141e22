"""Rows or sums: bytes as compiled programs send them, and what follows."""

import dataclasses
import doctest
import math

import pytest

from benchmarks import sharding_formulas
from benchmarks.sharding_formulas import ROWS, Case
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import scheme, single_scheme
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.features import TableSpec
from genrec_jax.planner import (
  Feature,
  Load,
  PoolingRule,
  describe,
  evaluate_plan,
  hardware,
  make_plan,
  pooling,
  workload,
)
from genrec_jax.planner.options import enumerate_options
from genrec_jax.planner.pooling import (
  BagRead,
  choose_pooling,
  fill_pooling,
  rows_bytes,
  sums_bytes,
)

SPREAD = [name for name in SCHEMES if name != 'data_parallel']
CODECS = list(sharding_formulas.ELEMENT)


def predicted(case: Case) -> float:
  """Bytes of the formulas that agree with the programs, of one table.

  Without what does not depend on the feature: norms, fills, means of copies.
  """
  sent = sharding_formulas.predicted(case)
  counted = sum(s.bytes for s in sent if s.what in ('ids', 'rows'))
  return counted / case.tables


def arguments(case: Case):
  """(read, scheme, pieces, mesh, exchange) of a case."""
  exchange = Exchange(
    kind='all_to_all' if case.kind == 'pooled' else case.kind,
    capacity=sharding_formulas.CAPACITY,
    forward=case.codec,
    backward=case.codec,
  )
  mesh = ShardingPlan({}, case.hosts, case.devices, case.replicas)
  read = BagRead(
    dim=case.width, bags=case.batch, length=case.length, most_rows=ROWS
  )
  return read, SCHEMES[case.scheme], case.pieces, mesh, exchange


@pytest.mark.parametrize('codec', CODECS)
@pytest.mark.parametrize('shape', [(2, 4, 1), (4, 4, 1), (1, 4, 2)])
@pytest.mark.parametrize('scheme', SCHEMES)
def test_sums_are_counted_as_programs_send_them(scheme, shape, codec):
  hosts, devices, replicas = shape
  case = Case(
    'cpu', scheme, 'pooled', hosts, devices, replicas,
    tables=hosts * devices, codec=codec, length=10,
  )  # fmt: skip
  if scheme == 'data_parallel' and codec != 'float32':
    return  # its gradients have no codec
  assert sums_bytes(*arguments(case)) == pytest.approx(predicted(case))


@pytest.mark.parametrize('codec', CODECS)
@pytest.mark.parametrize('kind', ['all_to_all', 'gather'])
@pytest.mark.parametrize('scheme', SPREAD)
def test_rows_are_counted_as_programs_send_them(scheme, kind, codec):
  case = Case('cpu', scheme, kind, codec=codec)
  assert rows_bytes(*arguments(case)) == pytest.approx(predicted(case))


def first_length(name, hosts, devices, longest, **more):
  """The shortest bags of which sums are fewer bytes, None up to `longest`."""
  mesh = ShardingPlan({}, hosts, devices)
  for length in range(1, longest + 1):
    read = BagRead(dim=64, bags=1024, length=length, **more)
    if choose_pooling(read, SCHEMES[name], 1, mesh) == 'sums':
      return length
  return None


@pytest.mark.parametrize(
  'hosts, devices, first',
  # Lengths of bags travel, too, and cost one id a bag at 128 devices.
  [(1, 8, 5), (8, 8, 43), (16, 8, 128), (32, 8, None), (64, 8, None)],
)
def test_where_sums_begin_to_win_over_all_devices(hosts, devices, first):
  assert first_length('row_wise', hosts, devices, 2000) == first


@pytest.mark.parametrize(
  'devices, first', [(8, 5), (64, 43), (128, 127), (256, None), (512, None)]
)
def test_where_they_begin_as_published(devices, first):
  """Of ids, rows and sums alone, as the published crossovers have it."""
  bags, mesh = 1024, ShardingPlan({}, devices=devices)

  def wins(length):
    read = BagRead(dim=64, bags=bags, length=length)
    row_wise = SCHEMES['row_wise'], 1, mesh, Exchange()
    lengths = 4 * (bags + 1) * (devices - 1)
    # Ids of rows counted whole: also those that stay at home.
    at_home = 2 * bags * length * 4 / devices
    rows = rows_bytes(read, *row_wise) + at_home
    return sums_bytes(read, *row_wise) - lengths <= rows

  assert next((n for n in range(1, 2000) if wins(n)), None) == first


def test_sums_nearly_always_win_on_one_device_and_on_a_host():
  for hosts in (1, 2, 16, 128):
    assert first_length('table_wise', hosts, 8, 2) == 1
    assert first_length('table_row_wise', hosts, 8, 9) <= 6
  # Not where a small table has fewer rows than a device has bags.
  assert first_length('table_wise', 1, 8, 50, most_rows=100) is None


def test_one_device_and_equal_bytes_have_sums():
  read = BagRead(dim=64, bags=10, length=3)
  assert (
    choose_pooling(read, SCHEMES['row_wise'], 1, ShardingPlan({})) == 'sums'
  )
  whole = SCHEMES['data_parallel'], 1, ShardingPlan({}, devices=8)
  assert choose_pooling(read, *whole) == 'sums'
  few = dataclasses.replace(read, most_rows=20)
  assert choose_pooling(few, *whole) == 'sums'  # a table travels either way


def test_equal_ids_count_once_where_parts_have_their_real_length():
  mesh, row_wise = ShardingPlan({}, devices=8), SCHEMES['row_wise']
  read = BagRead(dim=64, bags=1024, length=20, distinct=0.1)
  ragged = PoolingRule(exchange=Exchange('ragged'))
  assert choose_pooling(read, row_wise, 1, mesh) == 'sums'
  assert choose_pooling(read, row_wise, 1, mesh, ragged) == 'rows'


def test_rows_without_room_take_rounds_or_never_arrive():
  mesh, row_wise = ShardingPlan({}, devices=8), SCHEMES['row_wise']
  read = BagRead(dim=64, bags=1024, length=3)
  rows = {
    overflow: rows_bytes(
      read, row_wise, 1, mesh, Exchange(capacity=0.5, overflow=overflow)
    )
    for overflow in ('rounds', 'raise')
  }
  once = rows_bytes(read, row_wise, 1, mesh, Exchange(capacity=1.0))
  assert rows['rounds'] == once  # two rounds of half the room
  assert rows['raise'] == math.inf


def test_weights_travel_with_the_ids_of_sums():
  read = BagRead(dim=64, bags=1024, length=20)
  weighted = dataclasses.replace(read, weighted=True)
  args = SCHEMES['row_wise'], 1, ShardingPlan({}, devices=8), Exchange()
  more = sums_bytes(weighted, *args) - sums_bytes(read, *args)
  assert more == 4 * 1024 * 20 * 7
  assert rows_bytes(weighted, *args) == rows_bytes(read, *args)


@pytest.mark.parametrize(
  'scheme, pieces, way',
  [
    ('data_parallel', 1, 'sums'),
    ('table_wise', 1, 'sums'),
    ('column_wise', 1, 'sums'),
    ('column_wise', 2, 'rows'),
    ('table_row_wise', 1, 'rows'),
    ('row_wise', 1, 'rows'),
  ],
)
def test_only_sums_of_one_device_keep_their_order(scheme, pieces, way):
  read = BagRead(dim=64, bags=1024, length=20)
  mesh = ShardingPlan({}, hosts=2, devices=4)
  rule = PoolingRule('sums', determinism='mesh_invariant')
  assert choose_pooling(read, SCHEMES[scheme], pieces, mesh, rule) == way


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(pool='sum'), "pool is 'sum', must be one of"),
    (dict(determinism='none'), "determinism is 'none', must be one of"),
  ],
)
def test_rules_that_cannot_be(fields, message):
  with pytest.raises(ValueError, match=message):
    PoolingRule(**fields)


def test_the_examples_in_the_text():
  for module in (pooling, workload, plan_lib, scheme, single_scheme):
    assert doctest.testmod(module).failed == 0


# --- Plans.

BATCH = 8192
SHORT = Load('short', 100_000, 64, features=(Feature(2.0, name='brand'),))
LONG = Load(
  'long',
  1_000_000,
  64,
  features=(Feature(30.0, name='tags'), Feature(50.0, pooled=False)),
)
NODE = hardware.find_topology('h100')


def rows_everywhere(**fields):
  tables = {load.name: load.plan('row_wise') for load in (SHORT, LONG)}
  return ShardingPlan(tables, devices=8, **fields)


def test_a_plan_says_how_each_feature_travels():
  plan = fill_pooling(rows_everywhere(), [SHORT, LONG], BATCH)
  assert plan.pooling == {'brand': 'rows', 'tags': 'sums'}
  for way in ('rows', 'sums'):
    forced = fill_pooling(plan, [SHORT, LONG], BATCH, PoolingRule(way))
    assert forced.pooling == {'brand': way, 'tags': way}
  mine = fill_pooling(
    rows_everywhere(pooling={'tags': 'rows'}), [SHORT, LONG], BATCH
  )
  assert mine.pooling == {'brand': 'rows', 'tags': 'rows'}


def test_a_plan_must_not_name_other_features():
  plan = rows_everywhere(pooling={'tag': 'sums'})
  message = r"of \['tag'\], but the pooled features .* are \['brand', 'tags'\]"
  with pytest.raises(PlanError, match=message):
    fill_pooling(plan, [SHORT, LONG], BATCH)


def test_sums_that_order_rules_out_are_refused():
  rule = PoolingRule('sums', determinism='mesh_invariant')
  with pytest.raises(PlanError, match="'brand' would travel .* 'short' .row_w"):
    fill_pooling(rows_everywhere(), [SHORT, LONG], BATCH, rule)
  plan = rows_everywhere(pooling={'tags': 'sums'})
  rule = PoolingRule(determinism='mesh_invariant')
  with pytest.raises(PlanError, match="set parallel.pool='rows', or keep the"):
    fill_pooling(plan, [SHORT, LONG], BATCH, rule)
  plan = fill_pooling(rows_everywhere(), [SHORT, LONG], BATCH, rule)
  assert set(plan.pooling.values()) == {'rows'}


def test_what_travels_is_what_is_priced_and_told():
  plan = fill_pooling(rows_everywhere(), [SHORT, LONG], BATCH)
  report = evaluate_plan(plan, [SHORT, LONG], NODE, BATCH)
  assert 'travel as sums: tags\ntravel as rows, though pooled: brand' in str(
    report
  )
  assert report.to_dict()['pooling'] == plan.pooling
  as_rows = dataclasses.replace(
    SHORT, features=(Feature(2.0, pooled=False, name='brand'),)
  )
  unnamed = dataclasses.replace(
    LONG, features=(Feature(30.0), Feature(50.0, pooled=False))
  )
  plain = evaluate_plan(rows_everywhere(), [as_rows, unnamed], NODE, BATCH)
  assert (report.times == plain.times).all()
  assert 'travel as' not in str(plain)


def test_an_option_costs_what_it_would_send():
  def costs(pool):
    rule = PoolingRule(pool)
    (options,) = enumerate_options([SHORT], NODE, BATCH, rule=rule)
    return {(o.scheme, o.pieces): o.cost for o in options}

  auto, rows, sums = (costs(pool) for pool in ('auto', 'rows', 'sums'))
  assert rows['table_wise', 1] != sums['table_wise', 1]
  # So short bags have rows travel whatever was said.
  assert rows['row_wise', 1] == sums['row_wise', 1]
  assert auto['row_wise', 1] == rows['row_wise', 1]
  assert auto['table_wise', 1] == sums['table_wise', 1]


def test_the_planner_fills_in_the_ways_of_its_plan():
  plan, report = make_plan([SHORT, LONG], NODE, batch=BATCH)
  assert plan.pooling == fill_pooling(plan, [SHORT, LONG], BATCH).pooling
  ways = {
    way: make_plan([SHORT, LONG], NODE, batch=BATCH, pooling=PoolingRule(way))
    for way in ('rows', 'sums')
  }
  for way, (forced, _) in ways.items():
    assert set(forced.pooling.values()) == {way}
  assert report.pooling == plan.pooling


def test_a_file_without_a_choice_is_described_with_one(tmp_path):
  rows_everywhere().save(tmp_path / 'plan.json')
  arguments = dict(batch=BATCH, plan=str(tmp_path / 'plan.json'))
  text = describe([SHORT, LONG], 'h100', **arguments)
  assert 'travel as sums: tags' in text
  rule = PoolingRule('rows')
  text = describe([SHORT, LONG], 'h100', pooling=rule, **arguments)
  assert 'travel as rows, though pooled: brand, tags' in text


def test_many_names_are_cut_short():
  features = tuple(Feature(2.0, name=f'f{i:03}') for i in range(100))
  load = Load('t', 1000, 64, features=features)
  text = describe([load], 'h100', batch=BATCH, pooling=PoolingRule('sums'))
  assert 'travel as sums: f000, f001' in text and 'f019 and 80 more' in text


def test_tables_that_optax_updates_are_read_where_they_are():
  load = dataclasses.replace(SHORT, optimizer='dense')
  plan, _ = make_plan([load], NODE, batch=BATCH)
  assert plan.pooling == {'brand': 'sums'}


def test_order_chooses_without_regard_to_the_mesh():
  """Bits depend on the choice, and must not depend on how many devices."""
  rule = PoolingRule(determinism='mesh_invariant')
  read = BagRead(dim=64, bags=1024, length=1)
  table_wise, row_wise = SCHEMES['table_wise'], SCHEMES['row_wise']
  for devices in (1, 2, 64):
    mesh = ShardingPlan({}, devices=devices)
    assert choose_pooling(read, table_wise, 1, mesh, rule) == 'sums'
    assert choose_pooling(read, row_wise, 1, mesh, rule) == 'rows'
  # Two devices of 'per_mesh' send fewer bytes by rows.
  assert (
    choose_pooling(read, row_wise, 1, ShardingPlan({}, devices=64)) == 'rows'
  )


def test_a_feature_whose_bags_have_been_empty_so_far():
  tags = Load(
    'tags', 90, 8, optimizer='adam',
    features=(Feature(0.0, pooled=True, name='tags'),),
  )  # fmt: skip
  plan = single_scheme.plan_with_scheme(
    {'tags': TableSpec('tags', 90, 8, update='adam')},
    'row_wise',
    devices=8,
  )
  assert fill_pooling(plan, [tags], 1024, PoolingRule()).pooling == {
    'tags': 'rows'
  }
