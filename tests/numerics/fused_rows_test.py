"""FBGEMM's rows: its bytes, and the same ones from NumPy and from programs."""

import doctest
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.numerics import bit_packing, fused_rows
from genrec_jax.numerics.fused_rows import FUSED_ROWS
from genrec_jax.numerics.packed_formats import join_parts, split_parts
from genrec_jax.parallel import codecs

PLACES = np.arange(32)
BLOCK = (
  ((37 * PLACES**2 + 11 * PLACES + 5) % 401 - 200) / 64
  * 2.0 ** ((5 * PLACES) % 9 - 4)
).astype(np.float32)  # fmt: skip
# Codes and what follows them, as FBGEMM's operators give them.
BYTES = {
  'fbgemm_int8': 'a695a6d0a79ea6ff9ea7a7a6b3a9a3a3'
  '009ea6b7a691a59eaa739da694a6cba78483833e00002bc2',
  'fbgemm_int4': '9aca9afaa9aaabaa90ba9a9a7aa9a9ac5e4458d1',
  'fbgemm_int2': 'aaeaaaaaa8aaa6aa754d58d1',
  'fbgemm_mx4': '98389050098001889f189898b089890282',
}  # fmt: skip
WIDTHS = (1, 5, 32, 67)


def draw(kind: str, rows=64, columns=67) -> np.ndarray:
  """Rows of a kind that quantisers trip over."""
  rng = np.random.default_rng(sum(map(ord, kind)))
  x = rng.normal(size=(rows, columns))
  x = {
    'normal': lambda: x,
    'wide': lambda: x * 10.0 ** rng.integers(-6, 7, (rows, 1)),
    'constant': lambda: np.ones_like(x) * x[:, :1],
    'zeros': lambda: x * 0,
    'small': lambda: x * 1e-9,
    'tiny': lambda: x * 1e-30,
    'subnormal': lambda: x * 1e-40,
    'offset': lambda: x + 1e3,
    'embeddings': lambda: x * 0.05,
    'large': lambda: x * 1e6,
  }[kind]()
  return x.astype(np.float32)


KINDS = (
  'normal', 'wide', 'constant', 'zeros', 'small', 'tiny', 'subnormal',
  'offset', 'embeddings', 'large',
)  # fmt: skip


def test_the_examples_in_the_docstrings():
  for module in (fused_rows, bit_packing):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize('name', BYTES)
def test_the_bytes_of_the_published_operators(name):
  found = join_parts(FUSED_ROWS[name], BLOCK[None])
  assert found.tobytes().hex() == BYTES[name]


def test_parameters_in_front():
  """The rows of tables for inference are the same codes."""
  for bits, size in ((4, 16), (2, 8)):
    behind = join_parts(FUSED_ROWS[f'fbgemm_int{bits}'], BLOCK[None])[0]
    front = join_parts(FUSED_ROWS[f'tbe_int{bits}'], BLOCK[None])[0]
    assert bytes(front) == bytes(behind[size:]) + bytes(behind[:size])
  behind = join_parts(FUSED_ROWS['fbgemm_int8'], BLOCK[None])[0]
  front = join_parts(FUSED_ROWS['tbe_int8'], BLOCK[None])[0]
  numbers = behind[32:].view(np.float32).astype(np.float16)
  assert bytes(front) == bytes(numbers) + bytes(behind[:32])


