"""Every scheme reads and writes what one device would."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import SCHEMES, PlanError
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.embedding.single_scheme import plan_with_scheme
from genrec_jax.features import Read, TableSpec
from genrec_jax.numerics.row_rounding import round_rows
from tests.embedding import sharded_cases
from tests.embedding.sharded_cases import DIM, ROWS, run_sharded, run_whole
from tests.tolerances import assert_close

SEQUENCE = dict(mode='sum', weighted=False, reads=('rows',))


def spec(update='row_sgd', dtype='float32'):
  return TableSpec('t', ROWS, DIM, 0.5, update, dtype)


def compare(whole, sharded, near='exchanged', exact=(), steps=True):
  seen, table = whole
  seen_sharded, table_sharded = sharded
  if not steps:
    seen = seen_sharded = []
  for one, other in zip(seen, seen_sharded, strict=True):
    for name in one.keys() - {'touched'}:
      values = one[name]
      if name in exact:
        np.testing.assert_array_equal(other[name], values)
      else:
        assert_close(other[name], values, near, name)
  assert_close(table_sharded, table, near, 'table')


def some(first, second, quick):
  """All pairs; those that `quick` does not say yes to are slow."""
  return [
    pytest.param(a, b, marks=[] if quick(a, b) else pytest.mark.slow)
    for a in first
    for b in second
  ]


@pytest.mark.parametrize(
  'scheme, kind',
  some(
    SCHEMES, KINDS, lambda s, k: k == 'all_to_all' or s in ('row_wise', 'grid')
  ),
)
def test_sequence_features(scheme, kind, key):
  whole = run_whole(spec(), key, steps=1, **SEQUENCE)
  sharded = run_sharded(
    spec(), key, scheme, exchange=Exchange(kind), steps=1, **SEQUENCE
  )
  compare(whole, sharded, exact=('rows',))


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize(
  'options',
  [
    dict(mode='sum', weighted=False, reads=('bags',)),
    dict(mode='mean', weighted=True, reads=('rows', 'bags')),
  ],
  ids=['sum', 'weighted mean and rows'],
)
def test_pooled_features(scheme, options, key):
  whole = run_whole(spec(), key, **options)
  compare(whole, run_sharded(spec(), key, scheme, **options))


@pytest.mark.parametrize(
  'scheme, update',
  some(
    SCHEMES,
    ['row_adagrad', 'adam'],
    lambda s, u: u == 'row_adagrad' or s == 'column_wise',
  ),
)
def test_updates_are_exact_whatever_the_scheme(scheme, update, key):
  """Statistics of a row are those of the whole row, also where it is cut."""
  options = dict(mode='sum', weighted=False, reads=('rows', 'bags'), steps=3)
  whole = run_whole(spec(update), key, **options)
  compare(whole, run_sharded(spec(update), key, scheme, **options))


def test_replica_groups_that_meet_at_every_step(key):
  """Plain SGD: the mean of the groups' steps is the step of all."""
  whole = run_whole(spec(), key, **SEQUENCE)
  sharded = run_sharded(
    spec(), key, 'row_wise', replicas=2, hosts=2, devices=2, **SEQUENCE
  )
  for one, other in zip(whole[0], sharded[0], strict=True):
    other['square'] = one['square']  # each group counts what it summed itself
  compare(whole, sharded)


def test_replica_groups_that_meet_later(key):
  """Between two meetings a group sees its own steps alone."""
  options = dict(replicas=2, hosts=1, devices=4, steps=3, **SEQUENCE)
  often, _ = run_sharded(spec(), key, 'row_wise', sync_every=1, **options)
  seldom, table = run_sharded(spec(), key, 'row_wise', sync_every=3, **options)
  np.testing.assert_array_equal(often[0]['rows'], seldom[0]['rows'])
  assert np.any(often[1]['rows'] != seldom[1]['rows'])
  # Steps of plain SGD do not look at the rows: their mean comes out the same.
  whole = run_whole(spec(), key, steps=3, **SEQUENCE)
  compare(whole, (seldom, table), steps=False)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_narrow_tables(dtype, key):
  whole = run_whole(spec(dtype=dtype), key, steps=1, **SEQUENCE)
  sharded = run_sharded(spec(dtype=dtype), key, 'row_wise', steps=1, **SEQUENCE)
  compare(whole, sharded, exact=('rows',), near='16_bit_rows')


