"""Tables that are held by one device: `contracts.Tables` without a plan."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from genrec_jax.contracts import Extensions, IdMap, Store
from genrec_jax.embedding import (
  dirty_rows as dirty_lib,
)
from genrec_jax.embedding import (
  id_maps,
  lookup,
  row_settings,
  stores,
)
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import Read, TableSpec
from pallas_kernels import MergedRows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LocalRoutes:
  """What a batch of P microbatches reads.

  Attributes:
    ids: table -> `[N]` distinct ids that are read row by row.
    index: feature -> the index of each of its ids in `ids`, `[P, ...]`.
    bags: feature that is read as sums -> its packed bags, `[P * B]`.
    places: table whose store works on the host -> `[N]` rows of the device's
      array that hold its ids for now, from `LocalTables.prepare`.
  """

  ids: dict[str, jax.Array]
  index: dict[str, jax.Array]
  bags: dict[str, Read]
  places: dict[str, jax.Array] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LocalTables:
  """Row-updated tables without a plan.

  Attributes:
    specs: table -> its spec.
    options: options of the row optimizers, see `row_optimizers.RowOptimizer`.
    pooling: feature -> 'rows' or 'sums'; pooled features that are not named
      are read row by row.
    towers: what features go through on their way to the examples, or None.
    extra_optimizers: row optimizers from outside, by name.
    stores: table -> store of its rows, for tables that are not simply arrays
      of the device. If a store works on the host, call `prepare` between
      `route` and `fetch`; no feature of its table is read as sums.
  """

  specs: dict[str, TableSpec]
  options: dict = dataclasses.field(default_factory=dict)
  pooling: Mapping[str, str] = dataclasses.field(default_factory=dict)
  towers: Towers | None = None
  extra_optimizers: dict = dataclasses.field(default_factory=dict)
  stores: Mapping[str, Store] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    stores.check_stores(self.stores, self.specs)

  def store(self, table: str) -> Store:
    """The store of a table."""
    return self.stores.get(table, stores.DEVICE)

  def optimizer(self, table: str) -> RowOptimizerLike:
    """The row optimizer of a table."""
    return row_settings.optimizer_of(
      self.specs[table], self.options, self.extra_optimizers
    )

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Every table as it is before training."""
    return {n: self.store(n).init(s, key) for n, s in self.specs.items()}

  def init_slots(self, arrays) -> dict[str, dict[str, jax.Array]]:
    """What the row optimizers remember of them, before the first step."""
    return {
      name: self.optimizer(name).init(array) for name, array in arrays.items()
    }

  def route(self, reads: Mapping[str, Read], blocks: int = 0) -> LocalRoutes:
    """Finds the distinct ids of a batch, see `ShardedTables.route`.

    Args:
      reads: feature -> what it reads, `[P, ...]` of P microbatches.
      blocks: 0; others are for sharded tables.
    """
    if blocks:
      raise ValueError('rows in blocks are for sharded tables')
    if self.towers is not None:
      towers_lib.require_sums(self.towers, reads)
    # A sum needs the rows of its bags, which a store on the host brings to the
    # device only for ids that are read row by row.
    by_rows = stores.host_tables(self.stores)
    pooling = {
      feature: way
      for feature, way in self._ways.items()
      if feature not in reads or reads[feature].table not in by_rows
    }
    single, bags = lookup.split_reads(reads, pooling)
    ids = {
      table: lookup.distinct_ids([r.ids for r in own], self.specs[table].rows)
      for table, own in lookup.reads_by_table(single).items()
    }
    index = {
      name: lookup.locate_ids(
        ids[read.table], read.ids, self.specs[read.table].rows
      )
      for name, read in single.items()
    }
    return LocalRoutes(ids, index, bags)

  @property
  def _ways(self) -> dict[str, str]:
    """As `pooling`; what towers see is always sums."""
    under = self.towers.features if self.towers is not None else ()
    return dict(self.pooling) | {n: 'sums' for own in under for n in own}

  def prepare(self, arrays, slots, routes: LocalRoutes):
    """Lets stores bring the rows of a batch; runs on the host, not under jit.

    Args:
      arrays: table -> what the device holds of it; donated.
      slots: table -> slots of its row optimizer; donated.
      routes: from `route`.

    Returns:
      The new arrays and slots, and routes with `places`.
    """
    arrays, slots, places = dict(arrays), dict(slots), {}
    for name in stores.host_tables(self.stores):
      if name in routes.ids:
        arrays[name], slots[name], places[name] = self.store(name).prepare(
          arrays[name], slots[name], routes.ids[name]
        )
    return arrays, slots, dataclasses.replace(routes, places=places)

  def _find_places(self, table: str, routes: LocalRoutes) -> jax.Array:
    """The rows of a table's array that hold its ids."""
    if not self.store(table).on_host:
      return routes.ids[table]
    if table not in routes.places:
      raise ValueError(
        f'the store of table {table!r} works on the host, and its rows have '
        'not been brought to the device: call prepare between route and '
        'fetch, as runtime.host_stage.HostStep does'
      )
    return routes.places[table]

  def fetch(self, arrays, routes: LocalRoutes):
    """Reads what was routed.

    Args:
      arrays: table -> what the device holds of it.
      routes: from `route`, or `prepare` where stores work on the host.

    Returns:
      Table -> `[N, D]` rows and feature -> `[P * B, D]` sums, float32.
    """
    rows = {
      name: self.store(name)
      .read(arrays[name], self._find_places(name, routes))
      .astype(jnp.float32)
      for name in routes.ids
    }
    sums = {
      name: self.store(read.table).pool(arrays[read.table], read)
      for name, read in routes.bags.items()
    }
    return rows, sums

  def finish(self, modules, fetched, routes: LocalRoutes, draws=None):
    """Turns what was fetched into what the loss sees; differentiated with it.

    Args:
      modules: parameters of all towers, `[T, ...]`.
      fetched: from `fetch`.
      routes: from `route`.
      draws: `towers.TowerDraws`, or None.
    """
    rows, sums = fetched
    del routes
    if self.towers is not None:
      sums = towers_lib.apply_on_one_device(self.towers, modules, sums, draws)
    return rows, sums

  def push(
    self,
    arrays,
    slots,
    routes: LocalRoutes,
    grads,
    learning_rate,
    step,
    dirty_rows: Mapping[str, jax.Array] | None = None,
  ):
    """Merges gradients and updates the rows.

    Args:
      arrays: table -> what the device holds of it.
      slots: table -> slots of its row optimizer.
      routes: as for `fetch`.
      grads: gradients of what `fetch` returned, in the same form.
      learning_rate: one number, or table -> number.
      step: number of the step, for stochastic rounding.
      dirty_rows: array -> a byte for each of its rows, see `dirty_rows`; none
        where nobody asks.

    Returns:
      A `lookup.PushResult`.
    """
    arrays, slots, moved = dict(arrays), dict(slots), {}
    of_rows, of_bags = grads
    square = jnp.float32(0)
    for name, spec in self.specs.items():
      # Everything that this step has read of the table, in one update: a row
      # must not move twice.
      gradients = []
      if name in routes.ids:
        gradients.append(MergedRows(routes.ids[name], of_rows[name]))
      for feature, read in routes.bags.items():
        if read.table == name:
          gradients.append(lookup.bag_gradients(read, of_bags[feature]))
      if not gradients:
        continue
      merged = lookup.merge_row_gradients(gradients, spec.rows)
      square += jnp.sum(jnp.square(merged.grads))
      moved[name] = merged.ids
      # Rounding must depend on the row, not on where it happens to be now.
      numbers = init_lib.hash_table_rows(name, merged.ids)
      if name in routes.places:
        # Sorted by id so far; an update wants the rows of the array sorted.
        merged, numbers = stores.sort_places(
          routes.places[name], merged, numbers
        )
      arrays[name], slots[name] = self.store(name).update(
        arrays[name],
        slots[name],
        merged,
        [self.optimizer(name)],
        [row_settings.rate_of(name, learning_rate)],
        None,
        step=step,
        row_numbers=numbers,
      )
    dirty_rows = dirty_lib.mark_rows(dirty_rows or {}, moved)
    return lookup.PushResult(arrays, slots, square, dirty_rows)

  def overflow(self, routes) -> jax.Array:
    """Nothing is exchanged, so nothing overflows."""
    del routes
    return jnp.float32(0)


