"""Exchanges what features under towers read, in two steps (SPTT of DMT).

Runs inside `jax.shard_map`. No collective spans all devices of a group: ids go
to the host of their tower first, between peers, and then to the devices of the
host that hold the rows. Their sums go to all devices of the host, each of which
then has the sums of all features of its towers for the examples of its peers.
Towers run there, and what they make goes back to the peers.

| step               | over | what a device has behind it                  |
|--------------------|------|----------------------------------------------|
| ids to the host    | host | `[H, S, N]`, asked by its peers              |
| ids in the host    | dev  | `[H * L, N]`, asked by all, of its own rows  |
| sums in the host   | dev  | `[H, S, P, B, C]`, its peers', of S devices  |
| towers             | –    | `[K, H * B, M, E]`, of K towers of the host  |
| outputs to peers   | host | `[T, B, M, E]`, its own examples             |

Tables of all widths, dtypes and optimizers, whole on one device or with rows
over the devices of the host, share one exchange of sums within the host and one
between hosts. Gradients take the same ways back.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from genrec_jax.embedding import lookup, pooled
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import StackLayout
from genrec_jax.embedding.scheme import HOST, ONE, PlanError
from genrec_jax.embedding.tower_plans import check_place
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import Read
from genrec_jax.parallel.codecs import Codec


@dataclasses.dataclass(frozen=True)
class TowerExchange:
  """Exchanges the sums of features under towers.

  Attributes:
    layout: the layout of the plan.
    exchanges: table -> how its sums travel.
    towers: all of them.
  """

  layout: StackLayout
  exchanges: Mapping[str, Exchange]
  towers: Towers

  def __post_init__(self):
    towers_lib.check_hosts(self.towers, self._hosts)

  def route(self, bags: Mapping[str, Read]):
    """Sends ids to the devices that hold their rows: group -> what was asked.

    Args:
      bags: feature -> its packed bags, of features under towers alone.
    """
    self._check(bags)
    return {group.key: group.route(bags) for group in self._groups(bags)}

  def fetch(self, arrays, received, bags: Mapping[str, Read]):
    """Reads, sums and exchanges within the host.

    Args:
      arrays: stack -> this device's rows.
      received: from `route`.
      bags: as for `route`.

    Returns:
      Group -> `[H, S, P, B, C]`: of the bags of the peers on H hosts, the sums
      of the P entries of each of S devices; S is 1 where the devices of the
      host have rows of one table and their sums are added.
    """
    groups = self._groups(bags)
    sums = []
    for group in groups:
      own = group.sum_rows(received[group.key], arrays[group.stack.name])
      if group.spread == ONE:  # complete
        own = self._apply_means(group, received[group.key], own, bags)
      sums.append(self._by_host(own))
    near = self._exchange_near(sums, self._exchange.near_row_codec)
    fetched = {}
    for group, x in zip(groups, near, strict=True):
      if group.spread == HOST:
        x = jnp.sum(x, axis=1, keepdims=True)
        x = self._apply_peer_means(group, received[group.key], x, bags)
      fetched[group.key] = x
    return fetched

  def finish(self, params, near, bags: Mapping[str, Read], draws=None):
    """What the towers make, at the devices that have the examples.

    This part is differentiated with the loss: the collectives in it have
    gradients, and so have the parameters.

    Args:
      params: `[K, ...]` of the towers on this host.
      near: from `fetch`.
      bags: as for `route`.
      draws: `towers.TowerDraws` of this device's examples, or None.

    Returns:
      `[N, vectors, E]`; all NaN if one of this device's ids is no row.
    """
    own = self.towers.count // self._hosts
    host = lax.axis_index('host')
    mask = lax.dynamic_slice_in_dim(
      jnp.asarray(self.towers.mask), host * own, own
    )
    if draws is not None:  # of all whose examples are here
      numbers = lax.all_gather(draws.numbers, 'host', axis=0, tiled=True)
      draws = dataclasses.replace(draws, numbers=numbers)
    x = self._stack_vectors(near, bags, own)
    y = towers_lib.run_towers(
      self.towers, params, x, mask, draws, first=host * own
    )
    # [K, H * B, M, E] -> [H, K, B, M, E], by who asked.
    y = y.reshape(own, self._hosts, -1, *y.shape[2:])
    y = _send_far(jnp.moveaxis(y, 1, 0), self._exchange)
    y = y.reshape(self.towers.count, *y.shape[2:])
    made = towers_lib.pick_outputs(self.towers, y)
    for read in bags.values():
      rows = self.layout.plan.tables[read.table].rows
      made = lookup.mark_wrong_ids(made, read, rows)
    return made

  def push(
    self, received, of_near, bags: Mapping[str, Read]
  ) -> list[tuple[str, Exchange, lookup.BagGradients]]:
    """The stack, the exchange and the gradients of its rows here, by group.

    Args:
      received: from `route`.
      of_near: gradients of what `fetch` returned.
      bags: as for `route`.
    """
    groups, grads = self._groups(bags), []
    for group in groups:
      grad = of_near[group.key]
      # What was added up has one gradient: every device of the host takes it.
      grads.append(
        jnp.broadcast_to(grad, (grad.shape[0], self._devices, *grad.shape[2:]))
      )
    grads = self._exchange_near(grads, self._exchange.near_gradient_codec)
    pushed = []
    for group, grad in zip(groups, grads, strict=True):
      request = received[group.key]
      grad = grad.reshape(-1, *grad.shape[2:])
      grad = self._apply_means(group, request, grad, bags)
      pushed.append(
        (group.stack.name, self._exchange, group.find_rows(request, grad))
      )
    return pushed

  # --- The way within the host.

  @property
  def _hosts(self) -> int:
    return self.layout.plan.hosts

  @property
  def _devices(self) -> int:
    return self.layout.plan.devices

  @functools.cached_property
  def _exchange(self) -> Exchange:
    """How all of it travels; `_check` has seen to it that it is one way."""
    return next(iter(self.exchanges.values()))

  def _by_host(self, x: jax.Array) -> jax.Array:
    """`[H * L, ...]` by who asked -> `[H, L, ...]`."""
    return x.reshape(self._hosts, self._devices, *x.shape[1:])

  def _exchange_near(
    self, blocks: list[jax.Array], codec: Codec
  ) -> list[jax.Array]:
    """`[H, L, ..., C]` to L devices -> the same from L devices, all at once."""
    encoded = [codec.encode(x) for x in blocks]
    flat = [x.reshape(*x.shape[:2], -1) for x in encoded]
    joined = jnp.concatenate(flat, axis=2)
    joined = lax.all_to_all(joined, 'dev', 1, 1)
    ends = np.cumsum([x.shape[2] for x in flat])
    arrived = []
    for x, like, block in zip(
      jnp.split(joined, ends[:-1].tolist(), axis=2),
      encoded,
      blocks,
      strict=True,
    ):
      arrived.append(codec.decode(x.reshape(like.shape), block.shape[-1]))
    return arrived

  # --- Means: sums times one over the length of their bag.

  def _apply_means(self, group, received, x: jax.Array, bags) -> jax.Array:
    """Multiplies `[H * L, P, B, C]` of this device's entries."""
    share = self._find_shares(group, received, bags)
    return x if share is None else x * share[..., None]

  def _apply_peer_means(self, group, received, x: jax.Array, bags):
    """Multiplies `[H, 1, P, B, C]`, of the peers of this device alone."""
    share = self._find_shares(group, received, bags)
    if share is None:
      return x
    share = self._by_host(share)
    own = lax.dynamic_index_in_dim(share, lax.axis_index('dev'), 1)
    return x * own[..., None]

  def _find_shares(self, group, received, bags) -> jax.Array | None:
    """`[H * L, P, B]` for this device's entries; None where none is a mean."""
    wants = group.mark_entries(lambda f: bags[f].pooling == 'mean')
    if not wants.any():
      return None
    return _share_of_means(received.lengths, group.pick_own(wants))

  # --- What a tower sees.

  def _stack_vectors(self, near, bags, own: int) -> jax.Array:
    """`[K, H * B, V, D]` vectors of the towers on this host."""
    groups = self._groups(bags)
    unit = math.gcd(self.towers.width, *(g.stack.columns for g in groups))
    units, start, first = [], 0, {}
    for group in groups:
      x = jnp.transpose(near[group.key], (0, 3, 1, 2, 4))
      x = x.reshape(x.shape[0] * x.shape[1], -1, unit)
      units.append(x)
      first[group.key] = start
      start += x.shape[1]
    units.append(jnp.zeros((units[0].shape[0], 1, unit)))  # what is not there
    at = self._find_units(groups, first, unit, missing=start)
    host = lax.axis_index('host')
    at = lax.dynamic_index_in_dim(jnp.asarray(at), host, 0, keepdims=False)
    x = jnp.concatenate(units, axis=1)[:, at]
    x = x.reshape(-1, own, self.towers.most, self.towers.width)
    return jnp.swapaxes(x, 0, 1)

  def _find_units(self, groups, first, unit: int, missing: int) -> np.ndarray:
    """`[H, K * V * D / unit]`: which unit stands where in a host's towers."""
    units = {}  # feature -> first column -> (host, numbers of its units)
    for group in groups:
      each = group.stack.columns // unit
      for (feature, piece), (host, slot) in group.slots.items():
        begin = first[group.key] + slot * each
        columns = units.setdefault(feature, {})
        columns[piece.first_column] = range(begin, begin + each)
    own = self.towers.count // self._hosts
    length = self.towers.most * self.towers.width // unit
    at = np.full((self._hosts, own, length), missing, np.int32)
    for number, features in enumerate(self.towers.features):
      found = [
        n
        for feature in features
        for _, numbers in sorted(units[feature].items())
        for n in numbers
      ]
      at[number // own, number % own, : len(found)] = found
    return at.reshape(self._hosts, -1)

  # --- What travels together.

  def _groups(self, bags) -> list[pooled.PooledFeatures]:
    """Features of one stack whose rows are spread alike."""
    plan, entries = self.layout.plan, {}
    for feature, read in bags.items():
      for piece in self.layout.pieces[read.table]:
        key = piece.stack, piece.spread
        entries.setdefault(key, []).append((feature, piece))
    return [
      pooled.PooledFeatures(
        self.layout.stacks[stack],
        spread,
        plan.hosts,
        plan.devices,
        tuple(own),
        in_steps=True,
      )
      for (stack, spread), own in entries.items()
    ]

  def _check(self, bags: Mapping[str, Read]) -> None:
    """Refuses features whose sums do not come together on their tower's host.

    A tower sees whole rows, on the host that holds them.
    """
    own = self.towers.count // self._hosts
    towers_lib.require_sums(self.towers, bags)
    for number, features in enumerate(self.towers.features):
      for feature in features:
        check_place(
          self.layout.plan, feature, bags[feature].table, number, number // own
        )
    ways = {self.exchanges[read.table] for read in bags.values()}
    if len(ways) > 1:
      names = sorted(way.codec_names for way in ways)
      raise PlanError(
        'the tables under towers travel together and must have one codec; '
        f'config.tables gives them {", ".join(names)}'
      )


def _share_of_means(lengths: jax.Array, wants: jax.Array) -> jax.Array:
  """`[W, P, B]` what each sum is multiplied with.

  Args:
    lengths: `[W, P, B + 1]`.
    wants: `[P]` bool, which entries are means.
  """
  share = 1.0 / jnp.maximum(lengths[:, :, :-1], 1).astype(jnp.float32)
  return jnp.where(wants[None, :, None], share, jnp.float32(1))


def _send_far(y: jax.Array, exchange: Exchange) -> jax.Array:
  """`[H, ...]` for H hosts -> the same from H hosts, with a way back.

  Codecs have no derivative of their own.
  """
  columns = y.shape[-1]

  def send(x, codec):
    return codec.decode(lax.all_to_all(codec.encode(x), 'host', 0, 0), columns)

  @jax.custom_vjp
  def send_forward(x):
    return send(x, exchange.row_codec)

  # What device a sends to device b comes back from b to a: the same exchange.
  send_forward.defvjp(
    lambda x: (send_forward(x), None),
    lambda _, g: (send(g, exchange.gradient_codec),),
  )
  return send_forward(y)
