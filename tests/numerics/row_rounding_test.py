"""Rows on the levels of few bits, against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.numerics import fused_rows
from genrec_jax.numerics.row_rounding import BITS, round_rows

WIDTH = 9


def make_rows(count=40, seed=0):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(count, WIDTH)) * 10.0 ** rng.uniform(
    -3, 1, (count, 1)
  )
  rows[0], rows[1], rows[2, 3:] = 0, 0.7, 0
  return rows.astype(np.float32)


def make_bits(shape, seed=1):
  return np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32)


def pack(rows, name):
  return fused_rows.join_parts(fused_rows.FUSED_ROWS[name], rows)


def unpack(packed, name):
  return fused_rows.split_parts(fused_rows.FUSED_ROWS[name], packed, WIDTH)


def round_by_hand(row, name, bits):
  """One row, number by number, with the levels that its packed form states."""
  state = fused_rows.FUSED_ROWS[name].encode(row[None])
  scale, bias = float(state['scale'][0]), float(state['bias'][0])
  top, found = 2 ** BITS[name] - 1, []
  for x, r in zip(row, bits, strict=True):
    place = np.float32(np.float32(x - np.float32(bias)) * np.float32(1 / scale))
    below = np.floor(place)
    code = below + (float(r >> 8) < float(place - below) * 2**24)
    code = min(max(code, 0), top)
    if x == row.min():
      code = 0
    elif x == row.max():
      code = top
    found.append(code * scale + bias)
  return np.float32(found)


@pytest.mark.parametrize('name', BITS)
def test_by_chance_against_a_loop(name):
  rows, bits = make_rows(), make_bits((40, WIDTH))
  found = np.asarray(round_rows(jnp.asarray(rows), name, jnp.asarray(bits)))
  for row, own, mine in zip(rows[2:], bits[2:], found[2:], strict=True):
    assert mine.tolist() == round_by_hand(row, name, own).tolist()
  assert not found[0].any()
  assert found[1] == pytest.approx(0.7, rel=2**-11)  # float16 holds its bias


@pytest.mark.parametrize('by_chance', [False, True])
@pytest.mark.parametrize('name', BITS)
def test_packing_changes_nothing_any_more(name, by_chance):
  rows = make_rows(200)
  bits = jnp.asarray(make_bits(rows.shape)) if by_chance else None
  found = np.asarray(jax.jit(round_rows, static_argnums=1)(rows, name, bits))
  assert unpack(pack(found, name), name).tolist() == found.tolist()


@pytest.mark.parametrize('name', BITS)
def test_to_the_nearest_is_what_packing_makes(name):
  rows = make_rows()
  found = np.asarray(round_rows(jnp.asarray(rows), name))
  assert found.tolist() == unpack(pack(rows, name), name).tolist()


def test_by_chance_is_right_in_the_mean():
  row = np.float32([[0, 0.3, 1.25, 2.6, 2.95, 3, 0.05, 1.5, 2]])
  trials = 20_000
  bits = jnp.asarray(make_bits((trials, WIDTH)))
  found = round_rows(jnp.asarray(np.repeat(row, trials, 0)), 'tbe_int2', bits)
  # A coin between two levels deviates by half a level at most.
  assert np.asarray(found).mean(0) == pytest.approx(
    row[0], abs=4 * 0.5 / trials**0.5
  )
  assert set(np.unique(found)) == {0, 1, 2, 3}


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('by_chance', [False, True])
def test_what_is_not_finite_stays_visible(bad, by_chance):
  rows = make_rows(3)
  rows[2, 4] = bad
  bits = jnp.asarray(make_bits(rows.shape)) if by_chance else None
  found = np.asarray(round_rows(jnp.asarray(rows), 'tbe_int4', bits))
  assert np.isnan(found[2]).all() and np.isfinite(found[:2]).all()


@pytest.mark.parametrize('width', [0, 1, 3])
def test_short_rows(width):
  rows = jnp.float32(make_rows())[5:8, :width]
  if width == 0:
    with pytest.raises(ValueError):
      round_rows(rows, 'tbe_int4')
    return
  bits = jnp.zeros(rows.shape, jnp.uint32)
  found = round_rows(rows, 'tbe_int4', bits)
  assert found.shape == rows.shape and bool(jnp.isfinite(found).all())
