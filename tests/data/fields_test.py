import datetime

import numpy as np
import pytest

from genrec_jax.data import fields

DAY = int(datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC).timestamp())


def test_whole_seconds():
  (values, fraction), good = fields.parse_times(['0', '978300760', '-1'], 's')
  assert values.dtype == np.int64 and values[:2].tolist() == [0, 978300760]
  assert fraction is None
  assert good.tolist() == [True, True, False]


@pytest.mark.parametrize('unit', fields.UNITS)
def test_units(unit):
  scale = fields.UNITS[unit]
  halves = [0, 500_000_000]
  times, good = fields.parse_times(
    [str(7 * scale), str(8 * scale + scale // 2)], unit
  )
  assert times.seconds.tolist() == [7, 8] and good.all()
  assert scale == 1 or times.fraction.tolist() == halves
  times, good = fields.parse_times([f'{9.0 * scale}', f'{7.5 * scale}'], unit)
  assert times.seconds.tolist() == [9, 7] and good.all()
  assert times.fraction.tolist() == halves


def test_fractions_and_exponents():
  words = ['1.9', '1e9', '3', '1.5e-3', '7.99999999999', '1700000000.123456789']
  (seconds, fraction), good = fields.parse_times(words, 's')
  assert good.all()
  assert seconds.tolist() == [1, 10**9, 3, 0, 7, 1700000000]
  nanoseconds = [900_000_000, 0, 0, 1_500_000, 999_999_999, 123_456_789]
  assert fraction.tolist() == nanoseconds
  for i, word in enumerate(words):  # alike, whatever stands beside it
    alone, _ = fields.parse_times([word], 's')
    assert alone.seconds == seconds[i]
    assert (0 if alone.fraction is None else alone.fraction) == fraction[i]


def test_floats_mean_the_nearest_nanosecond_of_their_second():
  values = np.array([5.123456789, 5.123456788, 5.9999999999, 2.0**62, -0.5])
  (seconds, fraction), good = fields.from_floats(values, 's')
  assert good.tolist() == [True, True, True, False, False]
  assert seconds[:3].tolist() == [5, 5, 5]
  assert fraction[:3].tolist() == [123_456_789, 123_456_788, 999_999_999]


def test_dates():
  words = [
    '2024-02-29',
    '2024-02-29 00:00:01',
    '2024-02-29T00:00:02.9',
    '2024-02-29T00:00:03Z',
    '2024-02-29T01:00:04+01:00',
    '2024-02-29T00:00:05.123456789Z',
  ]
  (seconds, fraction), good = fields.parse_times(
    words, 'ms'
  )  # dates have a unit of their own
  assert good.all() and (seconds - DAY).tolist() == [0, 1, 2, 3, 4, 5]
  assert fraction.tolist() == [0, 0, 900_000_000, 0, 0, 123_456_789]


@pytest.mark.parametrize(
  'zone',
  [' UTC', 'UTC', ' GMT', ' utc', 'Z', ' Z', 'z', ' +0000', '+00', ' +00:00'],
)
def test_zones_of_utc(zone):
  words = ['2024-02-29 00:00:05.123456789', '2024-02-29T00:00:06', '2024-02-29']
  times, good = fields.parse_times([word + zone for word in words[:2]], 's')
  assert good.all() and (times.seconds - DAY).tolist() == [5, 6]
  assert times.fraction.tolist() == [123_456_789, 0]
  if zone.strip().isalpha():
    assert fields.parse_times([words[2] + zone], 's')[0].seconds == DAY


@pytest.mark.parametrize('word', ['UTC', 'Z', '17 UTC', '2024-02-29 CET'])
def test_other_words_are_no_zones(word):
  assert not fields.parse_times([word], 's')[1].any()


@pytest.mark.parametrize(
  'word',
  ['', 'x', 'nan', 'inf', '-3.5', '-0.5', '1e40', '1e999999999', '1.2.3', '.']
  + ['2024-13-01', '1969-12-31', '1969-12-31T23:59:59.9'],
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
