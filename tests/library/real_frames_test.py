"""DataFrames of pandas, polars and pyarrow are read as plain lists are."""

import datetime

import numpy as np
import pytest

from genrec_jax.library import columns as columns_lib

MOMENTS = [datetime.datetime(2024, 1, day, 12, 30) for day in (1, 2, 3)]
COLUMNS = {
  'user': ['ann', 'bob', 'é'],
  'item': [3, 1, 2**60 + 1],
  'price': [9.5, None, 3.25],
  'shop': [1, None, 2**60 + 1],
  'city': ['p', None, 'q'],
  'when': MOMENTS,
  'tags': [['red'], [], ['red', 'big']],
}


def pandas_frame():
  pd = pytest.importorskip('pandas')
  frame = pd.DataFrame({n: c for n, c in COLUMNS.items() if n != 'shop'})
  frame['shop'] = pd.array(COLUMNS['shop'], dtype='Int64')
  frame['city'] = frame['city'].astype('category')
  return frame


def polars_frame():
  return pytest.importorskip('polars').DataFrame(COLUMNS)


def arrow_table():
  pa = pytest.importorskip('pyarrow')
  table = pa.table(COLUMNS)
  i = table.column_names.index('city')
  return table.set_column(i, 'city', table['city'].dictionary_encode())


@pytest.mark.parametrize('make', [pandas_frame, polars_frame, arrow_table])
def test_a_frame_is_read_as_lists_are(make):
  read = columns_lib.read_columns(make())
  plain = columns_lib.read_columns(COLUMNS)
  assert set(read) == set(plain)
  for name in COLUMNS:
    got = columns_lib.parse_column(name, read[name])
    want = columns_lib.parse_column(name, plain[name])
    assert got.kind == want.kind, name
    present = np.ones(len(want), bool) if want.present is None else want.present
    if got.present is None:
      assert present.all(), name
    else:
      np.testing.assert_array_equal(got.present, present, name)
    if want.lengths is None:
      got_values, want_values = got.values[present], want.values[present]
    else:
      np.testing.assert_array_equal(got.lengths, want.lengths)
      got_values, want_values = got.values, want.values
    np.testing.assert_array_equal(got_values, want_values, name)
