"""Numbers in blocks: what is encoded, against published codes and an oracle."""

import doctest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from genrec_jax.numerics import block_formats, block_products, blocks
from genrec_jax.numerics.block_formats import BLOCK_FORMATS, BlockFormat
from genrec_jax.numerics.blocks import Blocks, decode, encode
from tests.marks import slow_but
from tests.numerics import block_oracle

# Thirty-two numbers of float32, all of few digits.
PLACES = np.arange(32)
BLOCK = (
  ((37 * PLACES**2 + 11 * PLACES + 5) % 401 - 200) / 64
  * 2.0 ** ((5 * PLACES) % 9 - 4)
).astype(np.float32)  # fmt: skip
# format -> scale, and codes by rounding: those of the authors' PyTorch code.
CODES = {
  'mxfp8_e4m3': (0x7C, {
    'even': 'BCE1AC6B3AD80073D9343CA05D4CCED0FBD9AA61A4E3C3D950EDDABCE2B16A2E',
    'away': 'BCE1AD6B3AD90073D9343CA05D4CCED0FBD9AA61A4E3C3D950EDDABCE2B16A2E',
    'down': 'BCE1AC6A3AD80073D9333CA05D4BCECFFAD8A960A4E3C3D950EDDABCE1B1692E',
  }),
  'mxfp8_e5m2': (0x75, {
    'even': 'DAEDD27159E80076E9565ACC6A62E3E4F9E8D16CCEEEDEE864F3E9DAEDD57153',
    'away': 'DAEDD27159E80076E9565ACC6B62E3E4F9E8D16CCEEEDEE964F3E9DAEDD57153',
    'down': 'DAECD27159E80075E8555ACC6A61E3E3F9E8D06CCEEDDDE864F2E9DAECD47053',
  }),
  'mxfp6_e2m3': (0x82, {
    'even': '2025200B0022001322000020030121213B22200420262022012D222025200A00',
    'away': '2025200B0022001322000020030121213B22200420262022012D232025200A00',
    'down': '2024200A0022001322000020030020203A22200420252022012D222024200900',
  }),
  'mxfp6_e3m2': (0x80, {
    'even': '22312015012C001A2D0102200E0627283D2C20102032232C08372D2231211500',
    'away': '22312015012C001A2D0102200F0627283D2C20102032232D08372D2231211500',
    'down': '21302015012C00192C0001200E0527273D2C20102031222C08362D2130201400',
  }),
  'mxfp4_e2m1': (0x82, {
    'down': '080908020008000408000008000008080E08080108090808000B080809080200',
  }),
  'mxint8': (0x84, {
    'even': '00F7001500FC002EFB0000000601FEFEAAFC000900F5FFFC02E6FB00F6001300',
    'away': '00F7001500FC002EFB0000000701FEFEAAFC000900F5FFFB02E5FB00F6001300',
    'down': '00F7001500FC002DFC0000000601FFFFABFC000800F500FC02E6FB00F7001300',
  }),
}  # fmt: skip
SHARED = {
  'mx9': '-2 -37 0 86 1 -17 0 91 -18 1 2 0 26 6 -7 -8 '
  '-86 -4 0 17 0 -22 -1 -9 4 -53 -10 -1 -19 0 38 0',
  'mx6': '0 -5 0 11 0 -2 0 11 -2 0 0 0 3 1 -1 -1 '
  '-11 -1 0 2 0 -3 0 -1 0 -7 -1 0 -2 0 5 0',
  'mx4': '0 -1 0 3 0 -1 0 3 -1 0 0 0 1 0 0 0 '
  '-3 0 0 1 0 -1 0 0 0 -2 0 0 -1 0 1 0',
}
FLOATS = {  # of the dtypes that NumPy knows by ml_dtypes
  'mxfp8_e4m3': ml_dtypes.float8_e4m3fn,
  'mxfp8_e5m2': ml_dtypes.float8_e5m2,
  'mxfp6_e2m3': ml_dtypes.float6_e2m3fn,
  'mxfp6_e3m2': ml_dtypes.float6_e3m2fn,
  'mxfp4_e2m1': ml_dtypes.float4_e2m1fn,
}
ROUNDINGS = ('even', 'away', 'down')
E4M3, E2M1, INT8 = (
  BLOCK_FORMATS[name] for name in ('mxfp8_e4m3', 'mxfp4_e2m1', 'mxint8')
)


