"""Which files are of which split, by the config and by their names."""

import gzip
import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config.comparison import read_config
from genrec_jax.data.ranking import datasets, split_files
from genrec_jax.library import files as library_files

CSV = ('.csv', '.csv.gz')


def touch(base, *names):
  for name in names:
    (base / name).parent.mkdir(parents=True, exist_ok=True)
    (base / name).write_text('')


def find(base, path='', known={}, log=lambda line: None, **cfg):
  files = split_files.find_files(cfg, base / path, known, CSV, log=log)
  return {
    split: ' '.join(str(p.relative_to(base)) for p in paths)
    for split, paths in files.items()
  }


@pytest.mark.parametrize(
  'train, valid, test',
  [
    ('train.csv', 'valid.csv', 'test.csv'),
    ('training.csv', 'validation.csv', 'test.csv.gz'),
    ('x_train.csv', 'x_val.csv', 'x_test.csv'),
    ('Frappe_x1_train.csv', 'Frappe_x1_dev.csv', 'Frappe_x1_test.csv'),
    ('train-0-of-2.csv train-1-of-2.csv', 'dev-0-of-1.csv', 'test-0-of-1.csv'),
    ('train/part-2.csv train/part-10.csv', 'valid/part-0.csv', 'test/a.csv'),
  ],
)
def test_usual_names_say_the_split(tmp_path, train, valid, test):
  wanted = {'train': train, 'valid': valid, 'test': test}
  touch(tmp_path, *' '.join(wanted.values()).split())
  touch(tmp_path, 'items.csv', 'train/_SUCCESS', 'train/.part-0.csv.crc')
  lines = []
  assert find(tmp_path, log=lines.append) == wanted
  assert 'train, by its name: ' in lines[-1]
  assert 'not read: items.csv' in lines[-1]
  # A run of before there was the key reads a directory whole.
  joined = find(tmp_path, names_give_splits=False)
  assert list(joined) == ['train'] and 'items.csv' in joined['train']


def test_a_saved_config_without_the_key_means_what_it_meant(tmp_path):
  config = config_lib.ranking()
  assert config.data.names_give_splits
  del config.data['names_give_splits']
  (tmp_path / 'config.json').write_text(config.to_json())
  assert not read_config(tmp_path / 'config.json')['data']['names_give_splits']


def test_the_config_goes_before_patterns_and_patterns_before_names(tmp_path):
  touch(tmp_path, 'train.csv', 'valid.csv', 'test.csv', 'more.csv')
  lines = []
  found = find(
    tmp_path, files={'train': '*.csv', 'test': 'test.csv'}, log=lines.append
  )
  assert found == {'train': 'more.csv train.csv valid.csv', 'test': 'test.csv'}
  assert "data.files.train='*.csv' is read without test.csv" in lines[0]
  assert find(tmp_path, files={'test': 'test.csv', 'valid': ''}) == {
    'train': 'train.csv',
    'valid': 'valid.csv',
    'test': 'test.csv',
  }
  assert find(tmp_path, files={'test': 'more.csv'})['valid'] == 'valid.csv'


def test_all_of_a_pattern_is_trained_on_with_a_warning(tmp_path, caplog):
  touch(tmp_path, 'train.csv', 'valid.csv')
  with caplog.at_level(logging.WARNING, 'genrec_jax'):
    assert find(tmp_path, files={'train': '*.csv'}) == {
      'train': 'train.csv valid.csv'
    }
  assert 'names of valid.csv say that they are not for training' in caplog.text


def test_a_file_beside_that_of_the_path_is_of_the_same_data(tmp_path):
  touch(tmp_path, 'a_train.csv', 'a_test.csv', 'b_valid.csv', 'log.csv')
  assert find(tmp_path, 'a_train.csv') == {
    'train': 'a_train.csv',
    'test': 'a_test.csv',
  }
  for alone in ('log.csv', 'a_test.csv'):
    assert find(tmp_path, alone) == {'train': alone}


def test_names_of_no_split_are_read_whole(tmp_path):
  touch(tmp_path, 'day_10.csv', 'day_9.csv', 'contest.csv')
  assert find(tmp_path) == {'train': 'contest.csv day_9.csv day_10.csv'}
  touch(tmp_path, 'test.csv')
  assert find(tmp_path) == {
    'train': 'contest.csv day_9.csv day_10.csv',
    'test': 'test.csv',
  }


