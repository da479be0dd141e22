"""Numbers with a decimal comma: files with points say the same."""

import doctest
import logging
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.data import datasets as events
from genrec_jax.data import decimals, readers, stream, vocab
from genrec_jax.data.ranking import datasets, formats
from genrec_jax.serve import inputs

EVENTS = """user;item;time;stars;dwell
a;x;1,25;4,5;0,5
b;y;7;3;2
a;y,z;2,5;1,0;1e2
"""
EXAMPLES = """label;shop;price;weights;tags
1;s1;3,14;0,5^2;a,b
0;s2;-1,5;1;7,8
1;s1;2;0,25^1;c
0;s3;;1^1;a,b
"""


def load_rows(path, **changes) -> datasets.RankingDataset:
  cfg = {'name': 'csv', 'path': str(path), 'labels': ('label',), **changes}
  return datasets.load(cfg, path.parent / 'cache', lambda _: None)


def turn(text: str) -> str:
  """With points, by hand: only commas between digits are numbers' here."""
  for number in ('1,25', '4,5', '0,5', '2,5', '1,0', '3,14', '-1,5', '0,25'):
    text = text.replace(number, number.replace(',', '.'))
  return text.replace('7,8', '7.8')


def test_doctests():
  assert doctest.testmod(decimals).failed == 0


def test_events(tmp_path):
  columns = dict(user='user', item='item', time='time', rating='stars')
  extras = events.build_extras({'extras': {'dwell': 'float'}})
  read = {}
  for name, text in (('comma', EVENTS), ('point', turn(EVENTS))):
    path = tmp_path / f'{name}.csv'
    path.write_text(text)
    decimal = {'comma': ',', 'point': '.'}[name]
    (read[name],) = readers.read_csv(
      [path], columns, decimal=decimal, extras=extras
    )
  a, b = read['comma'], read['point']
  assert a.item.tolist() == ['x', 'y', 'y,z']
  for key in ('user', 'item', 'time', 'fraction', 'rating'):
    np.testing.assert_array_equal(getattr(a, key), getattr(b, key))
  np.testing.assert_array_equal(a.extras['dwell'], b.extras['dwell'])
  assert a.rating.tolist() == [4.5, 3, 1] and a.fraction[0] == 250_000_000


def test_converted_events_are_others_with_another_mark(tmp_path):
  (tmp_path / 'log.csv').write_text(EVENTS)
  columns = dict(user='user', item='item', time='time', rating='stars')
  cfg = dict(name='csv', path=str(tmp_path / 'log.csv'), columns=columns)
  cfg['min_rating'] = 3.5
  with pytest.raises(
    ValueError, match="'1,25' is not .*; --config.data.decimal=, reads"
  ):
    events.load(ConfigDict(cfg), tmp_path / 'cache', lambda _: None)
  cfg = ConfigDict(cfg | {'decimal': ','})
  histories = events.load(cfg, tmp_path / 'cache', lambda _: None).histories
  assert len(histories.items) == 1
  # Files that can be read with both: the mark is part of the name.
  (tmp_path / 'log.csv').write_text('user;item\na;7,5\na;8\n')
  cfg = {**cfg, 'columns': dict(user='user', item='item', rating='', time='')}
  for mark, item in (('.', '7,5'), (',', '7.5')):
    data = ConfigDict(cfg | {'decimal': mark, 'min_rating': None})
    histories = events.load(data, tmp_path / 'cache', lambda _: None).histories
    assert item in histories.vocab.decode(histories.items).tolist()


