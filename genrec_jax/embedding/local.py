"""Tables that one device holds: the same calls as `sharded.ShardedTables`."""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.embedding import init as init_lib
from genrec_jax.embedding import lookup, row_optimizers, touched
from genrec_jax.features import Bags, TableSpec
from pallas_kernels import MergedRows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routes:
  """What a batch reads: distinct ids of each table, and the pooled features."""

  ids: dict[str, jax.Array]
  bags: dict[str, Bags]


@dataclasses.dataclass(frozen=True)
class LocalTables:
  """Row-updated tables without a plan.

  Attributes:
    specs: table -> its spec.
    options: of the row optimizers, see `row_optimizers.RowOptimizer`.
    extra_optimizers: row optimizers from outside, by name.
  """

  specs: dict[str, TableSpec]
  options: dict = dataclasses.field(default_factory=dict)
  extra_optimizers: dict = dataclasses.field(default_factory=dict)

  def optimizer(self, name: str) -> row_optimizers.RowOptimizerLike:
    """That of a table."""
    return row_optimizers.by_name(
      self.specs[name].update, extra=self.extra_optimizers, **self.options
    )

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Every table, fresh."""
    return {n: init_lib.init_table(s, key) for n, s in self.specs.items()}

  def init_slots(self, arrays) -> dict[str, dict[str, jax.Array]]:
    """What the row optimizers remember of them, before the first step."""
    return {
      name: self.optimizer(name).init(array) for name, array in arrays.items()
    }

  def route(
    self,
    ids: dict[str, list[jax.Array]],
    bags: dict[str, Bags] | None = None,
    blocks: int = 1,
  ) -> Routes:
    """What a step reads (see `sharded.ShardedTables.route`)."""
    if blocks != 1:
      raise ValueError('rows in blocks are for sharded tables')
    distinct = {
      name: lookup.distinct(x, self.specs[name].rows) for name, x in ids.items()
    }
    return Routes(distinct, bags or {})

  def fetch(self, arrays, routes: Routes):
    """(table -> `[N, D]` values, feature -> `[B, D]`), float32."""
    values = {
      name: lookup.touch(arrays[name], ids).astype(jnp.float32)
      for name, ids in routes.ids.items()
    }
    pooled = {
      name: lookup.pool(arrays[bag.table], bag)
      for name, bag in routes.bags.items()
    }
    return values, pooled

  def push(self, arrays, slots, routes: Routes, grads, learning_rate, step):
    """Moves the rows; returns `lookup.Pushed`."""
    arrays, slots, moved = dict(arrays), dict(slots), {}
    of_rows, of_bags = grads
    square = jnp.float32(0)
    for name, spec in self.specs.items():
      parts = []
      if name in routes.ids:
        parts.append(MergedRows(routes.ids[name], of_rows[name]))
      for feature, bag in routes.bags.items():
        if bag.table == name:
          parts.append(
            pallas_kernels.bag_row_gradient(
              lookup.divided(of_bags[feature], bag),
              bag.ids,
              bag.lengths,
              spec.rows,
              weights=bag.weights,
            )
          )
      if not parts:
        continue
      merged = lookup.added(parts, spec.rows)
      square += jnp.sum(jnp.square(merged.grads))
      moved[name] = merged.ids
      arrays[name], slots[name] = self.optimizer(name).update(
        arrays[name],
        slots[name],
        *merged,
        learning_rate,
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
  """

  eval_shards, own_eval = 1, None

  def on_devices(self, batch):
    """A batch, as a function of `jit` takes it."""
    return batch

  def jit(self, function, inputs, output=None):
    """Compiles `function(weights, ...)`."""
    del inputs, output
    return jax.jit(function)

  def rows(self, weights, ids):
    """(parameters, views of the tables), for use in such a function."""
    del ids
    views = {n: lookup.DenseRows(t) for n, t in weights['tables'].items()}
    return weights['params'], views
