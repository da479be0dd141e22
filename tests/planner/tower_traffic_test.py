"""What the planner says towers send, against the programs of their plans."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import pytest

from benchmarks import hlo, table_steps
from genrec_jax.embedding import tower_plans
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import TableSpec
from genrec_jax.planner import (
  Feature,
  Load,
  TowerLoad,
  describe,
  evaluate_plan,
  exchange_time,
  from_towers,
  hardware,
  ordering,
  tower_traffic,
)
from genrec_jax.planner.plan_traffic import count_step, list_plan
from genrec_jax.planner.tower_comparison import compare_towers
from genrec_jax.planner.traffic import Wire, split_by_link

WIDTH, BATCH = 32, 8 * 12
# No two tables are alike; `tags` and `words` are also read beside the towers.
LOADS = [
  Load(
    'tags', 700, WIDTH,
    features=(Feature(9.0, name='tags'), Feature(2.0, name='more tags'),
              Feature(3.0)),
  ),
  Load('brands', 30, WIDTH, features=(Feature(3.0, name='brands'),)),
  Load('wide', 90, 2 * WIDTH, features=(Feature(3.0, name='wide'),)),
  Load('cities', 41, WIDTH, features=(Feature(1.0, name='cities'),)),
  Load(
    'words', 301, WIDTH, optimizer='sgd',
    features=(Feature(4.0, weighted=True, name='words'),
              Feature(1.0, pooled=False)),
  ),
  Load('clicks', 900, WIDTH, features=(Feature(5.0, pooled=False),)),
]  # fmt: skip
TABLES = {f.name: x.name for x in LOADS for f in x.features if f.name}
SPECS = {
  x.name: TableSpec(x.name, x.rows, x.dim, update=x.optimizer) for x in LOADS
}
FEATURES = ('tags', 'more tags'), ('brands', 'words'), ('wide',), ('cities',)


def halve(params, x, mask, draws):
  """Half of each vector, and a factor of each example."""
  del params, mask
  x = x[:, :, : WIDTH // 2]
  if draws is not None:
    x = x * draws.numbers.astype(jnp.float32)[:, None, None]
  return x


# Two vectors of the largest tower travel for each; not all are kept.
TOWERS = Towers(
  FEATURES,
  tuple(tuple(SPECS[TABLES[name]].dim for name in own) for own in FEATURES),
  WIDTH,
  ((0, 1), (0,), (1,), (0,)),
  lambda key: {},
  halve,
)


def place(hosts, devices, scheme, towers=TOWERS, replicas=1):
  """A plan of all tables, for the towers."""
  plan = tower_plans.plan_towers(
    towers, TABLES, SPECS, scheme,
    hosts=hosts, devices=devices, replicas=replicas,
  )  # fmt: skip
  section = {'features': [list(own) for own in towers.features]}
  return dataclasses.replace(
    plan,
    pooling=dict.fromkeys(TABLES, 'sums'),
    extra={tower_plans.SECTION: section},
  )


NARROW = Exchange(
  forward='int8', backward='float16', near_forward='bfloat16',
  near_backward='fp8',
)  # fmt: skip


@functools.cache
def compile_step(mesh, scheme, exchange, draws):
  """(plan, towers, mesh, compiled program); several tests look at one."""
  towers = dataclasses.replace(TOWERS, draws=draws)
  plan = place(*mesh[:2], scheme, towers, *mesh[2:])
  step = table_steps.make_step(plan, LOADS, BATCH, exchange, towers=towers)
  return plan, from_towers(towers), step.mesh, step.compile()


CASES = [
  ((2, 4), 'table_wise', Exchange(), False),
  ((4, 2), 'table_row_wise', NARROW, True),
  ((2, 4), 'table_column_wise', Exchange(near_forward='float16'), True),
  ((2, 2, 2), 'auto', NARROW, False),
]


@pytest.mark.parametrize('case', CASES, ids=str)
def test_each_collective_is_foreseen(case):
  plan, towers, mesh, program = compile_step(*case)
  sent = table_steps.sum_collectives(program, mesh)
  foreseen, wire = {}, Wire(case[2], 'cpu')
  for t in list_plan(plan, LOADS, BATCH, wire, towers):
    key = t.op, tuple(axis for axis in t.over if mesh.shape[axis] > 1)
    if t.what != 'copies':  # means over replica groups stand in a branch
      foreseen[key] = foreseen.get(key, 0.0) + t.bytes
  assert {k: x for k, x in foreseen.items() if x} == sent


@pytest.mark.parametrize('case', CASES[:2], ids=str)
def test_each_sort_is_foreseen(case):
  plan, towers, _, program = compile_step(*case)
  wire = Wire(case[2], 'cpu')
  step = count_step(plan, LOADS, BATCH, wire, towers)
  assert ordering.count_step(step, wire) == hlo.count_sorted(program)


EVEN = tuple((f'f{i}', f'f{i + 1}') for i in range(0, 16, 2))
EVEN_LOADS = [
  Load(f't{i:02}', 4_000, 64, features=(Feature(1.0, name=f'f{i}'),))
  for i in range(16)
]


def place_evenly(scheme):
  """Sixteen tables under eight towers that keep half, on 2 hosts of 4."""
  tables = {
    load.name: load.plan(scheme, (i // 2,) if scheme == 'table_wise' else
                         (i // 8,))
    for i, load in enumerate(EVEN_LOADS)
  }  # fmt: skip
  load = TowerLoad(EVEN, (2,) * 8, 64, (1,) * 8, 1, 64)
  section = {'features': [list(own) for own in EVEN]}
  pooling = {name: 'sums' for own in EVEN for name in own}
  return load, ShardingPlan(
    tables, 2, 4, pooling=pooling, extra={tower_plans.SECTION: section}
  )


@pytest.mark.parametrize('scheme', ['table_wise', 'table_row_wise'])
def test_even_towers_send_what_the_time_model_says(scheme):
  load, plan = place_evenly(scheme)
  machine = hardware.find_topology('h100', hosts=2, devices=4)
  wire = Wire(Exchange(forward='bfloat16', backward='bfloat16'))
  sent = list_plan(plan, EVEN_LOADS, 8 * 96, wire, load)
  found = [t for t in sent if t.what == 'rows']
  modelled = exchange_time.list_towers(
    machine, wire, 16, 64, 96, 2, rows_in_host=scheme == 'table_row_wise'
  )
  assert sorted(
    (t.step, t.over, t.op == 'all-to-all', t.bytes) for t in found
  ) == sorted((t.step, t.over, True, t.bytes) for t in modelled)


@pytest.mark.parametrize('scheme', ['table_wise', 'table_row_wise'])
def test_pieces_add_up_to_a_plan(scheme):
  """Each device has two tables, or a part of eight."""
  load, plan = place_evenly(scheme)
  machine = hardware.find_topology('h100', hosts=2, devices=4)
  kind = SCHEMES[scheme]
  own = [
    (t, t.expected)
    for table in EVEN_LOADS
    for t in tower_traffic.list_piece(
      table, kind, 64, machine, 96, Wire(), load
    )
  ]
  pieces = 8 / kind.owners(2, 4)  # of sixteen, that another device has
  sent = list_plan(plan, EVEN_LOADS, 8 * 96, Wire(), load)
  for key in {(t.step, t.over) for t in sent if t.what != 'scalars'}:
    added = sum(size for t, size in own if (t.step, t.over) == key) / pieces
    whole = sum(t.expected for t in sent if (t.step, t.over) == key)
    assert added == pytest.approx(whole), key


def test_towers_that_change_nothing_send_as_much_to_other_hosts():
  load, plan = place_evenly('table_wise')
  machine = hardware.find_topology('h100', hosts=2, devices=4)

  def count_far(plan, towers):
    sent = list_plan(plan, EVEN_LOADS, 8 * 96, Wire(), towers)
    return sum(split_by_link(t, machine)[1] for t in sent if t.what == 'rows')

  flat = count_far(dataclasses.replace(plan, extra={}), None)
  assert count_far(plan, load.as_identity()) == pytest.approx(flat)
  assert count_far(plan, load) == pytest.approx(flat / 2)


def test_a_plan_and_towers_must_be_of_each_other():
  load, plan = place_evenly('table_wise')
  machine = hardware.find_topology('h100', hosts=2, devices=4)
  with pytest.raises(PlanError, match='those given are None'):
    evaluate_plan(plan, EVEN_LOADS, machine, 8 * 96)
  other = dataclasses.replace(load, features=load.features[::-1])
  with pytest.raises(PlanError, match='plan was made for the towers'):
    evaluate_plan(plan, EVEN_LOADS, machine, 8 * 96, towers=other)
  flat = dataclasses.replace(plan, extra={})
  with pytest.raises(PlanError, match='made for the towers None'):
    evaluate_plan(flat, EVEN_LOADS, machine, 8 * 96, towers=load)


def test_a_report_has_what_towers_send():
  load, plan = place_evenly('table_wise')
  machine = hardware.find_topology('h100', hosts=2, devices=4)
  text = describe(EVEN_LOADS, machine, batch=8 * 96, plan=plan, towers=load)
  lines = text.splitlines()
  assert any(
    line.startswith('8 towers on 2 hosts: 16 vectors of 64 go in and 8 of 64')
    for line in lines
  )
  (tower,) = (line for line in lines if line.endswith('f14, f15'))
  assert tower.split()[:4] == ['7', '1', '2', '1']
  (made,) = (line for line in lines if line.startswith('what the towers make'))
  # 8 towers, 96 examples, 64 floats; half of it to the other host.
  assert made.split()[4:] == ['between', '98.3', 'kB', '1', '98.3', 'kB']
  ways = [line for line in lines if line.startswith(('flat, ', 'towers that'))]
  assert len(ways) == 3  # as the planner places them, too
  assert any(line.startswith('these towers  ') for line in lines)
  (conclusion,) = (
    line for line in lines if line.startswith('these towers pay')
  )
  assert conclusion.endswith('times as long')


def test_a_report_says_where_towers_do_not_pay():
  load, plan = place_evenly('table_wise')
  machine = hardware.find_topology('h100', hosts=2, devices=4)
  report = evaluate_plan(plan, EVEN_LOADS, machine, 8 * 96, towers=load)
  compared = compare_towers(plan, report, EVEN_LOADS, load)
  flat, *others, own = compared.ways
  slow = dataclasses.replace(own, step_s=flat.step_s * 2)
  lines = dataclasses.replace(compared, ways=(flat, *others, slow)).lines(3)
  assert lines[-1].startswith('these towers do not pay here')
  assert lines[-1].endswith('where it is 2.00 times as fast')


def test_a_report_as_numbers():
  load, plan = place_evenly('table_wise')
  machine = hardware.find_topology('h100', hosts=2, devices=4)
  report = evaluate_plan(plan, EVEN_LOADS, machine, 8 * 96, towers=load)
  compared = compare_towers(plan, report, EVEN_LOADS, load)
  flat, alone, own = compared.ways
  assert alone.far_bytes == pytest.approx(flat.far_bytes)
  assert own.near_bytes == alone.near_bytes > flat.near_bytes
  # One peer in place of four; ids, sums and gradients.
  assert (flat.far_messages, own.far_messages) == (3 * 4, 3)
  assert own.step_s == report.step < alone.step_s
  found = dataclasses.replace(report, towers=compared).to_dict()['towers']
  assert found['compression'] == 2 and found['padding'] == 0
  assert json.loads(json.dumps(found)) is not None


def test_no_plan_is_made_for_towers_here():
  load, _ = place_evenly('table_wise')
  with pytest.raises(ValueError, match='embedding.tower_plans'):
    describe(EVEN_LOADS, 'h100', batch=96, towers=load)
