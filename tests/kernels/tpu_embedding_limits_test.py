"""What the TPU kernels of embeddings refuse, and that all else lowers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import pallas_kernels
from benchmarks import aot_compile_tpu_embedding
from pallas_kernels import dispatch
from pallas_kernels.jagged_embedding import api, tpu_lists, tpu_room
from tests.kernels.tpu_embedding_test import DIM, DTYPES, RATE, RULES
from tests.kernels.tpu_lowering import lower_for_tpu


@pytest.mark.parametrize('name', ['pallas_tpu', 'interpret'])
@pytest.mark.parametrize(
  'rows, dim, dtype, reason',
  [
    (4, 128, 'float16', 'table is float16, which TPUs do not compute with'),
    (4, 64, 'float32', 'table has 64 columns, .* fill it up to 128 columns'),
    (5, 128, 'bfloat16', 'table has 5 rows, which is odd'),
  ],
)
def test_what_is_refused(name, rows, dim, dtype, reason):
  table, ids = jnp.ones((rows, dim), dtype), jnp.int32([1])
  options = dict(implementation=name)
  calls = (
    lambda: api.gather(table, ids, **options),
    lambda: api.embedding_bag(table, ids, jnp.int32([1]), **options),
    lambda: api.update_rows(
      table, {}, ids, jnp.ones((1, dim)), learning_rate=1.0, optimizer='sgd',
      **options,
    ),
  )  # fmt: skip
  with dispatch.compiling_for('tpu', 'TPU v5e'):
    for call in calls:
      message = f"implementation '{name}' cannot run: {reason}"
      with pytest.raises(NotImplementedError, match=message):
        call()


def test_gradients_of_other_widths_are_refused():
  with pytest.raises(NotImplementedError, match='grads has 3 columns'):
    api.merge_rows(
      jnp.int32([1]), jnp.ones((1, 3)), 4, implementation='interpret'
    )


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_weights_of_any_float(dtype):
  table, grads = jnp.ones((20, DIM)), jnp.ones((2, DIM))
  ids, lengths = jnp.int32([1, 2, 1]), jnp.int32([2, 1])
  weights = jnp.asarray([0.5, 2.0, 4.0], dtype)
  merged, updated = [], []
  for name in ('interpret', 'xla'):
    options = dict(weights=weights, implementation=name)
    with jax.numpy_dtype_promotion('standard'):
      merged.append(api.bag_row_gradient(grads, ids, lengths, 20, **options))
      updated.append(
        api.embedding_bag_backward_and_update(
          table, {}, ids, lengths, grads, learning_rate=0.1, optimizer='sgd',
          **options,
        )
      )  # fmt: skip
  jax.tree.map(np.testing.assert_allclose, merged[0][:2], merged[1][:2])
  np.testing.assert_allclose(updated[0][0], updated[1][0])


def step(table, slots, ids, lengths, grads, rule):
  """A lookup and an update."""
  options = dict(implementation='pallas_tpu')
  out = api.embedding_bag(table, ids, lengths, **options)
  return out, api.embedding_bag_backward_and_update(
    table, slots, ids, lengths, grads, optimizer=rule, learning_rate=RATE,
    stochastic_rounding_seed=3, **options,
  )  # fmt: skip


def shapes_of(rule, rows=1000, dim=DIM, dtype='float32', ids=64, bags=32):
  """Arguments of `step`."""
  shape = jax.ShapeDtypeStruct
  table = shape((rows, dim), dtype)
  state = jax.eval_shape(lambda table: api.init_slots(table, rule), table)
  of_bags = shape((bags,), 'int32'), shape((bags, dim), 'float32')
  return table, state, shape((ids,), 'int32'), *of_bags


def check_lowering(rule, dtype):
  run = functools.partial(step, rule=rule)
  lowered = lower_for_tpu(run, *shapes_of(rule, dtype=dtype))
  assert lowered.count('tpu_custom_call') == 2
  for kernel in ('sums', 'moves'):
    assert f'jagged_embedding_{kernel}' in lowered


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('name', RULES)
def test_kernels_lower_for_a_tpu(name, dtype):
  check_lowering(RULES[name], dtype)


@pytest.mark.parametrize('dtype', DTYPES)
def test_kernels_lower_where_64_bits_are_switched_on(dtype):
  with jax.enable_x64(True):
    check_lowering(RULES['row_lamb'], dtype)


def test_what_fits_no_memory_is_refused():
  rule = RULES['adam']
  run = functools.partial(step, rule=rule)
  with pytest.raises(NotImplementedError, match='rows of 32768 columns take'):
    lower_for_tpu(run, *shapes_of(rule, dim=1 << 15))
  with pytest.raises(NotImplementedError, match='steps of a TPU kernel need'):
    lower_for_tpu(run, *shapes_of(rule, ids=1 << 25, bags=1 << 25))


def test_memory_is_counted():
  scratch = {
    'a': pltpu.VMEM((2, 8, 128), jnp.bfloat16),
    'b': [pltpu.VMEM((4,), jnp.float32), pltpu.SMEM((3,), jnp.int32)],
    'c': pltpu.SemaphoreType.DMA((2,)),
  }
  assert tpu_room.count_bytes(scratch, pltpu.VMEM) == 4096 + 16
  assert tpu_room.count_bytes(scratch, pltpu.SMEM) == 12


def test_it_says_where_it_runs():
  found = pallas_kernels.list_backends('jagged_embedding')
  assert found['pallas_tpu'].startswith('cannot run: it needs tpu')
  assert found['interpret'] == 'runs if it is asked for'
  with dispatch.compiling_for('tpu', 'TPU v5e'):
    found = pallas_kernels.list_backends('jagged_embedding')
  assert found['pallas_tpu'] == 'runs if it is asked for'
  assert found['xla'] == 'runs without being asked for'


def test_bytes_are_those_of_the_copies():
  """Two chunks of ids, 1,000 sums; and of an update there and back."""
  table, ids = jnp.ones((2000, DIM)), jnp.arange(1000, dtype=jnp.int32)
  state = api.init_slots(table, 'row_adam')

  def moved(call):
    with aot_compile_tpu_embedding.record_kernels() as kernels:
      jax.eval_shape(call)
    return kernels[0]['moved']

  def update():
    return api.embedding_bag_backward_and_update(
      table, state, ids, None, table[:1000], learning_rate=RATE,
      optimizer='row_adam', implementation='interpret',
    )  # fmt: skip

  row, visits, places = 4 * DIM, 1024, 1024
  numbers = visits * 2 * 4
  lookup = moved(lambda: api.gather(table, ids, implementation='interpret'))
  assert lookup == visits * row + numbers + 1000 * row
  # A row and its mean, there and back; its number; mean squares by lines of
  # 128, of which a table of 2,000 rows has 16.
  there_and_back = places * (2 * 2 * row + 4) + 16 * 2 * 4 * 128
  assert moved(update) == visits * row + numbers + there_and_back


@pytest.mark.parametrize('lengths', [[2, 0, 3], [0, 0], [5, 0], [0, 6, 0, 1]])
def test_segments(lengths):
  lengths = jnp.int32(lengths)
  for count in (7, 9):
    np.testing.assert_array_equal(
      tpu_lists.find_segments(lengths, count),
      pallas_kernels.segment_ids(lengths, count),
    )


def test_places():
  """Rows of 16 bits in units, what is no row left out, and then skipped."""
  ids = jnp.int32([-1, 2, 3, 3, 8, 9, 10, 10])
  places = tpu_lists.list_places(ids, rows=10, planes=2)
  assert places.rows.shape == (1, 2, tpu_lists.SEGMENTS)
  assert places.rows[0, :, :3].tolist() == [[2, 8, -1], [3, 9, -1]]
  lanes = tpu_lists.SEGMENTS
  assert places.place.tolist() == [
    2 * lanes, 0, lanes, lanes, 1, lanes + 1, 2 * lanes, 2 * lanes,
  ]  # fmt: skip
  assert (places.codes[1:6] // 4).tolist() == [0, lanes, lanes, 1, lanes + 1]
  skipped = np.asarray(places.codes) % 4 == tpu_lists.SKIP
  assert skipped.tolist() == [True] + [False] * 5 + [True] * 2
  assert places.bounds.tolist() == [0, 6]


def test_updates_of_several_tables_lower():
  def update(table, sums, ids, grads):
    return api.update_rows(
      table, {'sum': sums}, ids, grads, learning_rate=RATE,
      implementation='pallas_tpu',
    )  # fmt: skip

  text = lower_for_tpu(
    jax.vmap(update),
    jnp.ones((2, 300, DIM)),
    jnp.zeros((2, 300)),
    jnp.tile(jnp.arange(4), (2, 1)),
    jnp.ones((2, 4, DIM)),
  )
  assert 'tpu_custom_call' in text
