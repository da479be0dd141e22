"""Replica groups that meet now and then: a save restores the first of them."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from genrec_jax.checkpoint import delta, policy
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import ShardingPlan, TablePlan
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from tests.marks import slow

pytestmark = pytest.mark.usefixtures('no_power_cut')

DEVICES, STEPS = 2, 9
SHAPES = {'cut': (29, 4, 'row_wise'), 'whole': (7, 2, 'data_parallel')}
STEP = {'step': jax.ShapeDtypeStruct((), jnp.int32)}
# Rows also move without a gradient, and are rounded by chance.
OPTIONS = {
  'adam': {'decay': 'l2', 'weight_decay': 0.1},
  'momentum': {'max_norm': 1.0},
  'row_sgd': {'stochastic_rounding': True},
}
COMBINATIONS = list(
  itertools.product(policy.POLICIES, (1, 2, 3, 4), (1, 2, 3), (2, 3))
)


@dataclasses.dataclass
class State:
  """What steps move; dirty rows belong to it as in a run."""

  arrays: dict
  slots: dict
  dirty_rows: dict


class Groups:
  """Tables of some replica groups, and the compiled step of them."""

  def __init__(self, update: str, replicas: int):
    self.replicas, tables = replicas, {}
    dtype = 'bfloat16' if update == 'row_sgd' else 'float32'
    self.specs = {
      name: TableSpec(name, rows, dim, 0.5, update, dtype)
      for name, (rows, dim, _) in SHAPES.items()
    }
    for name, (rows, dim, scheme) in SHAPES.items():
      tables[name] = TablePlan(rows, dim, scheme, (), 'mod', dtype, update)
    self.layout = lay_out(ShardingPlan(tables, 1, DEVICES, replicas))
    self.stacks = relayout.find_stacks(self.layout)
    self.tables = ShardedTables(
      self.layout, self.specs, options=OPTIONS.get(update, {})
    )
    like = self.layout.shapes()
    slots = jax.eval_shape(self.tables.init_slots, like)
    arrays = self.tables.partition(like)
    self._specs = (arrays, self.tables.partition(slots), arrays)
    split, same = PartitionSpec(mesh_lib.AXES), PartitionSpec()
    self._step = self._map(
      self._step_on_shard,
      (*self._specs, split, split, same, same),
      self._specs,
    )
    self._init = self._map(self._init_on_shard, same, self._specs)

  def _map(self, fn, in_specs, out_specs):
    mesh = mesh_lib.make_mesh(self.replicas, 1, DEVICES)
    return jax.jit(
      jax.shard_map(
        fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
      )
    )

  def _init_on_shard(self, key):
    arrays = self.tables.init(key)
    slots = self.tables.init_slots(arrays)
    return arrays, slots, dirty_lib.init_dirty_rows(arrays)

  def _step_on_shard(self, arrays, slots, marks, ids, seed, step, sync_every):
    # A traced number serves all: one program for every interval.
    tables = dataclasses.replace(self.tables, sync_every=sync_every)
    reads = {
      name: Read(ids % spec.rows, name) for name, spec in self.specs.items()
    }
    routes = tables.route(reads)
    rows, sums, near = tables.fetch(arrays, routes)
    key = jax.random.key(seed[0])
    grads = {n: jax.random.normal(key, x.shape) * 0.1 for n, x in rows.items()}
    grads = grads, sums, near
    pushed = tables.push(arrays, slots, routes, grads, 0.3, step, marks)
    return pushed.arrays, pushed.slots, pushed.dirty_rows

  def init(self) -> State:
    return State(*self._init(jax.random.key(3)))

  def train(self, state: State, step: int, sync_every: int) -> State:
    shards = self.replicas * DEVICES
    rng = np.random.default_rng(step)
    ids = np.minimum(rng.geometric(0.15, (shards, 3)), 28).astype(np.int32)
    return State(
      *self._step(
        *(state.arrays, state.slots, state.dirty_rows, ids),
        np.arange(shards, dtype=np.uint32) + 100 * step,
        *(jnp.int32(step), jnp.int32(sync_every)),
      )
    )

  def first_group(self, arrays, slots):
    """The numbers of the first group, as bytes."""

    def read(name, x):
      x = np.asarray(x)
      return x[: self.stacks[name].size].tobytes() if x.ndim else x.tobytes()

    return {
      name: {'': read(name, x)}
      | {slot: read(name, y) for slot, y in slots.get(name, {}).items()}
      for name, x in arrays.items()
    }


@functools.cache
def groups(update, replicas):
  return Groups(update, replicas)


class Run:
  """Steps, saves and publications, and what the first group was then."""

  def __init__(self, of: Groups, directory, name, sync_every):
    self.of, self.directory, self.sync_every = of, directory, sync_every
    self.policy, self.state, self.step = name, of.init(), 0
    self.saved, self.published = {}, {}
    self.open_savers()

  def open_savers(self):
    self.checkpoints, self.saver = self._open('checkpoints', self.policy)
    self.readers = self._open('published', 'consecutive', published=True)[1]

  def _open(self, name, policy_name, **more):
    checkpoints = CheckpointManager(self.directory / name, keep=99)
    options = delta.DeltaOptions(policy_name)
    return checkpoints, delta.RowSaver(
      checkpoints, self.of.stacks, options, **more
    )

  def train(self):
    self.state = self.of.train(self.state, self.step, self.sync_every)
    self.step += 1

  def save(self):
    self.saved[self.step] = self.now()
    self._save_by(self.saver, self.state.slots)

  def publish(self):
    now = self.now()
    self.published[self.step] = {n: x[''] for n, x in now.items()}
    self._save_by(self.readers, {})

  def _save_by(self, saver, slots):
    tables = delta.RowTables(self.state.arrays, slots, self.state.dirty_rows)
    self.state.dirty_rows = saver.save(
      self.step, {'step': jnp.int32(self.step)}, tables
    )

  def now(self):
    return self.of.first_group(self.state.arrays, self.state.slots)

  def restore(self, step):
    like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      (self.state.arrays, self.state.slots),
    )
    rows = self.checkpoints.restore_rows(step, self.of.stacks, *like)
    return State(rows.arrays, rows.slots, rows.dirty_rows)

  def restart(self):
    """Goes on from the newest save, as after a kill."""
    self.wait()
    self.step = max(self.saved)
    self.state = self.restore(self.step)
    self.open_savers()
    self.saver.note_restore(self.step)

  def wait(self):
    self.saver._checkpoints.wait()
    self.readers._checkpoints.wait()

  def assert_every_save_restores_the_first_group(self):
    self.wait()
    for step, wanted in self.saved.items():
      rows = self.restore(step)
      assert self.of.first_group(rows.arrays, rows.slots) == wanted, step


def assert_restores(update, replicas, combination, directory):
  name, sync_every, save_every, publish_every = combination
  run = Run(groups(update, replicas), directory, name, sync_every)
  with Follower(directory, directory / 'copy', log=lambda _: None) as follower:
    while run.step < STEPS:
      run.train()
      if run.step % save_every == 0:
        run.save()
      if run.step % publish_every == 0 and run.step not in run.published:
        run.publish()
        run.wait()
        assert follower.update() == [run.step]
        for table in SHAPES:
          assert_follows(run, follower, table)
      if run.step == 6 and save_every == 3:
        run.restart()
        save_every = 2
  run.assert_every_save_restores_the_first_group()


def assert_follows(run, follower, name):
  """The table of the copy is that of the first group, row by row."""
  arrays = {n: np.asarray(x) for n, x in run.state.arrays.items()}
  first = {n: x[: run.of.stacks[n].size] for n, x in arrays.items()}
  wanted = relayout.gather_table(run.of.layout, first, name)
  assert np.asarray(follower.table(name)).tobytes() == wanted.tobytes()


@pytest.mark.parametrize('replicas', [2, 3])
def test_what_a_restart_keeps_of_the_other_groups(replicas, tmp_path):
  """Everything at a mean; between two means, only the first group is left."""
  run = Run(groups('adam', replicas), tmp_path, 'consecutive', sync_every=3)
  for at_mean in (True, False) * 2:
    for _ in range(3 if at_mean else 1):
      run.train()
      run.save()
    if not at_mean:
      run.train()
      run.save()
    kept = run.state
    run.restart()
    for name, stack in run.of.stacks.items():
      ours = np.asarray(run.state.arrays[name])
      theirs = np.asarray(kept.arrays[name])
      same = ours.tobytes() == theirs.tobytes()
      assert same == (at_mean or name == 'whole')
      copies = ours.reshape(-1, stack.size, ours.shape[1])
      assert (copies == copies[0]).all()
    if not at_mean:
      run.train()  # to the next mean
  run.assert_every_save_restores_the_first_group()


def assert_sample_restores(update, replicas, count, directory):
  rng = np.random.default_rng([len(update), replicas])
  chosen = rng.choice(len(COMBINATIONS), count, replace=False)
  for number in chosen:
    combination = COMBINATIONS[number]
    assert_restores(update, replicas, combination, directory / str(number))


@pytest.mark.parametrize('replicas', [2, slow(3)])
@pytest.mark.parametrize('update', ['row_adagrad', 'adam', slow('row_sgd')])
def test_a_save_and_a_publication_are_the_first_group(
  update, replicas, tmp_path
):
  assert_sample_restores(update, replicas, 4, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('replicas', [2, 3, 4])
@pytest.mark.parametrize('update', ROW_OPTIMIZERS)
def test_more_of_them(update, replicas, tmp_path):
  assert_sample_restores(update, replicas, 8, tmp_path)