def rounded(x, number_format, **options):
  encoded = encode(np.asarray(x, np.float32), number_format, **options)
  return decode(encoded, number_format)


def draw(kind, rows=64, columns=96):
  """Numbers of a kind that quantisers trip over."""
  rng = np.random.default_rng(sum(map(ord, kind)))
  x = rng.normal(size=(rows, columns))
  x = {
    'normal': lambda: x,
    'wide rows': lambda: x * 2.0 ** rng.integers(-40, 40, (rows, 1)),
    'wide': lambda: x * 2.0 ** rng.integers(-12, 12, x.shape),
    'tiny': lambda: x * 2.0 ** rng.integers(-149, -110, (rows, 1)),
    'huge': lambda: np.clip(
      x * 2.0 ** rng.integers(100, 127, (rows, 1)), -3.4e38, 3.4e38
    ),
    'ties': lambda: rng.integers(-256, 256, x.shape) / 64,
    'sparse': lambda: x * (rng.random(x.shape) < 0.1),
    'near powers': lambda: (
      2.0 ** rng.integers(-8, 8, x.shape)
      * (1 + rng.integers(-2, 3, x.shape) * 2.0**-24)
    ),
    'zeros': lambda: x * 0,
  }[kind]()
  return x.astype(np.float32)


KINDS = (
  'normal', 'wide rows', 'wide', 'tiny', 'huge', 'ties', 'sparse',
  'near powers', 'zeros',
)  # fmt: skip


def test_the_examples_in_the_docstrings():
  for module in (block_formats, blocks, block_products):
    assert doctest.testmod(module).failed == 0


# --- Codes


@pytest.mark.parametrize('name', CODES)
def test_the_codes_of_the_published_quantiser(name):
  scale, codes = CODES[name]
  for rounding, wanted in codes.items():
    found = encode(BLOCK, BLOCK_FORMATS[name], rounding=rounding)
    assert found.codes.tobytes().hex().upper() == wanted, rounding
    assert found.scales.tolist() == [scale]


@pytest.mark.parametrize('name', SHARED)
def test_the_codes_of_shared_microexponents(name):
  found = encode(BLOCK, BLOCK_FORMATS[name])
  codes = found.codes.astype(np.int8)
  assert codes.tolist() == [int(c) for c in SHARED[name].split()]
  assert (found.scales.astype(int) - 127).tolist() == [4, 5]
  assert found.shifts.tolist() == [
    [int(c) for c in text] for text in ('11101111', '01111111')
  ]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', BLOCK_FORMATS)
def test_what_the_definition_says(name, kind):
  """An oracle in NumPy, number by number, in floats of 64 bits."""
  number_format, x = BLOCK_FORMATS[name], draw(kind, rows=3)
  for rounding in ROUNDINGS:
    for mode in block_formats.SCALE_MODES:
      options = dict(rounding=rounding, scale_mode=mode)
      wanted = block_oracle.quantise(x, number_format, **options)
      found = encode(x, number_format, **options)
      np.testing.assert_array_equal(found.scales, wanted.scales)
      np.testing.assert_array_equal(
        block_oracle.values_of(found, number_format), wanted.values, (
          f'{rounding} {mode}'
        )
      )  # fmt: skip


