import datetime

import numpy as np
import pytest

from genrec_jax.data import fields

DAY = int(datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC).timestamp())


def test_whole_seconds():
  values, good = fields.parse_times(['0', '978300760', '-1'], 's')
  assert values.dtype == np.int64 and values[:2].tolist() == [0, 978300760]
  assert good.tolist() == [True, True, False]


@pytest.mark.parametrize('unit', fields.UNITS)
def test_units(unit):
  scale = fields.UNITS[unit]
  values, good = fields.parse_times(
    [str(7 * scale), str(8 * scale + scale // 2)], unit
  )
  assert values.tolist() == [7, 8] and good.all()
  values, good = fields.parse_times([f'{7.5 * scale}', f'{9.0 * scale}'], unit)
  assert values.tolist() == [7, 9] and good.all()


def test_fractions_and_exponents():
  values, good = fields.parse_times(['1.9', '1e9', '3'], 's')
  assert values.tolist() == [1, 10**9, 3] and good.all()


def test_dates():
  words = [
    '2024-02-29',
    '2024-02-29 00:00:01',
    '2024-02-29T00:00:02.9',
    '2024-02-29T00:00:03Z',
    '2024-02-29T01:00:04+01:00',
  ]
  values, good = fields.parse_times(
    words, 'ms'
  )  # dates have a unit of their own
  assert good.all() and (values - DAY).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
  'word', ['', 'x', 'nan', 'inf', '-3.5', '1e40', '2024-13-01', '1969-12-31']
)
@pytest.mark.parametrize('others', ['17', '17.5', '2024-02-29'])
def test_unreadable_times_are_marked(word, others):
  _, good = fields.parse_times([others, word, others], 's')
  assert good.tolist() == [True, False, True]


def test_ratings():
  words = ['4', '4.5', 'nan', 'inf', '-1e-3', '1e300']
  values, good = fields.parse_ratings(words)
  assert values.dtype == np.float32
  assert good.tolist() == [True, True, False, False, True, False]
  _, good = fields.parse_ratings(['4', '', 'x'])
  assert good.tolist() == [True, False, False]


def test_ids():
  values, good = fields.parse_ids(['5', '', '05'], 'int')
  assert values[0] == 5 and good.tolist() == [True, False, False]
  values, good = fields.parse_ids(['5', '', '05'], 'str')
  assert values.tolist() == ['5', '', '05']
  assert good.tolist() == [True, False, True]
