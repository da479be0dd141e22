"""What all TPU kernels do with one block of queries and one block of keys.

Tiles are `[queries, keys]`, or `[keys, queries]` ("turned") in the kernel that
sums over queries: both kernels then contract the second axis of their tile, and
the same code serves both, since every formula here is elementwise.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import dispatch
from pallas_kernels.hashing import keep_mask
from pallas_kernels.hstu_attention import masks, tpu_layout
from pallas_kernels.hstu_attention.reference import time_bucket
from pallas_kernels.hstu_attention.spec import Spec
from pallas_kernels.hstu_attention.tpu_heads import LANES
from pallas_kernels.hstu_attention.tpu_layout import KernelPlan

SUBLANES = 8


class Tile(NamedTuple):
  """What the heads share; every array is a tile, or a column or row of one.

  Attributes:
    mask: which query sees which key.
    bias: what is added to the scores, None for nothing.
    buckets: buckets of the time bias, None without one.
    target: whether the query is a target, None where that does not matter.
    query: token number of the queries.
    key: token number of the keys.
  """

  mask: jax.Array
  bias: jax.Array | None
  buckets: jax.Array | None
  target: jax.Array | None
  query: jax.Array
  key: jax.Array


def build(
  spec: Spec,
  plan: KernelPlan,
  tables: dict,
  queries,
  keys,
  distance,
  turned: bool,
) -> Tile:
  """The tile of two blocks.

  Args:
    spec: options of the call.
    plan: block sizes.
    tables: references to 'position' (tiles) and 'time' `[1, 128]`, if any.
    queries: fields of the block, `[8, block_q]`.
    keys: `[8, block_k]`.
    distance: key block minus query block, in tiles.
    turned: see the top of the file.
  """
  # Those that run down the tile become columns.
  if turned:
    keys = keys.T
  else:
    queries = queries.T

  def of_queries(number):
    return _field(queries, number, turned)

  def of_keys(number):
    return _field(keys, number, not turned)

  # Columns and rows that broadcast against each other to a tile.
  query = of_queries(tpu_layout.TOKEN)
  key = of_keys(tpu_layout.TOKEN)
  mask = masks.is_visible(
    spec,
    query == key,
    of_queries(tpu_layout.ORDER),
    of_keys(tpu_layout.ORDER),
    of_queries(tpu_layout.LIMIT),
  )
  mask &= of_queries(tpu_layout.SEGMENT) == of_keys(tpu_layout.SEGMENT)
  bias = buckets = target = None
  if 'position' in tables:
    bias = _position(spec, plan, tables['position'], distance, turned)
    if plan.targets:
      # All targets of a sequence stand in the same place.
      target = of_queries(tpu_layout.TARGET) > 0
      behind = of_keys(tpu_layout.TARGET_BIAS)
      behind = lax.bitcast_convert_type(behind, jnp.float32)
      bias = jnp.where(target, behind, bias)
  if 'time' in tables:
    delta = of_queries(tpu_layout.TIME) - of_keys(tpu_layout.TIME)
    # Computed once for all heads, and used again for the gradient.
    buckets = time_bucket(delta, plan.buckets)
    time = _lookup(tables['time'][...], buckets)
    bias = time if bias is None else bias + time
  return Tile(mask, bias, buckets, target, query, key)


def scores(spec: Spec, tile: Tile, a, b) -> jax.Array:
  """The scores `alpha * a . b + bias`.

  Args:
    spec: options of the call.
    tile: the tile, of which the bias is used.
    a: rows of the tile, `[rows, dqk]`: queries, or keys if turned.
    b: columns of the tile, `[columns, dqk]`.
  """
  s = dot(a, b, 1, 1)
  # Known when the kernel is compiled: a factor of one costs nothing.
  if spec.alpha != 1.0:
    s *= spec.alpha
  return s if tile.bias is None else s + tile.bias


def apply_dropout(spec: Spec, tile: Tile, seed, head, x) -> jax.Array:
  """Replaces dropped elements by zero, without scaling the others up.

  Args:
    spec: options of the call.
    tile: the tile, of which the token numbers are used.
    seed: int32 scalar with the bits of the seed.
    head: number of the head.
    x: a tile of weights, or of their gradients.
  """
  if not spec.dropout:
    return x
  # Hashed from token numbers: the backward pass drops the same weights,
  # whichever way its tile is turned.
  mask = keep_mask(seed, head, tile.query, tile.key, spec.dropout)
  return jnp.where(mask, x, 0.0)


def dot(a, b, contract_a: int, contract_b: int) -> jax.Array:
  """A matrix product, summed in float32.

  Args:
    a: matrix.
    b: matrix.
    contract_a: the dimension of `a` to sum over.
    contract_b: the dimension of `b` to sum over.
  """
  # Someone who asks for float32 does not mean one pass of bfloat16.
  precise = a.dtype == jnp.float32 and not dispatch.allows_coarse_products()
  return lax.dot_general(
    a,
    b,
    (((contract_a,), (contract_b,)), ((), ())),
    precision=lax.Precision.HIGHEST if precise else lax.Precision.DEFAULT,
    preferred_element_type=jnp.float32,
  )


def add_position_gradient(spec, plan, out, tile: Tile, grad, distance):
  """Adds the gradient of a block to that of the tiles of the position bias.

  Args:
    spec: options of the call.
    plan: block sizes.
    out: reference to `[1, D, tile, tile]`.
    tile: the block, not turned.
    grad: gradient of its scores, summed over heads.
    distance: as in `build`.
  """
  if tile.target is not None:
    # Their bias is not that of the distance; `_by_key` sums it.
    grad = jnp.where(tile.target, 0.0, grad)
  t = plan.tile
  # Tiles on one diagonal of the block share an entry of the table.
  for row in range(0, plan.block_q, t):
    for column in range(0, plan.block_k, t):
      d = _tile_number(spec, plan, distance + (column - row) // t)
      out[0, d] += grad[row : row + t, column : column + t]


def add_time_gradient(out, tile: Tile, grad):
  """Adds the gradient of a block to that of the time bias.

  Args:
    out: reference to `[1, 128, 8, lanes]`, partial sums of each bucket.
    tile: the block, not turned.
    grad: gradient of its scores, summed over heads.
  """
  f32 = jnp.float32
  rows, columns = grad.shape
  group = SUBLANES if rows % SUBLANES == 0 else 1
  width = out.shape[3]
  # Only the buckets between the smallest and largest are looked at: few, but
  # near the diagonal. Mosaic reduces float32, not int32.
  buckets = tile.buckets.astype(f32)
  low = jnp.min(jnp.where(tile.mask, buckets, f32(LANES)))
  high = jnp.max(jnp.where(tile.mask, buckets, f32(-1)))

  def add(bucket, carry):
    part = jnp.where(tile.buckets == bucket, grad, 0.0)
    # Folded to one register of columns, and rows to the sublanes: whole vectors
    # are added, and XLA sums what is left outside.
    part = sum(part[:, c : c + width] for c in range(0, columns, width))
    out[0, bucket, :group] += part.reshape(-1, group, width).sum(0)
    return carry

  lax.fori_loop(low.astype(jnp.int32), high.astype(jnp.int32) + 1, add, 0)


def _field(x, number: int, across: bool):
  """One field of each token, as a row if `across`, else as a column."""
  return x[number : number + 1] if across else x[:, number : number + 1]


def _tile_number(spec: Spec, plan: KernelPlan, distance):
  zero = tpu_layout.zero_tile(spec, plan)
  # Tiles beyond hold pairs of different sequences only.
  return jnp.clip(distance + zero, 0, 2 * zero if spec.contextual else zero)


def _position(spec: Spec, plan: KernelPlan, tiles, distance, turned: bool):
  """The position bias of a whole block."""
  t = plan.tile
  height, width = plan.block_q // t, plan.block_k // t
  if turned:
    height, width = width, height

  def tile(row, column):
    # Distances are key minus query, whichever axis the keys are on.
    step = row - column if turned else column - row
    return tiles[_tile_number(spec, plan, distance + step)]

  rows = [
    jnp.concatenate([tile(row, column) for column in range(width)], axis=1)
    for row in range(height)
  ]
  return jnp.concatenate(rows, axis=0)


def _lookup(table, buckets):
  """`table[0, buckets]`, 128 lanes at a time."""
  # The chip gathers along the lanes of a register, so each row needs the table.
  table = jnp.broadcast_to(table, (buckets.shape[0], LANES))
  pieces = [
    jnp.take_along_axis(
      table, buckets[:, c : c + LANES], axis=1, mode='promise_in_bounds'
    )
    for c in range(0, buckets.shape[1], LANES)
  ]
  return jnp.concatenate(pieces, axis=1)
