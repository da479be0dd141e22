"""The same values give the same rows, whatever they are written in."""

import csv
import decimal
import doctest
import itertools
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.data.ranking import (
  annotations,
  cell_values,
  csv_files,
  forms,
  parquet_files,
  raw,
  vocabulary,
)
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import schema as schema_lib
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import examples as examples_lib

NAN = float('nan')
INTEGERS = st.integers(-3, 12) | st.integers(-(2**53), 2**53)
FLOATS = st.floats(-1e15, 1e15) | st.sampled_from([0.5, -0.0, 7.0, -3.0, 1e-7])
TEXTS = st.text('a07.-1eT ', max_size=4)
LISTS = st.one_of(
  st.lists(st.lists(x | st.none(), max_size=4) | st.none(), min_size=1)
  for x in (INTEGERS, FLOATS, TEXTS)
)


def column_of(values):
  return st.lists(values | st.none(), min_size=1, max_size=12)


def write_cell(value):
  if isinstance(value, list):
    return '^'.join(map(write_cell, value))
  return '' if value is None else str(value)


def make_schema(*features):
  columns = [
    schema_lib.Column(**{'name': x['kind'] + str(i), 'column': 'x', **x})
    for i, x in enumerate(features)
  ]
  return schema_lib.Schema(tuple(columns), ('label',))


def read_engines(values, schema, folder):
  """Name of an engine -> the values as a chunk of it."""
  with open(folder / 'x.csv', 'w', newline='') as file:
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(['x'])
    writer.writerows([write_cell(value)] for value in values)
  pq.write_table(pa.table({'x': pa.array(values)}), folder / 'x.parquet')
  frames = {
    'pandas': pd.DataFrame({'x': values}),
    'polars': pl.DataFrame({'x': values}, strict=False),
    'pyarrow': pa.table({'x': pa.array(values)}),
  }
  chunks = {
    'csv': csv_files.read_chunks(folder / 'x.csv', ['x'], {'delimiter': ','}),
    'parquet': parquet_files.read_chunks(folder / 'x.parquet', ['x'], {}),
    'records of pandas': [
      raw.from_records(frames['pandas'].to_dict('records'), ['x'])
    ],
    'records of polars': [raw.from_records(frames['polars'].to_dicts(), ['x'])],
  }
  for name, frame in frames.items():
    columns = columns_lib.read_columns(frame)
    parsed = {'x': columns_lib.parse_column('x', columns['x'])}
    chunks[name] = examples_lib.Chunks(parsed, schema)(['x'])
    chunks[f'{name} at once'] = [raw.from_columns(frame, ['x'])]
  return {name: list(x) for name, x in chunks.items()}


def fit(schema, chunks):
  fitted = encoder_lib.EncoderFit(schema)
  for chunk in chunks:
    fitted.add(chunk)
  return fitted.encoder({})


def encode(encoder, chunks):
  """All that the rows hold, as lists."""
  [rows] = [encoder.encode(chunk) for chunk in chunks]
  bags = {
    k: (v.values.tolist(), v.lengths.tolist()) for k, v in rows.bags.items()
  }
  return rows.ids.tolist(), rows.numbers.tolist(), bags


CATEGORY = {'kind': 'categorical'}
HASHED = {**CATEGORY, 'vocabulary': 'hashed', 'hash_rows': 999}
PARTLY = {**CATEGORY, 'min_count': 2, 'oov': 'hash', 'hash_rows': 99}
FILLED = {**CATEGORY, 'fill': '7.0'}
NUMBER = {'kind': 'numeric'}
SETS = (
  {'kind': 'multi_hot', 'max_len': 2},
  {'kind': 'sequence', 'max_len': 2},
  {'kind': 'sequence', 'vocabulary': 'hashed', 'hash_rows': 999},
)


