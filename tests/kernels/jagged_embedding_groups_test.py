"""Rows of one array with settings of their own: one call for all groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.jagged_embedding import api
from pallas_kernels.jagged_embedding.spec import SLOTS, Rule
from tests.kernels.embedding_cases import HERE, assert_rounded_once, slots
from tests.kernels.row_update_oracle import plain_update
from tests.tolerances import assert_close

ROWS, DIM = 40, 21
IDS = np.int32([0, 2, 3, 5, 6, 7, 11, 12, 20, 33, 38, 39])
GROUPS = np.int32([0, 3, 1, 0, 3, 3, 1, 0, 1, 3, 1, 0])  # group 2 has no row
RATES = np.float32([0.1, 0.03, 9.0, 0.27])
# One group has no decay and no norm; every number differs somewhere.
OPTIONS = (
  dict(eps=1e-6, beta1=0.8, beta2=0.95, momentum=0.7, trust=0.05),
  dict(decay='l2', weight_decay=0.3, max_norm=4.5, beta1=0.0),
  dict(eps=0.1),
  dict(decay='decoupled', weight_decay=0.2, beta2=0.9999, momentum=0.5),
)


def rules_of(optimizer, row_count=False):
  return [Rule(optimizer, **o, row_count=row_count) for o in OPTIONS]


def case(rule, dtype):
  """A table with slots as after some steps, and merged gradients."""
  rng = np.random.default_rng(4)
  table = rng.normal(size=(ROWS, DIM))
  table[5] = 0  # LAMB's ratio has no meaning here
  table = jnp.asarray(table, dtype)
  grads = jnp.float32(rng.normal(size=(len(IDS), DIM))).at[3].set(0)
  return table, slots(table, rule), grads


def update(rules, name, table, state, ids, grads, rates, groups=None, seed=3):
  """One compiled call; rates and groups are known when it runs."""

  @jax.jit
  def run(table, state, ids, grads, rates, groups, seed):
    return api.update_rows(
      table, state, ids, grads,
      learning_rate=rates, optimizer=rules, groups=groups,
      stochastic_rounding_seed=seed, implementation=name,
    )  # fmt: skip

  return run(table, state, ids, grads, rates, groups, seed)


def assert_same_bits(one, other, rows=slice(None)):
  assert one[1].keys() == other[1].keys()
  pairs = [(one[0], other[0])]
  pairs += [(x, other[1][n]) for n, x in one[1].items()]
  for a, b in pairs:
    a, b = (np.asarray(x)[rows if x.ndim else ...] for x in (a, b))
    np.testing.assert_array_equal(a.view(f'V{a.itemsize}'),
                                  b.view(f'V{b.itemsize}'))  # fmt: skip


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', HERE)
def test_one_call_is_a_call_for_each_group(name, optimizer, dtype):
  """By chance too, where rows move and where they rest.

  In C++ bit for bit. XLA decides anew for each program which products and sums
  it rounds as one, so a program with other constants may differ in a last bit;
  there the bits are those of the same program on the rows of one group.
  """
  rules = rules_of(optimizer)
  table, state, grads = case(rules[0], dtype)
  together = update(rules, name, table, state, IDS, grads, RATES, GROUPS)
  for group in sorted(set(GROUPS)):
    mine = GROUPS == group
    args = name, table, state, IDS[mine], grads[mine]
    if name == 'cpu':
      alone = update(rules[group], *args, RATES[group])
    else:
      alone = update(rules, *args, RATES, GROUPS[mine])
    assert_same_bits(together, alone, IDS[mine])
  rest = np.setdiff1d(np.arange(ROWS), IDS)
  before = table, {n: x if x.ndim else together[1][n] for n, x in state.items()}
  assert_same_bits(together, before, rest)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', HERE)
def test_rates_alone_change_no_bit(name, optimizer, dtype):
  """What groups share stays a constant: bit for bit on every backend."""
  rule = Rule(optimizer, **OPTIONS[1])
  table, state, grads = case(rule, dtype)
  together = update(rule, name, table, state, IDS, grads, RATES, GROUPS)
  for group in sorted(set(GROUPS)):
    mine = GROUPS == group
    alone = update(
      rule, name, table, state, IDS[mine], grads[mine], RATES[group]
    )
    assert_same_bits(together, alone, IDS[mine])


@pytest.mark.parametrize('optimizer', SLOTS)
@pytest.mark.parametrize('name', HERE)
def test_groups_against_a_loop(name, optimizer):
  for row_count in {False, 'count' in SLOTS[optimizer]}:
    rules = rules_of(optimizer, row_count)
    table, state, grads = case(rules[0], 'float32')
    new, new_slots = update(
      rules, name, table, state, IDS, grads, RATES, GROUPS
    )
    expected, expected_slots = plain_update(
      rules, RATES, table, state, IDS, grads, GROUPS
    )
    assert_rounded_once(new, expected, str(rules))
    for slot, values in new_slots.items():
      assert_close(values, expected_slots[slot], name=slot)


@pytest.mark.parametrize('optimizer', ['row_adagrad', 'adam', 'lamb'])
@pytest.mark.parametrize('name', HERE)
def test_the_numbers_of_groups_are_names(name, optimizer):
  rules = rules_of(optimizer)
  table, state, grads = case(rules[0], 'bfloat16')
  expected = update(rules, name, table, state, IDS, grads, RATES, GROUPS)
  order = np.array([2, 0, 3, 1])  # new number -> old number
  found = update(
    [rules[old] for old in order], name, table, state, IDS, grads,
    RATES[order], np.argsort(order)[GROUPS].astype(np.int32),
  )  # fmt: skip
  assert_same_bits(found, expected)


@pytest.mark.parametrize('optimizer', ['momentum', 'row_adagrad', 'lamb'])
@pytest.mark.parametrize('name', HERE)
def test_spare_places_have_any_group_and_rows_a_real_one(name, optimizer):
  """A row of no group becomes NaN; the others do not notice."""
  rules = rules_of(optimizer)
  table, state, grads = case(rules[0], 'float32')
  expected = update(rules, name, table, state, IDS, grads, RATES, GROUPS)
  spare = np.concatenate([IDS, np.full(2, ROWS, np.int32)])
  ones = jnp.concatenate([grads, jnp.ones((2, DIM))])
  groups = np.concatenate([GROUPS, np.int32([-1, 99])])
  found = update(rules, name, table, state, spare, ones, RATES, groups)
  assert_same_bits(found, expected)
  for wrong in (-1, 4, 2**31 - 1):
    groups = GROUPS.copy()
    groups[1] = wrong
    lost, _ = update(rules, name, table, state, IDS, grads, RATES, groups)
    assert np.all(np.isnan(lost[IDS[1]]))
    others = np.delete(np.arange(ROWS), IDS[1])
    np.testing.assert_array_equal(lost[others], expected[0][others])


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(learning_rate=[0.1, 0.2], groups=None), 'by group, and groups is'),
    (dict(optimizer=[Rule('sgd')], groups=None), 'by group, and groups is'),
    (dict(optimizer=[]), 'optimizer is empty: give a rule for each group'),
    (
      dict(optimizer=[Rule('sgd'), Rule('adam')]),
      "optimizer is 'adam' in group 1 and 'sgd' in group 0: groups of one",
    ),
    (
      dict(optimizer=[Rule('adam'), Rule('adam', row_count=True)]),
      'row_count is True in group 1 and False in group 0',
    ),
    (dict(optimizer=[Rule('sgd')] * 3), '3 rules in optimizer and 2 numbers'),
    (dict(learning_rate=np.ones((2, 1))), r'one a group, not \(2, 1\)'),
    (dict(groups=jnp.int32([0])), 'groups has 1 numbers for 2 ids'),
    (dict(groups=jnp.int32([0, 2])), 'groups holds 2, but the groups are 0 ..'),
    (dict(groups=jnp.ones(2)), 'groups must be integers'),
    (
      dict(optimizer=[Rule('sgd')] * 2, momentum=0.1),
      r"\['momentum'\] are given beside a whole rule",
    ),
  ],
)
def test_mistakes_name_the_group(options, message):
  options = dict(
    optimizer='sgd', learning_rate=[0.1, 0.2], groups=jnp.int32([0, 1])
  ) | options  # fmt: skip
  with pytest.raises(ValueError, match=message):
    api.update_rows(
      jnp.ones((4, 2)), {}, jnp.int32([1, 2]), jnp.ones((2, 2)), **options
    )
