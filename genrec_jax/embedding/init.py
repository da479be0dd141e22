"""Fresh rows, each a function of (seed, table, row) alone.

A device makes the rows it holds and no others, whatever the plan, and the table
is the same as if one device had made it whole.
"""

import math
import zlib

import jax
import jax.numpy as jnp

from genrec_jax.embedding.layout import Stack
from genrec_jax.features import TableSpec
from genrec_jax.numerics.formats import storage_dtype
from pallas_kernels.hashing import element_bits, mix

CUT = 2.0  # deviations; what the truncated normal leaves out


def init_table(spec: TableSpec, key: jax.Array) -> jax.Array:
  """A truncated normal table `[rows, dim]` (cut at two deviations)."""
  rows = jnp.arange(spec.rows, dtype=jnp.uint32)[:, None]
  columns = jnp.arange(spec.dim, dtype=jnp.uint32)[None]
  table = _truncated_normal(table_seed(key, spec.name), rows, columns)
  return (jnp.float32(spec.init_std) * table).astype(storage_dtype(spec.dtype))


def init_stack(
  stack: Stack,
  specs: dict[str, TableSpec],
  key: jax.Array,
  device: jax.Array,
) -> jax.Array:
  """The rows of one device, `[depth, C]`; zeros where no row lies."""
  number, ids = stack.identify(device, jnp.arange(stack.depth))
  tables = [piece.table for piece in stack.pieces]
  seed = jnp.stack([table_seed(key, name) for name in tables])[number]
  std = jnp.asarray([specs[name].init_std for name in tables])[number]
  first = jnp.asarray([p.first_column for p in stack.pieces], jnp.uint32)
  columns = jnp.arange(stack.columns, dtype=jnp.uint32)[None]
  columns = columns + first[number][:, None]
  rows = _truncated_normal(seed[:, None], ids[:, None], columns)
  rows = jnp.where((number >= 0)[:, None], std[:, None] * rows, 0.0)
  return rows.astype(storage_dtype(stack.dtype))


def table_seed(key: jax.Array, name: str) -> jax.Array:
  """A uint32 for the rows of a table, of the run's key and its name."""
  return mix(jax.random.bits(key) ^ name_bits(name))


def name_bits(name: str, first_column: int = 0) -> jax.Array:
  """A uint32 of a name, or of some columns of a table."""
  return jnp.uint32((zlib.crc32(name.encode()) + first_column) % 2**32)


def hash_row(bits: jax.Array, ids: jax.Array) -> jax.Array:
  """A uint32 of a row, wherever it lies: of its table's bits and its id."""
  return mix(bits ^ ids.astype(jnp.uint32))


def hash_table_rows(name: str, ids: jax.Array) -> jax.Array:
  """`hash_row` for rows of one whole table."""
  return hash_row(name_bits(name), ids)


def _truncated_normal(seed, rows, columns) -> jax.Array:
  bits = element_bits(seed, rows, columns)
  uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-24)
  edge = math.erf(CUT / math.sqrt(2))
  x = jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(edge * (2 * uniform - 1))
  return jnp.clip(x, -CUT, CUT)
