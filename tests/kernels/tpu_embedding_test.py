"""The Pallas TPU kernels of embeddings, interpreted, against other backends.

What interprets a kernel takes seconds to compile, so a case asks for much at
once. Chunks are short and few rows are under way, so that some hundred ids go
round all of the kernels' memory. tpu_embedding_limits_test.py has what is
refused, and aot_tpu_embedding_test.py compiles the kernels for real chips.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged_embedding import api, tpu_lists, tpu_walk
from pallas_kernels.jagged_embedding.spec import Rule
from tests.kernels.embedding_cases import (
  assert_rounded_once,
  padded_inputs,
  slots,
)
from tests.tolerances import assert_close

ROWS, DIM = 420, 128
DTYPES = ('float32', 'bfloat16')
PADDING = 7
RATE = 0.1
RULES = {
  'sgd': Rule('sgd'),
  'momentum': Rule('momentum', decay='decoupled', weight_decay=0.2),
  'lars': Rule('lars', decay='l2', weight_decay=0.2),
  'row_adagrad': Rule('row_adagrad', decay='l2', weight_decay=0.2),
  'adagrad': Rule('adagrad', max_norm=2.0),
  'row_adam': Rule('row_adam', beta1=0.8, row_count=True),
  'adam': Rule('adam', decay='decoupled', weight_decay=0.2),
  'adam by row': Rule('adam', beta1=0.0, row_count=True, max_norm=2.0),
  'row_lamb': Rule('row_lamb', decay='decoupled', weight_decay=0.2),
  'lamb': Rule('lamb', decay='l2', weight_decay=0.2, row_count=True),
}
# Between them: slots of rows and of elements, counts, decay, a largest norm.
QUICK = [('float32', 'row_adagrad'), ('bfloat16', 'row_adam')]


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
  monkeypatch.setattr(tpu_lists, 'CHUNK', 16)
  monkeypatch.setattr(tpu_walk, 'RING', 8)


@functools.cache
def inputs(dtype: str) -> dict:
  """More bags than a step has; a frequent row, long bags, padding."""
  rng = np.random.default_rng(0)
  lengths = rng.integers(0, 8, 170, dtype=np.int32)
  lengths[[3, 150]] = 40, 0
  return padded_inputs(rng, lengths, ROWS, DIM, dtype, (5, 0.1), PADDING)


def test_the_case_goes_round_all_memory():
  case = inputs('float32')
  used = np.unique(case['ids'][:-PADDING])
  assert tpu_lists.count_steps(len(used)) >= 3  # of two halves
  assert len(case['ids']) > 2 * tpu_lists.CHUNK * tpu_walk.CHUNKS
  assert len(case['lengths']) > tpu_lists.SEGMENTS


def look_up(case: dict, name: str) -> dict:
  """Lookups of all kinds, and merged gradients."""
  table, ids, lengths = (case[n] for n in ('table', 'ids', 'lengths'))
  options = dict(implementation=name)
  mean = dict(mode='mean', weights=case['weights'], **options)
  # Rows with what is no row, and -0, between them.
  odd = jnp.int32([3, ROWS, 0, -1, 7, 2 * ROWS, ROWS - 1])
  table = table.at[7, :3].set(-0.0)
  merged = api.bag_row_gradient(case['grads'], ids, lengths, ROWS, **mean)
  return {
    'gather': api.gather(table, ids, lengths=lengths, **options),
    'spare': api.gather(table, odd, spare=True, **options),
    'sum': api.embedding_bag(table, ids, lengths, **options),
    'mean': api.embedding_bag(table, ids, lengths, **mean),
    'ids': merged.ids,
    'grads': merged.grads,
  }


@pytest.mark.parametrize('dtype', DTYPES)
def test_lookups_and_merged_gradients(dtype):
  found, xla, oracle = (
    jax.jit(functools.partial(look_up, name=name))(inputs(dtype))
    for name in ('interpret', 'xla', 'reference')
  )
  for name in ('gather', 'spare', 'ids'):
    assert found[name].dtype == xla[name].dtype
    # Also the sign of a zero.
    np.testing.assert_array_equal(*(np.float32(x[name]) for x in (found, xla)))
    np.testing.assert_array_equal(
      *(np.signbit(np.float32(x[name])) for x in (found, xla))
    )
  for name in ('sum', 'mean'):
    assert found[name].dtype == dtype
    assert_close(found[name], oracle[name], dtype)
    assert_close(found[name], xla[name], dtype)
  assert_close(found['grads'], xla['grads'])
  np.testing.assert_array_equal(found['ids'], oracle['ids'])


def move(case: dict, state: dict, rule: Rule, name: str):
  """An update in one pass, and one of every other merged gradient."""
  options = dict(
    optimizer=rule, learning_rate=RATE, stochastic_rounding_seed=3,
    implementation=name,
  )  # fmt: skip
  table, ids, lengths = (case[n] for n in ('table', 'ids', 'lengths'))
  weights = jnp.nan_to_num(case['weights'])
  merged = api.bag_row_gradient(
    case['grads'], ids, lengths, ROWS, implementation='xla'
  )
  some = merged.ids[::2], merged.grads[::2]
  unused = jnp.full((1, DIM), jnp.nan)
  return (
    api.embedding_bag_backward_and_update(
      table, state, ids, lengths, case['grads'], weights=weights, **options
    ),
    api.update_rows(
      table, state, jnp.append(some[0], ROWS),
      jnp.append(some[1], unused, axis=0), **options,
    ),
  )  # fmt: skip


@pytest.mark.parametrize(
  'dtype, name',
  [
    pytest.param(
      dtype, name, marks=() if (dtype, name) in QUICK else pytest.mark.slow
    )
    for dtype in DTYPES
    for name in RULES
  ],
)
def test_updates(dtype, name):
  case = inputs(dtype)
  state = slots(case['table'], RULES[name])
  found, expected = (
    jax.tree.leaves(
      jax.jit(functools.partial(move, rule=RULES[name], name=backend))(
        case, state
      )
    )
    for backend in ('interpret', 'xla')
  )
  for a, b in zip(found, expected, strict=True):
    assert a.shape == b.shape and a.dtype == b.dtype
    # Rounded by the same bits: a sum that differs may cross to a neighbour.
    assert_close(a, b, '16_bit_rows' if a.dtype == jnp.bfloat16 else 'float32')


@pytest.mark.parametrize('seed', [None, 3])
def test_rounding_has_the_bits_of_all_backends(seed):
  """One gradient an id; rows in both planes, numbered as in a whole table."""
  rng = np.random.default_rng(1)
  table = jnp.asarray(rng.normal(size=(24, DIM)), jnp.bfloat16)
  table = table.at[9, :4].set(
    jnp.asarray([3.3e38, -3.3e38, 1e-40, 0], jnp.bfloat16)
  )
  ids = jnp.int32([0, 1, 3, 9, 22, 24])
  grads = jnp.asarray(rng.normal(size=(6, DIM)), jnp.float32)
  # Towards infinity, beyond the largest number, and to where numbers are few.
  grads = grads.at[3, :3].set(jnp.asarray([-1e38, 3e36, jnp.nan]))
  new = {
    name: jax.jit(
      lambda ids, name=name: api.update_rows(
        table, {}, ids, grads, learning_rate=1.0, optimizer='sgd',
        stochastic_rounding_seed=seed, row_numbers=ids * 3 + 1,
        first_column=jnp.arange(6) * DIM, implementation=name,
      )[0]
    )(ids)
    for name in ('interpret', 'xla')
  }  # fmt: skip
  found, expected = (np.float32(new[n]) for n in ('interpret', 'xla'))
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
  'dtype, optimizer, row_count',
  [
    ('float32', 'row_adam', True),
    pytest.param('bfloat16', 'lamb', True, marks=pytest.mark.slow),
    pytest.param('float32', 'lars', False, marks=pytest.mark.slow),
  ],
)
def test_groups(dtype, optimizer, row_count):
  """Numbers that differ, and a group that does not exist."""
  rules = [
    Rule(optimizer, eps=1e-6, beta1=0.8, momentum=0.7, row_count=row_count),
    Rule(
      optimizer, decay='l2', weight_decay=0.3, max_norm=4.5, beta2=0.9,
      row_count=row_count,
    ),
  ]  # fmt: skip
  table = inputs(dtype)['table']
  state = slots(table, rules[0])
  ids = jnp.int32([0, 2, 3, 5, 6, ROWS - 1, ROWS])
  grads = jnp.asarray(np.random.default_rng(2).normal(size=(7, DIM)), 'float32')

  def run(ids, groups, name):
    return api.update_rows(
      table, state, ids, grads, optimizer=rules, learning_rate=[0.1, 0.03],
      groups=groups, implementation=name,
    )  # fmt: skip

  found, expected = (
    jax.tree.leaves(
      jax.jit(functools.partial(run, name=name))(
        ids, jnp.int32([0, 1, 1, 0, 7, 1, 9])
      )
    )
    for name in ('interpret', 'xla')
  )
  assert np.isnan(np.float32(found[0][6])).all()
  for a, b in zip(found, expected, strict=True):
    a, b = (np.delete(np.float32(x), 6, 0) if x.ndim else x for x in (a, b))
    assert_close(a, b, '16_bit_rows' if dtype == 'bfloat16' else 'float32')


def test_wrong_ids_and_lengths():
  """NaN where they are read, and nothing moves."""
  table = jnp.ones((4, DIM))
  ids = jnp.int32([1, 4, 2, -1, 2])

  @functools.partial(jax.jit, static_argnames='name')
  def run(ids, lengths, merged, name):
    options = dict(learning_rate=1.0, optimizer='sgd', implementation=name)
    grads = jnp.ones((3, DIM))
    return (
      api.embedding_bag(table, ids, lengths, implementation=name),
      api.embedding_bag_backward_and_update(
        table, {}, ids, lengths, grads, **options
      )[0],
      api.update_rows(table, {}, merged, grads, **options)[0],
    )

  for lengths, merged in (
    ([1, 2, 2], [0, 2, 4]),
    ([9, -1, 1], [-1, 2, 9]),
    ([1, 2, 2], [2, 2, 3]),
  ):
    args = ids, jnp.int32(lengths), jnp.int32(merged)
    for a, b in zip(run(*args, 'interpret'), run(*args, 'xla'), strict=True):
      np.testing.assert_array_equal(a, b)


def test_wrong_ids_of_16_bit_rows():
  """A unit named from two places has one row of NaN, whatever the order."""
  new = jax.jit(
    lambda ids: api.update_rows(
      jnp.ones((400, DIM), jnp.bfloat16), {}, ids, jnp.ones((300, DIM)),
      learning_rate=1.0, optimizer='sgd', implementation='interpret',
    )[0]
  )(jnp.arange(300, dtype=jnp.int32).at[150].set(0).at[0].set(1))  # fmt: skip
  np.testing.assert_array_equal(np.isnan(np.float32(new[:2])), True)


def test_nothing_to_do():
  table, none = jnp.ones((4, DIM)), jnp.zeros(0, jnp.int32)
  options = dict(implementation='interpret')
  out = api.embedding_bag(table, none, jnp.zeros(2, jnp.int32), **options)
  assert out.tolist() == [[0] * DIM] * 2
  assert api.gather(table, none, **options).shape == (0, DIM)
  # Ids without gradients: there is nothing that a kernel could do.
  rows = api.distinct_rows(jnp.int32([3, 1, 3]), rows=4, **options)
  assert rows.tolist() == [1, 3, 4]
  ids = jnp.full(3, 4, jnp.int32)
  new, _ = api.update_rows(
    table, {}, ids, jnp.ones((3, DIM)), learning_rate=1.0, optimizer='sgd',
    **options,
  )  # fmt: skip
  np.testing.assert_array_equal(new, table)


def test_gradients_of_table_and_weights():
  case = inputs('float32')
  weights = jnp.nan_to_num(case['weights'])

  def loss(table, weights, name):
    out = api.embedding_bag(
      table, case['ids'], case['lengths'], weights=weights, implementation=name
    )
    return jnp.sum(jnp.sin(out) * case['grads'])

  found, expected = (
    jax.jit(
      functools.partial(jax.grad(loss, argnums=(0, 1)), name=name)
    )(case['table'], weights)
    for name in ('interpret', 'xla')
  )  # fmt: skip
  for a, b in zip(found, expected, strict=True):
    assert_close(a, b)


@pytest.mark.parametrize(
  'dtype, name',
  [
    ('float32', 'row_adagrad'),
    pytest.param('float32', 'row_adam', marks=pytest.mark.slow),
    pytest.param('bfloat16', 'row_adam', marks=pytest.mark.slow),
  ],
)
def test_under_the_interpreter_that_simulates_the_memory(
  dtype, name, simulator
):
  # Three steps of units, in both halves of their memory; one long bag. The last
  # row of a step and the first one of the next lie in one line of a slot.
  ids = jnp.arange(61, 61 + 2 * 260, 2, dtype=jnp.int32).at[7].set(64)
  used = np.unique(ids)
  assert used[127] // 128 == used[128] // 128
  lengths = jnp.int32([30, 0, 228, 1])
  table = jnp.ones((600, DIM), dtype)
  rule = RULES[name]
  state = slots(table, rule)
  grads = inputs('float32')['grads'][: len(ids)]

  def run(name):
    options = dict(implementation=name)
    return jax.tree.leaves(
      (
        api.embedding_bag(table, ids, lengths, **options),
        api.embedding_bag_backward_and_update(
          table, state, ids, None, jnp.resize(grads, (len(ids), DIM)),
          optimizer=rule, learning_rate=RATE, **options,
        ),
      )
    )  # fmt: skip

  for a, b in zip(run(simulator), run('xla'), strict=True):
    assert_close(a, b, '16_bit_rows' if a.dtype == jnp.bfloat16 else 'float32')


def test_in_a_loop_each_step_moves_the_rows_of_the_last():
  case = inputs('float32')

  def steps(name):
    def step(_, state):
      return api.embedding_bag_backward_and_update(
        *state, case['ids'], case['lengths'], case['grads'],
        learning_rate=RATE, optimizer='sgd', implementation=name,
      )  # fmt: skip

    start = case['table'], {}
    return jax.jit(lambda state: jax.lax.fori_loop(0, 3, step, state))(start)

  assert_close(steps('interpret')[0], steps('xla')[0])


def test_the_order_of_a_sum_is_that_of_its_ids():
  """Of 1, 2^60 and -2^60 the sum is 0 in this order, and 1 in others."""
  table = jnp.broadcast_to(
    jnp.asarray([1.0, 2.0**60, -(2.0**60)])[:, None], (3, DIM)
  )
  ids, lengths = jnp.int32([0, 1, 2, 1, 2, 0]), jnp.int32([3, 3])
  out = api.embedding_bag(table, ids, lengths, implementation='interpret')
  assert out[:, 0].tolist() == [0, 1]
  merged = api.merge_rows(
    jnp.int32([2, 2, 2, 1, 1, 1]), table[ids], 4, implementation='interpret'
  )
  assert merged.grads[:2, 0].tolist() == [1, 0]


def test_rounded_once():
  """A bag of 16-bit rows is summed in float32."""
  table = jnp.full((2, DIM), 1.0, jnp.bfloat16).at[1].set(2.0**-9)
  ids = jnp.int32([0, 1, 1, 1, 1])
  out = api.embedding_bag(
    table, ids, jnp.int32([5]), implementation='interpret'
  )
  assert_rounded_once(out, np.full((1, DIM), 1 + 4 * 2.0**-9))
