"""The number formats of the library, for checkpoints, exchange and tables.

| user        | chooses by                                | may be             |
|-------------|-------------------------------------------|--------------------|
| checkpoints | `checkpoint.method` and `checkpoint.bits` | has a `method`     |
| exchange    | `exchange.forward`, `exchange.backward`   | 'jax' in `engines` |
| tables      | `optimizer.rows.dtype`                    | `storage_dtype`    |

A format of your own is handed in, beside those of the library:

    formats = extend_formats({'power8': POWER8})
    Exchange(forward='power8', formats=formats)
    chunks.RowEncoding(8, 'power', formats=formats)

docs/number_formats.md lists them all. No JAX is imported here.
"""

from collections.abc import Mapping

import numpy as np

from genrec_jax.numerics import casts, even_levels, row_kmeans
from genrec_jax.numerics.block_rows import BLOCK_ROWS
from genrec_jax.numerics.fused_rows import FUSED_ROWS
from genrec_jax.numerics.number_format import NumberFormat

Formats = Mapping[str, NumberFormat]

FORMATS: dict[str, NumberFormat] = {
  'float32': casts.FLOAT32,
  'float16': casts.FLOAT16,
  'bfloat16': casts.BFLOAT16,
  'fp8': casts.FP8,
  'int8': even_levels.INT8,
  'symmetric2': even_levels.symmetric(2),
  'symmetric3': even_levels.symmetric(3),
  'symmetric4': even_levels.symmetric(4),
  'symmetric8': even_levels.symmetric(8),
  'asymmetric2': even_levels.asymmetric(2),
  'asymmetric3': even_levels.asymmetric(3),
  'asymmetric4': even_levels.asymmetric(4),
  'asymmetric8': even_levels.asymmetric(8),
  'adaptive2': even_levels.adaptive(2),
  'adaptive3': even_levels.adaptive(3),
  'adaptive4': even_levels.adaptive(4),
  'adaptive8': even_levels.adaptive(8),
  # Not with 8 bits: 256 numbers of its own are more than a row.
  'kmeans2': row_kmeans.kmeans(2),
  'kmeans3': row_kmeans.kmeans(3),
  'kmeans4': row_kmeans.kmeans(4),
  # FBGEMM's rows, but for those in which NaN would become a number.
  **{
    name: FUSED_ROWS[name]
    for name in (
      'fbgemm_int8',
      'fbgemm_int4',
      'fbgemm_int2',
      'fbgemm_fp8',
      'fbgemm_mx4',
    )
  },
  **BLOCK_ROWS,  # MX, shared microexponents, MSFP
}


def extend_formats(
  more: Formats, formats: Formats = FORMATS
) -> dict[str, NumberFormat]:
  """The formats of the library and some others.

  Args:
    more: name -> format.
    formats: those there are.

  Returns:
    Both, for the argument `formats` of checkpoints and of the exchange.

  Raises:
    ValueError: a name, or a method with its bits, is in use already.

  >>> import dataclasses
  >>> mine = dataclasses.replace(FORMATS['int8'], name='mine')
  >>> extend_formats({'mine': mine})['mine'].bytes_per_row(64)
  72
  >>> extend_formats({'int8': mine})
  Traceback (most recent call last):
  ValueError: there is a number format 'int8' already; choose another name
  """
  together = dict(formats)
  for name, added in more.items():
    if name in together:
      raise ValueError(
        f'there is a number format {name!r} already; choose another name'
      )
    if added.name != name:
      raise ValueError(
        f'the number format {added.name!r} is handed in as {name!r}; use one '
        'name'
      )
    for other in together.values():
      if added.method and _sort_key(added) == _sort_key(other):
        raise ValueError(
          f'the number formats {other.name!r} and {name!r} both have the '
          f'method {added.method!r} with {added.bits} bits; choose another '
          'method'
        )
    together[name] = added
  return together


def find_quantiser(
  method: str, bits: int, formats: Formats = FORMATS
) -> NumberFormat:
  """The format that checkpoints call by a method and bits.

  Args:
    method: one of `list_methods(formats)`.
    bits: bits of an element.
    formats: those there are.

  Returns:
    The format; any other pair is a ValueError that says what there is.

  >>> find_quantiser('adaptive', 4).name
  'adaptive4'
  """
  for candidate in formats.values():
    if candidate.method and _sort_key(candidate) == (method, bits):
      return candidate
  if method not in list_methods(formats):
    raise ValueError(
      f'method is {method!r}, must be one of {", ".join(list_methods(formats))}'
    )
  if bits not in bit_widths(formats):
    widths = ', '.join(map(str, bit_widths(formats)))
    raise ValueError(f'bits is {bits!r}, must be one of {widths}')
  own = [str(f.bits) for f in formats.values() if f.method == method]
  others = [f.method for f in formats.values() if f.method and f.bits == bits]
  raise ValueError(
    f'method {method} has no format of {bits} bits, only of {", ".join(own)}; '
    f'with {bits} bits take {" or ".join(map(repr, others))}'
  )


def list_methods(formats: Formats = FORMATS) -> tuple[str, ...]:
  """What `checkpoint.method` may be."""
  return tuple(dict.fromkeys(f.method for f in formats.values() if f.method))


def bit_widths(formats: Formats = FORMATS) -> tuple[int, ...]:
  """What `checkpoint.bits` may be, beside 32 for the values as they are."""
  return tuple(sorted({f.bits for f in formats.values() if f.method}))


def storage_dtype(name: str, formats: Formats = FORMATS) -> np.dtype:
  """The dtype of a table that is kept in the format `name`.

  >>> storage_dtype('bfloat16').itemsize
  2
  """
  known = [f.name for f in formats.values() if f.storage_dtype is not None]
  if name not in known:
    raise ValueError(
      f'dtype of a table is {name!r}, must be one of {", ".join(known)}'
    )
  return formats[name].storage_dtype


def _sort_key(number_format: NumberFormat) -> tuple[str, int]:
  return number_format.method, number_format.bits
