"""Answers from kept histories are those of a predictor that encodes anew."""

import gc
import logging
import threading
import weakref

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.serve.cached_predictor import CachedPredictor
from genrec_jax.serve.keep_options import KeepOptions
from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.weights import Weights
from genrec_jax.tasks.retrieval import Retrieval
from tests.marks import slow
from tests.serve.conftest import ITEMS

T = 1_700_000_000
LENGTH = 20
OPTIONS = KeepOptions(device_bytes=1 << 18, extend_by=3, page_tokens=4)
CASES = {
  'published': {},
  'no_times': dict(time_bias=False),
  'softmax': dict(attention='softmax', concat='u_x_ux', time_bias=False),
  'semi_local': dict(window=4, prefix=3, heads=2),
  'bfloat16_model': dict(dtype='bfloat16'),
}


def make_predictor(trained, case, seed=0, filter_seen='history', **loss):
  """A model of another shape, with weights that nobody has trained."""
  config = ConfigDict(trained[0].to_dict())
  config.model.update(blocks=3, max_len=LENGTH)
  config.model = ConfigDict(config.model.to_dict() | CASES[case])
  config.eval.filter_seen = filter_seen
  config.loss.update(loss)
  items = Predictor.load(trained[1]).items
  task = Retrieval.from_config(config, items.corpus, items.counts)
  keys = jax.random.split(jax.random.key(seed), 3)
  params = jax.tree.map(
    lambda x: x + 0.3 * jax.random.normal(keys[2], x.shape),
    task.init(keys[0]),
  )
  tables = {
    name: jax.random.normal(keys[1], (spec.rows, spec.dim))
    for name, spec in task.tables().items()
  }
  weights = Weights(params, tables, 1, {}, {})
  return Predictor(task, weights, items, config.lock())


@pytest.fixture(
  scope='module',
  params=['published', slow('no_times'), slow('softmax'), 'semi_local'],
)
def predictor(request, trained):
  return make_predictor(trained, request.param)


@pytest.fixture
def cached(predictor):
  return CachedPredictor(predictor, OPTIONS)


def draw(count, seed=0):
  """Item ids and times, some items not known."""
  rng = np.random.default_rng(seed)
  items = [f'sku-{n:02d}' for n in rng.integers(1, ITEMS + 3, count)]
  times = T + np.cumsum(rng.integers(0, 90_000, count))
  return items, times.tolist()


def which(known):
  """The argument for events behind so many."""
  return 'new_events' if known else 'history'


def is_timed(predictor):
  return predictor.config.model.time_bias


def show(predictor, items, times):
  """Arguments of a call with these events."""
  return dict(times=times) if is_timed(predictor) else {}


def whole(predictor, items, times, k=7, request_time=None):
  timed = is_timed(predictor)
  (found,) = predictor.recommend(
    [items], k, times=[times] if timed else None, request_time=request_time
  )
  return found


def assert_same(found, wanted, **tolerance):
  assert [item for item, _ in found] == [item for item, _ in wanted]
  np.testing.assert_allclose(
    [s for _, s in found], [s for _, s in wanted],
    **dict(rtol=2e-5, atol=2e-5) | tolerance,
  )  # fmt: skip


def test_events_are_added(predictor, cached):
  items, times = draw(LENGTH)
  known = 0
  for end in (1, 2, 9, 10, 15, LENGTH):
    more = show(predictor, None, times[known:end])
    found = cached.recommend(
      'ann', 7, **{which(known): items[known:end]}, **more
    )
    assert_same(found, whole(predictor, items[:end], times[:end]))
    known = end
  assert cached.work.questions == 6 and cached.work.rebuilt == 0
  # Not one event twice but for the latest of each question.
  assert cached.work.kept_events + cached.work.encoded_events <= LENGTH + 12


