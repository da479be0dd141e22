"""Extra columns: how they are named, what they may hold, what is refused."""

import doctest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax.data import extras, fields, histories, pipeline
from tests.data.extras_cases import load, write

# --- Names, kinds and options


def test_the_examples_of_the_pages_hold():
  for module in (extras, histories, pipeline):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
  'section, told',
  [
    ({'x': 'flaot'}, "data.extras.x.kind is 'flaot'.*did you mean 'float'"),
    ({'x': {'knd': 'int'}}, "data.extras.x.knd is not an option.*'kind'"),
    ({'item': 'int'}, "'item' has another meaning.*column=item"),
    ({'x': {'kind': 'int', 'fill': 'a'}}, "fill is 'a', not a whole number"),
    ({'x': {'fill': 'nan'}}, "fill is 'nan', not a finite number"),
    ({'x': {'vocabulary': 'v.npy'}}, 'x.vocabulary is for kind=category'),
  ],
)
def test_what_a_config_may_not_say(section, told):
  with pytest.raises(ValueError, match=told):
    extras.build_extras(section, reserved=('user', 'item', 'time'))


def test_a_store_may_know_fewer_kinds():
  with pytest.raises(ValueError, match="'category'; it must be one of float"):
    extras.build_extras({'x': 'category'}, kinds=('float', 'int'))


WORDS = ['3', '-0', '1.0', '1e3', '', 'x', '1_0', '2.5', '99999999999', 'inf']


@pytest.mark.parametrize('kind', ['float', 'int', 'int64'])
@pytest.mark.parametrize('fill', ['', '7'])
def test_texts_are_read_one_like_the_other_and_together(kind, fill):
  extra = extras.ExtraColumn('x', kind, fill=fill)
  together, good = extras.read_texts(extra, WORDS)
  assert together.dtype == extra.dtype
  for i, word in enumerate(WORDS):
    alone, fine = extras.read_texts(extra, [word])
    if word != '1_0':  # float() reads it as ten, alone or not
      assert fine[0] == good[i], word
    assert not good[i] or alone[0] == together[i] == float(word or fill)


def test_whole_numbers_of_any_size():
  most = 2**63 - 1
  found, good = fields.whole_numbers([str(most), str(-most - 1), str(most + 1)])
  assert good.tolist() == [True, True, False]
  assert found[:2].tolist() == [most, -most - 1]
  assert fields.whole_numbers([])[0].dtype == np.int64


@pytest.mark.parametrize(
  'values', [np.uint64([2**64 - 1, 3, 0]), np.int8([5, 3, 0]), [1.5, 3.0, 0.0]]
)
def test_numbers_of_typed_files(values):
  values, present = np.asarray(values), np.array([True, True, False])
  for kind in ('int', 'int64'):
    extra = extras.ExtraColumn('x', kind, fill='1000')
    found, good = extras.read_numbers(extra, values, present)
    assert found.dtype == extra.dtype
    assert found[1:].tolist() == [3, 1000] and good[1:].all()
    assert good[0] == (values[0] == 5)
  with pytest.raises(TypeError, match='fractions are not categories'):
    extras.read_numbers(extras.ExtraColumn('x', 'category'), np.zeros(1))


# --- Refusals


@pytest.mark.parametrize(
  'row, asked, told',
  [
    ((1, 1, 1, 'b', 'x', 1), {'rating': 'float'}, "'rating': 'x' is not a fin"),
    ((1, 1, 1, 'b', 'nan', 1), {'rating': 'float'}, "'nan' is not a finite"),
    ((1, 1, 1, 'b', 2.5, 1), {'rating': 'int'}, "'2.5' is not a whole number"),
    ((1, 1, 1, 'b', 3e9, 1), {'rating': 'int'}, 'of 32 bits.*rating.kind'),
    ((1, 1, 1, 'b', '', 1), {'rating': 'int'}, 'empty cell; .*rating.fill'),
    ((1, 1, 1, '', 1, 1), {'action': 'category'}, 'empty cell; .*action.fill'),
  ],
)
def test_a_bad_value_is_told_with_file_and_line(tmp_path, row, asked, told):
  good = (1, 1, 1, 'b', 1, 1)
  path = write(tmp_path / 'x.csv', [good, row, good])
  with pytest.raises(ValueError, match=rf'x.csv, line 3, column .*{told}'):
    load(path, tmp_path / 'cache', extras=asked)
  assert not list((tmp_path / 'cache').glob('*'))


def test_a_missing_column_is_told_with_the_nearest(tmp_path):
  path = write(tmp_path / 'x.csv', [(1, 1, 1, 'b', 1, 1)])
  with pytest.raises(
    ValueError, match="no column 'wached' for the extra.*mean 'watched'"
  ):
    load(path, tmp_path / 'cache', extras={'wached': 'float'})
  with pytest.raises(ValueError, match='so there are no extra columns'):
    load('', tmp_path, name='synthetic', extras={'x': 'float'}, synthetic={})


@pytest.mark.parametrize(
  'kind, values, told',
  [
    ('float', pa.array(['a']), 'type string is not of kind float'),
    ('category', pa.array([1.5]), 'fractions are not categories'),
    ('int', pa.array([None], pa.int32()), 'x.parquet, row 1.*empty cell'),
    ('int', pa.array([2**31]), '2147483648 is not a whole number of 32 bits'),
    ('float', pa.array([float('nan')]), 'nan is not a finite number'),
    ('int', pa.array([[1]]), 'is not of kind int'),
  ],
)
def test_parquet_types_that_do_not_fit(tmp_path, kind, values, told):
  table = {'user': [1], 'item': [1], 'time': [1], 'x': values}
  pq.write_table(pa.table(table), tmp_path / 'x.parquet')
  with pytest.raises(ValueError, match=told):
    load(
      tmp_path / 'x.parquet',
      tmp_path / 'cache',
      name='parquet',
      extras={'x': kind},
    )


def test_a_directory_of_histories_must_have_what_is_asked(tmp_path):
  path = write(tmp_path / 'x.csv', [(1, 1, 1, 'b', 1, 1)])
  made = load(path, tmp_path / 'cache', extras={'rating': 'int'})
  again = load(made.path, '', name='histories')
  assert again.extras['rating'].tolist() == [1]
  with pytest.raises(ValueError, match="'ratings'.*there are rating; did you"):
    load(made.path, '', name='histories', extras={'ratings': 'int'})
  with pytest.raises(ValueError, match='stored as int32, not as.*kind=float'):
    load(made.path, '', name='histories', extras={'rating': 'float'})
  (made.path / 'extra-0.npy').unlink()
  np.save(made.path / 'extra-0.npy', np.zeros(3, np.int32))
  with pytest.raises(ValueError, match='extra-0.npy is damaged .140 bytes'):
    histories.Histories.open(made.path)
