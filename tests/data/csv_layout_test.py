"""How a CSV file is laid out, by what is wanted of it."""

import doctest
import gzip

import pytest

from genrec_jax.data import csv_layout
from genrec_jax.data.csv_layout import find_layout

NAMES = ['user', 'item', 'time']
BY_NUMBER = ['0', '1', '2']


def write(tmp_path, text, name='log.csv'):
  path = tmp_path / name
  if name.endswith('.gz'):
    path.write_bytes(gzip.compress(text.encode()))
  else:
    path.write_text(text)
  return path


def test_examples():
  assert doctest.testmod(csv_layout).failed == 0


@pytest.mark.parametrize('mark', [',', ';', '\t', '|'])
@pytest.mark.parametrize('name', ['log.csv', 'log.csv.gz'])
def test_the_delimiter_that_gives_the_columns(tmp_path, mark, name):
  rows = [NAMES, ['a', 'x,y;z', '3'], ['b', 'x', '4']]
  text = ''.join(mark.join(f'"{v}"' for v in row) + '\n' for row in rows)
  layout = find_layout(write(tmp_path, text, name), NAMES)
  assert layout == csv_layout.CsvLayout(mark, NAMES, True)
  assert bool(layout.describe('log')) == (mark != ',')


@pytest.mark.parametrize('mark', [',', ';', '\t', '|'])
def test_columns_by_number(tmp_path, mark):
  text = ''.join(f'u{i}{mark}i{i}{mark}{i}\n' for i in range(30))
  layout = find_layout(write(tmp_path, text), BY_NUMBER)
  assert layout == csv_layout.CsvLayout(mark, BY_NUMBER, False)
  assert 'no header, so the 3 columns count from 0' in layout.describe('log')


def test_a_header_of_numbers_numbers_all_columns(tmp_path):
  text = '0,1,2\n7,8,9\n'
  assert find_layout(write(tmp_path, text), BY_NUMBER).has_header
  assert not find_layout(
    write(tmp_path, text), BY_NUMBER, header='no'
  ).has_header
  for text in ('0,2,1\n7,8,9\n', '0,1,3\n7,8,9\n'):
    assert not find_layout(write(tmp_path, text), BY_NUMBER).has_header
  # One name is a word, so all of them are names.
  assert find_layout(write(tmp_path, 'a,1\n7,8\n'), ['a', '1']).has_header


def test_a_header_is_no_event(tmp_path):
  text = 'customer,sku,bought_at\nc1,s1,1700000000\nc2,s2,1700000001\n'
  path = write(tmp_path, text)
  with pytest.raises(ValueError, match="line 1: 'bought_at' seems to be the"):
    find_layout(path, ['0', '1'])
  assert not find_layout(path, ['0', '1'], header='no').has_header
  dates = text.replace('1700000000', '2024-03-01').replace('1700000001', '2024')
  with pytest.raises(ValueError, match='header=no if this line is data'):
    find_layout(write(tmp_path, dates), ['0', '1'])
  # Words stand in each row, or nothing can be told.
  for text in ('a,x\nb,y\n', 'a,1\n', 'a,1\nb,x\n', ',1\n3,2\n', '7,a\nx,b\n'):
    assert not find_layout(write(tmp_path, text), ['0', '1']).has_header


def test_two_delimiters_are_asked_for(tmp_path):
  path = write(tmp_path, 'a;b,c;d\ne;2,3;f\n')
  with pytest.raises(
    ValueError, match='set --config.data.delimiter to the one'
  ):
    find_layout(path, ['0', '1'])
  assert find_layout(path, ['0', '1'], ';').names == BY_NUMBER
  both = write(tmp_path, 'a,b;a;b\n1,2;3;4\n')
  # The usual one is taken where it has all columns.
  assert find_layout(both, ['a']).delimiter == ','
  assert find_layout(both, ['a'], usual=';').delimiter == ';'


def test_rows_of_other_widths_are_no_columns(tmp_path):
  rows = [f'{i}|x,y' if i != 5 else '5|x' for i in range(30)]
  path = write(tmp_path, '\n'.join(rows) + '\n')
  assert find_layout(path, ['0', '1']).delimiter == '|'


def test_words_that_are_no_setting(tmp_path):
  path = write(tmp_path, 'a,b\n1,2\n')
  with pytest.raises(ValueError, match="did you mean 'yes'"):
    find_layout(path, ['a'], header='yess')
  with pytest.raises(
    ValueError, match='data.delimiter must be .::. or one char'
  ):
    find_layout(path, ['a'], ':::')


def test_two_colons_between_cells(tmp_path):
  """The layout of MovieLens, whose cells may hold any other delimiter."""
  rows = ['1::a, b;c::5', '2::"d|e::4', '3::f::3']
  headless = write(tmp_path, '\n'.join(rows) + '\n', 'ratings.dat')
  layout = find_layout(headless, BY_NUMBER)
  assert layout == csv_layout.CsvLayout('::', BY_NUMBER, False)
  assert "fields are separated by '::'" in layout.describe('log')
  headed = write(tmp_path, '\n'.join(['user::item::time', *rows]) + '\n')
  assert find_layout(headed, NAMES) == csv_layout.CsvLayout('::', NAMES, True)
  assert find_layout(headed, NAMES, '::').names == NAMES
  # Inside of cells they are no delimiter.
  text = ''.join(f'{i},std::vector\n' for i in range(30))
  assert find_layout(write(tmp_path, text), ['0', '1']).delimiter == ','


def test_files_of_one_log(tmp_path):
  first = write(tmp_path, 'u1,a,1\nu2,b,2\n', 'a.csv')
  other = write(tmp_path, 'u1;a;1\nu2;b;2\n', 'b.csv')
  layouts = csv_layout.find_layouts([first, other, first], BY_NUMBER)
  assert [x.delimiter for x in layouts] == [',', ';', ',']
  wide = write(tmp_path, 'u1,x,a,1\nu2,x,b,2\n', 'c.csv')
  with pytest.raises(ValueError, match='a.csv has 3 columns and .*c.csv has 4'):
    csv_layout.find_layouts([first, wide], ['0', '1'])
  named = write(tmp_path, '0,1,2\n7,8,9\n', 'd.csv')
  with pytest.raises(ValueError, match='d.csv and .*a.csv: one has a header'):
    csv_layout.find_layouts([first, named], BY_NUMBER)
  # Names say which column is which, wherever it stands.
  one = write(tmp_path, 'user,item,time\na,b,1\n', 'e.csv')
  two = write(tmp_path, 'time,more,item,user\n1,x,b,a\n', 'f.csv')
  layouts = csv_layout.find_layouts([one, two], NAMES)
  assert layouts[1].names == ['time', 'more', 'item', 'user']