class SingleDeviceEvalRuntime:
  """Weights on one device, as evaluations read them.

  The calls are those of `runtime.mesh.MeshRuntime`, which explains them.

  Attributes:
    pooling: feature -> 'rows' or 'sums', as in `LocalTables`.
    towers: as in `LocalTables`; None for those of the task, if it has any.
    maps: table -> an id map of the caller's own, in place of the table's.
    stores: table -> its store, as in `LocalTables`. Tables of stores that work
      on the host cannot be read here: the device holds some of their rows.
  """

  eval_shards, local_eval_shards = 1, None
  pooling: Mapping[str, str] = {}
  towers: Towers | None = None
  maps: Mapping[str, IdMap] = {}
  stores: Mapping[str, Store] = {}

  @classmethod
  def of(cls, extensions: Extensions | None) -> 'SingleDeviceEvalRuntime':
    """A runtime for weights that were trained with extensions, or without."""
    runtime = cls()
    if extensions is not None:
      runtime.towers, runtime.maps = extensions.towers, extensions.id_maps
      runtime.stores = extensions.stores
    return runtime

  def put_on_devices(self, batch):
    """The batch in the form in which a function of `jit` takes it."""
    return batch

  def jit(self, function, inputs, output=None):
    """Compiles `function(weights, ...)`; the other arguments are for meshes."""
    del inputs, output
    return jax.jit(function)

  def read_rows(self, task, weights, reads: Mapping[str, Read]):
    """Parameters and views of the reads, for use in a function of `jit`.

    Args:
      task: the task, whose id maps are used.
      weights: the weights that such a function gets.
      reads: feature -> what it reads.
    """
    tables = weights['tables']
    elsewhere = stores.host_tables(self.stores)
    for feature, read in reads.items():
      if read.table in elsewhere:
        raise ValueError(
          f'feature {feature!r} reads table {read.table!r}, whose store works '
          'on the host: the device holds only some of its rows, so that it '
          'cannot be evaluated; leave it out of Extensions.stores'
        )
    towers = self.towers or getattr(task, 'towers', None)
    id_map = id_maps.collect_maps(task, self.maps)
    rows = id_map.lookup(weights['id_states'], reads)
    views = lookup.view_tables(tables, reads, rows)
    sums = {}
    for name, read in reads.items():
      # A tower takes sums, whatever way they were made in training.
      under = towers is not None and name in towers
      if read.pooling != 'none' and (under or self.pooling.get(name) == 'sums'):
        # An id map may have made other rows of the ids.
        mapped = dataclasses.replace(read, ids=rows.get(name, read.ids))
        sums[name] = lookup.pool_table(tables[read.table], mapped)
    if towers is not None:
      sums = towers_lib.apply_on_one_device(towers, weights['modules'], sums)
      views[towers_lib.NAME] = lookup.TowerView(sums.pop(towers_lib.NAME))
    views.update({n: lookup.SumView(x, reads[n]) for n, x in sums.items()})
    return weights['params'], views