@pytest.mark.parametrize('name', FLOATS)
def test_every_code_is_what_its_dtype_says(name):
  number_format, dtype = BLOCK_FORMATS[name], FLOATS[name]
  codes = np.arange(1 << number_format.bits, dtype=np.uint8)
  wanted = codes.view(dtype).astype(np.float32)
  for exponent in (-100, 0, 100, 127):
    scales = np.full((-(-len(codes) // 32),), exponent + 127, np.uint8)
    with np.errstate(over='ignore', invalid='ignore'):
      exact = (wanted.astype(np.float64) * 2.0**exponent).astype(np.float32)
    for xp in (np, jnp):
      given = Blocks(xp.asarray(codes), xp.asarray(scales), None)
      found = decode(given, number_format, xp=xp)
      np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize('exponent', [-127, -126, 0, 126, 127])
@pytest.mark.parametrize('name', BLOCK_FORMATS)
def test_codes_survive_a_round_trip(name, exponent):
  """Where the largest number of a block is the largest element."""
  number_format = BLOCK_FORMATS[name]
  half = 1 << (number_format.bits - 1)
  magnitudes = np.arange(number_format.most_code + 1)
  other = -magnitudes if not number_format.exponent_bits else magnitudes + half
  top = number_format.most_code
  for codes in (magnitudes, other[1:]):
    codes = codes.astype(np.uint8)
    size = number_format.block
    rows = -(-len(codes) // (size - 1))
    codes = np.resize(codes, (rows, size - 1))
    codes = np.insert(codes, 0, top, axis=1).astype(np.uint8)
    scales = np.full((len(codes), 1), exponent + 127, np.uint8)
    shifts = None
    if number_format.group:
      shape = (len(codes), 1, size // number_format.group)
      shifts = np.zeros(shape, np.uint8)
    given = Blocks(codes, scales, shifts)
    x = block_oracle.values_of(given, number_format)
    if not (np.abs(x) < 3.4e38).all():
      pytest.skip('larger than a float32')
    again = encode(x.astype(np.float32), number_format)
    np.testing.assert_array_equal(
      block_oracle.values_of(again, number_format), x
    )


# --- Corners


def test_what_is_too_large_saturates():
  x = [448, 464, 480, 511.99, -500]
  assert rounded(x, E4M3).tolist() == [448, 448, 448, 448, -448]
  x = [1, 1.984375, 1.9921875, -1.9921875, -1.99609375]
  assert rounded(x, INT8).tolist() == [1, 1.984375, 1.984375, *[-1.984375] * 2]
  x = [3.4028235e38, 1e38]
  assert rounded(x, E4M3).tolist() == [
    2.9774707105582116e38,
    9.570441569651394e37,
  ]
  assert rounded(x, INT8).tolist() == [
    3.3762391092936863e38,
    1.010213276796536e38,
  ]


def test_just_below_a_power_of_two():
  """Where a logarithm would round up."""
  x = [2.0**18 - 2.0**-6, 49152]
  assert rounded(x, E4M3).tolist() == [229376, 49152]
  assert rounded(x, E2M1).tolist() == [196608, 49152]
  assert rounded(x, INT8).tolist() == [260096, 49152]


def test_ties():
  x = [256, (0.5 - 2**-25) * 2**-9, 0.5 * 2**-9, 1.5 * 2**-9]
  assert rounded(x, E4M3).tolist() == [256, 0, 0, 2**-8]
  assert rounded(x, E4M3, rounding='away').tolist() == [256, 0, 2**-9, 2**-8]
  x = [6, 5, 2.5, 3.5, 0.25, 0.75, 1.25, 1.75, -0.25]
  assert rounded(x, E2M1).tolist() == [6, 4, 2, 4, 0, 1, 1, 2, -0.0]
  assert np.signbit(rounded(x, E2M1)[-1])
  wanted = [6, 6, 3, 4, 0.5, 1, 1.5, 2, -0.5]
  assert rounded(x, E2M1, rounding='away').tolist() == wanted


def test_subnormal_numbers_are_numbers():
  """XLA takes them for zeros wherever it computes with them."""
  x = np.array([2.0**-127, 2.0**-130, 3 * 2.0**-131], np.float32)
  assert np.array_equal(rounded(x, E4M3), x)
  assert np.array_equal(rounded(x, INT8), x)
  assert np.array_equal(rounded(x, E2M1), [x[0], 0, 0])


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', BLOCK_FORMATS)
def test_a_block_with_what_is_no_number_is_none(name, bad):
  number_format = BLOCK_FORMATS[name]
  x = np.ones(3 * number_format.block, np.float32)
  x[number_format.block + 1] = bad
  found = rounded(x, number_format)
  own = slice(number_format.block, 2 * number_format.block)
  assert np.isnan(found[own]).all()
  assert np.array_equal(np.delete(found, own), np.delete(x, own))
  scales = encode(x, number_format).scales
  assert scales.tolist()[1] == block_formats.NAN_SCALE


def test_zeros_keep_their_signs():
  for number_format in (E4M3, E2M1):
    found = rounded([0.0, -0.0], number_format)
    assert found.tolist() == [0, 0] and np.signbit(found).tolist() == [0, 1]
  assert encode(np.zeros(2, np.float32), E4M3).scales.tolist() == [0]


# --- Properties


@pytest.mark.parametrize('mode', ['floor', 'rceil'])
@pytest.mark.parametrize('name', BLOCK_FORMATS)
def test_rounding_is_monotone_symmetric_and_final(name, mode):
  number_format = BLOCK_FORMATS[name]
  for kind in ('normal', 'wide', 'ties', 'near powers'):
    x = draw(kind)
    y = rounded(x, number_format, scale_mode=mode)
    np.testing.assert_array_equal(
      rounded(y, number_format, scale_mode=mode), y, kind
    )
    np.testing.assert_array_equal(
      rounded(-x, number_format, scale_mode=mode), -y
    )
    np.testing.assert_array_equal(
      rounded(x * np.float32(2**20), number_format, scale_mode=mode), y * 2**20
    )
    if not number_format.group:  # else a step may be finer in the next group
      x, y = (a.reshape(len(x), -1, number_format.block) for a in (x, y))
      order = np.argsort(x, axis=-1)
      assert (np.diff(np.take_along_axis(y, order, -1)) >= 0).all()


@pytest.mark.parametrize('axis', [0, 1, 2, -1, -2])
@pytest.mark.parametrize('name', ['mxfp6_e3m2', 'mx6', 'mxint8'])
def test_any_axis_of_any_length(name, axis):
  number_format = BLOCK_FORMATS[name]
  rng = np.random.default_rng(0)
  for size in (1, 15, 16, 33, 80):
    shape = [3, 4, 5]
    shape[axis] = size
    x = rng.normal(size=shape).astype(np.float32)
    wanted = np.moveaxis(
      rounded(np.moveaxis(x, axis, -1), number_format), -1, axis
    )
    encoded = encode(x, number_format, axis)
    found = decode(encoded, number_format, axis)
    np.testing.assert_array_equal(found, wanted)
    assert encoded.scales.shape[axis % 3] == -(-size // number_format.block)


# Of each kind of element and scale one.
EACH_KIND = ('mx9', 'mx4', 'mxfp8_e4m3', 'mxint8')


@pytest.mark.parametrize('name', slow_but(BLOCK_FORMATS, EACH_KIND))
def test_the_bits_do_not_depend_on_the_program(name):
  """NumPy, and compiled programs alone, in company, mapped and on a mesh."""
  number_format = BLOCK_FORMATS[name]
  x = np.stack([draw(kind, rows=8) for kind in KINDS])
  x[0, :4, 0] = np.nan, np.inf, -np.inf, -0.0
  wanted = encode(x, number_format)
  numbers = decode(wanted, number_format)

  def check(found, given=None):
    jax.tree.map(np.testing.assert_array_equal, found, given or wanted)

  def encode_rows(x):
    return encode(x, number_format, xp=jnp)

  def run(x):
    found = encode_rows(x)
    mapped = jax.vmap(encode_rows)(x)
    # In the company of what a compiler may fuse with it.
    back = decode(encode_rows(x * 1), number_format, xp=jnp)
    return found, mapped, back

  found, mapped, back = jax.jit(run)(x)
  check(found)
  check(mapped)
  np.testing.assert_array_equal(back, numbers)
  mesh = jax.make_mesh((1,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
  spec = jax.sharding.PartitionSpec('x')
  check(jax.shard_map(encode_rows, mesh=mesh, in_specs=spec, out_specs=spec)(x))
  short = x.astype(ml_dtypes.bfloat16)
  check(
    jax.jit(encode_rows)(short), encode(short.astype(np.float32), number_format)
  )


def test_stochastic_rounding_is_right_in_the_mean():
  x = np.full((4096, 32), 1.03, np.float32)
  x[:, 0] = 1.75
  rng = np.random.default_rng(0)
  random = rng.integers(0, 2**32, x.shape, np.uint32)
  found = rounded(x, E4M3, rounding='stochastic', random=random)[:, 1:]
  assert set(np.unique(found)) == {1.0, 1.125}
  # A rounding has a variance of .125^2 p (1 - p).
  share = 0.03 / 0.125
  error = 0.125 * (share * (1 - share) / found.size) ** 0.5
  assert abs(found.mean() - 1.03) < 4 * error
  # Far below the last bit, too: the mean of many zeros and few steps.
  tiny = np.full((4096, 32), 2.0**-14, np.float32)
  tiny[:, 0] = 256.0
  found = rounded(tiny, E4M3, rounding='stochastic', random=random)[:, 1:]
  assert set(np.unique(found)) <= {0.0, 2.0**-9}
  assert found.mean() == pytest.approx(2.0**-14, rel=0.1)


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(x=np.ones(3, np.int32)), 'numbers of int32 cannot be encoded'),
    (dict(x=np.float32(1)), 'a single number has no axis'),
    (dict(rounding='up'), "rounding is 'up', must be one of even, away"),
    (dict(scale_mode='round'), "scale_mode is 'round', must be one of floor"),
    (dict(rounding='stochastic'), "random bits go with rounding='stochastic'"),
  ],
)
def test_what_cannot_be_encoded(change, message):
  options = dict(x=np.ones(3, np.float32), number_format=E4M3) | change
  with pytest.raises(ValueError, match=message):
    encode(**options)


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(mantissa_bits=8), 'at most 5 and 7 are possible'),
    (
      dict(mantissa_bits=7, exponent_bits=4),
      'has 12 bits, and codes are bytes',
    ),
    (dict(scale_mode='x'), 'must be one of floor'),
    (dict(block=0), 'has 0 numbers'),
    (dict(group=2), 'both must be 0, or neither'),
    (dict(group=3, shift_bits=1, block=16), 'must divide its block'),
    (dict(group=2, shift_bits=1, exponent_bits=2), 'without an exponent'),
    (dict(most_scale=-200), 'most_scale of .* is -200, must be -127 to 127'),
    (dict(block=2, group=1, shift_bits=9), 'is 9, must be 5 at most'),
    (dict(specials='no'), "is 'no', must be '', 'nan' or 'ieee'"),
    (dict(specials='nan'), "0 bits of exponent, and specials 'nan' need 1"),
    (dict(exponent_bits=1, specials='ieee'), "specials 'ieee' need 2"),
    (dict(block=16.0), 'block of .* is 16.0, must be a whole number'),
    (dict(block=True), 'block of .* is True'),
    (dict(group=-2), 'group of .* is -2'),
  ],
)
def test_formats_that_cannot_be(change, message):
  with pytest.raises(ValueError, match=message):
    BlockFormat(**(dict(name='mine', mantissa_bits=3) | change))


def test_lengths_of_nothing():
  found = encode(np.ones((3, 0), np.float32), E4M3)
  assert found.codes.shape == (3, 0) and found.scales.shape == (3, 0)
  assert decode(found, E4M3).shape == (3, 0)


@pytest.mark.parametrize(
  'made, read',
  [('mx6', 'mxint8'), ('mxint8', 'mx6'), ('msfp16', 'mx6'), ('mx6', 'msfp16')],
)
def test_blocks_of_another_format(made, read):
  blocks = encode(np.ones(64, np.float32), BLOCK_FORMATS[made])
  with pytest.raises(ValueError, match=f'64 numbers in {read} have .* shifts'):
    decode(blocks, BLOCK_FORMATS[read])
