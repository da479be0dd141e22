"""A chunk through its bytes."""

import io

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from genrec_jax.checkpoint import chunks
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding
from genrec_jax.numerics.formats import extend_formats
from tests.numerics.power_format import POWER8


def chunk(ids, dtype='float32', dim=8, seed=0):
  rng = np.random.default_rng(seed)
  ids = np.asarray(ids, np.int64)
  values = rng.normal(size=(len(ids), dim)).astype(dtype)
  slots = {
    'sum': rng.exponential(size=len(ids)).astype(np.float32),
    'm': rng.normal(size=(len(ids), dim)).astype(np.float32),
  }
  return RowChunk('item', 16, ids, values, slots)


def through(made, encoding=RowEncoding()):
  return chunks.from_bytes(chunks.to_bytes(made, encoding))


def members(raw):
  return np.load(io.BytesIO(raw))


@pytest.mark.parametrize('dtype', ['float32', 'float16', jnp.bfloat16])
def test_at_32_bits_every_bit_is_kept(dtype):
  made = chunk([3, 4, 9], dtype)
  made.values[0, :3] = [np.nan, -0.0, np.inf]
  found = through(made)
  assert (found.table, found.first_column) == ('item', 16)
  assert found.values.dtype == made.values.dtype
  assert found.values.tobytes() == made.values.tobytes()
  np.testing.assert_array_equal(found.ids, made.ids)
  for name, slot in made.slots.items():
    np.testing.assert_array_equal(found.slots[name], slot)


@hypothesis.given(
  st.sets(st.integers(0, 300), min_size=1),
  st.integers(0, 2**40),
  st.integers(1, 1 << 20),
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_ids_of_every_kind(places, first, stride):
  ids = first + stride * np.array(sorted(places), np.int64)
  np.testing.assert_array_equal(through(chunk(ids, dim=1)).ids, ids)


def test_ids_take_little_room():
  def bytes_of(ids):
    raw = members(chunks.to_bytes(chunk(ids), RowEncoding()))
    return raw['ids'].nbytes if 'ids' in raw.files else 0

  assert bytes_of(np.arange(1000) * 8 + 5) == 0  # all rows of a device of 8
  some = np.flatnonzero(np.random.default_rng(0).random(10_000) < 0.25)
  assert bytes_of(some * 8 + 5) < len(some)  # not four bytes each
  assert bytes_of([0, 1, 10**9]) == 24


@pytest.mark.parametrize('ids', [[], [3, 3], [4, 2]])
def test_ids_must_ascend(ids):
  with pytest.raises(ValueError, match='must ascend'):
    chunks.to_bytes(chunk(ids), RowEncoding())


@pytest.mark.parametrize('bits', [8, 4, 3, 2])
def test_fewer_bits_are_near_and_smaller(bits):
  made = chunk(range(50), dim=64)
  found = through(made, RowEncoding(bits))
  step = np.ptp(made.values, axis=1, keepdims=True) / (2**bits - 1)
  error = np.abs(found.values - made.values)
  # The greedy search gives up some of the range for a smaller step.
  assert (error.mean() < step / 2).all()
  assert found.values.dtype == np.float32
  raw = members(chunks.to_bytes(made, RowEncoding(bits)))
  assert raw['codes'].shape == (50, 64 * bits // 8)


@pytest.mark.parametrize(
  'dim, dtype, encoding, exact',
  [
    (1, 'float32', RowEncoding(4), True),  # 1 + 4 bytes for 4
    (2, 'float32', RowEncoding(4), False),
    (2, jnp.bfloat16, RowEncoding(4), True),
    (2, 'float32', RowEncoding(8), True),
    (16, 'float32', RowEncoding(8), False),
    (
      16,
      'float32',
      RowEncoding(4, 'kmeans'),
      True,
    ),  # as many numbers as columns
    (64, 'float32', RowEncoding(4, 'kmeans'), False),
  ],
)
def test_narrow_rows_are_written_as_they_are(dim, dtype, encoding, exact):
  made = chunk(range(9), dtype, dim)
  raw = members(chunks.to_bytes(made, encoding))
  assert ('values' in raw.files) == exact
  found = through(made, encoding)
  assert found.values.dtype == made.values.dtype
  assert (found.values.tobytes() == made.values.tobytes()) or not exact


def test_what_is_not_finite_is_refused_by_name():
  made = chunk([7, 9])
  made.values[1, 2] = np.nan
  with pytest.raises(ValueError, match="rows 7 to 9 of table 'item'"):
    chunks.to_bytes(made, RowEncoding(8))
  made = chunk([7, 9])
  made.slots['sum'][0] = np.inf
  with pytest.raises(ValueError, match='slot sum of table'):
    chunks.to_bytes(made, RowEncoding(slots='float16'))


def test_float16_slots_never_lose_a_number_to_zero_or_infinity():
  made = chunk(range(40))
  made.slots['sum'][:] = 10.0 ** np.linspace(-38, 20, 40)
  made.slots['sum'][3] = 0
  found = through(made, RowEncoding(slots='float16')).slots
  got, want = found['sum'], made.slots['sum']
  assert np.isfinite(got).all() and got[3] == 0
  assert (got[want > 0] > 0).all()
  large = want > want.max() / 2**28
  np.testing.assert_allclose(got[large], want[large], rtol=2**-11)
  np.testing.assert_allclose(found['m'], made.slots['m'], rtol=2**-11)
  made.slots['sum'][:] = 1e-44
  got = through(made, RowEncoding(slots='float16')).slots['sum']
  assert (0 < got).all() and (got < 1e-30).all()


@pytest.mark.parametrize(
  'wrong', [{'bits': 5}, {'method': 'best'}, {'slots': 'int8'}]
)
def test_unknown_encodings_are_refused(wrong):
  (key,) = wrong
  with pytest.raises(ValueError, match=f'checkpoint {key} is'):
    RowEncoding(**wrong)


def test_a_format_of_ones_own_is_written_and_read():
  formats = extend_formats({'power8': POWER8})
  made = chunk(range(50), dim=64)
  raw = chunks.to_bytes(made, RowEncoding(8, 'power', formats=formats))
  assert sorted(members(raw).files) == [
    'about',
    'codes',
    'exponent',
    'slot.m',
    'slot.sum',
  ]
  found = chunks.from_bytes(raw, formats)
  coarse = POWER8.decode(POWER8.encode(made.values), 64)
  np.testing.assert_array_equal(found.values, coarse)
  np.testing.assert_array_equal(found.ids, made.ids)
  assert RowEncoding(8, 'power', formats=formats).describe() == {
    'bits': 8,
    'method': 'power',
    'slots': 'float32',
  }
  # Whoever has not been handed the format says which one is missing.
  with pytest.raises(ValueError, match="is 'power', .*; hand in the format"):
    chunks.from_bytes(raw)
  with pytest.raises(ValueError, match="method is 'power', must be one of sym"):
    RowEncoding(8, 'power')
  with pytest.raises(ValueError, match='method power has no format of 4 bits'):
    RowEncoding(4, 'power', formats=formats)
