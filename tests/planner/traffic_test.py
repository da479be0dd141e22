"""What the planner says a plan sends, against the programs of the plan."""

import pytest

from benchmarks import table_steps
from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.planner import Feature, Load
from genrec_jax.planner.plan_traffic import list_plan
from genrec_jax.planner.traffic import Wire
from tests.marks import slow_but

# No two tables are alike, nor is any number of rows a multiple of another.
TAGS = Load('tags', 700, 32, features=(Feature(9.0, name='tags'), Feature(2.0)))
BRANDS = Load('brands', 30, 32, features=(Feature(3.0, name='brands'),))
CLICKS = Load('clicks', 900, 32, features=(Feature(5.0, pooled=False),))
WORDS = Load(
  'words', 301, 32, features=(Feature(4.0, weighted=True, name='words'),)
)
LOADS = [TAGS, BRANDS, CLICKS, WORDS]
BATCH = 8 * 12


def place(loads, scheme, hosts=2, devices=4, replicas=1, **fields):
  """Tables by one scheme, one after another."""
  kind = SCHEMES[scheme]
  tables = {
    load.name: load.plan(scheme, kind.place(turn, load, hosts, devices))
    for turn, load in enumerate(loads)
  }
  return ShardingPlan(tables, hosts, devices, replicas, **fields)


def check(plan, loads, exchange, batch=BATCH):
  """That every collective is foreseen, with its bytes."""
  step = table_steps.make_step(plan, loads, batch, exchange)
  sent = table_steps.sum_collectives(step.compile(), step.mesh)
  foreseen = {}
  for t in list_plan(plan, loads, batch, Wire(exchange, 'cpu')):
    shape = dict(zip(step.mesh.axis_names, step.mesh.devices.shape))
    key = t.op, tuple(axis for axis in t.over if shape[axis] > 1)
    # Means over replica groups stand in a branch.
    if t.what != 'copies':
      foreseen[key] = foreseen.get(key, 0.0) + t.bytes
  assert {k: x for k, x in foreseen.items() if x} == sent


ALL_SUMS = {'tags': 'sums', 'brands': 'sums', 'words': 'sums'}


@pytest.mark.parametrize('scheme', SCHEMES)
def test_sums(scheme):
  plan = place(LOADS, scheme, pooling=ALL_SUMS)
  check(plan, LOADS, Exchange(overflow='raise'))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('scheme', ['table_wise', 'column_wise', 'row_wise'])
def test_rows(scheme, kind):
  plan = place(LOADS, scheme, pooling=dict.fromkeys(ALL_SUMS, 'rows'))
  # Of each kind one with a codec.
  codec = 'float16' if scheme == 'row_wise' else 'float32'
  check(plan, LOADS, Exchange(kind, forward=codec))


@pytest.mark.parametrize('kind', slow_but(KINDS, ['gather']))
def test_different_schemes_codecs_and_widths_together(kind):
  loads = [
    *LOADS,
    Load('wide', 90, 64, features=(Feature(3.0),)),
    Load('cities', 40, 16, features=(Feature(30.0), Feature(1.0))),
    Load(
      'narrow', 800, 32, features=(Feature(3.0, pooled=False), Feature(6.0)),
      codec=('int8', 'bfloat16'),
    ),
  ]  # fmt: skip
  ways = [
    ('row_wise', ()), ('table_wise', (3,)), ('table_wise', (6,)),
    ('table_row_wise', (1,)), ('grid', (0, 1)), ('data_parallel', ()),
    ('column_wise', (2, 5)),
  ]  # fmt: skip
  tables = {
    load.name: load.plan(*way) for load, way in zip(loads, ways, strict=True)
  }
  pooling = {'tags': 'rows', 'brands': 'sums', 'words': 'sums'}
  plan = ShardingPlan(tables, 2, 4, pooling=pooling)
  check(plan, loads, Exchange(kind, forward='float16'))


@pytest.mark.parametrize('scheme', ['table_wise', 'row_wise', 'data_parallel'])
def test_replica_groups(scheme):
  plan = place(LOADS, scheme, 1, 4, 2, pooling=ALL_SUMS)
  check(plan, LOADS, Exchange())


@pytest.mark.parametrize('length', [2.0, 40.0])
def test_copies_travel_as_rows_or_as_tables(length):
  load = Load('t', 501, 16, features=(Feature(length, name='t'),))
  plan = place([load], 'data_parallel', pooling={'t': 'sums'})
  check(plan, [load], Exchange())
  ops = {t.op for t in list_plan(plan, [load], BATCH)}
  assert ('all-to-all' in ops) == (length == 40.0)


def test_rounds_of_a_full_device_are_counted():
  """All that is asked for lies on one of eight, with room for a quarter."""
  load = Load('clicks', 90_000, 32, features=(Feature(50.0, pooled=False),))
  for capacity, rounds in ((8.0, 1), (2.0, 4), (1.0, 8)):
    wire = Wire(Exchange('all_to_all', capacity=capacity), 'cpu')
    sent = list_plan(place([load], 'table_wise'), [load], 8 * 64, wire)
    assert {t.rounds for t in sent if t.what == 'rows'} == {rounds}


@pytest.mark.parametrize('kind', ['all_to_all', 'ragged'])
def test_pieces_that_travel_together_have_room(kind):
  """Ten tables that begin on other devices and end on one, read a little."""
  loads = [
    Load(f't{i}', 50, 64, features=(Feature(0.25, pooled=False),))
    for i in range(10)
  ]
  tables = {
    load.name: load.plan('column_wise', (i % 7, 7))
    for i, load in enumerate(loads)
  }
  check(ShardingPlan(tables, 2, 4), loads, Exchange(kind))
