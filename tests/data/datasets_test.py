import dataclasses
import hashlib
import json
import os
import pathlib
import zipfile

import ml_collections
import numpy as np
import pytest

from genrec_jax.data import datasets, readers, splits, vocab

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))


def config(**changes):
  base = dict(
    name='csv',
    path='',
    columns=dict(user='user', item='item', time='time', rating=''),
    min_rating=None,
    min_item_events=0,
    min_user_events=0,
    item_vocab='',
    unknown_items='error',
  )
  return ml_collections.ConfigDict(base | changes)


def quiet(_):
  pass


def movielens(directory, layout):
  """The four official layouts with three items, one of them unrated."""
  ratings = [(9, 30, 4, 200), (9, 10, 5, 100), (2, 30, 1, 50)]
  marks = {'ml100k': '\t', 'ml1m': '::'}
  names = {
    'ml100k': ('u.data', 'u.item', '30|Trent|x\n10|Ten|y\n20|Vingt|z\n'),
    'ml1m': (
      'ratings.dat',
      'movies.dat',
      '30::Trent::x\n10::Ten::\n20::Vingt::\n',
    ),
  }.get(
    layout,
    (
      'ratings.csv',
      'movies.csv',
      'movieId,title,genres\n30,Trent,x\n10,Ten,y\n20,Vingt,z\n',
    ),
  )
  mark = marks.get(layout, ',')
  text = '\n'.join(mark.join(map(str, row)) for row in ratings) + '\n'
  if layout not in marks:
    text = 'userId,movieId,rating,timestamp\n' + text
  (directory / names[0]).write_text(text)
  (directory / names[1]).write_text(names[2])


@pytest.mark.parametrize('name', ['ml100k', 'ml1m', 'ml20m', 'ml_latest'])
def test_movielens_takes_every_item_of_the_catalogue_in_its_order(
  tmp_path, name
):
  movielens(tmp_path, name)
  cfg = config(name=name, path=str(tmp_path))
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert data.histories.vocab.ids.tolist() == [30, 10, 20]
  assert data.corpus.tolist() == [1, 2, 3] and data.corpus.dtype == np.int32
  assert data.titles == {1: 'Trent', 2: 'Ten', 3: 'Vingt'}
  assert data.histories.users.ids.tolist() == [2, 9]
  assert data.histories.items.tolist() == [1, 2, 1]
  assert data.histories.ratings.tolist() == [1, 5, 4]
  assert data.summary() == (
    f'{name}: 2 users, 3 events, 3 items to recommend, 1 events a user '
    '(median; 1 to 2), 1970-01-01 to 1970-01-01'
  )


def test_an_item_outside_the_catalogue_is_named_with_its_line(tmp_path):
  movielens(tmp_path, 'ml1m')
  with open(tmp_path / 'ratings.dat', 'a') as f:
    f.write('9::77::5::300\n')
  cfg = config(name='ml1m', path=str(tmp_path))
  with pytest.raises(ValueError, match='ratings.dat, line 4: item 77 is not'):
    datasets.load(cfg, tmp_path / 'cache', log=quiet)
  cfg.unknown_items = 'skip'
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert len(data.histories.items) == 3


def test_columns_are_converted_once_until_something_changes(tmp_path):
  movielens(tmp_path, 'ml1m')
  cfg = config(name='ml1m', path=str(tmp_path))
  cache, said = tmp_path / 'cache', []

  def load(**changes):
    said.clear()
    with cfg.unlocked():
      changed = ml_collections.ConfigDict(cfg.to_dict() | changes)
    return datasets.load(changed, cache, log=said.append)

  load()
  assert said
  load()
  assert not said
  load(min_rating=2.0)
  assert said and len(list(cache.iterdir())) == 2
  with open(tmp_path / 'ratings.dat', 'a') as f:
    f.write('9::20::5::300\n')
  assert len(load().histories.items) == 4


