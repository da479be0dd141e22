"""Columns of any origin and type."""

import datetime
import decimal
import doctest

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from genrec_jax.library import columns as columns_lib
from genrec_jax.library.columns import parse_column, read_columns
from tests.library.frames import Frame, Series, Table

NAN = float('nan')


class NAType:
  """What pandas puts for a missing value: it cannot even be compared."""

  def __eq__(self, other):
    raise TypeError('NA is ambiguous')

  __ne__ = __eq__
  __hash__ = None


class Twins(Frame):
  """A frame with two columns of one name."""

  def __init__(self, columns):
    super().__init__(columns)
    self.columns = 2 * self.columns


class LazyFrame:
  """What polars has before it reads anything."""

  columns = ('user',)

  def collect(self):
    raise AssertionError('nobody asked for it')


def parse(values):
  return parse_column('c', columns_lib._to_array(values, 'c', 'events'))


@pytest.mark.parametrize(
  'data',
  [
    {'user': [1, 2], 'item': ['a', 'b']},
    {'user': np.array([1, 2], np.uint8), 'item': np.array(['a', 'b'])},
    {'user': jnp.array([1, 2]), 'item': ('a', 'b')},
    np.array([(1, 'a'), (2, 'b')], [('user', 'i4'), ('item', 'U3')]),
    Frame({'user': [1, 2], 'item': ['a', 'b']}),
    Table({'user': [1, 2], 'item': ['a', 'b']}),
    [{'user': 1, 'item': 'a'}, {'item': 'b', 'user': 2}],
  ],
)
def test_columns_of_any_origin(data):
  found = read_columns(data)
  assert list(found) == ['user', 'item']
  assert parse_column('user', found['user']).values.tolist() == [1, 2]
  assert parse_column('item', found['item']).values.tolist() == ['a', 'b']


@pytest.mark.parametrize(
  'values, kind, wanted, present',
  [
    ([3, True, np.int8(4)], 'int', [3, 1, 4], None),
    ([3, 1.5], 'float', [3.0, 1.5], None),
    ([decimal.Decimal('1.5'), None], 'float', [1.5, NAN], [1, 0]),
    ([decimal.Decimal(2**60 + 1), None], 'int', [2**60 + 1, 0], [1, 0]),
    ([3, None, NAType()], 'int', [3, 0, 0], [1, 0, 0]),
    (['a', NAN, None], 'text', ['a', '', ''], [1, 0, 0]),
    ([None, None], 'float', [NAN, NAN], [0, 0]),
    (np.array([1.0, NAN], np.float32), 'float', [1.0, NAN], [1, 0]),
    (np.array([True, False]), 'int', [1, 0], None),
    (np.array([b'a', b'bc']), 'text', ['a', 'bc'], None),
    (np.array(['caf\xe9'.encode()]), 'text', ['caf\xe9'], None),
    (np.ma.array([3, 4], mask=[False, True]), 'int', [3, 0], [1, 0]),
  ],
)
def test_types_of_values(values, kind, wanted, present):
  column = parse(values)
  assert column.kind == kind
  np.testing.assert_array_equal(column.values, wanted)
  if present is None:
    assert column.present is None
  else:
    np.testing.assert_array_equal(column.present, np.array(present, bool))


def test_a_missing_category_is_none_of_the_others():
  column = pa.array(['p', None, 'q', None]).dictionary_encode()
  [found] = read_columns(pa.table({'c': column})).values()
  assert parse_column('c', found).values.tolist() == ['p', '', 'q', '']
  assert parse_column('c', found).present.tolist() == [True, False] * 2


@pytest.mark.parametrize(
  'series',
  [
    Series([2**60 + 1, None], 'Int64'),
    pa.chunked_array([[2**60 + 1, None]]),
    pa.chunked_array([pa.array([2**60 + 1, None]).dictionary_encode()]),
  ],
)
def test_whole_numbers_beside_a_null_stay_whole(series):
  column = parse(series)
  assert column.kind == 'int' and column.values[0] == 2**60 + 1
  assert column.present.tolist() == [True, False]


