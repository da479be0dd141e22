import gzip
import os
import pathlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import genrec_jax.data.ranking
from genrec_jax.data.ranking import batches, criteo, datasets, formats

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))


def load(tmp_path, name, path, **changes):
  cfg = {'name': name, 'path': str(path), 'labels': ('label',), **changes}
  return datasets.load(cfg, tmp_path / 'cache', lambda line: None)


def only(part):
  (batch,) = batches.eval_batches(part, batch_size=len(part))
  return batch


def test_criteo_rows_with_and_without_labels(tmp_path):
  row = ['1', *['3'] * 12, '', *['68fd1e64'] * 25, '']
  other = ['0', *['-2'] * 13, *['a'] * 26]
  (tmp_path / 'train.txt').write_text(
    '\n'.join(map('\t'.join, [row, other])) + '\n'
  )
  with gzip.open(tmp_path / 'test.txt.gz', 'wt') as f:
    f.write('\t'.join(other[1:]) + '\n')
  ds = load(tmp_path, 'criteo', tmp_path, numeric='log')
  batch = only(ds.splits['train'])
  np.testing.assert_array_equal(batch.labels.values[:, 0], [1, 0])
  np.testing.assert_allclose(
    batch.dense.values[0], [np.log(4)] * 12 + [0], 1e-6
  )
  np.testing.assert_array_equal(batch.dense.values[1], np.zeros(13))
  np.testing.assert_array_equal(
    batch.ids.values, [[1] * 25 + [0], [2] * 25 + [1]]
  )
  chunks = formats.read_examples(ds.encoder, tmp_path / 'test.txt.gz')
  (told,) = ds.encode(chunks, 1)
  np.testing.assert_array_equal(told.ids.values[0], batch.ids.values[1])
  (tmp_path / 'bad.txt').write_text('1\t2\t3\n')
  with pytest.raises(
    ValueError, match='line 1: 3 fields between tabs.*have 40'
  ):
    criteo.read_names(tmp_path / 'bad.txt', {})


def test_days_come_in_the_order_of_their_numbers(tmp_path):
  for day in (2, 10):
    row = ['0', *[str(day)] * 13, *['a'] * 26]
    (tmp_path / f'day_{day}').write_text('\t'.join(row) + '\n')
  ds = load(tmp_path, 'criteo', tmp_path, files={'train': 'day_*'})
  np.testing.assert_array_equal(
    only(ds.splits['train']).dense.values[:, 0], [2, 10]
  )
  (tmp_path / 'day_11').write_text('')
  with pytest.raises(ValueError, match='day_11: the file holds no rows'):
    load(tmp_path, 'criteo', tmp_path, files={'train': 'day_*'})


def table():
  return {
    'label': pa.array([1, 0, 1, 0], pa.int8()),
    'user': pa.array([7, None, 7, 9]),
    'city': pa.array(['x', 'y', None, 'x']).dictionary_encode(),
    'price': pa.array([1.5, None, 2.0, 4.0]),
    'tags': pa.array([['a', 'b'], None, [], ['a']]),
    'seen': pa.array([[3, 1, 2], [2], [], [2]], pa.large_list(pa.int32())),
    'member': pa.array([True, False, None, True]),
  }


def test_parquet_and_csv_of_the_same_rows_are_the_same_data(tmp_path):
  pq.write_table(pa.table(table()), tmp_path / 'x.parquet', row_group_size=3)
  (tmp_path / 'x.csv').write_text(
    'label,user,city,price,tags,seen,member\n'
    '1,7,x,1.5,a^b,3^1^2,1\n0,,y,,,2,0\n1,7,,2.0,,,\n0,9,x,4.0,a,2,1\n'
  )
  features = {
    'user': {},
    'city': {'fill': 'nowhere'},
    'member': {'fill': '0'},
    'price': {'kind': 'numeric', 'transform': 'standardize'},
    'tags': {'kind': 'multi_hot'},
    'seen': {'kind': 'sequence', 'max_len': 2},
  }
  a, b = (
    load(tmp_path, kind, tmp_path / f'x.{kind}', features=features)
    for kind in ('parquet', 'csv')
  )
  assert a.encoder.fingerprint() == b.encoder.fingerprint()
  assert a.fingerprint() == b.fingerprint()
  batch = only(a.splits['train'])
  np.testing.assert_array_equal(batch.jagged['seen'].lengths, [2, 1, 0, 1])
  assert a.vocabularies['seen'].values == ('2', '1')
  own = load(tmp_path, 'parquet', tmp_path / 'x.parquet')
  kinds = {spec.name: spec.kind for spec in own.features}
  assert kinds['tags'] == kinds['seen'] == 'multi_hot'
  assert kinds['price'] == 'numeric' and kinds['member'] == 'categorical'


