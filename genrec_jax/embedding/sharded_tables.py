"""Tables sharded over devices by a plan: `contracts.Tables` on a mesh.

All of it runs inside `jax.shard_map` over the axes of `parallel.mesh`, on this
device's part. A step finds the distinct ids of each table in this shard of the
batch and the addresses of their pieces, exchanges rows once for each stack
(exchange.py), and on the way back makes one merged update of each stack, in
place. sum_exchange.py does the same for pooled features that travel as sums.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from genrec_jax.embedding import copied_tables, lookup, row_exchange
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import Addresses, Stack, StackLayout
from genrec_jax.embedding.pooled import IncomingRequests
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.row_routes import (
  RowRoutes,
  make_keys,
  route_addresses,
)
from genrec_jax.embedding.row_settings import check_placement
from genrec_jax.embedding.row_updates import Moved, RowUpdates
from genrec_jax.embedding.scheme import PlanError
from genrec_jax.embedding.sum_exchange import SumExchange
from genrec_jax.embedding.tower_exchange import TowerExchange
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import collectives
from genrec_jax.parallel import mesh as mesh_lib
from pallas_kernels import MergedRows

GROUP = mesh_lib.DEVICE_GROUP


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShardedRoutes:
  """What a shard of a batch reads, and how it gets there.

  Attributes:
    ids: table -> `[N]` distinct ids, sorted, with `rows` in unused entries; one
      block after another if there are several.
    index: feature that is read row by row -> the index of each of its ids in
      `ids` (of its own block), `[P, ...]` of P microbatches.
    bags: feature that is read as sums -> its packed bags, `[P * B]`.
    stacks: part of a stack that travels together -> its routed addresses.
    pooled: group of features -> what its holders were asked for.
    blocks: parts of the ids whose rows and gradients are kept apart, and added
      up in their order; 0 where no order is kept.
  """

  ids: dict[str, jax.Array]
  index: dict[str, jax.Array]
  bags: dict[str, Read]
  stacks: dict[str, RowRoutes]
  pooled: dict[str, IncomingRequests]
  blocks: int = dataclasses.field(default=0, metadata={'static': True})


@dataclasses.dataclass(frozen=True)
class ShardedTables:
  """The tables of a task under a plan.

  Attributes:
    layout: the layout of the plan.
    specs: table -> its spec; tables that the plan does not name are ignored.
    exchange: how rows travel.
    sync_every: steps between averages over replica groups.
    options: options of the row optimizers, see `row_optimizers.RowOptimizer`.
    pooling: feature -> 'rows' or 'sums'; pooled features that are not named
      are read row by row.
    towers: what features go through on their way to the examples, or None.
    extra_optimizers: row optimizers from outside, by name.
  """

  layout: StackLayout
  specs: dict[str, TableSpec]
  exchange: Exchange = Exchange()
  sync_every: int = 1
  options: dict = dataclasses.field(default_factory=dict)
  pooling: Mapping[str, str] = dataclasses.field(default_factory=dict)
  towers: Towers | None = None
  extra_optimizers: dict = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name, pieces in self.layout.pieces.items():
      if len({piece.stack for piece in pieces}) > 1:
        raise PlanError(
          f'the pieces of table {name!r} do not fit one array of a device; '
          'spread it over more devices'
        )
      check_placement(
        name,
        self.optimizer(name),
        self.layout.optimizers[pieces[0].stack],
        pieces=len(pieces),
        replicas=self.layout.plan.replicas,
      )

    self._tower_exchange  # refuses towers that do not fit

  def optimizer(self, table: str) -> RowOptimizerLike:
    """The row optimizer of a table."""
    return self._updates.optimizer(table)

  @functools.cached_property
  def _updates(self) -> RowUpdates:
    return RowUpdates(
      self.layout,
      self.specs,
      self.exchange,
      self.options,
      self.extra_optimizers,
    )

  @property
  def _stacks(self) -> dict[str, Stack]:
    return self.layout.stacks

  @functools.cached_property
  def exchanges(self) -> dict[str, Exchange]:
    """Table -> how its rows travel."""
    return {
      name: self.exchange.with_codecs(spec.codec)
      for name, spec in self.specs.items()
    }

  @functools.cached_property
  def _sum_exchange(self) -> SumExchange:
    return SumExchange(self.layout, self.specs, self.exchanges)

  @functools.cached_property
  def _tower_exchange(self) -> TowerExchange | None:
    if self.towers is None:
      return None
    return TowerExchange(self.layout, self.exchanges, self.towers)

  def _split_bags(self, bags: dict[str, Read]):
    """Those of features under no tower, and those of towers."""
    if self.towers is None:
      return bags, {}
    under = {name: read for name, read in bags.items() if name in self.towers}
    return {n: read for n, read in bags.items() if n not in under}, under

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """This device's part of every array, fresh."""
    device = lax.axis_index(GROUP)
    arrays = {
      name: init_lib.init_stack(stack, self.specs, key, device)
      for name, stack in self.layout.stacks.items()
    }
    for name in self.layout.whole:
      arrays[name] = init_lib.init_table(self.specs[name], key)
    return arrays

  def init_slots(self, arrays) -> dict[str, dict[str, jax.Array]]:
    """What the row optimizers remember of them, before the first step."""
    return self._updates.init_slots(arrays)

  def partition(self, arrays) -> dict:
    """The `PartitionSpec` of each array, or of each slot of each array."""

    def find_spec(name, leaf):
      # A slot that is a scalar counts updates, which are the same everywhere.
      alike = name in self.layout.whole or leaf.ndim == 0
      return PartitionSpec() if alike else PartitionSpec(mesh_lib.AXES)

    return {
      name: jax.tree.map(functools.partial(find_spec, name), leaves)
      for name, leaves in arrays.items()
    }

  def route(self, reads: Mapping[str, Read], blocks: int = 0) -> ShardedRoutes:
    """Tells the owners which rows this shard will read; reads no table.

    Args:
      reads: feature -> what it reads, `[P, ...]` of P microbatches.
      blocks: number of parts of the ids, along their first axis, that keep
        rows and gradients of their own. They are added up one by one, so that
        the sum of a row depends on the blocks of all shards, and not on which
        device has which of them. 0 adds up as is quickest.
    """
    parts = max(blocks, 1)
    single, bags = lookup.split_reads(reads, self._find_ways(reads))
    distinct = {
      table: _distinct_by_block(
        [r.ids for r in own], self.specs[table].rows, parts
      )
      for table, own in lookup.reads_by_table(single).items()
    }
    index = {
      name: _locate_by_block(
        distinct[read.table], read.ids, self.specs[read.table].rows, parts
      )
      for name, read in single.items()
    }
    routed = {}
    for key, exchange, stack, pieces in self._group_exchanges(distinct):
      # The pieces of a row are rows of the stack; they travel side by side.
      addresses = [stack.locate(p, distinct[p.table]) for p in pieces]
      addresses = Addresses(*map(jnp.concatenate, zip(*addresses, strict=True)))
      keys = None
      if stack.name in self._updates.cut_rows:
        first = [self.layout.pieces[p.table][0] for p in pieces]
        keys = jnp.concatenate(
          [
            make_keys(stack.locate(piece, distinct[piece.table]))
            for piece in first
          ]
        )
      routed[key] = route_addresses(exchange, stack, addresses, parts, keys)
    plain, under = self._split_bags(bags)
    requests = self._sum_exchange.route(plain)
    if self._tower_exchange is not None:
      requests |= self._tower_exchange.route(under)
    return ShardedRoutes(distinct, index, bags, routed, requests, blocks)

  def _find_ways(self, reads: Mapping[str, Read]) -> dict[str, str]:
    """Pooled feature -> 'rows' or 'sums', as they really travel."""
    ways = dict(self.pooling)
    if self.towers is not None:  # which see sums, whatever would be cheaper
      ways |= {name: 'sums' for own in self.towers.features for name in own}
    for feature, read in reads.items():
      pieces = self.layout.pieces.get(read.table, ())
      if ways.get(feature) != 'sums' or read.lengths is None or not pieces:
        continue
      if self.exchange.sums_give_way(
        pieces[0].spread,
        read.lengths.size,
        read.ids.size,
        self.layout.plan.group_size,
      ):
        ways[feature] = 'rows'
    return ways

  def _group_exchanges(self, ids):
    """(key, exchange, stack, pieces) of what travels together.

    One for each stack, unless its tables have several codecs.
    """
    for name, stack in self.layout.stacks.items():
      by_way = {}
      for piece in stack.pieces:
        if piece.table in ids:
          by_way.setdefault(self.exchanges[piece.table], []).append(piece)
      for exchange, pieces in by_way.items():
        yield f'{name} {exchange.codec_names}', exchange, stack, pieces

  def fetch(self, arrays, routes: ShardedRoutes):
    """Reads what was routed.

    Returns:
      (table -> `[N, D]` rows of the distinct ids, feature -> `[P * B, D]` sums
      or means, and what `TowerExchange.fetch` returns), float32.
    """
    by_table = {
      name: {} for name in routes.ids
    }  # table -> first column -> rows
    for key, exchange, stack, pieces in self._group_exchanges(routes.ids):
      rows = row_exchange.fetch_rows(
        exchange, stack, routes.stacks[key], arrays[stack.name]
      )
      start = 0
      for piece in pieces:
        end = start + routes.ids[piece.table].shape[0]
        # In the order in which `route` put them together.
        by_table[piece.table][piece.first_column] = rows[start:end]
        start = end
    values = {}
    for name, ids in routes.ids.items():
      if name in self.layout.whole:
        values[name] = lookup.fetch_rows(arrays[name], ids).astype(jnp.float32)
      else:
        values[name] = _join_columns(by_table[name])
    bags, under = self._split_bags(routes.bags)
    sums, near = self._sum_exchange.fetch(arrays, routes.pooled, bags), {}
    if self._tower_exchange is not None:
      near = self._tower_exchange.fetch(arrays, routes.pooled, under)
    for name, read in bags.items():
      if read.table in self.layout.whole:
        sums[name] = lookup.pool_table(arrays[read.table], read)
    return values, sums, near

  def finish(self, modules, fetched, routes: ShardedRoutes, draws=None):
    """Turns what was fetched into what the loss sees; differentiated with it.

    Rows and plain sums have travelled already. The sums of features under
    towers are still on their host.

    Args:
      modules: parameters of the towers on this host, `[K, ...]`.
      fetched: from `fetch`.
      routes: from `route`.
      draws: `towers.TowerDraws` of this device's examples, or None.
    """
    rows, sums, near = fetched
    if self._tower_exchange is not None:
      _, under = self._split_bags(routes.bags)
      made = self._tower_exchange.finish(modules, near, under, draws)
      sums = sums | {towers_lib.NAME: made}
    return rows, sums

  def push(
    self,
    arrays,
    slots,
    routes: ShardedRoutes,
    grads,
    learning_rate,
    step: jax.Array,
    dirty_rows: Mapping[str, jax.Array] | None = None,
  ):
    """Brings gradients to the owners of the rows and updates the rows.

    Args:
      arrays: this device's part of every array.
      slots: slots of the optimizers, in the same form.
      routes: from `route`.
      grads: gradients of what `fetch` returned, in the same form.
      learning_rate: one number, or table -> number.
      step: number of the step, for stochastic rounding.
      dirty_rows: array -> a byte for each of its rows, see `dirty_rows`; none
        where nobody asks.

    Returns:
      `lookup.PushResult`; the norm is the same everywhere.
    """
    arrays, slots = dict(arrays), dict(slots)
    dirty_rows = dict(dirty_rows or {})
    whole, square = jnp.float32(0), jnp.float32(0)
    for name, merged in self._merge_whole(routes, *grads).items():
      moved = Moved(arrays[name], slots[name], dirty_rows.get(name), whole)
      moved = self._updates.move_rows(name, moved, merged, learning_rate, step)
      arrays[name], slots[name], dirty_rows[name], whole = moved
    for name, exchanges in self._group_gradients(routes, *grads).items():
      moved = Moved(arrays[name], slots[name], dirty_rows.get(name), square)

      def apply(moved, merged, name=name, before=slots[name]):
        # What counts updates counts the step once, however many rounds it has.
        counts = {n: x for n, x in before.items() if x.ndim == 0}
        moved = moved._replace(slots=moved.slots | counts)
        return self._updates.move_rows(name, moved, merged, learning_rate, step)

      for own in exchanges:
        moved = own.push(apply, moved)
      arrays[name], slots[name], dirty_rows[name], square = moved
    # Rows of a stack are on one device of a group; whole tables are the same on
    # all and counted once.
    if self._stacks:
      whole += lax.psum(square, mesh_lib.AXES)
    arrays, slots = self._sync_replicas(arrays, slots, step)
    dirty_rows = {n: x for n, x in dirty_rows.items() if x is not None}
    dirty_rows = self._mark_means(dirty_rows, step)
    return lookup.PushResult(arrays, slots, whole, dirty_rows)

  def _group_gradients(self, routes: ShardedRoutes, of_rows, of_bags, of_near):
    """Stack -> what is pushed to its rows, each row by one of them."""
    pushed = {}  # stack -> exchange -> what comes that way
    bags, under = self._split_bags(routes.bags)
    sums = self._sum_exchange.push(routes.pooled, of_bags, bags)
    if self._tower_exchange is not None:
      sums += self._tower_exchange.push(routes.pooled, of_near, under)
    for name, exchange, grads in sums:
      ways = pushed.setdefault(name, {})
      ways.setdefault(exchange, _Pushed(self._stacks[name])).of_bags.append(
        grads
      )
    for key, exchange, stack, pieces in self._group_exchanges(routes.ids):
      of_table = [
        of_rows[p.table][:, p.first_column : p.first_column + p.columns]
        for p in pieces
      ]
      ways = pushed.setdefault(stack.name, {})
      own = ways.setdefault(exchange, _Pushed(stack))
      own.exchange, own.routed = exchange, routes.stacks[key]
      own.of_rows = jnp.concatenate(of_table)
    return {name: list(ways.values()) for name, ways in pushed.items()}

  def _merge_whole(self, routes: ShardedRoutes, of_rows, of_bags, of_near):
    """Table that every device holds -> the summed gradients of its rows."""
    del of_near
    gradients = {}
    for name, table in self.layout.whole.items():
      of_table = []
      if name in routes.ids:
        of_table.append(MergedRows(routes.ids[name], of_rows[name]))
      for feature, bag in routes.bags.items():
        if bag.table == name:
          of_table.append(lookup.bag_gradients(bag, of_bags[feature]))
      if of_table:
        gradients[name] = copied_tables.sum_gradients(
          of_table, table.rows, in_order=routes.blocks > 0
        )
    return gradients

  def overflow(self, routes: ShardedRoutes) -> jax.Array:
    """How many stacks had no room in this step; NaN where that is an error."""
    overflows = [r.overflow for r in routes.stacks.values()]
    count = sum((x.astype(jnp.float32) for x in overflows), jnp.float32(0))
    if self.exchange.overflow == 'raise':
      return jnp.where(count > 0, jnp.nan, count)
    return count

  def _mark_means(self, dirty_rows, step) -> dict[str, jax.Array]:
    """The dirty rows behind a step.

    Where replica groups take their mean, what any of them has moved has moved
    in all.
    """
    ours = {n: x for n, x in dirty_rows.items() if n in self.layout.stacks}
    mark = functools.partial(dirty_lib.mark_means, axis='rep')
    return dirty_rows | self._at_means(mark, ours, step)

  def _sync_replicas(self, arrays, slots, step):
    """The means over replica groups, on every `sync_every`-th step."""
    ours = {name: (arrays[name], slots[name]) for name in self.layout.stacks}
    mean = functools.partial(collectives.mean_of_copies, axis='rep')
    ours = self._at_means(mean, ours, step)
    arrays |= {name: array for name, (array, _) in ours.items()}
    slots |= {name: slot for name, (_, slot) in ours.items()}
    return arrays, slots

  def _at_means(self, fn, tree, step):
    """`fn` of each leaf where the replica groups take their mean."""
    if self.layout.plan.replicas == 1:
      return tree
    return lax.cond(
      (step + 1) % self.sync_every == 0,
      lambda x: jax.tree.map(fn, x),
      lambda x: x,
      tree,
    )


