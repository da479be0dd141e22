"""Rows in blocks as bytes: one bit behind another, as a plain loop has them."""

import doctest

import jax
import numpy as np
import pytest

from genrec_jax.numerics import block_rows, blocks, packed_formats
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.block_rows import BLOCK_ROWS
from genrec_jax.numerics.packed_formats import join_parts, split_parts
from genrec_jax.parallel import codecs
from tests.marks import slow_but

WIDTHS = (1, 5, 32, 67)
# Of each kind of element, and of groups or none, one.
EACH_KIND = ('mx6', 'mxfp6_e3m2', 'mxint8')


def draw(width):
  rng = np.random.default_rng(width)
  rows = rng.normal(size=(40, width)) * 2.0 ** rng.uniform(-20, 20, (40, 1))
  return rows.astype(np.float32)


def chain_bits(numbers, bits):
  """Bytes of whole numbers, each in so many bits, the first in the lowest."""
  together = sum(int(x) % 2**bits << bits * i for i, x in enumerate(numbers))
  return together.to_bytes(-(-len(numbers) * bits // 8), 'little')


def write_row(row, number_format):
  found = blocks.encode(row, number_format)
  data = chain_bits(found.codes, number_format.bits) + bytes(found.scales)
  if number_format.group:
    groups = -(-len(row) // number_format.group)
    shifts = found.shifts.reshape(-1)[:groups]
    data += chain_bits(shifts, number_format.shift_bits)
  return data


@pytest.mark.parametrize('module', [block_rows, packed_formats])
def test_examples(module):
  found = doctest.testmod(module)
  assert found.attempted and not found.failed


@pytest.mark.parametrize('name', BLOCK_FORMATS)
def test_the_bytes_of_a_row_and_back(name):
  number_format = BLOCK_FORMATS[name]
  for width in WIDTHS:
    rows = draw(width)
    data = join_parts(BLOCK_ROWS[name], rows)
    assert data.shape == (40, BLOCK_ROWS[name].bytes_per_row(width))
    assert [bytes(x) for x in data] == [
      write_row(row, number_format) for row in rows
    ]
    wanted = blocks.decode(blocks.encode(rows, number_format), number_format)
    found = split_parts(BLOCK_ROWS[name], data, width)
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
  'name, bits',
  [('mx9', 9), ('mx6', 6), ('mx4', 4), ('mxfp4_e2m1', 4.25), ('msfp12', 4.5),
   ('mxfp6_e2m3', 6.25), ('mxint8', 8.25)],
)  # fmt: skip
def test_a_number_has_the_bits_that_are_said(name, bits):
  assert BLOCK_ROWS[name].bytes_per_row(512) * 8 / 512 == bits
  assert BLOCK_FORMATS[name].mean_bits == bits


@pytest.mark.parametrize('name', slow_but(BLOCK_ROWS, EACH_KIND))
def test_programs_write_and_read_the_same_bytes(name):
  for width in WIDTHS:
    rows = draw(width)
    rows[0, 0], rows[1, -1] = np.nan, -np.inf
    wanted = join_parts(BLOCK_ROWS[name], rows)
    codec = codecs.find_codec(name)
    sent = jax.jit(codec.encode)(rows)
    np.testing.assert_array_equal(sent, wanted)
    back = jax.jit(codec.decode, static_argnums=1)(sent, width)
    plain = split_parts(BLOCK_ROWS[name], wanted, width)
    np.testing.assert_array_equal(back, plain)
    assert np.isnan(plain[0, 0]) and np.isnan(plain[1, -1])
    assert np.isfinite(plain[2:]).all()


def test_the_step_of_a_pair_travels():
  """Without the second scale, small numbers beside large ones would be lost."""
  row = np.float32([[1, 1, 0.25, 0.5]])
  mx4 = BLOCK_ROWS['mx4']
  data = join_parts(mx4, row)
  assert split_parts(mx4, data, 4).tolist() == row.tolist()
  data[0, -1] = 0
  assert split_parts(mx4, data, 4).tolist() != row.tolist()
