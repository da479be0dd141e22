"""Packing against whole numbers shifted into place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax.numerics.bit_packing import (
  BITS,
  pack_codes,
  packed_bytes,
  unpack_codes,
)
from tests.numerics import quant_oracles


@pytest.mark.parametrize('bits', BITS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_packs_as_the_oracle_and_back(bits, data):
  count, dim = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 35))
  seed = data.draw(st.integers(0, 2**16))
  codes = np.random.default_rng(seed).integers(
    0, 2**bits, (count, dim), np.uint8
  )
  packed = pack_codes(codes, bits)
  assert packed.shape == (count, packed_bytes(dim, bits))
  assert packed.dtype == np.uint8 and packed.flags.c_contiguous
  for row, found in zip(codes, packed, strict=True):
    assert found.tobytes() == quant_oracles.packed(row, bits)
  np.testing.assert_array_equal(unpack_codes(packed, dim, bits), codes)


def test_three_bits_cross_bytes_low_bits_first():
  codes = np.array([[1, 2, 3, 4, 5, 6, 7, 0, 5]], np.uint8)
  found = pack_codes(codes, 3)
  assert found.tolist() == [[0b11_010_001, 0b0_101_100_0, 0b000_111_11, 0b101]]


def test_unpack_leaves_what_it_reads_alone():
  packed = np.arange(12, dtype=np.uint8).reshape(3, 4)
  unpack_codes(packed, 4, 8)[:] = 0
  assert packed[2, 3] == 11


def test_mistakes_are_errors():
  with pytest.raises(ValueError, match='bits is 5, must be one of 2, 3, 4, 8'):
    pack_codes(np.zeros((1, 4), np.uint8), 5)
  with pytest.raises(
    ValueError, match=r'of 9 elements of 4 bits are uint8 \[n, 5\], .*\[2, 4\]'
  ):
    unpack_codes(np.zeros((2, 4), np.uint8), 9, 4)
  with pytest.raises(ValueError, match='these are uint16'):
    unpack_codes(np.zeros((2, 4), np.uint16), 8, 4)
