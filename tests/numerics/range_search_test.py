"""The greedy search: NumPy's and XLA's program, golden ranges."""

import jax
import numpy as np
import pytest

from genrec_jax.numerics import range_search
from genrec_jax.numerics.levels import choose_levels, nearest_codes
from tests.numerics import quant_rows


def search(rows, half=True, **settings):
  x = np.ascontiguousarray(rows.T)
  return range_search.search_ranges(
    x, rows.min(axis=1), rows.max(axis=1), half=half, **settings
  )


@pytest.mark.parametrize('half', [True, False])
def test_xla_finds_the_bits_of_numpy(half, monkeypatch):
  rows = (quant_rows.for_half if half else quant_rows.beyond_half)(37)
  more = [quant_rows.draw(n, 250, 37, 3) for n in quant_rows.DISTRIBUTIONS]
  rows = np.concatenate([rows, *more])
  rows[60:90] *= np.float32(2e-3)  # scales between normal and none
  assert len(rows) > range_search.FEW
  for bits, bins, ratio in [(2, 25, 0.5), (3, 31, 0.9), (4, 45, 0.5)]:
    settings = {'bits': bits, 'bins': bins, 'ratio': ratio, 'half': half}
    xla = search(rows, **settings)
    with monkeypatch.context() as m:
      m.setattr(range_search, '_find_cpu', lambda: None)
      numpy = search(rows, **settings)
    for a, b in zip(xla, numpy, strict=True):
      np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))
    assert (xla[0] != rows.min(axis=1)).any()
    assert (xla[1] != rows.max(axis=1)).any()


@pytest.mark.parametrize(
  'bits, bins, ratio, low, high',
  [
    (2, 25, 0.5, -37.5100, 17.5100),
    (3, 200, 0.16, -41.7675, 17.5100),
    (4, 25, 0.5, -42.75, 20.1300),
    (4, 200, 0.16, -42.75, 21.7675),
    (8, 25, 0.5, -42.75, 22.75),
  ],
)
def test_ranges_that_torch_finds(bits, bins, ratio, low, high):
  found = search(quant_rows.golden(), bits=bits, bins=bins, ratio=ratio)
  np.testing.assert_allclose(np.ravel(found), [low, high], rtol=1e-6)


def test_scaling_rows_by_powers_of_two_changes_nothing_with_float32():
  rows = quant_rows.draw('t3', 40, 20)
  settings = {'bits': 3, 'bins': 25, 'ratio': 0.5, 'half': False}
  want = np.array(search(rows, **settings))
  for power in (-90, -20, 1, 60, 120):
    unit = np.float32(2.0**power)
    found = np.array(search(rows * unit, **settings))
    np.testing.assert_array_equal(found, want * unit)


def test_a_range_is_never_worse_than_the_whole():
  rows = np.concatenate(
    [quant_rows.for_half(20), quant_rows.draw('t3', 100, 20)]
  )
  x = np.ascontiguousarray(rows.T)
  low, high = rows.min(axis=1), rows.max(axis=1)

  def error(low, high, bits):
    top = np.full_like(low, 2**bits - 1)
    bias, scale, inverse = choose_levels(np, low, high, top, half=True)
    y = nearest_codes(x, bias, inverse, top[0]) * scale + bias
    return np.linalg.norm((y - x).astype(np.float64), axis=0)

  for bits in (2, 3, 4):
    found = search(rows, bits=bits, bins=25, ratio=0.8)
    whole = error(low, high, bits)
    assert (error(*found, bits) <= whole * (1 + 1e-6)).all()
    assert (found[0] >= low).all() and (found[1] <= high).all()


def test_without_a_cpu_of_jax_numpy_searches(monkeypatch):
  def refuse(backend):
    raise RuntimeError(f'Unknown backend {backend}')

  monkeypatch.setattr(jax, 'local_devices', refuse)
  assert range_search._find_cpu.__wrapped__() is None
