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
  """A table `[rows, dim]` as its `distribution` says."""
  rows = jnp.arange(spec.rows, dtype=jnp.uint32)[:, None]
  columns = jnp.arange(spec.dim, dtype=jnp.uint32)[None]
  draw = DISTRIBUTIONS[spec.distribution]
  table = draw(table_seed(key, spec.name), rows, columns)
  return (jnp.float32(_scale_of(spec)) * table).astype(
    storage_dtype(spec.dtype)
  )


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
  kinds = [specs[name].distribution for name in tables]
  scale = jnp.asarray([_scale_of(specs[name]) for name in tables])[number]
  first = jnp.asarray([p.first_column for p in stack.pieces], jnp.uint32)
  columns = jnp.arange(stack.columns, dtype=jnp.uint32)[None]
  columns = columns + first[number][:, None]
  place = seed[:, None], ids[:, None], columns
  rows = DISTRIBUTIONS[kinds[0]](*place)
  for kind in sorted({*kinds} - {kinds[0]}):
    of_kind = jnp.asarray([k == kind for k in kinds])[number]
    rows = jnp.where(of_kind[:, None], DISTRIBUTIONS[kind](*place), rows)
  rows = jnp.where((number >= 0)[:, None], scale[:, None] * rows, 0.0)
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


def _scale_of(spec: TableSpec) -> float:
  """The factor of what is drawn."""
  uniform = spec.distribution == 'uniform_rows'
  return spec.rows**-0.5 if uniform else spec.init_std


def _draw_uniform(seed, rows, columns) -> jax.Array:
  """From -1 to 1."""
  bits = element_bits(seed, rows, columns)
  uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-24)
  return 2 * uniform - 1


def _draw_truncated_normal(seed, rows, columns) -> jax.Array:
  edge = math.erf(CUT / math.sqrt(2))
  uniform = edge * _draw_uniform(seed, rows, columns)
  x = jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)
  return jnp.clip(x, -CUT, CUT)


def _draw_normal(seed, rows, columns) -> jax.Array:
  # The last of 2^24 values rounds to 1, whose quantile is infinite.
  edge = 1 - 2.0**-24
  uniform = jnp.clip(_draw_uniform(seed, rows, columns), -edge, edge)
  return jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)


DISTRIBUTIONS = {  # of `TableSpec.distribution`
  'truncated_normal': _draw_truncated_normal,
  'normal': _draw_normal,
  'uniform_rows': _draw_uniform,
}
