"""Rows on the levels of few bits, against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.config import key_rules, value_rules
from genrec_jax.numerics import packed_formats
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
  return packed_formats.join_parts(packed_formats.PACKED_FORMATS[name], rows)


def unpack(packed, name):
  return packed_formats.split_parts(
    packed_formats.PACKED_FORMATS[name], packed, WIDTH
  )


def mix(x):
  """The finalizer of MurmurHash3."""
  x &= 2**32 - 1
  x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
  x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
  return x ^ (x >> 16)


def to_half(x, random):
  """One of the neighbours of x in float16, by 24 random bits."""
  half = np.float16(x)
  if random is None or float(half) == float(x):
    return float(half)
  other = np.nextafter(half, np.float16(np.inf if half < x else -np.inf))
  # Of the two, the one farther from zero has the share of the way to it.
  near, far = sorted((float(half), float(other)), key=abs)
  share = (abs(float(x)) - abs(near)) / (abs(far) - abs(near))
  return far if (random >> 8) < share * 2**24 else near


def round_by_hand(row, name, bits=None):
  """One row, number by number."""
  top, f32 = 2 ** BITS[name] - 1, np.float32
  chances = [None, None]
  if bits is not None:
    chances = [mix(int(bits[0]) + 1), mix(int(bits[0]) + 2)]
  bias = to_half(row.min(), chances[0])
  span = max(f32(row.max() - f32(bias)), f32(0))
  scale = to_half(f32(span * f32(1 / top)), chances[1])
  found = []
  for n, x in enumerate(row):
    place = f32(f32(x - f32(bias)) * f32(1 / scale)) if scale else f32(0)
    below = np.floor(place)
    code = int(np.rint(place))
    if bits is not None:
      code = int(below) + (float(bits[n] >> 8) < float(place - below) * 2**24)
    code = min(max(code, 0), top)
    if x == row.max():
      code = top
    if x == row.min():
      code = 0
    found.append(code * scale + bias)
  return np.float32(found)


def test_a_config_names_these_formats():
  """Its rules do not import JAX, and so they list them again."""
  rule = key_rules.SHARED['optimizer.rows.packed_as']
  assert rule == value_rules.words('', *BITS)


@pytest.mark.parametrize('by_chance', [False, True])
@pytest.mark.parametrize('name', BITS)
def test_against_a_loop(name, by_chance):
  rows, bits = make_rows(), make_bits((40, WIDTH))
  given = jnp.asarray(bits) if by_chance else None
  found = np.asarray(round_rows(jnp.asarray(rows), name, given))
  for row, own, mine in zip(rows, bits, found, strict=True):
    wanted = round_by_hand(row, name, own if by_chance else None)
    assert mine.tolist() == wanted.tolist()
  assert not found[0].any()
  assert found[1] == pytest.approx(0.7, rel=2**-10)  # float16 holds its bias


@pytest.mark.parametrize('offset', [0.0, 0.7])
def test_numbers_beside_the_ends_stay_within_the_levels(offset):
  """Scale and bias are rounded, so that places lie beyond the last level."""
  near = np.float32([0, 1e-5, 3e-5, 8e-5, 0.5, 0.99992, 0.99997, 0.99999, 1])
  rows = np.repeat(near[None] + np.float32(offset), 64, 0)
  bits = make_bits(rows.shape)
  found = np.asarray(round_rows(jnp.asarray(rows), 'tbe_int8', bits))
  for row, own, mine in zip(rows, bits, found, strict=True):
    assert mine.tolist() == round_by_hand(row, 'tbe_int8', own).tolist()
  assert (found.min(-1) == found[:, 0]).all()
  assert (found.max(-1) == found[:, -1]).all()


def test_a_range_that_float16_calls_zero():
  row = np.float32([[1 - 2**-14, 1, 1 + 2**-20] * 3])
  found = np.asarray(round_rows(jnp.asarray(row), 'tbe_int8'))
  assert found.tolist() == [[1.0] * WIDTH]


@pytest.mark.parametrize('by_chance', [False, True])
@pytest.mark.parametrize('name', BITS)
def test_packing_changes_nothing_any_more(name, by_chance):
  rows = make_rows(200)
  rows[100:] += np.float32([[1], [-3], [0.01], [40]] * 25)  # float16 is coarse
  bits = jnp.asarray(make_bits(rows.shape)) if by_chance else None
  found = np.asarray(jax.jit(round_rows, static_argnums=1)(rows, name, bits))
  again = unpack(pack(found, name), name)
  # Of others float32 has no digits for the levels.
  has_digits = np.ptp(found, -1) >= np.abs(found).max(-1) / 2000
  assert has_digits.sum() > 150
  assert again[has_digits].tolist() == found[has_digits].tolist()


@pytest.mark.parametrize('name', BITS)
def test_to_the_nearest_is_as_near_as_packing(name):
  rows = make_rows()
  found = np.asarray(round_rows(jnp.asarray(rows), name))
  packed = unpack(pack(rows, name), name)
  step = np.ptp(rows, -1, keepdims=True) / (2 ** BITS[name] - 1)
  off = np.abs(found - rows) - np.abs(packed - rows)
  assert (
    off <= 0.1 * step + 2**-11 * np.abs(rows).max(-1, keepdims=True)
  ).all()


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


@pytest.mark.parametrize('by_chance', [False, True])
def test_short_steps_count_at_the_ends_of_a_row_too(by_chance):
  """Steps below half a digit of float16: by chance 400 of them arrive."""
  row = np.linspace(0.5, 1, WIDTH, dtype=np.float32)
  step, steps, rows = np.float32(2**-14), 400, 64

  def one(rows, n):
    bits = make_bits_of(n) if by_chance else None
    return round_rows(rows + step, 'tbe_int8', bits), None

  def make_bits_of(n):
    return jax.random.bits(
      jax.random.fold_in(jax.random.key(0), n), (rows, WIDTH)
    )

  given = jnp.asarray(np.repeat(row[None], rows, 0))
  found, _ = jax.lax.scan(one, given, jnp.arange(steps))
  moved = np.asarray(found).mean(0) - row
  if by_chance:
    assert moved == pytest.approx(steps * step, rel=0.2)
  else:
    assert abs(moved[0]) < 2**-11  # the least number has not moved at all


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
