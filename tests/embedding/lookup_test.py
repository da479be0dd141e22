"""Rows of a table: initialisation, and the view of touched rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import init, lookup, sharded_tables, single_scheme
from genrec_jax.embedding.init import init_table
from genrec_jax.embedding.layout import lay_out
from genrec_jax.features import UNREAD, Read, TableSpec
from pallas_kernels import MergedRows
from tests import row_views
from tests.tolerances import assert_close

ROWS, WIDTH = 20, 3
IDS = [[4, 4, 19], [[0, 7], [4, 0]]]  # of any shape, with repeats
DISTINCT = [0, 4, 7, 19]


@pytest.fixture
def table(key):
  return jax.random.normal(key, (ROWS, WIDTH))


@pytest.fixture
def ids():
  return lookup.distinct_ids([jnp.int32(x) for x in IDS], ROWS)


@pytest.fixture
def reads():
  return {f'f{i}': Read(jnp.int32(x), 't') for i, x in enumerate(IDS)}


def test_a_fresh_table_is_a_truncated_normal(key):
  table = np.asarray(init_table(TableSpec('t', 500, 64, 0.02), key))
  assert table.shape == (500, 64) and table.dtype == np.float32
  assert np.abs(table).max() <= 0.04
  # A normal cut at two deviations has 0.8796 of its deviation left.
  assert table.std() == pytest.approx(0.02 * 0.8796, rel=0.02)
  assert table.mean() == pytest.approx(0.0, abs=5e-4)


@pytest.mark.parametrize('rows', [500, 2_000])
def test_a_fresh_table_is_drawn_from_its_distribution(key, rows):
  spec = TableSpec('t', rows, 64, 0.02, distribution='normal')
  normal = np.asarray(init_table(spec, key))
  assert normal.std() == pytest.approx(0.02, rel=0.02)
  # Five in a hundred beyond two deviations.
  assert (np.abs(normal) > 0.04).mean() == pytest.approx(0.0455, rel=0.1)
  uniform = dataclasses.replace(spec, distribution='uniform_rows')
  uniform = np.asarray(init_table(uniform, key)) * rows**0.5
  assert np.abs(uniform).max() == pytest.approx(1.0, rel=1e-3)
  assert uniform.std() == pytest.approx(3**-0.5, rel=0.02)


def test_the_last_value_of_a_normal_is_finite(monkeypatch):
  monkeypatch.setattr(
    init, 'element_bits', lambda *place: jnp.uint32([2**32 - 1, 0])
  )
  drawn = init.DISTRIBUTIONS['normal'](0, 0, 0)
  assert drawn[0] == -drawn[1] and 5 < drawn[0] < 6


def test_rows_of_a_stack_are_those_of_whole_tables(key):
  """Tables of all distributions side by side in one array, on two devices."""
  specs = {
    name: TableSpec(name, 30, 4, 0.02, 'row_sgd', distribution=kind)
    for name, kind in zip('bac', init.DISTRIBUTIONS, strict=True)
  }
  plan = single_scheme.plan_with_scheme(specs, 'row_wise', devices=2)
  (stack,) = lay_out(plan).stacks.values()
  whole = {name: init.init_table(spec, key) for name, spec in specs.items()}
  for device in range(2):
    rows = init.init_stack(stack, specs, key, jnp.int32(device))
    pieces, ids = stack.identify(jnp.int32(device), jnp.arange(stack.depth))
    for row, piece, i in zip(rows, pieces.tolist(), ids.tolist(), strict=True):
      if piece >= 0:
        wanted = whole[stack.pieces[piece].table][i]
        np.testing.assert_array_equal(row, wanted)


def test_distinct_ids_are_sorted_and_filled_with_no_row(ids):
  assert ids.tolist() == [*DISTINCT, *[ROWS] * 3]


def test_never_more_distinct_ids_than_rows():
  ids = lookup.distinct_ids([jnp.zeros((7, 9), jnp.int32)], rows=4)
  assert ids.tolist() == [0, 4, 4, 4]


@pytest.mark.parametrize('count', [3, ROWS, ROWS + 1])
def test_what_is_not_there_reads_something_and_touches_nothing(table, count):
  every = jnp.arange(min(count, ROWS))
  ids = jnp.append(every, jnp.full(1 + count - len(every), UNREAD))
  reads = {'f': Read(ids, 't')}
  fetched, view = row_views.fetch({'t': table}, reads)
  for views in (lookup.view_tables({'t': table}, reads), view(fetched)):
    rows = np.asarray(views['f'].all())
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[ids != UNREAD], table[every])
  distinct = lookup.distinct_ids([ids], ROWS)
  assert distinct[distinct < ROWS].tolist() == every.tolist()
  place = lookup.locate_ids(distinct, jnp.int32([UNREAD]), ROWS)
  # Where every row is touched, the last one is as good as none.
  assert distinct[place].tolist() == [ROWS if count < ROWS else ROWS - 1]


def test_fetched_values(table, ids):
  values = lookup.fetch_rows(table, ids)
  np.testing.assert_array_equal(values[:4], table[jnp.array(DISTINCT)])
  assert not np.any(values[4:])


def test_both_kinds_of_tables_show_the_same_rows(table, reads):
  fetched, view = row_views.fetch({'t': table}, reads)
  for views in (lookup.view_tables({'t': table}, reads), view(fetched)):
    for name, x in zip(reads, IDS, strict=True):
      wanted = np.asarray(table)[np.array(x)]
      np.testing.assert_array_equal(views[name].all(), wanted)
      some, index = views[name].rows_and_index()
      np.testing.assert_array_equal(lookup.take_rows(some, index), wanted)


def test_only_a_dense_table_shows_itself_whole(table, reads):
  dense = lookup.view_tables({'t': table}, reads)
  np.testing.assert_array_equal(dense['f0'].whole(), table)
  fetched, view = row_views.fetch({'t': table}, reads)
  with pytest.raises(ValueError, match="optimizer.rows.name='dense'"):
    view(fetched)['f0'].whole()


def test_gradients_of_rows_arrive_merged(table, reads):
  """An id that occurs three times has one gradient row: the sum."""
  weights = [jnp.arange(1.0, 4), jnp.arange(4.0, 8).reshape(2, 2)]
  fetched, view = row_views.fetch({'t': table}, reads)

  def loss(fetched):
    rows = view(fetched)
    return sum(
      jnp.sum(w[..., None] * rows[name].all())
      for name, w in zip(reads, weights, strict=True)
    )

  grads = np.asarray(jax.grad(loss)(fetched)[0]['t'])
  expected = np.zeros(ROWS)
  for x, w in zip(IDS, weights, strict=True):
    np.add.at(expected, np.array(x), np.asarray(w))
  np.testing.assert_array_equal(
    grads[:4], np.tile(expected[DISTINCT][:, None], WIDTH)
  )
  assert not np.any(grads[4:])


def bag_read(pooling, ids=(3, 7, 7, 19, 0, 0), weights=None) -> Read:
  """Bags [3, 7], [], [7, 19], and two ids of padding."""
  lengths = jnp.int32([2, 0, 2])
  weights = None if weights is None else jnp.float32(weights)
  return Read(jnp.int32(ids), 't', lengths, weights, pooling)


@pytest.mark.parametrize('weights', [None, (1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize('pooling', ['sum', 'mean'])
def test_pooled_reads_are_sums_or_means_of_bags(table, pooling, weights):
  read = bag_read(pooling, weights=weights)
  t, w = np.asarray(table, np.float64), weights or np.ones(6)
  wanted = np.zeros((3, WIDTH))
  wanted[0] = w[0] * t[3] + w[1] * t[7]
  wanted[2] = w[2] * t[7] + w[3] * t[19]
  if pooling == 'mean':
    wanted /= 2
  for way in (None, 'rows', 'sums'):
    if way is None:
      views = lookup.view_tables({'t': table}, {'f': read})
    else:
      fetched, view = row_views.fetch({'t': table}, {'f': read}, {'f': way})
      views = view(fetched)
    assert_close(views['f'].all(), wanted)


@pytest.mark.parametrize('wrong', [-1, ROWS, 10**6])
@pytest.mark.parametrize('way', ['dense', 'rows', 'sums'])
def test_an_id_outside_its_table_reads_nan(table, wrong, way):
  reads = {'f': bag_read('sum', (3, wrong, 7, 19, 0, 0))}
  if way != 'sums':
    reads['g'] = Read(jnp.int32([5, wrong]), 't')
  if way == 'dense':
    views = lookup.view_tables({'t': table}, reads)
  else:
    fetched, view = row_views.fetch({'t': table}, reads, {'f': way})
    views = view(fetched)
  assert np.all(np.isnan(views['f'].all()[0]))
  if way != 'sums':  # a sum that travels is wrong as a whole
    assert not np.any(np.isnan(views['f'].all()[1:]))
    rows = views['g'].all()
    assert np.all(np.isnan(rows[1])) and not np.any(np.isnan(rows[0]))


def test_padding_behind_the_bags_may_be_no_row(table):
  reads = {'f': bag_read('sum', (3, 7, 7, 19, -5, 10**6))}
  for way in ('rows', 'sums'):
    fetched, view = row_views.fetch({'t': table}, reads, {'f': way})
    assert np.all(np.isfinite(view(fetched)['f'].all()))


def test_a_feature_that_was_not_announced(table, reads):
  views = lookup.view_tables({'t': table}, reads)
  with pytest.raises(KeyError, match='it announced only f0, f1'):
    views['other']


def test_sums_have_no_rows(table):
  fetched, view = row_views.fetch(
    {'t': table}, {'f': bag_read('sum')}, {'f': 'sums'}
  )
  for call in ('rows_and_index', 'whole'):
    with pytest.raises(ValueError, match=r'use \.all\(\)'):
      getattr(view(fetched)['f'], call)()


def test_bags_of_microbatches_are_packed_in_their_order():
  read = Read(
    jnp.int32([[1, 2, 9, 9], [3, 9, 9, 9], [4, 5, 6, 7]]),
    't',
    jnp.int32([[2, 0], [0, 1], [3, 1]]),
    jnp.arange(12.0).reshape(3, 4),
    'sum',
  )
  packed = lookup.pack_bags(read)
  assert packed.ids[:7].tolist() == [1, 2, 3, 4, 5, 6, 7]
  assert packed.lengths.tolist() == [2, 0, 0, 1, 3, 1]
  assert packed.weights[:7].tolist() == [0, 1, 4, 8, 9, 10, 11]
  assert packed.pooling == 'sum' and packed.table == 't'


MERGED = MergedRows(
  jnp.array([1, 3, 5, 5]), jnp.array([[1.0], [2.0], [9.0], [9.0]])
)
BAGS = lookup.BagGradients(
  jnp.array([3, 1, 1, 0, 7]),
  jnp.array([2, 0, 2]),
  jnp.array([[10.0], [90.0], [100.0]]),
  jnp.array([1.0, 0.5, 2.0, 1.0, 1.0]),
)
SINGLE = lookup.BagGradients(
  jnp.array([0, 4]), None, jnp.array([[7.0], [6.0]]), jnp.array([2.0, 1.0])
)


@pytest.mark.parametrize(
  'parts, expected',
  [
    ([MERGED], {1: 1, 3: 2}),
    ([BAGS], {0: 100, 1: 5 + 200, 3: 10}),
    ([SINGLE], {0: 14, 4: 6}),
    (
      [MERGED, BAGS, SINGLE],
      {0: 100 + 14, 1: 1 + 5 + 200, 3: 2 + 10, 4: 6},
    ),
  ],
)
def test_one_gradient_for_each_row_out_of_several_parts(parts, expected):
  # Compiled: ids of no row are only met inside of programs.
  merged = jax.jit(lambda: lookup.merge_row_gradients(parts, rows=5))()
  real = merged.ids < 5
  np.testing.assert_array_equal(merged.ids[real], sorted(expected))
  np.testing.assert_array_equal(
    merged.grads[real, 0], [expected[i] for i in sorted(expected)]
  )


def test_parts_are_added_up_in_their_order():
  # In float32 the sum of these depends on which two are added first.
  values = [2.0**24, 1.0, 1.0, -(2.0**24)]
  rows = MergedRows(jnp.array([0]), jnp.array([values[:1]]))
  bags = lookup.BagGradients(
    jnp.zeros(3, jnp.int32),
    jnp.ones(3, jnp.int32),
    jnp.array([[x] for x in values[1:]]),
  )
  together = np.float32(0)
  for x in values:
    together += np.float32(x)
  assert lookup.merge_row_gradients([rows, bags], 4).grads[0, 0] == together


def test_a_read_of_the_whole_table_has_no_ids(table):
  view = lookup.view_table(table, Read(None, 't'))
  with pytest.raises(ValueError, match='use .whole.. in place of .all'):
    view.all()


@pytest.mark.parametrize('blocks', [1, 2, 4])
def test_ids_are_found_in_the_rows_of_their_block(blocks):
  ids = np.random.default_rng(0).integers(0, 9, (4, 6)).astype(np.int32)
  distinct = sharded_tables._distinct_by_block([jnp.asarray(ids)], 9, blocks)
  rows = jnp.asarray(ids.reshape(blocks, -1))
  places = sharded_tables._locate_by_block(distinct, rows, 9, blocks)
  of_block = np.asarray(distinct).reshape(blocks, -1)
  for block, own in enumerate(ids.reshape(blocks, -1)):
    np.testing.assert_array_equal(of_block[block][places[block]], own)