@dataclasses.dataclass
class _Pushed:
  """Gradients of some rows of a stack: those that travel alike."""

  stack: Stack
  of_bags: list = dataclasses.field(default_factory=list)
  exchange: Exchange | None = None  # where rows travel, too
  routed: RowRoutes | None = None
  of_rows: jax.Array | None = None

  def push(self, apply, carry):
    """Lets `apply` move the rows, see `row_exchange.push_gradients`."""
    if self.exchange is None:
      merged = lookup.merge_row_gradients(self.of_bags, self.stack.depth)
      return apply(carry, merged)
    return row_exchange.push_gradients(
      self.exchange,
      self.stack,
      self.routed,
      self.of_rows,
      self.of_bags,
      apply,
      carry,
    )


def _distinct_by_block(
  ids: list[jax.Array], rows: int, blocks: int
) -> jax.Array:
  """`lookup.distinct_ids` of each block, one after another."""
  return jnp.concatenate(
    [
      lookup.distinct_ids([x.reshape(blocks, -1)[b] for x in ids], rows)
      for b in range(blocks)
    ]
  )


def _locate_by_block(
  distinct: jax.Array, ids: jax.Array, rows: int, blocks: int
) -> jax.Array:
  """`lookup.locate_ids` of each block among the distinct ids of its own."""
  if blocks == 1:
    return lookup.locate_ids(distinct, ids, rows)
  return jnp.stack(
    [
      lookup.locate_ids(distinct.reshape(blocks, -1)[b], ids[b], rows)
      for b in range(blocks)
    ]
  )


def _join_columns(by_column: dict[int, jax.Array]) -> jax.Array:
  """First column -> `[N, C]`, side by side."""
  return jnp.concatenate([by_column[c] for c in sorted(by_column)], axis=1)
