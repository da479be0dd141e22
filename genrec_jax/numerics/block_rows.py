"""Rows in blocks that share a power of two, as bytes: MX, MX9/6/4 and MSFP.

The formats of `block_formats` for rows that travel or are kept packed. A row of
C numbers has three parts, one behind the other:

    codes   of `bits` each, packed                 ceil(bits C / 8) bytes
    scales  a byte for each block                  ceil(C / block)
    shifts  of `shift_bits` for each group, packed ceil(C / group) of them

Blocks begin at the first column of a row; the last one may be shorter. A block
that holds NaN or an infinity is NaN when it is read, so that it stays visible.
"""

from genrec_jax.numerics import blocks
from genrec_jax.numerics.bit_packing import pack_elements, unpack_elements
from genrec_jax.numerics.block_formats import BLOCK_FORMATS, BlockFormat
from genrec_jax.numerics.number_format import EncodedArray, NumberFormat


def make_row_format(
  number_format: BlockFormat, rounding: str = 'even'
) -> NumberFormat:
  """Rows in a format of blocks, for the exchange and for packed tables.

  >>> [BLOCK_ROWS[x].bytes_per_row(64) for x in ('mx9', 'mx6', 'mx4')]
  [72, 48, 32]

  Args:
    number_format: of the elements and their scales.
    rounding: 'even', 'away' or 'down'.
  """
  bits, group = number_format.bits, number_format.group
  mask = (1 << bits) - 1

  def count_groups(columns: int) -> int:
    return -(-columns // group)

  def encode_rows(rows, xp):
    found = blocks.encode(rows, number_format, rounding=rounding, xp=xp)
    # A whole number below zero fills its byte with ones.
    codes = found.codes & xp.uint8(mask)
    parts = {'codes': pack_elements(codes, bits, xp), 'scales': found.scales}
    if group:
      count, groups = found.shifts.shape[-2:]
      shifts = found.shifts.reshape(*rows.shape[:-1], count * groups)
      shifts = shifts[..., : count_groups(rows.shape[-1])]
      parts['shifts'] = pack_elements(shifts, number_format.shift_bits, xp)
    return parts

  def decode_rows(arrays, columns, xp):
    codes = unpack_elements(xp.asarray(arrays['codes']), columns, bits, xp)
    scales, shifts = xp.asarray(arrays['scales']), None
    if group:
      in_rows = scales.shape[-1] * (number_format.block // group)
      shifts = unpack_elements(
        xp.asarray(arrays['shifts']),
        count_groups(columns),
        number_format.shift_bits,
        xp,
      )
      # Groups behind the last column have no numbers.
      widths = [(0, 0)] * (shifts.ndim - 1)
      widths.append((0, in_rows - count_groups(columns)))
      groups = number_format.block // group
      shifts = xp.pad(shifts, widths).reshape(*scales.shape, groups)
    encoded = blocks.Blocks(codes, scales, shifts)
    return blocks.decode(encoded, number_format, xp=xp)

  def lay_out_arrays(columns: int) -> dict[str, EncodedArray]:
    parts = {
      'codes': -(-columns * bits // 8),
      'scales': -(-columns // number_format.block),
    }
    if group:
      of_all = count_groups(columns) * number_format.shift_bits
      parts['shifts'] = -(-of_all // 8)
    return {name: EncodedArray('uint8', size) for name, size in parts.items()}

  return NumberFormat(
    number_format.name, encode_rows, decode_rows, lay_out_arrays
  )


BLOCK_ROWS: dict[str, NumberFormat] = {
  name: make_row_format(number_format)
  for name, number_format in BLOCK_FORMATS.items()
}
