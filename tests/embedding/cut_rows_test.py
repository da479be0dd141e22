"""Rows cut into columns, whose optimizer looks at whole rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import table_steps
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import Addresses, lay_out
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.row_routes import LAST, make_keys
from genrec_jax.planner import Feature, Load

DEVICES, EXAMPLES = 8, 16
READ = Feature(8.0, pooled=False)


def plan_of(places: dict, hosts: int = 1, **schemes):
  """Tables of 400 rows, `column_wise` with so many pieces, at such places."""
  loads = [
    Load(name, 400, 32 * len(at), features=(READ,))
    for name, at in places.items()
  ]
  tables = {
    load.name: load.plan(
      schemes.get(load.name, 'column_wise'), places[load.name]
    )
    for load in loads
  }
  return loads, ShardingPlan(tables, hosts, DEVICES // hosts)


def count_readers(step, values, name) -> np.ndarray:
  """How many devices read each row."""
  ids = np.asarray(values[f'{name}/0'][0]).reshape(DEVICES, -1)
  readers = np.zeros(400)
  for own in ids:
    readers[np.unique(own)] += 1
  return readers


@pytest.mark.parametrize(
  'kind, capacity',
  [('all_to_all', 0.5), ('all_to_all', 2.0), ('ragged', 0.5), ('gather', 2.0)],
)
def test_pieces_of_a_row_move_in_the_same_round(kind, capacity):
  """Their owners are unequally full: of one, rounds would be other ranges."""
  loads, plan = plan_of({'y': (0,), 'x': (0, 1)}, y='table_wise')
  step = table_steps.make_step(
    plan, loads, EXAMPLES * DEVICES, Exchange(kind, capacity=capacity)
  )
  arrays, slots = step.init_state()
  before, of_slots = jax.tree.map(np.asarray, (arrays, slots))
  values = step.draw_values(0)
  arrays, slots, _ = step.compile()(arrays, slots, values, np.int32(0))
  (name,) = arrays
  stack, pieces = step.tables.layout.stacks[name], step.tables.layout.pieces
  # Rows of 1 that each reader pulls by .5 * row + 1.
  assert (before[name][stack.index(pieces['x'][0], np.arange(400))] == 1).all()
  gradient = 1.5 * count_readers(step, values, 'x')
  squares, were = (
    np.asarray(*jax.tree.leaves(x[name])) for x in (slots, of_slots)
  )
  for piece in pieces['x']:
    at = stack.index(piece, np.arange(400))
    np.testing.assert_allclose(squares[at], were[at] + gradient**2, rtol=1e-5)
    np.testing.assert_allclose(
      np.asarray(arrays[name])[at, 0],
      1 - 0.1 * gradient / np.sqrt(squares[at]),
      rtol=1e-5,
    )


def test_the_first_piece_is_found_from_each():
  _, plan = plan_of({'a': (3, 0), 'b': (1, 3), 'c': (5, 5)}, hosts=2)
  layout = lay_out(plan)
  (stack,) = layout.stacks.values()
  ids = np.arange(400)
  for pieces in layout.pieces.values():
    first = stack.locate(pieces[0], ids)
    for piece in pieces:
      device, row = stack.locate(piece, ids)
      found = stack.find_first(int(device[0]), row)
      np.testing.assert_array_equal(found.device, first.device)
      np.testing.assert_array_equal(found.row, first.row)
  nothing = stack.find_first(0, np.array([stack.depth - 1, stack.depth]))
  assert nothing.device.tolist() == [stack.devices] * 2


def test_rows_alike_are_counted():
  """Pieces of one row, and of rows that begin on several devices."""
  for places, most in (
    ({'a': (0,)}, 1),
    ({'a': (5, 5)}, 2),
    ({'a': (0, 1)}, 2),  # on 1: a row of its own, and one that begins on 0
    ({'a': (0, 3), 'b': (0, 3)}, 2),  # behind each other there, and here
    ({'a': (0, 3), 'b': (1, 3)}, 3),
    ({'a': (0, 3), 'b': (1, 3), 'c': (2, 3), 'd': (4, 3)}, 5),
  ):
    (stack,) = lay_out(plan_of(places)[1]).stacks.values()
    assert stack.most_alike == most, places


def test_every_row_has_a_key_of_its_own():
  some = jnp.arange(100_000, dtype=jnp.int32)
  rows = jnp.concatenate([some, LAST - 1 - some])
  keys = np.asarray(make_keys(Addresses(jnp.zeros_like(rows), rows)))
  assert len(np.unique(keys)) == len(rows)
  assert keys.min() >= 0
  # Spread evenly: each tenth of the keys has about a tenth of the rows.
  tenths = np.histogram(keys, 10, (0, LAST))[0] / len(rows)
  assert np.abs(tenths - 0.1).max() < 0.01
