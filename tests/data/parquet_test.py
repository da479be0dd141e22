import datetime
import sys

import numpy as np
import pytest

from genrec_jax.data import readers

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')

COLUMNS = dict(user='who', item='what', time='when', rating='stars')
DAY = 1709164800
DATE = datetime.datetime(2024, 2, 29)
ZONE = datetime.timezone(datetime.timedelta(hours=1))


def write(tmp_path, **columns):
  path = tmp_path / 'log.parquet'
  pq.write_table(pa.table(columns), path, row_group_size=3)
  return path


def read(path, columns=None, **options):
  return list(readers.read_parquet([path], columns or COLUMNS, **options))


def test_columns_by_name_in_chunks(tmp_path):
  rng = np.random.default_rng(0)
  columns = dict(
    extra=['x'] * 10,
    stars=rng.random(10),
    who=rng.integers(0, 5, 10),
    what=rng.integers(0, 5, 10).astype(np.int32).astype(str),
    when=rng.integers(0, 99, 10),
  )
  path = write(tmp_path, **columns)
  chunks = read(path, chunk_rows=4)
  assert max(map(len, chunks)) <= 4
  for name, column in [
    ('user', columns['who']),
    ('item', columns['what']),
    ('time', columns['when']),
    ('rating', columns['stars'].astype(np.float32)),
  ]:
    got = np.concatenate([getattr(c, name) for c in chunks])
    np.testing.assert_array_equal(got, column)
  assert chunks[0].where(2) == f'{path}, row 3'
  assert chunks[-1].where(len(chunks[-1]) - 1) == f'{path}, row 10'


@pytest.mark.parametrize(
  'when',
  [
    pa.array([DAY, DAY + 1]),
    pa.array([DAY + 0.5, DAY + 1.9]),
    pa.array([DATE, DATE + datetime.timedelta(seconds=1.5)]),
    pa.array(
      [
        datetime.datetime(2024, 2, 29, 1, tzinfo=ZONE),
        datetime.datetime(2024, 2, 29, 1, 0, 1, tzinfo=ZONE),
      ]
    ),
    pa.array(['2024-02-29', '2024-02-29 00:00:01']),
    pa.array([DATE, DATE + datetime.timedelta(seconds=1)], pa.timestamp('ns')),
  ],
)
def test_times_of_every_type(tmp_path, when):
  path = write(tmp_path, who=[1, 2], what=[1, 2], when=when, stars=[1, 2])
  assert read(path)[0].time.tolist() == [DAY, DAY + 1]


def test_dates(tmp_path):
  when = pa.array([DATE.date(), DATE.date()])
  path = write(tmp_path, who=[1, 2], what=[1, 2], when=when, stars=[1, 2])
  assert read(path)[0].time.tolist() == [DAY, DAY]


def test_ids_of_every_type(tmp_path):
  who = pa.array(['b', 'a']).dictionary_encode()
  what = pa.array([1, 2], pa.uint8())
  path = write(tmp_path, who=who, what=what)
  columns = dict(user='who', item='what')
  chunk = read(path, columns)[0]
  assert chunk.user.tolist() == ['b', 'a'] and chunk.item.tolist() == [1, 2]
  assert chunk.time is None and chunk.rating is None
  assert read(path, columns, ids='str')[0].item.tolist() == ['1', '2']
  with pytest.raises(
    ValueError, match="row 1, column 'who': 'b' is not a user"
  ):
    read(path, columns, ids='int')


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(who=[1, None, 3]), "row 2, column 'who': None is not a user id"),
    (dict(what=['a', 'b', '']), "row 3, column 'what': '' is not an item id"),
    (dict(when=[1, -2, 3]), "row 2, column 'when': -2 is not a time"),
    (dict(when=[1.0, 2.0, float('nan')]), "row 3, column 'when': nan"),
    (dict(when=[True, False, True]), "column 'when': type bool is not a time"),
    (dict(stars=[1, float('nan'), 3]), "row 2, column 'stars': nan"),
    (dict(stars=['1', '2', '3']), 'type string is not a finite number'),
    (dict(who=[1.0, 2.5, 3.0]), "row 2, column 'who': 2.5 is not a user id"),
    (dict(who=[1.0, 2e16, 3.0]), "row 2, column 'who': 2e.16 is not a user id"),
    (dict(who=[True, False, True]), 'type bool is not a user id'),
    (
      dict(who=pa.array([2**63, 1, 2], pa.uint64())),
      'row 1.*is not a user id',
    ),
  ],
)
def test_bad_values_are_named(tmp_path, change, message):
  good = dict(who=[1, 2, 3], what=[1, 2, 3], when=[1, 2, 3], stars=[1, 2, 3])
  path = write(tmp_path, **good | change)
  with pytest.raises(ValueError, match=f'log.parquet, .*{message}'):
    read(path)


