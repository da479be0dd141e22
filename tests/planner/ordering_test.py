"""What the planner says a plan puts in order, against the programs."""

import dataclasses

import pytest

from benchmarks import hlo, table_steps
from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.parallel import slices
from genrec_jax.planner import Feature, Load, hardware, ordering
from genrec_jax.planner.cost import shard_cost
from genrec_jax.planner.plan_traffic import count_step
from genrec_jax.planner.traffic import Wire, count_reads

CLICKS = Load('clicks', 901, 32, features=(Feature(5.0, pooled=False),))
TAGS = Load('tags', 703, 32, features=(Feature(9.0, name='tags'), Feature(2.0)))
BATCH = 8 * 12


def place(loads, scheme, hosts=2, devices=4):
  kind = SCHEMES[scheme]
  tables = {
    load.name: load.plan(scheme, kind.place(turn, load, hosts, devices))
    for turn, load in enumerate(loads)
  }
  return ShardingPlan(tables, hosts, devices, pooling={'tags': 'sums'})


def count_plan(plan, loads, wire, batch=BATCH):
  return ordering.count_step(count_step(plan, loads, batch, wire), wire)


def count_piece(load, scheme, columns, mesh, examples, wire):
  reads = count_reads(load, scheme.spread, examples, mesh, wire)
  return ordering.count_piece(load, scheme, columns, mesh, reads, wire)


def check(plan, loads, exchange=Exchange()):
  """That every sort of the program is foreseen; returns how much it sorts."""
  program = table_steps.make_step(plan, loads, BATCH, exchange).compile()
  foreseen = count_plan(plan, loads, Wire(exchange, 'cpu'))
  assert foreseen == hlo.count_sorted(program)
  return foreseen


@pytest.mark.parametrize('scheme', SCHEMES)
def test_each_sort_of_a_program_is_foreseen(scheme):
  entries = check(place([CLICKS, TAGS], scheme), [CLICKS, TAGS])
  assert bool(entries) == (scheme != 'data_parallel')


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('optimizer', ['row_adagrad', 'sgd'])
def test_squares_of_cut_rows_are_sorted_as_well(kind, optimizer):
  load = dataclasses.replace(CLICKS, optimizer=optimizer)
  entries = check(place([load], 'column_wise'), [load], Exchange(kind))
  assert bool(entries) == (kind != 'gather')


def test_arrivals_are_merged_by_a_sort_but_on_a_cpu():
  plan = place([CLICKS], 'row_wise')
  found = [
    count_plan(plan, [CLICKS], Wire(Exchange(), platform))
    for platform in ('cpu', 'gpu')
  ]
  # 60 ids a device, of which equal ones are one, with room for twice as many.
  room = Exchange().room(60, 8)
  assert found == [60, 60 + 60 + 8 * room]


@pytest.mark.skipif(bool(slices.why_not()), reason='needs libtpu')
@pytest.mark.parametrize('scheme', ['row_wise', 'column_wise', 'data_parallel'])
def test_sorts_of_a_program_for_a_tpu_are_foreseen(scheme):
  loads, chips = [CLICKS, TAGS], slices.find_chips('v5e:2x4')
  plan = place(loads, scheme)
  step = table_steps.make_step(plan, loads, BATCH, devices=chips)
  foreseen = count_plan(plan, loads, Wire(Exchange(), 'tpu'))
  assert foreseen == hlo.count_sorted(step.compile('tpu'))


@pytest.mark.parametrize(
  'scheme', [s for s in SCHEMES if SCHEMES[s].spread is not None]
)
@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_pieces_add_up_to_a_plan_that_is_spread_evenly(scheme, platform):
  """Each of eight devices has one piece, or a part, of as many tables."""
  loads = [
    Load(f't{i}', 100_000, 32, features=(Feature(50.0, pooled=False),))
    for i in range(8)
  ]
  wire, machine = Wire(Exchange(), platform), hardware.find_topology('h100')
  machine = hardware.replace_numbers(machine, hosts=2, devices=4)
  plan, batch, kind = place(loads, scheme), 8 * 64, SCHEMES[scheme]
  added = 0.0
  for load in loads:
    table = plan.tables[load.name]
    entries = count_piece(load, kind, table.columns, machine, batch / 8, wire)
    pieces = range(table.pieces)
    added += entries * sum(len(plan.owners(load.name, p)) for p in pieces) / 8
  whole = count_plan(plan, loads, wire, batch)
  assert added == pytest.approx(whole, rel=0.1)


def test_a_cost_has_the_time_of_the_lists():
  slow = hardware.find_topology('cpu', ordering=1e-6)
  args = CLICKS, SCHEMES['row_wise'], 32
  entries = count_piece(*args, slow, 12, Wire(Exchange(), 'cpu'))
  cost = shard_cost(*args, slow, 96)
  free = shard_cost(*args, dataclasses.replace(slow, ordering=0.0), 96)
  assert entries == 60 and cost.ordering == pytest.approx(60e-6)
  assert cost.total - free.total == pytest.approx(60e-6)
