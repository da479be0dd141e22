"""Scores from a cache of histories are those of whole requests."""

import dataclasses
import logging
import threading

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.requests import prepared
from genrec_jax.serve.cached_scorer import CachedScorer, CacheOptions
from genrec_jax.serve.kv_cache import CacheEmptied
from genrec_jax.serve.request_scorer import RequestScorer
from tests.marks import slow
from tests.serve import request_runs

START = dict(counted_from='start', context_mask='causal', min_context_events=5)
FILMS = list(range(1, 40))
OPTIONS = CacheOptions(micro_batch=4, extend_by=3, device_bytes=1 << 20)


@pytest.fixture(scope='module')
def log():
  return request_runs.make_log()


@pytest.fixture(scope='module', params=['request', 'start'])
def run(request, log, tmp_path_factory):
  """(way of counting, scorer of whole requests, workdir)."""
  root = tmp_path_factory.mktemp(request.param)
  request_runs.write_ratings(root / 'ratings.csv', log)
  config = request_runs.make_config(name='movielens', path=str(root))
  config.data.max_history = 20
  config.model.blocks = 2
  config.data.movielens.update(rating_label=True, min_count=2)
  if request.param == 'start':
    config.model.update(START)
  _, workdir = request_runs.start_run(config, root / 'run')
  return request.param, RequestScorer.load(workdir, config), workdir


@pytest.fixture
def cached(run):
  return CachedScorer(run[1], OPTIONS)


def show(events):
  return {
    'movie_id': [film for _, film, _ in events],
    'action': [f'stars_{stars}' for *_, stars in events],
    'time': [time for time, *_ in events],
  }


def whole(run, events, films=FILMS, **options):
  return run[1].score(show(events), {'movie_id': films}, **options)


def assert_same(found, wanted):
  np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def test_a_history_is_computed_once(run, cached, log):
  events = log[11][:12]
  asked = {'movie_id': FILMS}  # nine runs of four and one of three
  found = cached.score('11', asked, history=show(events))
  assert found.shape == (len(FILMS), 2)
  assert_same(found, whole(run, events, user=11))
  again = cached.score('11', {'movie_id': FILMS[:7]})
  np.testing.assert_array_equal(again, found[:7])
  assert (cached.work.kept, cached.work.rebuilt) == (1, 0)
  assert cached.cache.counts.hits == 1
  assert cached.work.candidates == len(FILMS) + 7


def test_events_are_added(run, cached, log):
  kind, *_ = run
  events = log[12]
  cached.score('12', {'movie_id': FILMS[:1]}, history=show(events[:9]))
  for begin, end in ((9, 10), (10, 15), (15, 15), (15, 20)):
    if begin == end:  # none at all
      found = cached.score('12', {'movie_id': FILMS}, new_events=[])
    else:
      new = show(events[begin:end])
      found = cached.score('12', {'movie_id': FILMS}, new_events=new)
    assert_same(found, whole(run, events[:end], user=12))
  if kind == 'start':
    assert (cached.work.kept, cached.work.extended_events) == (1, 11)
  else:
    assert cached.work.kept == 4 and cached.work.rebuilt == 3
    assert 'counted_from' in cached.rebuilds_because


def test_histories_may_be_given_as_a_whole_each_time(run, cached, log):
  kind, *_ = run
  events = log[13]
  for end in (8, 9, 14):
    found = cached.score('13', {'movie_id': FILMS}, history=show(events[:end]))
    assert_same(found, whole(run, events[:end], user=13))
  other = log[14][:9]
  found = cached.score('13', {'movie_id': FILMS}, history=show(other))
  assert_same(found, whole(run, other, user=13))
  assert cached.work.kept == (2 if kind == 'start' else 4)


def test_a_long_history_keeps_its_latest_events(run, cached, log):
  events = log[15]
  assert len(events) > 20
  cached.score('15', {'movie_id': [1]}, history=show(events[:18]))
  found = cached.score('15', {'movie_id': FILMS}, new_events=show(events[18:]))
  assert_same(found, whole(run, events, user=15))
  found = cached.score('15', {'movie_id': FILMS}, history=show(events))
  assert_same(found, whole(run, events, user=15))


def test_requests_at_other_moments(run, cached, log):
  events, later = log[16][:8], log[16][7][0] + 86_400 * 9
  asked = {'movie_id': FILMS}
  first = cached.score('16', asked, history=show(events))
  found = cached.score('16', asked, time=later)
  assert_same(found, whole(run, events, user=16, time=later))
  assert np.abs(found - first).max() > 1e-6
  with pytest.raises(ValueError, match='before the latest event that is known'):
    cached.score('16', asked, time=events[3][0])
  assert_same(cached.score('16', asked), first)