@pytest.mark.parametrize('change', ['longer', 'same_size', 'gone'])
def test_a_file_that_changes_while_it_is_read_is_refused(
  tmp_path, monkeypatch, change
):
  path, cache = tmp_path / 'log.csv', tmp_path / 'cache'
  path.write_text('user,item,time\n1,5,1\n1,3,2\n')
  read = readers.read_csv

  def read_and_change(*args, **options):
    yield from read(*args, **options)
    if change == 'gone':
      path.unlink()
    else:
      more = '1,4,2\n' * (change == 'longer')
      path.write_text('user,item,time\n1,5,1\n1,9,2\n' + more)
      os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))

  with monkeypatch.context() as patch:
    patch.setattr(readers, 'read_csv', read_and_change)
    with pytest.raises(ValueError, match='the raw files changed while .*csv'):
      datasets.load(config(path=str(path)), cache, log=quiet)
  assert not list(cache.iterdir())
  if change != 'gone':
    data = datasets.load(config(path=str(path)), cache, log=quiet)
    assert 9 in data.histories.vocab.ids


@pytest.mark.parametrize('name', ['ml100k', 'ml1m', 'ml20m', 'sasrec_text'])
def test_absent_files_say_where_to_get_them(tmp_path, name):
  with pytest.raises(ValueError, match='data.path is not set: download'):
    datasets.load(config(name=name), tmp_path, log=quiet)
  with pytest.raises(FileNotFoundError, match='no such file; download'):
    datasets.load(config(name=name, path=str(tmp_path)), tmp_path, log=quiet)


def test_own_csv_files(tmp_path):
  (tmp_path / 'b.csv').write_text('item,user,time\nx,u,3\ny,v,2\n')
  (tmp_path / 'a.csv').write_text('user,item,time\nu,y,3\nu,z,1\n')
  (tmp_path / 'notes.txt').write_text('not data')
  cfg = config(path=str(tmp_path))
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert data.histories.vocab.ids.tolist() == ['x', 'y', 'z']
  # u: z at 1, then y (file a) before x (file b), both at 3
  assert data.histories.items.tolist() == [3, 2, 1, 2]
  assert data.titles is None and data.corpus.tolist() == [1, 2, 3]


def test_a_saved_vocabulary_is_applied_to_new_data(tmp_path):
  (tmp_path / 'old.csv').write_text('user,item,time\n1,5,1\n1,3,2\n1,9,3\n')
  (tmp_path / 'new.csv').write_text('user,item,time\n7,9,1\n7,4,2\n8,3,3\n')
  old = datasets.load(
    config(path=str(tmp_path / 'old.csv')), tmp_path / 'cache', log=quiet
  )
  saved = old.histories.path / 'item_ids.npy'
  cfg = config(path=str(tmp_path / 'new.csv'), item_vocab=str(saved))
  with pytest.raises(ValueError, match='new.csv, line 3: item 4 is not'):
    datasets.load(cfg, tmp_path / 'cache', log=quiet)
  cfg.unknown_items = 'skip'
  said = []
  new = datasets.load(cfg, tmp_path / 'cache', log=said.append)
  assert new.histories.vocab == old.histories.vocab == vocab.Vocab.load(saved)
  assert new.histories.items.tolist() == [3, 1]
  assert new.corpus.tolist() == [1, 2, 3]
  assert '1 skipped unknown item' in said[-1]
  # Later runs, evaluations and reports tell it too.
  again = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert '; 1 events of unknown items were skipped' in again.summary()


def test_titles_from_a_file(tmp_path):
  (tmp_path / 'log.csv').write_text('user,item,time\n1,5,1\n1,3,2\n')
  (tmp_path / 'titles.csv').write_text('title,item\n"Five, or so",5\nNine,9\n')
  cfg = config(
    path=str(tmp_path / 'log.csv'), titles=str(tmp_path / 'titles.csv')
  )
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert data.titles == {2: 'Five, or so'}
  (tmp_path / 'titles.csv').write_text('name,item\nFive,5\n')
  with pytest.raises(ValueError, match="titles.csv: no column 'title'"):
    datasets.load(cfg, tmp_path / 'cache', log=quiet)
  (tmp_path / 'titles.csv').write_text('item,title\n')
  assert datasets.load(cfg, tmp_path / 'cache', log=quiet).titles == {}


def test_own_parquet_files(tmp_path):
  pa = pytest.importorskip('pyarrow')
  pq = pytest.importorskip('pyarrow.parquet')
  table = pa.table({'user': [1, 1], 'item': ['b', 'a'], 'time': [2, 1]})
  pq.write_table(table, tmp_path / 'log.parquet')
  cfg = config(name='parquet', path=str(tmp_path))
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert data.histories.items.tolist() == [1, 2]