def test_a_question_is_asked_again(predictor, cached):
  items, times = draw(12, 1)
  first = cached.recommend(7, 5, history=items, **show(predictor, 0, times))
  before = cached.work.encoded_events
  assert cached.recommend(7, 5) == first
  assert cached.work.encoded_events == before + 1
  assert_same(cached.recommend('7', 9), whole(predictor, items, times, 9))
  if is_timed(predictor):
    later = times[-1] + 86_400 * 40
    wanted = whole(predictor, items, times, 5, later)
    assert_same(cached.recommend(7, 5, request_time=later), wanted)
    assert_same(cached.recommend(7, 5), first)


def test_histories_may_be_given_as_a_whole_each_time(predictor, cached):
  items, times = draw(16, 2)
  for end in (8, 9, 16):
    more = show(predictor, 0, times[:end])
    found = cached.recommend('bo', 7, history=items[:end], **more)
    assert_same(found, whole(predictor, items[:end], times[:end]))
  assert cached.work.kept == 1 and cached.work.rebuilt == 0
  items, times = draw(12, 3)
  found = cached.recommend('bo', 7, history=items, **show(predictor, 0, times))
  assert_same(found, whole(predictor, items, times))
  assert cached.work.rebuilt == 1


@pytest.mark.parametrize(
  'filter_seen', ['history', slow('window'), slow('none')]
)
def test_a_long_history_keeps_its_latest_events(trained, filter_seen):
  predictor = make_predictor(trained, 'published', filter_seen=filter_seen)
  cached = CachedPredictor(predictor, OPTIONS)
  items, times = draw(3 * LENGTH, 4)
  known = 0
  for end in (LENGTH, LENGTH + 1, 2 * LENGTH + 5, 3 * LENGTH):
    found = cached.recommend(
      'cy', 7, **{which(known): items[known:end]}, times=times[known:end]
    )
    assert_same(found, whole(predictor, items[:end], times[:end]))
    known = end


