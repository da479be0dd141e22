"""Times, ids, labels of any number, weights and extras of prepared rows."""

import datetime
import doctest
import json
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genrec_jax.data.ranking import (
  annotations,
  batches,
  datasets,
  formats,
  parquet_files,
  raw,
  schema,
  store,
)
from genrec_jax.data.ranking.encoder import Encoder
from genrec_jax.library import examples
from genrec_jax.library.columns import Column
from genrec_jax.train.ranking_data import RankingData
from tests import ranking_examples
from tests.data.ranking.annotations_cases import (
  ASKED,
  NAMES,
  load,
  quiet,
  row,
  write,
)
from tests.unsealing import unseal


def test_the_examples_of_the_pages_hold():
  assert doctest.testmod(annotations).failed == 0


# --- From files to rows

floats = st.floats(-1024, 1024, width=32, allow_subnormal=False)
rows_of_files = st.lists(
  st.tuples(
    st.integers(0, 1),
    floats,
    st.sampled_from('abc'),
    st.integers(0, 2**62),
    st.integers(-(2**63) + 1, 2**63 - 1),
    floats.map(abs),
    st.one_of(st.just(''), floats),
    st.integers(-(2**31), 2**31 - 1),
  ),
  min_size=2,
  max_size=20,
)


@settings(
  max_examples=30,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=rows_of_files, block=st.integers(1, 7), by_number=st.booleans())
def test_rows_are_those_of_a_plain_statement(
  tmp_path_factory, rows, block, by_number
):
  tmp = tmp_path_factory.mktemp('x')
  asked = ASKED | ({'example_id': 'row'} if by_number else {})
  split = {'by': 'order', 'test_fraction': 0.5}
  path = write(tmp / 'x.csv', rows)
  ds = load(path, tmp / 'c', block_rows=block, split=split, **asked)
  numbers = {id(r): i for i, r in enumerate(rows)}
  cut = len(rows) - round(len(rows) * 0.5)
  for name, wanted in {'train': rows[:cut], 'test': rows[cut:]}.items():
    split_store = ds.splits[name]
    got = split_store.rows(0, len(split_store))
    assert got.labels.dtype == got.label_weights.dtype == np.float32
    assert got.labels.tolist() == [list(r[:2]) for r in wanted]
    assert got.label_weights.tolist() == [[1, r[5]] for r in wanted]
    assert got.time.tolist() == [r[3] for r in wanted]
    ids = [numbers[id(r)] if by_number else r[4] for r in wanted]
    assert got.example_id.tolist() == ids
    scores = [-1 if r[6] == '' else r[6] for r in wanted]
    assert got.extras['score'].tolist() == scores
    assert got.extras['position'].tolist() == [r[7] for r in wanted]
    assert got.extras['position'].dtype == np.int32
    assert got.time.dtype == got.example_id.dtype == np.int64
  assert ds.annotations == annotations.build_annotations(asked, asked['labels'])
  again = datasets.load(
    {'name': 'prepared', 'path': str(ds.store.directory)}, ''
  )
  assert again.annotations == ds.annotations
  assert again.store.manifest['format'] == 2


def test_every_way_of_picking_rows_keeps_them_together(tmp_path):
  path = write(tmp_path / 'x.csv', [row(i) for i in range(50)])
  split_store = load(path, tmp_path / 'c', block_rows=8, **ASKED).splits[
    'train'
  ]

  def check(rows):
    i = rows.example_id // 7
    np.testing.assert_array_equal(rows.time, 1000 + i)
    np.testing.assert_array_equal(rows.labels, np.stack([i % 2, i / 4], 1))
    np.testing.assert_array_equal(rows.label_weights[:, 1], 1 + i % 3)
    np.testing.assert_array_equal(rows.extras['score'], i / 8)
    np.testing.assert_array_equal(rows.extras['position'], i % 5)
    return i.tolist()

  assert check(split_store.rows(5, 31)) == list(range(5, 31))
  assert check(split_store.block(2)) == list(range(16, 24))
  assert check(split_store.window((1, 4))) == [*range(8, 16), *range(32, 40)]
  order = np.array([30, 2, 2, 49])
  assert check(split_store.rows(0, 50).take(order)) == order.tolist()
  assert store.size_of(split_store.block(0)) == 8 * (8 + 8 + 8 + 8 + 4 + 4 + 4)
  held = ranking_examples.hold_in_memory(
    'train', split_store.rows(0, 50), split_store.names, 9
  )
  assert check(held.rows(3, 40)) == list(range(3, 40))
  dataset = batches._Batches(split_store, 16, 3, 20)
  found = [i for step in range(len(dataset)) for i in check(dataset[step])]
  assert sorted(found) == list(range(50)) and found != sorted(found)


