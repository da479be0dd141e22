"""Streams of touched rows: what they are drawn from, and what was fitted."""

import numpy as np
import pytest
from scipy import special

from benchmarks import access_streams, locality


def published(exponent):
  """The histogram of a batch whose rates are a power law, few above 300."""
  rates = 2 ** (np.arange(-600, 12 * 16) / 16)
  reads = np.arange(1, 2**13)
  # chance of k reads, times the density of the rate
  log = reads[:, None] * np.log(rates) - rates[None]
  log = log - special.gammaln(reads + 1)[:, None]
  rows = np.exp(log) @ (rates**-exponent * np.exp(-rates / 300))
  distinct = rows.sum()
  bins = np.ceil(np.log2(reads)).astype(int)
  return locality.Locality(
    tables=1, batch=100, reads=int(1e6 * (rows @ reads) / distinct),
    distinct=1_000_000,
    rows=tuple(np.bincount(bins, rows / distinct, minlength=17)),
    accesses=tuple(
      np.bincount(bins, rows * reads / (rows @ reads), minlength=17)
    ),
  )  # fmt: skip


@pytest.fixture(scope='module')
def spectrum():
  return access_streams.fit(published(0.3), 20.0)


def test_the_fit_recovers_a_planted_law(spectrum):
  assert spectrum.exponent == pytest.approx(0.3, abs=0.01)
  found = spectrum.histogram()
  want = np.asarray(published(0.3).rows)
  np.testing.assert_allclose(found / found.sum(), want, atol=3e-3)
  # One batch reads the rows that all rows are twenty times of.
  assert spectrum.touched(1.0) == pytest.approx(1 / 20, rel=0.03)
  # Far below what a batch shows, unions of k batches grow by k^exponent.
  one, eight, many = (spectrum.touched(k) for k in (1.0, 8.0, 64.0))
  assert (many - eight) / (eight - one) == pytest.approx(8**0.3, rel=0.05)


def test_intervals_touch_the_fraction_they_were_made_for(spectrum):
  batches = spectrum.batches(0.26)
  assert spectrum.touched(batches) == pytest.approx(0.26)
  stream = access_streams.trace(
    spectrum, 'drawn', 60_000, batches=batches, intervals=4
  )
  assert stream.rows == 60_000 and list(stream.tables.values())[0] == 32_000
  each, union = stream.fractions()
  np.testing.assert_allclose(each, 0.26, atol=0.01)
  wanted = [spectrum.touched(batches * k) for k in (1, 2, 3, 4)]
  np.testing.assert_allclose(union, wanted, atol=0.01)
  first, again = next(stream.intervals()), next(stream.intervals())
  for name, (ids, reads) in first.items():
    assert (np.diff(ids) > 0).all() and reads.min() >= 1
    assert ids.max() < stream.tables[name]
    np.testing.assert_array_equal(reads, again[name][1])


def test_ratings_are_cut_in_the_order_of_time(tmp_path):
  lines = ['7::10::5::300', '7::11::5::100', '8::10::5::200', '9::12::5::400']
  (tmp_path / 'ratings.dat').write_text('\n'.join(lines) + '\n')
  stream = access_streams.movielens(tmp_path / 'ratings.dat', 2)
  assert stream.tables == {'user': 3, 'item': 3}
  first, second = stream.intervals()
  assert first['user'][0].tolist() == [0, 1]  # 7 at 100, 8 at 200
  assert first['item'][0].tolist() == [0, 1]
  assert second['user'][0].tolist() == [0, 2]
  each, union = access_streams.only(stream, ['item']).fractions()
  assert each.tolist() == pytest.approx([2 / 3, 2 / 3])
  assert union.tolist() == pytest.approx([2 / 3, 1])


@pytest.mark.parametrize('year, exponent', [('2021', 0.352), ('2022', 0.153)])
def test_published_batches_are_a_power_law_at_the_low_end(year, exponent):
  path = access_streams.statistics(year)
  if not path:
    pytest.skip('dlrm_locality is not under GENREC_DATA or ../shared/data')
  row = access_streams.measure_trace(year, locality.read(path), 30.0)
  assert row['exponent'] == pytest.approx(exponent, abs=0.002)
  assert row['histogram_error'] < 0.002
  assert row['batch_fraction'] == pytest.approx(1 / 30, rel=0.02)
  assert 0.38 < row['union_12'] < 0.6  # the paper's 52 % is between the two


def test_smoke_without_data(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('GENREC_DATA', str(tmp_path))
  access_streams.main(['--smoke'])
  assert 'ml-1m is left out' in capsys.readouterr().out