def test_nobody_gets_an_answer_of_other_weights(run, cached, log, tmp_path):
  kind, scorer, workdir = run
  events = log[17][:10]
  asked = {'movie_id': FILMS}
  first = cached.score('17', asked, history=show(events))
  other = RequestScorer.load(workdir)
  other.weights = jax.tree.map(
    lambda x: x * 1.25 if x.dtype == np.float32 else x, other.weights
  )
  cached.use(other)
  found = cached.score('17', asked)
  wanted = other.score(show(events), {'movie_id': FILMS}, user='17')
  assert_same(found, wanted)
  assert np.abs(found - first).max() > 1e-3
  assert cached.work.rebuilt == 1 and cached.cache.counts.stale == 1


@pytest.mark.parametrize('users', [3, slow(1)])
def test_requests_of_a_data_set(run, users):
  """Users one behind the other, of different lengths, and some twice."""
  _, scorer, workdir = run
  options = CacheOptions(users=users, micro_batch=4, device_bytes=1 << 20)
  cached = CachedScorer(scorer, options)
  config = config_lib.load_saved(workdir / 'config.json')
  dataset = prepared.load(config.data, workdir / 'data', lambda *_: None)
  for split in ('valid', 'test'):
    requests = dataset.splits[split]
    found = np.concatenate([*cached.score_requests(dataset, requests)])
    wanted = np.concatenate([*scorer.score_requests(dataset, requests)])
    assert_same(found, wanted)
  again = np.concatenate([*cached.score_requests(dataset, requests)])
  np.testing.assert_allclose(again, found, rtol=1e-6)


def test_no_candidates_and_many(run, cached, log):
  events = show(log[11][:5])
  assert cached.score('a', {'movie_id': []}, history=events).shape == (0, 2)
  assert cached.work.kept == 0
  many = (FILMS * 30)[:1001]
  found = cached.score('a', {'movie_id': many})
  assert found.shape == (1001, 2)
  np.testing.assert_array_equal(found[:39], found[39:78])


def test_after_the_warm_up_nothing_is_compiled(run, log, caplog):
  cached = CachedScorer(run[1], OPTIONS)
  told = cached.warm_up()
  assert told['programs'] == len(cached._programs.compiled)
  before = set(cached._programs.compiled)
  rungs = len(cached._programs.rungs)
  assert len(before) == rungs * (3 if run[0] == 'start' else 2)
  with jax.log_compiles(), caplog.at_level(logging.DEBUG):
    for user, count in ((11, 3), (12, 17), (13, 30)):
      cached.score(user, {'movie_id': FILMS}, history=show(log[user][:count]))
      cached.score(user, {'movie_id': [3]}, new_events=show(log[user][count:]))
  compiled = [r for r in caplog.records if 'Compiling' in r.getMessage()]
  assert not compiled, [r.getMessage()[:90] for r in compiled]
  assert cached._programs.compiled == before


@pytest.mark.parametrize('dtype', [slow('float32'), 'bfloat16'])
def test_users_that_have_no_room_come_back(run, log, dtype):
  size = CachedScorer(run[1], OPTIONS).cache.row_bytes
  size //= 1 if dtype == 'float32' else 2
  # Of the device for two users, of the host for two more.
  options = CacheOptions(
    micro_batch=4,
    device_bytes=2 * 32 * size,
    host_bytes=2 * 32 * size,
    page_tokens=8,
    dtype=dtype,
  )
  cached = CachedScorer(run[1], options)
  asked, wanted = {'movie_id': FILMS}, {}
  for user in range(11, 17):
    wanted[user] = cached.score(user, asked, history=show(log[user][:20]))
    tolerance = 2e-6 if dtype == 'float32' else 0.02
    np.testing.assert_allclose(
      wanted[user], whole(run, log[user][:20], user=user),
      rtol=tolerance, atol=tolerance,
    )  # fmt: skip
  for user in (16, 13, 11, 14, 11):
    np.testing.assert_array_equal(cached.score(user, asked), wanted[user])
  counts = cached.cache.counts
  assert counts.moved and counts.evicted and counts.host_hits
  assert cached.work.rebuilt == 0


def test_threads_of_one_user_and_of_others(run, log):
  cached, wrong = CachedScorer(run[1], OPTIONS), []
  films = {'movie_id': FILMS[:6]}
  wanted = {
    (u, n): whole(run, log[u][:n], FILMS[:6], user=u)
    for u in (11, 12)
    for n in (6, 9, 20)
  }

  def ask(seed):
    rng = np.random.default_rng(seed)
    for _ in range(6):
      user, count = int(rng.choice([11, 12])), int(rng.choice([6, 9, 20]))
      found = cached.score(user, films, history=show(log[user][:count]))
      if not np.allclose(found, wanted[user, count], atol=3e-6):
        wrong.append((user, count))

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(120)
  assert not any(t.is_alive() for t in threads) and not wrong


