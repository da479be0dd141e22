"""Settings of the search found on a sample."""

import numpy as np
import pytest

from genrec_jax.numerics import range_tuning
from genrec_jax.numerics.row_quant import dequantize, quantize
from tests.numerics import quant_rows


@pytest.mark.parametrize('bits', [2, 4])
def test_what_is_found_is_nearly_the_best_on_all_rows(bits):
  rows = quant_rows.draw('t3', 1000, 16)
  bins, ratio = range_tuning.tune_search(rows, bits)
  assert bins in range_tuning.BINS and ratio in range_tuning.RATIOS

  def error(bins, ratio):
    arrays = quantize(rows, bits, bins=bins, ratio=ratio)
    return range_tuning.mean_error(rows, dequantize(arrays, 16, bits))

  finest = error(max(range_tuning.BINS), max(range_tuning.RATIOS))
  assert error(bins, ratio) <= finest * 1.03
  assert bins * ratio < max(range_tuning.BINS) * max(range_tuning.RATIOS)


def test_the_sample_is_drawn_by_the_generator(monkeypatch):
  rows = quant_rows.draw('normal', 1000, 4)
  seen = []

  def spy(some, bits, **settings):
    seen.append(some)
    return quantize(some, bits, **settings)

  monkeypatch.setattr(range_tuning, 'quantize', spy)
  monkeypatch.setattr(range_tuning, 'BINS', (5,))
  monkeypatch.setattr(range_tuning, 'RATIOS', (0.5,))
  draws = [{}, {}, {'rng': np.random.default_rng(5)}, {'sample': 0.5}]
  for arguments in draws:
    assert range_tuning.tune_search(rows, 4, **arguments) == (5, 0.5)
  a, b, c, d = seen
  np.testing.assert_array_equal(a, b)
  assert len(a) == len(c) == range_tuning.FEWEST and (a != c).any()
  assert len(d) == 500


def test_mistakes_are_errors():
  with pytest.raises(ValueError, match='8 bits are not searched'):
    range_tuning.tune_search(np.zeros((3, 4), np.float32), 8)
  with pytest.raises(ValueError, match='no rows to tune on'):
    range_tuning.tune_search(np.zeros((0, 4), np.float32), 4)
