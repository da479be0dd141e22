"""One suite for every backend: outputs and gradients against the reference."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.hstu_attention import shapes
from tests.kernels import attention_cases as cases
from tests.marks import slow, slow_but
from tests.tolerances import assert_close

DROPOUT = dict(dropout=0.3, dropout_seed=jnp.uint32(11))
# name -> (tables to leave out, arguments to add)
OPTIONS = {
  'plain': (('position_bias', 'time_bias', 'normaliser'), {}),
  'position_bias': (('time_bias',), {}),
  'time_bias': (('position_bias',), {}),
  'alpha': (('position_bias', 'time_bias'), {'alpha': 0.37}),
  'normaliser': (('position_bias', 'time_bias'), {'normaliser': 17.0}),
  'dropout': (('position_bias', 'time_bias'), DROPOUT),
  'everything': ((), {'alpha': 0.37, 'normaliser': 17.0, **DROPOUT}),
}


def check(backend, arguments, **options):
  """The backend agrees with the reference in float32 on the same values."""
  dtype = arguments['q'].dtype.name
  actual = cases.results(arguments, backend, **options)
  expected = cases.results(cases.in_float32(arguments), 'reference', **options)
  assert actual['out'].dtype == arguments['v'].dtype
  assert set(actual) == set(expected)
  summands = {}
  if options.get('mode') == 'softmax' and dtype == 'float32':
    summands = cases.summands_of_softmax(arguments, **options)
  for name in expected:
    assert_close(
      actual[name],
      expected[name],
      dtype,
      name,
      summands=summands.get(name),
    )


@pytest.fixture(scope='module')
def arguments():
  sizes = [0, 60, 1, 39, 40, 41]
  return shapes.inputs(cases.SHAPE, sizes=sizes, capacity=cases.CAPACITY)


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
def test_each_option_alone_and_all_together(backend, mode, options, arguments):
  left_out, added = OPTIONS[options]
  check(backend, cases.without(arguments, *left_out), mode=mode, **added)


@pytest.mark.parametrize('names', cases.COMBINED, ids='+'.join)
@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
def test_each_mask_alone_and_combined(backend, names):
  # Softmax and dropout where most meets; each mask alone is told by SiLU.
  most = len(names) > 2
  options = dict(mode='softmax', **DROPOUT) if most else {}
  check(backend, cases.masked(*names), **options)
  if most:
    check(backend, cases.masked(*names))


@pytest.mark.parametrize('names', [(), ('queries', 'targets')])
@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
def test_a_normaliser_for_each_query(backend, names):
  arguments = cases.masked(*names)
  queries = arguments['q'].shape[0]
  check(
    backend,
    arguments,
    normaliser=jnp.linspace(3.0, 90.0, queries, dtype=jnp.float32),
  )


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
def test_bfloat16_stays_close_to_float32(backend, mode):
  arguments = shapes.inputs(cases.SHAPE, dtype='bfloat16', sizes=[50, 0, 60])
  check(backend, arguments, mode=mode)


REAL = ('ml1m_hstu', 'books_hstu', 'synthetic_stream', 'ranking_cached', 'tiny')


@pytest.mark.parametrize('name', slow_but(shapes.SHAPES, REAL))
@pytest.mark.parametrize('backend', slow_but(cases.FAST_BACKENDS, ['xla']))
def test_real_models_at_their_widths(backend, name):
  # The longer two of four: the reference holds [H, T, T] scores.
  shape = dataclasses.replace(shapes.SHAPES[name], batch=4)
  sizes = np.sort(shapes.lengths(shape))[2:]
  shape = dataclasses.replace(shape, batch=2)
  check(backend, shapes.inputs(shape, sizes=sizes))


@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
def test_one_sequence_of_many_blocks(backend):
  shape = dataclasses.replace(cases.SHAPE, batch=1, max_len=190)
  check(backend, shapes.inputs(shape, sizes=[189]))


@pytest.mark.parametrize('queries', [0, 40])
@pytest.mark.parametrize('contextual', [0, 3, slow(40)])
@pytest.mark.parametrize('targets', [False, True])
@pytest.mark.parametrize('full_tail', [0, slow(6)])
def test_what_lies_between_prefix_and_window_is_left_out(
  queries, contextual, targets, full_tail
):
  """Sequences long enough that the plan of XLA leaves keys out."""
  shape = dataclasses.replace(
    cases.SHAPE, max_len=460, batch=5, heads=1, queries=queries,
    time_bias=queries > 0,
  )  # fmt: skip
  arguments = shapes.inputs(shape, sizes=[460, 70, 455, 311, 9])
  arguments |= dict(window=31, prefix=11, contextual=contextual)
  arguments |= dict(full_tail=full_tail)
  if targets:
    counts = jnp.array([30, 12, 0, 25, 2], jnp.int32)
    arguments |= dict(targets=counts, max_targets=30)
  check('xla', arguments)


@pytest.mark.parametrize('max_len', [1088, 1033])
def test_no_row_is_in_two_groups(max_len):
  """Groups that are no whole number of blocks; their keys counted twice."""
  shape = shapes.Shape(
    1, max_len=max_len, heads=1, dqk=4, dv=4, time_bias=False
  )
  check('xla', shapes.inputs(shape, sizes=[max_len]))


def test_a_window_that_reaches_the_context_sees_all_of_it():
  shape = dataclasses.replace(
    cases.SHAPE, max_len=200, batch=2, heads=1, time_bias=False
  )
  arguments = shapes.inputs(shape, sizes=[200, 160])
  check('xla', arguments | dict(window=128, contextual=33))