@pytest.mark.parametrize(
  'values, features',
  [
    (column_of(INTEGERS), (CATEGORY, HASHED, PARTLY, FILLED, NUMBER)),
    (column_of(FLOATS), (CATEGORY, HASHED, PARTLY, FILLED, NUMBER)),
    (column_of(TEXTS), (CATEGORY, HASHED, PARTLY, FILLED)),
    # A hashed feature has no vocabulary to say that 'True' is a boolean.
    (column_of(st.booleans()), (CATEGORY, {**PARTLY, 'min_count': 1})),
    (LISTS, SETS),
  ],
)
def test_five_engines_give_the_same_rows(values, features, tmp_path_factory):
  folder, schema = tmp_path_factory.mktemp('engines'), make_schema(*features)

  @settings(max_examples=25, deadline=None)
  @given(values)
  def check(values):
    chunks = read_engines(values, schema, folder)
    encoders = {name: fit(schema, x) for name, x in chunks.items()}
    first = encoders['csv']
    for encoder in encoders.values():
      assert encoder.fingerprint() == first.fingerprint()
    wanted = encode(first, chunks['csv'])
    for name, chunk in chunks.items():
      assert encode(first, chunk) == wanted, name

  check()


@pytest.mark.parametrize(
  'texts, canonical',
  [
    (('7', '7.0', '7.000'), '7'),
    (('-3', '-3.0', '-3.00'), '-3'),
    (('0', '-0', '0.0', '-0.0'), '0'),
    (('10', '10.0'), '10'),
    (('100000000000000000000', '100000000000000000000.0'), '1' + '0' * 20),
    *(
      ((text,), text)
      for text in '007 007.0 -07.0 1e5 12e5 7. .0 7.50 +7.0 7.0a 1.0.0 --0 -00 '
      'True nan NaN a0 0x10 1_0.0 ٧.0'.split()
    ),
    ((' 7.0',), ' 7.0'),
    (('7.0\n',), '7.0\n'),
    (('',), ''),
  ],
)
def test_the_canonical_form_of_texts(texts, canonical):
  assert {forms.canonicalize(text) for text in texts} == {canonical}


@pytest.mark.parametrize(
  'value, text',
  [
    (None, ''),
    (NAN, ''),
    (np.float16(NAN), ''),
    (decimal.Decimal('NaN'), ''),
    (pd.NA, ''),
    (pd.NaT, ''),
    (np.datetime64('NaT'), ''),
    (True, '1'),
    (np.False_, '0'),
    (2**70, str(2**70)),
    (np.uint64(2**64 - 1), str(2**64 - 1)),
    (7.0, '7'),
    (-0.0, '0'),
    (1e16, '1' + '0' * 16),
    (0.1, '0.1'),
    (1e-7, '1e-07'),
    (np.float32(0.1), '0.1'),
    (np.float32(16777216), '16777216'),
    (np.float16(0.1), '0.1'),
    (float('inf'), 'inf'),
    (decimal.Decimal('7.50'), '7.5'),
    (decimal.Decimal('-7.00'), '-7'),
    (decimal.Decimal('7E+2'), '700'),
    (decimal.Decimal('0.1234567890123456789'), '0.1234567890123456789'),
    (decimal.Decimal('1E+999999999'), '1E+999999999'),
    ('7.0', '7.0'),
    (np.str_('a'), 'a'),
  ],
)
def test_the_form_of_typed_values(value, text):
  assert raw.from_records([{'x': value}], ['x']).columns['x'] == [text]
  [inner] = raw.from_records([{'x': [value]}], ['x']).columns['x'].values
  assert inner == text


def test_a_missing_list_is_empty():
  records = [{'x': ['a']}, {'x': NAN}, {'x': pd.NA}]
  column = raw.from_records(records, ['x']).columns['x']
  assert column.lengths.tolist() == [1, 0, 0]


def fit_values(values, **options):
  counts = vocabulary.ValueCounts()
  counts.add(values)
  return vocabulary.fit_vocabulary(schema_lib.Column('c', **options), counts)