def test_examples(tmp_path):
  features = {
    'shop': {},
    'price': {'kind': 'numeric'},
    'tags': {},
  }
  loaded = []
  for name, text in (('comma', EXAMPLES), ('point', turn(EXAMPLES))):
    path = tmp_path / f'{name}.csv'
    path.write_text(text)
    more = {'decimal': ','} if name == 'comma' else {}
    loaded.append(load_rows(path, features=features, **more))
  a, b = (data.splits['train'].block(0) for data in loaded)
  np.testing.assert_array_equal(a.numbers, b.numbers)
  np.testing.assert_array_equal(a.ids, b.ids)
  np.testing.assert_array_equal(a.numbers[:, 0], np.float32([3.14, -1.5, 2, 0]))
  # New examples are read as those of training were.
  encoder = loaded[0].encoder
  (chunk,) = formats.read_examples(encoder, tmp_path / 'comma.csv')
  np.testing.assert_array_equal(encoder.encode(chunk).numbers, a.numbers)


def test_they_are_told_with_the_remedy(tmp_path, caplog):
  path = tmp_path / 'x.csv'
  path.write_text(EXAMPLES)
  caplog.set_level(logging.WARNING, 'genrec_jax')
  load_rows(path)
  (line,) = [r.getMessage() for r in caplog.records if 'price' in r.message]
  assert "column 'price' has numbers with a decimal comma, such as '3,14'" in (
    line
  )
  assert 'set --config.data.decimal=,' in line
  caplog.clear()
  data = load_rows(path, decimal=',')
  assert not [r for r in caplog.records if 'decimal' in r.getMessage()]
  assert 'price' in data.splits['train'].names.numbers
  with pytest.raises(ValueError, match="'3,14' is not .*data.decimal=,"):
    load_rows(path, features={'price': {'kind': 'numeric'}})
  with pytest.raises(ValueError, match="data.decimal is 'x'"):
    load_rows(path, decimal='x')
  with pytest.raises(ValueError, match='separator of feature .tags'):
    lists = {'tags': {'kind': 'multi_hot', 'separator': ','}}
    load_rows(path, features=lists, decimal=',')


@pytest.mark.parametrize(
  'day', ['24.12.2023', '12/24/2023', '2023/12/24 09:30']
)
def test_dates_of_other_forms_are_told(tmp_path, caplog, day):
  path = tmp_path / 'x.csv'
  path.write_text(f'label,shop,day\n1,a,{day}\n0,b,{day}\n1,a,{day}\n')
  caplog.set_level(logging.WARNING, 'genrec_jax')
  data = load_rows(path)
  lines = [
    r.getMessage() for r in caplog.records if repr(day) in r.getMessage()
  ]
  assert len(lines) == 1 and "column 'day' is left out, for it has" in lines[0]
  assert 'convert them to the form 2023-12-24' in lines[0]
  assert not [r for r in caplog.records if 'left out: day' in r.getMessage()]
  assert data.splits['train'].names.ids == ('shop',)
  with pytest.raises(ValueError, match=f"column 'day': '{day}' is a date in"):
    load_rows(path, time='day')


def test_new_events_are_read_as_those_of_training(tmp_path):
  """Of files to predict for, and of parts that appear."""
  (tmp_path / 'log.csv').write_text(
    'user;item;time\na;x;2,5\na;y;1,25\na;z;2,75\nb;x;1,5\nb;y;1,0\n'
  )
  config = config_lib.retrieval()
  config.data.decimal = ','
  config.predict.input = str(tmp_path / 'log.csv')
  items = types.SimpleNamespace(vocab=vocab.Vocab(np.array(['x', 'y', 'z'])))
  histories, _ = inputs.read_input(config, items, tmp_path / 'histories')
  assert items.vocab.decode(histories.items).tolist() == list('yxzyx')
  columns = {'user': 'user', 'item': 'item', 'time': 'time', 'rating': ''}
  options = dict(columns=columns, item_vocab=items.vocab, log=lambda _: None)
  options |= dict(batch_size=2, max_len=4, idle_s=0.0)
  with pytest.raises(ValueError, match="'2,5' is not"):
    next(iter(stream.stream_batches(tmp_path, **options)))
  batch = next(iter(stream.stream_batches(tmp_path, decimal=',', **options)))
  read = batch.jagged['events']
  assert read['item'][: read.lengths.sum()].tolist() == [2, 1, 2]
