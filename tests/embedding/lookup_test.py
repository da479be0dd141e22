"""Rows of a table: initialisation, and the view of touched rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import lookup
from genrec_jax.embedding.init import init_table
from genrec_jax.features import TableSpec

ROWS, WIDTH = 20, 3
IDS = [[4, 4, 19], [[0, 7], [4, 0]]]  # of any shape, with repeats
DISTINCT = [0, 4, 7, 19]


@pytest.fixture
def table(key):
  return jax.random.normal(key, (ROWS, WIDTH))


@pytest.fixture
def ids():
  return lookup.distinct([jnp.int32(x) for x in IDS], ROWS)


def test_a_fresh_table_is_a_truncated_normal(key):
  table = np.asarray(init_table(TableSpec('t', 500, 64, 0.02), key))
  assert table.shape == (500, 64) and table.dtype == np.float32
  assert np.abs(table).max() <= 0.04
  # A normal cut at two deviations has 0.8796 of its deviation left.
  assert table.std() == pytest.approx(0.02 * 0.8796, rel=0.02)
  assert table.mean() == pytest.approx(0.0, abs=5e-4)


def test_distinct_ids_are_sorted_and_filled_with_no_row(ids):
  assert ids.tolist() == [*DISTINCT, *[ROWS] * 3]


def test_never_more_distinct_ids_than_rows():
  ids = lookup.distinct([jnp.zeros((7, 9), jnp.int32)], rows=4)
  assert ids.tolist() == [0, 4, 4, 4]


def test_touched_values(table, ids):
  values = lookup.touch(table, ids)
  np.testing.assert_array_equal(values[:4], table[jnp.array(DISTINCT)])
  assert not np.any(values[4:])


def test_both_views_take_the_same_rows(table, ids):
  dense = lookup.DenseRows(table)
  touched = lookup.TouchedRows(ids, lookup.touch(table, ids))
  for x in IDS:
    wanted = np.asarray(table)[np.array(x)]
    for rows in (dense, touched):
      np.testing.assert_array_equal(rows.take(jnp.int32(x)), wanted)
      some, place = rows.table_and_index()
      np.testing.assert_array_equal(some[place(jnp.int32(x))], wanted)


def test_only_a_dense_table_shows_itself_whole(table, ids):
  np.testing.assert_array_equal(lookup.DenseRows(table).whole(), table)
  touched = lookup.TouchedRows(ids, lookup.touch(table, ids))
  with pytest.raises(ValueError, match="data.table_update='dense'"):
    touched.whole()


def test_gradients_of_touched_rows_arrive_merged(table, ids):
  """An id that occurs three times has one gradient row: the sum."""
  weights = [jnp.arange(1.0, 4), jnp.arange(4.0, 8).reshape(2, 2)]

  def loss(values):
    rows = lookup.TouchedRows(ids, values)
    return sum(
      jnp.sum(w[..., None] * rows.take(jnp.int32(x)))
      for x, w in zip(IDS, weights, strict=True)
    )

  grads = np.asarray(jax.grad(loss)(lookup.touch(table, ids)))
  expected = np.zeros(ROWS)
  for x, w in zip(IDS, weights, strict=True):
    np.add.at(expected, np.array(x), np.asarray(w))
  np.testing.assert_array_equal(
    grads[:4], np.tile(expected[DISTINCT][:, None], WIDTH)
  )
  assert not np.any(grads[4:])
