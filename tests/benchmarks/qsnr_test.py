"""Tests of the benchmark of QSNR."""

import doctest

import numpy as np
import pytest

from benchmarks import qsnr
from genrec_jax.numerics.block_formats import BLOCK_FORMATS


def test_smoke_and_its_picture(tmp_path, rows):
  assert doctest.testmod(qsnr).failed == 0
  qsnr.main(['--smoke', '--results', str(tmp_path)])
  found = rows('qsnr')
  for name, published in qsnr.PUBLISHED.items():
    assert found[name]['qsnr_db'] == pytest.approx(published, abs=0.15)
    assert found[name]['to_front_db'] < 0.5
    assert found[name]['least_margin_db'] > 0
  assert found['mx9']['qsnr_db'] - found['msfp16']['qsnr_db'] == pytest.approx(
    3.6, abs=0.2
  )
  assert 'MX9, MX6, MX4' in qsnr.draw(found.values())


@pytest.mark.parametrize('name', ['mx9', 'mx6', 'mx4', 'msfp16', 'msfp12'])
def test_the_definition_of_the_sweep_is_that_of_the_library(name):
  f = BLOCK_FORMATS[name]
  x = qsnr.draw_vectors(20)
  found = qsnr.round_two_levels(
    x, f.block, f.group or 1, f.shift_bits, f.mantissa_bits + 1
  )
  np.testing.assert_array_equal(found, qsnr.round_all(x, f))