def test_forms_are_counted_as_one_value():
  made = fit_values(['7.0', '7', '7.00', 'a', 'a', 'b', 'b', 'b'], min_count=3)
  assert made.values == ('7', 'b') and made.counts.tolist() == [3, 3]
  for _ in range(2):
    rows = made.encode(['7', '7.0', '7.000', 'b', '07', '-7', ''])
    assert rows.tolist() == [1, 1, 1, 2, 3, 3, 0]
  made.encode(['7.' + '0' * n for n in range(1, 99)])
  assert len(made._rows) == 2 * 3  # forms that come again, and no more


def test_bools_are_those_of_a_column_of_nothing_else():
  made = fit_values(['True', 'true', '0', 'False', '1.0', ''])
  assert made.values == ('1', '0') and made.counts.tolist() == [3, 2]
  words = ['TRUE', 'True', 'true', '1', '1.0', 'FALSE', '0', '2', 'yes']
  assert made.encode(words).tolist() == [1] * 5 + [2, 2, 3, 3]
  made = fit_values(['True', '1', 'maybe'])
  assert made.values == ('1', 'True', 'maybe')
  assert made.encode(['true', 'TRUE', 'True', '1.0']).tolist() == [4, 4, 2, 1]
  assert fit_values([]).encode(['True', '1']).tolist() == [1, 1]
  made = fit_values(['True'], oov='hash', hash_rows=999)
  assert len(set(made.encode(['False', '0', '0.0', 'false']).tolist())) == 1
  made = fit_values(['True'], vocabulary='hashed', hash_rows=999)
  assert len(set(made.encode(['True', '1', '1.0']).tolist())) == 2


def test_vocabularies_of_earlier_versions_keep_their_rows():
  """Values in any form have rows; other forms read those."""

  def make(*values):
    return vocabulary.Vocabulary('c', values, np.ones(len(values), np.int64))

  made = make('8.0', '7.0', '7', '8.00')
  found = made.encode(['7.0', '7', '7.00', '8', '8.0', '8.00', '8.000', '9'])
  assert found.tolist() == [2, 3, 3, 1, 1, 4, 1, 5]
  bools = make('False', 'True', '1')
  assert bools.encode(['0', 'false', '1', 'True', 'true']).tolist() == [
    1, 1, 3, 2, 3,
  ]  # fmt: skip


def test_encoders_of_earlier_versions_keep_their_meaning(tmp_path):
  """They hash texts as they are, and an empty place of a list is a value."""
  schema = make_schema({**HASHED, 'column': 'c'}, {**SETS[1], 'max_len': 3})
  chunk = raw.RawChunk({'c': ['7.0', '7'], 'x': ['a^^b', '^']}, 2)
  encoder = fit(schema, [chunk])
  encoder.save(tmp_path)
  again = encoder_lib.Encoder.load(tmp_path)
  for made in (encoder, again):
    (ids, _, bags) = encode(made, [chunk])
    assert ids[0] == ids[1] and bags == {'sequence1': ([1, 2], [2, 0])}
  path = tmp_path / 'encoder.json'
  meta = json.loads(path.read_text())
  assert meta.pop('forms') == 1
  path.write_text(json.dumps(meta))
  former = encoder_lib.Encoder.load(tmp_path)
  assert former.fingerprint() == encoder.fingerprint()
  (ids, _, bags) = encode(former, [chunk])
  assert ids[1] == encode(encoder, [chunk])[0][1] and ids[0] != ids[1]
  assert bags == {'sequence1': ([1, 0, 2, 0, 0], [3, 2])}
  former.save(tmp_path / 'again')
  assert 'forms' not in (tmp_path / 'again/encoder.json').read_text()


@pytest.mark.parametrize(
  'feature, marked', [(CATEGORY, False), (HASHED, True), (SETS[0], True)]
)
def test_what_needs_no_mark_has_none(tmp_path, feature, marked):
  encoder = fit(make_schema(feature), [raw.RawChunk({'x': ['7.0']}, 1)])
  encoder.save(tmp_path)
  meta = json.loads((tmp_path / 'encoder.json').read_text())
  assert ('forms' in meta) == marked and 'keep' not in meta['columns'][0]


