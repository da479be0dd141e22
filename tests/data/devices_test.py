import json
import threading

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from genrec_jax.data import devices, histories, pipeline, splits
from genrec_jax.parallel import mesh as mesh_lib
from tests import processes


def dataset(shards, own=None):
  rng = np.random.default_rng(0)
  lengths = rng.integers(2, 20, 50)
  user = np.repeat(np.arange(50), lengths)
  item = rng.integers(1, 30, len(user))
  h = histories.from_arrays(user, item, np.arange(len(user)))
  return pipeline.train_batches(
    h,
    splits.keep_whole(h),
    batch_size=8,
    max_len=9,
    seed=1,
    shards=shards,
    own=own,
  )


def take(iterator, n):
  return [next(iterator) for _ in range(n)]


def assert_same(got, want):
  for a, b in zip(got, want, strict=True):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize('shape', [(1, 1, 8), (2, 2, 2), (1, 1, 1)])
def test_every_device_gets_its_shard(shape):
  mesh = mesh_lib.make_mesh(*shape)
  w = mesh.size
  assert devices.own_shards(mesh) == range(w)
  local = next(iter(dataset(w)))
  batch = devices.to_global(local, mesh)
  assert_same([batch], [local])
  for got, want in zip(
    jax.tree.leaves(batch), jax.tree.leaves(local), strict=True
  ):
    assert got.sharding == mesh_lib.batch_sharding(mesh)
    parts = {s.device: s.data for s in got.addressable_shards}
    for k, device in enumerate(mesh.devices.flat):
      np.testing.assert_array_equal(parts[device], np.split(want, w)[k])
  assert batch.seen is None


def two_batches():
  """What all processes together have on their devices, and the states."""
  mesh = mesh_lib.make_mesh()
  own = devices.own_shards(mesh)
  with devices.DeviceBatches(iter(dataset(mesh.size, own)), mesh) as it:
    found = [
      (multihost_utils.process_allgather(batch, tiled=True), it.get_state())
      for batch in take(it, 2)
    ]
  return list(own), found


@pytest.mark.parametrize('count, local', [(2, 2), (4, 1)])
def test_processes_make_one_batch_without_overlap_or_loss(count, local):
  whole = iter(dataset(4))
  want = take(whole, 2)
  whole.close()
  found = processes.run(two_batches, processes=count, devices=local)
  assert sum((own for own, _ in found), []) == list(range(4))
  for _, batches in found:
    assert_same([batch for batch, _ in batches], want)
    assert [s for _, s in batches] == [s for _, s in found[0][1]]


def test_an_array_that_is_not_of_the_shards_is_refused():
  batch = next(iter(dataset(1)))
  with pytest.raises(ValueError, match='an array of 1 is not of 8 shards'):
    devices.to_global(batch, mesh_lib.make_mesh())


def test_the_state_is_that_of_the_batch_handed_out():
  mesh = mesh_lib.make_mesh()
  plain = iter(dataset(8))
  want, states = [], [plain.get_state()]
  for _ in range(9):
    want.append(next(plain))
    states.append(plain.get_state())
  plain.close()
  with devices.DeviceBatches(iter(dataset(8)), mesh, ahead=3) as it:
    assert it.get_state() == states[0]
    for i in range(9):
      assert_same([next(it)], [want[i]])
      assert it.get_state() == states[i + 1]
  for stop in (0, 1, 5):
    with devices.DeviceBatches(iter(dataset(8)), mesh) as it:
      take(it, 4)  # and two more on the devices, which are dropped
      it.set_state(json.loads(json.dumps(states[stop])))
      assert it.get_state() == states[stop]
      assert_same(take(it, 9 - stop), want[stop:])


class Source:
  """Counts to `end`, fails once at 3, and tells how far it was asked."""

  def __init__(self, end, fails=False, blocks=None):
    self.at, self.end, self.fails, self.blocks = 0, end, fails, blocks

  def __next__(self):
    if self.blocks is not None and self.at == 1:
      self.blocks.wait()
      return None
    if self.fails and self.at == 3:
      self.fails = False
      raise OSError('lost')
    if self.at >= self.end:
      raise StopIteration
    self.at += 1
    return np.full(8, self.at, np.int32)

  def get_state(self):
    return self.at

  def set_state(self, state):
    self.at = state

  def close(self):
    if self.blocks is not None:
      self.blocks.set()


def test_batches_are_made_ahead_and_none_is_lost():
  source = Source(end=5, fails=True)
  with devices.DeviceBatches(source, mesh_lib.make_mesh(), ahead=2) as it:
    assert [int(x[0]) for x in take(it, 3)] == [1, 2, 3]
    with pytest.raises(OSError, match='lost'):
      next(it)
    assert it.get_state() == 3
    assert [int(x[0]) for x in it] == [4, 5]
    assert it.get_state() == 5
    source.end = 6  # a directory that grew
    assert [int(x[0]) for x in it] == [6]


def test_a_batch_is_not_held_back_by_a_source_that_waits_for_the_next():
  mesh = mesh_lib.make_mesh()
  it = devices.DeviceBatches(Source(9, blocks=threading.Event()), mesh)
  assert int(next(it)[0]) == 1
  assert it.get_state() == 1
  it.close()  # and closing does not wait for ever


def test_ahead_is_checked():
  with pytest.raises(ValueError, match='ahead must be at least 1, not 0'):
    devices.DeviceBatches(Source(1), mesh_lib.make_mesh(), ahead=0)
