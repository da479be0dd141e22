"""Row updates: against a loop over rows, rounding, memory, determinism."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged_embedding import api, cpu, rounding
from pallas_kernels.jagged_embedding.spec import SLOTS
from tests.kernels.embedding_cases import HERE, inputs, slots
from tests.tolerances import assert_close

RATE, EPS, BETA1, BETA2 = 0.1, 1e-6, 0.8, 0.95
OPTIONS = dict(learning_rate=RATE, eps=EPS, beta1=BETA1, beta2=BETA2)


def plain_step(optimizer, row, state, grad):
  """Moves `row` and the arrays of `state`, for one row."""
  if optimizer == 'sgd':
    row -= RATE * grad
  elif optimizer == 'row_adagrad':
    state['sum'][...] += np.mean(grad**2)
    row -= RATE * grad / (np.sqrt(state['sum']) + EPS)
  elif optimizer == 'adagrad':
    state['sum'] += grad**2
    row -= RATE * grad / (np.sqrt(state['sum']) + EPS)
  elif optimizer == 'adam':
    count = state['count']
    state['mean'] += (1 - BETA1) * (grad - state['mean'])
    state['variance'] += (1 - BETA2) * (grad**2 - state['variance'])
    mean = state['mean'] / (1 - BETA1**count)
    variance = state['variance'] / (1 - BETA2**count)
    row -= RATE * mean / (np.sqrt(variance) + EPS)


def plain_update(optimizer, table, state, merged):
  table = np.array(table, np.float64)
  state = {
    n: np.array(x, np.float64 if n != 'count' else np.int64)
    for n, x in state.items()
  }
  if optimizer == 'adam':
    state['count'] += 1
  for id_, grad in zip(*map(np.asarray, merged), strict=True):
    if id_ < len(table):
      of_row = {
        n: x if n == 'count' else x[id_ : id_ + 1].reshape(x.shape[1:])
        for n, x in state.items()
      }
      plain_step(optimizer, table[id_], of_row, np.float64(grad))
  return table, state


def same(actual, expected, dtype='float32'):
  assert_close(actual[0], expected[0], dtype)
  assert actual[1].keys() == expected[1].keys()
  for name, values in actual[1].items():
    assert_close(values, expected[1][name], name=name)


@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize(
  'shape, dtype', [('narrow', 'float32'), ('wide', 'bfloat16')]
)
@pytest.mark.parametrize('name', HERE)
def test_updates_against_a_loop(name, shape, dtype, optimizer):
  """Merged first, then moved once; both ways, fused and in two steps."""
  case = inputs(shape, dtype)
  table, state = case['table'], slots(case['table'], optimizer)
  bags = case['ids'], case['lengths']
  merged = api.bag_row_gradient(
    case['grads'], *bags, table.shape[0], weights=case['weights'], mode='mean',
    implementation='reference',
  )  # fmt: skip
  expected = plain_update(optimizer, table, state, merged)
  options = dict(optimizer=optimizer, implementation=name, **OPTIONS)
  same(api.update_rows(table, state, *merged, **options), expected, dtype)
  fused = api.embedding_bag_backward_and_update(
    table, state, *bags, case['grads'],
    mode='mean', weights=case['weights'], **options,
  )  # fmt: skip
  same(fused, expected, dtype)
  untouched = np.setdiff1d(np.arange(table.shape[0]), merged.ids)
  for old, new in [(table, fused[0])] + [
    (state[n], fused[1][n]) for n in SLOTS[optimizer]
  ]:
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


@pytest.mark.parametrize('name', HERE)
def test_stochastic_rounding_is_without_bias(name):
  """A step of an eighth of the last bit moves an eighth of the elements."""
  rows, dim = 400, 48
  table = jnp.ones((rows, dim), jnp.bfloat16)
  step = 2.0**-10  # below one, bfloat16 counts in 2 ** -8

  @jax.jit
  def update(seed):
    new, _ = api.update_rows(
      table, {}, jnp.arange(rows), jnp.full((rows, dim), step),
      learning_rate=1.0, optimizer='sgd', stochastic_rounding_seed=seed,
      implementation=name,
    )  # fmt: skip
    return new

  first = np.asarray(update(jnp.uint32(7)), np.float64)
  assert set(np.unique(first)) == {1.0, 1.0 - 2.0**-8}
  share = np.mean(first < 1)
  deviation = np.sqrt(0.25 * 0.75 / first.size)
  assert abs(share - 0.25) < 5 * deviation
  # Neither rows nor columns nor seeds go together.
  assert np.mean(first < 1, axis=0).std() < 2 * np.sqrt(0.1875 / rows)
  assert np.mean(first < 1, axis=1).std() < 2 * np.sqrt(0.1875 / dim)
  other = np.asarray(update(jnp.uint32(8)), np.float64)
  assert abs(np.mean((first < 1) & (other < 1)) - 1 / 16) < 6 * deviation
  # Each backend draws the same bits, those of the plain hash.
  bits = plain_noise(7, rows, dim)
  value = np.float32(1 - step).view(np.uint32)
  expected = ((value + bits) & np.uint32(0xFFFF0000)).view(np.float32)
  np.testing.assert_array_equal(first, expected)


def plain_noise(seed, rows, dim):
  def mix(x):
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) % 2**32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) % 2**32
    return x ^ (x >> 16)

  return np.array(
    [
      [
        mix((mix(seed ^ mix(row)) + column * 0x9E3779B9) % 2**32) >> 16
        for column in range(dim)
      ]
      for row in range(rows)
    ],
    np.uint32,
  )


def test_rounding_keeps_what_is_not_finite():
  x = jnp.float32([[jnp.inf, -jnp.inf, jnp.nan, 0.0, -0.0]])
  out = rounding.stochastic(x, jnp.uint32(3), jnp.int32([9]))
  np.testing.assert_array_equal(np.float32(out), x)


@pytest.mark.parametrize('optimizer', ['row_adagrad', 'adam'])
@pytest.mark.parametrize('name', [n for n in HERE if n != 'reference'])
def test_a_donated_table_is_changed_in_place(name, optimizer):
  """Forward, backward, update in one program: no copy of the table."""
  rows, dim, bags, capacity = 100_000, 16, 8, 64
  shape = jax.ShapeDtypeStruct
  table = shape((rows, dim), jnp.float32)
  state = jax.eval_shape(lambda t: api.init_slots(t, optimizer), table)

  def step(table, state, ids, lengths):
    out = api.embedding_bag(table, ids, lengths, implementation=name)
    return jnp.sum(out), *api.embedding_bag_backward_and_update(
      table, state, ids, lengths, jnp.cos(out),
      learning_rate=0.1, optimizer=optimizer, implementation=name,
    )  # fmt: skip

  compiled = (
    jax.jit(step, donate_argnums=(0, 1))
    .lower(
      table, state, shape((capacity,), jnp.int32), shape((bags,), jnp.int32)
    )
    .compile()
  )
  memory = compiled.memory_analysis()
  held = sum(4 * x.size for x in jax.tree.leaves((table, state)))
  assert memory.alias_size_in_bytes == held
  assert memory.temp_size_in_bytes < held / 100
  table = jnp.ones((rows, dim))
  where = table.unsafe_buffer_pointer()
  _, new, _ = compiled(
    table,
    api.init_slots(table, optimizer),
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
def test_the_number_of_threads_changes_no_bit(monkeypatch):
  rng = np.random.default_rng(0)
  rows, dim, bags, length = 20_000, 24, 3000, 9
  ids = jnp.int32(np.minimum(rng.zipf(1.2, bags * length), rows) - 1)
  lengths = jnp.full(bags, length, jnp.int32)
  table = jnp.float32(rng.normal(size=(rows, dim)))
  grads = jnp.float32(rng.normal(size=(bags, dim)))
  results = []
  for threads in ('1', '2', '5', '5'):
    monkeypatch.setenv(cpu.THREADS, threads)
    out = api.embedding_bag(table, ids, lengths, implementation='cpu')
    new, state = api.embedding_bag_backward_and_update(
      table, api.init_slots(table, 'adagrad'), ids, lengths, grads,
      learning_rate=0.1, optimizer='adagrad', implementation='cpu',
    )  # fmt: skip
    merged = api.bag_row_gradient(
      grads, ids, lengths, rows, implementation='cpu'
    )
    results.append(
      [np.asarray(x).tobytes() for x in (out, new, state['sum'], *merged)]
    )
  assert results[0] == results[1] == results[2] == results[3]


@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_the_xla_path_lowers_for_accelerators(platform):
  shape = jax.ShapeDtypeStruct
  table = shape((64, 8), jnp.bfloat16)
  state = jax.eval_shape(lambda t: api.init_slots(t, 'adam'), table)

  def step(table, state, ids, lengths, weights):
    out = api.embedding_bag(
      table, ids, lengths, weights=weights, implementation='xla'
    )
    return api.embedding_bag_backward_and_update(
      table, state, ids, lengths, out, weights=weights, learning_rate=0.1,
      optimizer='adam', stochastic_rounding_seed=3, implementation='xla',
    )  # fmt: skip

  ints, floats = shape((32,), jnp.int32), shape((32,), jnp.float32)
  lowered = (
    jax.jit(step, donate_argnums=(0, 1))
    .trace(table, state, ints, shape((4,), jnp.int32), floats)
    .lower(lowering_platforms=(platform,))
  )
  assert 'custom_call' not in lowered.as_text()