@pytest.mark.parametrize(
  'kind, keep, wanted',
  [
    ('sequence', '', 'cd'),
    ('sequence', 'last', 'cd'),
    ('sequence', 'first', 'ab'),
    ('multi_hot', '', 'ab'),
    ('multi_hot', 'last', 'cd'),
    ('multi_hot', 'first', 'ab'),
  ],
)
def test_which_end_of_a_list_is_kept(kind, keep, wanted):
  schema = make_schema({'kind': kind, 'keep': keep, 'max_len': 2})
  for cells in (['a^b^^c^d', '', 'e'], [[*'ab', '', *'cd'], [], ['e']]):
    chunk = raw.from_records([{'x': cell} for cell in cells], ['x'])
    values, lengths, _ = cell_values.read_values(chunk, schema.columns[0])
    assert values == [*wanted, 'e'] and lengths.tolist() == [2, 0, 1]
  assert schema.to_json()['columns'][0].get('keep', '') == keep


def test_an_end_that_there_is_not():
  with pytest.raises(ValueError, match="keep of feature 'x' .* first, last"):
    schema_lib.Column('x', kind='sequence', keep='both')


@pytest.mark.parametrize(
  'cells, told',
  [
    (
      ['a', '', '1,2,3', '4,5'],
      "row 2, column 'x': '1,2,3' is .* most have ','",
    ),
    (['[1, 2]', '[3, 4]'], "'\\[1, 2\\]' .*separator=',' .*out the brackets"),
    (['a b', 'c d', 'e'], "'a b' is read as one value.*separator '^'"),
    (['a|b', 'c|d', 'e^f'], ''),
    (['a b', 'c', 'd', ''], ''),
    (['', ''], ''),
  ],
)
def test_a_wrong_separator_is_said_once(cells, told, caplog):
  chunk = raw.RawChunk({'x': cells}, len(cells))
  fit(make_schema(SETS[0]), [chunk, chunk])
  told = told.replace('^', '\\^')
  assert len(caplog.messages) == bool(told)
  if told:
    caplog.clear()
    fit(make_schema(SETS[0]), [chunk])
    with pytest.raises(ValueError, match=told):
      raise ValueError(caplog.messages[0])


def test_numbers_that_are_missing():
  words = raw.RawChunk({'x': ['nan', 'NaN', '', '1.5']}, 4)
  floats = np.array([NAN, NAN, 0, 1.5], np.float32)
  present = np.array([True, True, False, True])
  typed = raw.RawChunk({'x': raw.NumberColumn(floats, present)}, 4)
  for chunk in (words, typed):
    encoder = fit(make_schema({**NUMBER, 'fill': '3'}), [chunk])
    assert encode(encoder, [chunk])[1] == [[3], [3], [3], [1.5]]
  for value in ('inf', 'nan.0', 'na'):
    chunk = raw.from_records([{'x': value}], ['x'])
    with pytest.raises(ValueError, match='mend it, or give None if it is miss'):
      encoder.encode(chunk)


def test_groups_have_one_form():
  groups = {}
  for column in (
    ['7.0', 'a', '7'],
    raw.NumberColumn(np.array([7.0, 0.5, -0.0])),
    raw.NumberColumn(np.array([7, 0])),
  ):
    chunk = raw.RawChunk({'g': column}, len(column))
    annotations.read_groups(chunk, 'g', groups)
  assert groups == {'7': 0, 'a': 1, '0.5': 2, '0': 3}


def test_columns_that_do_not_fit():
  with pytest.raises(ValueError, match="no column 'user'.*did you mean 'usr'"):
    raw.from_columns({'usr': [1]}, ['user'])
  with pytest.raises(ValueError, match='differ in length: a has 1, b has 2'):
    raw.from_columns({'a': [1], 'b': [1, 2]}, ['a', 'b'])


