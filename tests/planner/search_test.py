"""The whole planner: plans, reports, refusals."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.features import TableSpec
from genrec_jax.planner import (
  Constraint,
  DensePart,
  Feature,
  InsufficientMemory,
  Load,
  describe,
  evaluate_plan,
  from_tables,
  hardware,
  make_plan,
  storage,
)
from genrec_jax.planner.balance import measure_imbalance

BATCH = 8192


def some_tables(count, seed=0, most=2_000_000):
  rng = np.random.default_rng(seed)
  return [
    Load(
      f't{i}',
      int(rng.integers(100, most)),
      int(rng.choice([16, 64, 128])),
      features=(Feature(float(rng.lognormal(1, 1))),),
    )
    for i in range(count)
  ]


@st.composite
def problems(draw):
  loads = [
    Load(
      f't{i}',
      draw(st.integers(1, 10**6)),
      draw(st.sampled_from([1, 6, 16, 64, 256])),
      dtype=draw(st.sampled_from(['float32', 'bfloat16'])),
      optimizer=draw(st.sampled_from(['sgd', 'row_adagrad', 'adam'])),
      features=(
        Feature(
          draw(st.floats(0.1, 100)),
          pooled=draw(st.booleans()),
          weighted=draw(st.booleans()),
        ),
      ),
    )
    for i in range(draw(st.integers(1, 6)))
  ]
  machine = hardware.find_topology(
    'h100',
    hosts=draw(st.integers(1, 3)),
    devices=draw(st.integers(1, 4)),
    replicas=draw(st.integers(1, 2)),
    memory=draw(st.sampled_from([10**8, 10**9, 10**11])),
  )
  return loads, machine


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(problems())
def test_plans_cover_every_cell_once_and_keep_to_the_memory(problem):
  loads, machine = problem
  try:
    plan, report = make_plan(loads, machine, batch=BATCH)
  except InsufficientMemory:
    return
  for load in loads:
    shards = plan.shards(load.name)
    columns = {}
    for shard in shards:
      key = shard.first_column, shard.columns
      columns[key] = columns.get(key, 0) + shard.rows
    copies = plan.group_size if plan.tables[load.name].spread is None else 1
    assert set(columns.values()) == {load.rows * copies}
    ends = sorted((first, first + count) for first, count in columns)
    assert [e for _, e in ends[:-1]] == [b for b, _ in ends[1:]]
    assert (ends[0][0], ends[-1][1]) == (0, load.dim)
  costs = report
  assert (costs.device_bytes <= costs.budget).all()
  assert (costs.row_bytes <= costs.allocated).all()
  assert plan_lib.from_json(plan.to_json()) == plan
  json.dumps(report.to_dict())
  assert str(report)


def test_the_same_question_has_the_same_answer():
  loads, machine = some_tables(30), hardware.find_topology('h100', hosts=2)
  first, second = (make_plan(loads, machine, batch=BATCH) for _ in range(2))
  assert first[0].to_json() == second[0].to_json()
  assert str(first[1]) == str(second[1])


def list_places(load, hosts, devices):
  """Every way to place a table that planners consider without being asked."""
  everywhere, half = range(hosts * devices), load.dim // 2
  yield from (('table_wise', (d,)) for d in everywhere)
  yield from [('row_wise', ()), ('data_parallel', ())]
  if hosts > 1:
    yield from (('table_row_wise', (h,)) for h in range(hosts))
  if half >= Constraint().min_columns:
    yield from (
      ('column_wise', at) for at in itertools.combinations(everywhere, 2)
    )


@pytest.mark.parametrize(
  'hosts, devices, count, seed',
  [(1, 2, 3, 0), (1, 2, 3, 1), (1, 2, 3, 2), (1, 3, 2, 3), (2, 2, 2, 4)]
  + [(2, 2, 2, 5), (2, 1, 3, 6), (2, 1, 3, 7)],
)  # fmt: skip
def test_the_plan_is_the_best_of_all_on_a_small_case(
  hosts, devices, count, seed
):
  loads = some_tables(count, seed, most=200_000)
  if seed % 2:  # some rows come back one by one
    features = Feature(20.0, pooled=False), Feature(1.0)
    loads[0] = dataclasses.replace(loads[0], features=features)
  machine = hardware.find_topology('h100', hosts=hosts, devices=devices)
  _, report = make_plan(loads, machine, batch=BATCH)
  best = float('inf')
  for ways in itertools.product(
    *(list_places(load, hosts, devices) for load in loads)
  ):
    tables = {
      load.name: load.plan(*way) for load, way in zip(loads, ways, strict=True)
    }
    plan = ShardingPlan(tables, hosts, devices)
    best = min(best, evaluate_plan(plan, loads, machine, BATCH).step)
  assert report.step <= best * (1 + 1e-9)


def test_more_proposals_never_do_worse():
  loads, machine = some_tables(40), hardware.find_topology('h100', hosts=2)
  few = make_plan(
    loads, machine, batch=BATCH, proposers=('uniform',), halvings=0
  )
  many = make_plan(loads, machine, batch=BATCH)
  assert many[1].step <= few[1].step


def test_constraints_are_kept():
  loads, machine = some_tables(8), hardware.find_topology('h100', hosts=2)
  constraints = {
    't0': Constraint(('table_wise',), (11,)),
    't1': Constraint(('row_wise',), split='block'),
    't2': Constraint(together='x'),
    't3': Constraint(together='x'),
    't4': Constraint(('grid',), min_columns=8),
  }
  loads[4] = dataclasses.replace(loads[4], dim=64)
  plan, _ = make_plan(loads, machine, batch=BATCH, constraints=constraints)
  tables = plan.tables
  assert (tables['t0'].scheme, tables['t0'].at) == ('table_wise', (11,))
  assert (tables['t1'].scheme, tables['t1'].split) == ('row_wise', 'block')
  assert tables['t2'].scheme == tables['t3'].scheme
  assert tables['t2'].at == tables['t3'].at
  assert (tables['t4'].scheme, tables['t4'].at) == ('grid', (0, 1))


def test_a_table_too_large_for_a_device_is_cut():
  machine = hardware.find_topology('cpu', devices=4, memory=100_000_000)
  big = Load('big', 1_000_000, 64)
  assert big.bytes_of(big.rows, big.dim) > 2 * storage.table_budget(
    machine, DensePart()
  )
  plan, report = make_plan([big], machine, batch=256)
  assert plan.tables['big'].scheme == 'row_wise'
  assert not len(report.over)


def test_what_does_not_fit_is_refused_with_the_numbers():
  machine = hardware.find_topology('h100', devices=2)
  loads = [Load('items', 2_000_000_000, 64), *some_tables(15)]
  with pytest.raises(InsufficientMemory) as refused:
    make_plan(loads, machine, batch=BATCH)
  text = str(refused.value)
  assert '16 tables with their optimizers take 52' in text
  assert '136 GB for them (2 x 68.0 GB: 80.0 GB less 15% reserve' in text
  assert 'items: 2,000,000,000 x 64 float32 with row_adagrad: 520 GB' in text
  assert '260 GB on each of 2 (row_wise)' in text
  assert 'and 6 more' in text
  # What it says would fit, fits; one less does not.
  assert 'or 8 devices' in text
  make_plan(loads, hardware.find_topology('h100', devices=8), batch=4 * BATCH)
  with pytest.raises(InsufficientMemory):
    make_plan(loads, hardware.find_topology('h100', devices=7), batch=4 * BATCH)


def test_constraints_that_no_machine_satisfies():
  loads = [Load('items', 500_000_000, 64)]
  with pytest.raises(InsufficientMemory) as refused:
    make_plan(
      loads,
      hardware.find_topology('h100'),
      batch=BATCH,
      constraints={'items': Constraint(('data_parallel',))},
    )
  assert 'hosts x' not in str(refused.value).split('What would fit')[1]


def test_a_dense_part_that_leaves_nothing():
  with pytest.raises(InsufficientMemory, match='leaves nothing for tables'):
    make_plan(
      some_tables(1),
      hardware.find_topology('h100'),
      batch=1,
      dense=DensePart(bytes=10**11),
    )


def test_a_deadline_is_told():
  loads = some_tables(5)
  machine = hardware.find_topology('h100')
  _, late = make_plan(loads, machine, batch=BATCH, timeout=0)
  assert 'stopped after 0 s' in str(late) and late.made_by == 'frugal + lpt'
  _, report = make_plan(loads, machine, batch=BATCH)
  assert 'stopped' not in str(report)
  assert report.step < late.step


@pytest.mark.parametrize('argument', ['proposers', 'partitioners'])
def test_unknown_names_are_refused(argument):
  with pytest.raises(ValueError, match="no 'magic'.*lpt, ldm"):
    make_plan(
      some_tables(1),
      hardware.find_topology('h100'),
      batch=1,
      **{argument: ('magic',)},
    )


def test_evaluate_adds_up_by_hand():
  machine = hardware.find_topology('torchrec', hosts=1, devices=2)
  load = Load('t', 1000, 128, features=(Feature(2.0),))
  plan = ShardingPlan({'t': load.plan('table_wise', (1,))}, devices=2)
  costs = evaluate_plan(plan, [load], machine, 64)
  # 64 ids and 32 bags a device
  forward = (64 * 2 * 8 + 64 * 2 * 512 + 32 * 2 * 512) / (897 * 2**30)
  # Both send as much, and tell each other the norm, 4 bytes.
  there = (4 * (64 + 33) + 32 * 512) / (600 * 2**30)
  again = (32 * 512 + 4) / (600 * 2**30)
  assert costs.times[0] == pytest.approx([0, 0, there, again, 0])
  of_owner = [forward, 2 * forward, there, again, 0]
  assert costs.times[1] == pytest.approx(of_owner)
  assert list(costs.row_bytes) == [0, 1000 * 516]
  assert costs.allocated == 1001 * 516  # and the spare row
  assert costs.step == costs.critical_path


def test_evaluate_wants_the_plan_of_this_model_and_machine():
  machine = hardware.find_topology('h100')
  load = Load('t', 1000, 128)
  plan = ShardingPlan({'t': load.plan('row_wise')}, devices=8)
  for other, message in (
    (dataclasses.replace(load, rows=999), 'rows is 1000'),
    (dataclasses.replace(load, name='u'), r"lacks the tables \['u'\]"),
  ):
    with pytest.raises(PlanError, match=message):
      evaluate_plan(plan, [other], machine, BATCH)
  with pytest.raises(PlanError, match=r'\[1, 1, 8\], the topology'):
    evaluate_plan(plan, [load], hardware.find_topology('h100', hosts=2), BATCH)


def test_imbalance():
  assert measure_imbalance([2, 2, 2])['max_over_mean'] == 1
  assert measure_imbalance([0, 0]) == dict(
    max_over_mean=1.0, total_variation=0.0, kl=0.0, chi2=0.0
  )
  found = measure_imbalance([3, 1, 0, 0])
  assert found['max_over_mean'] == 3
  assert found['total_variation'] == pytest.approx(0.5)
  assert found['kl'] == pytest.approx(0.75 * np.log(3))
  assert found['chi2'] == pytest.approx(4 * (0.25 + 2 * 0.0625))


def test_describe_makes_a_plan_and_describes_it_again(tmp_path):
  path = tmp_path / 'plan.json'
  loads = some_tables(30)
  made = describe(loads, 'h100', batch=BATCH, save=str(path), top=5)
  assert 'the best of' in made and 'and 25 more' in made
  again = describe(loads, 'h100', batch=BATCH, plan=str(path), top=5)
  assert 'plan: by hand' in again
  # The same but for who made it.
  assert made.splitlines()[2:] == again.splitlines()[2:]


def test_describe_takes_the_shape_of_a_plan_file(tmp_path):
  path = tmp_path / 'plan.json'
  load = Load('t', 1000, 128)
  ShardingPlan({'t': load.plan('row_wise')}, 2, 3, 4).save(path)
  text = describe([load], 'h100', batch=BATCH, plan=str(path))
  assert 'devices = 4 x 2 x 3,' in text and '4 copies are kept' in text
  with pytest.raises(PlanError, match='set hosts='):
    describe([load], 'h100', batch=1, plan=str(path), overrides={'hosts': 1})


def test_describe_refuses_a_plan_file_that_does_not_fit(tmp_path):
  path = tmp_path / 'plan.json'
  load = Load('t', 200_000_000, 128)
  ShardingPlan({'t': load.plan('table_wise', (3,))}, devices=8).save(path)
  with pytest.raises(InsufficientMemory) as refused:
    describe([load], 'h100', batch=BATCH, plan=str(path))
  text = str(refused.value)
  assert 'plan.json does not fit: device 3 would hold 103 GB' in text
  assert 'of 68.0 GB (80.0 GB less 15% reserve' in text
  assert '8 of 8 devices' in text  # arrays are equally deep
  assert 't: 200,000,000 x 128, 103 GB in all, table_wise' in text
  plan = ShardingPlan({'t': load.plan('row_wise')}, devices=8)
  assert 'plan: by hand' in describe([load], 'h100', batch=BATCH, plan=plan)
  report = evaluate_plan(
    plan, [load], hardware.find_topology('h100', memory=10**9), BATCH
  )
  assert 'DOES NOT FIT on 8 of 8 devices' in str(report)


def test_reports_of_many_tables_stay_short():
  text = describe(
    some_tables(856, most=10**5), 'zionex', batch=65_536, proposals=3,
    halvings=0,
  )  # fmt: skip
  assert len(text.splitlines()) < 70
  assert 'and 836 more' in text
  assert max(map(len, text.splitlines())) < 110


def test_a_report_as_a_dict():
  loads, machine = some_tables(5), hardware.find_topology('h100', devices=2)
  _, report = make_plan(loads, machine, batch=BATCH, dense=DensePart(7, 8.0, 9))
  found = json.loads(json.dumps(report.to_dict()))
  assert found['fits'] and found['step_s'] == report.step
  assert found['topology']['devices'] == 2 and found['dense']['bytes'] == 9
  parts = [d['forward_compute_s'] for d in found['devices']]
  assert parts == pytest.approx(report.times[:, 0])
  assert [t['name'] for t in found['tables']] == [load.name for load in loads]
  assert found['sizing'][0]['binds'] == report.sizes[0].binds


def test_loads_of_a_models_tables():
  specs = [TableSpec('items', 100, 8, update='row_adagrad')]
  (load,) = from_tables(specs, {'items': [Feature(50.0, pooled=False)]})
  assert (load.ids, load.values_returned(), load.optimizer) == (
    50.0,
    50.0,
    'row_adagrad',
  )
  with pytest.raises(ValueError, match=r"no features.*\['items'\]"):
    from_tables(specs, {})
