"""Row updates: both ways to them, memory, determinism."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged_embedding import api, cpu
from pallas_kernels.jagged_embedding.spec import Rule
from tests.kernels.embedding_cases import (
  HERE,
  assert_rounded_once,
  inputs,
  slots,
)
from tests.kernels.row_update_oracle import plain_update
from tests.tolerances import assert_close

RATE = 0.1


@pytest.mark.parametrize('optimizer', ['row_adagrad', 'lamb'])
@pytest.mark.parametrize(
  'shape, dtype',
  [('narrow', 'float32'), ('wide', 'bfloat16'), ('tiny', 'float16')],
)
@pytest.mark.parametrize('name', HERE)
def test_updates_against_a_loop(name, shape, dtype, optimizer):
  """Merged first, then moved once; both ways, fused and in two steps."""
  case = inputs(shape, dtype)
  rule = Rule(optimizer, eps=1e-6, beta1=0.8, beta2=0.95)
  table, state = case['table'], slots(case['table'], rule)
  bags = case['ids'], case['lengths']
  merged = api.bag_row_gradient(
    case['grads'], *bags, table.shape[0], weights=case['weights'], mode='mean',
    implementation='reference',
  )  # fmt: skip
  real = np.asarray(merged.ids) < table.shape[0]
  expected, expected_slots = plain_update(
    rule, RATE, table, state, merged.ids[real], merged.grads[real]
  )
  options = dict(optimizer=rule, implementation=name, learning_rate=RATE)

  @jax.jit
  def both(table, state, merged, bags, grads, weights):
    return api.update_rows(
      table, state, *merged, **options
    ), api.embedding_bag_backward_and_update(
      table, state, *bags, grads, mode='mean', weights=weights, **options
    )

  made = both(table, state, merged, bags, case['grads'], case['weights'])
  fused = made[1]
  for new, new_slots in made:
    assert_rounded_once(new, expected)
    assert new_slots.keys() == expected_slots.keys()
    for slot, values in new_slots.items():
      assert_close(values, expected_slots[slot], name=slot)
  untouched = np.setdiff1d(np.arange(table.shape[0]), merged.ids)
  pairs = [(table, fused[0])]
  pairs += [(state[n], x) for n, x in fused[1].items() if x.ndim]
  for old, new in pairs:
    old, new = np.asarray(old)[untouched], np.asarray(new)[untouched]
    assert old.tobytes() == new.tobytes()


@pytest.mark.parametrize('name', HERE)
def test_update_after_a_gather(name):
  """Without lengths each id has a gradient of its own."""
  ids = jnp.int32([4, 1, 4, 6])  # of six rows: 6 is a spare place
  grads = jnp.float32([[1, 2], [3, 4], [5, 6], [9, 9]])
  new, _ = api.embedding_bag_backward_and_update(
    jnp.zeros((6, 2)), {}, ids, None, grads,
    learning_rate=1.0, optimizer='sgd', implementation=name,
  )  # fmt: skip
  expected = np.zeros((6, 2))
  expected[[1, 4]] = [[-3, -4], [-6, -8]]
  np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize(
  'optimizer, limit, dtype',
  [
    ('row_adagrad', None, 'float32'),
    ('adam', None, 'float32'),
    ('lars', 2, 'float32'),
    ('row_lamb', 2, 'float16'),
  ],
)
@pytest.mark.parametrize('name', [n for n in HERE if n != 'reference'])
def test_a_donated_table_is_changed_in_place(name, optimizer, limit, dtype):
  """Forward, backward, update in one program: no copy of the table."""
  rows, dim, bags, capacity = 100_000, 16, 8, 64
  shape = jax.ShapeDtypeStruct
  table = shape((rows, dim), dtype)
  rule = Rule(optimizer, decay='decoupled', weight_decay=0.1, max_norm=limit)
  state = jax.eval_shape(lambda t: api.init_slots(t, rule), table)

  def step(table, state, ids, lengths):
    out = api.embedding_bag(table, ids, lengths, implementation=name)
    return jnp.sum(out), *api.embedding_bag_backward_and_update(
      table, state, ids, lengths, jnp.cos(out),
      learning_rate=0.1, optimizer=rule, implementation=name,
    )  # fmt: skip

  compiled = (
    jax.jit(step, donate_argnums=(0, 1))
    .lower(
      table, state, shape((capacity,), jnp.int32), shape((bags,), jnp.int32)
    )
    .compile()
  )
  memory = compiled.memory_analysis()
  held = sum(x.dtype.itemsize * x.size for x in jax.tree.leaves((table, state)))
  assert memory.alias_size_in_bytes == held
  assert memory.temp_size_in_bytes < held / 100
  table = jnp.ones((rows, dim), dtype)
  where = table.unsafe_buffer_pointer()
  _, new, _ = compiled(
    table,
    api.init_slots(table, rule),
    jnp.arange(capacity, dtype=jnp.int32),
    jnp.full(bags, 8, jnp.int32),
  )
  assert new.unsafe_buffer_pointer() == where and table.is_deleted()


@pytest.mark.parametrize('name', HERE)
def test_without_donation_the_old_table_stays(name):
  case = inputs('narrow')
  before = np.asarray(case['table']).copy()
  api.embedding_bag_backward_and_update(
    case['table'], {}, case['ids'], case['lengths'], case['grads'],
    learning_rate=1.0, optimizer='sgd', implementation=name,
  )  # fmt: skip
  np.testing.assert_array_equal(case['table'], before)


@pytest.mark.skipif('cpu' not in HERE, reason=str(cpu.why_not()))
@pytest.mark.parametrize(
  'optimizer, dtype',
  [('adagrad', 'float32'), ('row_adam', 'float16'), ('lamb', 'bfloat16')],
)
def test_the_number_of_threads_changes_no_bit(monkeypatch, optimizer, dtype):
  rng = np.random.default_rng(0)
  rows, dim, bags, length = 20_000, 24, 3000, 9
  ids = jnp.int32(np.minimum(rng.zipf(1.2, bags * length), rows) - 1)
  lengths = jnp.full(bags, length, jnp.int32)
  table = jnp.float32(rng.normal(size=(rows, dim))).astype(dtype)
  grads = jnp.float32(rng.normal(size=(bags, dim)))
  rule = Rule(optimizer, decay='l2', weight_decay=0.1, max_norm=5.0)
  results = []
  for threads in ('1', '2', '5', '5'):
    monkeypatch.setenv(cpu.THREADS, threads)
    out = api.embedding_bag(table, ids, lengths, implementation='cpu')
    new, state = api.embedding_bag_backward_and_update(
      table, api.init_slots(table, rule), ids, lengths, grads,
      learning_rate=0.1, optimizer=rule, implementation='cpu',
      stochastic_rounding_seed=3,
    )  # fmt: skip
    merged = api.bag_row_gradient(
      grads, ids, lengths, rows, implementation='cpu'
    )
    made = out, new, *state.values(), *merged
    results.append([np.asarray(x).tobytes() for x in made])
  assert results[0] == results[1] == results[2] == results[3]


@pytest.mark.parametrize(
  'platform, optimizer, dtype',
  [('cuda', 'adam', 'bfloat16'), ('tpu', 'row_lamb', 'float16')],
)
def test_the_xla_path_lowers_for_accelerators(platform, optimizer, dtype):
  shape = jax.ShapeDtypeStruct
  table = shape((64, 8), dtype)
  state = jax.eval_shape(lambda t: api.init_slots(t, optimizer), table)

  def step(table, state, ids, lengths, weights):
    out = api.embedding_bag(
      table, ids, lengths, weights=weights, implementation='xla'
    )
    return api.embedding_bag_backward_and_update(
      table, state, ids, lengths, out, weights=weights, learning_rate=0.1,
      optimizer=optimizer, stochastic_rounding_seed=3, implementation='xla',
    )  # fmt: skip

  ints, floats = shape((32,), jnp.int32), shape((32,), jnp.float32)
  lowered = (
    jax.jit(step, donate_argnums=(0, 1))
    .trace(table, state, ints, shape((4,), jnp.int32), floats)
    .lower(lowering_platforms=(platform,))
  )
  assert 'custom_call' not in lowered.as_text()
