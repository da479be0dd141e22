import gzip
import os
import pathlib

import numpy as np
import pytest

from genrec_jax.data import readers

DATA = pathlib.Path(os.environ.get('GENREC_DATA', '../shared/data'))
COLUMNS = dict(user='who', item='what', time='when', rating='stars')


def write(path, text):
  path.write_bytes(text.encode())
  return path


def joined(chunks):
  chunks = list(chunks)
  return {
    name: np.concatenate([getattr(c, name) for c in chunks])
    for name in ('user', 'item', 'time', 'rating')
    if getattr(chunks[0], name) is not None
  }


def assert_columns(got, **expected):
  assert set(got) == set(expected)
  for name, values in expected.items():
    assert got[name].tolist() == values, name


FIXED = [
  (readers.movielens_tab, '\t'),
  (readers.movielens_dat, '::'),
]


@pytest.mark.parametrize('read, mark', FIXED)
@pytest.mark.parametrize('end', ['\n', '\r\n'])
@pytest.mark.parametrize('last', [True, False])
@pytest.mark.parametrize('rows', [1, 2, 100])
def test_movielens_rows(tmp_path, read, mark, end, last, rows):
  lines = [(196, 242, 3, 881250949), (186, 302, 4.5, 7), (5, 6, 1, 0)]
  text = end.join(mark.join(map(str, line)) for line in lines)
  path = write(tmp_path / 'u', text + (end if last else ''))
  chunks = list(read(path, chunk_rows=rows))
  assert max(len(c) for c in chunks) <= rows
  got = joined(chunks)
  assert_columns(
    got,
    user=[196, 186, 5],
    item=[242, 302, 6],
    time=[881250949, 7, 0],
    rating=[3, 4.5, 1],
  )
  assert got['user'].dtype == got['time'].dtype == np.int64
  assert got['rating'].dtype == np.float32
  assert chunks[-1].where(len(chunks[-1]) - 1) == f'{path}, line 3'


@pytest.mark.parametrize(
  'line, message',
  [
    ('1::2::3', '3 fields instead of 4'),
    ('1::2::3::4::5', '5 fields instead of 4'),
    ('1::x::3::4', "'x' is not an item id"),
    ('::1::3::4', "'' is not a user id"),
    ('1::1::nan::4', "'nan' is not a finite number"),
    ('1::1::3::nan', "'nan' is not a time"),
    ('1::1::3::-4', "'-4' is not a time"),
    ('1::1::3::', "'' is not a time"),
    ('1::99999999999999999999::3::4', 'is not an item id'),
    ('1::2::3::4\0\0', 'zero bytes'),
  ],
)
@pytest.mark.parametrize('rows', [1, 3, 7, 1000])
def test_a_corrupt_row_in_the_middle_is_named(tmp_path, line, message, rows):
  good = [f'{i}::{i}::3::{i}' for i in range(1, 21)]
  path = write(tmp_path / 'r.dat', '\n'.join([*good[:12], line, *good[12:]]))
  with pytest.raises(ValueError, match=f'r.dat, line 13: .*{message}'):
    list(readers.movielens_dat(path, chunk_rows=rows))


def test_rows_whose_errors_cancel_are_still_found(tmp_path):
  path = write(tmp_path / 'r.dat', '1::2::3::4\n1::2::3\n1::2::3::4::5\n')
  with pytest.raises(ValueError, match='line 2: 3 fields'):
    list(readers.movielens_dat(path))


def test_blank_lines_are_skipped_and_still_counted(tmp_path):
  path = write(tmp_path / 'r.dat', '\n1::2::3::4\n\n\n5::6::7::x\n')
  with pytest.raises(ValueError, match='line 5: '):
    list(readers.movielens_dat(path))
  path = write(tmp_path / 'r.dat', '\n1::2::3::4\n\n\n5::6::7::8\n\n')
  got = joined(readers.movielens_dat(path, chunk_rows=2))
  assert got['user'].tolist() == [1, 5]


