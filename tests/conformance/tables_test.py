"""What `contracts.Tables` promises, on one device and for each placement."""

import numpy as np
import pytest

from genrec_jax import contracts
from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.exchange import KINDS, Exchange
from tests.conformance.tables_cases import (
  DIM,
  EXAMPLES,
  FEATURES,
  POOLING,
  RATE,
  ROOM,
  ROWS,
  SETTINGS,
  SLOW,
  Examples,
  Setting,
  program_of,
  run_of,
)
from tests.tolerances import assert_close

every_setting = pytest.mark.parametrize(
  'setting',
  [
    *(pytest.param(s, id=name) for name, s in SETTINGS.items()),
    *(
      pytest.param(s, id=name, marks=pytest.mark.slow)
      for name, s in SLOW.items()
    ),
  ],
)


def test_every_scheme_has_a_setting():
  """A new scheme of the library is one more line above."""
  assert {s.scheme for s in SETTINGS.values()} == {None, *single_scheme.SCHEMES}
  kinds = {s.exchange.kind for s in SETTINGS.values() if s.scheme}
  assert kinds == set(KINDS)


@every_setting
def test_they_are_tables(setting):
  tables = program_of(setting).tables
  assert isinstance(tables, contracts.Tables)
  assert set(tables.specs) == {'t'}


@every_setting
def test_a_fresh_row_does_not_depend_on_its_place(setting):
  np.testing.assert_array_equal(
    run_of(setting).before, run_of(SETTINGS['local']).before
  )


@every_setting
def test_what_is_read_is_what_numpy_reads(setting):
  run = run_of(setting)
  wanted = Examples.draw().state_values(run.before)
  np.testing.assert_array_equal(run.values['rows'], wanted['rows'])
  for feature in POOLING:
    assert_close(run.values[feature], wanted[feature], name=feature)


@every_setting
def test_places_among_the_rows_that_are_fetched(setting):
  shapes, microbatches = dict(run_of(setting).shapes), setting.microbatches
  each = EXAMPLES // program_of(setting).shards // microbatches
  fetched = shapes.pop('fetched')
  assert fetched[1:] == (DIM,)
  # Sums are fetched as such, so that they have no places.
  assert shapes == {
    'rows': (microbatches, each, 2),
    'bags as rows': (microbatches, each * ROOM),
  }


@pytest.mark.parametrize('name', ['local', 'local, microbatches'])
def test_local_tables_learn_by_the_gradient_of_numpy(name):
  run = run_of(SETTINGS[name], 'row_sgd')
  gradient = Examples.draw().state_gradient()
  assert_close(run.after, run.before - RATE * gradient)
  assert_close(run.square, np.sum(np.square(gradient)))


@every_setting
def test_they_learn_what_local_tables_learn(setting):
  run, local = run_of(setting), run_of(SETTINGS['local'])
  assert_close(run.after - run.before, local.after - local.before)
  assert_close(run.square, local.square)


@every_setting
def test_rows_that_nobody_read_keep_their_bits_and_have_no_mark(setting):
  run, read = run_of(setting), Examples.draw().rows()
  others = sorted(set(range(ROWS)) - read)
  assert others, 'every row is read'
  np.testing.assert_array_equal(run.after[others], run.before[others])
  assert run.marked == sorted(read)


@every_setting
@pytest.mark.parametrize('wrong', [-1, ROWS, 10**6])
@pytest.mark.parametrize('feature', FEATURES)
def test_an_id_that_is_no_row_reads_nan(setting, feature, wrong):
  program = program_of(setting)
  run = program.run(Examples.draw().spoil(feature, wrong))
  spoiled = np.isnan(run.values[feature])
  first = spoiled[0, 0] if feature == 'rows' else spoiled[0]
  assert np.all(first)
  if feature == 'bags as sums':  # wrong as a whole, but for other shards
    assert not np.any(spoiled[EXAMPLES // program.shards :])
  else:
    assert spoiled.sum() == DIM
  for other in set(FEATURES) - {feature}:
    assert np.all(np.isfinite(run.values[other])), other


@every_setting
def test_nothing_overflows_with_room(setting):
  assert run_of(setting).overflow == 0


@pytest.mark.parametrize('kind', ['all_to_all', 'ragged'])
@pytest.mark.parametrize('overflow', ['rounds', 'raise'])
def test_without_room(kind, overflow):
  """A step goes another way, or it is seen that it could not be made."""
  exchange = Exchange(kind, capacity=0.01, overflow=overflow)
  # One device is asked for everything.
  run = run_of(Setting('table_wise', exchange))
  if overflow == 'raise':
    assert np.isnan(run.overflow) and np.all(np.isnan(run.values['rows']))
    return
  assert run.overflow == 1
  local = run_of(SETTINGS['local'])
  np.testing.assert_array_equal(run.values['rows'], local.values['rows'])
  assert_close(run.after - run.before, local.after - local.before)