def test_bad_files_are_named(tmp_path):
  path = write(tmp_path, who=[1], what=[2])
  with pytest.raises(ValueError, match="no column 'whom'.*mean 'who'"):
    read(path, dict(user='whom', item='what'))
  path = write(tmp_path, who=np.zeros(0, int), what=np.zeros(0, int))
  with pytest.raises(ValueError, match='log.parquet: the file holds no events'):
    read(path, dict(user='who', item='what'))
  path.write_text('no parquet')
  with pytest.raises(ValueError, match='log.parquet: not a readable Parquet'):
    read(path, dict(user='who', item='what'))
  with pytest.raises(FileNotFoundError, match='no such file'):
    read(tmp_path / 'absent', dict(user='who', item='what'))


def test_a_damaged_page_is_named(tmp_path):
  rng = np.random.default_rng(0)
  path = write(
    tmp_path, who=rng.integers(0, 9, 99), what=rng.integers(0, 9, 99)
  )
  content = bytearray(path.read_bytes())
  content[4:200] = bytes(196)
  path.write_bytes(content)
  with pytest.raises(ValueError, match='log.parquet, after row 0: .*damaged'):
    read(path, dict(user='who', item='what'))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  monkeypatch.delitem(sys.modules, 'genrec_jax.data.parquet', raising=False)
  import genrec_jax.data

  monkeypatch.delattr(genrec_jax.data, 'parquet', raising=False)
  with pytest.raises(ImportError, match=r"'genrec_jax\[parquet\]'"):
    read(tmp_path / 'x', dict(user='a', item='b'))


LONG = 'x' * 5000


@pytest.mark.parametrize('bad', [None, '', 'a\0', LONG])
@pytest.mark.parametrize('repeats', [1, 4])  # its dictionary is read, or not
def test_bad_text_id_is_refused_where_it_stands(tmp_path, bad, repeats):
  who = ['a', 'b', 'b'] * repeats + [bad]
  path = tmp_path / 'log.parquet'
  pq.write_table(pa.table(dict(who=who, what=who[::-1])), path)
  with pytest.raises(ValueError, match=f'row {len(who)}, column .who.'):
    read(path, dict(user='who', item='who'))


@pytest.mark.parametrize('rows', [2, 7, 100])
@pytest.mark.parametrize('ids', ['auto', 'int'])
def test_texts_that_repeat_are_read_as_in_every_row(tmp_path, ids, rows):
  rng = np.random.default_rng(0)
  words = np.array(['7', '13', '-2', '8' * 18])
  who, what = words[rng.integers(0, 4, (2, 40))]
  path = tmp_path / 'log.parquet'
  pq.write_table(pa.table(dict(who=who.tolist(), what=what.tolist())), path)
  chunks = read(path, dict(user='who', item='what'), ids=ids, chunk_rows=rows)
  kind = int if ids == 'int' else str
  for name, column in (('user', who), ('item', what)):
    parts = [getattr(chunk, name) for chunk in chunks]
    np.testing.assert_array_equal(np.concatenate(parts), column.astype(kind))
    if ids == 'auto':
      assert all(x.dtype == np.array(x.tolist()).dtype for x in parts)


@pytest.mark.parametrize('name', ['item.x', 'item'])
def test_a_dot_in_a_name_is_no_path(tmp_path, name):
  columns = {'user': [1, 2], 'item': [5, 6], 'item.x': [8, 9]}
  if name == 'item.x':
    columns['item'] = [{'x': 1}, {'x': 2}]
  pq.write_table(pa.table(columns), tmp_path / 'x.parquet')
  roles = {'user': 'user', 'item': name}
  (events,) = readers.read_parquet([tmp_path / 'x.parquet'], roles)
  assert events.item.tolist() == columns[name]


@pytest.mark.parametrize('ids', ['auto', 'int', 'str'])
def test_ids_that_became_floats_are_the_whole_numbers(tmp_path, ids):
  """As pandas writes a column of whole numbers with a missing one."""
  path = write(tmp_path, who=[1.0, 48.0], what=['48', '48'])
  roles = dict(user='who', item='what')
  [events] = readers.read_parquet([path], roles, ids=ids)
  assert list(map(str, events.user)) == ['1', '48']
  csv = tmp_path / 'x.csv'
  csv.write_text('who,what\n48,48.0\n1.0,48\n')
  [events] = readers.read_csv([csv], roles)
  assert events.user.tolist() == [48, 1] and events.item.tolist() == [48, 48]