def test_numbers_of_rows_go_on_from_part_to_part(tmp_path):
  at = iter(range(12))
  for name, count in (('train', 6), ('valid', 2), ('test', 4)):
    rows = [row(next(at)) for _ in range(count)]
    write(tmp_path / f'{name}.csv', rows)
  files = {name: f'{name}.csv' for name in store.SPLITS}
  asked = ASKED | {'example_id': 'row', 'extras': {}}
  ds = load(tmp_path, tmp_path / 'c', files=files, **asked)
  for split_store in ds.splits.values():
    rows = split_store.rows(0, len(split_store))
    np.testing.assert_array_equal(rows.example_id, rows.time - 1000)
  # A draw does not change the number of a row.
  split = {'by': 'random', 'valid_fraction': 0.3, 'test_fraction': 0.3}
  path = write(tmp_path / 'x.csv', [row(i) for i in range(40)])
  ds = load(path, tmp_path / 'c', split=split, **asked)
  found = []
  for split_store in ds.splits.values():
    rows = split_store.rows(0, len(split_store))
    np.testing.assert_array_equal(rows.example_id, rows.time - 1000)
    found += rows.example_id.tolist()
  assert sorted(found) == list(range(40)) and len(ds.splits) == 3


@pytest.mark.parametrize('unit', ['date', 'ms', 'us', 'seconds', 'float'])
def test_parquet_gives_what_csv_gives(tmp_path, unit):
  days = [3, 1, 2]
  moments = [datetime.datetime(2024, 3, d, tzinfo=datetime.UTC) for d in days]
  seconds = [int(m.timestamp()) for m in moments]
  when = {
    'date': lambda: pa.array([m.date() for m in moments]),
    'ms': lambda: pa.array(moments, pa.timestamp('ms', 'UTC')),
    'us': lambda: pa.array(moments, pa.timestamp('us')),
    'seconds': lambda: pa.array(seconds),
    'float': lambda: pa.array([s + 0.5 for s in seconds]),
  }[unit]()
  table = {
    'click': pa.array([1, 0, 1], pa.int8()),
    'seconds': pa.array([0.5, 2.25, 3.0]),
    'user': pa.array(['a', 'b', 'a']),
    'when': when,
    'number': pa.array([5, 7, 9], pa.uint64()),
    'importance': pa.array([1, 2, 0]),
    'teacher': pa.array([0.25, None, 1.0], pa.float32()),
    'position': pa.array([1, 2, 3], pa.int16()),
  }
  pq.write_table(pa.table(table), tmp_path / 'x.parquet')
  lines = [
    (1, 0.5, 'a', '2024-03-03', 5, 1, 0.25, 1),
    (0, 2.25, 'b', '2024-03-01T01:00:00+01:00', 7, 2, '', 2),
    (1, 3, 'a', seconds[2], 9, 0, 1, 3),
  ]
  write(tmp_path / 'x.csv', lines)
  a, b = (
    load(tmp_path / f'x.{name}', tmp_path / 'c', name=name, **ASKED)
    for name in ('csv', 'parquet')
  )
  assert a.fingerprint() == b.fingerprint()
  assert b.splits['train'].rows(0, 3).time.tolist() == seconds


def test_times_of_a_chunk_keep_their_fractions(tmp_path):
  stamps = np.array([5, 1_000_000_123, 2_500_000_000], 'datetime64[ns]')
  forms = [
    ['0.000000005', '1970-01-01T00:00:01.000000123', '2.5'],
    raw.NumberColumn(stamps.astype(np.int64) / 1e9),
  ]
  chunks = [raw.RawChunk({'when': column}, 3) for column in forms]
  table = pa.table({'when': stamps, 'click': [0, 1, 0]})
  pq.write_table(table, tmp_path / 'x.parquet')
  reading = {'time': 'when'}
  chunks += parquet_files.read_chunks(tmp_path / 'x.parquet', ['when'], reading)
  layout = schema.Schema(
    (schema.Column('user'),), ('click',), '', annotations.Annotations('when')
  )
  chunks += examples.Chunks({'when': Column(stamps)}, layout)(['when'])
  for chunk in chunks:
    for keep in (np.array([True] * 3), np.array([False, True, True])):
      times = annotations.read_exact_times(chunk.take(keep), 'when')
      whole = times.seconds * 10**9 + times.fraction
      np.testing.assert_array_equal(whole, stamps.astype(np.int64)[keep])