def test_many_events_leave_at_once(trained):
  predictor = make_predictor(trained, 'published', filter_seen='none')
  cached = CachedPredictor(
    predictor, KeepOptions(device_bytes=1 << 18, drop_at_once=8)
  )
  items, times = draw(50, 5)
  items = [x if x <= 'sku-30' else 'sku-01' for x in items]  # all known
  for end in range(1, 51):
    some = slice(end - 1, end)
    found = cached.recommend(
      'di', **{which(end - 1): items[some]}, times=times[some]
    )
    gone = -(-max(end - LENGTH, 0) // 8) * 8
    wanted = whole(predictor, items[gone:end], times[gone:end], 10)
    assert_same(found, wanted)
  # Computed anew at each eighth event, and not at each of thirty.
  assert cached.work.rebuilt == 4
  with pytest.raises(
    ValueError, match='drop_at_once is 21, and the model reads'
  ):
    CachedPredictor(predictor, KeepOptions(drop_at_once=21))


def test_nobody_gets_an_answer_of_other_weights(trained):
  predictor, other = (make_predictor(trained, 'published', n) for n in (0, 9))
  cached = CachedPredictor(predictor, OPTIONS)
  items, times = draw(12, 6)
  first = cached.recommend('ed', 7, history=items, times=times)
  cached.use(other)
  found = cached.recommend('ed', 7)
  assert_same(found, whole(other, items, times))
  assert found != first and cached.work.rebuilt == 1
  with pytest.raises(ValueError, match='of another model'):
    cached.use(make_predictor(trained, 'semi_local'))


def test_what_is_kept_in_bfloat16_is_near(trained):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(
    predictor, KeepOptions(device_bytes=1 << 18, dtype='bfloat16')
  )
  items, times = draw(18, 7)
  found = dict(cached.recommend('fa', 30, history=items, times=times))
  for item, score in whole(predictor, items, times, 30):
    assert found[item] == pytest.approx(score, rel=0.05, abs=0.05)


@pytest.mark.slow
def test_a_model_in_bfloat16(trained):
  predictor = make_predictor(trained, 'bfloat16_model')
  cached = CachedPredictor(predictor, OPTIONS)
  items, times = draw(18, 7)
  cached.recommend('fa', history=items[:9], times=times[:9])
  found = dict(
    cached.recommend('fa', 30, new_events=items[9:], times=times[9:])
  )
  for item, score in whole(predictor, items, times, 30):
    assert found[item] == pytest.approx(score, rel=0.1, abs=0.1)


def test_after_the_warm_up_nothing_is_compiled(trained, caplog):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(predictor, OPTIONS)
  told = cached.warm_up(ks=(7,), most_seen=100)
  before = set(cached.compiled)
  assert told['programs'] == len(before) and told['seconds'] > 0
  items, times = draw(90, 8)
  with jax.log_compiles(), caplog.at_level(logging.DEBUG):
    for begin, end in ((0, 1), (1, 3), (3, 14), (14, 40), (40, 90)):
      cached.recommend(
        'gu', 7, **{which(begin): items[begin:end]}, times=times[begin:end]
      )
    for n in range(200):  # more than the cache has room for
      cached.recommend(n, 7, history=items[:17], times=times[:17])
  assert cached.cache.counts.evicted > 100
  compiled = [r for r in caplog.records if 'Compiling' in r.getMessage()]
  assert not compiled, [r.getMessage()[:90] for r in compiled]
  assert cached.compiled == before


def test_many_users_from_many_threads(trained):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(
    predictor, KeepOptions(device_bytes=1 << 14, host_bytes=1 << 14,
                           page_tokens=4),
  )  # fmt: skip
  wanted, wrong = {}, []
  for user in range(6):
    items, times = draw(8 + user, user)
    wanted[user] = items, times, whole(predictor, items, times)

  def ask(seed):
    for user in np.random.default_rng(seed).integers(0, 6, 20).tolist():
      items, times, expected = wanted[user]
      found = cached.recommend(user, 7, history=items, times=times)
      try:
        assert_same(found, expected)
      except AssertionError as error:
        wrong.append(error)

  threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong and cached.work.questions == 60


def test_what_is_refused_leaves_nothing_behind(trained):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(predictor, OPTIONS)
  items, times = draw(6, 9)
  for message, arguments in {
    'nothing is known of user': {},
    'give history, or new_events': dict(history=[], new_events=[]),
    'reads times': dict(history=items),
    '6 events have 5 times': dict(history=items, times=times[:5]),
    'are times in seconds': dict(history=items[:2], times=[1, 4e9]),
    'no longer; give its history': dict(new_events=items, times=times),
    'k is 2.5, must be a whole': dict(history=items, times=times, k=2.5),
    'k is True': dict(history=items, times=times, k=True),
    "a sequence of items, not 'sku-01'": dict(history='sku-01'),
    'times are of events, and none': dict(times=times),
    'k is 0': dict(history=items, times=times, k=0),
  }.items():
    with pytest.raises(ValueError, match=message):
      cached.recommend('hal', **arguments)
  assert cached.recommend('ida', history=[]) == []
  assert cached.recommend('ida', history=['foreign'], times=[T]) == []
  first = cached.recommend('hal', history=items, times=times)
  for user in (None, ['hal'], True, b'hal'):
    with pytest.raises(ValueError, match='user is .*, must be a text'):
      cached.recommend(user, history=items, times=times)
  for message, arguments in {
    'new_events begin at': dict(new_events=items[:1], times=[times[0] - 1]),
    'must be from the latest event': dict(request_time=times[-1] - 1),
    "request_time is .'soon'": dict(request_time='soon'),
    'is it in seconds': dict(request_time=times[-1] + 2**32),
  }.items():
    with pytest.raises(ValueError, match=message):
      cached.recommend('hal', **arguments)
  assert cached.recommend('hal') == first
  cached.forget('hal')
  with pytest.raises(ValueError, match='nothing is known'):
    cached.recommend('hal')


def test_other_models_are_refused(untimed):
  with pytest.raises(ValueError, match='only the model hstu .* SASRec'):
    CachedPredictor(Predictor.load(untimed[1]))


def test_a_budget_smaller_than_a_user(trained):
  predictor = make_predictor(trained, 'published')
  with pytest.raises(ValueError, match='a user of 20 tokens needs'):
    CachedPredictor(predictor, KeepOptions(device_bytes=100))


def test_a_call_that_fails_leaves_nothing_behind(trained, monkeypatch):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(predictor, OPTIONS)
  items, times = draw(10, 11)
  cached.recommend('jo', 7, history=items[:8], times=times[:8])
  one = dict(new_events=items[8:9], times=times[8:9])

  def fail(*args):
    raise RuntimeError('broken')

  for name in ('_search', '_find_best'):
    with monkeypatch.context() as patch:
      patch.setattr(cached, name, fail)
      with pytest.raises(RuntimeError, match='broken'):
        cached.recommend('jo', 7, **one)
  # Another event than the one that failed, behind the same eight.
  found = cached.recommend('jo', 7, new_events=items[9:], times=times[9:])
  wanted = items[:8] + items[9:], times[:8] + times[9:]
  assert_same(found, whole(predictor, *wanted))


def test_a_user_who_is_forgotten_meanwhile(trained, monkeypatch):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(
    predictor, KeepOptions(device_bytes=1 << 18, remembered=1)
  )
  items, times = draw(12, 12)
  cached.recommend('kim', 7, history=items[:9], times=times[:9])
  read = cached._read_events

  def read_late(*args):
    monkeypatch.setattr(cached, '_read_events', read)
    cached.recommend('lea', 7, history=items[:3], times=times[:3])
    return read(*args)

  monkeypatch.setattr(cached, '_read_events', read_late)
  found = cached.recommend('kim', 7, new_events=items[9:], times=times[9:])
  assert_same(found, whole(predictor, items, times))
  with pytest.raises(ValueError, match='or no longer; give its history'):
    cached.recommend('lea', 7, new_events=items[3:4], times=times[3:4])


def test_events_in_arrays_and_users_of_any_name(trained):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(predictor, OPTIONS)
  items, times = draw(9, 13)
  found = cached.recommend('', 7, history=np.array(items), times=times)
  assert_same(found, whole(predictor, items, times))
  cached.warm_up(ks=(7,))
  assert cached.cache.peek('') is not None
  assert cached.recommend('', np.int64(7)) == found


def test_a_run_with_other_settings_is_refused_and_old_weights_go(trained):
  predictor = make_predictor(trained, 'published')
  cached = CachedPredictor(predictor, OPTIONS)
  with pytest.raises(ValueError, match='of another model'):
    cached.use(make_predictor(trained, 'published', 1, filter_seen='none'))
  with pytest.raises(ValueError, match='use takes a Predictor'):
    cached.use('/tmp/run')
  cached.use(make_predictor(trained, 'published', 1))
  old = weakref.ref(predictor)
  del predictor
  gc.collect()
  assert old() is None


def test_times_of_a_model_without_them_tell_the_order(trained):
  predictor = make_predictor(trained, 'no_times')
  cached = CachedPredictor(predictor, OPTIONS)
  items, _ = draw(8, 14)
  cached.recommend('mo', 5, history=items[:5], times=[5, 4, 3, 2, 1])
  with pytest.raises(ValueError, match='new_events begin at 0, before'):
    cached.recommend('mo', 5, new_events=items[5:6], times=[0])
  found = cached.recommend('mo', 5, new_events=items[5:6], times=[6])
  wanted = [*items[4::-1], items[5]]
  assert_same(found, whole(predictor, wanted, None, 5))
  # Without times: behind all that is known.
  found = cached.recommend('mo', 5, new_events=items[6:])
  assert_same(found, whole(predictor, [*wanted, *items[6:]], None, 5))
