"""Formats in which the numbers of a block share a scale: MX, MX9/6/4 and MSFP.

A block of numbers along one axis shares a power of two. Within it, pairs (or
other small groups) may share a second one, which makes the steps of small
numbers finer. Each number then keeps a sign and a few bits:

| format     | block | elements                     | bits, scales included |
|------------|-------|------------------------------|-----------------------|
| mxfp8_e4m3 | 32    | float, largest 448           | 8.25                  |
| mxfp8_e5m2 | 32    | float, largest 57,344        | 8.25                  |
| mxfp6_e2m3 | 32    | float, largest 7.5           | 6.25                  |
| mxfp6_e3m2 | 32    | float, largest 28            | 6.25                  |
| mxfp4_e2m1 | 32    | float, largest 6             | 4.25                  |
| mxint8     | 32    | 7 bits and a sign            | 8.25                  |
| mx9        | 16    | 7 bits and a sign, pairs     | 9                     |
| mx6        | 16    | 4 bits and a sign, pairs     | 6                     |
| mx4        | 16    | 2 bits and a sign, pairs     | 4                     |
| msfp16     | 16    | 7 bits and a sign            | 8.5                   |
| msfp12     | 16    | 3 bits and a sign            | 4.5                   |

The first six are those of the OCP Microscaling standard (arXiv 2310.10537), the
next three shared microexponents (arXiv 2302.08007). All are instances of one
quantiser of two levels, `blocks.encode`, and so is any other `BlockFormat`.

Nothing here imports JAX.
"""

import dataclasses

SCALE_MODES = ('floor', 'rceil', 'ceil', 'even', 'even_below')
ROUNDINGS = ('even', 'away', 'down', 'stochastic')
SCALE_BITS = 8
LEAST_SCALE, MOST_SCALE = -127, 127
MOST_SHIFT_BITS = 5  # 31 powers of two: no float32 has numbers further apart
NAN_SCALE = 255  # the byte of a block that holds NaN or an infinity


def check_whole(number_format, *names: str) -> None:
  """Refuses fields of a format that are not whole numbers, 0 or more."""
  for name in names:
    value = getattr(number_format, name)
    if type(value) is not int or value < 0:
      raise ValueError(
        f'{name} of {number_format.name!r} is {value!r:.100}, must be a whole '
        'number, 0 or more'
      )


