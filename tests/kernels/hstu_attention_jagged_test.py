"""Any lengths: empty ones, ragged blocks, padding, company in the batch."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels.hstu_attention import shapes
from tests.kernels import attention_cases as cases
from tests.tolerances import assert_close

BACKENDS = [*cases.FAST_BACKENDS, 'reference']
MAX_LEN = cases.SHAPE.max_len
SIZES = [7, 0, 60, 41, 0, 40]
TOKENS = sum(SIZES)
DROPOUT = dict(dropout=0.3, dropout_seed=jnp.uint32(11))


def inputs(sizes, seed=0, capacity=cases.CAPACITY):
  return shapes.inputs(cases.SHAPE, seed, sizes=sizes, capacity=capacity)


def fit(sizes):
  """Cuts the last sequences so that the batch fits its capacity."""
  ends = np.minimum(np.cumsum(sizes), cases.CAPACITY)
  return np.diff(ends, prepend=0).tolist()


lengths = st.one_of(
  st.integers(0, MAX_LEN), st.sampled_from([0, 1, 39, 40, 41, MAX_LEN])
)
batches = st.lists(lengths, min_size=6, max_size=6).map(fit)


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
@hypothesis.settings(
  max_examples=30, deadline=None, derandomize=True, database=None
)
@hypothesis.given(sizes=batches, seed=st.integers(0, 99))
@hypothesis.example(sizes=[0] * 6, seed=0)
@hypothesis.example(sizes=[MAX_LEN, 0, MAX_LEN, 1, MAX_LEN, 0], seed=0)
def test_random_lengths(backend, mode, sizes, seed):
  arguments = inputs(sizes, seed)
  actual = cases.results(arguments, backend, mode=mode, **DROPOUT)
  expected = cases.results(arguments, 'reference', mode=mode, **DROPOUT)
  for name in expected:
    assert_close(actual[name], expected[name], name=name)


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_an_empty_batch_yields_zeros(backend, mode):
  for name, value in cases.results(inputs([0] * 6), backend, mode=mode).items():
    assert not np.any(value), name


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_padding_tokens_are_never_read(backend, mode):
  arguments = inputs(SIZES)
  clean = cases.results(arguments, backend, mode=mode)
  dirt = {n: arguments[n].at[TOKENS:].set(1e3) for n in ('q', 'k', 'v')}
  dirty = cases.results({**arguments, **dirt}, backend, mode=mode)
  for name in clean:
    np.testing.assert_array_equal(dirty[name], clean[name], name)
  for name in ('out', 'q', 'k', 'v'):
    assert not np.any(clean[name][TOKENS:]), name


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_a_sequence_does_not_see_its_company(backend, mode):
  arguments = inputs(SIZES)
  together = cases.results(arguments, backend, mode=mode)['out']
  mine = slice(7, 67)  # the sequence of 60 tokens, now alone
  alone = {
    n: jnp.zeros_like(arguments[n]).at[:60].set(arguments[n][mine])
    for n in ('q', 'k', 'v', 'time', 'query_time')
  }
  alone['lengths'] = jnp.array([0, 0, 0, 60, 0, 0], jnp.int32)
  out = cases.results({**arguments, **alone}, backend, mode=mode)['out']
  assert_close(out[:60], together[mine])


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_a_token_changes_no_earlier_output_and_no_other_user(backend, mode):
  arguments = inputs(SIZES)
  before = cases.results(arguments, backend, mode=mode)['out']
  first, end = 7 + 45, 7 + 60  # in the second block of the 60 tokens
  changed = {n: arguments[n].at[first:end].add(2.0) for n in ('q', 'k', 'v')}
  for name in ('time', 'query_time'):
    changed[name] = arguments[name].at[first:end].add(99_999)
  after = cases.results({**arguments, **changed}, backend, mode=mode)['out']
  kept = np.r_[0:first, end : cases.CAPACITY]
  np.testing.assert_array_equal(after[kept], before[kept])
  assert np.all(np.any(after[first:end] != before[first:end], axis=(1, 2)))


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_a_length_beyond_max_len_is_nan_and_not_a_wrong_number(backend, mode):
  arguments = inputs(SIZES)
  longer = jnp.array([7, 0, MAX_LEN + 1, 40, 0, 40], jnp.int32)
  out = cases.results({**arguments, 'lengths': longer}, backend, mode=mode)
  assert np.all(np.isnan(out['out']))