@pytest.mark.parametrize(
  'names, shown',
  [
    ('a_train.csv b_train.csv', 'a_train.csv, b_train.csv'),
    ('train.csv train.csv.gz', 'train.csv, train.csv.gz'),
    ('train.csv train/0.csv', 'train, train.csv'),
    ('train.csv dev.csv valid.csv', 'dev.csv, train.csv, valid.csv'),
    ('train.csv eval.csv', 'eval.csv, train.csv'),
    ('train.csv val.csv train_val.csv', 'train.csv, train_val.csv, val.csv'),
  ],
)
def test_ambiguous_names_are_listed_with_the_keys(tmp_path, names, shown):
  touch(tmp_path, *names.split())
  with pytest.raises(ValueError, match='data.files.train') as e:
    find(tmp_path)
  assert f': {shown}; set' in str(e.value)
  files = {'train': names.split()[0], 'valid': names.split()[-1]}
  if '/' not in names:
    assert find(tmp_path, files={**files, 'test': ''}, names_give_splits=False)


def test_the_other_names_choose_among_several_data_sets(tmp_path):
  touch(tmp_path, 'a_train.csv', 'a_test.csv', 'b_train.csv', 'b_test.csv')
  assert find(tmp_path, files={'train': 'b_train.csv'}) == {
    'train': 'b_train.csv',
    'test': 'b_test.csv',
  }


@pytest.mark.parametrize('kind', ['same', 'dots', 'link', 'hard link', 'two'])
def test_a_file_of_two_splits_is_refused(tmp_path, kind):
  touch(tmp_path, 'a.csv')
  name = {'same': 'a.csv', 'dots': f'../{tmp_path.name}/a.csv'}.get(kind, 'b')
  if kind == 'link':
    os.symlink(tmp_path / 'a.csv', tmp_path / 'b')
  elif kind == 'hard link':
    os.link(tmp_path / 'a.csv', tmp_path / 'b')
  files = {'train': 'a.csv', 'test': name}
  if kind == 'two':
    files = {'train': '*.csv', 'test': 'a*'}
  with pytest.raises(ValueError, match='a.csv|/b is in two.*data.files.test='):
    find(tmp_path, files=files)
  if kind == 'link':  # an explicit name, and all others
    with pytest.raises(ValueError, match="'\\*.csv' leaves the train split no"):
      find(tmp_path, files={'train': '*.csv', 'test': 'b'})
    with pytest.raises(ValueError, match='data.files.test=.*data.path='):
      find(tmp_path, 'a.csv', files={'test': 'b'})


ROWS = 'label,user\n0,a\n1,b\n0,c\n1,d\n'


def load(path, name='csv', **cfg):
  lines = []
  cfg = {'name': name, 'path': str(path), **cfg}
  data = datasets.load(cfg, path / 'cache', lines.append)
  return {s: len(x) for s, x in data.splits.items()}, '\n'.join(lines)


def test_every_format_knows_the_names(tmp_path):
  for name in ('csv', 'libsvm', 'parquet', 'criteo'):
    (tmp_path / name).mkdir()
  (tmp_path / 'csv/train.csv').write_text(ROWS)
  with gzip.open(tmp_path / 'csv/test.csv.gz', 'wt') as f:
    f.write('label,user\n1,a\n')
  (tmp_path / 'libsvm/d.train.libfm').write_text('1 3:1\n0 4:1\n')
  (tmp_path / 'libsvm/d.validation.libfm').write_text('0 4:1\n')
  for split, users in {'train': ['a', 'b'], 'valid': ['c']}.items():
    (tmp_path / 'parquet' / split).mkdir()
    table = pa.table({'label': [0] * len(users), 'user': users})
    pq.write_table(table, tmp_path / 'parquet' / split / 'part-0.parquet')
  row = '0' + '\t1' * 39 + '\n'
  (tmp_path / 'criteo/train.txt').write_text(row * 3)
  (tmp_path / 'criteo/test.txt').write_text(row[2:])  # which is to be scored
  assert load(tmp_path / 'csv')[0] == {'train': 4, 'test': 1}
  assert load(tmp_path / 'libsvm', 'libsvm')[0] == {'train': 2, 'valid': 1}
  assert load(tmp_path / 'parquet', 'parquet')[0] == {'train': 2, 'valid': 1}
  sizes, log = load(tmp_path / 'criteo', 'criteo')
  assert sizes == {'train': 3}
  assert 'test.txt is not used as the test split: it has no column label' in log
  assert library_files.format_of(tmp_path / 'parquet') == 'parquet'


def test_links_are_not_two_splits(tmp_path):
  touch(tmp_path, 'train.csv')
  os.symlink(tmp_path / 'train.csv', tmp_path / 'valid.csv')
  with pytest.raises(ValueError, match='valid.csv are one file, in two splits'):
    find(tmp_path)


def test_hidden_files_are_nobodys(tmp_path):
  touch(tmp_path, 'train.csv', '._train.csv', '.valid.csv', 'test.csv')
  assert find(tmp_path) == {'train': 'train.csv', 'test': 'test.csv'}
