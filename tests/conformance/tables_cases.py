"""Every implementer of `contracts.Tables`, and a step on it, call by call.

Another implementer is one more line of `SETTINGS`. A batch is read in three
ways: row by row, as bags whose rows travel, and as bags whose sums travel; what
is read is stated in NumPy, example by example.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import lookup, relayout, single_scheme
from genrec_jax.embedding.exchange import Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib

ROWS, DIM, EXAMPLES, ROOM = 37, 8, 32, 3
HOSTS, DEVICES = 2, 4
RATE = 0.1
KEY = jax.random.key(5)
POOLING = {'bags as rows': 'rows', 'bags as sums': 'sums'}
FEATURES = ('rows', *POOLING)
SPLIT = PartitionSpec(mesh_lib.AXES)


@dataclasses.dataclass(frozen=True)
class Setting:
  """An implementer and how it is used.

  Attributes:
    scheme: of the table on a mesh; None for one device.
    exchange: how rows travel there.
    microbatches: microbatches of a device.
  """

  scheme: str | None = None
  exchange: Exchange = Exchange()
  microbatches: int = 1


def move(kind: str) -> Exchange:
  """With room for a batch whose ids all lie on one device."""
  return Exchange(kind, capacity=float(HOSTS * DEVICES))


SETTINGS = {
  'local': Setting(),
  'local, microbatches': Setting(microbatches=4),
  'data_parallel': Setting('data_parallel', move('gather'), 4),
  'table_wise': Setting('table_wise', move('ragged')),
  'column_wise': Setting('column_wise', move('all_to_all')),
  'table_column_wise': Setting('table_column_wise', move('gather'), 4),
  'table_row_wise': Setting('table_row_wise', move('all_to_all'), 4),
  'grid': Setting('grid', move('ragged'), 4),
  'row_wise': Setting('row_wise', move('all_to_all')),
}
# All other combinations.
SLOW = {
  f'{scheme}, {kind}, {microbatches}': Setting(scheme, move(kind), microbatches)
  for scheme in single_scheme.SCHEMES
  for kind in ('gather', 'all_to_all', 'ragged')
  for microbatches in (1, 4)
  if Setting(scheme, move(kind), microbatches) not in SETTINGS.values()
}
# ---- The batch, and NumPy's statement of it ---------------------------------


@dataclasses.dataclass(frozen=True)
class Examples:
  """What is read, example by example, and the gradients of what was read.

  Attributes:
    ids: `[N, 2]` read row by row.
    bags: feature -> N lists of ids.
    factors: feature -> N lists of weights.
    slopes: feature -> gradient of what each example reads.
  """

  ids: np.ndarray
  bags: dict[str, list]
  factors: dict[str, list]
  slopes: dict[str, np.ndarray]

  @classmethod
  def draw(cls, seed: int = 0) -> 'Examples':
    rng = np.random.default_rng(seed)
    bags, factors = {}, {}
    slopes = {'rows': rng.normal(size=(EXAMPLES, 2, DIM)).astype(np.float32)}
    for feature in POOLING:
      lengths = rng.integers(0, ROOM + 1, EXAMPLES)
      lengths[:2] = 2, 0  # the first one has an id to spoil
      bags[feature] = [
        rng.integers(0, ROWS, n).astype(np.int32) for n in lengths
      ]
      factors[feature] = [
        rng.normal(size=n).astype(np.float32) for n in lengths
      ]
      slopes[feature] = rng.normal(size=(EXAMPLES, DIM)).astype(np.float32)
    # Skewed: most are the same few.
    ids = np.minimum(rng.geometric(0.1, (EXAMPLES, 2)) - 1, ROWS - 1)
    return cls(ids.astype(np.int32), bags, factors, slopes)

  def spoil(self, feature: str, wrong: int) -> 'Examples':
    """The same, with an id that is not a row in the first example."""
    ids, bags = self.ids.copy(), {f: list(x) for f, x in self.bags.items()}
    if feature == 'rows':
      ids[0, 0] = wrong
    else:
      bags[feature][0] = np.array([wrong, *bags[feature][0][1:]], np.int32)
    return dataclasses.replace(self, ids=ids, bags=bags)

  def reads(self, microbatches: int) -> dict[str, Read]:
    """`[parts, ...]` of each feature, bags packed part by part."""
    found = {'rows': Read(self.ids.reshape(microbatches, -1, 2), 't')}
    each = EXAMPLES // microbatches
    for feature in POOLING:

      def pack(lists, fill, feature=feature):
        packed = np.full((microbatches, each * ROOM), fill, lists[0].dtype)
        for part in range(microbatches):
          own = np.concatenate(lists[part * each : (part + 1) * each])
          packed[part, : len(own)] = own
        return packed

      lengths = [len(bag) for bag in self.bags[feature]]
      found[feature] = Read(
        pack(self.bags[feature], 10**6),  # padding may be no row
        't',
        np.int32(lengths).reshape(microbatches, each),
        pack(self.factors[feature], 0.0),
        'sum' if feature == 'bags as rows' else 'mean',
      )
    return found

  def state_values(self, table: np.ndarray) -> dict[str, np.ndarray]:
    """Feature -> what each example reads, one after the other."""
    found = {'rows': table[self.ids]}
    for feature in POOLING:
      sums = np.zeros((EXAMPLES, DIM))
      for i, bag in enumerate(self.bags[feature]):
        sums[i] = self.factors[feature][i] @ table[bag]
        if feature == 'bags as sums':
          sums[i] /= max(1, len(bag))
      found[feature] = sums
    return found

  def state_gradient(self) -> np.ndarray:
    """Of every row of the table."""
    gradient = np.zeros((ROWS, DIM))
    np.add.at(gradient, self.ids, self.slopes['rows'].astype(np.float64))
    for feature in POOLING:
      for i, bag in enumerate(self.bags[feature]):
        share = 1.0
        if feature == 'bags as sums':
          share = 1.0 / max(1, len(bag))
        for row, factor in zip(bag, self.factors[feature][i], strict=True):
          gradient[row] += share * factor * self.slopes[feature][i]
    return gradient

  def rows(self) -> set[int]:
    """All that are read."""
    bags = [bag for lists in self.bags.values() for bag in lists]
    return set(np.concatenate([self.ids.reshape(-1), *bags]).tolist())


# ---- An implementer at work -------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
  """What one step has read and left behind, on the host."""

  values: dict[str, np.ndarray]
  shapes: dict[str, tuple]
  before: np.ndarray
  after: np.ndarray
  square: float
  overflow: float
  marked: list[int]


def shapes_of(routes, fetched, microbatches: int) -> dict[str, tuple]:
  rows = fetched[0]['t']
  assert rows.dtype == jnp.float32
  shapes = {'fetched': rows.shape}
  for feature, index in routes.index.items():
    assert index.dtype == jnp.int32 and index.shape[0] == microbatches
    shapes[feature] = index.shape
  return shapes


class Program:
  """The calls of a step on some tables, compiled once."""

  def __init__(self, setting: Setting, update: str):
    spec = TableSpec('t', ROWS, DIM, 0.5, update)
    self._microbatches = setting.microbatches
    self.shapes: dict[str, Any] = {}
    if setting.scheme is None:
      self.tables = LocalTables({'t': spec}, pooling=POOLING)
      self.shards, mapped = 1, lambda f, *_: f
      specs = slot_specs = None
    else:
      plan = single_scheme.plan_with_scheme(
        {'t': spec}, setting.scheme, hosts=HOSTS, devices=DEVICES
      )
      self.tables = ShardedTables(
        lay_out(plan), {'t': spec}, setting.exchange, pooling=POOLING
      )
      self.shards, mesh = HOSTS * DEVICES, mesh_lib.make_mesh(1, HOSTS, DEVICES)
      like = self.tables.layout.shapes()
      specs = self.tables.partition(like)
      slots_like = jax.eval_shape(self.tables.init_slots, like)
      slot_specs = self.tables.partition(slots_like)

      def mapped(function, in_specs, out_specs):
        return jax.shard_map(
          function,
          mesh=mesh,
          in_specs=in_specs,
          out_specs=out_specs,
          check_vma=False,
        )

    alike = PartitionSpec()
    self._start = jax.jit(mapped(self._begin, (alike,), (specs, slot_specs)))
    # Routing is handed no array at all.
    self._route = jax.jit(mapped(self.tables.route, (SPLIT,), SPLIT))
    self._step = jax.jit(
      mapped(
        self._learn,
        (specs, slot_specs, SPLIT, SPLIT, SPLIT),
        (SPLIT, specs, slot_specs, alike, specs, alike),
      )
    )

  def _begin(self, key):
    arrays = self.tables.init(key)
    return arrays, self.tables.init_slots(arrays)

  def _learn(self, arrays, slots, routes, reads, slopes):
    tables = self.tables
    fetched = tables.fetch(arrays, routes)
    self.shapes = shapes_of(routes, fetched, self._microbatches)
    finished, back = jax.vjp(lambda x: tables.finish({}, x, routes), fetched)

    def look(finished):
      rows, sums = finished
      values = dict(sums)
      for feature in routes.index:
        each = []
        for p in range(self._microbatches):
          read = jax.tree.map(lambda x, p=p: x[p], reads[feature])
          index = routes.index[feature][p]
          each.append(lookup.RowView(rows['t'], index, read).all())
        values[feature] = jnp.concatenate(each)
      products = [jnp.sum(values[f] * slopes[f]) for f in FEATURES]
      return sum(products, jnp.float32(0)), values

    grads, values = jax.grad(look, has_aux=True)(finished)
    (grads,) = back(grads)
    marks = dirty_lib.init_dirty_rows(arrays)
    pushed = tables.push(
      arrays, slots, routes, grads, RATE, jnp.int32(0), marks
    )
    return (
      values,
      pushed.arrays,
      pushed.slots,
      pushed.square,
      pushed.dirty_rows,
      tables.overflow(routes),
    )

  def run(self, examples: Examples) -> Run:
    reads = examples.reads(self.shards * self._microbatches)
    arrays, slots = self._start(KEY)
    routes = self._route(reads)
    values, after, _, square, marks, overflow = self._step(
      arrays, slots, routes, reads, examples.slopes
    )
    return Run(
      jax.device_get(values),
      self.shapes,
      self._whole(arrays),
      self._whole(after),
      float(square),
      float(overflow),
      self._marked(jax.device_get(marks)),
    )

  def _whole(self, arrays) -> np.ndarray:
    arrays = jax.device_get(arrays)
    if self.shards == 1:
      return arrays['t']
    return relayout.gather_table(self.tables.layout, arrays, 't')

  def _marked(self, marks) -> list[int]:
    """Rows of the table with a mark on some device."""
    if self.shards == 1 or 't' in self.tables.layout.whole:
      return np.flatnonzero(marks['t']).tolist()
    found = set()
    for name, stack in self.tables.layout.stacks.items():
      at = [
        stack.identify(d, jnp.arange(stack.depth)) for d in range(stack.devices)
      ]
      number, ids = np.concatenate([np.asarray(x) for x in at], axis=1)
      found |= set(ids[(marks[name] > 0) & (number >= 0)].tolist())
      assert not np.any(marks[name][number < 0]), 'a spare place is marked'
    return sorted(found)


@functools.cache
def program_of(setting: Setting, update: str = 'row_adagrad') -> Program:
  return Program(setting, update)


@functools.cache
def run_of(setting: Setting, update: str = 'row_adagrad') -> Run:
  return program_of(setting, update).run(Examples.draw())
