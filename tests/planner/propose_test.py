"""Options under constraints, and the proposers."""

import itertools

import pytest

from genrec_jax.planner import (
  Constraint,
  ConstraintError,
  Feature,
  Load,
  hardware,
)
from genrec_jax.planner import options as options_lib
from genrec_jax.planner.cost import Cost
from genrec_jax.planner.options import Option, enumerate_options
from genrec_jax.planner.propose import MOST_GRID, PROPOSERS

NODE = hardware.find_topology('h100')
CLUSTER = hardware.find_topology('h100', hosts=4)
BATCH = 4096


def table(name='t', rows=10_000, dim=128, **more):
  return Load(name, rows, dim, features=(Feature(5.0),), **more)


def kinds(load, topology, **constraint):
  (options,) = enumerate_options(
    [load], topology, BATCH, {load.name: Constraint(**constraint)}
  )
  return {(o.scheme, o.pieces) for o in options}


def test_what_is_considered_on_a_node():
  assert kinds(table(), NODE) == {
    ('table_wise', 1),
    ('column_wise', 2),
    ('column_wise', 4),
    ('row_wise', 1),
    ('data_parallel', 1),
  }


def test_what_is_considered_on_several_hosts():
  found = kinds(table(), CLUSTER)
  assert ('table_row_wise', 1) in found and ('table_column_wise', 4) in found
  assert not any(scheme == 'grid' for scheme, _ in found)
  assert kinds(table(), CLUSTER, schemes=('grid',)) == {
    ('grid', 2),
    ('grid', 4),
  }


def test_what_is_considered_on_one_device():
  assert kinds(table(), hardware.find_topology('h100', devices=1)) == {
    ('table_wise', 1)
  }


def test_pieces_are_as_wide_as_asked():
  assert ('column_wise', 8) in kinds(table(), NODE, min_columns=16)
  assert ('column_wise', 2) not in kinds(table(dim=48), NODE)


def test_tables_that_optax_updates_are_whole_everywhere():
  assert kinds(table(optimizer='dense'), NODE) == {('data_parallel', 1)}


def test_rows_beyond_what_a_device_can_count_are_spread(monkeypatch):
  monkeypatch.setattr(options_lib, 'MOST_ROWS', 16_000_000)
  wide = hardware.find_topology('zionex')
  found = kinds(table(rows=20_000_000, dim=16), wide)
  assert found == {
    ('row_wise', 1), ('table_row_wise', 1), ('data_parallel', 1)
  }  # fmt: skip
  with pytest.raises(ConstraintError, match='20,000,000 rows on a device'):
    kinds(table(rows=20_000_000), wide, schemes=('table_wise',))


def test_tables_that_stay_together_are_one_item():
  loads = [table('a'), table('b', dim=64), table('c', dim=48)]
  together = {n: Constraint(together='group') for n in 'ab'}
  items = enumerate_options(loads, NODE, BATCH, together)
  assert [o[0].names for o in items] == [('a', 'b'), ('c',)]
  alone = enumerate_options(loads, NODE, BATCH)
  assert items[0][0].time == pytest.approx(alone[0][0].time + alone[1][0].time)
  assert items[0][0].bytes == alone[0][0].bytes + alone[1][0].bytes
  # 64 columns make no four pieces of 32.
  assert ('column_wise', 4) not in {(o.scheme, o.pieces) for o in items[0]}


@pytest.mark.parametrize(
  'constraint, message',
  [
    (dict(schemes=('rowwise',)), r"\['rowwise'\] are not schemes"),
    (dict(at=(1,)), r'at=\[1\] needs one scheme'),
    (dict(schemes=('table_wise',), at=(9,)), "table 't'.*devices are 0 .. 7"),
    (dict(schemes=('column_wise',), at=(1, 2, 3)), 'cannot be cut into 3'),
    (dict(schemes=('column_wise',), min_columns=128), 'lower min_columns'),
    (dict(split='blocks'), "split is 'blocks'"),
  ],
)
def test_constraints_that_cannot_be_kept(constraint, message):
  with pytest.raises(ConstraintError, match=message):
    kinds(table(), NODE, **constraint)


