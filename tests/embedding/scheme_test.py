"""Schemes are what they can do: one from outside works, no name is compared."""

import ast
import json
import pathlib

import pytest

import genrec_jax
from genrec_jax import planner
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan
from genrec_jax.embedding.scheme import ALL, HOST, ONE, SCHEMES, Scheme
from genrec_jax.features import TableSpec
from genrec_jax.planner import (
  Constraint,
  ConstraintError,
  Feature,
  Load,
  hardware,
)
from genrec_jax.planner.options import enumerate_options
from genrec_jax.planner.propose import PROPOSERS
from tests.embedding.sharded_cases import run_sharded, run_whole
from tests.embedding.sharded_tables_test import SEQUENCE, compare, spec


def on_the_last_devices(turn, spec, hosts, devices):
  """Halves on the last two devices of the group, in turn."""
  last = hosts * devices - 1
  halves = 2 if spec.dim % 2 == 0 and last > 0 else 1
  return [last - (turn + half) % 2 for half in range(halves)]


LAST = Scheme(ONE, many_pieces=True, places=on_the_last_devices)
SPECS = {name: TableSpec(name, 41, 8, update='row_sgd') for name in 'ab'}


@pytest.mark.parametrize(
  'options',
  [
    SEQUENCE,
    dict(mode='mean', weighted=True, reads=('bags',)),
    dict(mode='sum', weighted=False, reads=('rows', 'bags')),
  ],
)
def test_a_scheme_from_outside_reads_and_writes_what_one_device_would(
  options, key
):
  whole = run_whole(spec(), key, steps=1, **options)
  sharded = run_sharded(
    spec(), key, 'last_devices', outside=LAST, exchange=Exchange(), steps=1,
    **options,
  )  # fmt: skip
  exact = ('rows',) if options is SEQUENCE else ()
  compare(whole, sharded, exact=exact)


def make_plan():
  return single_scheme.plan_with_scheme(
    SPECS, 'last_devices', hosts=2, devices=4, schemes={'last_devices': LAST}
  )


def test_one_scheme_for_all_tables_asks_it_for_places():
  plan = make_plan()
  assert {n: t.at for n, t in plan.tables.items()} == {'a': (7, 6), 'b': (6, 7)}
  pieces = lay_out(plan).pieces
  assert [p.owners for p in pieces['b']] == [(6,), (7,)]
  single_scheme.require_same_tables(plan, SPECS)


def test_its_plan_is_read_with_it_and_without_it(tmp_path):
  plan = make_plan()
  plan.save(tmp_path / 'plan.json')
  for outside in (None, {'last_devices': LAST}):
    read = plan_lib.load_plan(tmp_path / 'plan.json', outside)
    assert read == plan and read.same_placement(plan)
    assert read.shards('a') == plan.shards('a')
  described = json.loads(plan.to_json())['schemes']
  assert described == {
    'last_devices': dict(spread='one', many_pieces=True, one_host=False)
  }


def test_a_plan_by_hand_needs_it_handed_in():
  table = dict(rows=9, dim=4, scheme='last_devices', at=[1])
  text = json.dumps(dict(version=2, devices=2, tables={'t': table}))
  with pytest.raises(PlanError, match=r"is 'last_devices', .* schemes={...}"):
    plan_lib.from_json(text)
  plan = plan_lib.from_json(text, {'last_devices': LAST})
  assert plan.tables['t'].outside is LAST


def test_what_it_can_do_must_not_have_changed():
  text = make_plan().to_json()
  with pytest.raises(PlanError, match="handed in now is {'spread': 'host'"):
    plan_lib.from_json(text, {'last_devices': Scheme(HOST)})
  spoilt = text.replace('"many_pieces": true', '"many": true')
  with pytest.raises(PlanError, match="scheme 'last_devices' of the plan:"):
    plan_lib.from_json(spoilt)
  tables = {
    'a': TablePlan(9, 4, 'mine', (0,), outside=Scheme(ONE)),
    'b': TablePlan(9, 4, 'mine', (0,), outside=Scheme(HOST)),
  }
  with pytest.raises(PlanError, match="'b': another table has another scheme"):
    ShardingPlan(tables)


def test_a_name_that_exists_is_refused():
  taken = {'row_wise': Scheme(ALL)}
  with pytest.raises(PlanError, match=r"schemes=\['row_wise'\] are names of"):
    single_scheme.plan_with_scheme(SPECS, 'row_wise', schemes=taken)
  with pytest.raises(PlanError, match=r"schemes=\['row_wise'\] are names of"):
    plan_lib.from_json('{"version": 2}', taken)
  table = TablePlan(9, 4, 'row_wise', outside=Scheme(ALL))
  with pytest.raises(PlanError, match="'row_wise' is built in, a scheme from"):
    ShardingPlan({'t': table})


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(spread='two'), "spread is 'two', must be one of"),
    (dict(spread=ALL, many_pieces=True), 'many_pieces needs spread='),
    (dict(spread=None, many_pieces=True), 'many_pieces needs spread='),
    (dict(spread=ONE, one_host=True), 'one_host is about pieces on single'),
    (
      dict(spread=HOST, many_pieces=True, one_host=True),
      'one_host is about pieces on single',
    ),
  ],
)
def test_what_no_scheme_can_be(fields, message):
  with pytest.raises(PlanError, match=message):
    Scheme(**fields)