def test_what_is_no_feature_is_none_by_default_either(tmp_path):
  path = write(tmp_path / 'x.csv', [row(i) for i in range(4)])
  asked = {k: v for k, v in ASKED.items() if k != 'features'}
  ds = load(path, tmp_path / 'c', **asked)
  assert [f.name for f in ds.features] == ['user']
  assert 'with time, example_id, float_labels, label_weights, extras' in (
    ds.summary()
  )


def test_raw_rows_bring_what_their_file_has(tmp_path):
  path = write(tmp_path / 'x.csv', [row(i) for i in range(6)])
  ds = load(path, tmp_path / 'c', **ASKED)
  ds.encoder.save(tmp_path / 'served')
  encoder = Encoder.load(tmp_path / 'served')
  assert encoder.fingerprint() == ds.encoder.fingerprint()
  (chunk,) = formats.read_examples(encoder, path)
  rows = encoder.encode(chunk)
  assert rows.time.tolist() == list(range(1000, 1006))
  assert rows.extras['score'].tolist() == [i / 8 for i in range(6)]
  write(tmp_path / 'bare.csv', [('u1', 3)], ('user', 'position'))
  (chunk,) = formats.read_examples(encoder, tmp_path / 'bare.csv')
  rows = encoder.encode(chunk)
  assert rows.time is None and rows.example_id is None
  assert rows.label_weights is None and list(rows.extras) == ['position']
  chunk = raw.from_records([{'user': 'u2'}], encoder.schema.sources)
  assert encoder.encode(chunk).extras == {}


@pytest.mark.parametrize('name', ['criteo', 'libsvm', 'clicks'])
def test_files_of_features_alone_have_numbers_of_rows(tmp_path, name):
  path, options = tmp_path / 'x.txt', {}
  if name == 'criteo':
    path.write_text('\t'.join(['1', *['2'] * 13, *['a'] * 26, '\n']) * 3)
    path.write_text(path.read_text().replace('\t\n', '\n'))
  elif name == 'libsvm':
    path.write_text('1 3:1 5:1\n' * 3)
  else:
    options = {'clicks': {'rows': 3, 'fields': 4, 'numbers': 0}}
  ds = load(path, tmp_path / 'c', name=name, example_id='row', **options)
  assert ds.splits['train'].rows(0, 3).example_id.tolist() == [0, 1, 2]
  told = {
    'criteo': 'criteo files have columns for labels and features alone',
    'libsvm': r"no column 'teacher' \(data.extras.teacher\); libsvm files",
    'clicks': r"no column 'teacher' \(data.extras.teacher\)",
  }[name]
  with pytest.raises(ValueError, match=told):
    load(
      path, tmp_path / 'c', name=name, extras={'teacher': 'float'}, **options
    )


# --- Refusals


@pytest.mark.parametrize(
  'changes, told',
  [
    (
      {'click': 0.5},
      "'click': '0.5' is not a label.*data.label_kinds.click=",
    ),
    ({'seconds': ''}, "'seconds': '': the label must be a finite number"),
    ({'seconds': 'nan'}, "'seconds': 'nan': the label must be a finite"),
    ({'when': 'noon'}, "'when': 'noon' is not a time"),
    ({'when': -1}, "'when': '-1' is not a time"),
    ({'when': -0.5}, "'when': '-0.5' is not a time"),
    ({'number': '007'}, "'number': '007' is not an example id.*=row"),
    ({'number': 'a7'}, "'a7' is not an example id"),
    ({'importance': -1}, "'-1': the weight of label 'seconds' .* zero or more"),
    ({'importance': ''}, "'': the weight of label 'seconds' must be a finite"),
    ({'teacher': 'high'}, "'teacher': 'high' is not a finite number"),
    ({'teacher': 'nan'}, "'nan' is not a finite number"),
    ({'position': ''}, 'an empty cell; data.extras.position.fill says'),
    ({'position': 2**31}, "'2147483648' is not a whole number of 32 bits"),
  ],
)
def test_a_bad_value_is_told_with_file_and_line(tmp_path, changes, told):
  path = write(tmp_path / 'x.csv', [row(0), row(1, **changes), row(2)])
  with pytest.raises(ValueError, match=f'x.csv, line 3, column .*{told}'):
    load(path, tmp_path / 'cache', **ASKED)
  assert not list((tmp_path / 'cache').glob('*'))


