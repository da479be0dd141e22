import contextlib
import errno
import resource
import shutil
import subprocess
import threading
from typing import NamedTuple

import checkpoint_content as content
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint.full import CheckpointError, Checkpoints


class Log(list):
  __call__ = list.append

  def text(self):
    return '\n'.join(self)


@pytest.fixture
def log():
  return Log()


@pytest.fixture
def checkpoints(tmp_path, log):
  with Checkpoints(tmp_path / 'checkpoints', log=log) as c:
    yield c


def save(checkpoints, step, rows=64, **kwargs):
  checkpoints.save(
    step,
    content.state(step, rows),
    data=content.iterator(step),
    host=content.host(step),
    **kwargs,
  )


def save_all(checkpoints, *steps):
  for step in steps:
    save(checkpoints, step)
  checkpoints.wait()


def assert_restores(checkpoints, step, rows=64, by_name=False):
  it = content.iterator()
  found, state, host = checkpoints.restore(
    content.state(0, rows), data=it, step=step if by_name else None
  )
  assert found == step
  content.assert_is_step(step, state, host, it)


def whole(checkpoints):
  return [
    step
    for step in manifest.steps(checkpoints.directory)
    if (checkpoints.directory / str(step) / manifest.NAME).exists()
  ]


# --- Round trips


def test_a_round_trip_is_bit_exact_and_the_iterator_goes_on(checkpoints):
  save_all(checkpoints, 3)
  assert checkpoints.latest() == 3
  assert_restores(checkpoints, 3)
  assert_restores(checkpoints, 3, by_name=True)


def test_another_process_object_restores_from_shapes_alone(checkpoints):
  save_all(checkpoints, 7)
  shapes = jax.eval_shape(lambda: content.state(0))
  step, state, host = Checkpoints(checkpoints.directory).restore(shapes)
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


# --- Which checkpoints stay


def test_only_the_newest_stay(checkpoints):
  save_all(checkpoints, 1, 2, 3, 4)
  assert manifest.steps(checkpoints.directory) == [3, 4]
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
  with Checkpoints(tmp_path, keep=1) as checkpoints:
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


# --- What was left by a kill


def test_nothing_there(checkpoints, tmp_path):
  assert checkpoints.latest() is None
  with pytest.raises(FileNotFoundError, match='no checkpoint in'):
    checkpoints.restore(content.state(0))
  with pytest.raises(FileNotFoundError, match='no checkpoint of step 4 in'):
    checkpoints.restore(content.state(0), step=4)
  assert list(tmp_path.iterdir()) == []  # reading makes no directories


def test_a_half_written_step_is_skipped_refused_and_replaced(checkpoints, log):
  save_all(checkpoints, 1, 2)
  (checkpoints.directory / '2' / manifest.NAME).unlink()
  assert checkpoints.latest() == 1
  assert log == ['checkpoint of step 2 skipped, half-written: it has no '
                 'MANIFEST.json']  # fmt: skip
  with pytest.raises(CheckpointError, match='step 2 refused, half-written'):
    checkpoints.restore(content.state(0), step=2)
  save_all(checkpoints, 2)
  assert_restores(checkpoints, 2)


def test_only_a_half_written_step_means_nothing_was_ever_saved(
  checkpoints, log
):
  save_all(checkpoints, 1)
  (checkpoints.directory / '1' / manifest.NAME).unlink()
  assert checkpoints.latest() is None
  assert 'step 1 skipped, half-written' in log.text()


def test_debris_goes_with_the_next_save_and_not_by_looking(checkpoints, log):
  save_all(checkpoints, 1)
  for name in ('2.orbax-checkpoint-tmp', '7.removed', 'best', 'notes.2'):
    (checkpoints.directory / name / 'deep').mkdir(parents=True)
  assert checkpoints.latest() == 1
  assert log == []
  save_all(checkpoints, 2)
  left = sorted(p.name for p in checkpoints.directory.iterdir())
  assert left == ['1', '2', 'best', 'notes.2']
  assert '2.orbax-checkpoint-tmp' in log.text()
  assert '7.removed' in log.text()


# --- Damage


def files_of(checkpoints, step):
  root = checkpoints.directory / str(step)
  return sorted(p for p in root.rglob('*') if p.is_file())


@contextlib.contextmanager
def damaged(path, data):
  """Bytes other than those written, or no file where `data` is None."""
  before = path.read_bytes()
  path.unlink() if data is None else path.write_bytes(data)
  yield
  path.write_bytes(before)


def variants(data, seed):
  """The data with one bit flipped, cut short, grown, or gone."""
  yield 'missing', None
  yield 'grown', data + b'\0'
  if not data:
    return
  yield 'cut short', data[:-1]
  yield 'empty', b''
  rng = np.random.default_rng(seed)
  for bit in {0, len(data) * 8 - 1, *rng.integers(len(data) * 8, size=3)}:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << (bit % 8)
    yield f'bit {bit} flipped', bytes(flipped)


def test_no_damage_to_any_file_is_ever_loaded(checkpoints, log):
  save_all(checkpoints, 1, 2)
  state = content.state(0)
  files = files_of(checkpoints, 2)
  assert len(files) > 8
  for i, path in enumerate(files):
    for what, data in variants(path.read_bytes(), seed=i):
      with damaged(path, data):
        log.clear()
        assert checkpoints.latest() == 1, (path, what)
        assert len(log) == 1 and 'step 2 skipped' in log[0], (path, what)
        reason = 'half-written' if data is None else 'damaged'
        if path.name != manifest.NAME:
          reason = 'damaged'
          assert path.name in log[0]
        assert reason in log[0], (path, what)
        with pytest.raises(CheckpointError, match='step 2 refused'):
          checkpoints.restore(state, step=2)
  assert_restores(checkpoints, 2)


