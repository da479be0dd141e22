"""Plans: their text, their faults, and that shards cover every table once."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan
from genrec_jax.embedding.scheme import Scheme
from genrec_jax.features import TableSpec

OUTSIDE = {'rows_of_hosts': Scheme(plan_lib.HOST, many_pieces=True)}


@st.composite
def plans(draw, max_rows=40):
  """Plans of a few tables, by any scheme, on any small group."""
  hosts = draw(st.integers(1, 3))
  devices = draw(st.integers(1, 4))
  tables = {}
  for number in range(draw(st.integers(1, 5))):
    name = draw(st.sampled_from([*plan_lib.SCHEMES, *OUTSIDE]))
    scheme = (plan_lib.SCHEMES | OUTSIDE)[name]
    first, count = 0, hosts
    if scheme.spread == plan_lib.ONE:
      count = hosts * devices
    if scheme.one_host:
      first, count = draw(st.integers(0, hosts - 1)) * devices, devices
    at = ()
    if scheme.at_names:
      most = 3 if scheme.many_pieces else 1
      places = st.integers(first, first + count - 1)
      at = tuple(draw(st.lists(places, min_size=1, max_size=most)))
    tables[f't{number}'] = TablePlan(
      rows=draw(st.integers(1, max_rows)),
      dim=len(at or (0,)) * draw(st.sampled_from([2, 4])),
      scheme=name,
      at=at,
      split=draw(st.sampled_from(plan_lib.SPLITS)),
      dtype=draw(st.sampled_from(['float32', 'bfloat16'])),
      optimizer=draw(st.sampled_from(['row_adagrad', 'row_sgd'])),
      outside=OUTSIDE.get(name),
    )
  pooling = st.dictionaries(
    st.sampled_from(['f', 'g']), st.sampled_from(plan_lib.POOLINGS)
  )
  replicas = draw(st.integers(1, 2))
  return ShardingPlan(tables, hosts, devices, replicas, draw(pooling))


@settings(deadline=None)
@given(plans())
def test_json_there_and_back(plan):
  assert plan_lib.from_json(plan.to_json()) == plan


def test_a_file_there_and_back(tmp_path):
  plan = ShardingPlan({'t': TablePlan(9, 4, 'row_wise')}, 2, 4, 2)
  plan.save(tmp_path / 'plan.json')
  assert plan_lib.load_plan(tmp_path / 'plan.json') == plan


@settings(deadline=None)
@given(plans())
def test_shards_cover_every_row_and_column_once(plan):
  for name, table in plan.tables.items():
    shards = plan.shards(name)
    assert all(0 <= s.device < plan.group_size for s in shards)
    if table.spread is None:
      assert [s.device for s in shards] == list(range(plan.group_size))
      assert {(s.rows, s.first_column, s.columns) for s in shards} == {
        (table.rows, 0, table.dim)
      }
      continue
    covered = np.zeros(table.dim, int)  # rows that each column has somewhere
    for shard in shards:
      end = shard.first_column + shard.columns
      covered[shard.first_column : end] += shard.rows
    np.testing.assert_array_equal(covered, table.rows)
    assert sum(s.rows * s.columns for s in shards) == table.rows * table.dim


@pytest.mark.parametrize(
  'rows, owners, block, mod',
  [
    (10, 4, [3, 3, 3, 1], [3, 3, 2, 2]),
    (5, 4, [2, 2, 1, 0], [2, 1, 1, 1]),
    (2, 3, [1, 1, 0], [1, 1, 0]),
  ],
)
def test_shares_as_published(rows, owners, block, mod):
  for split, want in (('block', block), ('mod', mod)):
    found = [
      plan_lib.count_real_rows(rows, owners, split, p) for p in range(owners)
    ]
    assert found == want
    assert max(found) <= plan_lib.rows_per_owner(rows, owners) == max(block)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(scheme='rows'), r"scheme is 'rows', must be one of \('data_para"),
    (dict(split='hash'), r"split is 'hash', must be one of \('mod', 'block'\)"),
    (dict(rows=0), '0 rows of width 8'),
    (dict(rows=10.0), 'rows is 10.0, must be whole numbers'),
    (dict(at=(0.5,)), r'at is \(0.5,\), must be whole numbers'),
    (dict(at=(True,)), r'at is \(True,\), must be whole numbers'),
    (dict(dim=-1), '10 rows of width -1'),
    (dict(scheme='row_wise', at=(1,)), 'row_wise takes no "at"'),
    (dict(scheme='data_parallel', at=(0,)), 'data_parallel takes no "at"'),
    (dict(at=()), 'table_wise needs "at", the device of each piece'),
    (
      dict(scheme='grid', at=()),
      'grid needs "at", the host of each piece',
    ),
    (dict(at=(8,)), r'at=\[8\], but the devices are 0 .. 7'),
    (dict(at=(-1,)), r'at=\[-1\], but the devices are 0 .. 7'),
    (
      dict(scheme='table_row_wise', at=(2,)),
      r'at=\[2\], but the hosts are 0 .. 1',
    ),
    (dict(at=(0, 1)), r'table_wise has one piece, at=\[0, 1\] names several'),
    (
      dict(scheme='column_wise', at=(0, 1, 2)),
      '8 columns cannot be cut into 3 equal pieces',
    ),
    (
      dict(scheme='table_column_wise', at=(3, 4)),
      r'its pieces must lie on one host, at=\[3, 4\] is on \[0, 1\]',
    ),
  ],
)
def test_faults_name_the_table_and_what_is_wrong(fields, message):
  good = TablePlan(10, 8, 'table_wise', (3,))
  ShardingPlan({'good': good}, 2, 4)
  with pytest.raises(PlanError, match=f"^plan of table 'bad': {message}"):
    ShardingPlan(
      {'good': good, 'bad': dataclasses.replace(good, **fields)}, 2, 4
    )


@pytest.mark.parametrize('field', ['hosts', 'devices', 'replicas'])
def test_a_plan_for_nobody(field):
  with pytest.raises(PlanError, match=f'a plan for 0 {field}'):
    ShardingPlan({}, **{field: 0})


TABLE = dict(rows=9, dim=4, scheme='row_wise')


@pytest.mark.parametrize(
  'text, message',
  [
    ('{', 'a plan must be JSON: '),
    ('[]', 'a plan must hold "version": 2, or one of [1, 2]'),
    ('{"tables": {}}', 'a plan must hold "version": 2'),
    ('{"version": 3}', 'a plan must hold "version": 2'),
    (
      dict(version=2, table={}),
      "a plan of version 2 holds no ['table']; known are ['devices', 'extra'",
    ),
    (dict(pooling={'f': 'sums'}), "a plan of version 1 holds no ['pooling']"),
    (
      dict(version=2, pooling={'f': 'sum'}),
      "pooling of feature 'f' is 'sum', must be one of ('rows', 'sums')",
    ),
    (
      dict(version=2, extra={'tiers': {}}),
      'the plan has sections [\'tiers\'] in "extra", which this version does',
    ),
    (
      dict(version=2, extra={'towers': {'features': ['a']}}),
      'the section "towers" of the plan: it must hold "features", a list of',
    ),
    (
      dict(tables={'t': TABLE | {'row': 1}}),
      "plan of table 't': unknown ['row']; known are ['at', 'dim', 'dtype', ",
    ),
    (
      dict(tables={'t': {'dim': 4}}),
      "plan of table 't': ['rows', 'scheme'] is missing",
    ),
    (dict(tables={'t': TABLE}, hosts=0), 'a plan for 0 hosts'),
  ],
)
def test_text_that_is_no_plan(text, message, tmp_path):
  if isinstance(text, dict):
    text = json.dumps({'version': 1} | text)
  with pytest.raises(PlanError, match='^' + re.escape(message)):
    plan_lib.from_json(text)
  path = tmp_path / 'plan.json'
  path.write_text(text)
  with pytest.raises(PlanError, match=re.escape(f'{path}: {message}')):
    plan_lib.load_plan(path)


@pytest.mark.parametrize(
  'text', ['{"version": []}', '{"version": 2, "tables": [1]}', '[' * 10**5]
)
def test_a_file_of_another_kind_is_named(text, tmp_path):
  path = tmp_path / 'plan.json'
  path.write_text(text)
  with pytest.raises(PlanError, match=f'^{re.escape(str(path))}: '):
    plan_lib.load_plan(path)


# Written by version 1, for two tables on two hosts.
VERSION_1 = '''{
  "version": 1,
  "replicas": 1,
  "hosts": 2,
  "devices": 4,
  "tables": {
    "items": {
      "rows": 3953,
      "dim": 50,
      "scheme": "row_wise",
      "at": [],
      "split": "mod",
      "dtype": "float32",
      "optimizer": "row_adagrad"
    },
    "shops": {
      "rows": 900,
      "dim": 50,
      "scheme": "column_wise",
      "at": [
        5,
        1
      ],
      "split": "block",
      "dtype": "bfloat16",
      "optimizer": "row_sgd"
    }
  }
}'''


def test_a_plan_of_version_1_is_the_same_plan_made_now():
  items = TablePlan(3953, 50, 'row_wise')
  shops = TablePlan(
    900, 50, 'column_wise', (5, 1), 'block', 'bfloat16', 'row_sgd'
  )
  now = ShardingPlan({'items': items, 'shops': shops}, hosts=2, devices=4)
  then = plan_lib.from_json(VERSION_1)
  assert then == now and (then.pooling, then.extra) == ({}, {})
  assert plan_lib.from_json(then.to_json()) == then
  # Nothing but the number has changed where there is nothing new to say.
  assert then.to_json() == VERSION_1.replace('"version": 1', '"version": 2')


def test_version_1_overlooks_what_it_never_knew():
  text = json.dumps({'version': 1, 'tables': {'t': TABLE}, 'note': 'by hand'})
  assert plan_lib.from_json(text).tables.keys() == {'t'}


def test_rows_lie_where_they_lie_however_they_travel():
  plan = ShardingPlan({'t': TablePlan(**TABLE)}, devices=4)
  pooled = dataclasses.replace(plan, pooling={'f': 'sums'})
  assert pooled != plan and pooled.same_placement(plan)
  assert plan.same_placement(pooled) and not plan.same_placement(None)
  assert not plan.same_placement(dataclasses.replace(plan, replicas=2))
  other = TablePlan(9, 4, 'row_wise', split='block')
  assert not plan.same_placement(dataclasses.replace(plan, tables={'t': other}))


def test_a_section_that_is_known_comes_back(monkeypatch):
  monkeypatch.setattr(plan_lib, 'EXTRA_SECTIONS', frozenset({'depth'}))
  plan = ShardingPlan({}, extra={'depth': {'all': 2}})
  assert plan_lib.from_json(plan.to_json()) == plan
  assert not plan.same_placement(ShardingPlan({}))


def test_a_short_text_has_defaults():
  text = json.dumps({'version': 1, 'tables': {'t': TABLE}})
  assert plan_lib.from_json(text) == ShardingPlan({'t': TablePlan(**TABLE)})


SPECS = {
  'a': TableSpec('a', 41, 12, update='row_sgd'),
  'b': TableSpec('b', 10, 7, update='row_sgd', dtype='bfloat16'),
}


@pytest.mark.parametrize('scheme', plan_lib.SCHEMES)
def test_one_scheme_for_all_tables(scheme):
  plan = single_scheme.plan_with_scheme(SPECS, scheme, hosts=2, devices=4)
  single_scheme.require_same_tables(plan, SPECS)
  a, b = plan.tables['a'], plan.tables['b']
  assert a.scheme == b.scheme == scheme
  at = {
    'table_wise': ((0,), (1,)),
    # 12 columns in 6 pieces at most, 7 in 7 if there are so many devices.
    'column_wise': (tuple(range(6)), tuple(range(7))),
    'table_column_wise': ((0, 1, 2, 3), (4,)),
    'table_row_wise': ((0,), (1,)),
    'grid': ((0, 1), (0,)),
  }.get(scheme, ((), ()))
  assert (a.at, b.at) == at


def test_what_no_scheme_and_no_plan_of_these_tables_is():
  with pytest.raises(PlanError, match="scheme is 'rows', must be one of"):
    single_scheme.plan_with_scheme(SPECS, 'rows')
  plan = single_scheme.plan_with_scheme(SPECS, 'row_wise', devices=2)
  with pytest.raises(PlanError, match=r"of the tables \['a', 'b'\], the mod"):
    single_scheme.require_same_tables(plan, {'a': SPECS['a']})
  wider = SPECS | {'a': dataclasses.replace(SPECS['a'], dim=16)}
  with pytest.raises(PlanError, match="'a' is planned as .* = .41, 12, "):
    single_scheme.require_same_tables(plan, wider)