@dataclasses.dataclass(frozen=True)
class BlockFormat:
  """Numbers of a few bits, whose blocks share a power of two.

  Attributes:
    name: of the format.
    mantissa_bits: behind the point of an element.
    exponent_bits: of an element; 0 for whole steps of one size.
    block: how many numbers share a scale.
    group: how many of a block share a finer one; 0 for none.
    shift_bits: of the finer scale: it divides by up to 2^(2^bits - 1).
    specials: codes that an element with an exponent has for what is no number:
      '' for none, 'nan', or 'ieee' for a whole exponent.
    scale_mode: how the scale of a block follows from its largest number:
      'floor' takes the power of two below it (larger elements saturate),
      'rceil' the least that lets nothing saturate, 'ceil' the power of two
      above, 'even' that of the number rounded to the element's bits, halves
      up, and 'even_below' the same, halves down.
    most_scale: largest exponent of a block's scale.
  """

  name: str
  mantissa_bits: int
  exponent_bits: int = 0
  block: int = 32
  group: int = 0
  shift_bits: int = 0
  specials: str = ''
  scale_mode: str = 'floor'
  most_scale: int = MOST_SCALE

  def __post_init__(self):
    check_whole(
      self, 'mantissa_bits', 'exponent_bits', 'block', 'group', 'shift_bits'
    )
    if self.specials not in ('', 'nan', 'ieee'):
      raise ValueError(
        f"specials of {self.name!r} is {self.specials!r}, must be '', 'nan' or "
        "'ieee'"
      )
    least = {'': 0, 'nan': 1, 'ieee': 2}[self.specials]
    if self.exponent_bits < least:
      raise ValueError(
        f'{self.name!r} has {self.exponent_bits} bits of exponent, and '
        f'specials {self.specials!r} need {least}'
      )
    if not LEAST_SCALE <= self.most_scale <= MOST_SCALE:
      raise ValueError(
        f'most_scale of {self.name!r} is {self.most_scale}, must be '
        f'{LEAST_SCALE} to {MOST_SCALE}'
      )
    if self.shift_bits > MOST_SHIFT_BITS:
      raise ValueError(
        f'shift_bits of {self.name!r} is {self.shift_bits}, must be '
        f'{MOST_SHIFT_BITS} at most'
      )
    if not 0 <= self.mantissa_bits <= 7 or not 0 <= self.exponent_bits <= 5:
      raise ValueError(
        f'{self.name!r} has {self.exponent_bits} bits of exponent and '
        f'{self.mantissa_bits} of mantissa; at most 5 and 7 are possible'
      )
    if self.bits > 8:
      raise ValueError(
        f'an element of {self.name!r} has {self.bits} bits, and codes are bytes'
      )
    if self.scale_mode not in SCALE_MODES:
      raise ValueError(
        f'scale_mode of {self.name!r} is {self.scale_mode!r}, must be one of '
        f'{", ".join(SCALE_MODES)}'
      )
    if self.block < 1:
      raise ValueError(f'a block of {self.name!r} has {self.block} numbers')
    if bool(self.group) != bool(self.shift_bits):
      raise ValueError(
        f'{self.name!r} has groups of {self.group} with {self.shift_bits} bits '
        'of shift: both must be 0, or neither'
      )
    if self.group and (self.exponent_bits or self.block % self.group):
      raise ValueError(
        f'groups of {self.group} in {self.name!r} must divide its block of '
        f'{self.block}, and are for elements without an exponent'
      )

  @property
  def bits(self) -> int:
    """Of an element, with its sign."""
    return 1 + self.exponent_bits + self.mantissa_bits + self._whole_bits

  @property
  def _whole_bits(self) -> int:
    return 0 if self.exponent_bits else 1

  @property
  def bias(self) -> int:
    """Of an element's exponent."""
    return 2 ** (self.exponent_bits - 1) - 1 if self.exponent_bits else 0

  @property
  def least_exponent(self) -> int:
    """Exponent of the numbers with the finest steps."""
    return 1 - self.bias if self.exponent_bits else 0

  @property
  def most_code(self) -> int:
    """Code of the largest element."""
    most = 2 ** (self.bits - 1) - 1
    return (
      most - {'': 0, 'nan': 1, 'ieee': 1 << self.mantissa_bits}[self.specials]
    )

  @property
  def most_exponent(self) -> int:
    """Exponent of the largest element."""
    if not self.exponent_bits:
      return 0
    return (self.most_code >> self.mantissa_bits) - self.bias

  @property
  def most_fraction(self) -> int:
    """The 23 bits behind the point of the largest element."""
    fraction = self.most_code & ((1 << self.mantissa_bits) - 1)
    return fraction << (23 - self.mantissa_bits)

  @property
  def most(self) -> float:
    """The largest element.

    >>> [BLOCK_FORMATS[f].most for f in ('mxfp8_e4m3', 'mxfp4_e2m1', 'mxint8')]
    [448.0, 6.0, 1.984375]
    """
    return (1 + self.most_fraction / 2**23) * 2.0**self.most_exponent

  @property
  def most_shift(self) -> int:
    """By how many powers of two a group can be finer than its block."""
    return 2**self.shift_bits - 1

  @property
  def mean_bits(self) -> float:
    """Of a number, with its part of the scales.

    >>> [BLOCK_FORMATS[f].mean_bits for f in ('mx9', 'mx4', 'mxfp6_e3m2')]
    [9.0, 4.0, 6.25]
    """
    shifts = self.shift_bits / self.group if self.group else 0.0
    return self.bits + SCALE_BITS / self.block + shifts


def _shared(name: str, magnitude_bits: int, **more) -> BlockFormat:
  """Elements of a sign and so many bits, the first of which counts ones."""
  return BlockFormat(name, magnitude_bits - 1, block=16, **more)


BLOCK_FORMATS: dict[str, BlockFormat] = {
  x.name: x
  for x in (
    BlockFormat('mxfp8_e4m3', 3, 4, specials='nan'),
    BlockFormat('mxfp8_e5m2', 2, 5, specials='ieee'),
    BlockFormat('mxfp6_e2m3', 3, 2),
    BlockFormat('mxfp6_e3m2', 2, 3),
    BlockFormat('mxfp4_e2m1', 1, 2),
    BlockFormat('mxint8', 6),
    _shared('mx9', 7, group=2, shift_bits=1),
    _shared('mx6', 4, group=2, shift_bits=1),
    _shared('mx4', 2, group=2, shift_bits=1),
    _shared('msfp16', 7),
    _shared('msfp12', 3),
  )
}


def find_block_format(name: str) -> BlockFormat:
  """The format called `name`.

  >>> find_block_format('mxfp3')
  Traceback (most recent call last):
  ValueError: there is no block format 'mxfp3'; there are mxfp8_e4m3, \
mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4_e2m1, mxint8, mx9, mx6, mx4, msfp16, \
msfp12
  """
  if name not in BLOCK_FORMATS:
    raise ValueError(
      f'there is no block format {name!r}; there are {", ".join(BLOCK_FORMATS)}'
    )
  return BLOCK_FORMATS[name]
