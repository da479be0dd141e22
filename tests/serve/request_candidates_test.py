"""What a file of candidates is told of, before its scores mislead anybody."""

import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.data.ranking import formats
from genrec_jax.data.requests import prepared
from genrec_jax.data.requests.feature_values import read_values
from genrec_jax.serve import score_requests
from genrec_jax.serve.request_inputs import CandidateFile, Tally
from tests.serve import request_runs


@pytest.fixture(scope='module')
def films(tmp_path_factory):
  """Ratings, which have times."""
  root = tmp_path_factory.mktemp('films')
  request_runs.write_ratings(root / 'ratings.csv', request_runs.make_log())
  config = request_runs.make_config(name='movielens', path=str(root))
  return prepared.load(config.data, root / 'data', log=lambda line: None)


def make_stream(root, **options):
  config = request_runs.make_config(order='stream')
  config.data.streaming.update(items=4000, **options)
  return prepared.load(config.data, root / 'data', log=lambda line: None)


@pytest.fixture(scope='module')
def stream(tmp_path_factory):
  """The generated stream, without times."""
  return make_stream(tmp_path_factory.mktemp('stream'))


def open_file(tmp_path, dataset, lines, **columns) -> CandidateFile:
  path = tmp_path / 'asked.csv'
  path.write_text('\n'.join(lines) + '\n')
  named = {'user': 'user', 'item': 'item', 'time': '', **columns}
  predict = ConfigDict({'format': '', 'columns': named})
  values = read_values(dataset.spec, dataset.vocabs)
  return CandidateFile(path, predict, dataset, values, 6)


# --- Columns of times that are not read


@pytest.mark.parametrize('name', ['time', 'Timestamp', 'time_ms', 'date'])
def test_a_column_of_times_that_is_not_read_is_told(
  films, tmp_path, said, name
):
  lines = [f'user,item,{name}', '11,7,1000000000']
  open_file(tmp_path, films, lines)
  assert f"asked.csv: the column '{name}' is not read" in said()
  assert 'every history has all events of its user' in said()
  assert f'set --config.predict.columns.time={name}' in said()
  # So that the sentence is one that a user can follow.
  (block,) = open_file(tmp_path, films, lines, time=name).read()
  assert block.requests.time.tolist() == [1_000_000_000]


def test_nothing_is_told_where_times_are_read_or_missing(films, tmp_path, said):
  lines = ['user,item,time,step', '11,7,1000000000,3']
  open_file(tmp_path, films, lines, time='time')
  open_file(tmp_path, films, ['user,item,step,timid', '11,7,3,2'])
  assert 'is not read' not in said()


def test_predictions_are_candidates_again(films, tmp_path, said):
  """With the columns that those of the test split have."""
  lines = ['request,user,time,movie_id,score', '1,11,1000000000,7,0.5']
  open_file(tmp_path, films, lines)
  assert 'set --config.predict.columns.time=time' in said()
  (block,) = open_file(tmp_path, films, lines, time='time').read()
  assert list(block.named) == ['user', 'movie_id', 'time']


def test_steps_of_a_stream_without_times_are_told(stream, tmp_path, said):
  """As predictions for the test split have them."""
  open_file(tmp_path, stream, ['user,step,item', '1,5,7'])
  text = said()
  assert "the column 'step' is not read" in text and 'have no times' in text
  assert 'columns.time=' not in text  # which is refused for such data


def test_times_of_a_stream_may_be_read(tmp_path, said):
  data = make_stream(tmp_path, true_time=True)
  open_file(tmp_path, data, ['user,step,item,time', '1,5,7,3600'])
  assert 'columns.time=time' in said()


# --- What is unknown


def find_items(dataset) -> tuple[int, int]:
  """(an item that occurs nowhere, one that occurs), as the data name them."""
  there = {*dataset.events.items['item'].tolist()}
  for split in dataset.splits.values():
    there |= {*split.items['item'].tolist()}
  return next(n for n in range(1, 4000) if n not in there) - 1, min(there) - 1


def test_unknown_values_of_other_features_are_counted(stream, tmp_path, said):
  _, item = find_items(stream)
  lines = ['user,item,category', f'1,{item},77', f'1,{item},3', f'2,{item},']
  file = open_file(tmp_path, stream, [*lines, f'2,{item},odd', '2,99999,3'])
  (block,) = file.read()
  unknown = stream.spec.items[1].rows - 1
  assert block.requests.items['category'].tolist() == [
    unknown, 4, 0, unknown, 4,
  ]  # fmt: skip
  tally = file.tally
  assert tally.unknown_values == 2 and tally.unknown_items == 1
  assert tally.unknown_features == 0
  tally.tell('asked.csv')
  assert '2 of 5 candidates are of a feature with a value that' in said()
  assert 'such as category 77 (' in said() and 'line 2)' in said()
  assert 'category odd (' in said() and 'line 5)' in said()


