"""Every row optimizer with its options, against one row at a time in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged_embedding import api, rules, spec
from pallas_kernels.jagged_embedding.spec import SLOTS, Rule
from tests.kernels.embedding_cases import FAST, assert_rounded_once, slots
from tests.kernels.row_update_oracle import plain_update
from tests.tolerances import assert_close

ROWS, DIM, RATE = 40, 21, 0.1
CONSTANTS = dict(eps=1e-6, beta1=0.8, beta2=0.95, momentum=0.7, trust=0.05)
DECAYS = (
  {},
  {'decay': 'l2', 'weight_decay': 0.3},
  {'decay': 'decoupled', 'weight_decay': 0.3},
)


def case(rule, dtype):
  """A table with slots as after some steps, and a merged gradient."""
  rng = np.random.default_rng(4)
  table = rng.normal(size=(ROWS, DIM))
  table[5] = 0  # LAMB's ratio has no meaning here
  table = jnp.asarray(table, dtype)
  ids = jnp.int32([0, 3, 5, 6, 7, 20, 39])
  grads = jnp.float32(rng.normal(size=(7, DIM))).at[3].set(0)
  return table, slots(table, rule), ids, grads


def check(rule, dtype, name):
  table, state, ids, grads = case(rule, dtype)
  expected, expected_slots = plain_update(rule, RATE, table, state, ids, grads)
  spare = jnp.full(2, ROWS, jnp.int32)
  new, new_slots = api.update_rows(
    table, state, jnp.concatenate([ids, spare]),
    jnp.concatenate([grads, jnp.ones((2, DIM))]),
    learning_rate=RATE, optimizer=rule, implementation=name,
  )  # fmt: skip
  assert new.dtype == dtype
  assert_rounded_once(new, expected, str(rule))
  if rule.max_norm:
    norms = np.linalg.norm(expected[np.asarray(ids)], axis=1)
    assert 1 < np.sum(np.isclose(norms, rule.max_norm)) < len(norms)
  assert new_slots.keys() == expected_slots.keys() == state.keys()
  for slot, values in new_slots.items():
    assert_close(values, expected_slots[slot], name=f'{slot} of {rule}')
  others = np.setdiff1d(np.arange(ROWS), ids)
  pairs = [(table, new)]
  pairs += [(state[n], x) for n, x in new_slots.items() if x.ndim]
  for before, after in pairs:
    before, after = np.asarray(before)[others], np.asarray(after)[others]
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', FAST)
def test_every_option_in_float32(name, optimizer):
  for decay in DECAYS:
    for limit in (None, 4.5):
      rule = Rule(optimizer, **CONSTANTS, **decay, max_norm=limit)
      check(rule, jnp.float32, name)
  if 'count' in SLOTS[optimizer]:
    check(dataclasses.replace(rule, row_count=True), jnp.float32, name)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', FAST)
def test_16_bits_are_rounded_once(name, optimizer, dtype):
  for decay, limit in zip(DECAYS, (None, 4.5, None), strict=True):
    rule = Rule(optimizer, **CONSTANTS, **decay, max_norm=limit)
    check(rule, jnp.dtype(dtype), name)


@pytest.mark.parametrize('optimizer', SLOTS)
def test_the_reference_agrees(optimizer):
  rule = Rule(optimizer, **CONSTANTS, **DECAYS[2], max_norm=4.5)
  check(rule, jnp.float32, 'reference')


@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', FAST)
def test_duplicates_are_merged_before_the_step(name, optimizer):
  """Fused, an id that occurs thrice moves once, by the sum."""
  rule = Rule(optimizer, **CONSTANTS, **DECAYS[1], max_norm=4.5)
  table, state, ids, _ = case(rule, jnp.float32)
  many = jnp.tile(ids[::-1], 3)
  grads = jax.random.normal(jax.random.key(0), (21, DIM))
  summed = np.asarray(grads, np.float64).reshape(3, 7, DIM).sum(0)[::-1]
  expected, _ = plain_update(rule, RATE, table, state, ids, summed)
  new, _ = api.embedding_bag_backward_and_update(
    table, state, many, None, grads,
    learning_rate=RATE, optimizer=rule, implementation=name,
  )  # fmt: skip
  assert_close(new, expected)


@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', FAST)
def test_a_row_becomes_the_same_wherever_it_lies(name, optimizer):
  """The same bits in a shard, with other neighbours and at another place."""
  rule = Rule(optimizer, **CONSTANTS, **DECAYS[1], max_norm=4.5)
  table, state, ids, grads = case(rule, jnp.float32)

  @jax.jit
  def run(table, state, ids, grads):
    return api.update_rows(
      table, state, ids, grads,
      learning_rate=RATE, optimizer=rule, implementation=name,
    )  # fmt: skip

  whole, whole_slots = run(table, state, ids, grads)
  for shard in range(2):
    mine = np.flatnonzero(np.asarray(ids) % 2 == shard)
    part, slots_of_part = run(
      table[shard::2],
      {n: x[shard::2] if x.ndim else x for n, x in state.items()},
      ids[mine] // 2,
      grads[mine],
    )
    np.testing.assert_array_equal(part, whole[shard::2])
    for slot, values in slots_of_part.items():
      expected = whole_slots[slot]
      np.testing.assert_array_equal(
        values, expected[shard::2] if values.ndim else expected
      )


@pytest.mark.parametrize('optimizer', [o for o in SLOTS if 'count' in SLOTS[o]])
@pytest.mark.parametrize('name', FAST)
def test_counts_of_rows_differ_from_the_count_of_all(name, optimizer):
  """A row met for the first time takes its whole first step."""
  table = jnp.ones((4, DIM))
  grads = jnp.full((1, DIM), 1e-3)
  for row_count, close in ((True, True), (False, False)):
    rule = Rule(optimizer, row_count=row_count)
    state = api.init_slots(table, rule)
    run = jax.jit(
      lambda t, s, i, rule=rule: api.update_rows(
        t, s, i, grads,
        learning_rate=RATE, optimizer=rule, implementation=name,
      )
    )  # fmt: skip
    new = table
    for id_ in (0, 0, 0, 0, 0, 1):
      new, state = run(new, state, jnp.int32([id_]))
    moved = float(jnp.max(jnp.abs(new[1] - 1)))
    assert np.isclose(moved, RATE, rtol=1e-3) == (close or 'lamb' in optimizer)
    counts = state['count']
    expected = [5, 1, 0, 0] if row_count else 6
    np.testing.assert_array_equal(counts, expected)
    assert np.all(np.asarray(new)[2:] == 1)


def test_corrections_are_exact_near_one():
  """1 - 0.9999 ** 1 in float32 would be off in the fourth digit."""
  rule = Rule('adam', beta1=0.9, beta2=0.9999)
  for count in (1, 2, 1000, 10**7):
    first, second = rules.corrections(rule, jnp.float32(count))
    assert np.isclose(first, 1 / (1 - 0.9**count), rtol=2e-6)
    assert np.isclose(second, 1 / (1 - 0.9999**count), rtol=2e-6)
  first, _ = rules.corrections(Rule('adam', beta1=0.0), jnp.float32(1))
  assert first == 1


def test_slots_are_known_without_a_table():
  for optimizer in SLOTS:
    for row_count in {False, 'count' in SLOTS[optimizer]}:
      rule = Rule(optimizer, row_count=row_count)
      made = api.init_slots(jnp.ones((ROWS, DIM)), rule)
      shapes = spec.slot_shapes(rule, ROWS, DIM)
      assert {n: x.shape for n, x in made.items()} == shapes


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(optimizer='lion'), "optimizer is 'lion'"),
    (dict(decay='l1'), "decay is 'l1'"),
    (dict(weight_decay=0.1), "weight_decay=0.1 needs decay='l2'"),
    (dict(beta2=1.0), r'beta2 is 1.0, must be in \[0, 1\)'),
    (dict(eps=-1.0), 'eps is -1.0'),
    (dict(max_norm=0.0), 'max_norm is 0.0'),
    (dict(row_count=True), 'row_count=True has no meaning for sgd'),
    (dict(beta3=0.1), r"\['beta3'\] is not an option of an optimizer; there"),
    (
      dict(optimizer=Rule('sgd'), momentum=0.1),
      r"\['momentum'\] are given beside a whole rule",
    ),
    (
      dict(stochastic_rounding_seed=1, row_numbers=jnp.ones(3)),
      r'row_numbers must be uint32 or int32 \[2',
    ),
    (
      dict(stochastic_rounding_seed=1, first_column=jnp.ones(3, int)),
      r'first_column must be a number or \[2',
    ),
  ],
)
def test_mistakes_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    api.update_rows(
      jnp.ones((4, 2), 'bfloat16'), {}, jnp.int32([1, 2]), jnp.ones((2, 2)),
      **{'optimizer': 'sgd', 'learning_rate': 1.0, **options},
    )  # fmt: skip
