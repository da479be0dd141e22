import threading
from typing import NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from genrec_jax.data import devices
from genrec_jax.parallel import mesh as mesh_lib
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint.checkpoint_content import (
  assert_restores,
  save,
  save_all,
  whole,
)

# --- Round trips


def test_a_round_trip_is_bit_exact_and_the_iterator_goes_on(checkpoints):
  save_all(checkpoints, 3)
  assert checkpoints.latest() == 3
  assert_restores(checkpoints, 3)
  assert_restores(checkpoints, 3, by_name=True)


def test_another_process_object_restores_from_shapes_alone(checkpoints):
  save_all(checkpoints, 7)
  shapes = jax.eval_shape(lambda: content.state(0))
  step, state, host = CheckpointManager(checkpoints.directory).restore(shapes)
  content.assert_is_step(step, state, host)


def test_save_returns_before_the_checkpoint_is_complete(
  checkpoints, monkeypatch
):
  written, go_on = manifest.write, threading.Event()

  def slow(*args, **kwargs):
    assert go_on.wait(30)
    written(*args, **kwargs)

  monkeypatch.setattr(manifest, 'write', slow)
  save(checkpoints, 1)
  assert whole(checkpoints) == []
  go_on.set()
  assert checkpoints.latest() == 1


def test_state_may_be_donated_and_the_rest_changed_after_save(checkpoints):
  state = {'w': jax.random.normal(jax.random.key(0), (4_000_000,))}
  want = np.array(state['w'])
  overwrite = jax.jit(
    lambda s: jax.tree.map(lambda x: x * 2.0, s), donate_argnums=0
  )
  overwrite = overwrite.lower(state).compile()
  it, host = content.iterator(5), {'history': [1]}
  checkpoints.save(1, state, data=it, host=host)
  for _ in range(3):
    state = overwrite(state)
    next(it)
    host['history'].append(2)
  it = content.iterator()
  _, restored, host = checkpoints.restore(state, data=it)
  np.testing.assert_array_equal(np.asarray(restored['w']), want)
  np.testing.assert_array_equal(next(it), next(content.iterator(5)))
  assert host == {'history': [1]}


def test_saved_on_eight_devices_restored_on_two_and_on_one(checkpoints):
  def sharding(n):
    return NamedSharding(Mesh(np.array(jax.devices()[:n]), 'x'), P('x'))

  want = np.arange(32, dtype=np.float32).reshape(16, 2)
  checkpoints.save(1, {'w': jax.device_put(want, sharding(8))})
  for shape in (
    jax.ShapeDtypeStruct((16, 2), jnp.float32, sharding=sharding(2)),
    jax.ShapeDtypeStruct((16, 2), jnp.float32),
  ):
    _, state, _ = checkpoints.restore({'w': shape})
    np.testing.assert_array_equal(np.asarray(state['w']), want)
    if shape.sharding is not None:
      assert state['w'].sharding == shape.sharding


def test_named_tuples_and_tuples_keep_their_types(checkpoints):
  class Moments(NamedTuple):
    count: jax.Array
    mu: dict

  state = {'opt': (Moments(jnp.int32(4), {'w': jnp.ones((3,))}), ())}
  checkpoints.save(1, state)
  _, restored, host = checkpoints.restore(state)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  assert int(restored['opt'][0].count) == 4
  assert host is None


# --- Parts of a checkpoint, and arrays with more rows


def test_the_manifest_is_read_without_the_arrays(checkpoints):
  save_all(checkpoints, 1, 2)
  for step in (None, 1):
    body = checkpoints.read_manifest(step)
    assert body['step'] == (step or 2)
    assert body['host'] == content.host(body['step'])
    assert body['tree']['tables/bfloat16'] == 'bfloat16[64,8]'
  with pytest.raises(FileNotFoundError, match='no checkpoint of step 9'):
    checkpoints.read_manifest(9)


def test_a_subset_is_loaded_when_asked_for(checkpoints):
  save_all(checkpoints, 1)
  want = content.state(1)
  some = {'tables': {'int32': want['tables']['int32']}}
  _, got, host = checkpoints.restore(some, partial=True)
  assert jax.tree.structure(got) == jax.tree.structure(some)
  np.testing.assert_array_equal(got['tables']['int32'], want['tables']['int32'])
  assert host == content.host(1)
  with pytest.raises(CheckpointError, match='does not fit: opt/count'):
    checkpoints.restore(some)
  some['tables']['new'] = jnp.zeros(3)
  with pytest.raises(
    CheckpointError, match='tables/new is absent in the check'
  ):
    checkpoints.restore(some, partial=True)


def test_an_array_may_be_loaded_with_rows_of_zeros_behind_it(checkpoints):
  def sharding(n):
    return NamedSharding(Mesh(np.array(jax.devices()[:n]), 'x'), P('x'))

  rng = np.random.default_rng(0)
  table = rng.normal(size=(10, 3)).astype(np.float32)
  slot = rng.normal(size=10).astype(jnp.bfloat16)
  tree = {'table': table, 'slot': slot, 'w': np.ones((2, 3), np.float32)}
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  checkpoints.save(1, jax.device_put(tree, one))

  def wanted(rows, width=3):
    return {
      'table': jax.ShapeDtypeStruct(
        (rows, width), np.float32, sharding=sharding(8)
      ),
      'slot': jax.ShapeDtypeStruct((rows,), jnp.bfloat16, sharding=sharding(8)),
      'w': jax.ShapeDtypeStruct((2, 3), np.float32),
    }

  _, state, _ = checkpoints.restore(wanted(16), padded=True)
  for name in ('table', 'slot'):
    got = np.asarray(state[name])
    assert got[:10].tobytes() == tree[name].tobytes()
    assert got[10:].shape[0] == 6 and not got[10:].any()
  np.testing.assert_array_equal(state['w'], tree['w'])
  for rows, width, padded in ((16, 3, False), (8, 3, True), (16, 4, True)):
    with pytest.raises(CheckpointError, match='does not fit: slot|table'):
      checkpoints.restore(wanted(rows, width), padded=padded)