@pytest.mark.parametrize(
  'changes, told',
  [
    ({'time': 'wen'}, r"no column 'wen' \(data.time\).*mean 'when'"),
    ({'example_id': 'numer'}, r"'numer' \(data.example_id\).*'number'"),
    ({'label_weights': {'click': 'w'}}, r'data.label_weights.click'),
    ({'label_weights': {'clik': 'w'}}, "'clik' is not a label.*mean 'click'"),
    ({'label_kinds': {'click': 'flot'}}, "click is 'flot'.*mean 'float'"),
    ({'label_kinds': {'user': 'float'}}, "'user' is not a label"),
    ({'extras': {'techer': 'float'}}, r'data.extras.techer\).*mean .teacher'),
    ({'extras': {'teacher': 'category'}}, 'must be one of float, int, int64'),
    ({'extras': {'user': 'int'}}, 'a feature has this name.*column=user'),
    ({'extras': {'click': 'int'}}, 'a label has this name'),
  ],
)
def test_a_bad_key_is_told(tmp_path, changes, told):
  path = write(tmp_path / 'x.csv', [row(0), row(1)])
  with pytest.raises(ValueError, match=told):
    load(path, tmp_path / 'cache', **ASKED | changes)


@pytest.mark.parametrize(
  'name, values, told',
  [
    ('when', pa.array([[1]]), 'data.time .when. holds lists'),
    ('when', pa.array([None], pa.int64()), "'when': '' is not a time"),
    ('when', pa.array([float('nan')]), "'' is not a time"),
    ('number', pa.array([1.5]), "'1.5' is not an example id"),
    ('seconds', pa.array([None], pa.float32()), "'': the label must be"),
    ('importance', pa.array([[1]]), 'weight of label .seconds. .* holds lists'),
    ('teacher', pa.array([[1]]), 'data.extras.score holds lists'),
    ('position', pa.array([0.5]), "'0.5' is not a whole number"),
    ('user', pa.array([datetime.datetime(2024, 1, 1)]), 'convert the column'),
  ],
)
def test_parquet_types_that_do_not_fit(tmp_path, name, values, told):
  table = {
    column: pa.array([value])
    for column, value in zip(NAMES, row(1), strict=True)
  }
  pq.write_table(pa.table(table | {name: values}), tmp_path / 'x.parquet')
  with pytest.raises(ValueError, match=told):
    load(tmp_path / 'x.parquet', tmp_path / 'c', name='parquet', **ASKED)


def test_labels_of_any_number_are_not_trained_on(tmp_path):
  path = write(tmp_path / 'x.csv', [row(0), row(4)])  # seconds are 0 and 1
  asked = {'labels': ('seconds',), 'features': {'user': {}}}
  kinds = {'seconds': 'float'}
  ds = load(path, tmp_path / 'c', label_kinds=kinds, **asked)
  with pytest.raises(ValueError, match='data.label_kinds.seconds: the label '):
    RankingData(ds).task(None)


# --- What was there before

# crc32 of what we write ourselves, by the version that knew no annotations:
# of two files (the first has the checksum of each block), and of blocks.
BEFORE = {'dataset.json': 3956611042, 'encoder.json': 2167005908}
BLOCKS_BEFORE = {
  'train': [1183904230, 2696202879, 3778481627, 1708153890, 1483248154],
  'valid': [1563509592, 1714699858],
}


def test_without_annotations_every_file_is_what_it_was(tmp_path):
  cfg = {
    'name': 'clicks',
    'clicks': {'rows': 500, 'fields': 3, 'numbers': 1},
    'split': {'valid_fraction': 0.1, 'test_fraction': 0.1},
    'block_rows': 128,
  }
  nothing = {
    'time': '',
    'example_id': '',
    'label_kinds': {'label': 'binary'},
    'label_weights': {'label': ''},
    'extras': {},
  }
  for changes in ({}, nothing):
    ds = datasets.load(cfg | changes, tmp_path / 'c', quiet)
    directory = ds.store.directory
    assert directory.name == 'clicks-5a62ab9a31cb8657'
    assert ds.fingerprint() == 'fb3b36ac28d5a39a'
  unseal(directory)
  for file, crc in BEFORE.items():
    content = json.loads((directory / file).read_text())
    content.pop('value_counts', None)  # which that version leaves alone
    assert zlib.crc32(json.dumps(content, indent=1).encode()) == crc


