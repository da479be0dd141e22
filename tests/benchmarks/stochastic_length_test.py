"""The simulation of stochastic length, against sums by hand."""

import numpy as np
import pytest

from benchmarks import stochastic_length
from benchmarks.stochastic_length import Lengths, draw_sparsity, fit_lengths


def test_lengths_are_a_normal_distribution_and_an_even_one():
  shares = Lengths(1000.0, 50.0, 0.25).find_shares()
  assert shares.sum() == pytest.approx(1) and shares[0] == 0
  assert shares[1:500].sum() == pytest.approx(0.25 * 499 / 999)
  assert shares[10] == pytest.approx(0.25 / 999)
  # Two thirds of the normal part lie within one deviation.
  assert shares[1000:1051].sum() == pytest.approx(0.75 * 0.345, abs=0.005)


def test_the_formula_is_a_sum_over_lengths():
  lengths = Lengths(700.0, 200.0, 0.1)
  shares, most, alpha = lengths.find_shares(), 1024, 1.6
  kept = 0.0
  for length, share in enumerate(shares.tolist()):
    n = min(length, most)
    cut = 1 - most**alpha / n**2 if n > 256 else 0.0
    kept += share * (cut * 256 + (1 - cut) * n)
  assert lengths.find_sparsity(most, alpha) == pytest.approx(
    100 * (1 - kept / most)
  )


def test_fitted_lengths_give_the_row_that_they_are_fitted_to():
  lengths = Lengths(3000.0, 600.0, 0.1)
  row = tuple(
    lengths.find_sparsity(most, 2.0) for most in stochastic_length.MOST
  )
  again = fit_lengths(row)
  assert again.mean == pytest.approx(3000, rel=1e-3)
  assert again.deviation == pytest.approx(600, rel=1e-2)
  assert again.below == pytest.approx(0.1, abs=1e-3)


def test_what_is_drawn_follows_the_formula():
  lengths = Lengths(3000.0, 600.0, 0.1)
  users = lengths.make_users(20_000)
  assert users.mean() == pytest.approx(
    lengths.find_shares() @ np.arange(stochastic_length.LONGEST + 1), rel=1e-3
  )
  for most, alpha in ((1024, 1.6), (4096, 1.8), (4096, 2.0)):
    drawn = draw_sparsity(users, most, alpha)
    assert drawn == pytest.approx(lengths.find_sparsity(most, alpha), abs=0.5)


def test_rows(tmp_path, rows):
  stochastic_length.main(['--smoke', '--results', str(tmp_path)])
  measured = rows('stochastic_length')
  assert len(measured) == 15 + 3
  row = measured['30 days, alpha 1.6']
  # The figures of an independent calculation, with rounded parameters.
  for most, wanted in zip((1024, 2048, 4096, 8192), (70.5, 74.9, 78.1, 80.7),
                          strict=True):  # fmt: skip
    assert row[f'formula_{most}'] == pytest.approx(wanted, abs=0.1)
    assert row[f'drawn_{most}'] == pytest.approx(wanted, abs=1.0)
  for days in (30, 60, 90):
    assert measured[f'{days} days, lengths']['fit_off'] < 0.2