def test_batches_on_devices_are_saved_where_the_training_stands(checkpoints):
  """Not where the source stands, which runs ahead."""
  mesh = mesh_lib.make_mesh()

  def batches():
    data = grain.MapDataset.range(100).shuffle(3).repeat(None).batch(8)
    return devices.DeviceBatches(iter(data.to_iter_dataset()), mesh)

  with batches() as it, batches() as again:
    for _ in range(5):
      next(it)
    checkpoints.save(5, {'w': jnp.ones(3)}, data=it)
    following = [np.asarray(next(it)) for _ in range(4)]
    checkpoints.restore({'w': jnp.ones(3)}, data=again)
    for want in following:
      np.testing.assert_array_equal(next(again), want)


# --- Which checkpoints stay


def test_only_the_newest_stay(checkpoints):
  save_all(checkpoints, 1, 2, 3, 4)
  assert manifest.list_steps(checkpoints.directory) == [3, 4]
  assert_restores(checkpoints, 3, by_name=True)
  assert_restores(checkpoints, 4)


def test_the_last_whole_one_stays_until_the_next_has_its_manifest(
  tmp_path, monkeypatch
):
  there, write = [], manifest.write

  def recorded(step_dir, *args, **kwargs):
    there.append(whole(checkpoints))
    write(step_dir, *args, **kwargs)

  monkeypatch.setattr(manifest, 'write', recorded)
  with CheckpointManager(tmp_path, keep=1) as checkpoints:
    save_all(checkpoints, 1, 2, 3)
  assert there == [[], [1], [2]]
  assert whole(checkpoints) == [3]


def test_a_step_that_is_saved_is_not_overwritten(checkpoints):
  save_all(checkpoints, 5)
  with pytest.raises(CheckpointError, match='step 5 is already saved'):
    save(checkpoints, 5)
  assert_restores(checkpoints, 5)


def test_saving_behind_newer_steps_keeps_all_and_says_so(checkpoints, log):
  save_all(checkpoints, 8, 9)
  save_all(checkpoints, 3)
  assert whole(checkpoints) == [3, 8, 9]
  assert 'step 3 is saved, but a restart will use step 9' in log.text()


# --- What does not fit


@pytest.mark.parametrize(
  'change, message',
  [
    (
      lambda s: s['tables'].update(float32=jnp.zeros((64, 9))),
      r'tables/float32 is float32\[64,8\] in the checkpoint and '
      r'float32\[64,9\] in this run',
    ),
    (
      lambda s: s['tables'].update(bfloat16=jnp.zeros((64, 8))),
      r'tables/bfloat16 is bfloat16\[64,8\] in .* and float32\[64,8\]',
    ),
    (lambda s: s['opt'].pop('count'), r'opt/count is int32\[\] in .* absent'),
    (
      lambda s: s.update(extra=jnp.zeros((2,))),
      r'extra is absent in the checkpoint and float32\[2\] in this run',
    ),
  ],
)
def test_the_first_array_that_differs_is_named(checkpoints, change, message):
  save_all(checkpoints, 1)
  other = content.state(0)
  change(other)
  with pytest.raises(CheckpointError, match=message):
    checkpoints.restore(other)


def test_an_iterator_that_was_not_saved_is_not_restored(checkpoints):
  checkpoints.save(1, content.state(1))
  with pytest.raises(CheckpointError, match='has no data iterator'):
    checkpoints.restore(content.state(0), data=content.iterator())


@pytest.mark.parametrize(
  'state, message',
  [
    ({'a': {'b': np.zeros(3)}}, 'a/b is a ndarray, not a jax array'),
    ({'rng': jax.random.key(0)}, 'rng is a typed PRNG key'),
    ({'w': jnp.zeros((0, 3))}, 'w has no elements'),
  ],
)
def test_what_cannot_be_saved_is_named(checkpoints, state, message):
  with pytest.raises(CheckpointError, match=f'step 1 cannot .*{message}'):
    checkpoints.save(1, state)


def test_data_must_be_a_grain_iterator(checkpoints):
  with pytest.raises(TypeError, match='data is a list_iterator, not a grain'):
    checkpoints.save(1, content.state(1), data=iter([1]))


def test_host_must_be_json(checkpoints):
  with pytest.raises(TypeError, match='not JSON serializable'):
    checkpoints.save(1, content.state(1), host={'x': object()})


def test_keep_and_step_are_checked(checkpoints, tmp_path):
  with pytest.raises(ValueError, match='keep must be at least 1'):
    CheckpointManager(tmp_path, keep=0)
  with pytest.raises(CheckpointError, match='negative'):
    checkpoints.save(-1, content.state(1))
