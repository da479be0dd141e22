"""Candidates and cached keys: what serving relies on, backend by backend."""

import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import api, shapes
from tests.kernels import attention_cases as cases
from tests.tolerances import assert_close

BACKENDS = [*cases.FAST_BACKENDS, 'reference']
PACKED = ('q', 'k', 'v', 'time', 'query_time')
HISTORY, CANDIDATES = 29, 6
SIZES = [HISTORY + CANDIDATES, 20]
TARGETS = jnp.array([CANDIDATES, 3], jnp.int32)


@pytest.fixture(scope='module')
def arguments():
  """Two sequences with candidates; one request time for all of a user's."""
  found = shapes.inputs(cases.SHAPE, sizes=SIZES, capacity=64)
  found |= dict(targets=TARGETS, contextual=2)
  for begin, end in ((HISTORY, SIZES[0]), (SIZES[0] + 17, sum(SIZES))):
    for name in ('time', 'query_time'):
      found[name] = found[name].at[begin:end].set(found['query_time'][end - 1])
  return found


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_candidates_change_places_and_their_results_with_them(
  backend, mode, arguments
):
  swap = np.arange(64)
  swap[[HISTORY + 1, HISTORY + 4]] = swap[[HISTORY + 4, HISTORY + 1]]
  one = cases.results(arguments, backend, mode=mode)['out']
  swapped = {n: arguments[n][swap] for n in PACKED}
  other = cases.results({**arguments, **swapped}, backend, mode=mode)['out']
  # Their own keys stand elsewhere in the sums: equal but for the rounding.
  assert_close(other, one[swap])


@pytest.mark.parametrize('backend', BACKENDS)
def test_what_one_candidate_gets_does_not_depend_on_the_others(
  backend, arguments
):
  before = cases.results(arguments, backend)['out']
  place = HISTORY + 2
  changed = {n: arguments[n].at[place].add(1.0) for n in ('q', 'k', 'v')}
  after = cases.results({**arguments, **changed}, backend)['out']
  rest = np.delete(np.arange(64), place)
  np.testing.assert_array_equal(after[rest], before[rest])
  assert np.any(after[place] != before[place])


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_cached_keys_give_what_the_whole_sequence_gives(
  backend, mode, arguments
):
  whole = cases.results(arguments, backend, mode=mode)['out']
  asking = np.array([CANDIDATES + 3, 4])
  ends = np.cumsum(SIZES)
  token = np.concatenate(
    [np.arange(e - a, e) for e, a in zip(ends, asking, strict=True)]
  )
  token = np.concatenate([token, np.zeros(3, int)])  # padding
  tail = dict(
    q=arguments['q'][token],
    query_time=arguments['query_time'][token],
    query_lengths=jnp.asarray(asking, jnp.int32),
    max_queries=12,
  )
  out = cases.results({**arguments, **tail}, backend, mode=mode)['out']
  assert_close(out[:-3], whole[token[:-3]])
  assert not np.any(out[-3:])


@pytest.mark.parametrize('backend', BACKENDS)
def test_micro_batches_of_candidates_score_as_one(backend, arguments):
  """History cached once, two candidates a call: as all six in one sequence."""
  whole = cases.results(arguments, backend)['out']
  first = dict(arguments)
  del first['targets']
  parts = []
  for start in range(HISTORY, SIZES[0], 2):
    token = np.r_[0:HISTORY, start : start + 2]
    token = np.concatenate([token, np.zeros(64 - len(token), int)])
    asking = np.array([start, start + 1])
    call = {n: first[n][token] for n in ('k', 'v', 'time')}
    call |= {n: first[n][asking] for n in ('q', 'query_time')}
    call |= dict(
      lengths=jnp.array([HISTORY + 2], jnp.int32),
      targets=jnp.array([2], jnp.int32),
      query_lengths=jnp.array([2], jnp.int32),
      max_queries=12,
    )
    parts.append(cases.results({**first, **call}, backend)['out'])
  assert_close(np.concatenate(parts), whole[HISTORY : SIZES[0]])


def test_the_bound_of_queries_is_no_larger_than_their_number():
  """Queries of a few new tokens are not walked over as a whole history."""
  q, k = jnp.ones((4, 1, 2)), jnp.ones((64, 1, 2))
  lengths, asking = jnp.array([40, 20]), jnp.array([2, 2])
  seen = []

  def attend(spec, tensors, context):
    seen.append(spec)
    return tensors.q

  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(api.BACKENDS, 'given', dispatch.Backend(attend))
    for bounds in ({}, {'max_queries': 2}):
      pallas_kernels.hstu_attention(
        q, k, k, lengths, max_len=1024, query_lengths=asking,
        implementation='given', **bounds,
      )  # fmt: skip
  assert [s.max_queries for s in seen] == [4, 2]
  assert {s.max_len for s in seen} == {1024}
  with pytest.raises(ValueError, match='add up to more than the 4 tokens of q'):
    pallas_kernels.hstu_attention(
      q, k, k, lengths, max_len=1024, query_lengths=jnp.array([5, 0])
    )