def packed_spec(by_chance=True):
  options = (('packed_as', 'tbe_int4'), ('stochastic_rounding', by_chance))
  return dataclasses.replace(spec('row_adagrad'), options=options)


@pytest.mark.parametrize(
  'scheme', ['data_parallel', 'row_wise', 'table_wise', 'table_row_wise']
)
def test_rows_on_levels_of_few_bits(scheme, key):
  """The chance of an element does not depend on where its row lies."""
  options = dict(steps=1, **SEQUENCE)
  whole = run_whole(packed_spec(), key, **options)
  sharded = run_sharded(packed_spec(), key, scheme, **options)
  compare(whole, sharded, exact=('rows',))
  rows = np.unique(sharded_cases.job(1).ids)
  levels = [len(np.unique(row)) for row in sharded[1][rows]]
  assert max(levels) <= min(16, DIM)
  rounded = round_rows(jnp.asarray(sharded[1][rows]), 'tbe_int4')
  np.testing.assert_array_equal(rounded, sharded[1][rows])


def test_where_rows_on_levels_do_not_go(key):
  with pytest.raises(PlanError, match='needs whole rows.*packed_as'):
    run_sharded(packed_spec(), key, 'column_wise', steps=1, **SEQUENCE)
  with pytest.raises(PlanError, match='means over 2 replicas lie between'):
    run_sharded(
      packed_spec(), key, 'row_wise', replicas=2, hosts=1, steps=1, **SEQUENCE
    )


@pytest.mark.parametrize(
  'scheme, ids, way',
  [
    ('row_wise', 2 * 3, 'rows'),  # room for 12, and 8 devices would answer
    ('row_wise', 2 * 9, 'sums'),
    ('table_row_wise', 2 * 3, 'sums'),  # one host answers
    ('table_wise', 2 * 3, 'sums'),
  ],
)
def test_sums_of_all_devices_give_way_to_rows(scheme, ids, way):
  plan = plan_with_scheme({'t': spec()}, scheme, hosts=2, devices=4)
  tables = ShardedTables(lay_out(plan), {'t': spec()}, pooling={'f': 'sums'})
  read = Read(
    jnp.zeros((1, ids), jnp.int32), 't', jnp.zeros((1, 2), jnp.int32),
    pooling='sum',
  )  # fmt: skip
  assert tables._find_ways({'f': read}) == {'f': way}


@pytest.mark.parametrize('update', ['adam', 'row_adagrad'])
@pytest.mark.parametrize(
  'scheme, reads',
  [
    ('row_wise', ('rows',)),
    ('table_wise', ('rows', 'bags')),
    ('column_wise', ('rows', 'bags')),
  ],
)
def test_rounds_change_nothing(scheme, reads, update, key, monkeypatch):
  """Nor do they count as several steps: Adam has its third behind the third."""
  monkeypatch.setattr(sharded_cases, 'BATCH', 64)  # 32 ids on each device
  options = dict(steps=3, mode='sum', weighted=False, reads=reads)
  (few, tight), (all_at_once, wide) = (
    run_sharded(
      spec(update),
      key,
      scheme,
      exchange=Exchange(capacity=capacity),
      **options,
    )
    for capacity in (0.01, 8.0)
  )
  for one, other in zip(few, all_at_once, strict=True):
    np.testing.assert_array_equal(one['touched'], other['touched'])
  np.testing.assert_array_equal(tight, wide)


@pytest.mark.parametrize(
  'scheme, kind',
  some(['row_wise', 'column_wise'], KINDS, lambda s, k: k == 'all_to_all'),
)
def test_touched_rows_come_out(scheme, kind, key):
  """Those that are different now, and no others."""
  before = run_sharded(spec(), key, scheme, steps=0, **SEQUENCE)[1]
  seen, table = run_sharded(
    spec(), key, scheme, exchange=Exchange(kind), steps=1, **SEQUENCE
  )
  rows = np.count_nonzero(seen[0]['touched'])
  changed = np.any(before != table, axis=1).sum()
  assert rows == changed * (2 if scheme == 'column_wise' else 1)
