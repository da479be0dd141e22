"""Row optimizers against a loop over rows, and what they leave alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import lookup
from genrec_jax.embedding.row_optimizers import EPS, ROW_OPTIMIZERS
from tests.tolerances import assert_close

ROWS, WIDTH, STEPS, RATE = 30, 4, 5, 0.1


def sgd(table, slots, row, grad):
  table[row] -= RATE * grad


def adagrad(table, slots, row, grad):
  slots['sum'][row] += np.mean(grad**2)
  table[row] -= RATE * grad / (np.sqrt(slots['sum'][row]) + EPS)


PLAIN = {'row_sgd': sgd, 'row_adagrad': adagrad}


def test_every_optimizer_is_tested():
  assert set(PLAIN) == set(ROW_OPTIMIZERS)


@pytest.mark.parametrize('name', PLAIN)
def test_several_steps_against_a_loop(name, key):
  """Occurrences of a row in a step count once, with their summed gradient."""
  optimizer = ROW_OPTIMIZERS[name]
  table = jax.random.normal(key, (ROWS, WIDTH))
  slots = optimizer.init(table)
  expected = np.asarray(table, np.float64)
  expected_slots = {n: np.asarray(s, np.float64) for n, s in slots.items()}
  rng = np.random.default_rng(0)

  @jax.jit
  def step(table, slots, ids, grads):
    touched = lookup.distinct([ids], ROWS)
    place = jnp.searchsorted(touched, ids)
    merged = jnp.zeros((len(touched), WIDTH)).at[place].add(grads)
    return optimizer.update(table, slots, touched, merged, RATE)

  for _ in range(STEPS):
    ids = rng.integers(0, ROWS // 2, 12)  # repeats; half is never touched
    grads = rng.standard_normal((12, WIDTH))
    merged = np.zeros((ROWS, WIDTH))
    np.add.at(merged, ids, grads)
    for row in np.unique(ids):
      PLAIN[name](expected, expected_slots, row, merged[row])
    table, slots = step(table, slots, jnp.int32(ids), jnp.float32(grads))
  assert_close(table, expected)
  assert slots.keys() == expected_slots.keys()
  for slot, values in slots.items():
    assert_close(values, expected_slots[slot])


@pytest.mark.parametrize('name', PLAIN)
def test_other_rows_keep_their_bits(name, key):
  """The fill behind the last id, a row beyond the table, writes nothing."""
  optimizer = ROW_OPTIMIZERS[name]
  table = jax.random.normal(key, (ROWS, WIDTH)).at[5, 0].set(-0.0)
  slots = jax.tree.map(lambda s: s + 0.1, optimizer.init(table))
  ids = jnp.int32([2, 3, ROWS, ROWS])
  grads = jnp.ones((4, WIDTH))
  after, slots_after = optimizer.update(table, slots, ids, grads, RATE)
  others = np.setdiff1d(np.arange(ROWS), [2, 3])
  assert np.all(np.asarray(after)[[2, 3]] != np.asarray(table)[[2, 3]])
  for old, new in [
    (table, after),
    *[(slots[n], slots_after[n]) for n in slots],
  ]:
    assert (
      np.asarray(old)[others].tobytes() == np.asarray(new)[others].tobytes()
    )


@pytest.mark.parametrize('name', PLAIN)
def test_a_row_without_gradient_stays(name, key):
  """Touched is not trained: the padding row is touched at every step."""
  optimizer = ROW_OPTIMIZERS[name]
  table = jax.random.normal(key, (ROWS, WIDTH))
  ids, grads = jnp.int32([0]), jnp.zeros((1, WIDTH))
  after, _ = optimizer.update(table, optimizer.init(table), ids, grads, RATE)
  np.testing.assert_array_equal(after, table)


@pytest.mark.parametrize('name', PLAIN)
def test_a_donated_table_is_changed_in_place(name):
  """Neither a copy of the table nor anything of its size is made."""
  optimizer = ROW_OPTIMIZERS[name]
  rows, width, touched = 100_000, 16, 64
  table = jax.ShapeDtypeStruct((rows, width), jnp.float32)
  slots = jax.eval_shape(optimizer.init, table)
  ids = jax.ShapeDtypeStruct((touched,), jnp.int32)
  grads = jax.ShapeDtypeStruct((touched, width), jnp.float32)

  def update(table, slots, ids, grads):
    return optimizer.update(table, slots, ids, grads, RATE)

  memory = (
    jax.jit(update, donate_argnums=(0, 1))
    .lower(table, slots, ids, grads)
    .compile()
    .memory_analysis()
  )
  held = sum(x.size * 4 for x in (table, *slots.values()))
  assert memory.alias_size_in_bytes == held
  assert memory.temp_size_in_bytes < held / 100


def test_a_donated_table_keeps_its_buffer():
  optimizer = ROW_OPTIMIZERS['row_adagrad']
  table = jnp.ones((1000, 16))
  slots = optimizer.init(table)
  update = jax.jit(optimizer.update, donate_argnums=(0, 1))
  where = table.unsafe_buffer_pointer()
  after, _ = update(table, slots, jnp.int32([3]), jnp.ones((1, 16)), RATE)
  assert after.unsafe_buffer_pointer() == where
  assert table.is_deleted()