def test_sasrec_text_and_converted_histories(tmp_path):
  (tmp_path / 'sasrec.txt').write_text('1 3\n1 1\n2 3\n')
  cfg = config(name='sasrec_text', path=str(tmp_path))
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert data.histories.items.tolist() == [2, 1, 2]
  assert not data.histories.has_times
  cfg = config(name='histories', path=str(data.histories.path))
  again = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  np.testing.assert_array_equal(again.histories.items, data.histories.items)


def test_synthetic(tmp_path):
  shape = dict(
    records=30, length=8, items=50, categories=5, per_record=3, seed=1
  )
  cfg = config(name='synthetic', synthetic=shape)
  data = datasets.load(cfg, tmp_path / 'cache', log=quiet)
  assert len(data.histories) == 30 and len(data.corpus) == 50
  assert data.titles[7].startswith('item 7 (category ')
  assert not (tmp_path / 'cache').exists()


def test_errors(tmp_path):
  with pytest.raises(ValueError, match="one of ml100k, .*, not 'ml2m'"):
    datasets.load(config(name='ml2m'), tmp_path)
  with pytest.raises(ValueError, match='data.path is not set'):
    datasets.load(config(), tmp_path)
  with pytest.raises(FileNotFoundError, match='has no .csv files'):
    datasets.load(config(path=str(tmp_path)), tmp_path)
  with pytest.raises(FileNotFoundError, match='x.csv: no such file'):
    datasets.load(config(path=str(tmp_path / 'x.csv')), tmp_path)


def real(name, path):
  if not (DATA / path).exists():
    pytest.skip(f'{path} is not under GENREC_DATA or ../shared/data')
  return config(name=name, path=str(DATA / path))


def test_official_ml1m(tmp_path):
  data = datasets.load(real('ml1m', 'ml-1m'), tmp_path, log=quiet)
  h = data.histories
  assert (len(h), len(h.items), len(data.corpus)) == (6040, 1_000_209, 3883)
  assert len(np.unique(h.items)) == 3706
  assert data.titles[1] == 'Toy Story (1995)' and h.vocab.ids[-1] == 3952
  parts = splits.split_histories(h, dict(holdout=1), log=quiet)
  assert {k: len(v) for k, v in parts.items()} == {'train': 6040, 'test': 6040}


def test_official_sasrec_text(tmp_path):
  cfg = real('sasrec_text', 'ml-1m/sasrec.txt')
  data = datasets.load(cfg, tmp_path, log=quiet)
  h = data.histories
  assert (len(h), len(h.items), len(data.corpus)) == (6040, 999_611, 3416)
  lines = (DATA / 'ml-1m/sasrec.txt').read_text().splitlines()
  last = [int(x.split()[1]) for x in lines if x.startswith('6040 ')]
  np.testing.assert_array_equal(h.items[h.offsets[-2] :], last)


