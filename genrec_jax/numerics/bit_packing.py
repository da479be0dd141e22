"""Packs codes of 1 to 8 bits into bytes, row by row.

Element j of a row occupies the bits `j * bits` to `j * bits + bits - 1` of the
row, counted from the low bit of its first byte; each row begins with a new
byte. With 2 and 4 bits this is FBGEMM's layout; with 3, eight elements share
three bytes. Checkpoints know 2, 3, 4 and 8 bits.
"""

import math
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any  # of NumPy or of JAX
BITS = (2, 3, 4, 8)


def packed_bytes(dim: int, bits: int) -> int:
  """The number of bytes of the codes of a row of `dim` elements.

  >>> packed_bytes(10, bits=3)
  4
  """
  check_bits(bits)
  return -(-dim * bits // 8)


def pack_elements(codes: Array, bits: int, xp: types.ModuleType = np) -> Array:
  """Packs the last axis, in NumPy or in a program.

  `pack_codes` gives the same bytes and is faster, in NumPy.

  >>> pack_elements(np.array([1, 2, 3, 0], np.uint8), bits=2).tolist()
  [57]

  Args:
    codes: `[..., D]` uint8, each below `2**bits`.
    bits: 1 to 8.
    xp: `numpy` or `jax.numpy`.

  Returns:
    `[..., ceil(D * bits / 8)]` uint8.
  """
  if bits == 8:
    return codes
  elements, bytes_ = _count_group(bits)
  groups = _split_groups(codes, elements, xp)
  packed: list = [None] * bytes_
  for element, byte, shift in _find_overlaps(bits):
    # Bits that leave the byte belong to the next one, which has a step of its
    # own.
    _put(packed, byte, _move(groups[..., element], shift))
  return _join_groups(packed, -(-codes.shape[-1] * bits // 8), xp)


def unpack_elements(
  packed: Array, dim: int, bits: int, xp: types.ModuleType = np
) -> Array:
  """The inverse of `pack_elements`: `[..., dim]` uint8."""
  if bits == 8:
    return packed
  elements, bytes_ = _count_group(bits)
  groups = _split_groups(packed, bytes_, xp)
  codes: list = [None] * elements
  for element, byte, shift in _find_overlaps(bits):
    # The byte holds parts of other elements, too.
    part = _move(groups[..., byte], -shift) & np.uint8(2**bits - 1)
    _put(codes, element, part)
  return _join_groups(codes, dim, xp)


def _split_groups(x: Array, size: int, xp: types.ModuleType) -> Array:
  """`[..., n]` -> `[..., groups, size]`, zeros behind."""
  if missing := -x.shape[-1] % size:
    x = xp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
  return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _join_groups(parts: list, size: int, xp: types.ModuleType) -> Array:
  """The inverse of `_split_groups`, of the parts of its last axis."""
  x = xp.stack(parts, -1)
  return x.reshape(*x.shape[:-2], math.prod(x.shape[-2:]))[..., :size]


def _put(parts: list, place: int, part: Array) -> None:
  parts[place] = part if parts[place] is None else parts[place] | part


def _move(x: Array, shift: int) -> Array:
  """x with its bits moved up, or down."""
  return x << np.uint8(shift) if shift >= 0 else x >> np.uint8(-shift)


def check_bits(bits: int) -> None:
  """Raises ValueError for widths that are not packed."""
  if bits not in BITS:
    raise ValueError(
      f'bits is {bits!r}, must be one of {", ".join(map(str, BITS))}'
    )


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
  """Packs codes.

  >>> pack_codes(np.array([[1, 2, 3, 0]], np.uint8), bits=2).tolist()
  [[57]]

  Args:
    codes: `[n, D]` uint8, each below `2**bits`.
    bits: 2, 3, 4 or 8.

  Returns:
    `[n, ceil(D * bits / 8)]` uint8.
  """
  count, dim = codes.shape
  # Rows as columns: each step below then writes whole vectors of rows.
  packed = np.zeros((packed_bytes(dim, bits), count), np.uint8)
  elements, bytes_ = _count_group(bits)
  for element, byte, shift in _find_overlaps(bits):
    # This element of all groups at once; the last group may lack some.
    part = codes.T[element::elements]
    part = _move(part, shift)
    packed[byte::bytes_][: len(part)] |= part
  return np.ascontiguousarray(packed.T)


def unpack_codes(packed: np.ndarray, dim: int, bits: int) -> np.ndarray:
  """Unpacks codes: the inverse of `pack_codes`.

  Args:
    packed: `[n, ceil(dim * bits / 8)]` uint8.
    dim: elements of a row.
    bits: 2, 3, 4 or 8.

  Returns:
    `[n, dim]` uint8.
  """
  width = packed_bytes(dim, bits)
  if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != width:
    raise ValueError(
      f'codes of {dim} elements of {bits} bits are uint8 [n, {width}], these '
      f'are {packed.dtype} {list(packed.shape)}'
    )
  codes = np.zeros((len(packed), dim), np.uint8)
  elements, bytes_ = _count_group(bits)
  for element, byte, shift in _find_overlaps(bits):
    into = codes[:, element::elements]
    part = packed[:, byte::bytes_][:, : into.shape[1]]
    # The byte holds parts of other elements, too.
    into |= _move(part, -shift) & np.uint8(2**bits - 1)
  return codes


def _count_group(bits: int) -> tuple[int, int]:
  """The fewest elements that fill whole bytes, and how many bytes these are."""
  elements = 8 // math.gcd(8, bits)
  return elements, elements * bits // 8


def _find_overlaps(bits: int) -> Iterator[tuple[int, int, int]]:
  """Every element of a group with every byte that holds some of its bits.

  Yields:
    Element, byte, and by how much the element is shifted to the left in it.
  """
  elements, bytes_ = _count_group(bits)
  for element in range(elements):
    for byte in range(bytes_):
      shift = element * bits - byte * 8
      if -bits < shift < 8:
        yield element, byte, shift
