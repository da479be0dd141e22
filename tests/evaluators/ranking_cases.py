"""A small ranking task whose scores plain NumPy can say, and its examples."""

import jax
import numpy as np

from genrec_jax.data import devices
from genrec_jax.data.ranking import store
from genrec_jax.data.ranking.rows import Bags, ColumnNames, Rows
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.features import FeatureSpec, Read
from genrec_jax.parallel import mesh as mesh_lib
from tests import ranking_examples

ROWS = 11  # of each table
FEATURES = (
  FeatureSpec('user', rows=ROWS),
  FeatureSpec('age', kind='numeric'),
  FeatureSpec('item', rows=ROWS),
  FeatureSpec('tags', kind='multi_hot', rows=ROWS, max_len=4),
  FeatureSpec('price', kind='numeric'),
)


class Linear:
  """Sums the weights of all that an example has.

  Attributes:
    traced: how often the function was compiled for another shape.
  """

  features = FEATURES

  def tables(self):
    return {}

  def __init__(self, labels=('label',)):
    self.labels, self.traced = labels, 0

  def reads_for(self, purpose, batch):
    del purpose
    bag = batch.jagged['tags']
    return {
      'user': Read(batch.ids['user'], 'user'),
      'item': Read(batch.ids['item'], 'item'),
      'tags': Read(bag['tags'], 'tags', bag.lengths, pooling='sum'),
    }

  def predict(self, params, rows, batch, key=None):
    del key
    self.traced += 1
    return (
      rows['user'].all()
      + rows['item'].all()
      + rows['tags'].all()
      + batch.dense.values @ params['numbers']
    )


class State:
  """Weights of it, eighths, so that sums are exact in any order."""

  def __init__(self, labels=1, seed=0):
    rng = np.random.default_rng(seed)

    def eighths(*shape):
      return jax.numpy.array(rng.integers(-8, 9, shape) / 8, 'float32')

    self.params = {'numbers': eighths(2, labels)}
    names = ('user', 'item', 'tags')
    self.tables = {n: eighths(ROWS, labels) for n in names}
    self.id_states, self.modules = {}, {}


def examples(count=203, labels=1, grouped=True, seed=0) -> Rows:
  """Some examples, with numbers that are quarters."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, 5, count).astype(np.int32)
  return Rows(
    labels=rng.integers(0, 2, (count, labels)).astype(np.uint8),
    ids=rng.integers(0, ROWS, (count, 2)).astype(np.int32),
    numbers=(rng.integers(-4, 5, (count, 2)) / 4).astype(np.float32),
    group=rng.integers(0, 9, count).astype(np.int32) if grouped else None,
    bags={
      'tags': Bags(
        rng.integers(0, ROWS, lengths.sum()).astype(np.int32), lengths
      )
    },
  )


def part_of(rows: Rows) -> store.SplitStore:
  labels = ('label',) if rows.labels.shape[1] == 1 else ('click', 'buy')
  names = ColumnNames(labels, ids=('user', 'item'), numbers=('age', 'price'))
  return ranking_examples.hold_in_memory('test', rows, names, block_rows=64)


def logits_of(state: State, rows: Rows) -> np.ndarray:
  """`[N, L]`, one example after the other."""
  tables = {n: np.asarray(t) for n, t in state.tables.items()}
  found, begin = [], 0
  for ids, numbers, length in zip(
    rows.ids, rows.numbers, rows.bags['tags'].lengths, strict=True
  ):
    tags = rows.bags['tags'].values[begin : begin + length]
    begin += length
    found.append(
      tables['user'][ids[0]]
      + tables['item'][ids[1]]
      + tables['tags'][tags].sum(axis=0)
      + numbers @ np.asarray(state.params['numbers'])
    )
  return np.array(found)


class OnDevices(SingleDeviceEvalRuntime):
  """Batches cut over 4 devices, the weights on each."""

  def __init__(self):
    self._mesh = mesh_lib.make_mesh(1, 2, 2)
    self.eval_shards, self.local_eval_shards = 4, range(4)

  def put_on_devices(self, batch):
    return devices.to_global(batch, self._mesh)

  def jit(self, function, inputs, output='split'):
    split = jax.sharding.PartitionSpec(mesh_lib.AXES)
    alike = jax.sharding.PartitionSpec()
    kinds = {'split': split, 'alike': alike}
    return jax.jit(
      jax.shard_map(
        function,
        mesh=self._mesh,
        in_specs=(alike, *(kinds[x] for x in inputs)),
        out_specs=kinds[output],
        check_vma=False,
      )
    )
