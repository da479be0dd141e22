"""Moves rows from the devices that hold them to those that need them, and back.

Everything here runs inside `jax.shard_map`, on one stack, and knows only
addresses (see layout.py). A step routes the addresses it needs once, fetches
their rows, and pushes the gradients of the rows back to their owners:

    routed = route_addresses(exchange, stack, addresses)  # from the ids alone
    rows = fetch_rows(exchange, stack, routed, array)
    # What the owner must apply.
    merged = push_gradients(exchange, stack, routed, grads)

There are three kinds of exchange, with the same results:

| kind       | forward                             | backward               |
|------------|-------------------------------------|------------------------|
| gather     | all_gather ids, psum_scatter rows   | all_gather grads       |
| all_to_all | all_to_all ids, all_to_all rows     | all_to_all grads       |
| ragged     | as all_to_all, but without padding, on TPUs and GPUs    |

With W devices, `gather` has every device answer for all addresses of all W, so
it moves the most and cannot overflow. The other two reserve room for `capacity`
times an even share of the rows for each peer. If some device needs more, all
devices use `gather` in that step (overflow='gather'), or the rows become NaN
(overflow='raise'); `RowRoutes.overflow` says so.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from genrec_jax.embedding.layout import Stack
from genrec_jax.embedding.lookup import BagGradients, merge_row_gradients
from genrec_jax.numerics.formats import FORMATS, Formats
from genrec_jax.parallel import codecs, ragged
from pallas_kernels import MergedRows

AXES = ('host', 'dev')  # of a replica group
KINDS = ('gather', 'all_to_all', 'ragged')
OVERFLOWS = ('gather', 'raise')


@dataclasses.dataclass(frozen=True)
class Exchange:
  """How rows travel; defaults in `config.parallel`.

  Attributes:
    kind: 'gather', 'all_to_all' or 'ragged'.
    capacity: room for the rows of one peer, as a multiple of an even share.
    overflow: what happens if the room is too small: 'gather' or 'raise'.
    forward: name of the number format of the rows, see `codecs.names`.
    backward: name of the number format of their gradients.
    gradient_scale: power of two by which gradients in float16 are multiplied
      before they travel, and divided afterwards. Formats with more range, or
      with a scale for each row, do not need it.
    formats: the available number formats, see
      `numerics.formats.extend_formats`.
  """

  kind: str = 'all_to_all'
  capacity: float = 2.0
  overflow: str = 'gather'
  forward: str = 'float32'
  backward: str = 'float32'
  gradient_scale: float = 4096.0
  # A mapping has no hash; programs kept by their exchange still compare it.
  formats: Formats = dataclasses.field(
    default_factory=lambda: FORMATS, hash=False, repr=False
  )

  def __post_init__(self):
    for field, allowed in {
      'kind': KINDS,
      'overflow': OVERFLOWS,
      'forward': codecs.names(self.formats),
      'backward': codecs.names(self.formats),
    }.items():
      if getattr(self, field) not in allowed:
        raise ValueError(
          f'exchange.{field} is {getattr(self, field)!r}, must be one of '
          f'{allowed}'
        )
    if not self.capacity > 0:
      raise ValueError(
        f'exchange.capacity is {self.capacity}, must be positive'
      )
    powers = [2.0**power for power in range(-24, 25)]
    if self.gradient_scale not in powers:
      raise ValueError(
        f'exchange.gradient_scale is {self.gradient_scale}, must be a power of '
        'two from 2**-24 to 2**24, such as 1024, so that scaling rounds nothing'
      )

  @property
  def row_codec(self) -> codecs.Codec:
    """How rows travel."""
    return codecs.find_codec(self.forward, formats=self.formats)

  @property
  def gradient_codec(self) -> codecs.Codec:
    """How gradients of rows travel."""
    codec = codecs.find_codec(
      self.backward, backward=True, formats=self.formats
    )
    if self.backward != 'float16':
      return codec
    return dataclasses.replace(codec, scale=self.gradient_scale)

  @property
  def codec_names(self) -> str:
    """What rows and gradients look like on the wire, in a word."""
    return f'{self.forward}/{self.backward}'

  def with_codecs(self, codecs: tuple[str, str] | None) -> 'Exchange':
    """The exchange with other codecs (of rows, of gradients); None: as it is.

    >>> Exchange().with_codecs(("int8", "bfloat16")).codec_names
    'int8/bfloat16'
    """
    if codecs is None:
      return self
    forward, backward = codecs
    return dataclasses.replace(self, forward=forward, backward=backward)

  def room(self, needed: int, devices: int) -> int:
    """How many rows one peer can be asked for, of `needed` in all.

    >>> Exchange(capacity=2.0).room(1000, devices=8)
    250
    """
    # At least 8, since few rows are rarely even; never more than there are.
    return min(needed, max(8, int(-(-needed * self.capacity // devices))))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowRoutes:
  """Which device needs which rows of which; W devices, M addresses on each.

  Attributes:
    addresses: `[M]` what this device needs: distinct, or `nowhere`.
    order: `[M]` the permutation that sorts `addresses`; this, `rank` and
      `start` are empty for 'gather', which needs no order.
    rank: `[M]` the inverse of `order`.
    start: `[W + 1]` where the addresses of each owner start in that order.
    asked: rows of this device that others need, `depth` for none: `[W, C]`,
      `[R]` (ragged) or `[W M]` (gather).
    asked_start: `[W]` (ragged) where the requests of each peer start.
    asked_count: `[W]` (ragged) how many requests each peer has.
    fill: `[1]` float32, the largest number of rows asked of one peer, on any
      device, as a share of the room; above 1 is an overflow.
  """

  addresses: jax.Array
  order: jax.Array
  rank: jax.Array
  start: jax.Array
  asked: jax.Array
  asked_start: jax.Array
  asked_count: jax.Array
  fill: jax.Array

  @property
  def overflow(self) -> jax.Array:
    """Whether there was no room on some device, the same on all."""
    return self.fill[0] > 1


def route_addresses(
  exchange: Exchange, stack: Stack, addresses: jax.Array
) -> RowRoutes:
  """Tells every device which of its rows the others will ask for.

  Args:
    exchange: how rows travel.
    stack: the stack that the addresses belong to.
    addresses: `[M]` distinct addresses, and `stack.nowhere` for none.

  Returns:
    What `fetch_rows` and `push_gradients` need. No row is read, so a step can
    route the next batch while it works on this one.
  """
  needed, devices = addresses.shape[0], stack.devices
  none = jnp.zeros(0, jnp.int32)
  if exchange.kind == 'gather':  # nothing is sorted by owner
    requests = _by_all(stack, addresses)
    return RowRoutes(
      addresses, none, none, none, requests, none, none, jnp.zeros(1)
    )
  # Sorted by address means grouped by owner, since an owner has a run of them;
  # `nowhere` comes last and belongs to nobody.
  place = jnp.arange(needed, dtype=jnp.int32)
  ordered, order = lax.sort((addresses, place), num_keys=1)
  rank = jnp.zeros_like(place).at[order].set(place, unique_indices=True)
  bounds = jnp.arange(devices + 1, dtype=jnp.int32) * stack.depth
  start = jnp.searchsorted(ordered, bounds).astype(jnp.int32)
  count = start[1:] - start[:-1]
  asked_start = asked_count = none
  if exchange.kind == 'all_to_all':
    room = exchange.room(needed, devices)
    # Each peer gets a block of `room` requests, the first ones of its run.
    at = start[:-1, None] + jnp.arange(room)[None]
    rows = ordered.at[at].get(mode='clip') - bounds[:-1, None]
    rows = jnp.where(jnp.arange(room)[None] < count[:, None], rows, stack.depth)
    requests = lax.all_to_all(rows, AXES, 0, 0)
    # Only the sender knows how many it wanted: what did not fit was cut off.
    fill = jnp.max(count, keepdims=True).astype(jnp.float32) / room
  else:
    # One buffer for all peers, so that only the sum of their rows must fit.
    room = max(8, int(needed * exchange.capacity))
    asked_count = lax.all_to_all(count, AXES, 0, 0, tiled=True)
    # Requests of the peers one after another, in the order of the devices.
    total = jnp.cumsum(asked_count)
    asked_start = total - asked_count
    fill = total[-1:].astype(jnp.float32) / room
    # The row on its owner: an address is device * depth + row.
    rows = ordered % stack.depth
    requests = ragged.all_to_all(
      rows,
      jnp.full(room, stack.depth, jnp.int32),
      start[:-1],
      count,
      # Each sender must know where its part begins at the receiver.
      lax.all_to_all(asked_start, AXES, 0, 0, tiled=True),
      asked_count,
      AXES,
    )
  return RowRoutes(
    addresses=addresses,
    order=order,
    rank=rank,
    start=start,
    asked=requests,
    asked_start=asked_start,
    asked_count=asked_count,
    # The same on all devices: they branch on it, and a collective that only
    # some of them enter would never end.
    fill=lax.pmax(fill, AXES),
  )


def fetch_rows(
  exchange: Exchange,
  stack: Stack,
  routed: RowRoutes,
  array: jax.Array,
  read=None,
) -> jax.Array:
  """Brings the rows of the routed addresses to this device.

  Args:
    exchange: how rows travel.
    stack: the stack that the addresses belong to.
    routed: from `route_addresses`.
    array: `[depth, C]` this device's rows, or what `read` reads them from.
    read: `(array, rows [...]) -> [..., C]` float32, zeros for row `depth`;
      None reads the rows of an array.

  Returns:
    `[M, C]` float32 in the order of the addresses; zeros for `nowhere`.
  """
  codec = exchange.row_codec
  read = read or _read_rows

  def by_gather(routed, array):
    rows = read(array, _asked_by_all(exchange, stack, routed))
    if codec.exact:
      # A row has one owner; all other summands are zeros, so the sum is exact.
      return lax.psum_scatter(rows, AXES, tiled=True)
    # Not summed as it travels: a narrow sum would round once for each device.
    columns = rows.shape[-1]
    rows = codec.encode(rows.reshape(stack.devices, -1, columns))
    rows = codec.decode(lax.all_to_all(rows, AXES, 0, 0), columns)
    return jnp.sum(rows, axis=0)

  def fetch_routed(routed, array):
    rows = read(array, routed.asked)
    columns = rows.shape[-1]
    rows = codec.encode(rows)
    if exchange.kind == 'all_to_all':
      rows = lax.all_to_all(rows, AXES, 0, 0)
      # An answer arrives in the block of its owner, at its number in the run.
      peer, place = _peer_and_place(stack, routed)
      # `nowhere` has no owner; it reads anything and is zeroed below.
      rows = rows[jnp.minimum(peer, stack.devices - 1), place]
    else:
      rows = ragged.all_to_all(
        rows,
        jnp.zeros((routed.addresses.shape[0], *rows.shape[1:]), rows.dtype),
        routed.asked_start,
        routed.asked_count,
        # Answers go back to where the requests stood in the sorted order.
        lax.all_to_all(routed.start[:-1], AXES, 0, 0, tiled=True),
        routed.start[1:] - routed.start[:-1],
        AXES,
      )[routed.rank]
    rows = codec.decode(rows, columns)
    somewhere = routed.addresses != stack.nowhere
    return jnp.where(somewhere[:, None], rows, 0.0)

  if exchange.kind == 'gather':
    return by_gather(routed, array)
  if exchange.overflow == 'raise':
    # Without the branch, the program has no gather at all.
    rows = fetch_routed(routed, array)
    return jnp.where(routed.overflow, jnp.nan, rows)
  # Both branches are compiled; the step runs one of them.
  return lax.cond(routed.overflow, by_gather, fetch_routed, routed, array)


def push_gradients(
  exchange: Exchange,
  stack: Stack,
  routed: RowRoutes,
  grads: jax.Array,
  others: Sequence[MergedRows | BagGradients] = (),
) -> MergedRows:
  """Brings gradients to the owners of the rows and adds them up there.

  The gradients of a row are added in the order of the devices they come from.

  Args:
    exchange: how gradients travel.
    stack: the stack that the addresses belong to.
    routed: from `route_addresses`.
    grads: `[M, C]` float32, gradients of the rows of `routed.addresses`.
    others: gradients of rows of this device that came another way, such as from
      pooled sums; added after these.

  Returns:
    Rows of this device and the sums of their gradients, with unused entries at
    the end.
  """
  codec = exchange.gradient_codec
  columns = grads.shape[1]
  # Room of an exchange may be more than all could ask for.
  most = max(stack.devices * grads.shape[0], routed.asked.size)
  most = min(stack.depth, most + sum(x.ids.shape[0] for x in others))

  def merge_gradients(rows, grads):
    # Rows that several devices sent are not one row each: as bags of one.
    gradients = merge_row_gradients(
      [BagGradients(rows, None, grads), *others], stack.depth
    )
    # One size, whichever way was taken.
    spare = most - gradients.ids.shape[0]
    return MergedRows(
      jnp.pad(gradients.ids, (0, spare), constant_values=stack.depth),
      jnp.pad(gradients.grads, ((0, spare), (0, 0))),
    )

  def by_gather(routed, grads):
    grads = codec.decode(_gather_shards(codec.encode(grads)), columns)
    return merge_gradients(_asked_by_all(exchange, stack, routed), grads)

  def push_routed(routed, grads):
    # In the order of the requests, so that each gradient meets its row.
    grads = codec.encode(grads)[routed.order]
    if exchange.kind == 'all_to_all':
      room = routed.asked.shape[1]
      at = routed.start[:-1, None] + jnp.arange(room)[None]
      # What follows the rows of a peer belongs to others, and is not read.
      grads = lax.all_to_all(grads.at[at].get(mode='clip'), AXES, 0, 0)
      grads = grads.reshape(-1, grads.shape[-1])
    else:
      grads = ragged.all_to_all(
        grads,
        jnp.zeros((routed.asked.shape[0], *grads.shape[1:]), grads.dtype),
        routed.start[:-1],
        routed.start[1:] - routed.start[:-1],
        lax.all_to_all(routed.asked_start, AXES, 0, 0, tiled=True),
        routed.asked_count,
        AXES,
      )
    grads = codec.decode(grads, columns)
    return merge_gradients(routed.asked.reshape(-1), grads)

  if exchange.kind == 'gather':
    return by_gather(routed, grads)
  if exchange.overflow == 'raise':
    return push_routed(routed, grads)
  return lax.cond(routed.overflow, by_gather, push_routed, routed, grads)


def _gather_shards(x: jax.Array) -> jax.Array:
  if not x.shape[0]:  # XLA gathers no empty arrays
    return x
  return lax.all_gather(x, AXES, tiled=True)


def _asked_by_all(
  exchange: Exchange, stack: Stack, routed: RowRoutes
) -> jax.Array:
  """`[W M]` rows of this device that any device needs."""
  if exchange.kind == 'gather':
    return routed.asked
  return _by_all(stack, routed.addresses)


def _by_all(stack: Stack, addresses: jax.Array) -> jax.Array:
  """The addresses of all devices as rows of this one, else `depth`."""
  addresses = _gather_shards(addresses)
  first = lax.axis_index(AXES).astype(jnp.int32) * stack.depth
  rows = addresses - first
  # Addresses of other devices fall outside, and so does `nowhere`.
  return jnp.where((rows >= 0) & (rows < stack.depth), rows, stack.depth)


def _read_rows(array: jax.Array, rows: jax.Array) -> jax.Array:
  """`[..., C]` float32 rows of this device, zeros for `depth`."""
  flat = pallas_kernels.gather(array, rows.reshape(-1), spare=True)
  return flat.astype(jnp.float32).reshape(*rows.shape, array.shape[-1])


def _peer_and_place(stack: Stack, routed: RowRoutes):
  """Where the row of each address arrives: (peer, place), `[M]` each."""
  peer = routed.addresses // stack.depth
  # The number among all addresses less that of the first one of the owner.
  return peer, routed.rank - routed.start.at[peer].get(mode='clip')