def test_sasrec_text(tmp_path):
  path = write(tmp_path / 's.txt', '1 5\n1  6\n2\t5 \n')
  assert_columns(
    joined(readers.sasrec_text(path)), user=[1, 1, 2], item=[5, 6, 5]
  )
  regular = write(tmp_path / 't.txt', '1 5\n1 6\n2\t5\n')
  assert_columns(
    joined(readers.sasrec_text(regular)), user=[1, 1, 2], item=[5, 6, 5]
  )
  write(path, '1 5\n1 6 7\n')
  with pytest.raises(ValueError, match='s.txt, line 2: 3 fields'):
    list(readers.sasrec_text(path))


@pytest.mark.parametrize('text', ['', '\n\n'])
def test_empty_files(tmp_path, text):
  path = write(tmp_path / 'e', text)
  with pytest.raises(ValueError, match='e: the file holds no events'):
    list(readers.movielens_dat(path))
  with pytest.raises(ValueError, match='not even a header'):
    list(readers.read_csv([path], COLUMNS))
  write(path, 'who,what,when,stars\n')
  with pytest.raises(ValueError, match='e: the file holds no events'):
    list(readers.read_csv([path], COLUMNS))
  with pytest.raises(FileNotFoundError, match='absent: no such file'):
    list(readers.read_csv([tmp_path / 'absent'], COLUMNS))


CSV = """\
when,stars,extra,what,who
2024-02-29,5,x,b,u 1
2024-02-29 00:00:05,4.5,"a, ""quoted""
word",a,ü
2024-03-01T00:00:00Z,1,,c,u 1
"""


@pytest.mark.parametrize('rows', [1, 2, 1000])
@pytest.mark.parametrize('packed', [False, True])
def test_csv_by_column_names(tmp_path, rows, packed):
  path = tmp_path / ('log.csv.gz' if packed else 'log.csv')
  path.write_bytes(gzip.compress(CSV.encode()) if packed else CSV.encode())
  chunks = list(readers.read_csv([path], COLUMNS, chunk_rows=rows))
  day = 1709164800
  assert_columns(
    joined(chunks),
    user=['u 1', 'ü', 'u 1'],
    item=['b', 'a', 'c'],
    time=[day, day + 5, day + 86400],
    rating=[5, 4.5, 1],
  )
  assert chunks[-1].where(len(chunks[-1]) - 1) == f'{path}, line 5'


def test_csv_options(tmp_path):
  a = write(tmp_path / 'a.tsv', '\ufeffwho\twhat\twhen\n07\t1\t5000\n')
  b = write(tmp_path / 'b.tsv', 'what\twhen\twho\n2\t6500\t8\n')
  got = joined(
    readers.read_csv(
      [a, b],
      dict(user='who', item='what', time='when', rating=''),
      delimiter='\t',
      time_unit='ms',
    )
  )
  assert_columns(got, user=['07', '8'], item=[1, 2], time=[5, 6])


def test_ids_that_cease_to_be_integers_are_refused_with_advice(tmp_path):
  path = write(tmp_path / 'a.csv', 'who,what\n' + '1,2\n' * 5 + 'x9,2\n')
  columns = dict(user='who', item='what')
  with pytest.raises(ValueError, match=r"line 7: 'x9'.*id_type='str'"):
    list(readers.read_csv([path], columns, chunk_rows=3))
  got = joined(readers.read_csv([path], columns, chunk_rows=3, ids='str'))
  assert got['user'].tolist() == ['1'] * 5 + ['x9']
  with pytest.raises(ValueError, match="line 7: 'x9' is not a user id"):
    list(readers.read_csv([path], columns, ids='int'))


