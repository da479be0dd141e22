"""A row optimizer from outside the package, in plain jax.numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import row_optimizers
from genrec_jax.embedding.plan import PlanError
from genrec_jax.features import TableSpec
from tests.embedding.sharded_cases import DIM, ROWS, run_sharded, run_whole
from tests.tolerances import assert_close


@dataclasses.dataclass(frozen=True)
class SignMomentum:
  """Signs of the gradient, as long as the row's gradients were of late."""

  keep: float = 0.9
  takes_pieces = False  # the mean is of the whole row
  needs_row_squares = False

  def init(self, table):
    return {'size': jnp.zeros(table.shape[0], jnp.float32)}

  def slot_shapes(self, rows, dim):
    return {'size': (rows,)}

  def slot_floats(self, dim):
    return 1

  def update(
    self, table, slots, ids, grads, learning_rate, *,
    groups=None, settings=None, **_,
  ):  # fmt: skip
    rate = jnp.asarray(learning_rate, jnp.float32)
    keep = jnp.float32(self.keep)
    if groups is not None:
      rate = rate[groups]
      if settings is not None:
        keep = jnp.float32([one.keep for one in settings])[groups]
    old = slots['size'].at[ids].get(mode='fill', fill_value=0)
    size = keep * old + (1 - keep) * jnp.mean(jnp.abs(grads), axis=1)
    step = (rate * size)[:, None] * jnp.sign(grads)
    new = table.at[ids].add(-step.astype(table.dtype), mode='drop')
    return new, {'size': slots['size'].at[ids].set(size, mode='drop')}


EXTRA = {'sign_momentum': SignMomentum()}
SPEC = TableSpec('t', ROWS, DIM, 0.5, 'sign_momentum', 'float32')
OPTIONS = dict(mode='sum', weighted=False, reads=('rows', 'bags'), steps=3)


@pytest.mark.parametrize('scheme', ['row_wise', 'table_wise'])
def test_it_moves_tables_on_a_mesh_as_on_one_device(scheme, key):
  whole = run_whole(SPEC, key, extra_optimizers=EXTRA, **OPTIONS)
  sharded = run_sharded(SPEC, key, scheme, extra_optimizers=EXTRA, **OPTIONS)
  for one, other in zip(whole[0], sharded[0], strict=True):
    assert_close(other['rows'], one['rows'])
  assert_close(sharded[1], whole[1])
  before = run_whole(
    SPEC, key, extra_optimizers=EXTRA, **OPTIONS | {'steps': 0}
  )
  assert np.any(before[1] != whole[1])


def test_a_plan_that_cuts_its_rows_is_refused(key):
  with pytest.raises(PlanError, match='sign_momentum with these options needs'):
    run_sharded(SPEC, key, 'column_wise', extra_optimizers=EXTRA, **OPTIONS)


def test_groups_are_those_of_separate_calls(key):
  own = [SignMomentum(0.5), SignMomentum(0.75)]
  table = jax.random.normal(key, (6, DIM))
  slots = own[0].init(table)
  ids, groups = jnp.int32([0, 2, 3, 5]), jnp.int32([1, 0, 1, 1])
  grads = jax.random.normal(jax.random.key(1), (4, DIM))
  rates = jnp.float32([0.1, 0.3])
  together, _ = own[0].update(
    table, slots, ids, grads, rates, groups=groups, settings=own
  )
  for group in range(2):
    mine = groups == group
    alone, _ = own[group].update(
      table, slots, ids[mine], grads[mine], rates[group]
    )
    np.testing.assert_array_equal(together[ids[mine]], alone[ids[mine]])


def test_names_and_options():
  found = row_optimizers.find_optimizer('sign_momentum', extra=EXTRA, keep=0.5)
  assert found == SignMomentum(0.5)
  assert row_optimizers.find_optimizer('adam', extra=EXTRA).optimizer == 'adam'


@pytest.mark.parametrize(
  'name, extra, options, message',
  [
    ('sign', EXTRA, {}, r'lamb, and of yours sign_momentum\.'),
    ('adam', {'adam': SignMomentum()}, {}, "a row optimizer 'adam' already"),
    ('sgd', {'adam': SignMomentum()}, {}, "a row optimizer 'adam' already"),
    ('sign_momentum', EXTRA, {'kept': 1}, r"no option \['kept'\]; .* are keep"),
    ('mine', {'mine': object()}, {}, 'no takes_pieces, needs_row_squares'),
  ],
)  # fmt: skip
def test_mistakes_are_told(name, extra, options, message):
  with pytest.raises(ValueError, match=message):
    row_optimizers.find_optimizer(name, extra=extra, **options)