def test_items_of_which_nobody_knows_the_category_are_counted(
  stream, tmp_path, said
):
  nowhere, item = find_items(stream)
  lines = ['user,item', f'1,{nowhere}', f'1,{item}', '2,99999']
  file = open_file(tmp_path, stream, lines)
  list(file.read())
  assert file.tally.unknown_features == 1 and file.tally.unknown_items == 1
  file.tally.tell('asked.csv')
  assert '1 of 3 candidates are of an item whose other features' in said()
  assert f'such as {nowhere} (' in said()
  # With the category in the file, nothing is missing.
  lines = ['user,item,category', f'1,{nowhere},3', f'1,{item},3']
  file = open_file(tmp_path, stream, lines)
  list(file.read())
  assert file.tally.unknown_features == file.tally.unknown_values == 0


def test_features_that_candidates_alone_have_are_counted(stream, tmp_path):
  """They are asked for by name, and unknown like those of items."""
  spec = stream.spec
  shown = types.SimpleNamespace(
    spec=types.SimpleNamespace(
      items=spec.items[:1], candidates=spec.items[1:]
    )
  )  # fmt: skip
  file = open_file(tmp_path, stream, ['user,item,category', '1,7,77'])
  columns = ['user', 'item', 'category']
  (chunk,) = formats.read_files([file._path], columns, file._reading)
  file.dataset, file._features = shown, {}
  rows = file._encode_items(chunk, ['1'])
  assert rows['category'].tolist() == [spec.items[1].rows - 1]
  assert file.tally.unknown_values == 1


def test_all_counts_are_returned():
  counted = set(score_requests._COUNTED)
  fields = {'rows', 'requests', 'examples'}
  assert counted | fields == set(vars(Tally()))


# --- Names of columns


@pytest.mark.parametrize('cell', [b'7', {'id': 7}])
@pytest.mark.parametrize('name', ['item', 'category'])
def test_columns_of_a_type_that_is_not_read(stream, tmp_path, name, cell):
  pa = pytest.importorskip('pyarrow')
  from pyarrow import parquet

  path = tmp_path / 'asked.parquet'
  cells = {'user': [1], 'item': [7], 'category': [0], name: [cell]}
  parquet.write_table(pa.table(cells), path)
  named = {'user': 'user', 'item': 'item', 'time': ''}
  predict = ConfigDict({'format': '', 'columns': named})
  values = read_values(stream.spec, stream.vocabs)
  file = CandidateFile(path, predict, stream, values, 6)
  message = f"row 1, column '{name}': type .*; c[a-z]+ the column( to text)?$"
  with pytest.raises(ValueError, match=message):
    list(file.read())


@pytest.mark.parametrize(
  'columns, keys',
  [
    ({'item': 'user'}, 'predict.columns.user and predict.columns.item'),
    ({'time': 'item'}, 'predict.columns.item and predict.columns.time'),
    ({'time': 'user'}, 'predict.columns.user and predict.columns.time'),
  ],
)
def test_one_column_is_not_two(films, tmp_path, columns, keys):
  with pytest.raises(ValueError, match=f'{keys} are both .*; name two columns'):
    open_file(tmp_path, films, ['user,item', '11,7'], **columns)


def test_the_item_is_found_by_the_name_that_the_data_have(
  films, tmp_path, said
):
  lines = ['user,movie_id', '11,7', '11,9']
  (block,) = open_file(tmp_path, films, lines).read()
  assert list(block.named) == ['user', 'movie_id']
  assert "items are read from the column 'movie_id'" in said()
  # The name that is asked for comes first, and another one is not guessed.
  lines = ['user,movie_id,item', '11,7,9']
  (other,) = open_file(tmp_path, films, lines).read()
  assert list(other.named) == ['user', 'item']
  rows = block.requests.items['movie_id']
  assert other.requests.items['movie_id'].tolist() == rows[1:].tolist()
  assert rows[0] != rows[1] and np.all(rows > 0)
  message = r"no column 'film'; .*--config\.predict\.columns\.item=NAME"
  with pytest.raises(ValueError, match=message):
    open_file(tmp_path, films, ['user,movie_id', '11,7'], item='film')
  with pytest.raises(ValueError, match=r"no column 'item'.*columns\.item=NAME"):
    open_file(tmp_path, films, ['user,film', '11,7'])