def test_places_that_are_none_are_told():
  nowhere = Scheme(ONE, places=lambda turn, spec, hosts, devices: [99])
  with pytest.raises(PlanError, match="'a': at=.99., but the devices are 0 .."):
    single_scheme.plan_with_scheme(
      SPECS, 'nowhere', devices=2, schemes={'nowhere': nowhere}
    )


LOADS = [Load(name, 1_000_000, 64, features=(Feature(20.0),)) for name in 'abc']
TWO_HOSTS = hardware.find_topology('h100', hosts=2, devices=4)


def test_the_planner_keeps_to_its_places(tmp_path):
  outside = {'last_devices': LAST}
  only = {name: Constraint(schemes=('last_devices',)) for name in 'abc'}
  plan, report = planner.make_plan(
    LOADS, TWO_HOSTS, batch=8192, constraints=only, schemes=outside
  )
  assert {n: t.at for n, t in plan.tables.items()} == {
    'a': (7, 6), 'b': (6, 7), 'c': (7, 6)
  }  # fmt: skip
  compute = report.times[:, :2]  # what travels is padded, and so the same
  assert (compute[:6] == 0).all() and (compute[6:] > 0).any()
  # Each piece costs what one of column_wise does.
  columns = {
    name: load.plan('column_wise', plan.tables[name].at)
    for name, load in zip('abc', LOADS, strict=True)
  }
  twin = ShardingPlan(columns, hosts=2, devices=4)
  again = planner.evaluate_plan(twin, LOADS, TWO_HOSTS, 8192)
  assert (again.times == report.times).all()
  assert again.allocated == report.allocated
  plan.save(tmp_path / 'plan.json')
  text = planner.describe(  # where nobody hands it in
    LOADS, 'h100', batch=8192, plan=str(tmp_path / 'plan.json')
  )
  assert 'schemes: 3 last_devices' in text and 'last_devices at 7, 6' in text


def test_the_planner_considers_it_among_others():
  outside = {'last_devices': LAST, 'hosts': Scheme(HOST, many_pieces=True)}
  items = enumerate_options(LOADS, TWO_HOSTS, 8192, schemes=outside)
  assert {(o.scheme, o.pieces) for o in items[0]} >= {
    ('table_wise', 1), ('last_devices', 2), ('hosts', 2)
  }  # fmt: skip
  uniform = PROPOSERS['uniform'](items, TWO_HOSTS, 10**12)
  chosen = [{items[i][o].scheme for i, o in enumerate(p)} for p in uniform]
  assert chosen[-2:] == [{'last_devices'}, {'hosts'}]
  both = ('table_row_wise', 'hosts')
  plan, _ = planner.make_plan(
    LOADS, TWO_HOSTS, batch=8192, schemes=outside,
    constraints={name: Constraint(schemes=both) for name in 'abc'},
  )  # fmt: skip
  assert {t.scheme for t in plan.tables.values()} <= set(both)


def test_the_planner_refuses_places_that_are_none():
  nowhere = {'nowhere': Scheme(ONE, places=lambda *_: [99])}
  with pytest.raises(
    ConstraintError, match="scheme 'nowhere' in plan of table 'a': at=.99., but"
  ):
    planner.make_plan(LOADS, TWO_HOSTS, batch=8192, schemes=nowhere)


# A proposer of the planner is called so, too.
ALSO_A_PROPOSER = {('search.py', 'grid'), ('propose.py', 'grid')}


def test_no_name_of_a_scheme_decides_anything():
  """Names stand in one dict; elsewhere they are defaults and arguments."""
  root = pathlib.Path(genrec_jax.__file__).parent
  wrong = []
  for path in sorted(root.rglob('*.py')):
    if path.name == 'scheme.py':
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      wrong += [
        f'{path.relative_to(root)}:{node.lineno}: {name}'
        for name in names_that_decide(node)
        if (path.name, name) not in ALSO_A_PROPOSER
      ]
  assert not wrong


def names_that_decide(node) -> list[str]:
  """Names of schemes in comparisons, keys, cases and collections."""
  if isinstance(node, ast.Compare):
    parts = [node.left, *node.comparators]
  elif isinstance(node, ast.Dict):
    parts = node.keys
  elif isinstance(node, ast.Tuple | ast.List | ast.Set):
    parts = node.elts
  elif isinstance(node, ast.MatchValue):
    parts = [node.value]
  elif isinstance(node, ast.Subscript):
    parts = [node.slice]
  else:
    return []
  constants = [p.value for p in parts if isinstance(p, ast.Constant)]
  return [c for c in constants if isinstance(c, str) and c in SCHEMES]


@pytest.mark.parametrize(
  'line',
  [
    "x = scheme == 'row_wise'",
    "x = scheme in ('grid', 'row_wise')",
    "x = {'row_wise': 1}.get(scheme)",
    "x = SCHEMES['row_wise']",
    "match scheme:\n  case 'row_wise':\n    pass",
  ],
)
def test_a_name_that_decides_is_seen(line):
  seen = [n for node in ast.walk(ast.parse(line))
          for n in names_that_decide(node)]  # fmt: skip
  assert 'row_wise' in seen
