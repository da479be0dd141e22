"""Row optimizers as training uses them; their rules: tests/kernels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from genrec_jax.embedding import lookup
from genrec_jax.embedding.row_optimizers import (
  ROW_OPTIMIZERS,
  RowOptimizer,
  find_optimizer,
)
from genrec_jax.embedding.row_settings import optimizer_of
from genrec_jax.features import TableSpec
from genrec_jax.numerics.row_rounding import round_rows
from pallas_kernels.hashing import element_bits, mix
from tests.kernels.row_update_oracle import plain_update
from tests.tolerances import assert_close

ROWS, WIDTH, STEPS, RATE = 30, 4, 5, 0.1


@pytest.mark.parametrize('name', ROW_OPTIMIZERS)
def test_several_steps_against_a_loop(name, key):
  """Occurrences of a row in a step count once, with their summed gradient."""
  optimizer = find_optimizer(name, decay='l2', weight_decay=0.01)
  table = jax.random.normal(key, (ROWS, WIDTH))
  slots = optimizer.init(table)
  expected, expected_slots = table, slots
  rng = np.random.default_rng(0)

  @jax.jit
  def step(table, slots, ids, grads):
    touched = lookup.distinct_ids([ids], ROWS)
    place = jnp.searchsorted(touched, ids)
    merged = jnp.zeros((len(touched), WIDTH)).at[place].add(grads)
    return optimizer.update(table, slots, touched, merged, RATE)

  for _ in range(STEPS):
    ids = rng.integers(0, ROWS // 2, 12)  # repeats; half is never touched
    grads = rng.standard_normal((12, WIDTH))
    merged = np.zeros((ROWS, WIDTH))
    np.add.at(merged, ids, grads)
    rows = np.unique(ids)
    expected, expected_slots = plain_update(
      optimizer, RATE, expected, expected_slots, rows, merged[rows]
    )
    table, slots = step(table, slots, jnp.int32(ids), jnp.float32(grads))
  assert_close(table, expected)
  assert slots.keys() == expected_slots.keys()
  for slot, values in slots.items():
    assert_close(values, expected_slots[slot])


@pytest.mark.parametrize('name', ROW_OPTIMIZERS)
def test_other_rows_keep_their_bits(name, key):
  """The fill behind the last id, a row beyond the table, writes nothing."""
  optimizer = ROW_OPTIMIZERS[name]
  table = jax.random.normal(key, (ROWS, WIDTH)).at[5, 0].set(-0.0)
  slots = {
    n: s + 0.1 if s.ndim else s for n, s in optimizer.init(table).items()
  }
  ids = jnp.int32([2, 3, ROWS, ROWS])
  grads = jnp.ones((4, WIDTH))
  after, slots_after = optimizer.update(table, slots, ids, grads, RATE)
  others = np.setdiff1d(np.arange(ROWS), [2, 3])
  assert np.all(np.asarray(after)[[2, 3]] != np.asarray(table)[[2, 3]])
  pairs = [(table, after)]
  pairs += [(slots[n], slots_after[n]) for n in slots if slots[n].ndim]
  for old, new in pairs:
    old, new = np.asarray(old)[others], np.asarray(new)[others]
    assert old.tobytes() == new.tobytes()


@pytest.mark.parametrize('name', ROW_OPTIMIZERS)
def test_a_row_without_gradient_stays(name, key):
  """Touched is not trained: the padding row is touched at every step."""
  optimizer = ROW_OPTIMIZERS[name]
  table = jax.random.normal(key, (ROWS, WIDTH))
  ids, grads = jnp.int32([0]), jnp.zeros((1, WIDTH))
  after, _ = optimizer.update(table, optimizer.init(table), ids, grads, RATE)
  np.testing.assert_array_equal(after, table)


@pytest.mark.parametrize('name', ['row_sgd', 'row_adagrad', 'row_lamb'])
def test_a_donated_table_is_changed_in_place(name):
  """Neither a copy of the table nor anything of its size is made."""
  optimizer = find_optimizer(
    name, decay='decoupled', weight_decay=0.1, max_norm=1.0
  )
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


@pytest.mark.parametrize('name', ROW_OPTIMIZERS)
def test_the_planner_knows_what_a_row_keeps(name):
  optimizer = ROW_OPTIMIZERS[name]
  made = optimizer.init(jnp.ones((ROWS, WIDTH)))
  found = optimizer.slot_shapes(ROWS, WIDTH)
  assert found == {n: x.shape for n, x in made.items()}
  floats = sum(x.size for x in made.values() if x.ndim)
  assert optimizer.slot_floats(WIDTH) * ROWS == floats


def test_counts_of_rows_are_kept_by_row():
  optimizer = find_optimizer('adam', row_count=True)
  assert optimizer.slot_floats(64) == 129
  assert optimizer.slot_shapes(9, 64)['count'] == (9,)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_chance_depends_on_step_and_table_not_on_the_shard(dtype):
  """Rows dealt out to two shards are what they are in the whole table."""
  optimizer = find_optimizer('row_adagrad', stochastic_rounding=True)
  table = jnp.ones((8, 64), dtype)
  grads = jnp.full((8, 64), 0.01)

  @jax.jit
  def run(table, grads, step, seed, numbers=None):
    ids = jnp.arange(len(table), dtype=jnp.int32)
    return optimizer.update(
      table, optimizer.init(table), ids, grads, 1e-3,
      step=step, seed=seed, row_numbers=numbers,
    )[0]  # fmt: skip

  whole = np.asarray(run(table, grads, 5, 0))
  assert len(np.unique(whole)) > 1
  np.testing.assert_array_equal(whole, run(table, grads, 5, 0))
  assert np.any(whole != run(table, grads, 6, 0))
  assert np.any(whole != run(table, grads, 5, 1))
  for shard in range(2):
    numbers = jnp.arange(4) * 2 + shard
    part = run(table[shard::2], grads[shard::2], 5, 0, numbers)
    np.testing.assert_array_equal(part, whole[shard::2])


@pytest.mark.parametrize('name', ['row_adagrad', 'adam'])
def test_tables_of_one_array_have_settings_of_their_own(name, key):
  own = [
    find_optimizer(name, eps=0.1, stochastic_rounding=True),
    find_optimizer(name, eps=0.2, stochastic_rounding=True, decay='l2',
            weight_decay=0.1, max_norm=1.5),
  ]  # fmt: skip
  table = jax.random.normal(key, (ROWS, WIDTH)).astype('bfloat16')
  slots = own[0].init(table)
  ids, groups = np.int32([1, 4, 7, 20]), np.int32([1, 0, 0, 1])
  grads = jax.random.normal(jax.random.key(1), (4, WIDTH))
  rates = jnp.float32([0.1, 0.3])
  together, _ = own[0].update(
    table, slots, ids, grads, rates, step=3, groups=groups, settings=own
  )
  for group, one in enumerate(own):
    mine = groups == group
    alone, _ = one.update(
      table, slots, ids[mine], grads[mine], rates[group], step=3
    )
    assert_close(together[ids[mine]], alone[ids[mine]], 'bfloat16')


def test_pieces_of_rows_with_their_row_squares_move_as_the_rows(key):
  """Row-wise AdaGrad of two halves, each with the squares of the whole."""
  own = [find_optimizer('row_adagrad', eps=eps) for eps in (0.1, 0.5)]
  table = jax.random.normal(key, (ROWS, WIDTH))
  ids, groups = jnp.int32([1, 4, 20]), jnp.int32([1, 0, 1])
  grads = jax.random.normal(jax.random.key(1), (3, WIDTH))
  options = dict(groups=groups, settings=own)
  slots, rates = own[0].init(table), jnp.float32([0.1, 0.3])
  whole, sums = own[0].update(table, slots, ids, grads, rates, **options)
  squares = jnp.mean(jnp.square(grads), axis=1)
  for half in (slice(0, WIDTH // 2), slice(WIDTH // 2, None)):
    piece, found = own[0].update(
      table[:, half], slots, ids, grads[:, half], rates,
      row_squares=squares, **options,
    )  # fmt: skip
    assert_close(piece, whole[:, half])
    assert_close(found['sum'], sums['sum'])


def test_what_may_be_cut_into_pieces():
  cut = [n for n, o in ROW_OPTIMIZERS.items() if o.takes_pieces]
  assert cut == ['sgd', 'row_sgd', 'momentum', 'row_adagrad', 'adagrad', 'adam']
  squares = [n for n, o in ROW_OPTIMIZERS.items() if o.needs_row_squares]
  assert squares == ['row_adagrad']
  assert not find_optimizer('adam', max_norm=1.0).takes_pieces
  assert find_optimizer('adam', decay='l2', weight_decay=0.1).takes_pieces
  assert not find_optimizer(
    'row_adagrad', decay='l2', weight_decay=0.1
  ).takes_pieces


def test_mistakes_are_told():
  with pytest.raises(ValueError, match="no row optimizer 'row_lion'; there"):
    find_optimizer('row_lion')
  with pytest.raises(ValueError, match=r"'adam' has no option \['betta'\]"):
    find_optimizer('adam', betta=0.1)
  with pytest.raises(ValueError, match="weight_decay=0.1 needs decay='l2'"):
    dataclasses.replace(ROW_OPTIMIZERS['adam'], weight_decay=0.1)
  optimizer = RowOptimizer('sgd', stochastic_rounding=True)
  table = jnp.ones((3, 2), jnp.bfloat16)
  with pytest.raises(ValueError, match='rounding to bfloat16 needs step='):
    optimizer.update(table, {}, jnp.int32([1]), jnp.ones((1, 2)), RATE)
  with pytest.raises(ValueError, match='stochastic_rounding is False in group'):
    optimizer.update(
      table, {}, jnp.int32([1]), jnp.ones((1, 2)), RATE, step=1,
      groups=jnp.int32([0]), settings=[RowOptimizer('sgd')],
    )  # fmt: skip


@pytest.mark.parametrize('decay', ['l2', 'decoupled'])
@pytest.mark.parametrize('strength', [0.0, 1.0])
@pytest.mark.parametrize('implementation', [None, 'xla', 'reference'])
def test_a_decay_of_all_or_nothing(decay, strength, implementation):
  table = jnp.array([[1.0, -2.0], [3.0, 4.0]])
  ids, grads = jnp.array([1]), jnp.array([[0.5, 0.25]])
  moved, _ = pallas_kernels.update_rows(
    table, {}, ids, grads, learning_rate=0.125, optimizer='sgd',
    weight_decay=strength, decay=decay, implementation=implementation,
  )  # fmt: skip
  row = table[1] - 0.125 * (grads[0] + strength * table[1])
  np.testing.assert_array_equal(moved, jnp.stack([table[0], row]))


def test_touched_rows_are_moved_onto_their_levels(key):
  """By chance: from the whole row, its number, the step and the seed."""
  optimizer = find_optimizer(
    'row_adagrad', packed_as='tbe_int4', stochastic_rounding=True
  )
  table = jax.random.normal(key, (ROWS, WIDTH))
  ids = np.int32([1, 4, 7, ROWS])
  grads = jax.random.normal(jax.random.key(1), (4, WIDTH))

  def run(step=3, seed=5, packed=optimizer, where=ids, **more):
    slots = packed.init(table)
    return packed.update(
      table, slots, where, grads, RATE, step=step, seed=seed, **more
    )

  found, slots = run()
  plain, plain_slots = run(packed=ROW_OPTIMIZERS['row_adagrad'])
  assert_close(slots['sum'], plain_slots['sum'])
  chance = mix(jnp.uint32(3) ^ mix(jnp.uint32(5)))
  bits = element_bits(chance, jnp.int32(ids[:3, None]), jnp.arange(WIDTH)[None])
  expected = round_rows(plain[ids[:3]], 'tbe_int4', bits)
  np.testing.assert_array_equal(found[ids[:3]], expected)
  others = np.setdiff1d(np.arange(ROWS), ids)
  np.testing.assert_array_equal(found[others], table[others])
  # Another step or seed is another chance; other numbers of rows, too.
  assert np.any(run(step=4)[0] != found) and np.any(run(seed=6)[0] != found)
  moved = run(row_numbers=jnp.int32([9, 9, 9, 9]))[0]
  assert np.any(moved != found)
  nearest = dataclasses.replace(optimizer, stochastic_rounding=False)
  np.testing.assert_array_equal(
    run(packed=nearest, step=None)[0][ids[:3]],
    round_rows(plain[ids[:3]], 'tbe_int4'),
  )


def test_tables_of_one_array_have_levels_of_their_own(key):
  own = [
    RowOptimizer('sgd', packed_as=name) for name in ('tbe_int2', '', 'tbe_int8')
  ]
  table = jax.random.normal(key, (ROWS, WIDTH))
  ids, groups = np.int32([1, 4, 7, 20]), np.int32([1, 0, 2, 1])
  grads = jax.random.normal(jax.random.key(1), (4, WIDTH))
  found, _ = own[0].update(
    table, {}, ids, grads, jnp.full(3, RATE), groups=groups, settings=own
  )
  plain = table[ids] - RATE * grads
  for n, group in enumerate(groups):
    row = plain[n : n + 1]
    if name := own[group].packed_as:
      row = round_rows(row, name)
    assert_close(found[ids[n]], row[0])


def test_levels_of_rows_that_cannot_be():
  with pytest.raises(ValueError, match="packed_as is 'mx6'; rows are rounded"):
    find_optimizer('adam', packed_as='mx6')
  optimizer = find_optimizer('adam', packed_as='tbe_int4')
  table = jnp.ones((3, 2), jnp.bfloat16)
  given = jnp.int32([1]), jnp.ones((1, 2)), RATE
  with pytest.raises(ValueError, match="'tbe_int4' and the table bfloat16"):
    optimizer.update(table, optimizer.init(table), *given)
  spec = TableSpec('t', 3, 2, update='adam', dtype='bfloat16')
  with pytest.raises(ValueError, match="'tbe_int4' and the dtype bfloat16"):
    optimizer_of(spec, {'packed_as': 'tbe_int4'})
  by_chance = dataclasses.replace(optimizer, stochastic_rounding=True)
  table = table.astype('float32')
  with pytest.raises(ValueError, match='rounding to tbe_int4 needs step='):
    by_chance.update(table, by_chance.init(table), *given)
