"""Slots with one number a row, which the TPU kernels move by lines of 128.

Rows next to each other share a line, also rows of two grid steps. What is
interpreted here runs in tpu_embedding_test.py for every optimizer.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged_embedding import api, tpu_lines, tpu_updates
from pallas_kernels.jagged_embedding.spec import Rule
from tests.kernels.embedding_cases import slots
from tests.tolerances import assert_close

DIM = 128
# Two slots with one number a row, and one with one number.
TWO, ONE = Rule('row_adam', row_count=True), Rule('row_adagrad')


def check_updates(
  dtype: str, rows: int, rule: Rule, name: str, updates: int = 2, share=0.7
):
  """Updates, each of some rows: all others keep their numbers."""
  rng = np.random.default_rng(0)
  table = jnp.asarray(rng.normal(size=(rows, DIM)), dtype)
  state = slots(table, rule)
  count = int(rows * share)
  ids = np.sort(
    [rng.choice(rows, count, replace=False) for _ in range(updates)], axis=1
  )
  grads = jnp.asarray(rng.normal(size=(updates, count, DIM)), jnp.float32)

  @functools.partial(jax.jit, static_argnames='name')
  def run(ids, name):
    def update(state, each):
      return api.update_rows(
        *state, *each, learning_rate=0.1, optimizer=rule, implementation=name
      ), None

    return jax.lax.scan(update, (table, state), (ids, grads))[0]

  (new, found), expected = (run(jnp.int32(ids), n) for n in (name, 'xla'))
  assert_close(new, expected[0], '16_bit_rows' if dtype != 'float32' else dtype)
  times = np.bincount(ids.reshape(-1), minlength=rows)
  for slot, x in found.items():
    assert_close(x, expected[1][slot], name=slot)
    np.testing.assert_array_equal(x[times == 0], state[slot][times == 0])
  if rule.row_count:
    counts = np.asarray(state['count']) + times
    np.testing.assert_array_equal(found['count'], counts)


@pytest.mark.parametrize(
  'dtype, rows, rule',
  [
    ('float32', 100, ONE),  # a part of a line, and nothing else
    ('bfloat16', 5 * 128, TWO),  # whole lines
    pytest.param('float32', 3000, TWO, marks=pytest.mark.slow),
    pytest.param('bfloat16', 3000, ONE, marks=pytest.mark.slow),
  ],
)
def test_rows_next_to_each_other(dtype, rows, rule):
  check_updates(dtype, rows, rule, 'interpret')


@pytest.mark.slow
@pytest.mark.parametrize('simulator', [False], indirect=True)
@pytest.mark.parametrize('dtype, rule', [('float32', ONE), ('bfloat16', TWO)])
def test_thousands_of_rows_whose_copies_are_late(dtype, rule, simulator):
  """With lines that two steps share, that a step fills, and that none wants."""
  check_updates(dtype, 2050, rule, simulator, updates=1, share=0.9)


def test_wrong_ids_leave_the_numbers_of_others():
  """Ids that are not sorted come to a line again and again."""
  table, state = jnp.ones((300, DIM)), {'sum': jnp.arange(300.0)}
  ids = jnp.int32([0, 130, 1, 299, 131, 2, 132])
  new, found = jax.jit(
    lambda ids: api.update_rows(
      table, state, ids, jnp.ones((len(ids), DIM)), learning_rate=1.0,
      optimizer=ONE, implementation='interpret',
    )
  )(ids)  # fmt: skip
  assert np.isnan(new[ids]).all()
  others = np.delete(np.arange(300), ids)
  np.testing.assert_array_equal(found['sum'][others], state['sum'][others])


@pytest.mark.parametrize('rows', [5, 128, 300])
def test_tails(rows):
  arrays = tuple(jnp.arange(rows, dtype=jnp.float32) + i for i in range(2))
  cut = tpu_lines.cut_tails(arrays)
  assert [x.shape for x in cut.tails] == [(128,)] * 2 * (rows % 128 > 0)
  changed = cut._replace(tails=tuple(-x for x in cut.tails))
  for found, x in zip(tpu_lines.join_tails(changed), arrays, strict=True):
    whole = rows // 128 * 128
    np.testing.assert_array_equal(found[:whole], x[:whole])
    np.testing.assert_array_equal(found[whole:], -x[whole:])


@pytest.mark.parametrize('beta', [0.0, 0.5, 0.9, 0.999, 1 - 1e-7])
def test_corrections(beta):
  """Against float64; where a series begins and ends, and far from it."""
  counts = np.unique(np.geomspace(1, 1e7, 400).round())
  with np.errstate(divide='ignore'):
    log = float(np.log(beta))
  found = tpu_updates.find_correction(log, jnp.float32(counts))
  expected = -1 / np.expm1(counts * log)
  np.testing.assert_allclose(found[:, 0], expected, rtol=2**-21)


@pytest.mark.parametrize('implementation', ['interpret', 'xla'])
def test_more_wrong_ids_than_rows(implementation):
  # Neither sorted nor distinct: all rows they name become NaN, and no other.
  table = jnp.ones((130, DIM))
  ids = jnp.asarray([0, 1] * 70 + [5], jnp.int32)
  new, _ = jax.jit(functools.partial(
    api.update_rows, learning_rate=0.1, implementation=implementation
  ))(table, slots(table, ONE), ids, jnp.ones((len(ids), DIM)))  # fmt: skip
  wrong = np.flatnonzero(np.isnan(new).all(1))
  np.testing.assert_array_equal(wrong, [0, 1, 5])
  assert np.isnan(new).any(1).sum() == 3


@pytest.mark.parametrize('implementation', ['interpret', 'xla', 'cpu'])
def test_padding_without_bags_changes_nothing(implementation):
  table = jnp.ones((130, DIM))
  new, _ = jax.jit(functools.partial(
    api.embedding_bag_backward_and_update,
    learning_rate=0.1,
    implementation=implementation,
  ))(
    table,
    slots(table, ONE),
    jnp.arange(3),
    jnp.zeros(0, jnp.int32),
    jnp.ones((0, DIM)),
  )  # fmt: skip
  np.testing.assert_array_equal(new, table)