def test_dates_are_in_utc():
  east = datetime.timezone(datetime.timedelta(hours=2))
  column = parse(
    [
      datetime.datetime(1970, 1, 1, 2, tzinfo=east),
      datetime.datetime(1970, 1, 1, 0, 0, 1),
      None,
    ]
  )
  assert column.kind == 'time' and column.present.tolist() == [
    True,
    True,
    False,
  ]
  seconds = column.values[:2].astype('datetime64[s]').astype(int)
  assert seconds.tolist() == [0, 1]
  dates = parse(np.array(['1970-01-02', 'NaT'], 'datetime64[D]'))
  assert dates.present.tolist() == [True, False]


@pytest.mark.parametrize(
  'values, wanted, lengths',
  [
    ([['a', 'b'], None, ['c']], ['a', 'b', 'c'], [2, 0, 1]),
    (
      [np.array([1, 2]), np.array([], int), np.array([3])],
      [1, 2, 3],
      [2, 0, 1],
    ),
    (np.array([[1, 2], [3, 4]]), [1, 2, 3, 4], [2, 2]),
    ([[], None], [], [0, 0]),
    ([['a', None], ['b']], ['a', '', 'b'], [2, 1]),
  ],
)
def test_lists(values, wanted, lengths):
  column = parse(values)
  assert column.values.tolist() == wanted
  assert column.lengths.tolist() == lengths
  assert len(column) == len(lengths)


@pytest.mark.parametrize(
  'values, words',
  [
    (['a', 3], r"mixes text \(row 0: 'a'\) and numbers \(row 1: 3\)"),
    ([['a'], 3], r"mixes lists \(row 0: \['a'\]\) and numbers"),
    ([3, {'x': 1}], "row 1: {'x': 1} is neither a number nor text"),
    ([[['a']]], 'lists of lists'),
    ([2**70], 'beyond 2'),
    (np.array([2**63 + 1], np.uint64), 'beyond 2'),
    (np.array([1j]), 'is of type complex128'),
    ([1.5, 1j], 'row 1: 1j is neither a number nor text'),
    (np.array([b'a', b'\xff']), r"row 1: b'.xff' is not text in UTF-8"),
    (['a', 'b\ud800'], r"row 1: 'b.ud800' holds half a character"),
    (np.array(['long', '\ud800'], '>U4'), 'row 1: .* holds half a character'),
    (['a', 'a\0'], r"row 1: 'a.x00' ends in a NUL character, .* remove it"),
    (Series([{'x': 1}], 'Struct'), "0: {'x': 1} is neither .* leave it out"),
    (np.zeros((2, 2, 2)), r'of shape \(2, 2, 2\)'),
  ],
)
def test_what_cannot_be_read_is_named(values, words):
  with pytest.raises(ValueError, match=words):
    parse(values)


@pytest.mark.parametrize(
  'data, error, words',
  [
    ([1, 2], TypeError, 'events is a list, must be arrays by name'),
    (np.zeros(3), TypeError, 'events is a ndarray'),
    (LazyFrame(), TypeError, 'is a LazyFrame, which holds no values yet; call'),
    ({}, ValueError, 'events has no columns'),
    ([], ValueError, 'events is empty: it has no row'),
    ({'a': [], 'b': []}, ValueError, 'it has the columns a, b and no row'),
    ({'a': [1], 'b': [1, 2]}, ValueError, 'differ in length: a has 1, b has 2'),
    ({0: [1], '0': [2]}, ValueError, "two columns that are called 0 and '0'"),
    (Twins({'a': [1]}), ValueError, "two columns that are called 'a'; rename"),
    ({'a': 'lamp'}, ValueError, "column 'a' of events is 'lamp', must be a li"),
    ({'a': 5}, ValueError, "column 'a' of events is 5, must be a list"),
    ({'a': np.array(5)}, ValueError, r'is array\(5\), must be a list'),
  ],
)
def test_what_has_no_rows_is_refused(data, error, words):
  with pytest.raises(error, match=words):
    read_columns(data)


def test_the_examples_are_true():
  assert doctest.testmod(columns_lib).failed == 0