def test_without_annotations_groups_and_bags_are_what_they_were(tmp_path):
  lines = [
    (i % 2, int(i % 3 == 0), f'u{i * i % 7}', i / 4 if i % 5 else '')
    + ('^'.join('abc'[: i % 4]),)
    for i in range(90)
  ]
  names = ('label', 'buy', 'user', 'price', 'tags')
  ds = load(
    write(tmp_path / 'x.csv', lines, names),
    tmp_path / 'c',
    labels=('label', 'buy'),
    group='user',
    split={'by': 'random', 'valid_fraction': 0.2, 'seed': 3},
    block_rows=16,
    features={
      'user': {'min_count': 2},
      'price': {'kind': 'numeric', 'transform': 'standardize'},
      'tags': {'kind': 'multi_hot'},
    },
  )
  assert ds.fingerprint() == 'd1f6958be6843b29'
  splits = ds.store.manifest['parts']
  assert {name: p['crc32'] for name, p in splits.items()} == BLOCKS_BEFORE
  rows = ds.splits['train'].rows(0, 5)
  assert rows.labels.dtype == np.uint8 and rows.extras == {}
  assert rows.time is rows.example_id is rows.label_weights is None


def test_annotations_make_a_directory_of_their_own(tmp_path):
  path = write(tmp_path / 'x.csv', [row(i) for i in range(4)])
  asked = {'labels': ('click',), 'features': {'user': {}}}
  plain = load(path, tmp_path / 'c', **asked)
  rich = load(path, tmp_path / 'c', time='when', **asked)
  assert rich.store.directory != plain.store.directory
  assert rich.fingerprint() != plain.fingerprint()
  told = json.loads((rich.store.directory / 'encoder.json').read_text())
  assert told['format'] == 2 and told['annotations'] == {'time': 'when'}
  assert rich.splits['train'].rows(0, 4).labels.dtype == np.uint8


# --- Memory


PEAKS = """
import pathlib, sys, tracemalloc
from genrec_jax.data.ranking import store
from tests.data.ranking.annotations_cases import ASKED, load, row, write

store.CACHE_BYTES = 1 << 16
directory = pathlib.Path(sys.argv[1])
for count in (100, 10_000, 50_000):  # the first is for what is made once
  path = write(directory / f'{count}.csv', (row(i) for i in range(count)))
  tracemalloc.start()
  dataset = load(path, directory / 'c', block_rows=2048, **ASKED)
  last = dataset.splits['train'].rows(count - 10, count)
  assert last.example_id[-1] == 7 * (count - 1)
  print(tracemalloc.get_traced_memory()[1])
  tracemalloc.stop()
"""


def test_preparing_takes_constant_memory(tmp_path):
  # A process of its own: threads that other tests have left allocate, too.
  told = subprocess.run(
    [sys.executable, '-c', PEAKS, str(tmp_path)],
    check=True,
    capture_output=True,
    text=True,
  )
  _, some, many = map(int, told.stdout.split())
  assert many < 1.3 * some, (some, many)


@pytest.mark.parametrize(
  'words',
  [['yes', 'no'], ['Y', 'N'], ['TRUE', 'False'], ['t', 'f'], ['1', 'no']],
)
def test_labels_of_words(words):
  chunk = raw.from_records([{'bought': x} for x in words], ['bought'])
  assert annotations.read_labels(chunk, ['bought'])[:, 0].tolist() == [1, 0]
  said = annotations.describe_words(chunk, ['bought'])
  assert f'{words[1]!r} is 0' in said


@pytest.mark.parametrize('words', [['click', 'no click'], ['yes', 'maybe']])
def test_other_words_are_no_labels(words):
  chunk = raw.from_records([{'bought': x} for x in words], ['bought'])
  wrong = words[words[0] == 'yes']
  with pytest.raises(ValueError, match=f"'{wrong}' is not a label.*yes and no"):
    annotations.read_labels(chunk, ['bought'])
