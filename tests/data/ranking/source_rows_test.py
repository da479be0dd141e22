"""Rows of a split that are read again are those that were prepared."""

import csv
import logging
import types

import numpy as np
import pytest

from genrec_jax.data.ranking import datasets, source_rows, store

ROWS = 400


def load_rows(path, **changes) -> datasets.RankingDataset:
  cfg = {'name': 'csv', 'path': str(path), 'labels': ('label',), **changes}
  return datasets.load(cfg, path.parent / 'cache', logging.info)


def make_rows(count=ROWS, first=0) -> list[dict]:
  rng = np.random.default_rng(first)
  return [
    {
      'label': int(rng.integers(2)),
      'user_id': f'u{rng.integers(40):03}',
      'number': first + i,
      'at': int(rng.integers(10**9)),
      'note': f'n{first + i}',
    }
    for i in range(count)
  ]


def write_rows(path, rows):
  with open(path, 'w', newline='') as f:
    table = csv.DictWriter(f, rows[0])
    table.writeheader()
    table.writerows(rows)
  return path


FEATURES = {'user_id': {}, 'number': {'kind': 'numeric'}}


@pytest.mark.parametrize('by', ['order', 'time', 'random', 'group'])
def test_the_rows_of_a_cut(tmp_path, by):
  rows = make_rows()
  split = {'by': by, 'valid_fraction': 0.2, 'test_fraction': 0.3, 'seed': 1}
  split |= {'column': 'user_id'} if by == 'group' else {}
  more = {'time': {'time': 'at'}, 'random': {'negatives_kept': 0.5}}.get(by, {})
  path = write_rows(tmp_path / 'x.csv', rows)
  data = load_rows(path, features=FEATURES, split=split, block_rows=32, **more)
  for name in store.SPLITS:
    stored = [n for b in data.splits[name] for n in b.numbers[:, 0].tolist()]
    chunks = data.raw_rows.read_split(name, ['note', 'user_id'], print)
    read = []
    for chunk in chunks:
      columns = chunk.columns
      read += zip(columns['note'], columns['user_id'], strict=True)
    wanted = [rows[int(n)] for n in stored]
    assert read == [(row['note'], row['user_id']) for row in wanted]
    assert stored and len(stored) < ROWS
  names, by_type = data.raw_rows.list_columns('test')
  assert names == list(rows[0]) and set(by_type) == set(rows[0])
  assert 'x.csv that are the test split' in data.raw_rows.describe_order('test')


def test_the_rows_of_files_of_their_own(tmp_path):
  write_rows(tmp_path / 'train.csv', make_rows(50))
  held_out = make_rows(30, first=1000)
  write_rows(tmp_path / 'test.csv', held_out)
  data = load_rows(tmp_path / 'train.csv', features=FEATURES)
  (chunk,) = data.raw_rows.read_split('test', ['note'], print)
  assert list(chunk.columns['note']) == [row['note'] for row in held_out]
  assert data.raw_rows.describe_order('test').startswith('the rows of ')
  assert 'test.csv, in their' in data.raw_rows.describe_order('test')


def test_without_files_blocks_have_what_they_store(tmp_path):
  rows = make_rows(50)
  path = write_rows(tmp_path / 'x.csv', rows)
  more = {'time': 'at', 'example_id': 'number'}
  split = {'by': 'order', 'test_fraction': 0.2}
  made = load_rows(path, features={'user_id': {}}, split=split, **more)
  cfg = {'name': 'prepared', 'path': str(made.store.directory)}
  data = datasets.load(cfg, tmp_path)
  assert data.raw_rows.list_columns('test') == (['at', 'number'], {})
  (chunk,) = data.raw_rows.read_split('test', ['number', 'at'], print)
  for name in ('number', 'at'):
    wanted = [row[name] for row in rows[40:]]
    assert chunk.columns[name].values.tolist() == wanted
  assert len(chunk) == 10


@pytest.mark.parametrize(
  'header, words',
  [
    ('clicked,user_id,number', r"'clicked' \(--config.data.labels=clicked\)\?"),
    ('is_old,user_id,liked', r"'liked' \(--config.data.labels=liked\)\?$"),
    ('odd,user_id,even', r"'(odd|even)' \(--config.*\), or (odd|even)\?"),
  ],
)
def test_a_label_of_another_name_is_told(tmp_path, header, words):
  values = [f'{i % 2},u{i},{(i + 1) % 2}' for i in range(20)]
  if header.endswith('number'):
    values = [f'{i % 2},u{i},{i}' for i in range(20)]
  path = tmp_path / 'x.csv'
  path.write_text('\n'.join([header, *values]) + '\n')
  told = r"no column 'label' \(data.labels\).*did you mean " + words
  with pytest.raises(ValueError, match=told):
    load_rows(path)


def test_ratings_are_no_labels_and_what_makes_some_of_them(tmp_path):
  path = tmp_path / 'x.csv'
  values = [f'{1 + i % 5},u{i}' for i in range(20)]
  path.write_text('\n'.join(['rating,user', *values]) + '\n')
  told = "'rating': '2' is not a label; .*column of 0 and 1.* data.labels"
  with pytest.raises(ValueError, match=told):
    load_rows(path, labels=('rating',))


def test_a_column_that_some_files_lack_is_not_among_those_of_all(tmp_path):
  (tmp_path / 'a.csv').write_text('user_id,price,label\nu1,1,0\n')
  (tmp_path / 'b.csv').write_text('price,label\n2,1\n')
  source = types.SimpleNamespace(files=[tmp_path / 'a.csv', tmp_path / 'b.csv'])
  reading = {'format': 'csv', 'delimiter': ','}
  rows = source_rows.SourceRows({'train': source}, None, None, reading)
  names, features = rows.list_columns('train')
  assert names == ['price', 'label'] and [*features] == names
