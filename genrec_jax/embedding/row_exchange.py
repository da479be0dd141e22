"""Moves rows from the devices that hold them to those that need them, and back.

Everything here runs inside `jax.shard_map`, on one stack, and knows only
addresses (see layout.py). A step routes the addresses it needs once, fetches
their rows, and pushes the gradients of the rows back to their owners, who apply
them:

    routed = route_addresses(exchange, stack, addresses)  # from the ids alone
    rows = fetch_rows(exchange, stack, routed, array)
    array = push_gradients(exchange, stack, routed, grads, (), apply, array)

Both travel in the rounds of row_routes.py.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import Stack
from genrec_jax.embedding.lookup import (
  BagGradients,
  merge_row_gradients,
)
from genrec_jax.embedding.row_routes import (
  AXES,
  LAST,
  Round,
  RowRoutes,
  gather_shards,
  make_keys,
  visit_in_rounds,
)
from genrec_jax.parallel import codecs, ragged
from pallas_kernels import MergedRows


def fetch_rows(
  exchange: Exchange, stack: Stack, routed: RowRoutes, array: jax.Array
) -> jax.Array:
  """Brings the rows of the routed addresses to this device.

  Args:
    exchange: how rows travel.
    stack: the stack that the addresses belong to.
    routed: from `route_addresses`.
    array: `[depth, C]` this device's rows.

  Returns:
    `[M, C]` float32 in the order of the addresses; zeros for no row.
  """
  codec = exchange.row_codec

  def visit(round_: Round, found):
    rows = _read_rows(array, round_.asked)
    return _answer(exchange, stack, routed, round_, rows, codec, found)

  empty = jnp.zeros((routed.addresses.row.shape[0], stack.columns))
  rows = visit_in_rounds(exchange, stack, routed, visit, empty)
  if exchange.overflow == 'raise':
    rows = jnp.where(routed.overflow, jnp.nan, rows)
  return rows


def push_gradients(
  exchange: Exchange,
  stack: Stack,
  routed: RowRoutes,
  grads: jax.Array,
  others: Sequence[MergedRows | BagGradients],
  apply: Callable,
  carry,
):
  """Brings gradients to the owners of the rows, who add them up and apply them.

  The gradients of a row are added in the order of the devices they come from.

  Args:
    exchange: how gradients travel.
    stack: the stack that the addresses belong to.
    routed: from `route_addresses`.
    grads: `[M, C]` float32, gradients of the rows of `routed.addresses`.
    others: gradients of rows of this device that came another way, such as from
      pooled sums; added after these.
    apply: `(carry, MergedRows) -> carry`; called for rows of this device and
      the sums of their gradients, with unused entries at the end. Mostly there
      is one call, otherwise one for each round, and never two for a row.
    carry: what is applied to, a pytree.

  Returns:
    The last carry.
  """
  codec, depth = exchange.gradient_codec, stack.depth

  def visit(round_: Round, carry):
    rows, sent = _send(exchange, stack, routed, round_, grads, codec)
    # Rows that several devices sent are not one row each: as bags of one.
    gradients = [BagGradients(rows, None, sent)]
    gradients += [_pick_rows(x, round_, stack, routed) for x in others]
    return apply(carry, merge_row_gradients(gradients, depth))

  return visit_in_rounds(exchange, stack, routed, visit, carry)


def sum_over_devices(
  exchange: Exchange, stack: Stack, routed: RowRoutes, values: jax.Array
) -> jax.Array:
  """What all devices have for an address, added up, at each of them.

  Args:
    exchange: how values travel; they are sent as float32.
    stack: the stack that the addresses belong to.
    routed: from `route_addresses`.
    values: `[M, C]` float32, of `routed.addresses`.

  Returns:
    `[M, C]` in the same order; zeros for no row.
  """
  exact = codecs.find_codec('float32', formats=exchange.formats)

  def visit(round_: Round, found):
    rows, sent = _send(exchange, stack, routed, round_, values, exact)
    totals = pallas_kernels.merge_rows(rows, sent, stack.depth)
    # There is an entry for each row that was sent something, not for each row
    # of the device.
    place = jnp.searchsorted(totals.ids, round_.asked)
    missing = round_.asked == stack.depth
    place = jnp.where(missing, totals.ids.shape[0], place)
    reply = totals.grads.at[place].get(mode='fill', fill_value=0)
    return _answer(exchange, stack, routed, round_, reply, exact, found)

  return visit_in_rounds(exchange, stack, routed, visit, jnp.zeros_like(values))


def _send(
  exchange: Exchange,
  stack: Stack,
  routed: RowRoutes,
  round_: Round,
  values: jax.Array,
  codec: codecs.Codec,
) -> tuple[jax.Array, jax.Array]:
  """Brings values of addresses to their owners, in the order of the devices.

  Returns:
    `[K]` rows of this device, `depth` for none, and `[K, C]` float32.
  """
  columns, rows = values.shape[1], round_.asked.reshape(-1)
  values = codec.encode(values)
  if exchange.kind == 'gather':
    return rows, codec.decode(gather_shards(values), columns)
  # In the order of the requests, so that each value meets its row.
  values = values[routed.order]
  if exchange.kind == 'all_to_all':
    room = round_.asked.shape[1]
    at = round_.begin[:, None] + jnp.arange(room)[None]
    # What follows the rows of a peer belongs to others, and is not read.
    values = lax.all_to_all(values.at[at].get(mode='clip'), AXES, 0, 0)
    values = values.reshape(-1, values.shape[-1])
  else:
    values = ragged.all_to_all(
      values,
      jnp.zeros((rows.shape[0], *values.shape[1:]), values.dtype),
      round_.begin,
      round_.count,
      lax.all_to_all(round_.asked_start, AXES, 0, 0, tiled=True),
      round_.asked_count,
      AXES,
    )
  return rows, codec.decode(values, columns)


def _answer(
  exchange: Exchange,
  stack: Stack,
  routed: RowRoutes,
  round_: Round,
  rows: jax.Array,
  codec: codecs.Codec,
  found: jax.Array,
) -> jax.Array:
  """Brings rows `[*asked.shape, C]` to those who asked; `found` with them."""
  columns = rows.shape[-1]
  if exchange.kind == 'gather':
    # A row has one owner; all other summands are zeros: the sum is exact.
    rows = codec.encode(rows.reshape(stack.devices, -1, columns))
    rows = codec.decode(lax.all_to_all(rows, AXES, 0, 0), columns)
    return jnp.sum(rows, axis=0)
  peer = routed.addresses.device
  known = jnp.minimum(peer, stack.devices - 1)
  # The number in the sorted order less that of the first one of the owner.
  place = routed.rank - round_.begin[known]
  is_now = (place >= 0) & (place < round_.count[known])
  is_now &= peer < stack.devices
  rows = codec.encode(rows)
  if exchange.kind == 'all_to_all':
    # An answer arrives in the block of its owner, at its number in the run.
    rows = lax.all_to_all(rows, AXES, 0, 0)
    rows = rows.at[known, place].get(mode='clip')
  else:
    # Answers go back to where the requests stood in the sorted order.
    rows = ragged.all_to_all(
      rows,
      jnp.zeros((found.shape[0], *rows.shape[1:]), rows.dtype),
      round_.asked_start,
      round_.asked_count,
      lax.all_to_all(round_.begin, AXES, 0, 0, tiled=True),
      round_.count,
      AXES,
    )[routed.rank]
  return jnp.where(is_now[:, None], codec.decode(rows, columns), found)


def _read_rows(array: jax.Array, rows: jax.Array) -> jax.Array:
  """`[..., C]` float32 rows of this device, zeros for `depth`."""
  flat = pallas_kernels.gather(array, rows.reshape(-1), spare=True)
  return flat.astype(jnp.float32).reshape(*rows.shape, array.shape[-1])


def _pick_rows(
  gradients: MergedRows | BagGradients,
  round_: Round,
  stack: Stack,
  routed: RowRoutes,
) -> MergedRows | BagGradients:
  """The gradients without those of rows that another round is about."""
  ids = keys = gradients.ids
  if routed.keys is not None:
    first = stack.find_first(lax.axis_index(AXES), ids.reshape(-1))
    keys = make_keys(first).reshape(ids.shape)
  is_now = (keys < round_.last) | (round_.last == LAST)
  is_now &= keys >= round_.first
  picked = jnp.where(is_now, ids, stack.depth)
  return gradients._replace(ids=picked)
