"""Tables that one device holds: `contracts.Tables` without a plan."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.contracts import Extensions, IdMap
from genrec_jax.embedding import id_maps, lookup, row_settings, touched
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import towers as towers_lib
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.towers import Towers
from genrec_jax.features import Read, TableSpec
from pallas_kernels import MergedRows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routes:
  """What a batch of P microbatches reads.

  Attributes:
    ids: table -> `[N]` distinct ids that are read row by row.
    index: feature -> places of its ids among them, `[P, ...]`.
    bags: feature that is read as sums -> its packed bags, `[P * B]`.
  """

  ids: dict[str, jax.Array]
  index: dict[str, jax.Array]
  bags: dict[str, Read]


@dataclasses.dataclass(frozen=True)
class LocalTables:
  """Row-updated tables without a plan.

  Attributes:
    specs: table -> its spec.
    options: of the row optimizers, see `row_optimizers.RowOptimizer`.
    pooling: feature -> 'rows' or 'sums'; pooled features that are not named
      are read row by row.
    towers: what features go through on their way to the examples, or None.
    extra_optimizers: row optimizers from outside, by name.
  """

  specs: dict[str, TableSpec]
  options: dict = dataclasses.field(default_factory=dict)
  pooling: Mapping[str, str] = dataclasses.field(default_factory=dict)
  towers: Towers | None = None
  extra_optimizers: dict = dataclasses.field(default_factory=dict)

  def optimizer(self, table: str) -> RowOptimizerLike:
    """That of a table."""
    return row_settings.optimizer_of(
      self.specs[table], self.options, self.extra_optimizers
    )

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Every table, fresh."""
    return {n: init_lib.init_table(s, key) for n, s in self.specs.items()}

  def init_slots(self, arrays) -> dict[str, dict[str, jax.Array]]:
    """What the row optimizers remember of them, before the first step."""
    return {
      name: self.optimizer(name).init(array) for name, array in arrays.items()
    }

  def route(self, reads: Mapping[str, Read], blocks: int = 1) -> Routes:
    """What a step reads (see `sharded.ShardedTables.route`)."""
    if blocks != 1:
      raise ValueError('rows in blocks are for sharded tables')
    single, bags = lookup.split_reads(reads, self.pooling)
    ids = {
      table: lookup.distinct_ids([r.ids for r in own], self.specs[table].rows)
      for table, own in lookup.reads_by_table(single).items()
    }
    index = {
      name: lookup.locate(
        ids[read.table], read.ids, self.specs[read.table].rows
      )
      for name, read in single.items()
    }
    return Routes(ids, index, bags)

  def fetch(self, arrays, routes: Routes):
    """(table -> `[N, D]` rows, feature -> `[P * B, D]` sums), float32."""
    rows = {
      name: lookup.fetch_rows(arrays[name], ids).astype(jnp.float32)
      for name, ids in routes.ids.items()
    }
    sums = {
      name: lookup.pool_table(arrays[read.table], read)
      for name, read in routes.bags.items()
    }
    return rows, sums

  def finish(self, modules, fetched, routes: Routes):
    """What was fetched -> what the loss sees; differentiated by the step.

    Args:
      modules: parameters of all towers, `[T, ...]`.
      fetched: from `fetch`.
      routes: from `route`.
    """
    rows, sums = fetched
    if self.towers is not None:
      towers_lib.check(self.towers, routes.bags)
      sums = towers_lib.apply_on_one_device(self.towers, modules, sums)
    return rows, sums

  def push(self, arrays, slots, routes: Routes, grads, learning_rate, step):
    """Moves the rows; returns `lookup.Pushed`."""
    arrays, slots, moved = dict(arrays), dict(slots), {}
    of_rows, of_bags = grads
    square = jnp.float32(0)
    for name, spec in self.specs.items():
      parts = []
      if name in routes.ids:
        parts.append(MergedRows(routes.ids[name], of_rows[name]))
      for feature, read in routes.bags.items():
        if read.table == name:
          parts.append(
            pallas_kernels.bag_row_gradient(
              lookup.apply_mean(of_bags[feature], read),
              read.ids,
              read.lengths,
              spec.rows,
              weights=read.weights,
            )
          )
      if not parts:
        continue
      merged = lookup.merge_row_gradients(parts, spec.rows)
      square += jnp.sum(jnp.square(merged.grads))
      moved[name] = merged.ids
      arrays[name], slots[name] = self.optimizer(name).update(
        arrays[name],
        slots[name],
        *merged,
        row_settings.rate_of(name, learning_rate),
        step=step,
        row_numbers=init_lib.row_numbers(name, merged.ids),
      )
    return lookup.Pushed(arrays, slots, square, moved)

  def mark(self, marks, rows, step) -> dict[str, jax.Array]:
    """The marks after a step that has moved these rows, see `touched`."""
    del step
    return touched.mark(marks, rows)

  def overflow(self, routes) -> jax.Array:
    """Nothing is exchanged, so nothing overflows."""
    del routes
    return jnp.float32(0)


class Whole:
  """Weights on one device, as evaluations read them.

  The calls are those of `train.spread.OnMesh`, which explains them.

  Attributes:
    pooling: feature -> 'rows' or 'sums', as in `LocalTables`.
    towers: as in `LocalTables`.
    maps: table -> an id map of the caller's own, in place of the table's.
  """

  eval_shards, own_eval = 1, None
  pooling: Mapping[str, str] = {}
  towers: Towers | None = None
  maps: Mapping[str, IdMap] = {}

  @classmethod
  def of(cls, extensions: Extensions | None) -> 'Whole':
    """Weights that were trained with something from outside the library."""
    runtime = cls()
    if extensions is not None:
      runtime.towers, runtime.maps = extensions.towers, extensions.id_maps
    return runtime

  def on_devices(self, batch):
    """A batch, as a function of `jit` takes it."""
    return batch

  def jit(self, function, inputs, output=None):
    """Compiles `function(weights, ...)`."""
    del inputs, output
    return jax.jit(function)

  def rows(self, task, weights, reads: Mapping[str, Read]):
    """(parameters, views of the reads), for use in such a function."""
    tables = weights['tables']
    id_map = id_maps.of_task(task, self.maps)
    rows = id_map.lookup(weights['id_states'], reads)
    views = lookup.view_tables(tables, reads, rows)
    sums = {}
    for name, read in reads.items():
      under = self.towers is not None and name in self.towers
      if read.pooling != 'none' and (under or self.pooling.get(name) == 'sums'):
        mapped = dataclasses.replace(read, ids=rows.get(name, read.ids))
        sums[name] = lookup.pool_table(tables[read.table], mapped)
    if self.towers is not None:
      sums = towers_lib.apply_on_one_device(
        self.towers, weights['modules'], sums
      )
    views.update({n: lookup.SumView(x, reads[n]) for n, x in sums.items()})
    return weights['params'], views