@pytest.mark.parametrize(
  'columns, options, message',
  [
    (dict(user='whom', item='what'), {}, r"no column 'whom'.*mean 'who'"),
    (dict(item='what'), {}, 'name the column of the user ids'),
    (dict(user='who', item=''), {}, 'name the column of the item ids'),
    (COLUMNS | dict(label='x'), {}, "unknown key 'label'"),
    (COLUMNS, dict(ids='text'), 'ids must be'),
    (COLUMNS, dict(time_unit='h'), 'time_unit must be one of'),
    (COLUMNS, dict(delimiter=':-'), 'delimiter must be .::. or one'),
    (dict(user='twice', item='what'), {}, "'twice' appears twice"),
  ],
)
def test_bad_options(tmp_path, columns, options, message):
  path = write(tmp_path / 'a.csv', 'who,what,when,stars,twice,twice\n')
  with pytest.raises(ValueError, match=message):
    list(readers.read_csv([path], columns, **options))


def test_damaged_csv_is_named(tmp_path):
  path = tmp_path / 'a.csv'
  columns = dict(user='who', item='what')
  rows = 'who,what\n1,2\n3,4\n'
  path.write_bytes(rows.encode() + b'\xff\xfe,4\n')
  with pytest.raises(ValueError, match='a.csv, line 4: not utf-8'):
    list(readers.read_csv([path], columns))
  path.write_text(rows + '"unclosed,7\n' + '8,9\n' * 10)
  for chunk_rows in (2, 1000):
    with pytest.raises(ValueError, match='a.csv, line 4: the row that begins'):
      list(readers.read_csv([path], columns, chunk_rows=chunk_rows))
  packed = tmp_path / 'b.csv.gz'
  packed.write_bytes(gzip.compress(rows.encode() * 9000)[:-30])
  with pytest.raises(ValueError, match='b.csv.gz, line .*damaged'):
    list(readers.read_csv([packed], columns, ids='str'))
  packed.write_text(rows)
  with pytest.raises(ValueError, match='b.csv.gz, line 1 .*damaged'):
    list(readers.read_csv([packed], columns))


def test_catalogues(tmp_path):
  dat = tmp_path / 'movies.dat'
  dat.write_bytes('7::Ça (1995)::X\n3::B::Y\n'.encode('latin-1'))
  ids, titles = readers.read_catalogue(dat)
  assert ids.tolist() == [7, 3] and titles == ['Ça (1995)', 'B']
  csv = write(
    tmp_path / 'movies.csv', 'movieId,title,genres\n7,"A, the",X\n3,Ça,Y\n'
  )
  ids, titles = readers.read_catalogue(csv)
  assert ids.tolist() == [7, 3] and titles == ['A, the', 'Ça']
  write(tmp_path / 'u.item', '1|A|01-Jan|x\nzwei|B|02|x\n')
  with pytest.raises(ValueError, match="u.item, line 2: 'zwei' is not an item"):
    readers.read_catalogue(tmp_path / 'u.item')
  write(tmp_path / 'u.item', '')
  with pytest.raises(ValueError, match='catalogue is empty'):
    readers.read_catalogue(tmp_path / 'u.item')


@pytest.mark.parametrize(
  'read, name, rows, users',
  [
    (readers.movielens_tab, 'ml-100k/u.data', 100_000, 943),
    (readers.movielens_csv, 'ml-latest-small/ratings.csv', 100_836, 610),
  ],
)
def test_official_files(read, name, rows, users):
  if not (DATA / name).exists():
    pytest.skip(f'{name} is not under GENREC_DATA or ../shared/data')
  got = joined(read(DATA / name, chunk_rows=30_000))
  assert len(got['user']) == rows
  assert len(np.unique(got['user'])) == users
  first = (DATA / name).read_text().splitlines()[-1].replace('\t', ',')
  user, item, rating, time = first.split(',')
  assert (got['user'][-1], got['item'][-1]) == (int(user), int(item))
  assert (got['rating'][-1], got['time'][-1]) == (float(rating), int(time))
