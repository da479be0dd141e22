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
import numbers
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
  single_scheme,
)
from genrec_jax.embedding.embedding_state import (
  EmbeddingState,
  check_state,
  put_table,
)
from genrec_jax.embedding.embedding_table import (
  EmbeddingTable,
  check_tables,
  is_number,
)
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.lookup_requests import Lookup
from genrec_jax.embedding.plan import POOLINGS as WAYS
from genrec_jax.embedding.sharded_tables import ShardedRoutes, ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib

_SPLIT, _ALIKE = PartitionSpec(mesh_lib.AXES), PartitionSpec()


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
      ValueError: a setting that cannot be, with its name and value.
    """
    check_tables(tables)
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
      self._tables.optimizer(name)  # refuses an object that is none
    arrays = self._tables.layout.shapes()
    slots = jax.eval_shape(self._tables.init_slots, arrays)
    self._specs = EmbeddingState(
      _ALIKE,
      self._tables.partition(arrays),
      self._tables.partition(slots),
      {self._tables.layout.name: _ALIKE},
    )

  @property
  def batch_sharding(self) -> NamedSharding:
    """How ids, and all else with an example a row, lie best on the mesh.

    Results are the same without it; a step is spared the way from the first
    device to the others.

    >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
    >>> batch = {'item': np.arange(8), 'label': np.ones(8, np.float32)}
    >>> batch = jax.device_put(batch, emb.batch_sharding)
    >>> batch['item'].sharding == emb.batch_sharding
    True

    Returns:
      A sharding of the first axis over all devices.
    """
    return mesh_lib.batch_sharding(self.mesh)

  @property
  def state_sharding(self) -> EmbeddingState:
    """How the state lies on the mesh.

    A state that was read back from files goes onto the mesh with it:

    >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
    >>> state = emb.init(jax.random.key(0))
    >>> saved = jax.tree.map(np.array, state)  # as a file holds it
    >>> restored = jax.device_put(saved, emb.state_sharding)
    >>> bool((emb.table(restored, 'item') == emb.table(state, 'item')).all())
    True

    Returns:
      A state with a sharding in place of each array.
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

    >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
    >>> state = emb.init(jax.random.key(0), {'item': np.ones((100, 4))})
    >>> int(state.step), float(emb.table(state, 'item').mean())
    (0, 1.0)

    Args:
      key: of the random rows.
      tables: name -> `[rows, width]`, for tables that begin with values that
        are there already.

    Returns:
      The tables, fresh slots of their row optimizers and step 0.

    Raises:
      ValueError: `tables` has a name or a shape that is not among those of
        this object.
    """
    arrays = self._map(self._tables.init, _ALIKE, self._specs.arrays)(key)
    if not isinstance(tables, Mapping | None):
      raise ValueError(
        f'tables is a {type(tables).__name__}, must be a mapping of names to '
        'arrays'
      )
    if tables:
      arrays = {name: np.array(x) for name, x in arrays.items()}
      for name, table in tables.items():
        self._check_table(name)
        put_table(self._tables.layout, arrays, name, table)
      arrays = jax.device_put(arrays, self.state_sharding.arrays)
    slots = self._map(
      self._tables.init_slots, (self._specs.arrays,), self._specs.slots
    )(arrays)
    marks = {self._tables.layout.name: jnp.int32(0)}
    state = EmbeddingState(jnp.int32(0), arrays, slots, marks)
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
      id that is not a row of its table gives NaN.

    Raises:
      ValueError: a state that was given away, a table that is not there, or
        ids whose type or shape cannot be; the message names the feature.
    """
    check_state(state, self._tables.layout)
    return self._mapped_lookup(state.arrays, self._check_lookups(ids))

  def value_and_grad(self, loss: Callable, *, has_aux: bool = False):
    """`jax.value_and_grad` for a loss that reads rows, whose rows it moves.

    >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
    >>> step = jax.jit(
    ...   emb.value_and_grad(lambda rows, w: jnp.sum(rows['item'] @ w))
    ... )
    >>> state, ids = emb.init(jax.random.key(0)), {'item': np.arange(8)}
    >>> (value, grads), state = step(state, ids, jnp.ones(4))
    >>> value.shape, grads.shape, int(state.step)
    ((), (4,), 1)

    Args:
      loss: `(rows, params, *more) -> value`, of the whole batch. `rows` are
        those that `lookup` returns.
      has_aux: whether `loss` returns (value, something else).

    Returns:
      A function `(state, ids, params, *more) -> ((value, grads), state)`, where
      `ids` is as in `lookup`, `grads` are those of `params`, and the new state
      holds the rows after the step of their optimizers. Call it inside a
      function that is jitted. It raises the errors of `lookup`.
    """
    differentiate = jax.value_and_grad(loss, argnums=(0, 1), has_aux=has_aux)

    def run_step(state: EmbeddingState, ids: Mapping[str, Any], params, *more):
      check_state(state, self._tables.layout)
      lookups = self._check_lookups(ids)
      rows, routes = self._mapped_read(state.arrays, lookups)
      value, (row_grads, grads) = differentiate(rows, params, *more)
      state = self._mapped_learn(state, lookups, routes, row_grads)
      return (value, grads), state

    return run_step

  def table(self, state: EmbeddingState, name: str) -> np.ndarray:
    """A whole table in the memory of the host.

    >>> emb = ShardedEmbedding({'item': EmbeddingTable(rows=100, width=4)})
    >>> emb.table(emb.init(jax.random.key(0)), 'item').shape
    (100, 4)

    Args:
      state: from `init` or a step.
      name: of the table.

    Returns:
      `[rows, width]`, row r for id r, wherever it lies.

    Raises:
      ValueError: there is no such table, or the state was given away.
    """
    self._check_table(name)
    check_state(state, self._tables.layout)
    layout = self._tables.layout
    stacks = {piece.stack for piece in layout.pieces.get(name, ())} or {name}
    arrays = {stack: np.asarray(state.arrays[stack]) for stack in stacks}
    return np.asarray(relayout.gather_table(layout, arrays, name))

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
    return self._map(self._update_state, inputs, self._specs)

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
    if name not in tuple(self.tables):  # whatever it is: not all have a hash
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
    if not isinstance(ids, Mapping) or not ids:
      what = 'empty' if isinstance(ids, Mapping) else f'a {type(ids).__name__}'
      raise ValueError(f'ids is {what}; give {{feature: ids}}')
    lookups = {}
    for feature, request in ids.items():
      if not isinstance(request, Lookup):
        request = Lookup(request)
      request = dataclasses.replace(request, table=request.table or feature)
      self._check_table(request.table, f'feature {feature!r}: ')
      lookups[feature] = lookup_requests.convert_lookup(
        feature, request, mesh_lib.count_shards(self.mesh)
      )
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
    rows = _view_rows(tables, routes, reads, tables.fetch(arrays, routes))
    return rows, jax.tree.map(lambda x: jnp.asarray(x)[None], routes)

  def _update_state(
    self, state: EmbeddingState, lookups, routes: ShardedRoutes, row_grads
  ):
    """The state after a step."""
    tables, reads = self._tables_for(lookups), lookup_requests.reads_of(lookups)
    routes = jax.tree.map(lambda x: x[0], routes)
    # From gradients of what the loss saw to those of the distinct rows that
    # were fetched. The way there is linear: no value is needed to go back.
    fetched = jax.eval_shape(lambda: tables.fetch(state.arrays, routes))
    back = jax.linear_transpose(
      lambda x: _view_rows(tables, routes, reads, x), fetched
    )
    (grads,) = back(row_grads)
    pushed = tables.push(
      state.arrays,
      state.slots,
      routes,
      grads,
      self._find_rates(state.step),
      state.step,
    )
    return EmbeddingState(
      state.step + 1, pushed.arrays, pushed.slots, state.layout
    )

  def _find_rates(self, step: jax.Array) -> dict[str, Any]:
    """Table -> its rate at a step; equal numbers are one object."""
    values, rates = {}, {}
    for name, table in self.tables.items():
      rate = table.rate
      key = id(rate) if callable(rate) else rate  # not all have a hash
      if key not in values:
        values[key] = rate(step) if callable(rate) else rate
      if shape := np.shape(values[key]):
        raise ValueError(
          f'the rate of table {name!r} has the shape {shape}, must be a number'
        )
      rates[name] = values[key]
    return rates


def _of_hosts(mesh: Mesh | None, hosts: int) -> Mesh:
  """A mesh with the axes of the library over the same devices."""
  if not is_number(hosts, numbers.Integral):
    raise ValueError(f'hosts is {hosts!r}, must be a whole number')
  if mesh is None:
    return mesh_lib.make_mesh(1, hosts)
  if not isinstance(mesh, Mesh):
    raise ValueError(
      f'mesh is {mesh!r}, must be a jax.sharding.Mesh, or None for all devices'
    )
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


def _view_rows(
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
