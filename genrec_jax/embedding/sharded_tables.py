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

from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import exchange as exchange_lib
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import lookup, row_settings
from genrec_jax.embedding.exchange import Exchange, RowRoutes
from genrec_jax.embedding.layout import Stack, StackLayout
from genrec_jax.embedding.pooled import IncomingRequests
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.scheme import PlanError
from genrec_jax.embedding.sum_exchange import SumExchange
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
  """

  ids: dict[str, jax.Array]
  index: dict[str, jax.Array]
  bags: dict[str, Read]
  stacks: dict[str, RowRoutes]
  pooled: dict[str, IncomingRequests]


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
          f'the pieces of table {name!r} do not fit one stack of addresses; '
          'spread it over more devices'
        )
      if len(pieces) > 1 and not self.optimizer(name).takes_pieces:
        raise PlanError(
          f'table {name!r} is cut into {len(pieces)} pieces of a row, and '
          f'{self.layout.optimizers[pieces[0].stack]} with these options needs '
          'whole rows; use row_adagrad, adagrad, adam, momentum or sgd without '
          'max_norm or l2 decay, or a scheme that leaves rows whole'
        )

    self._sum_exchange  # refuses towers that do not fit

  def optimizer(self, table: str) -> RowOptimizerLike:
    """The row optimizer of a table."""
    return row_settings.optimizer_of(
      self.specs[table], self.options, self.extra_optimizers
    )

  @functools.cached_property
  def _tables_of(self) -> dict[str, list[str]]:
    """Array -> the table of each of its pieces."""
    tables = {n: [p.table for p in s.pieces] for n, s in self._stacks.items()}
    return tables | {name: [name] for name in self.layout.whole}

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
    return SumExchange(self.layout, self.specs, self.exchanges, self.towers)

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
    return {
      name: self.optimizer(self._tables_of[name][0]).init(array)
      for name, array in arrays.items()
    }

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

  def route(self, reads: Mapping[str, Read], blocks: int = 1) -> ShardedRoutes:
    """Tells the owners which rows this shard will read; reads no table.

    Args:
      reads: feature -> what it reads, `[P, ...]` of P microbatches.
      blocks: number of parts of the ids, along their first axis, that keep
        rows and gradients of their own. An exchange by 'gather' adds these up
        one by one, so that the sum of a row depends on the blocks of all
        shards, and not on which device has which of them.
    """
    if blocks > 1 and self.towers is not None:
      raise ValueError('towers and rows in blocks do not go together')
    if blocks > 1 and self.exchange.kind != 'gather':
      raise ValueError(
        "rows in blocks need exchange.kind='gather': the other ways ask for "
        'every row once'
      )
    single, bags = lookup.split_reads(reads, self.pooling)
    distinct = {
      table: _distinct_by_block(
        [r.ids for r in own], self.specs[table].rows, blocks
      )
      for table, own in lookup.reads_by_table(single).items()
    }
    index = {
      name: _locate_by_block(
        distinct[read.table], read.ids, self.specs[read.table].rows, blocks
      )
      for name, read in single.items()
    }
    routed = {}
    for key, exchange, stack, pieces in self._group_exchanges(distinct):
      # The pieces of a row are rows of the stack; they travel side by side.
      addresses = [stack.address(p, distinct[p.table]) for p in pieces]
      routed[key] = exchange_lib.route_addresses(
        exchange, stack, jnp.concatenate(addresses)
      )
    return ShardedRoutes(
      distinct, index, bags, routed, self._sum_exchange.route(bags)
    )

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
      or means, stack -> `[A, P, B, C]` sums of its features under towers),
      float32.
    """
    by_table = {
      name: {} for name in routes.ids
    }  # table -> first column -> rows
    for key, exchange, stack, pieces in self._group_exchanges(routes.ids):
      rows = exchange_lib.fetch_rows(
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
    sums, near = self._sum_exchange.fetch(arrays, routes.pooled, routes.bags)
    for name, read in routes.bags.items():
      if read.table in self.layout.whole:
        sums[name] = lookup.pool_table(arrays[read.table], read)
    return values, sums, near

  def finish(self, modules, fetched, routes: ShardedRoutes):
    """Turns what was fetched into what the loss sees; differentiated with it.

    Rows and plain sums have travelled already. The sums of features under
    towers are still on their host.

    Args:
      modules: parameters of the towers on this host, `[1, ...]`.
      fetched: from `fetch`.
      routes: from `route`.
    """
    rows, sums, near = fetched
    return rows, sums | self._sum_exchange.finish(modules, near, routes.bags)

  def push(
    self,
    arrays,
    slots,
    routes: ShardedRoutes,
    grads,
    learning_rate,
    step: jax.Array,
  ):
    """Brings gradients to the owners of the rows and updates the rows.

    Args:
      arrays: this device's part of every array.
      slots: slots of the optimizers, in the same form.
      routes: from `route`.
      grads: gradients of what `fetch` returned, in the same form.
      learning_rate: one number, or table -> number.
      step: number of the step, for stochastic rounding.

    Returns:
      `lookup.PushResult`; the norm is the same everywhere.
    """
    arrays, slots, moved = dict(arrays), dict(slots), {}
    square = jnp.float32(0)
    for name, merged in self._merge_gradients(routes, *grads).items():
      moved[name] = merged.ids
      squares = jnp.sum(jnp.square(merged.grads))
      tables, groups = self._tables_of[name], None
      if name in self.layout.whole:
        square += squares
        numbers = init_lib.hash_table_rows(name, merged.ids)
      else:
        # Rows of a stack are on one device of a group; whole tables are the
        # same on all and counted once.
        square += lax.psum(squares, mesh_lib.AXES)
        numbers, groups = _number_rows(self.layout.stacks[name], merged.ids)
        # Every replica group takes the step of its own mean.
        merged = merged._replace(
          grads=merged.grads * jnp.float32(self.layout.plan.replicas)
        )
      of_rows = {}
      # Before the rows move: the optimizer needs the norm of the whole row.
      if name in self._cut_rows:
        of_rows['row_squares'] = self._row_squares(name, merged)
      arrays[name], slots[name] = row_settings.move_rows(
        arrays[name],
        slots[name],
        merged,
        [self.optimizer(table) for table in tables],
        [row_settings.rate_of(table, learning_rate) for table in tables],
        groups,
        step=step,
        row_numbers=numbers,
        **of_rows,
      )
    arrays, slots = self._sync_replicas(arrays, slots, step)
    return lookup.PushResult(arrays, slots, square, moved)

  def _merge_gradients(self, routes: ShardedRoutes, of_rows, of_bags, of_near):
    """Array -> the summed gradients of its rows on this device."""
    gradients = {}  # array -> what has come so far
    for name, grads in self._sum_exchange.push(
      routes.pooled, of_bags, of_near, routes.bags
    ):
      gradients.setdefault(name, []).append(grads)
    for key, exchange, stack, pieces in self._group_exchanges(routes.ids):
      of_table = [
        of_rows[p.table][:, p.first_column : p.first_column + p.columns]
        for p in pieces
      ]
      # The exchange adds up all gradients of the stack at once, the earlier
      # ones after its own.
      gradients[stack.name] = [
        exchange_lib.push_gradients(
          exchange,
          stack,
          routes.stacks[key],
          jnp.concatenate(of_table),
          gradients.get(stack.name, ()),
        )
      ]
    for name, table in self.layout.whole.items():
      of_table = []
      if name in routes.ids:
        of_table.append(MergedRows(routes.ids[name], of_rows[name]))
      for feature, bag in routes.bags.items():
        if bag.table == name:
          of_table.append(lookup.bag_gradients(bag, of_bags[feature]))
      if of_table:
        # All devices add up the same gradients in the same order, so that their
        # copies stay equal to the bit.
        gradients[name] = [
          _gather_gradients(part, table.rows) for part in of_table
        ]
    rows = {name: s.depth for name, s in self.layout.stacks.items()}
    rows |= {name: t.rows for name, t in self.layout.whole.items()}
    return {
      name: lookup.merge_row_gradients(x, rows[name])
      for name, x in gradients.items()
    }

  @functools.cached_property
  def _cut_rows(self) -> set[str]:
    """Stacks with pieces of rows whose optimizer looks at whole rows."""
    return {
      stack.name
      for stack in self.layout.stacks.values()
      if self.optimizer(stack.pieces[0].table).needs_row_squares
      and any(len(self.layout.pieces[p.table]) > 1 for p in stack.pieces)
    }

  def _row_squares(self, name: str, merged: MergedRows) -> jax.Array:
    """Mean squares of the gradients of rows with pieces on several devices.

    Each piece sends its part of the sum of squares to the first piece of the
    row, and gets the whole back.
    """
    stack = self.layout.stacks[name]
    # Which row of which table each of the moved rows is a piece of.
    number, ids = stack.identify(lax.axis_index(GROUP), merged.ids)
    pieces = [self.layout.pieces[p.table] for p in stack.pieces]
    home = jnp.full_like(merged.ids, stack.nowhere)
    for i, of_table in enumerate(pieces):
      home = jnp.where(number == i, stack.address(of_table[0], ids), home)
    squares = jnp.sum(jnp.square(merged.grads), axis=1, keepdims=True)
    # Exact numbers, whatever format the rows travel in.
    plain = Exchange(self.exchange.kind, self.exchange.capacity)
    routed = exchange_lib.route_addresses(plain, stack, home)
    totals = exchange_lib.push_gradients(plain, stack, routed, squares)

    def total_of(totals, rows):
      # `totals` has an entry for each row that was sent something, not for each
      # row of the device.
      place = jnp.searchsorted(totals.ids, rows)
      place = jnp.where(rows < stack.depth, place, totals.ids.shape[0])
      return totals.grads.at[place].get(mode='fill', fill_value=0)

    total = exchange_lib.fetch_rows(plain, stack, routed, totals, total_of)[
      :, 0
    ]
    # All pieces of a table are of one width.
    width = jnp.asarray([p[0].columns * len(p) for p in pieces], jnp.float32)
    return total / width[number]

  def overflow(self, routes: ShardedRoutes) -> jax.Array:
    """How many stacks had no room in this step; NaN where that is an error."""
    overflows = [r.overflow for r in routes.stacks.values()]
    count = sum((x.astype(jnp.float32) for x in overflows), jnp.float32(0))
    if self.exchange.overflow == 'raise':
      return jnp.where(count > 0, jnp.nan, count)
    return count

  def mark_rows(self, dirty_rows, rows, step) -> dict[str, jax.Array]:
    """The dirty rows after a step has updated `rows`; see `dirty_rows`.

    Where replica groups take their mean, what any of them has moved has moved
    in all.
    """
    dirty_rows = dirty_lib.mark_rows(dirty_rows, rows)
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


def _number_rows(stack: Stack, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(`init.hash_table_rows`, number of the piece) of rows of this device."""
  number, ids = stack.identify(lax.axis_index(GROUP), rows)
  names = [init_lib.name_bits(p.table, p.first_column) for p in stack.pieces]
  return init_lib.hash_row(jnp.stack(names)[number], ids), number


def _join_columns(by_column: dict[int, jax.Array]) -> jax.Array:
  """First column -> `[N, C]`, side by side."""
  return jnp.concatenate([by_column[c] for c in sorted(by_column)], axis=1)


def _gather_gradients(gradients, rows: int) -> lookup.BagGradients:
  """The gradients of all shards, on all of them, in their order."""
  # Row by row, since bags of different shards have different lengths.
  ids, grads = lookup.expand_bags(gradients, rows)
  ids = lax.all_gather(ids, mesh_lib.AXES, tiled=True)
  grads = lax.all_gather(grads, mesh_lib.AXES, tiled=True)
  return lookup.BagGradients(ids, None, grads)