def test_who_is_forgotten_and_comes_back_with_another_history(run, log):
  options = dataclasses.replace(OPTIONS, remembered=1)
  cached = CachedScorer(run[1], options)
  films = {'movie_id': FILMS}
  for user, source in (('a', 11), ('b', 12), ('a', 13), ('b', 12)):
    events = log[source][:9]
    found = cached.score(user, films, history=show(events))
    assert_same(found, whole(run, events, user=user))
  with pytest.raises(ValueError, match="nothing is known of user 'a'"):
    cached.score('a', films)


def test_a_call_that_is_refused_leaves_nothing_behind(run, cached, log):
  events = log[11][:9]
  cached.score('11', {'movie_id': FILMS}, history=show(events))
  late = show([(10**10, 3, 4)])  # milliseconds, say
  with pytest.raises(ValueError, match='give seconds'):
    cached.score('11', {'movie_id': FILMS}, new_events=late)
  new = log[11][9:10]
  found = cached.score('11', {'movie_id': FILMS}, new_events=show(new))
  assert_same(found, whole(run, log[11][:10], user=11))


def test_what_is_refused(run, cached, log):
  events = log[11][:6]
  with pytest.raises(ValueError, match="known of user 'x', or no longer; give"):
    cached.score('x', {'movie_id': [1]})
  with pytest.raises(ValueError, match='not both'):
    cached.score('x', {'movie_id': [1]}, history=[], new_events=[])
  cached.score('x', {'movie_id': [1]}, history=show(events))
  old = show(events[:1])
  with pytest.raises(ValueError, match='new_events begin at .* before the lat'):
    cached.score('x', {'movie_id': [1]}, new_events=old)
  assert_same(
    cached.score('x', {'movie_id': FILMS}), whole(run, events, user='x')
  )
  with pytest.raises(ValueError, match='a user of .* tokens needs'):
    CachedScorer(run[1], CacheOptions(device_bytes=1000))
  with pytest.raises(ValueError, match='users must be at least 1, not 0'):
    CacheOptions(users=0)


def test_the_context_begins_to_count(run, cached, log):
  """With the fifth event, what is kept of all of them changes."""
  events = log[18]
  cached.score('18', {'movie_id': [1]}, history=show(events[:3]))
  for begin, end in ((3, 4), (4, 5), (5, 9)):
    new = show(events[begin:end])
    found = cached.score('18', {'movie_id': FILMS}, new_events=new)
    assert_same(found, whole(run, events[:end], user=18))


def test_a_call_that_fails_leaves_no_event_behind(
  run, cached, log, monkeypatch
):
  events = log[11]
  asked = {'movie_id': FILMS}
  cached.score('11', asked, history=show(events[:8]))

  def fail(*args):
    raise RuntimeError('broken')

  with monkeypatch.context() as patch:
    patch.setattr(cached._programs, 'score', fail)
    with pytest.raises(RuntimeError, match='broken'):
      cached.score('11', asked, new_events=show(events[8:9]))
  found = cached.score('11', asked, new_events=show(events[9:10]))
  wanted = events[:8] + events[9:10]
  assert_same(found, whole(run, wanted, user=11))


def test_users_of_requests_are_others(run, cached):
  *_, workdir = run
  with pytest.raises(ValueError, match="known of user 'row 0', or no longer"):
    cached.score('row 0', {'movie_id': [1]})
  with pytest.raises(ValueError, match='user is .None., must be a text'):
    cached.score(None, {'movie_id': [1]}, history=[])


def test_a_cache_that_was_emptied_gives_no_rows_of_others(
  run, cached, log, monkeypatch
):
  """A write of another user fails between two looks at the cache."""
  asked = {'movie_id': FILMS}
  cached.score('11', asked, history=show(log[11][:9]))
  list_ages = cached._list_ages

  def empty_then_list(*args):
    monkeypatch.setattr(cached, '_list_ages', list_ages)
    cached.cache._start_empty()
    cached.score('13', asked, history=show(log[13][:9]))
    return list_ages(*args)

  monkeypatch.setattr(cached, '_list_ages', empty_then_list)
  with pytest.raises(CacheEmptied, match='call again'):
    cached.score('11', asked)
  assert_same(cached.score('11', asked), whole(run, log[11][:9], user=11))