ODD = {
  'price': pa.array([decimal.Decimal('1.50'), None], pa.decimal128(9, 2)),
  'wide': pa.array([2**60 + 1, None], pa.decimal256(50)),
  'view': pa.array(['a', None], pa.string_view()),
  'pair': pa.array([[1, None], None], pa.list_(pa.int32(), 2)),
  'none': pa.array([None, None], pa.null()),
  'nones': pa.array([[None], []], pa.list_(pa.null())),
  'vector': pa.array([[0.5, 7.0, NAN], []], pa.list_(pa.float32())),
  'day': pa.array([1, None], pa.date32()),
  'half': pa.array([0.5, NAN], pa.float16()),
}


@pytest.mark.parametrize(
  'name, kind, wanted',
  [
    ('price', 'categorical', ['1.5', '']),
    ('price', 'numeric', [1.5, 0]),
    ('wide', 'categorical', [str(2**60 + 1), '']),
    ('view', 'categorical', ['a', '']),
    ('view', 'sequence', [['a'], []]),
    ('pair', 'sequence', [['1'], []]),
    ('none', 'categorical', ['', '']),
    ('none', 'numeric', [0, 0]),
    ('none', 'sequence', [[], []]),
    ('nones', 'sequence', [[], []]),
    ('vector', 'sequence', [['0.5', '7'], []]),
    ('day', 'numeric', [86400, 0]),
    ('half', 'categorical', ['0.5', '']),
  ],
)
def test_types_of_parquet(tmp_path, name, kind, wanted):
  pq.write_table(pa.table(ODD), tmp_path / 'x.parquet')
  schema = make_schema({'kind': kind, 'column': name})
  read = parquet_files.read_chunks
  encoder = fit(schema, read(tmp_path / 'x.parquet', [name], {}))
  [chunk] = read(tmp_path / 'x.parquet', [name], {})
  rows = encoder.encode(chunk)
  if kind == 'numeric':
    assert rows.numbers[:, 0].tolist() == wanted
    return
  [table] = encoder.vocabularies.values()
  if kind == 'categorical':
    assert table.decode(rows.ids[:, 0]) == wanted
    return
  [bags] = rows.bags.values()
  values = iter(table.decode(bags.values))
  assert [list(itertools.islice(values, n)) for n in bags.lengths] == wanted


def test_features_by_types_of_parquet(tmp_path):
  pq.write_table(pa.table(ODD), tmp_path / 'x.parquet')
  found = parquet_files.default_features(tmp_path / 'x.parquet', {})
  assert {k: v and v['kind'] for k, v in found.items()} == {
    **dict.fromkeys(ODD),
    'price': 'numeric',
    'wide': 'numeric',
    'half': 'numeric',
    'view': 'categorical',
    'pair': 'multi_hot',
    # Whose history is not known: whoever names no features is told.
    'vector': 'numeric_sequence',
  }


@pytest.mark.parametrize(
  'values',
  [
    np.array([0.1, NAN], np.float32),
    np.array([[0.1, NAN]], np.float32),
    [np.float32(0.1), None],
    [[np.float32(0.1), None]],
    pl.Series([0.1, None], dtype=pl.Float32),
    pl.Series([[0.1, None]], dtype=pl.List(pl.Float32)),
    pd.Series([0.1, None], dtype='float32'),
    pd.Series([0.1, None], dtype='Float32'),
    pa.chunked_array([pa.array([0.1, None], pa.float32())]),
  ],
)
def test_floats_have_the_texts_of_their_own_type(values):
  schema = make_schema(SETS[0])
  found = columns_lib.read_columns({'x': values})
  parsed = {'x': columns_lib.parse_column('x', found['x'])}
  for chunk in (
    raw.from_columns({'x': values}, ['x']),
    next(examples_lib.Chunks(parsed, schema)(['x'])),
  ):
    cells, _, _ = cell_values.read_values(chunk, schema.columns[0])
    if isinstance(cells, raw.NumberColumn):
      cells = cells.list_texts()
    assert cells == ['0.1']


def test_the_examples_are_true():
  assert doctest.testmod(forms).failed == 0
