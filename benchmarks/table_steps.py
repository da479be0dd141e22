"""A step over the tables of a plan alone, as programs for a mesh.

What the loads of a planner say is read: ids and bags as many as they have, with
gradients that are made of what was read, or of what towers without parameters
make of it.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import hlo
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import ShardingPlan
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.embedding.towers import TowerDraws, Towers
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.planner import Load
from pallas_kernels import dispatch

SPLIT, SAME = PartitionSpec(mesh_lib.AXES), PartitionSpec()


@dataclasses.dataclass(frozen=True)
class TableStep:
  """A step over tables.

  Attributes:
    tables: under a plan.
    mesh: the devices.
    loads: what is read.
    batch: examples of a step on all devices.
  """

  tables: ShardedTables
  mesh: Mesh
  loads: tuple[Load, ...]
  batch: int

  @property
  def features(self) -> dict[str, tuple[Load, object, int, int]]:
    """Name -> table, feature, bags and ids of a device."""
    examples = self.batch // self.mesh.size
    found = {}
    for load in self.loads:
      for number, feature in enumerate(load.features):
        bags = round(examples * feature.poolings)
        ids = round(examples * feature.poolings * feature.length)
        name = feature.name or f'{load.name}/{number}'
        found[name] = load, feature, bags, ids
    return found

  def read(self, values) -> dict[str, Read]:
    """Feature -> its read, of one microbatch; `values` are of a device."""
    reads = {}
    for name, (load, feature, _, _) in self.features.items():
      ids, lengths, weights = values[name]
      read = Read(ids[None], load.name)
      if feature.pooled:
        weights = weights[None] if feature.weighted else None
        read = Read(ids[None], load.name, lengths[None], weights, 'sum')
      reads[name] = read
    return reads

  def shape_values(self) -> dict:
    """Shapes of ids, lengths and weights, of a device."""
    return {
      name: (
        jax.ShapeDtypeStruct((ids,), jnp.int32),
        jax.ShapeDtypeStruct((bags,), jnp.int32),
        jax.ShapeDtypeStruct((ids,), jnp.float32),
      )
      for name, (_, _, bags, ids) in self.features.items()
    }

  def draw_values(self, seed: int) -> dict:
    """Full bags of evenly drawn ids, for all devices."""
    rng = np.random.default_rng(seed)
    count, values = self.mesh.size, {}
    for name, (load, _, bags, ids) in self.features.items():
      drawn = rng.integers(0, load.rows, count * ids, np.int32)
      lengths = np.full(count * bags, ids // max(1, bags), np.int32)
      values[name] = drawn, lengths, np.ones(count * ids, np.float32)
    return jax.tree.map(lambda x: self._put(x, SPLIT), values)

  def _shapes(self):
    arrays = self.tables.layout.shapes()
    return arrays, jax.eval_shape(self.tables.init_slots, arrays)

  def init_state(self):
    """Arrays of ones, and slots, for all devices."""
    return jax.tree.map(
      lambda x: jax.make_array_from_callback(
        x.shape,
        x.sharding,
        lambda at: np.ones(
          [len(range(n)[i]) for n, i in zip(x.shape, at)], x.dtype
        ),
      ),
      self._whole_state(),
    )

  def _put(self, x: np.ndarray, spec: PartitionSpec) -> jax.Array:
    """An array of all devices, of which a process makes its part."""
    sharding = NamedSharding(self.mesh, spec)
    return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])

  def _specs(self):
    return tuple(self.tables.partition(x) for x in self._shapes())

  def _whole_state(self):
    """Shapes of what all devices together hold."""
    return jax.tree.map(self._widen, self._shapes(), self._specs())

  def _widen(self, x, spec):
    held = 1 if spec == SAME or not x.ndim else self.mesh.size
    shape = (held * x.shape[0], *x.shape[1:]) if x.ndim else ()
    sharding = NamedSharding(self.mesh, spec)
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

  def _step(self, arrays, slots, values, number):
    routes = self.tables.route(self.read(values))
    fetched = self.tables.fetch(arrays, routes)
    if self.tables.towers is None:
      grads = jax.tree.map(lambda x: 0.5 * x + 1, fetched)
    else:
      grads = self._pass_towers(fetched, routes)
    pushed = self.tables.push(arrays, slots, routes, grads, 0.1, number)
    return pushed.arrays, pushed.slots, pushed.square

  def _pass_towers(self, fetched, routes):
    """Gradients of what was fetched, by way of what towers make of it."""
    draws = None
    if self.tables.towers.draws:
      examples = self.batch // self.mesh.size
      draws = TowerDraws(jax.random.key(0), jnp.arange(examples))
    made, back = jax.vjp(
      lambda x: self.tables.finish({}, x, routes, draws), fetched
    )
    (grads,) = back(jax.tree.map(lambda x: 0.5 * x + 1, made))
    return grads

  def jit(self):
    """`(arrays, slots, values, number) -> (arrays, slots, square)`."""
    specs = self._specs()
    mapped = jax.shard_map(
      self._step,
      mesh=self.mesh,
      in_specs=(*specs, SPLIT, SAME),
      out_specs=(*specs, SAME),
      check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=(0, 1))

  def compile(self, target: str = 'cpu', options=None):
    """The step, compiled for the devices of the mesh."""
    kind = self.mesh.devices.flat[0].device_kind
    with (
      dispatch.compiling_for(target, kind),
      jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh),
    ):
      number = jax.ShapeDtypeStruct((), jnp.int32)
      traced = self.jit().trace(
        *self._whole_state(),
        jax.tree.map(lambda x: self._widen(x, SPLIT), self.shape_values()),
        self._widen(number, SAME),
      )
      lowered = traced.lower(lowering_platforms=(target,))
    return lowered.compile(options)


def make_step(
  plan: ShardingPlan,
  loads: Sequence[Load],
  batch: int,
  exchange: Exchange = Exchange(),
  devices=None,
  towers: Towers | None = None,
) -> TableStep:
  """The step of a plan.

  Args:
    plan: where rows lie, and how pooled features with names travel; those
      without one travel as sums.
    loads: the tables and the lookups into them.
    batch: examples of a step on all devices.
    exchange: how rows travel.
    devices: of the mesh; None: those that there are.
    towers: without parameters, for which the plan is made; None for none.
  """
  specs = {
    load.name: TableSpec(
      load.name,
      load.rows,
      load.dim,
      update=load.optimizer,
      dtype=load.dtype,
      codec=load.codec,
    )
    for load in loads
  }
  pooling = {
    f'{load.name}/{i}': 'sums'
    for load in loads
    for i, feature in enumerate(load.features)
    if feature.pooled and not feature.name
  }
  tables = ShardedTables(
    lay_out(plan),
    specs,
    exchange,
    pooling=pooling | dict(plan.pooling),
    towers=towers,
  )
  devices = jax.devices() if devices is None else devices
  chosen = devices[: plan.replicas * plan.group_size]
  mesh = mesh_lib.arrange(chosen, plan.replicas, plan.hosts, plan.devices)
  return TableStep(tables, mesh, tuple(loads), batch)


def sum_collectives(compiled, mesh: Mesh) -> dict[tuple[str, tuple], float]:
  """(collective, axes of the mesh) -> bytes that a device sends.

  What stands in loops and branches, such as further rounds, is left out.
  """
  found = {}
  for x in hlo.find_collectives(compiled):
    if x.computation != hlo.ENTRY:
      continue
    key = x.op, name_axes(x.groups, mesh)
    found[key] = found.get(key, 0.0) + hlo.sent_bytes(x)
  return found


def name_axes(groups, mesh: Mesh) -> tuple[str, ...]:
  """The axes along which the devices of each group differ."""
  at = np.array(np.unravel_index(groups[0], mesh.devices.shape))
  varies = (at != at[:, :1]).any(axis=1)
  return tuple(
    axis for axis, yes in zip(mesh.axis_names, varies, strict=True) if yes
  )
