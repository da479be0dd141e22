"""Tables laid out by a plan, of which every number is known."""

import pathlib

import jax
import numpy as np
from jax.sharding import NamedSharding

from genrec_jax.checkpoint import manifest, rows, snapshot
from genrec_jax.checkpoint.chunks import RowEncoding
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.parallel import mesh as mesh_lib
from tests.embedding.plans import PLANS, SPECS


def numbered(layout, added=0):
  """Arrays and slots, each element a function of table, row and column."""
  arrays, slots = {}, {}
  for name, stack in relayout.find_stacks(layout).items():
    every = np.arange(stack.depth, dtype=np.int32)
    found = [stack.identify(d, every) for d in range(stack.devices)]
    number, ids = np.concatenate(found, axis=1)
    first = np.array([p.first_column for p in stack.pieces])[number]
    table = np.array([list(SPECS).index(p.table) for p in stack.pieces])
    values = 1e5 * table[number][:, None] + 100.0 * ids[:, None] + added
    values = values + first[:, None] + np.arange(stack.columns)[None]
    real = number >= 0
    arrays[name] = np.where(real[:, None], values, 0).astype(np.float32)
    slots[name] = {'sum': np.where(real, ids + added, 0).astype(np.float32)}
  return arrays, slots


class Setting:
  """A layout, its arrays on a mesh, and how to save and load them."""

  def __init__(self, which, replicas=1):
    self.layout = lay_out(PLANS[which] if isinstance(which, str) else which)
    self.stacks = relayout.find_stacks(self.layout)
    self.tables = ShardedTables(self.layout, SPECS)
    p = self.layout.plan
    self.mesh = mesh_lib.make_mesh(replicas, p.hosts, p.devices)
    self.replicas = replicas
    self.host = numbered(self.layout)
    self.arrays, self.slots = self.put(self.host)

  def put(self, tree):
    arrays, slots = tree

    def onto(spec, x):
      copies = self.replicas if spec and x.ndim else 1
      x = np.concatenate([x] * copies) if copies > 1 else x
      return jax.device_put(x, NamedSharding(self.mesh, spec))

    return (
      jax.tree.map(onto, self.tables.partition(arrays), arrays),
      jax.tree.map(onto, self.tables.partition(slots), slots),
    )

  def dirty_rows(self, value):
    """Marks of all rows, or what a function makes of their number."""
    arrays, _ = self.host
    dirty_rows = {
      n: value(len(x)) if callable(value) else np.full(len(x), value)
      for n, x in arrays.items()
    }
    dirty_rows = {n: x.astype(np.uint8) for n, x in dirty_rows.items()}
    return self.put((dirty_rows, {}))[0]

  def like(self):
    def abstract(x):
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(abstract, (self.arrays, self.slots))

  def save(
    self, directory, step, kind='base', dirty_rows=None, parents=(), **more
  ):
    taken = snapshot.take_snapshot(
      self.stacks,
      self.arrays,
      self.slots,
      dirty_rows,
      dirty_lib.SINCE_BASE,
      chunk_rows=7,
      **more,
    )
    path = pathlib.Path(directory) / str(step) / 'rows'
    path.mkdir(parents=True)
    rows.write_chunks(path, taken.chunks, RowEncoding())
    about = {'kind': kind, 'parents': list(parents)}
    about['tables'] = rows.describe(self.stacks, self.slots)
    manifest.write(path.parent, step, rows=about)
    return manifest.read(path.parent)

  def load(self, directory, bodies, **more):
    return rows.load_rows(directory, bodies, self.stacks, *self.like(), **more)

  def assert_holds(self, found, tree=None):
    wanted = jax.tree.leaves(self.put(tree or self.host))
    found = jax.tree.leaves((found.arrays, found.slots))
    for x, y in zip(found, wanted, strict=True):
      assert x.sharding == y.sharding
      for one, other in zip(x.addressable_shards, y.addressable_shards):
        np.testing.assert_array_equal(one.data, other.data)
