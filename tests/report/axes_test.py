"""Tests of where axes have their ticks."""

import doctest
import math

import pytest

from genrec_jax import formatting
from genrec_jax.report import axes, chart_files, comparison, score_charts


@pytest.mark.parametrize(
  'low, high, labels',
  [
    (0, 0.31, ['0', '0.1', '0.2', '0.3']),
    (3.87, 7.1, ['4', '5', '6', '7']),
    (0, 4848, ['0', '1,000', '2,000', '3,000', '4,000']),
    (0, 48_480, ['0', '10k', '20k', '30k', '40k']),
    (0.0951, 0.0974, ['0.0955', '0.0960', '0.0965', '0.0970']),
    (-3, 4, ['-2', '0', '2', '4']),
    (0, 2e-5, ['0', '5e-06', '1e-05', '1.5e-05', '2e-05']),
  ],
)
def test_ticks_are_round(low, high, labels):
  values = axes.round_ticks(low, high, 5)
  assert axes.label_ticks(values) == labels


def test_places_beyond_an_end_lie_on_it():
  axis = chart_files.log_axis([1, 100])
  assert axis.place(10) == pytest.approx(0.5, abs=0.02)
  for axis in (axis, axes.linear_axis(0, 3)):
    assert axis.place(-math.inf) == 0 and axis.place(math.inf) == 1


@pytest.mark.parametrize(
  'value, text',
  [
    (None, '–'), (3, '3'), (12345, '12,345'), (0.123456, '0.1235'),
    (1234.5, '1,234'), (math.nan, 'NaN'), (math.inf, 'inf'), (True, 'True'),
  ],
)  # fmt: skip
def test_numbers_as_read(value, text):
  assert formatting.format_number(value) == text


@pytest.mark.parametrize(
  'module', [axes, chart_files, comparison, formatting, score_charts]
)
def test_examples_in_docstrings(module):
  assert doctest.testmod(module).failed == 0