@pytest.mark.parametrize(
  'name, sizes',
  [
    ('fbgemm_int8', (9, 13, 40, 75)),
    ('fbgemm_int4', (5, 7, 20, 38)),
    ('fbgemm_int2', (5, 6, 12, 21)),
    ('fbgemm_fp16', (2, 10, 64, 134)),
    ('fbgemm_bf16', (2, 10, 64, 134)),
    ('fbgemm_hfp8', (1, 5, 32, 67)),
    ('fbgemm_fp8', (12, 16, 40, 76)),
    ('fbgemm_mx4', (17, 17, 17, 51)),
    ('tbe_int8', (5, 9, 36, 71)),
    ('tbe_int4', (5, 7, 20, 38)),
    ('tbe_int2', (5, 6, 12, 21)),
    ('tbe_fp8', (1, 5, 32, 67)),
  ],
)
def test_sizes(name, sizes):
  number_format = FUSED_ROWS[name]
  assert tuple(number_format.bytes_per_row(w) for w in WIDTHS) == sizes
  rows = draw('normal', 3)
  for width, size in zip(WIDTHS, sizes, strict=True):
    data = join_parts(number_format, rows[:, :width])
    assert data.shape == (3, size)
    assert split_parts(number_format, data, width).shape == (3, width)
    aligned = join_parts(number_format, rows[:, :width], align=16)
    assert aligned.shape == (3, size + -size % 16)
    np.testing.assert_array_equal(aligned[:, :size], data)


# Of the range of a row, or of each number: how far off a number may come back.
ERRORS = {
  'fbgemm_int8': ('range', 0.51 / 255),
  'fbgemm_int4': ('range', 0.52 / 15),
  'fbgemm_int2': ('range', 0.51 / 3),
  'tbe_int8': ('range', 0.7 / 255),
  'tbe_int4': ('range', 0.52 / 15),
  'tbe_int2': ('range', 0.51 / 3),
  'fbgemm_fp16': ('number', 2**-11),
  'fbgemm_bf16': ('number', 2**-8),
  'fbgemm_fp8': ('largest', 2**-4),
  'fbgemm_mx4': ('largest', 0.26),
}


@pytest.mark.parametrize('name', ERRORS)
def test_numbers_come_back(name):
  of, bound = ERRORS[name]
  rows = draw('embeddings')
  found = split_parts(
    FUSED_ROWS[name], join_parts(FUSED_ROWS[name], rows), rows.shape[-1]
  )
  size = {
    'range': np.ptp(rows, axis=-1, keepdims=True),
    'number': np.abs(rows),
    'largest': np.abs(rows).max(-1, keepdims=True),
  }[of]
  assert (np.abs(found - rows) <= bound * size + 2**-25).all()


@pytest.mark.parametrize('name', ['tbe_int4', 'tbe_int2'])
def test_a_program_divides_as_numpy_does(name):
  """By the number of steps, and not multiplies by its inverse."""
  rows = np.random.default_rng(0).normal(size=(200_000, 2)).astype(np.float32)
  rows[0] = float.fromhex('-0x1.c65ed0p-7'), float.fromhex('0x1.59cap-3')
  number_format = FUSED_ROWS[name]
  found = jax.jit(lambda x: number_format.encode(x, jnp))(rows)
  for part, values in number_format.encode(rows).items():
    np.testing.assert_array_equal(found[part], values)


@pytest.mark.parametrize('kind', ['normal', 'offset', 'embeddings'])
def test_a_row_of_8_bits_comes_back_with_one_rounding(kind):
  """FBGEMM's: product and sum in double, as a fused operation has them."""
  data = join_parts(FUSED_ROWS['fbgemm_int8'], draw(kind))
  found = split_parts(FUSED_ROWS['fbgemm_int8'], data, 67)
  for row, numbers in zip(data, found, strict=True):
    scale, bias = struct.unpack('<ff', row[67:].tobytes())
    wanted = [np.float32(int(code) * scale + bias) for code in row[:67]]
    assert numbers.tolist() == [float(x) for x in wanted]


