"""A toy job over tables, run whole on one device or in shards on a mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from genrec_jax.embedding import dirty_rows, lookup, relayout
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.embedding.plan import ShardingPlan, TablePlan
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib

ROWS, DIM = 53, 8
BATCH, PER_EXAMPLE = 16, 9  # bags; most ids of a bag
PLACES = {
  'data_parallel': lambda p: (),
  'row_wise': lambda p: (),
  'table_wise': lambda p: (p.group_size - 1,),
  'column_wise': lambda p: (p.group_size - 1, 0),
  'table_column_wise': lambda p: (
    (p.group_size - 1, p.group_size - p.devices)
    if p.devices > 1
    else (p.group_size - 1,) * 2
  ),
  'table_row_wise': lambda p: (p.hosts - 1,),
  'grid': lambda p: (p.hosts - 1, 0),
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Job:
  """What one step reads and the gradients of what it read; shards first."""

  ids: np.ndarray  # [W, n] wanted one by one
  weights_of_rows: np.ndarray  # [W, n, D] gradient of each
  bag_ids: np.ndarray  # [W, K]
  bag_lengths: np.ndarray  # [W, b]
  bag_weights: np.ndarray  # [W, K]
  weights_of_bags: np.ndarray  # [W, b, D] gradient of each sum


def job(shards: int, *, seed: int = 0, rows: int = ROWS, dim: int = DIM) -> Job:
  """Ids with duplicates, skew, empty bags and padding; the same for any W."""
  rng = np.random.default_rng(seed)
  skewed = np.minimum(rng.geometric(0.08, (BATCH, 4)) - 1, rows - 1)
  lengths = rng.integers(0, PER_EXAMPLE + 1, BATCH)
  lengths[:4] = 0
  bags = rng.integers(0, rows, (BATCH, PER_EXAMPLE))
  bags[:, 0] = 7
  factors = rng.normal(size=(BATCH, PER_EXAMPLE))
  each = BATCH // shards
  packed, packed_factors = [], []
  for shard in range(shards):
    mine = range(shard * each, (shard + 1) * each)
    ids = np.concatenate([bags[e, : lengths[e]] for e in mine])
    own = np.concatenate([factors[e, : lengths[e]] for e in mine])
    spare = each * PER_EXAMPLE - len(ids)
    packed.append(np.pad(ids, (0, spare), constant_values=10**6))
    packed_factors.append(np.pad(own, (0, spare)))
  of_rows = rng.normal(size=(BATCH, 4, dim))
  of_bags = rng.normal(size=(BATCH, dim))
  f32 = np.float32
  return Job(
    skewed.reshape(shards, -1).astype(np.int32),
    of_rows.reshape(shards, -1, dim).astype(f32),
    np.stack(packed).astype(np.int32),
    lengths.reshape(shards, -1).astype(np.int32),
    np.stack(packed_factors).astype(f32),
    of_bags.reshape(shards, -1, dim).astype(f32),
  )


def step(tables, arrays, slots, part: Job, number, *, mode, weighted, reads):
  """Reads and writes once; `part` is one shard, or the whole job as one."""
  own = {'r': Read(part.ids, 't')} if 'rows' in reads else {}
  if 'bags' in reads:
    own['f'] = Read(
      part.bag_ids,
      't',
      part.bag_lengths,
      part.bag_weights if weighted else None,
      mode,
    )
  tables = dataclasses.replace(tables, pooling={'f': 'sums'})
  routes = tables.route(jax.tree.map(lambda x: x[None], own))
  fetched = tables.fetch(arrays, routes)

  def views(fetched):
    rows, sums, *_ = fetched  # on a mesh also what is under towers
    seen = dict(sums)
    if 'r' in own:
      view = lookup.RowView(rows['t'], routes.index['r'][0], own['r'])
      seen['rows'] = view.all()
    return seen

  def loss(fetched):
    seen, total = views(fetched), jnp.float32(0)
    if 'rows' in seen:
      total += jnp.sum(seen['rows'] * part.weights_of_rows)
    if 'f' in seen:
      total += jnp.sum(seen['f'] * part.weights_of_bags)
    return total

  grads = jax.grad(loss)(fetched)
  seen = views(fetched)
  if 'f' in seen:
    seen['bags'] = seen.pop('f')
  marks = dirty_rows.init_dirty_rows(arrays)
  pushed = tables.push(arrays, slots, routes, grads, 0.1, number, marks)
  (seen['touched'],) = pushed.dirty_rows.values()
  return pushed.arrays, pushed.slots, seen, pushed.square


def run_whole(spec: TableSpec, key, steps=2, extra_optimizers=None, **options):
  """(what the steps saw, the table after them) on one device."""
  extra = extra_optimizers or {}
  tables = LocalTables({'t': spec}, extra_optimizers=extra)
  arrays = tables.init(key)
  slots = tables.init_slots(arrays)
  fn = jax.jit(lambda a, s, p, n: step(tables, a, s, p, n, **options))
  seen = []
  for number in range(steps):
    one = job(1, seed=number, rows=spec.rows, dim=spec.dim)
    part = jax.tree.map(lambda x: x[0], one)
    arrays, slots, found, square = fn(arrays, slots, part, jnp.int32(number))
    seen.append(jax.tree.map(np.asarray, found) | {'square': float(square)})
  return seen, np.asarray(arrays['t'])


def run_sharded(
  spec: TableSpec,
  key,
  scheme: str,
  *,
  hosts=2,
  devices=4,
  replicas=1,
  split='mod',
  exchange=Exchange(),
  steps=2,
  sync_every=1,
  outside=None,
  extra_optimizers=None,
  **options,
):
  """The same on a mesh; the table is put together again.

  `outside` is the scheme itself where the library does not know its name.
  """
  plan = ShardingPlan({}, hosts, devices, replicas)
  table = TablePlan(
    spec.rows,
    spec.dim,
    scheme,
    outside.place(0, spec, hosts, devices) if outside else PLACES[scheme](plan),
    split,
    spec.dtype,
    spec.update,
    outside,
  )
  plan = dataclasses.replace(plan, tables={'t': table})
  tables = ShardedTables(
    lay_out(plan), {'t': spec}, exchange, sync_every,
    extra_optimizers=extra_optimizers or {},
  )  # fmt: skip
  mesh = mesh_lib.make_mesh(replicas, hosts, devices)
  split_spec = PartitionSpec(mesh_lib.AXES)
  arrays_like = tables.layout.shapes()
  specs = tables.partition(arrays_like)
  slots_like = jax.eval_shape(tables.init_slots, arrays_like)
  slot_specs = tables.partition(slots_like)

  def mapped(fn, in_specs, out_specs):
    return jax.jit(
      jax.shard_map(
        fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
      )
    )

  arrays = mapped(tables.init, PartitionSpec(), specs)(key)
  slots = mapped(tables.init_slots, (specs,), slot_specs)(arrays)

  def on_shard(arrays, slots, part, number):
    part = jax.tree.map(lambda x: x[0], part)
    return step(tables, arrays, slots, part, number, **options)

  fn = mapped(
    on_shard,
    (specs, slot_specs, split_spec, PartitionSpec()),
    (specs, slot_specs, split_spec, PartitionSpec()),
  )
  shards, seen = hosts * devices * replicas, []
  for number in range(steps):
    part = job(shards, seed=number, rows=spec.rows, dim=spec.dim)
    arrays, slots, found, square = fn(arrays, slots, part, jnp.int32(number))
    found = jax.tree.map(np.asarray, found) | {'square': float(square)}
    seen.append(found)
  host = jax.tree.map(np.asarray, arrays)
  size = {n: len(a) // replicas for n, a in host.items()}
  first = {n: a[: size[n]] for n, a in host.items()}
  return seen, relayout.gather_table(tables.layout, first, 't')