def test_constraints_name_tables():
  with pytest.raises(ConstraintError, match=r"name \['u'\]"):
    enumerate_options([table()], NODE, BATCH, {'u': Constraint()})
  with pytest.raises(ConstraintError, match='several tables called'):
    enumerate_options([table(), table()], NODE, BATCH)
  apart = {
    'a': Constraint(('table_wise',), (1,), 'x'),
    'b': Constraint(('table_wise',), (2,), 'x'),
  }
  with pytest.raises(ConstraintError, match='must stay together'):
    enumerate_options([table('a'), table('b')], NODE, BATCH, apart)


def proposals(name, items, budget=10**12):
  return list(PROPOSERS[name](items, NODE, budget))


def some(times, sizes, shards=1):
  return [
    Option(('t',), 'table_wise', 1, Cost(float(t)), b, devices_per_piece=shards)
    for t, b in zip(times, sizes, strict=True)
  ]


def test_greedy_advances_the_largest():
  items = [some((2, 1, 3), (5, 10, 1)), some((1, 4), (7, 2))]
  # Best first: 10 and 7 bytes. Then table 0 (10 -> 5), table 1 (7 -> 2), ...
  assert proposals('greedy_max', items) == [(1, 0), (0, 0), (0, 1), (2, 1)]


def test_greedy_by_sum_counts_all_devices():
  wide = Option(('t',), 'row_wise', 1, Cost(1.0), 1, devices_per_piece=8)
  narrow = Option(('t',), 'table_wise', 1, Cost(3.0), 1)
  items = [[wide, narrow]]
  assert proposals('greedy_max', items)[0] == (0,)
  assert proposals('greedy_sum', items)[0] == (1,)


def test_uniform_takes_one_scheme_for_all():
  loads = [table('a'), table('b', dim=256)]
  items = enumerate_options(loads, NODE, BATCH)
  found = [
    {items[i][o].scheme for i, o in enumerate(p)}
    for p in proposals('uniform', items)
  ]
  assert found == [
    {'data_parallel'}, {'table_wise'}, {'column_wise'}, {'row_wise'}
  ]  # fmt: skip


def test_grid_is_everything_or_nothing():
  items = [some((1, 2), (1, 1))] * 3
  assert proposals('grid', items) == list(itertools.product((0, 1), repeat=3))
  assert proposals('grid', [some((1, 2), (1, 1))] * 14) == []
  assert 2**14 > MOST_GRID >= 2**13


def test_dynamic_finds_the_least_time_for_the_bytes():
  # 800 bins of 10 bytes: sizes are multiples of a bin.
  items = [
    some((9, 5, 2), (100, 300, 800)),
    some((8, 6, 1), (100, 200, 900)),
    some((7, 3), (200, 700)),
  ]
  for cap in (600, 1200, 2000):
    best = min(
      sum(o.time for o in chosen)
      for chosen in itertools.product(*items)
      if sum(o.bytes for o in chosen) <= cap
    )
    found = [
      [items[i][o] for i, o in enumerate(p)]
      for p in proposals('dynamic', items, 1000)
    ]
    fitting = [c for c in found if sum(o.bytes for o in c) <= cap]
    assert min(sum(o.time for o in c) for c in fitting) == best


def test_frugal_proposals_have_few_bytes_in_smaller_and_smaller_pieces():
  whole = Option(('t',), 'table_wise', 1, Cost(1.0), 800)
  halves = Option(('t',), 'column_wise', 2, Cost(1.0), 410)
  spread = Option(('t',), 'row_wise', 1, Cost(1.0), 200, devices_per_piece=8)
  items = [[whole, halves, spread]]
  assert proposals('frugal', items, 1000)[:4] == [(0,), (1,), (2,), (2,)]