def test_duplicates_leave_the_caches_of_the_default_alone(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('user,item,time\n' + 'a,1,10\na,2,20\na,1,10\nb,2,5\n' * 2)
  cache = tmp_path / 'cache'
  before = datasets.load(config(path=path), cache, log=quiet)
  asked = config(path=path, duplicates='keep')
  kept = datasets.load(asked, cache, log=quiet)
  assert len(list(cache.iterdir())) == 1 and kept.histories.offsets[-1] == 8
  asked.duplicates = 'drop'
  dropped = datasets.load(asked, cache, log=quiet)
  assert len(list(cache.iterdir())) == 2
  assert np.diff(dropped.histories.offsets).tolist() == [2, 1]
  again = datasets.load(config(path=path), cache, log=quiet)
  np.testing.assert_array_equal(again.histories.items, before.histories.items)
  for name in ('synthetic', 'histories'):
    asked.update(name=name, path=before.histories.path, synthetic={})
    with pytest.raises(ValueError, match='data.duplicates'):
      datasets.load(asked, cache, log=quiet)


def write_parts(directory, marks=',', header=True):
  directory.mkdir()
  for part in range(8):
    mark = marks[part % len(marks)]
    rows = [(f'u{part}', i, 10 * i) for i in range(4)]
    rows = [('user', 'item', 'time')] * header + rows
    text = ''.join(mark.join(map(str, row)) + '\n' for row in rows)
    (directory / f'part-{part}.csv').write_text(text)
  return directory


@pytest.mark.parametrize('header', [True, False])
def test_a_start_looks_into_the_first_file_alone(tmp_path, header, monkeypatch):
  directory = write_parts(tmp_path / 'parts', header=header)
  names = ('user', 'item', 'time') if header else ('0', '1', '2')
  columns = dict(zip(('user', 'item', 'time'), names, strict=True))
  cfg = config(path=str(directory), columns={**columns, 'rating': ''})
  opened = []
  usual = pathlib.Path.open

  def note(path, *args, **options):
    opened.append(path.name)
    return usual(path, *args, **options)

  monkeypatch.setattr(pathlib.Path, 'open', note)
  first = datasets.load(cfg, tmp_path / 'cache', quiet)
  if header:  # once to look, once to read
    assert all(opened.count(f'part-{i}.csv') == 2 for i in range(1, 8))
  opened.clear()
  again = datasets.load(cfg, tmp_path / 'cache', quiet)
  assert {x for x in opened if x.startswith('part')} == {'part-0.csv'}
  np.testing.assert_array_equal(first.histories.items, again.histories.items)
  assert len(first.histories) == 8


@pytest.mark.parametrize('marks', [',', ';', ',;'])
@pytest.mark.parametrize('header', [True, False])
@pytest.mark.parametrize('extra', [True, False])
def test_converted_files_have_the_names_of_earlier_versions(
  tmp_path, marks, header, extra
):
  directory = write_parts(tmp_path / 'parts', marks, header)
  names = ('user', 'item', 'time') if header else ('0', '1', '2')
  columns = dict(zip(('user', 'item', 'time'), names, strict=True))
  columns['rating'] = ''
  extras = {'when': {'kind': 'int', 'column': names[2]}} if extra else {}
  cfg = config(path=str(directory), columns=columns, extras=extras)
  datasets.load(cfg, tmp_path / 'cache', quiet)
  # As version 18 has written it.
  files = sorted(directory.iterdir())
  recipe = {'columns': dict(cfg.columns), 'ids': 'auto', 'time_unit': 's'}
  recipe |= {'delimiter': marks[0]} | ({} if header else {'header': 'no'})
  if len(marks) > 1:
    recipe |= {'delimiters': [marks[i % 2] for i in range(8)]}
  recipe |= {'min_rating': None, 'min_item_events': 0, 'min_user_events': 0}
  recipe |= {'unknown': 'error'}
  if extra:
    (column,) = datasets.build_extras(cfg)
    recipe['extras'] = [dataclasses.asdict(column) | {'vocabulary': False}]
  stats = [(p, p.stat()) for p in files]
  sources = [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats]
  text = json.dumps([sources, recipe, '']).encode()
  name = hashlib.sha256(text).hexdigest()[:16]
  made = [p.name for p in (tmp_path / 'cache').iterdir()]
  assert made == [f'csv-{name}']
  assert len(datasets.load(cfg, tmp_path / 'cache', quiet).histories) == 8


def test_a_workbook_is_to_be_saved_otherwise(tmp_path):
  path = tmp_path / 'events.xlsx'
  with zipfile.ZipFile(path, 'w') as book:
    book.writestr('xl/workbook.xml', '<workbook/>')
  for cfg in (config(path=str(path)), config(path=str(path), delimiter=';')):
    with pytest.raises(ValueError, match='workbook.*save the sheet.* as CSV'):
      datasets.load(cfg, tmp_path, quiet)
  with pytest.raises(FileNotFoundError, match='save events.xlsx as CSV'):
    datasets.load(config(path=str(tmp_path)), tmp_path, quiet)


@pytest.mark.parametrize(
  'rows, columns, words',
  [
    (
      'alice,book\nbob,pen\n',
      dict(user='0', item='1', time='time'),
      "no column '0'.*by number, and data.columns has user=0, item=1 beside "
      r'time=time: set --config.data.columns.time= to a .*\(or to nothing',
    ),
    (
      'user,item,at\na,b,24.12.2023\n',
      dict(user='user', item='item', time='at'),
      "line 2, column 'at': '24.12.2023' is a date in .* than 2023-12-24",
    ),
    (
      'user;item;at\na;b;7,5\n',
      dict(user='user', item='item', time='at'),
      "line 2, column 'at': '7,5' is not .*; --config.data.decimal=, reads",
    ),
  ],
)
def test_what_to_do_about_columns_of_events(tmp_path, rows, columns, words):
  (tmp_path / 'x.csv').write_text(rows)
  cfg = config(path=str(tmp_path / 'x.csv'), columns={'rating': '', **columns})
  with pytest.raises(ValueError, match=words):
    datasets.load(cfg, tmp_path, quiet)
