"""Lookups and bags of tables whose rows are packed in few bits.

    table = pack_table(rows, 'tbe_int4')
    lookup(table, ids), embedding_bag(table, ids, lengths)

The table stays packed: a program gathers the bytes of the rows it needs and
makes numbers of these alone. A service maps the bytes of a serving copy
(`ServingCopy.table`) and gives them to `PackedTable` as they are.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from genrec_jax.numerics import packed_formats
from genrec_jax.numerics.packed_formats import PACKED_FORMATS
from pallas_kernels.jagged_embedding import checks, cpu

# Format -> bits of its codes; whether scale and bias stand in front of them;
# whether they are float16.
_WHOLE = {
  f'{kind}_int{bits}': (bits, kind == 'tbe', kind == 'tbe' or bits < 8)
  for kind in ('fbgemm', 'tbe')
  for bits in (8, 4, 2)
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedTable:
  """Rows of few bits, and how they are packed.

  Attributes:
    rows: `[rows, bytes]` uint8.
    columns: numbers of a row.
    format: a key of `packed_formats.PACKED_FORMATS`.
  """

  rows: jax.Array
  columns: int = dataclasses.field(metadata=dict(static=True))
  format: str = dataclasses.field(metadata=dict(static=True))

  def __post_init__(self):
    if self.format not in PACKED_FORMATS:
      raise ValueError(
        f'rows cannot be packed as {self.format!r}; formats are '
        + ', '.join(PACKED_FORMATS)
      )
    # Tree functions put other things than arrays into the place of one.
    shape, dtype = (getattr(self.rows, a, None) for a in ('shape', 'dtype'))
    wanted = PACKED_FORMATS[self.format].bytes_per_row(self.columns)
    if shape is not None and (dtype != np.uint8 or shape[1:] != (wanted,)):
      raise ValueError(
        f'rows of {self.columns} numbers in {self.format} are uint8 '
        f'[rows, {wanted}], these are {dtype} {list(shape)}'
      )


def pack_table(rows: np.ndarray | jax.Array, name: str) -> PackedTable:
  """Packs a table, on the host.

  >>> table = pack_table(np.array([[0.0, 1.0, 2.0, 3.0]]), 'tbe_int2')
  >>> table.rows.tolist(), lookup(table, jnp.array([0])).tolist()
  ([[0, 60, 0, 0, 228]], [[0.0, 1.0, 2.0, 3.0]])

  Args:
    rows: `[rows, D]`.
    name: the format, a key of `packed_formats.PACKED_FORMATS`.
  """
  if name not in PACKED_FORMATS:
    raise ValueError(
      f'rows cannot be packed as {name!r}; formats are '
      + ', '.join(PACKED_FORMATS)
    )
  rows = np.asarray(rows, np.float32)
  packed = packed_formats.join_parts(PACKED_FORMATS[name], rows)
  return PackedTable(jnp.asarray(packed), rows.shape[1], name)


def lookup(
  table: PackedTable, ids: jax.Array, *, implementation: str | None = None
) -> jax.Array:
  """The row of each id, `[..., D]` float32; NaN for an id that is no row.

  They are the numbers of `packed_formats.split_parts` to the bit, except those
  of `fbgemm_int8`: whether the product of a code and a scale in float32 is
  rounded before the bias is added is up to the compiler.

  Args:
    table: packed.
    ids: integers.
    implementation: 'cpu', 'xla', or None for the best one here.
  """
  shape = ids.shape
  flat = checks.check_integers('ids', ids.reshape(math.prod(shape)))
  if _choose(table, implementation) == 'cpu':
    rows = _call_cpu(table, flat, jnp.ones_like(flat), None)
    return rows.reshape(*shape, table.columns)
  ids = flat.reshape(shape)
  number_format, data = PACKED_FORMATS[table.format], table.rows
  found = data.at[ids].get(mode='clip')
  arrays, start = {}, 0
  for part, array in number_format.layout(table.columns).items():
    end = start + array.row_bytes
    arrays[part] = _read_part(found[..., start:end], array)
    start = end
  rows = number_format.decode(arrays, table.columns, jnp)
  real = (ids >= 0) & (ids < len(data))
  return jnp.where(real[..., None], rows, jnp.nan)


def embedding_bag(
  table: PackedTable,
  ids: jax.Array,
  lengths: jax.Array,
  *,
  mode: str = 'sum',
  weights: jax.Array | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """As `pallas_kernels.embedding_bag`, of a packed table; `[B, D]` float32.

  Args:
    table: packed.
    ids: `[K]` integers, the bags one after the other.
    lengths: `[B]` ids of each bag. An empty bag gives zeros.
    mode: 'sum' or 'mean'.
    weights: `[K]` factor of each id's row. They may be differentiated, the
      table may not.
    implementation: 'cpu', 'xla', or None for the best one here: C++ on a CPU,
      for rows of whole numbers.
  """
  ids, lengths, weights, wrong = checks.check_bags(ids, lengths, weights, mode)
  if _choose(table, implementation) == 'cpu':
    if weights is not None:
      weights = weights.astype(jnp.float32)
    sums = _call_cpu(table, ids, lengths, weights)
    if mode == 'mean':
      sums /= jnp.maximum(lengths, 1)[:, None].astype(jnp.float32)
    # What nobody could check before it ran must not look like an answer.
    return jnp.where(wrong, jnp.nan, sums)
  return _call_xla(table, ids, lengths, weights, mode)


def _call_xla(table: PackedTable, ids, lengths, weights, mode='sum'):
  count = ids.shape[0]
  # Ids after the last bag are padding, which may hold anything.
  used = jnp.arange(count, dtype=jnp.int32) < jnp.sum(lengths)
  rows = lookup(table, ids, implementation='xla')
  rows = jnp.where(used[:, None], rows, 0.0)
  return pallas_kernels.embedding_bag(
    rows, jnp.arange(count, dtype=jnp.int32), lengths, mode=mode,
    weights=weights, implementation='xla',
  )  # fmt: skip


def _choose(table: PackedTable, implementation: str | None) -> str:
  """'cpu' or 'xla'; refuses 'cpu' where it cannot be."""
  reason = cpu.why_not()
  if table.format not in _WHOLE:
    reason = f'it reads {", ".join(_WHOLE)}, not {table.format}'
  if implementation is None:
    return 'xla' if reason else 'cpu'
  if implementation not in ('cpu', 'xla'):
    raise ValueError(
      f"implementation is {implementation!r}, not 'cpu' or 'xla'"
    )
  if implementation == 'cpu' and reason:
    raise NotImplementedError(f"the implementation 'cpu' cannot run: {reason}")
  return implementation


@jax.custom_vjp
def _call_cpu(table: PackedTable, ids, lengths, weights) -> jax.Array:
  bits, leading, half = _WHOLE[table.format]
  return cpu.packed_bag(
    table.rows, ids, lengths, weights, table.columns, bits, leading, half
  )


def _call_cpu_forward(*args):
  return _call_cpu(*args), args


def _call_cpu_backward(args, gradient):
  # Of the weights alone: the others are bytes and whole numbers. Serving never
  # comes here, so that XLA's bags are fast enough.
  table, ids, lengths, weights = args
  if weights is None:
    return None, None, None, None
  _, pull = jax.vjp(lambda w: _call_xla(table, ids, lengths, w), weights)
  return None, None, None, *pull(gradient)


_call_cpu.defvjp(_call_cpu_forward, _call_cpu_backward)


def _read_part(found: jax.Array, array) -> jax.Array:
  """Bytes `[..., n]` as the numbers that they are."""
  size = np.dtype(array.dtype).itemsize
  if size > 1:
    found = found.reshape(*found.shape[:-1], found.shape[-1] // size, size)
  values = jax.lax.bitcast_convert_type(found, array.dtype)
  return values[..., 0] if array.width is None else values
