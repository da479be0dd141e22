"""Doubtful histories are counted while data are prepared, and told once."""

import logging
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax.data.ranking import datasets

OWN = {'history': 'visits'}
FEATURES = {
  'film': {'table': 'film'},
  'genre': {'table': 'genre'},
  'films': {'kind': 'sequence', 'table': 'film', **OWN},
  'genres': {'kind': 'sequence', 'table': 'genre', **OWN},
  'ages': {'kind': 'numeric_sequence', 'transform': 'log', **OWN},
}
HEAD = 'label,film,genre,films,genres,ages\n'
# The candidate's genre is in its history, as it mostly is.
GOOD = '1,a,war,b^c,war^art,9^2\n' * 3 + '0,b,art,,,\n'


@pytest.fixture
def warnings(caplog):
  caplog.set_level(logging.WARNING, 'genrec_jax')

  def find(words):
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]

  return find


def prepare(tmp_path, text, features=FEATURES, **options):
  (tmp_path / 'x.csv').write_text(text)
  cfg = {'name': 'csv', 'path': str(tmp_path / 'x.csv'), 'features': features}
  split = {'test_fraction': 0.0, 'valid_fraction': 0.0}
  return datasets.load(
    {**cfg, 'split': split, **options}, tmp_path / 'cache', lambda _: None
  )


def test_histories_without_a_doubt_are_not_told(tmp_path, warnings):
  prepare(tmp_path, HEAD + GOOD)
  assert not warnings('history')


@pytest.mark.parametrize('split', [0.0, 0.25])
def test_events_after_the_impression_are_counted(tmp_path, warnings, split):
  text = HEAD + GOOD + '1,a,war,b^c^b,war^art^war,5^-1^-7.5\n' * 2
  text += '0,a,war,b,war,-1\n' + GOOD
  shares = {'test_fraction': split, 'valid_fraction': 0.0}
  prepare(tmp_path, text, split=shares)
  (line,) = warnings('after the impression')
  assert line.startswith('3 of 11 rows have an event after')
  assert "x.csv, line 6, column 'ages': '-1', read as 0" in line
  assert "history 'visits'" in line
  assert not warnings('go back')


def test_times_that_go_back_are_counted(tmp_path, warnings):
  # Of equal ages, and beside a missing one, nothing goes back.
  text = HEAD + GOOD + '1,a,war,b^c^b,war^art^war,5^5^1\n'
  text += '1,a,war,b^c^b,war^art^war,5^^7\n'
  text += '1,a,war,b^c^b,war^art^war,5^^4\n1,a,war,b,war,900\n'
  prepare(tmp_path, text)
  (line,) = warnings('go back')
  assert line.startswith('1 of 8 rows have a history whose times go back')
  assert "x.csv, line 7, column 'ages': '7'" in line


def test_times_of_events_are_compared_with_that_of_the_impression(
  tmp_path, warnings
):
  rows = {
    'label': [1, 0, 1],
    'at': [100, 100, 100],
    'film': ['a', 'b', 'c'],
    'films': [['x', 'y'], ['x', 'y'], ['y', 'x']],
    'visitTimes': [[3.0, 100.5], [3.0, 101.0], [90.0, 3.0]],
    'watch_time': [[3.0, -1.0], [3.0, 200.0], [90.0, 3.0]],
    'price': [[-3.0, 1.0], [3.0, 200.0], [90.0, 3.0]],
  }
  pq.write_table(pa.table(rows), tmp_path / 'x.parquet')
  numbers = {'kind': 'numeric_sequence', **OWN}
  features = {
    'film': {'table': 'film'},
    'films': {'kind': 'sequence', 'table': 'film', **OWN},
    **dict.fromkeys(['visitTimes', 'watch_time', 'price'], numbers),
  }
  cfg = {'name': 'parquet', 'path': str(tmp_path), 'features': features}
  datasets.load({**cfg, 'time': 'at'}, tmp_path / 'cache', lambda _: None)
  (late,), (back,) = warnings('after the impr'), warnings('go back')
  assert late.startswith("1 of 3 rows have an event after") and "'at'" in late
  assert "row 2, column 'visitTimes': '101'" in late
  assert back.startswith('1 of 3 rows') and "row 3, column 'visitTimes'" in back


def test_candidates_in_their_own_history_are_counted(tmp_path, warnings):
  text = HEAD + GOOD + '1,a,war,b^a,war^war,9^2\n' * 2
  text += '0,a,war,a^a,war^war,9^2\n0,c,war,a^c,art^art,9^2\n'
  prepare(tmp_path, text)
  (line,) = warnings('in their own history')
  # With another genre it is another event: a mistake, or another thing.
  assert line.startswith("3 of 8 rows have the candidate in their own history")
  assert '(2 of the 5 rows whose first label is above 0, 1 of the 3' in line
  assert "x.csv, line 6, column 'films': 'a'" in line
  assert not warnings('go back') and not warnings('after the impr')


def test_values_that_share_a_row_are_not_taken_for_one(tmp_path, warnings):
  files = {'train': 'x.csv', 'test': 'new.csv'}
  (tmp_path / 'new.csv').write_text(HEAD + '1,new,art,other,art,9\n')
  (tmp_path / 'x.csv').write_text(HEAD + GOOD)
  cfg = {'name': 'csv', 'path': str(tmp_path), 'files': files}
  cfg |= {'features': FEATURES}
  datasets.load(cfg, tmp_path / 'cache', lambda _: None)
  one = {'vocabulary': 'hashed', 'hash_rows': 1}
  hashed = {
    name: {**options, **(one if 'film' in name else {})}
    for name, options in FEATURES.items()
  }
  prepare(tmp_path, HEAD + GOOD, hashed)
  assert not warnings('in their own history')


def test_generated_candidates_may_come_back(tmp_path, warnings):
  section = {'users': 20, 'items': 6, 'categories': 2, 'favourites': 1}
  section |= {'kinds': 2, 'history': 6}
  cfg = {'name': 'interests', 'interests': section}
  datasets.load(cfg, pathlib.Path(tmp_path), lambda _: None)
  assert not warnings('history')
