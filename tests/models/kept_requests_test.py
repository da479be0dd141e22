"""Candidates scored by what is kept of a history: the scores of one pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.features import CANDIDATES, HISTORY, Jagged
from genrec_jax.models import kept_requests
from genrec_jax.models.kept_requests import Place
from tests.models import stu_test

CASES = [name for name in stu_test.CASES if name != 'listwise']
STARTING = {
  'counted_from': 'start', 'context_mask': 'causal', 'truncated_layers': 0,
  'full_tail': 0,
}  # fmt: skip
ROOM = 32  # tokens of candidates that are scored at once


def cut(request, part, some):
  """A request with some of its events or candidates."""
  columns = {name: x[some] for name, x in getattr(request, part).items()}
  return request._replace(**{part: columns})


def count_tokens(model, request):
  """Of context and history."""
  each = model.config.tokens_of_event
  return model.model.slots + each * len(request.history['age'])


def list_ages(model, request):
  each = model.config.tokens_of_event
  none = np.zeros(model.model.slots, np.int32)
  return np.concatenate([none, np.repeat(request.history['age'], each)])


def keep(model, requests):
  """`[T, W]` of each request, without a compiler's help."""
  events = sum(len(r.history['age']) for r in requests)
  requests = [cut(r, 'candidates', slice(0)) for r in requests]
  batch = model.pack(requests, events, 0)
  rows = model.read(batch)
  kept = np.asarray(
    programs(model.make)['keep'](model.params, rows, batch), np.float32
  )
  ends = np.cumsum([count_tokens(model, r) for r in requests])
  return np.split(kept, ends)[:-1]


@functools.cache
def programs(make):
  def score(params, rows, batch, place):
    return kept_requests.score_candidates(make(params), rows, batch, place)

  def extend(params, rows, batch, place):
    return kept_requests.extend_history(make(params), rows, batch, place)

  return {
    'keep': jax.jit(
      lambda params, rows, batch: kept_requests.keep_history(
        make(params), rows, batch
      )
    ),
    'score': jax.jit(score),
    'extend': jax.jit(extend),
  }


def make_place(model, requests, kept, new, room):
  """What is kept, with room for so many new tokens of each behind it."""
  width = kept[0].shape[1]
  rows, ages = [], []
  for request, own, count in zip(requests, kept, new, strict=True):
    # Room holds what nobody may see.
    rows += [own, np.full((count, width), np.nan, np.float32)]
    ages += [list_ages(model, request), np.zeros(count, np.int32)]
  rows, ages = np.concatenate(rows), np.concatenate(ages)
  missing = room - len(rows)
  return Place(
    jnp.asarray(np.pad(rows, [(0, missing), (0, 0)])),
    jnp.asarray([len(own) for own in kept], jnp.int32),
    jnp.asarray(np.pad(ages, (0, missing)), jnp.int32),
    int(max(new)),
  )


def score(model, requests, kept, room=None, asked=6):
  """Scores of the candidates of requests, all in one call."""
  counts = [len(r.candidates['weight']) for r in requests]
  batch = model.pack(requests, sum(len(r.history['age']) for r in requests),
                     asked)  # fmt: skip
  history = batch.jagged[HISTORY]
  none = Jagged(
    history.columns.__class__(
      history.columns.values[:0], history.columns.names
    ),
    history.lengths,
    history.floats and history.floats.__class__(
      history.floats.values[:0], history.floats.names
    ),
  )  # fmt: skip
  batch = batch.__class__(
    **{
      **{f: getattr(batch, f) for f in batch.__dataclass_fields__},
      'jagged': {HISTORY: none, CANDIDATES: batch.jagged[CANDIDATES]},
    }
  )
  if room is None:
    room = sum(map(len, kept)) + ROOM
  place = make_place(model, requests, kept, counts, room)
  found = programs(model.make)['score'](
    model.params, model.read(batch), batch, place
  )
  return stu_test.join(found)[: sum(counts)]


@pytest.mark.parametrize('name', CASES)
def test_kept_histories_give_the_scores_of_one_pass(name):
  model = stu_test.build(name)
  requests = stu_test.draw(model.spec)
  wanted = stu_test.join(stu_test.score(model, requests))[: stu_test.ALL]
  kept = keep(model, requests)
  # All together, then two candidates of each at a time.
  found = score(model, requests, kept, asked=stu_test.ROOM[1])
  np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
  ends = np.cumsum(stu_test.CANDIDATE_COUNTS)
  wanted = np.split(wanted, ends)[:-1]
  for start in (0, 2, 4):
    some = [cut(r, 'candidates', slice(start, start + 2)) for r in requests]
    parts = np.concatenate([w[start : start + 2] for w in wanted])
    found = score(model, some, kept, asked=8)
    np.testing.assert_allclose(found, parts, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize('name', CASES)
def test_events_are_added_to_what_is_kept(name):
  options = dict(STARTING)
  model = stu_test.build(name, **options)
  assert not kept_requests.explain_rebuilding(model.config, model.model.slots)
  whole = [r for r in stu_test.draw(model.spec) if len(r.history['age']) > 9]
  before = [cut(r, 'history', slice(0, 9)) for r in whole]
  later = [cut(r, 'history', slice(9, None)) for r in whole]
  kept = keep(model, before)
  each = model.config.tokens_of_event
  fresh = [each * len(r.history['age']) for r in later]
  events = sum(fresh) // each
  asked = [cut(r, 'candidates', slice(0)) for r in later]
  batch = model.pack(asked, events, 0)
  place = make_place(
    model, before, kept, fresh, sum(map(len, kept)) + sum(fresh)
  )
  # Ages of all events, the new ones too, are counted from the request.
  ages = np.concatenate([list_ages(model, r) for r in whole])
  place = Place(place.kept, place.known, jnp.asarray(ages), max(fresh))
  found = programs(model.make)['extend'](
    model.params, model.read(batch), batch, place
  )
  found = np.split(np.asarray(found, np.float32), np.cumsum(fresh))[:-1]
  for own, new, wanted in zip(kept, found, keep(model, whole), strict=True):
    assert np.isfinite(new).all()
    np.testing.assert_allclose(
      np.concatenate([own, new]), wanted, rtol=2e-6, atol=2e-6
    )


def test_what_cannot_be_kept_says_why():
  config = stu_test.build('listwise').config
  assert 'listwise' in kept_requests.explain_refusal(config)
  base = stu_test.build('summed').config
  assert not kept_requests.explain_refusal(base)
  assert 'counted_from' in kept_requests.explain_rebuilding(base, 2)