def test_with_a_damaged_newest_the_one_before_is_restored(checkpoints, log):
  save_all(checkpoints, 1, 2)
  max(files_of(checkpoints, 2), key=lambda p: p.stat().st_size).unlink()
  assert_restores(checkpoints, 1)
  assert 'checkpoint of step 2 skipped, damaged: state/' in log.text()
  # The damaged one is no reason to let the last whole one go.
  save_all(checkpoints, 3)
  assert manifest.steps(checkpoints.directory) == [1, 3]


def test_a_damaged_step_reached_again_is_replaced(checkpoints, log):
  save_all(checkpoints, 1, 2)
  files_of(checkpoints, 2)[-1].write_bytes(b'')
  save_all(checkpoints, 2)
  assert 'checkpoint of step 2 is replaced, damaged' in log.text()
  assert_restores(checkpoints, 2)


def test_all_damaged_is_an_error_that_lists_them(checkpoints):
  save_all(checkpoints, 1, 2)
  files_of(checkpoints, 1)[-1].unlink()
  files_of(checkpoints, 2)[-1].write_bytes(b'x')
  for call in (
    checkpoints.latest,
    lambda: checkpoints.restore(content.state(0)),
  ):
    with pytest.raises(
      CheckpointError, match='no checkpoint in .* is whole'
    ) as e:
      call()
    assert 'step 1: damaged' in str(e.value)
    assert 'step 2: damaged' in str(e.value)
    assert 'move this directory away' in str(e.value)


# --- Failing saves


@contextlib.contextmanager
def small_files(limit):
  """No file of this process may grow beyond `limit` bytes."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_loses_nothing(checkpoints, log, caplog):
  save_all(checkpoints, 1, 2)
  with small_files(1_000_000):
    save(checkpoints, 3, rows=100_000)  # returns, fails later
    with pytest.raises(
      CheckpointError, match='saving step 3 .* File too large'
    ):
      checkpoints.latest()
  assert 'Earlier checkpoints are as they were: 1, 2' in log.text()
  assert '_SignalingThread' not in caplog.text  # hundreds of lines of Orbax
  assert [p.name for p in sorted(checkpoints.directory.iterdir())] == ['1', '2']
  assert_restores(checkpoints, 2)
  save(checkpoints, 3, rows=100_000, wait=True)
  assert_restores(checkpoints, 3, rows=100_000)
  assert whole(checkpoints) == [2, 3]


def test_a_full_disk_loses_nothing(tmp_path, log):
  disk = tmp_path / 'disk'
  disk.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', str(disk)]
  if (
    not shutil.which('mount')
    or subprocess.run(mount, capture_output=True).returncode
  ):
    pytest.skip('mounting a small tmpfs is not permitted here')
  try:
    with Checkpoints(disk / 'checkpoints', log=log) as checkpoints:
      save_all(checkpoints, 1)
      with pytest.raises(CheckpointError, match='the disk is full'):
        save(checkpoints, 2, rows=200_000, wait=True)
      assert_restores(checkpoints, 1)
      (disk / 'other').write_bytes(bytes(3_000_000))
      with pytest.raises(CheckpointError, match='the disk is full'):
        save(checkpoints, 2, rows=20_000, wait=True)
      (disk / 'other').unlink()
      save(checkpoints, 2, wait=True)
      assert_restores(checkpoints, 2)
  finally:
    subprocess.run(['umount', str(disk)], check=True)


def test_a_disk_that_fills_up_before_the_manifest(
  checkpoints, monkeypatch, log
):
  save_all(checkpoints, 1)

  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  with monkeypatch.context() as m:
    m.setattr(manifest.os, 'replace', full)
    save(checkpoints, 2)
    with pytest.raises(CheckpointError, match='the disk is full'):
      save(checkpoints, 3)
  assert manifest.steps(checkpoints.directory) == [1]
  save_all(checkpoints, 2)
  assert_restores(checkpoints, 2)


def test_the_error_that_ends_the_block_is_the_one_to_see(
  tmp_path, monkeypatch, log
):
  def broken(*_, **__):
    raise OSError('broken')

  monkeypatch.setattr(manifest, 'write', broken)
  with pytest.raises(KeyError, match='mine'):
    with Checkpoints(tmp_path, log=log) as checkpoints:
      save(checkpoints, 1)
      raise KeyError('mine')
  assert 'saving step 1' in log.text()
  with pytest.raises(CheckpointError, match='broken'):
    with Checkpoints(tmp_path, log=log) as checkpoints:
      save(checkpoints, 1)


def test_an_interrupted_wait_forgets_no_failure(checkpoints, monkeypatch):
  def broken(*_, **__):
    raise OSError('broken')

  def interrupted(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as m:
    m.setattr(manifest, 'write', broken)
    save(checkpoints, 1)
    with m.context() as inner:
      inner.setattr('concurrent.futures.wait', interrupted)
      with pytest.raises(KeyboardInterrupt):
        checkpoints.wait()
    with pytest.raises(CheckpointError, match='saving step 1'):
      save(checkpoints, 2)
  save_all(checkpoints, 2)
  assert whole(checkpoints) == [2]


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
    Checkpoints(tmp_path, keep=0)
  with pytest.raises(CheckpointError, match='negative'):
    checkpoints.save(-1, content.state(1))
