"""What is refused, what is NaN, and which backend is taken."""

import logging
import subprocess
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels.jagged_embedding import api, compiler, cpu, native, shapes
from tests.kernels.embedding_cases import HERE

TABLE = jnp.ones((10, 4))
IDS = jnp.int32([1, 2, 3])
ONE = jnp.int32([3])


def update(ids=IDS, grads=None, table=TABLE, slots=None, **options):
  grads = jnp.ones((3, 4)) if grads is None else grads
  slots = api.init_slots(table, 'row_adagrad') if slots is None else slots
  return api.update_rows(table, slots, ids, grads, learning_rate=0.1, **options)


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: api.embedding_bag(TABLE[0], IDS, ONE), 'table must be'),
    (lambda: api.embedding_bag(TABLE[:0], IDS, ONE), 'table must be'),
    (
      lambda: api.embedding_bag(TABLE.astype(jnp.float8_e4m3fn), IDS, ONE),
      'table is float8_e4m3fn',
    ),
    (
      lambda: api.embedding_bag(TABLE, jnp.ones(3), ONE),
      'ids must be integers, not float32',
    ),
    (lambda: api.embedding_bag(TABLE, IDS, ONE[0]), 'lengths must be a vec'),
    (lambda: api.embedding_bag(TABLE, IDS, -ONE), 'lengths holds a negative'),
    (lambda: api.embedding_bag(TABLE, IDS, ONE + 1), 'more than the 3 ids'),
    (lambda: api.embedding_bag(TABLE, IDS, ONE, mode='max'), "mode is 'max'"),
    (
      lambda: api.embedding_bag(TABLE, IDS, ONE, weights=jnp.ones(2)),
      'weights must be floats of the shape of ids',
    ),
    (lambda: api.embedding_bag(TABLE, IDS + 8, ONE), 'ids holds 10, but .*9'),
    (lambda: api.gather(TABLE, -IDS), 'ids holds -1, but the table'),
    (lambda: api.gather(TABLE, np.int64([2**32])), 'ids holds a number above'),
    (lambda: api.gather(TABLE, jnp.int32([10])), 'ids holds 10'),
    (
      lambda: api.bag_row_gradient(jnp.ones((2, 4)), IDS, ONE, 10),
      r'grads must be \[1, D\]',
    ),
    (lambda: update(grads=jnp.ones((3, 5))), r'grads must be \[3, 4\]'),
    (lambda: update(grads=jnp.ones((3, 4), int)), 'grads must be floats'),
    (lambda: update(ids=jnp.int32([1, 1, 2])), 'sorted and distinct'),
    (lambda: update(ids=jnp.int32([1, 2, 11])), 'ids holds 11'),
    (lambda: update(optimizer='lion'), "optimizer is 'lion'"),
    (lambda: update(slots={}), r"slots of row_adagrad are \['sum'\]"),
    (lambda: update(slots={'sum': TABLE}), "slots\\['sum'\\] must be float32"),
    (
      lambda: api.embedding_bag_backward_and_update(
        TABLE, {}, IDS, ONE, jnp.ones((3, 4)), learning_rate=1.0,
        optimizer='sgd',
      ),
      r'grads must be \[1, 4\] \(lengths has 1\)',
    ),
  ],
)  # fmt: skip
def test_mistakes_are_errors_that_name_the_argument(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize('bad', [-1, 10, 2**31 - 1])
def test_under_jit_a_bad_id_reads_nan_and_moves_nothing(name, bad):
  ids = jnp.int32([1, bad, 3])
  lengths = jnp.int32([1, 1, 1])
  bags = jax.jit(
    lambda i: api.embedding_bag(TABLE, i, lengths, implementation=name)
  )(ids)
  rows = jax.jit(lambda i: api.gather(TABLE, i, implementation=name))(ids)
  for out in (bags, rows):
    np.testing.assert_array_equal(out[0::2], TABLE[:2])
    assert np.all(np.isnan(out[1]))
  new, _ = jax.jit(
    lambda i: api.embedding_bag_backward_and_update(
      TABLE, {}, i, lengths, jnp.ones((3, 4)),
      learning_rate=1.0, optimizer='sgd', implementation=name,
    )
  )(ids)  # fmt: skip
  expected = np.ones((10, 4))
  expected[[1, 3]] = 0
  np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize(
  # The last sums of each wrap in int32, to 0 and to 2.
  'lengths',
  [[2, -1], [2, 2], [2**31 - 1, 2**31 - 1, 2], [2**30] * 4 + [2]],
)
def test_under_jit_wrong_lengths_give_nan(name, lengths):
  grads = jnp.ones((len(lengths), 4))

  def run(lengths):
    return api.embedding_bag(TABLE, IDS, lengths, implementation=name), (
      api.embedding_bag_backward_and_update(
        TABLE, {}, IDS, lengths, grads,
        learning_rate=1.0, optimizer='sgd', implementation=name,
      )[0]
    )  # fmt: skip

  bags, table = jax.jit(run)(jnp.int32(lengths))
  assert np.all(np.isnan(bags)) and np.any(np.isnan(table))


@pytest.mark.parametrize('lengths', [[2**31 - 1, 2**31 - 1, 2], [2**30] * 4])
def test_a_sum_of_lengths_that_wraps_is_too_large(lengths):
  with pytest.raises(ValueError, match='add up to more than the 3 ids'):
    api.embedding_bag(TABLE, IDS, jnp.int32(lengths))


@pytest.mark.parametrize('name', HERE)
def test_an_id_beyond_int32_is_no_row_under_jit(name):
  with jax.enable_x64(True):
    ids = jnp.int64([1, 2**32 + 2, -(2**32) + 2])
    rows = jax.jit(
      lambda i: api.gather(jnp.float32(TABLE), i, implementation=name)
    )(ids)
  assert np.isnan(rows[1:]).all() and np.isfinite(rows[0]).all()


@pytest.mark.parametrize('name', HERE)
@pytest.mark.parametrize('ids', [[1, 1, 3], [3, 1, 2], [1, 10, 3]])
def test_under_jit_rows_that_repeat_become_nan(name, ids):
  """A step for each repeat would be no update that anybody asked for."""
  new, _ = jax.jit(
    lambda i: update(i, slots={}, optimizer='sgd', implementation=name)
  )(jnp.int32(ids))
  named = [i for i in ids if i < 10]
  assert np.isnan(new[jnp.array(named)]).all()
  assert np.isfinite(np.delete(new, named, 0)).all()


@pytest.mark.parametrize('name', HERE)
def test_spare_places_read_zeros_if_asked(name):
  ids = jnp.int32([9, 10])
  out = api.gather(TABLE, ids, spare=True, implementation=name)
  np.testing.assert_array_equal(out, [[1] * 4, [0] * 4])


def test_an_unknown_backend_is_refused():
  with pytest.raises(NotImplementedError, match="no implementation 'tpu9'"):
    api.gather(TABLE, IDS, implementation='tpu9')


def test_everything_is_exported():
  for name in (
    'MergedRows', 'bag_row_gradient', 'bag_weight_gradient', 'distinct_rows',
    'embedding_bag', 'embedding_bag_backward_and_update', 'gather',
    'init_slots', 'merge_rows', 'update_rows',
  ):  # fmt: skip
    assert name in pallas_kernels.__all__
    assert getattr(pallas_kernels, name) is getattr(api, name)


# --- The C++ library.

TOO_LARGE = """
import resource
import jax, jax.numpy as jnp
import pallas_kernels

ids = jnp.zeros(8_000_000, jnp.int32)  # to be sorted in 256 MB
sort = jax.jit(lambda ids: pallas_kernels.distinct_rows(ids, 10))
sort = sort.lower(ids).compile()
with open('/proc/self/statm') as file:
  used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))
try:
  jax.block_until_ready(sort(ids))
except Exception as error:
  print(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(sort(ids)[:2])
"""


@pytest.mark.skipif('cpu' not in HERE, reason=str(cpu.why_not()))
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_too_little_memory_is_an_error_and_no_abort():
  done = subprocess.run(
    [sys.executable, '-c', TOO_LARGE], capture_output=True, text=True
  )
  assert 'not enough memory' in done.stdout, done.stderr
  assert '[ 0 10]' in done.stdout


@pytest.fixture
def fresh(monkeypatch, tmp_path):
  """No library is loaded, the cache is empty."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  native._load.cache_clear()
  yield tmp_path
  native._load.cache_clear()


def test_switched_off(monkeypatch):
  monkeypatch.setenv(native.SWITCH, '0')
  assert api._backend(None).__name__.endswith('.xla')
  with pytest.raises(NotImplementedError, match='PALLAS_KERNELS_CPU=0'):
    api.gather(TABLE, IDS, implementation='cpu')


def test_without_a_compiler_xla_is_taken_and_said_once(
  fresh, monkeypatch, caplog
):
  monkeypatch.delenv('CXX', raising=False)
  monkeypatch.setattr(compiler.shutil, 'which', lambda name: None)
  with caplog.at_level(logging.WARNING, 'pallas_kernels'):
    for _ in range(2):
      out = api.gather(TABLE, IDS)
  np.testing.assert_array_equal(out, TABLE[:3])
  (record,) = caplog.records
  assert 'g++ or clang++' in record.getMessage()
  with pytest.raises(NotImplementedError, match=r'none of c\+\+, g\+\+'):
    api.gather(TABLE, IDS, implementation='cpu')


def test_a_compiler_that_fails_is_quoted(fresh, monkeypatch):
  monkeypatch.setattr(compiler, '_find', lambda: 'c++')
  monkeypatch.setattr(
    compiler.subprocess,
    'run',
    lambda *args, **kwargs: subprocess.CompletedProcess(
      args, 1, '', 'note\nx.h:1: error: no such thing\n'
    ),
  )
  reason = native.why_not()
  assert 'c++ fails: x.h:1: error: no such thing' in reason
  assert not list(fresh.rglob('*.so'))


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  folder = compiler._cache()
  assert folder.is_dir() and tmp_path not in folder.parents
  folder.rmdir()


@pytest.mark.skipif('cpu' not in HERE, reason=str(cpu.why_not()))
def test_the_library_is_kept_under_a_name_of_its_inputs(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  made = []

  def compile_(command, path, *flags):
    made.append(path)
    path.write_bytes(b'code')
    path.with_suffix('.crc32').write_text(str(zlib.crc32(b'code')))

  monkeypatch.setattr(compiler, '_compile', compile_)
  first = compiler.make_library()
  path, mode = first, 0o600
  path.chmod(mode)
  assert compiler.make_library() == first and made == [first]
  # A damaged library would kill the process that runs it.
  for content, others in ((b'codf', 0), (b'', 0), (b'code', 0o022)):
    path.write_bytes(content)
    path.chmod(mode | others)
    made.clear()
    assert compiler.make_library() == first and made == [first]
    path.chmod(mode)
  monkeypatch.setattr(compiler, 'FLAGS', (*compiler.FLAGS, '-g'))
  assert compiler.make_library() != first


@pytest.mark.skipif('cpu' not in HERE, reason=str(cpu.why_not()))
def test_a_mesh_takes_xla_but_shard_map_the_library():
  mesh = jax.make_mesh((8,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
  with jax.set_mesh(mesh):
    assert 'shard_map' in cpu.why_not()
    assert api._backend(None).__name__.endswith('.xla')
  spec = jax.sharding.PartitionSpec('x')
  found = []

  def each(table, ids):
    found.append(api._backend(None).__name__)
    return api.gather(table, ids)

  out = jax.jit(
    jax.shard_map(
      each, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
    )
  )(jnp.arange(32.0).reshape(16, 2), jnp.zeros(8, jnp.int32))
  np.testing.assert_array_equal(out[:, 0], np.arange(0, 32, 4))
  assert found[-1].endswith('.cpu')


@pytest.mark.parametrize('name', shapes.SHAPES)
def test_shapes_are_what_they_say(name):
  shape = shapes.SHAPES[name]
  if shape.rows > 1_000_000:
    pytest.skip('too large for a quick test')
  lengths, ids = shapes.lengths(shape), shapes.ids(shape)
  assert lengths.shape == (shape.bags,) and ids.shape == (shape.capacity,)
  assert 0 <= lengths.min() and lengths.max() <= shape.length
  assert 0 <= ids.min() and ids.max() < shape.rows
  if name == 'million_uniform':
    assert len(np.unique(ids)) == pytest.approx(101_004, rel=0.005)
  if name == 'million_zipf':
    assert len(np.unique(ids)) == pytest.approx(32_158, rel=0.01)


@pytest.mark.parametrize('name', HERE)
def test_arrays_of_numpy_and_lists_are_taken(name):
  table, ids, lengths = np.ones((4, 2), np.float32), [0, 1], [2]
  grads = np.ones((1, 2), np.float32)
  options = dict(implementation=name)
  assert api.gather(table, ids, **options).tolist() == [[1, 1]] * 2
  assert api.gather(table, [], **options).shape == (0, 2)
  assert api.embedding_bag(table, ids, lengths, **options).tolist() == [[2, 2]]
  assert api.embedding_bag(table, [], [], **options).shape == (0, 2)
  merged = api.merge_rows(ids, table[:2], 4, **options)
  assert merged.ids.tolist() == [0, 1]
  assert api.merge_rows([3], [[1.0]], 4, **options).grads.tolist() == [[1.0]]
  found = api.bag_weight_gradient(table, grads, ids, lengths, **options)
  assert found.tolist() == [2, 2]
  options |= dict(optimizer='sgd', learning_rate=1.0)
  moved, _ = api.update_rows(table, {}, ids, table[:2], **options)
  assert moved[:, 0].tolist() == [0, 0, 1, 1]
  moved, _ = api.embedding_bag_backward_and_update(
    table, {}, ids, lengths, grads, **options
  )
  assert moved[:, 0].tolist() == [0, 0, 1, 1]
