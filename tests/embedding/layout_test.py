"""Every row has an address, every address at most one row."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.embedding import layout as layout_lib
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan
from tests.embedding.plan_test import plans

MOST = 256  # above all ids and rows here: one shape compiles once


def everything(stack):
  """{(table, first column, id): address} of a stack."""
  found = {}
  for piece in stack.pieces:
    addresses = stack.index(piece, np.arange(MOST))
    assert np.all(addresses[piece.rows :] == stack.size)
    device, row = map(np.asarray, stack.locate(piece, jnp.arange(MOST)))
    np.testing.assert_array_equal(device * stack.depth + row, addresses)
    for number, address in enumerate(addresses[: piece.rows]):
      found[piece.table, piece.first_column, number] = int(address)
  return found


def named(stack):
  """{(table, first column, id): address} by what lies in the rows."""
  found = {}
  rows = jnp.arange(MOST)
  for device in range(stack.devices):
    numbers, ids = map(np.asarray, stack.identify(device, rows))
    for row, (number, one) in enumerate(zip(numbers, ids, strict=True)):
      if number >= 0:
        piece = stack.pieces[number]
        key = piece.table, piece.first_column, int(one)
        assert key not in found
        found[key] = device * stack.depth + row
  return found


def check(plan):
  layout = lay_out(plan)
  cells = 0
  for name, stack in layout.stacks.items():
    assert stack.name == name and stack.depth < MOST
    addresses = everything(stack)
    assert len(set(addresses.values())) == len(addresses)
    assert named(stack) == addresses
    rows = {a % stack.depth for a in addresses.values()}
    assert stack.depth - 1 not in rows  # the spare one
    assert max(addresses.values()) < stack.size == (stack.devices * stack.depth)
    cells += len(addresses) * stack.columns
    for piece in stack.pieces:
      table = plan.tables[piece.table]
      assert (stack.columns, stack.dtype) == (table.columns, table.dtype)
      assert layout.optimizers[name] == table.optimizer
      beside = jnp.asarray([-1, -(2**31), 2**31 - 1], jnp.int32)
      outside = np.asarray(stack.locate(piece, beside).device)
      np.testing.assert_array_equal(outside, stack.devices)
      owners = plan.owners(piece.table, piece.first_column // piece.columns)
      first = [addresses[piece.table, piece.first_column, i] for i in
               range(piece.rows)]  # fmt: skip
      assert {a // stack.depth for a in first} <= set(owners)
  whole = sum(
    t.rows * t.dim for t in plan.tables.values() if t.spread is not None
  )
  assert cells == whole
  return layout


@settings(deadline=None, max_examples=15)
@given(plans(max_rows=20))
def test_addresses_and_what_lies_there(plan):
  check(plan)


@pytest.mark.parametrize('split', plan_lib.SPLITS)
@pytest.mark.parametrize('scheme', list(plan_lib.SCHEMES)[1:])
def test_every_scheme(scheme, split):
  at = {'row_wise': (), 'table_wise': (5,), 'table_row_wise': (1,)}.get(scheme)
  at = ((4, 6) if 'column' in scheme else (1, 0)) if at is None else at
  tables = {
    'a': TablePlan(41, 8, scheme, at, split),
    'b': TablePlan(10, 8, scheme, at, split),
  }
  layout = check(ShardingPlan(tables, 2, 4))
  assert len(layout.stacks) == 1


def test_whole_tables_are_no_stack():
  plan = ShardingPlan({'t': TablePlan(9, 4, 'data_parallel')}, 2, 4)
  layout = lay_out(plan)
  assert not layout.stacks and not layout.pieces
  assert {n: s.shape for n, s in layout.shapes().items()} == {'t': (9, 4)}
  assert layout.optimizers == {'t': 'row_adagrad'}


def test_what_differs_in_kind_has_a_stack_of_its_own():
  table = dict(scheme='row_wise')
  plan = ShardingPlan(
    {
      'a': TablePlan(9, 4, **table),
      'b': TablePlan(9, 8, **table),
      'c': TablePlan(9, 4, dtype='bfloat16', **table),
      'd': TablePlan(9, 4, optimizer='row_sgd', **table),
      'e': TablePlan(9, 8, 'column_wise', (0, 1)),  # pieces of width 4
    },
    1,
    2,
  )
  layout = check(plan)
  assert {name: {p.table for p in s.pieces} for name, s in
          layout.stacks.items()} == {
    'float32_4_row_adagrad': {'a', 'e'},
    'float32_8_row_adagrad': {'b'},
    'bfloat16_4_row_adagrad': {'c'},
    'float32_4_row_sgd': {'d'},
  }  # fmt: skip
  assert [p.first_column for p in layout.pieces['e']] == [0, 4]


def test_rows_spread_widely_are_placed_first():
  """So that the owners of a piece are filled equally, without holes."""
  plan = ShardingPlan(
    {
      'one': TablePlan(30, 4, 'table_wise', (3,)),
      'host': TablePlan(20, 4, 'table_row_wise', (1,)),
      'all': TablePlan(16, 4, 'row_wise'),
    },
    2,
    2,
  )
  (stack,) = check(plan).stacks.values()
  assert [p.table for p in stack.pieces] == ['all', 'host', 'one']
  assert stack.depth == 16 // 4 + 20 // 2 + 30 + 1


@given(st.integers(13, 60))
@settings(deadline=None, max_examples=8)
def test_an_array_that_is_too_deep_to_count_is_followed_by_another(most):
  tables = {
    f't{i}': TablePlan(3 + 2 * i, 4, 'table_wise', (i % 2,)) for i in range(6)
  } | {'all': TablePlan(8, 4, 'row_wise')}
  plan = ShardingPlan(tables, 1, 2)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(layout_lib, 'MOST_ROWS', most)
    layout = check(plan)
  assert all(s.depth - 1 <= most for s in layout.stacks.values())
  assert {p.table for s in layout.stacks.values() for p in s.pieces} == set(
    tables
  )
  if most < 31:  # rows on the second device
    assert len(layout.stacks) > 1
    assert 'float32_4_row_adagrad_2' in layout.stacks


def test_a_table_too_large_to_count(monkeypatch):
  monkeypatch.setattr(layout_lib, 'MOST_ROWS', 50)
  plan = ShardingPlan({'t': TablePlan(60, 4, 'table_wise', (0,))}, 1, 2)
  with pytest.raises(
    PlanError, match="'t' puts 60 rows on a device, which can count 50"
  ):
    lay_out(plan)
  check(ShardingPlan({'t': TablePlan(60, 4, 'row_wise')}, 1, 2))
