"""Embedding tables on a mesh for a model and an optimizer of somebody's own.

    emb = ShardedEmbedding({'item': EmbeddingTable(rows=10_000, width=64)})
    state = emb.init(jax.random.key(0))

    def loss(rows, params, batch):  # of the whole batch, on any mesh
      ...rows['item']...

    (value, grads), state = emb.value_and_grad(loss)(
      state, {'item': batch['items']}, params, batch
    )

The loss is written for the whole batch, as if there were one device. Around it
run the exchanges of `sharded.ShardedTables`, each inside `jax.shard_map`: ids
to the devices that hold their rows, rows back, and, when the gradients of the
rows are known, those to the holders, which move the rows by a row optimizer.
No gradient of the size of a table is ever made.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from genrec_jax.embedding import lookup as lookup_lib
from genrec_jax.embedding import (
  lookup_requests,
  relayout,
  row_optimizers,
  single_scheme,
)
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.lookup_requests import Lookup
from genrec_jax.embedding.plan import POOLINGS as WAYS
from genrec_jax.embedding.row_optimizers import RowOptimizerLike
from genrec_jax.embedding.sharded_tables import ShardedRoutes, ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib

Rate = float | Callable[[jax.Array], jax.Array]
_SPLIT, _ALIKE = PartitionSpec(mesh_lib.AXES), PartitionSpec()


@dataclasses.dataclass(frozen=True)
class EmbeddingTable:
  """One table of a `ShardedEmbedding`.

  >>> EmbeddingTable(rows=1000, width=16, optimizer='adam', rate=1e-3).dtype
  'float32'

  Attributes:
    rows: number of rows; ids are 0 .. rows - 1.
    width: numbers in a row.
    optimizer: name of a row optimizer (docs/kernels.md lists them), or an
      object with the methods of `row_optimizers.RowOptimizerLike`.
    rate: its learning rate, or a function of the step, such as an optax
      schedule.
    options: further settings of an optimizer that is given by name, such as
      `{'eps': 1e-6}`.
    dtype: of the rows, 'float32', 'bfloat16' or 'float16'. The latter two are
      rounded by chance, without bias, unless options say otherwise.
    init_std: deviation of the fresh rows, which are drawn from a normal
      distribution that is cut at two deviations.
    scheme: where the rows lie; '' for what the `ShardedEmbedding` says.
  """

  rows: int
  width: int
  optimizer: str | RowOptimizerLike = 'row_adagrad'
  rate: Rate = 0.05
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  dtype: str = 'float32'
  init_std: float = 0.02
  scheme: str = ''

  def __post_init__(self):
    for name in ('rows', 'width'):
      value = getattr(self, name)
      if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(
          f'{name} of an EmbeddingTable is {value!r}, must be a whole number '
          'of at least 1'
        )
    if self.options and not isinstance(self.optimizer, str):
      raise ValueError(
        'options are for an optimizer that is given by name; make '
        f'{type(self.optimizer).__name__} with them'
      )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EmbeddingState:
  """The tables and what their optimizers remember: a pytree of arrays.

  Attributes:
    step: int32, steps taken.
    arrays: the rows, as the mesh holds them; `ShardedEmbedding.table` puts one
      table together.
    slots: what the row optimizers keep beside each array.
  """

  step: jax.Array
  arrays: dict[str, jax.Array]
  slots: dict[str, dict[str, jax.Array]]


class ShardedEmbedding:
  """Tables over the devices of a mesh, moved row by row in a step of your own.

  A dense model with optax beside it, in one jitted step:

  >>> import optax
  >>> from flax import nnx
  >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
  >>> model, params = nnx.split(nnx.Linear(4, 1, rngs=nnx.Rngs(0)))
  >>> tx = optax.sgd(0.1)
  >>> state, opt_state = emb.init(jax.random.key(0)), tx.init(params)
  >>> def loss(rows, params, labels):
  ...   scores = nnx.merge(model, params)(rows['item'])[:, 0]
  ...   return jnp.mean(optax.sigmoid_binary_cross_entropy(scores, labels))
  >>> @jax.jit
  ... def step(state, params, opt_state, ids, labels):
  ...   (value, grads), state = emb.value_and_grad(loss)(
  ...     state, {'item': ids}, params, labels
  ...   )
  ...   updates, opt_state = tx.update(grads, opt_state, params)
  ...   return state, optax.apply_updates(params, updates), opt_state, value
  >>> ids, labels = np.arange(8), np.ones(8, np.float32)
  >>> state, params, opt_state, value = step(
  ...   state, params, opt_state, ids, labels
  ... )
  >>> emb.table(state, 'item').shape, round(float(value), 1)
  ((100, 4), 0.7)

  Attributes:
    tables: name -> table.
    mesh: the devices, along the axes 'rep', 'host' and 'dev'.
    plan: where the rows lie.
  """

  def __init__(
    self,
    tables: Mapping[str, EmbeddingTable],
    *,
    mesh: Mesh | None = None,
    hosts: int = 1,
    scheme: str = 'row_wise',
    pooled_as: str = 'sums',
    exchange: Exchange | None = None,
  ):
    """Lays the tables out; nothing is allocated yet.

    Args:
      tables: name -> table.
      mesh: whose devices hold the tables, in its order, whatever its axes are
        called (they must be of AxisType.Auto, which `jax.make_mesh` has to be
        told); None for all devices there are.
      hosts: how many hosts the devices are of, for schemes that look at it.
      scheme: where rows lie, for tables that do not say it themselves:
        'row_wise', 'table_wise', 'column_wise', 'data_parallel' and the others
        of docs/parallel.md.
      pooled_as: whether a pooled lookup brings the 'rows' to the examples, or
        the 'sums' that the holders of the rows make.
      exchange: how rows travel; None for the defaults of `Exchange`.

    Raises:
      ValueError: a setting that cannot be; the message says which.
    """
    if not tables:
      raise ValueError('tables is empty; name at least one EmbeddingTable')
    if pooled_as not in WAYS:
      raise ValueError(f'pooled_as is {pooled_as!r}, must be one of {WAYS}')
    self.tables = dict(tables)
    self.mesh = _of_hosts(mesh, hosts)
    own, specs = {}, {}
    for name, table in self.tables.items():
      update = table.optimizer
      if not isinstance(update, str):
        # One name each: two objects may have other settings.
        update = f'{type(table.optimizer).__name__} of {name}'
        own[update] = table.optimizer
      elif update not in row_optimizers.ROW_OPTIMIZERS:
        row_optimizers.find_optimizer(update)  # says what there is
      specs[name] = TableSpec(
        name,
        int(table.rows),
        int(table.width),
        init_std=table.init_std,
        update=update,
        dtype=table.dtype,
        options=tuple(sorted(table.options.items())),
        scheme=table.scheme,
      )
    shape = {
      'hosts': self.mesh.shape['host'],
      'devices': self.mesh.shape['dev'],
    }
    self.plan = single_scheme.plan_with_scheme(specs, scheme, **shape)
    self._pooled_as = pooled_as
    self._tables = ShardedTables(
      lay_out(self.plan),
      specs,
      exchange or Exchange(),
      options={'stochastic_rounding': True},
      extra_optimizers=own,
    )
    for name in specs:
      self._tables.optimizer(name)  # refuses options that it does not have
    arrays = self._tables.layout.shapes()
    slots = jax.eval_shape(self._tables.init_slots, arrays)
    self._specs = EmbeddingState(
      _ALIKE, self._tables.partition(arrays), self._tables.partition(slots)
    )

  @property
  def batch_sharding(self) -> NamedSharding:
    """Of ids and whatever else has an example in each row of its first axis.

    Not needed for correct results: `jax.device_put(batch, emb.batch_sharding)`
    spares a step the way from the first device to the others.
    """
    return mesh_lib.split(self.mesh)

  @property
  def state_sharding(self) -> EmbeddingState:
    """How the state lies on the mesh, a sharding for each array.

    A state that was read back from files goes onto the mesh by
    `jax.device_put(state, emb.state_sharding)`.
    """
    return jax.tree.map(
      lambda spec: NamedSharding(self.mesh, spec),
      self._specs,
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )

  def init(
    self,
    key: jax.Array,
    tables: Mapping[str, np.ndarray] | None = None,
  ) -> EmbeddingState:
    """The state before the first step.

    Every device makes its own rows; they are the same on any mesh.

    Args:
      key: of the random rows.
      tables: name -> `[rows, width]`, for tables that begin with values that
        are there already.
    """
    arrays = self._map(self._tables.init, _ALIKE, self._specs.arrays)(key)
    if tables:
      arrays = self._with_tables(arrays, tables)
    slots = self._map(
      self._tables.init_slots, (self._specs.arrays,), self._specs.slots
    )(arrays)
    state = EmbeddingState(jnp.int32(0), arrays, slots)
    return jax.device_put(state, self.state_sharding)

  def lookup(
    self, state: EmbeddingState, ids: Mapping[str, Any]
  ) -> dict[str, jax.Array]:
    """The rows of some ids, for predictions; nothing is trained.

    >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
    >>> state = emb.init(jax.random.key(0))
    >>> emb.lookup(state, {'item': np.zeros((8, 3), np.int32)})['item'].shape
    (8, 3, 4)

    Args:
      state: from `init` or a step.
      ids: feature -> `[B, ...]` ids of the table of that name, or a `Lookup`.
        B must be a multiple of the devices.

    Returns:
      Feature -> `[B, ..., D]` rows, or `[B, D]` of a pooled lookup, float32. An
      id that is no row of its table gives NaN.
    """
    return self._mapped_lookup(state.arrays, self._check_lookups(ids))

  def value_and_grad(self, loss: Callable, *, has_aux: bool = False):
    """`jax.value_and_grad` for a loss that reads rows, whose rows it moves.

    Args:
      loss: `(rows, params, *more) -> value`, of the whole batch. `rows` are
        those that `lookup` returns.
      has_aux: whether `loss` returns (value, something else).

    Returns:
      A function `(state, ids, params, *more) -> ((value, grads), state)`, where
      `ids` is as in `lookup`, `grads` are those of `params`, and the new state
      holds the rows after the step of their optimizers. Call it inside a
      function that is jitted.
    """
    differentiate = jax.value_and_grad(loss, argnums=(0, 1), has_aux=has_aux)

    def run(state: EmbeddingState, ids: Mapping[str, Any], params, *more):
      lookups = self._check_lookups(ids)
      rows, routes = self._mapped_read(state.arrays, lookups)
      value, (row_grads, grads) = differentiate(rows, params, *more)
      state = self._mapped_learn(state, lookups, routes, row_grads)
      return (value, grads), state

    return run

  def table(self, state: EmbeddingState, name: str) -> np.ndarray:
    """A whole table in the memory of the host, `[rows, width]`.

    Args:
      state: from `init` or a step.
      name: of the table.
    """
    self._check_table(name)
    layout = self._tables.layout
    stacks = {piece.stack for piece in layout.pieces.get(name, ())} or {name}
    arrays = {stack: np.asarray(state.arrays[stack]) for stack in stacks}
    return np.asarray(relayout.table(layout, arrays, name))

  # Compiled once each, also where nobody jits around them.

  @functools.cached_property
  def _mapped_lookup(self):
    return self._map(
      lambda arrays, lookups: self._read(arrays, lookups)[0],
      (self._specs.arrays, _SPLIT),
      _SPLIT,
    )

  @functools.cached_property
  def _mapped_read(self):
    split = (_SPLIT, _SPLIT)
    return self._map(self._read, (self._specs.arrays, _SPLIT), split)

  @functools.cached_property
  def _mapped_learn(self):
    inputs = (self._specs, _SPLIT, _SPLIT, _SPLIT)
    return self._map(self._learn, inputs, self._specs)

  def _map(self, function, in_specs, out_specs):
    return jax.jit(
      jax.shard_map(
        function,
        mesh=self.mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
      )
    )

  def _check_table(self, name: str, of: str = '') -> None:
    if name not in self.tables:
      raise ValueError(
        f'{of}there is no table {name!r}; the tables are '
        f'{", ".join(self.tables)}'
      )

  def _check_lookups(self, ids: Mapping[str, Any]) -> dict[str, Lookup]:
    """What is read, each with the name of its table; refuses what cannot be."""
    around = jax.sharding.get_abstract_mesh()
    if not around.empty and around != self.mesh.abstract_mesh:
      raise ValueError(
        f'jax.set_mesh is in force with {around}, another mesh than that of '
        'the tables; use jax.set_mesh(emb.mesh), or none'
      )
    if not ids:
      raise ValueError('ids is empty; give {feature: ids}')
    lookups = {}
    for feature, request in ids.items():
      if not isinstance(request, Lookup):
        request = Lookup(request)
      request = dataclasses.replace(
        request,
        table=request.table or feature,
        ids=lookup_requests.in_32_bits(request.ids),
      )
      request = jax.tree.map(jnp.asarray, request)
      self._check_table(request.table, f'feature {feature!r}: ')
      lookup_requests.check_lookup(feature, request, mesh_lib.shards(self.mesh))
      lookups[feature] = request
    return lookups

  # What follows runs inside `jax.shard_map`, on the part of one device.

  def _tables_for(self, lookups: Mapping[str, Lookup]) -> ShardedTables:
    pooled = [n for n, x in lookups.items() if x.pooling != 'none']
    return dataclasses.replace(
      self._tables, pooling=dict.fromkeys(pooled, self._pooled_as)
    )

  def _read(self, arrays, lookups: dict[str, Lookup]):
    """(rows of the lookups, routes with an axis for the devices in front)."""
    tables, reads = self._tables_for(lookups), lookup_requests.reads_of(lookups)
    routes = tables.route(jax.tree.map(lambda x: x[None], reads))
    rows = _view(tables, routes, reads, tables.fetch(arrays, routes))
    return rows, jax.tree.map(lambda x: jnp.asarray(x)[None], routes)

  def _learn(
    self, state: EmbeddingState, lookups, routes: ShardedRoutes, row_grads
  ):
    """The state after a step."""
    tables, reads = self._tables_for(lookups), lookup_requests.reads_of(lookups)
    routes = jax.tree.map(lambda x: x[0], routes)
    # From gradients of what the loss saw to those of the distinct rows that
    # were fetched. The way there is linear: no value is needed to go back.
    fetched = jax.eval_shape(lambda: tables.fetch(state.arrays, routes))
    back = jax.linear_transpose(
      lambda x: _view(tables, routes, reads, x), fetched
    )
    (grads,) = back(row_grads)
    pushed = tables.push(
      state.arrays,
      state.slots,
      routes,
      grads,
      self._rates(state.step),
      state.step,
    )
    return EmbeddingState(state.step + 1, pushed.arrays, pushed.slots)

  def _rates(self, step: jax.Array) -> dict[str, Any]:
    """Table -> its rate at a step; equal numbers are one object."""
    values = {}
    for table in self.tables.values():
      rate = table.rate
      if rate not in values:
        values[rate] = rate(step) if callable(rate) else rate
    return {name: values[table.rate] for name, table in self.tables.items()}

  def _with_tables(self, arrays, tables: Mapping[str, np.ndarray]):
    """The arrays with whole tables laid into them."""
    layout = self._tables.layout
    arrays = {name: np.array(x) for name, x in arrays.items()}
    for name, table in tables.items():
      self._check_table(name)
      own = self.tables[name]
      if np.shape(table) != (own.rows, own.width):
        raise ValueError(
          f'table {name!r} is given as {np.shape(table)}, must be (rows, '
          f'width) = {(own.rows, own.width)}'
        )
      table = np.asarray(table)
      if name in layout.whole:
        arrays[name][:] = table.astype(arrays[name].dtype)
        continue
      ids = np.arange(own.rows, dtype=np.int32)
      for piece in layout.pieces[name]:
        array = arrays[piece.stack]
        at = layout.stacks[piece.stack].address(piece, ids)
        end = piece.first_column + piece.columns
        array[at] = table[:, piece.first_column : end].astype(array.dtype)
    return jax.device_put(arrays, self.state_sharding.arrays)


def _of_hosts(mesh: Mesh | None, hosts: int) -> Mesh:
  """A mesh with the axes of the library over the same devices."""
  if mesh is None:
    return mesh_lib.make(1, hosts)
  if any(kind != AxisType.Auto for kind in mesh.axis_types):
    raise ValueError(
      f'the mesh has axes of the types {mesh.axis_types}, must have AxisType.'
      'Auto alone: make it with jax.make_mesh(..., axis_types=(jax.sharding.'
      f'AxisType.Auto,) * {len(mesh.axis_types)})'
    )
  devices = mesh.devices.reshape(-1)
  if hosts < 1 or devices.size % hosts:
    raise ValueError(
      f'hosts is {hosts}, must divide the {devices.size} devices of the mesh'
    )
  return Mesh(
    devices.reshape(1, hosts, -1),
    mesh_lib.AXES,
    axis_types=(AxisType.Auto,) * len(mesh_lib.AXES),
  )


def _view(
  tables: ShardedTables,
  routes: ShardedRoutes,
  reads: Mapping[str, Read],
  fetched,
) -> dict[str, jax.Array]:
  """What the loss sees of what was fetched."""
  of_tables, of_bags = tables.finish({}, fetched, routes)
  rows = {}
  for feature, read in reads.items():
    if feature in of_bags:
      rows[feature] = of_bags[feature]
    else:
      index = routes.index[feature][0]
      view = lookup_lib.RowView(of_tables[read.table], index, read)
      rows[feature] = view.all()
  return rows
