"""What rows look like on the wire: whole, in 16 bits, or in 8 with a scale.

A codec turns `[..., C]` float32 into unsigned integers and back. Integers,
because a collective of a narrow float type may be widened by the compiler: in
this form the bits that travel are the bits of the codec. A row that has a scale
carries it along in its own bytes, so that one collective moves both.

| name     | bytes of a row | forward       | backward      |
|----------|----------------|---------------|---------------|
| float32  | 4 C            |               |               |
| float16  | 2 C            | nearest       | nearest       |
| bfloat16 | 2 C            | nearest       | nearest       |
| fp8      | C + 4          | e4m3, scaled  | e5m2, scaled  |
| int8     | C + 8          | 256 steps from the least to the greatest value |
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Codec:
  """How rows travel.

  Attributes:
    encode: `[..., C]` float32 -> `[..., N]` unsigned, or float32 as it is.
    decode: the inverse, given C.
    row_bytes: C -> bytes of a row on the wire.
    exact: whether nothing is lost, so that sums may be made on the way.
  """

  encode: Callable[[jax.Array], jax.Array]
  decode: Callable[[jax.Array, int], jax.Array]
  row_bytes: Callable[[int], int]
  exact: bool = False


def codec(name: str, *, backward: bool = False) -> Codec:
  """The codec called `name`, as rows or as their gradients use it."""
  if name not in CODECS:
    raise ValueError(
      f'there is no codec {name!r}, must be one of {", ".join(CODECS)}'
    )
  return CODECS[name](backward)


def _as_is(backward: bool) -> Codec:
  del backward
  return Codec(lambda x: x, lambda x, columns: x, lambda c: 4 * c, True)


def _narrow(dtype):
  def make(backward: bool) -> Codec:
    del backward

    def encode(x):
      return jax.lax.bitcast_convert_type(x.astype(dtype), jnp.uint16)

    def decode(bits, columns):
      del columns
      return jax.lax.bitcast_convert_type(bits, dtype).astype(jnp.float32)

    return Codec(encode, decode, lambda c: 2 * c)

  return make


def _fp8(backward: bool) -> Codec:
  dtype = jnp.float8_e5m2 if backward else jnp.float8_e4m3fn
  # Below the largest number of the format, so that nothing overflows.
  top = 2.0**15 if backward else 2.0**8

  def encode(x):
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    scale = jnp.maximum(largest, jnp.float32(_TINY)) / jnp.float32(top)
    payload = jax.lax.bitcast_convert_type((x / scale).astype(dtype), jnp.uint8)
    return jnp.concatenate([payload, _to_bytes(scale)], axis=-1)

  def decode(bits, columns):
    payload = jax.lax.bitcast_convert_type(bits[..., :columns], dtype)
    return payload.astype(jnp.float32) * _from_bytes(bits[..., columns:])

  return Codec(encode, decode, lambda c: c + 4)


def _int8(backward: bool) -> Codec:
  del backward

  def encode(x):
    least = jnp.min(x, axis=-1, keepdims=True)
    width = jnp.max(x, axis=-1, keepdims=True) - least
    scale = jnp.maximum(width, jnp.float32(_TINY)) / jnp.float32(255)
    steps = jnp.round((x - least) / scale)
    # A NaN would become some integer; it must stay visible. Look at all of the
    # row: maxima on a CPU may leave out a NaN.
    finite = jnp.all(jnp.isfinite(x), axis=-1, keepdims=True)
    scale = jnp.where(finite, scale, jnp.nan)
    return jnp.concatenate(
      [steps.astype(jnp.uint8), _to_bytes(scale), _to_bytes(least)], axis=-1
    )

  def decode(bits, columns):
    steps = bits[..., :columns].astype(jnp.float32)
    scale = _from_bytes(bits[..., columns : columns + 4])
    return steps * scale + _from_bytes(bits[..., columns + 4 :])

  return Codec(encode, decode, lambda c: c + 8)


def _to_bytes(x: jax.Array) -> jax.Array:
  """`[..., 1]` float32 -> `[..., 4]` uint8."""
  return jax.lax.bitcast_convert_type(x[..., 0], jnp.uint8)


def _from_bytes(x: jax.Array) -> jax.Array:
  """The inverse of `_to_bytes`."""
  return jax.lax.bitcast_convert_type(x, jnp.float32)[..., None]


CODECS = {
  'float32': _as_is,
  'float16': _narrow(jnp.float16),
  'bfloat16': _narrow(jnp.bfloat16),
  'fp8': _fp8,
  'int8': _int8,
}
