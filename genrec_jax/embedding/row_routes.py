"""Which device asks which for which rows, and in how many rounds.

Addresses that are sorted are grouped by their device, their owner. Each device
reserves room for some requests of every peer. Where some device needs more, the
rows are divided into ranges, and a range travels in a round of its own:

    routed = route_addresses(exchange, stack, addresses)
    carry = visit_in_rounds(exchange, stack, routed, visit, carry)

A range of an owner is the longest of which every device asks for no more than
there is room for. So all devices ask for a row in the same round, whatever the
room is, and what they send for it can be added up in their order at once. A
buffer is never longer than the room, however unevenly the rows are asked for.

Pieces of a row on several owners must travel in the same round, too, if the
optimizer looks at whole rows. Their keys are alike then (`make_keys`), and a
range is one of keys, the same for all owners.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import MOST_ROWS, Addresses, Stack
from genrec_jax.parallel import ragged

AXES = ('host', 'dev')  # of a replica group
LAST = 2**31 - 1  # behind all rows and keys


class _Ordered(NamedTuple):
  """Addresses by their owners, and by what a range is of: rows or keys."""

  device: jax.Array
  row: jax.Array
  key: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Round:
  """What travels at once; W devices, M addresses on each.

  Attributes:
    begin: `[W]` where in the sorted order the addresses begin that each owner
      is asked for; empty for 'gather', as all of the next three.
    count: `[W]` how many there are.
    asked_start: `[W]` (ragged) where the requests of each peer start.
    asked_count: `[W]` (ragged) how many requests each peer has.
    asked: rows of this device that others need, `depth` for none: `[W, C]`,
      `[R]` (ragged) or `[W M]` (gather).
    first: `[1]` the first row of this device, or the first key, that this round
      is about.
    last: `[1]` one behind the last of them; `LAST` has all that follow.
    more: `[1]` whether any device has a further round, the same on all.
  """

  begin: jax.Array
  count: jax.Array
  asked_start: jax.Array
  asked_count: jax.Array
  asked: jax.Array
  first: jax.Array
  last: jax.Array
  more: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowRoutes:
  """Which device needs which rows of which; W devices, M addresses on each.

  Attributes:
    addresses: `[M]` what this device needs.
    order: `[M]` the permutation that sorts `addresses`; this, `rank` and
      `start` are empty for 'gather', which needs no order.
    rank: `[M]` the inverse of `order`.
    start: `[W + 1]` where the addresses of each owner start in that order.
    first_round: what travels first, and mostly alone.
    fill: `[1]` float32, the largest number of rows asked of one peer, on any
      device, as a share of the room; above 1 is an overflow.
    keys: `[M]` of the addresses in that order, or None if owners are on their
      own.
    repeats: how many addresses of an owner may be alike among those of a
      device.
  """

  addresses: Addresses
  order: jax.Array
  rank: jax.Array
  start: jax.Array
  first_round: Round
  fill: jax.Array
  keys: jax.Array | None = None
  repeats: int = dataclasses.field(default=1, metadata={'static': True})

  @property
  def overflow(self) -> jax.Array:
    """Whether there was no room on some device, the same on all."""
    return self.fill[0] > 1


def make_keys(first: Addresses) -> jax.Array:
  """Keys of rows by where their first pieces lie, int32.

  They are those row numbers, scrambled, so that every range of keys has about
  as many rows of each owner.
  """
  # Each step is invertible in 31 bits: other numbers have other keys.
  x = first.row.astype(jnp.uint32)
  for shift, factor in ((16, 0x7FEB352D), (15, 0x046CA68B)):
    x = ((x ^ (x >> shift)) * jnp.uint32(factor)) & jnp.uint32(LAST)
  return (x ^ (x >> 16)).astype(jnp.int32)


def route_addresses(
  exchange: Exchange,
  stack: Stack,
  addresses: Addresses,
  repeats: int = 1,
  keys: jax.Array | None = None,
) -> RowRoutes:
  """Tells every device which of its rows the others will ask for.

  Args:
    exchange: how rows travel.
    stack: the stack that the addresses belong to.
    addresses: `[M]`, some of them of no row.
    repeats: how often an address may occur at most. What has one address is
      sent and received in its order.
    keys: `[M]` of `make_keys`, if pieces of a row must travel together.

  Returns:
    What `visit_in_rounds` needs. No row is read, so a step can route the next
    batch while it works on this one.
  """
  none = jnp.zeros(0, jnp.int32)
  if keys is not None:
    repeats *= stack.most_alike
  if exchange.kind == 'gather':  # nothing is sorted by owner, all fits
    asked = _ask_all(stack, addresses)
    only = Round(
      *(none, none, none, none, asked),
      first=jnp.zeros(1, jnp.int32),
      last=jnp.full(1, LAST, jnp.int32),
      more=jnp.zeros(1, bool),
    )
    fill = jnp.zeros(1)
    return RowRoutes(addresses, none, none, none, only, fill, keys, repeats)
  # Those of no row come last and belong to nobody.
  number = jnp.arange(addresses.row.shape[0], dtype=jnp.int32)
  if keys is None:
    *ordered, order = lax.sort((*addresses, number), num_keys=2)
    ordered = _Ordered(*ordered, ordered[1])
  else:
    device, key, row, order = lax.sort(
      (addresses.device, keys, addresses.row, number), num_keys=3
    )
    ordered = _Ordered(device, row, key)
  rank = jnp.zeros_like(number).at[order].set(number, unique_indices=True)
  owners = jnp.arange(stack.devices + 1, dtype=jnp.int32)
  start = jnp.searchsorted(ordered.device, owners).astype(jnp.int32)
  first, fill = _ask_owners(
    exchange,
    stack,
    ordered,
    start,
    start[:-1],
    jnp.zeros(1, jnp.int32),
    repeats,
    keys is not None,
  )
  keys = None if keys is None else ordered.key
  return RowRoutes(addresses, order, rank, start, first, fill, keys, repeats)


def visit_in_rounds(
  exchange: Exchange,
  stack: Stack,
  routed: RowRoutes,
  visit: Callable[[Round, Any], Any],
  carry,
):
  """Runs `carry = visit(round, carry)` for each round.

  Args:
    exchange: how rows travel.
    stack: the stack that the addresses belong to.
    routed: from `route_addresses`.
    visit: contains the collectives that bring something to the owners or back.
    carry: a pytree.
  """
  carry = visit(routed.first_round, carry)
  needed = routed.addresses.row.shape[0]
  if not _may_divide(exchange, needed, stack.devices, routed.repeats):
    return carry

  def go_on(state):
    round_, carry = state
    device, row = (x[routed.order] for x in routed.addresses)
    key = row if routed.keys is None else routed.keys
    ordered = _Ordered(device, row, key)
    following, _ = _ask_owners(
      exchange,
      stack,
      ordered,
      routed.start,
      round_.begin + round_.count,
      round_.last,
      routed.repeats,
      routed.keys is not None,
    )
    return following, visit(following, carry)

  # A loop, and not a branch of a larger size, which would reserve its buffers
  # in every step; there is mostly nothing for it to do.
  _, carry = lax.while_loop(
    lambda state: state[0].more[0], go_on, (routed.first_round, carry)
  )
  return carry


def _may_divide(
  exchange: Exchange, needed: int, devices: int, repeats: int
) -> bool:
  """Whether `needed` addresses may need more than one round."""
  if exchange.kind == 'gather' or exchange.overflow == 'raise':
    return False
  if exchange.kind == 'ragged':
    return needed * devices > exchange.total_room(needed, devices, repeats)
  return needed > exchange.room(needed, devices, repeats)


def _ask_all(stack: Stack, addresses: Addresses) -> jax.Array:
  """The addresses of all devices as rows of this one, else `depth`."""
  me = lax.axis_index(AXES).astype(jnp.int32)
  if stack.size < MOST_ROWS:  # one number says both, and is half as long
    rows = gather_shards(addresses.device * stack.depth + addresses.row)
    rows -= me * stack.depth
    here = (rows >= 0) & (rows < stack.depth)
  else:
    device, rows = (gather_shards(x) for x in addresses)
    here = device == me
  return jnp.where(here, rows, stack.depth)


def gather_shards(x: jax.Array) -> jax.Array:
  """`[N, ...]` of each device, one behind the other, on all of them."""
  if not x.shape[0]:  # XLA gathers no empty arrays
    return x
  return lax.all_gather(x, AXES, tiled=True)


def _ask_owners(
  exchange: Exchange,
  stack: Stack,
  ordered: _Ordered,
  start,
  begin,
  first,
  repeats: int,
  is_keyed: bool,
) -> tuple[Round, jax.Array]:
  """A round, and the fill that there would be without a division.

  Args:
    exchange: how rows travel.
    stack: the stack that the addresses belong to.
    ordered: `[M]` sorted addresses.
    start: `[W + 1]` where those of each owner start.
    begin: `[W]` where in the order the round begins for each owner.
    first: `[1]` the row of this device, or the key, where it begins.
    repeats: how many addresses of an owner may be alike.
    is_keyed: whether the ranges of all owners are one range of keys.
  """
  needed, devices = ordered.row.shape[0], stack.devices
  left = start[1:] - begin
  is_ragged = exchange.kind == 'ragged'
  if is_ragged:
    # One buffer for all peers, so that only the sum of their rows must fit.
    room = exchange.total_room(needed, devices, repeats)
    share = room // devices
    coming = lax.all_to_all(left, AXES, 0, 0, tiled=True)
    arriving = jnp.sum(coming, keepdims=True)
  else:
    # Each peer gets a block of `room` requests.
    room = share = exchange.room(needed, devices, repeats)
    coming = jnp.zeros(0, jnp.int32)  # only the sender knows how many it wants
    arriving = jnp.max(left, keepdims=True)
  # The same on all devices: they branch on it, and a collective that only some
  # of them enter would never end.
  fill = arriving.astype(jnp.float32) / room
  # A float32 may say 1 of what is one more than a large room.
  fill = jnp.where(arriving > room, jnp.maximum(fill, 1 + 2.0**-20), fill)
  fill = lax.pmax(fill, AXES)
  more = fill > 1

  def divide():
    # For each owner, the row or key of the first address that finds no room.
    beyond = ordered.key.at[begin + share].get(mode='clip')
    beyond = jnp.where(left > share, beyond, LAST)
    last = lax.all_to_all(beyond, AXES, 0, 0, tiled=True)
    last = jnp.min(last, keepdims=True)
    if is_ragged:
      last = jnp.where(arriving <= room, LAST, last)
    until = lax.all_gather(last, AXES, tiled=True)
    if is_keyed:
      last = jnp.min(until, keepdims=True)
      until = jnp.broadcast_to(last, until.shape)
    # Of each owner, those up to here are the first ones.
    of_owner = until[jnp.minimum(ordered.device, devices - 1)]
    is_before = (ordered.key < of_owner) | (of_owner == LAST)
    before = jnp.cumsum(jnp.pad(is_before, (1, 0)), dtype=jnp.int32)[start]
    count = start[:-1] + before[1:] - before[:-1] - begin
    asked = (
      lax.all_to_all(count, AXES, 0, 0, tiled=True) if is_ragged else coming
    )
    return count, asked, last

  count, asked_count, last = left, coming, jnp.full(1, LAST, jnp.int32)
  if _may_divide(exchange, needed, devices, repeats):
    count, asked_count, last = lax.cond(
      more[0], divide, lambda: (left, coming, last)
    )
  elif is_ragged:  # a part must not end beyond the buffer
    count, asked_count = (jnp.where(more, 0, x) for x in (left, coming))
  rows = ordered.row
  asked_start = jnp.zeros(0, jnp.int32)
  if is_ragged:
    # Requests of the peers one after another, in the order of the devices.
    asked_start = jnp.cumsum(asked_count) - asked_count
    asked = ragged.all_to_all(
      rows,
      jnp.full(room, stack.depth, jnp.int32),
      begin,
      count,
      # Each sender must know where its part begins at the receiver.
      lax.all_to_all(asked_start, AXES, 0, 0, tiled=True),
      asked_count,
      AXES,
    )
  else:
    number = jnp.arange(room)[None]
    rows = rows.at[begin[:, None] + number].get(mode='clip')
    rows = jnp.where(number < count[:, None], rows, stack.depth)
    asked = lax.all_to_all(rows, AXES, 0, 0)
  return (
    Round(begin, count, asked_start, asked_count, asked, first, last, more),
    fill,
  )