def test_floats_of_eight_bits():
  """Numbers of e4m3 with another bias, saturating at the largest."""
  found = FUSED_ROWS['tbe_fp8']
  x = np.float32([[240, 247, 1e9, -1e9, 1.0625, 1.1875, 2**-9, 2**-11, -0.0]])
  back = found.decode(found.encode(x), 9)
  assert back.tolist() == [[240, 240, 240, -240, 1, 1.25, 2**-9, 0, 0]]
  assert np.signbit(back[0, -1])
  sent = FUSED_ROWS['fbgemm_hfp8']
  assert sent.decode(sent.encode(x), 9)[0, :4].tolist() == [
    0.9375, 0.9375, 0.9375, -0.9375
  ]  # fmt: skip
  gradients = sent.gradients
  assert gradients.decode(gradients.encode(x), 9)[0, 2] == 0.875


def test_the_largest_blocks_of_four_bits():
  """A scale above 2^125 would make numbers that float32 has not."""
  row = np.full((1, 32), 3.4e38, np.float32)
  data = join_parts(FUSED_ROWS['fbgemm_mx4'], row)
  assert data[0, -1] == 125 + 127 and set(data[0, :16]) == {0x77}
  assert split_parts(FUSED_ROWS['fbgemm_mx4'], data, 32)[0, 0] == 6 * 2.0**125


@pytest.mark.parametrize('width', WIDTHS)
@pytest.mark.parametrize('name', FUSED_ROWS)
def test_programs_write_the_same_bytes(name, width):
  number_format = FUSED_ROWS[name]
  for own in {number_format, number_format.gradients} - {None}:
    rows = np.stack([draw(kind)[:, :width] for kind in KINDS])
    rows[0, 0, 0] = np.nan
    rows[0, 1, 0] = np.inf
    codec = codecs.Codec(own)
    sent = jax.jit(codec.encode)(rows)
    found = np.ascontiguousarray(np.asarray(sent))
    found = found.view(np.uint8).reshape(*rows.shape[:2], -1)
    wanted = np.stack([join_parts(own, r) for r in rows])
    np.testing.assert_array_equal(found, wanted)
    back = jax.jit(codec.decode, static_argnums=1)(sent, width)
    numpy = np.stack([split_parts(own, w, width) for w in wanted])
    # A program has no subnormal numbers.
    numpy = np.where(np.abs(numpy) < 2.0**-126, 0, numpy)
    back = np.where(np.abs(back) < 2.0**-126, 0, back)
    # Compiled as tests are, product and sum of 8 bits are rounded apart.
    ulp = 2.0**-23 * np.abs(numpy).max(-1, keepdims=True)
    off = ulp if name == 'fbgemm_int8' else 0
    with np.errstate(invalid='ignore'):  # of infinities
      same = (back == numpy) | (np.abs(back - numpy) <= off)
    assert (same | np.isnan(numpy)).all()
    np.testing.assert_array_equal(np.isnan(back), np.isnan(numpy))


@pytest.mark.parametrize('bits', [1, 2, 3, 4, 6, 8])
def test_packed_codes_come_back(bits):
  rng = np.random.default_rng(bits)
  for dim in (1, 3, 4, 8, 21):
    codes = rng.integers(0, 2**bits, (2, 5, dim)).astype(np.uint8)
    packed = bit_packing.pack_elements(codes, bits)
    assert packed.shape == (2, 5, -(-dim * bits // 8))
    np.testing.assert_array_equal(
      bit_packing.pack_elements(jnp.asarray(codes), bits, jnp), packed
    )
    np.testing.assert_array_equal(
      bit_packing.unpack_elements(packed, dim, bits), codes
    )
    np.testing.assert_array_equal(
      bit_packing.unpack_elements(jnp.asarray(packed), dim, bits, jnp), codes
    )
    if bits in bit_packing.BITS:
      np.testing.assert_array_equal(
        bit_packing.pack_codes(codes[0], bits), packed[0]
      )


def test_rows_of_another_width_are_refused():
  data = join_parts(FUSED_ROWS['tbe_int4'], BLOCK[None])
  with pytest.raises(ValueError, match=r'uint8 \[n, 28\], these are uint8'):
    split_parts(FUSED_ROWS['tbe_int4'], data, 48)
