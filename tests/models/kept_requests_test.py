"""Candidates scored by what is kept of a history: the scores of one pass."""

import numpy as np
import pytest

from benchmarks import gr_kept
from genrec_jax.models import kept_requests
from tests.marks import slow_but
from tests.models import stu_test

CASES = [name for name in stu_test.CASES if name != 'listwise']
STARTING = {
  'counted_from': 'start', 'context_mask': 'causal', 'truncated_layers': 0,
  'full_tail': 0,
}  # fmt: skip
ROOM = 80  # tokens, more than there are
CLOSE = dict(rtol=2e-6, atol=2e-6)


def score(model, requests, kept, asked):
  return stu_test.join(gr_kept.score(model, requests, kept, asked, ROOM))


@pytest.mark.parametrize('name', slow_but(CASES, ('published', 'interleaved')))
def test_kept_histories_give_the_scores_of_one_pass(name):
  model = stu_test.build(name)
  requests = stu_test.draw(model.spec)
  wanted = stu_test.join(stu_test.score(model, requests))[: stu_test.ALL]
  kept = gr_kept.keep(model, requests)
  # All together, then two candidates of each at a time.
  found = score(model, requests, kept, stu_test.ROOM[1])
  np.testing.assert_allclose(found, wanted, **CLOSE)
  ends = np.cumsum(stu_test.CANDIDATE_COUNTS)
  wanted = np.split(wanted, ends)[:-1]
  for start in (0, 2, 4):
    some = slice(start, start + 2)
    parts = [gr_kept.cut(r, 'candidates', some) for r in requests]
    found = score(model, parts, kept, 8)
    np.testing.assert_allclose(
      found, np.concatenate([w[some] for w in wanted]), **CLOSE
    )


@pytest.mark.parametrize('name', slow_but(CASES, ('context_mlps',)))
def test_events_are_added_to_what_is_kept(name):
  model = stu_test.build(name, **STARTING)
  assert not kept_requests.explain_rebuilding(model.config, model.model.slots)
  whole = [r for r in stu_test.draw(model.spec) if len(r.history['age']) > 9]
  kept = gr_kept.keep(
    model, [gr_kept.cut(r, 'history', slice(0, 9)) for r in whole]
  )
  found = gr_kept.extend(model, whole, kept, 9)
  wanted = gr_kept.keep(model, whole)
  for own, new, all_ in zip(kept, found, wanted, strict=True):
    assert np.isfinite(new).all()
    np.testing.assert_allclose(np.concatenate([own, new]), all_, **CLOSE)


def test_what_cannot_be_kept_says_why():
  config = stu_test.build('listwise').config
  assert 'listwise' in kept_requests.explain_refusal(config)
  base = stu_test.build('summed').config
  assert not kept_requests.explain_refusal(base)
  assert 'counted_from' in kept_requests.explain_rebuilding(base, 2)


@pytest.mark.parametrize(
  'change, contextual, reason',
  [
    (dict(), 0, ''),
    (dict(context_mask='causal'), 3, ''),
    (dict(window=4, prefix=2), 0, ''),
    (dict(counted_from='request'), 0, 'counted_from'),
    (dict(), 3, 'context_mask'),
    (dict(truncated_layers=1, truncated_to=4), 0, 'truncated_layers'),
    (dict(window=4, full_tail=2), 0, 'full_tail'),
  ],
)
def test_what_a_new_event_changes_of_the_others(change, contextual, reason):
  config = kept_requests.Config(**dict(counted_from='start') | change)
  found = kept_requests.explain_rebuilding(config, contextual)
  assert found.startswith(f'model.{reason}' if reason else '')
  assert bool(found) == bool(reason)
