"""What the columns of a file are, where nobody says it."""

import doctest
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax.data.ranking import (
  datasets,
  feature_guesses,
  history_checks,
  transform,
)
from genrec_jax.data.ranking.feature_guesses import guess_features
from genrec_jax.data.ranking.raw import NumberColumn, RawChunk

ROWS = 400
RNG = np.random.default_rng(0)
LABEL = (RNG.random(ROWS) < 0.3).astype(int)
TEXT = {'kind': 'categorical'}


def guess(cells, name='x', by_type=TEXT, labels=LABEL, pieces=3):
  """The guess of a column in some chunks, the label beside it."""
  cells, labels = list(cells), [str(x) for x in labels]
  chunks = [
    RawChunk(
      {
        name: NumberColumn(np.array(part))
        if isinstance(part[0], int | float)
        else part,
        'y': labels[at[0] : at[-1] + 1],
      },
      len(part),
    )
    for at in np.array_split(np.arange(len(cells)), pieces)
    if (part := cells[at[0] : at[-1] + 1])
  ]
  return guess_features(chunks, {name: by_type}, ['y'])[name]


def kind(cells, **options):
  found = guess(cells, **options).options
  return found and found['kind']


@pytest.mark.parametrize(
  'cells, wanted',
  [
    ((f'{n}.5' for n in range(ROWS)), 'numeric'),
    (['', '1e-3'] * 200, 'numeric'),
    (['7', '7.0', '1e3', ''] * 100, 'categorical'),
    (['7', 'x', '0.5'] * 100, 'categorical'),
    (['1_0', '0.5'] * 100, 'categorical'),  # which float() reads
    (['nan', 'inf', '3'] * 100, 'categorical'),
    (['2024-03-01', '', '2024-03-02 10:15:00'] * 100, None),
    (['2024-03-01', 'never'] * 100, 'categorical'),
    ([''] * ROWS, 'categorical'),
    ((str(n) for n in range(1, ROWS + 1)), None),
    ((str(n) for n in range(7000, 7000 - ROWS, -1)), None),
    (range(ROWS), None),
    ((str(n) for n in range(10)), 'categorical'),  # too few
    ((str(n + n // 399) for n in range(ROWS)), 'categorical'),
    ((str(n * 2) for n in range(ROWS)), 'categorical'),
  ],
)
def test_kinds_of_cells(cells, wanted):
  assert kind(cells) == wanted


@pytest.mark.parametrize(
  'cells, wanted',
  [
    (['red^new', '', 'red'] * 100, {'kind': 'multi_hot'}),
    (['3^17', '4'] * 100, {'kind': 'multi_hot'}),
    (['2024-03-01^2024-03-02'] * 100, {'kind': 'multi_hot'}),
    (['a^b'] * 20 + [f'word {n}' for n in range(180)], {'kind': 'multi_hot'}),
    (['a^b'] * 19 + [f'word {n}' for n in range(181)], TEXT),
    (['a^b'] * 19 + ['word'] * 181, TEXT),  # of all cells, not of the values
    (['9^2.5', '4', ''] * 100, None),
  ],
)
def test_texts_that_are_lists(cells, wanted):
  found = guess(cells)
  assert found.options == wanted
  if wanted and 'multi_hot' in wanted.values():
    assert f"lists joined by ^, such as '{cells[0]}'" == found.reason


HISTORY = (
  'data.features, this one with --config.data.features.{0}.kind=numeric_'
  'sequence --config.data.features.{0}.history=events and the lists beside it'
)


def test_lists_of_numbers_say_how_they_are_read(tmp_path, caplog):
  """As docs/ranking_data.md has them: a history in CSV, and in Parquet."""
  lists = {
    'items': [['i3', 'i9', 'i2'], [], ['i7']],
    'seconds': [[86400.0, 3600.0, 12.5], [], [40.0]],
    'days': [[3, 2, 1], [], [4]],
    'counts': [[3, 2, 1], [], [4]],
  }
  pq.write_table(
    pa.table({'label': [1, 0, 1], **lists}), tmp_path / 'x.parquet'
  )
  texts = {
    name: ['^'.join(map(str, cell)) for cell in cells]
    for name, cells in lists.items()
  }
  rows = zip('101', *texts.values(), strict=True)
  lines = [','.join(row) for row in [('label', *texts), *rows]]
  (tmp_path / 'x.csv').write_text('\n'.join(lines) + '\n')
  for name in ('parquet', 'csv'):
    caplog.clear()
    cfg = {'name': name, 'path': str(tmp_path / f'x.{name}')}
    data = datasets.load(cfg, tmp_path / 'cache', print)
    kinds = {column.name: column.kind for column in data.encoder.schema.columns}
    assert kinds == dict.fromkeys(('items', 'days', 'counts'), 'multi_hot')
    seconds, days = caplog.messages
    assert "'seconds' is left out, for it has lists of numbers, such as" in (
      seconds
    )
    assert "'86400.0^3600.0^12.5'" in seconds
    assert HISTORY.format('seconds') in seconds
    assert "'days' has lists of whole numbers, and by its name they" in days
    assert HISTORY.format('days') in days


def test_types_say_more_than_values():
  assert kind([1.0, 2.5] * 200, by_type={'kind': 'numeric'}) == 'numeric'
  whole = guess([1.0, 2.0, 5.0] * 100, by_type={'kind': 'numeric'})
  assert whole.options == {'kind': 'numeric'} and 'if ids' in whole.reason
  holed = NumberColumn(np.array([1.0, 0, 5]), np.array([True, False, True]))
  [by_holes] = guess_features(
    [RawChunk({'x': holed, 'y': ['0', '1', '0']}, 3)],
    {'x': {'kind': 'numeric'}},
    ['y'],
  ).values()
  assert by_holes.options == TEXT
  assert kind(RNG.integers(9, size=ROWS).tolist()) == 'categorical'
  assert guess(['a'] * ROWS, by_type=None).options is None


def test_few_texts_among_fractions_are_a_warning():
  cells = [f'{n}.25' for n in range(ROWS)]
  cells[7] = 'n/a'
  found = guess(cells)
  assert found.options == TEXT and "'n/a'" in found.reason
  assert 'leave such cells empty' in found.warning


@pytest.mark.parametrize(
  'name, cells, words',
  [
    ('seen', LABEL, "tells 100.0% of the values of label 'y'"),
    ('x', 1 - LABEL, 'tells 100.0%'),
    ('stars', 1 + 3 * LABEL, 'tells 100.0%'),
    ('x', LABEL * (RNG.random(ROWS) < 0.5), "is 1 only where label 'y' is 1"),
    ('x', LABEL * (np.arange(ROWS) < 30), ''),  # ten such rows: by chance
    ('x', np.where(RNG.random(ROWS) < 0.1, 1 - LABEL, LABEL), ''),
    ('x', RNG.integers(2, size=ROWS), ''),
    ('is_like', RNG.integers(2, size=ROWS), 'by its name'),
    ('addToCart', RNG.integers(2, size=ROWS), 'by its name'),
    ('likely', RNG.integers(2, size=ROWS), ''),
    ('clicks', RNG.integers(9, size=ROWS), ''),  # so far, say
    ('rating', RNG.integers(5, size=ROWS), 'by its name'),
  ],
)
def test_columns_that_look_like_labels(name, cells, words):
  found = guess([str(x) for x in cells], name)
  assert found.options == TEXT
  assert words in found.warning if words else not found.warning


def test_only_the_first_rows_are_read():
  def chunks():
    yield RawChunk({'x': ['1', '5'] * (feature_guesses.ROWS // 2)}, 1 << 15)
    raise AssertionError('reads on')

  assert guess_features(chunks(), {'x': TEXT}, [])['x'].options == TEXT


def write(path, rows=3000):
  """Prices with four digits, a number of the row, ids, and another label."""
  rng = np.random.default_rng(1)
  names = 'label,row,user,price,like,session'
  with open(path, 'w') as f:
    f.write(names + '\n')
    for i in range(rows):
      f.write(
        f'{rng.integers(2)},{i + 1},u{rng.integers(30)},{rng.random():.4f},'
        f'{rng.integers(2)},s{i}\n'
      )
  return path


def test_a_csv_file(tmp_path, caplog, monkeypatch):
  """Fractions used to become categories, unseen in 99.6 % of the test rows."""
  monkeypatch.setattr(feature_guesses, 'ROWS', 1000)
  lines = []
  cfg = {'name': 'csv', 'path': str(write(tmp_path / 'x.csv'))}
  data = datasets.load(cfg, tmp_path / 'cache', lines.append)
  kinds = {c.name: c.kind for c in data.encoder.schema.columns}
  assert kinds == {
    'user': 'categorical',
    'price': 'numeric',
    'like': 'categorical',
    'session': 'categorical',
  }
  assert 'row      left out     numbers the rows: 1, 2, 3 ...' in lines[0]
  assert 'price    numeric      numbers with fractions' in lines[0]
  assert 'left out: row' in caplog.text
  assert "'like' looks like another label by its name" in caplog.text


def test_what_only_later_rows_show_is_said(tmp_path, caplog, monkeypatch):
  monkeypatch.setattr(feature_guesses, 'ROWS', 1024)
  path = tmp_path / 'x.csv'
  with open(path, 'w') as f:
    f.write('label,price,session\n')
    for i in range(3000):
      price = i * 37 % 1000 if i < 2200 else i * 37 % 1000 + 0.5
      f.write(f'{i % 2},{price},s{i}\n')
  cfg = {'name': 'csv', 'path': str(path)}
  data = datasets.load(cfg, tmp_path / 'cache', print)
  assert {spec.kind for spec in data.features} == {'categorical'}
  feature_guesses.warn_of_vocabularies(data.encoder, 3000, guessed=True)
  fraction, wide = caplog.messages
  assert "'price' is categorical, by the first rows, and has" in fraction
  assert "'session' has 3,000 values in 3,000 training rows" in wide
  caplog.clear()
  feature_guesses.warn_of_vocabularies(data.encoder, 9000, guessed=False)
  assert not caplog.messages


def test_parquet_columns_are_looked_at_beyond_their_types(tmp_path):
  table = {
    'label': LABEL,
    'row': np.arange(ROWS),
    'text': [f'{n / 8}' for n in range(ROWS)],
    'float': np.arange(ROWS) * 1.5,
    'id': RNG.integers(9, size=ROWS),
    'tags': [['a']] * ROWS,
    'vector': [[0.5]] * ROWS,
  }
  pq.write_table(pa.table(table), tmp_path / 'x.parquet')
  cfg = {'name': 'parquet', 'path': str(tmp_path / 'x.parquet')}
  data = datasets.load(cfg, tmp_path / 'cache', print)
  assert {spec.name: spec.kind for spec in data.features} == {
    'text': 'numeric',
    'float': 'numeric',
    'id': 'categorical',
    'tags': 'multi_hot',
  }


def test_a_constant_price_that_changes_later_does_not_explode(tmp_path, caplog):
  """Its deviation is 1.4e-17, which is rounding noise and not a scale."""
  rows, change = 7000, 6400
  prices = np.where(np.arange(rows) < change, 0.1, 0.101)
  lines = [f'{i % 2},{i % 9},{p:.9g}' for i, p in enumerate(prices)]
  (tmp_path / 'x.csv').write_text('label,user,price\n' + '\n'.join(lines))
  cfg = {'name': 'csv', 'path': str(tmp_path / 'x.csv')}
  cfg |= {'numeric': 'standardize', 'split': {'test_fraction': 0.1}}
  with caplog.at_level(logging.WARNING):
    data = datasets.load(cfg, tmp_path / 'cache', print)
  assert "feature 'price' is 0.1 in all training rows" in caplog.text
  test = data.splits['test'].rows(0, 700).numbers[:, 0]
  np.testing.assert_allclose(test[-1], 0.001, rtol=1e-5)
  assert not data.splits['train'].rows(0, 5000).numbers.any()


def test_z_scores_are_clipped_where_that_is_asked_for(tmp_path):
  lines = [
    f'{i // 10 % 2},{100.0 if i == 999 else i % 10 / 2}' for i in range(1000)
  ]
  (tmp_path / 'x.csv').write_text('label,price\n' + '\n'.join(lines))
  cfg = {'name': 'csv', 'path': str(tmp_path / 'x.csv'), 'clip': 3.0}
  cfg |= {'numeric': 'standardize', 'split': {'test_fraction': 0.1}}
  data = datasets.load(cfg, tmp_path / 'cache', print)
  test = data.splits['test'].rows(0, 100).numbers
  assert test.max() == 3.0 and abs(test).min() < 1
  (column,) = data.encoder.schema.columns
  assert column.clip == 3.0


@pytest.mark.parametrize('scale', [1e-3, 1e-4])
def test_small_deviations_beside_a_large_mean_are_measured(scale):
  x = 1e9 + np.random.default_rng(0).normal(0, scale, 20_000)
  moments = transform.Moments()
  for chunk in np.array_split(x, 40):
    moments.add(NumberColumn(chunk))
  exact = x.astype(np.longdouble)
  mean = exact.mean()
  deviation = np.sqrt(((exact - mean) ** 2).mean())
  assert not moments.is_constant
  assert abs(moments.deviation / deviation - 1) < 1e-9
  assert abs(moments.mean - mean) <= np.spacing(1e9)


@pytest.mark.parametrize('value', [0.1, -1e30, 1e9, 0.0])
def test_rounding_noise_is_no_deviation(value):
  moments = transform.Moments()
  assert not moments.is_constant
  for chunk in ([value] * 999, [value, np.nextafter(value, 2 * value)], []):
    moments.add(NumberColumn(np.array(chunk)))
  assert moments.is_constant and moments.deviation == 1.0
  z = transform.transform_numbers(
    NumberColumn(np.array([value, value + 5])),
    'standardize',
    moments.mean,
    moments.deviation,
  )
  assert abs(z[0]) <= 2 * np.spacing(abs(value)) and z[1] <= 5


def test_examples():
  assert doctest.testmod(feature_guesses).failed == 0
  assert doctest.testmod(history_checks).failed == 0
  assert doctest.testmod(transform).failed == 0