@pytest.mark.parametrize(
  'name, options, wanted',
  [
    ('tags', {}, 'make feature .tags. a multi_hot'),
    ('day', {}, "x.parquet, row 1, column 'day': dates .* feature .day. numer"),
    ('raw', {}, 'type binary is neither .*; cast the column to text, or leave'),
    ('tags', {'kind': 'numeric'}, 'lists are not numbers'),
    ('citi', {}, "'city'"),
  ],
)
def test_columns_of_other_types_are_refused(tmp_path, name, options, wanted):
  days = pa.array([0, 1, None, 3], pa.date32())
  columns = {**table(), 'day': days, 'raw': pa.array([b'a'] * 4)}
  pq.write_table(pa.table(columns), tmp_path / 'x.parquet')
  with pytest.raises(ValueError, match=wanted):
    load(tmp_path, 'parquet', tmp_path / 'x.parquet', features={name: options})


def unsuitable():
  return {
    'label': [1, 0],
    'user': ['a', 'b'],
    'vector': [[1.5, 2.5], [0.5, 1.0]],
    'nested': [[[1], [2]], [[3]]],
    'fixed': pa.array([[1.5], [2.5]], pa.list_(pa.float32(), 1)),
  }


def test_columns_of_no_feature_are_left_out_and_said(tmp_path, caplog):
  pq.write_table(pa.table(unsuitable()), tmp_path / 'x.parquet')
  cfg = {'name': 'parquet', 'path': str(tmp_path / 'x.parquet')}
  ds = datasets.load(cfg, tmp_path / 'cache')
  assert [spec.name for spec in ds.features] == ['user']
  line, *lists = caplog.messages
  assert 'x.parquet: left out' in line and line.endswith(': nested')
  for name, text in zip(('vector', 'fixed'), lists, strict=True):
    assert f"column '{name}' is left out, for it has lists of numbers" in text
  rest = {name: x for name, x in unsuitable().items() if name != 'user'}
  pq.write_table(pa.table(rest), tmp_path / 'x.parquet')
  wanted = 'of no feature: vector, nested, fixed; convert them'
  with pytest.raises(ValueError, match=wanted):
    datasets.load(cfg, tmp_path / 'cache')


@pytest.mark.parametrize('kind', ['multi_hot', 'sequence', 'numeric'])
def test_lists_of_no_feature_are_refused(tmp_path, kind):
  pq.write_table(pa.table(unsuitable()), tmp_path / 'x.parquet')
  name, wanted = 'nested', 'x.parquet, row 1, .*: type .*list.*leave it out of'
  with pytest.raises(ValueError, match=wanted):
    load(tmp_path, 'parquet', tmp_path / 'x.parquet', features={name: kind})


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
  (tmp_path / 'x.parquet').touch()
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  for package, name in (
    (genrec_jax.data, 'parquet'),
    (genrec_jax.data.ranking, 'parquet_files'),
  ):
    module = f'{package.__name__}.{name}'
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr(package, name, raising=False)
  with pytest.raises(ImportError, match=r"pip install 'genrec_jax\[parquet\]'"):
    load(tmp_path, 'parquet', tmp_path / 'x.parquet')


def test_frappe_has_the_published_vocabularies(tmp_path):
  train = 'train_rebuilt_negatives_resampled.csv'
  if not (DATA / 'frappe' / train).exists():
    pytest.skip(f'{DATA}/frappe is not there')
  ds = load(tmp_path, 'frappe', DATA / 'frappe', files={'train': train})
  assert {k: v.rows for k, v in ds.vocabularies.items()} == {
    'user': 956,
    'item': 4084,
    'daytime': 9,
    'weekday': 9,
    'isweekend': 4,
    'homework': 5,
    'cost': 4,
    'weather': 11,
    'country': 82,
    'city': 235,
  }
  assert {k: len(p) for k, p in ds.splits.items()} == {
    'train': 202_027,
    'valid': 57_722,
    'test': 28_860,
  }
  labels = sum(int(rows.labels.sum()) for rows in ds.splits['train'])
  assert labels == 67_604


def test_criteo_smoke(tmp_path):
  path = DATA / 'criteo' / 'criteo_kaggle_first10k.txt'
  if not path.exists():
    pytest.skip(f'{path} is not there')
  split = {'by': 'order', 'valid_fraction': 0.1, 'test_fraction': 0.1}
  ds = load(tmp_path, 'criteo', path, numeric='ln2', min_count=10, split=split)
  assert [len(p) for p in ds.splits.values()] == [8_000, 1_000, 1_000]
  assert len(ds.features) == 39
  assert all(spec.kind == 'categorical' for spec in ds.features)
  ids = only(ds.splits['test']).ids.values
  assert (ids < [[spec.rows for spec in ds.features]]).all()
  assert ds.vocabularies['C3'].rows < 100
