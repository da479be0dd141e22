"""The generated stream as requests: what lies where, and what is told of it."""

import collections
import dataclasses
import hashlib

import numpy as np
import pytest

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import checks, stream_draws, streaming
from genrec_jax.data.requests.stream_draws import find_slot_steps

OPTIONS = StreamOptions(
  users=12,
  items=4_000,
  steps=20,
  train_steps=14,
  inference_events=160,
  inference_candidates=160,
  seed=3,
)


@pytest.fixture(scope='module')
def dataset():
  return streaming.generate_requests(OPTIONS)


def history(dataset, split, number):
  """(item, action) of the history of a request."""
  requests, events = dataset.splits[split], dataset.events
  own = slice(events.offsets[requests.user[number]], requests.end[number])
  return events.items['item'][own], events.action[own]


def candidates(dataset, split, number):
  requests = dataset.splits[split]
  own = slice(requests.offsets[number], requests.offsets[number + 1])
  return requests.items['item'][own], requests.labels['liked'][own]


def entering(dataset, split, number):
  """Events that enter the history after a request, before the next one."""
  requests, events = dataset.splits[split], dataset.events
  user, end = requests.user[number], requests.end[number]
  later = [
    other.end[i]
    for other in dataset.splits.values()
    for i in np.flatnonzero(other.user == user)
    if other.end[i] > end
  ]
  stop = min([*later, events.offsets[user + 1]])
  own = slice(end, stop)
  return events.items['item'][own], events.action[own]


def test_requests_come_by_step_and_user(dataset):
  train, valid, test = (dataset.splits[s] for s in ('train', 'valid', 'test'))
  assert set(train.step) == set(range(14))
  assert valid.step.tolist() == [14] * 12 and valid.user.tolist() == [
    *range(12)
  ]
  assert set(test.step) == set(range(14, 20))
  for requests in (train, valid, test):
    order = requests.step.astype(int) * 12 + requests.user
    assert (np.diff(order) > 0).all()
    begin = dataset.events.offsets[requests.user]
    assert (requests.end > begin).all()
    assert (requests.end <= dataset.events.offsets[requests.user + 1]).all()
  assert set(np.diff(train.offsets)) == set(np.diff(valid.offsets)) == {32}
  assert set(np.diff(test.offsets)) == {160}
  active = stream_draws.draw_plans(OPTIONS, range(12)).asked > 0
  assert (
    len(train) == active[:, :15].sum() and len(test) == active[:, 16:].sum()
  )


def test_every_event_lies_where_the_plain_loop_puts_it(dataset):
  for user in range(12):
    e = stream_draws.draw_events(OPTIONS, user)
    before = 0
    for slot in range(22):
      mine = e.slot == slot
      step, split = find_slot_steps(OPTIONS)[slot], 'train'
      if slot >= 15:
        split = 'valid' if slot == 15 else 'test'
      requests = dataset.splits[split]
      (found,) = np.nonzero((requests.user == user) & (requests.step == step))
      assert len(found) == (mine.any() and slot > 0)
      for number in found:
        items, _ = history(dataset, split, number)
        assert len(items) == before
        asked, liked = candidates(dataset, split, number)
        np.testing.assert_array_equal(asked, e.item[mine & e.is_candidate] + 1)
        np.testing.assert_array_equal(
          liked, e.rating[mine & e.is_candidate] >= 3.5
        )
      before += np.sum(mine & e.is_history)
    own = slice(*dataset.events.offsets[user : user + 2])
    kept = e.is_history
    np.testing.assert_array_equal(
      dataset.events.items['item'][own], e.item[kept] + 1
    )
    bits = [2 ** (int(rating) - 1) for rating in e.rating[kept]]
    assert dataset.events.action[own].tolist() == bits


def test_candidates_are_a_part_of_their_steps_own_events(dataset):
  # Of an event, the bit tells whether it is liked, but for ratings of 3 and
  # more below 4, which may be either.
  def count(items):
    return collections.Counter(items.tolist())

  for split, larger in (('train', 'history'), ('test', 'candidates')):
    for number in range(len(dataset.splits[split])):
      asked, liked = candidates(dataset, split, number)
      entered, bits = entering(dataset, split, number)
      assert len(entered) >= 33
      if larger == 'history':  # in training, all events become history
        assert not count(asked) - count(entered)
        assert not count(asked[liked == 1]) - count(entered[bits >= 4])
        assert not count(asked[liked == 0]) - count(entered[bits <= 4])
      else:  # afterwards, all events are candidates
        assert not count(entered) - count(asked)
        assert not count(entered[bits > 4]) - count(asked[liked == 1])
        assert not count(entered[bits < 4]) - count(asked[liked == 0])


def test_the_evaluation_never_becomes_history(dataset):
  valid, test = dataset.splits['valid'], dataset.splits['test']
  for user in range(12):
    first = np.flatnonzero(test.user == user)[0]
    assert test.end[first] == valid.end[user]


def test_columns_belong_together(dataset):
  per_category = 4_000 // 128
  for items in (
    dataset.events.items,
    *(requests.items for requests in dataset.splits.values()),
  ):
    assert items['item'].dtype == items['category'].dtype == np.int32
    np.testing.assert_array_equal(
      items['category'], (items['item'] - 1) // per_category + 1
    )
    assert items['item'].min() >= 1 and items['item'].max() <= 4_000
  spec = dataset.spec
  assert [f.rows for f in (*spec.items, *spec.context)] == [4_002, 130, 14]
  assert dataset.context['user'].tolist() == [*range(1, 13)]
  assert set(dataset.events.action) == {bit for _, bit in spec.actions}
  assert dict(spec.actions) == {f'rated_{i}': 2 ** (i - 1) for i in range(1, 6)}
  for requests in dataset.splits.values():
    assert set(requests.labels['liked']) == {0.0, 1.0}
  assert not spec.timed and dataset.events.time is None
  assert all(requests.time is None for requests in dataset.splits.values())


def test_times_tell_the_step_if_they_are_wanted(dataset):
  options = dataclasses.replace(OPTIONS, true_time=True, step_seconds=60)
  timed = streaming.generate_requests(options)
  assert timed.spec.timed
  np.testing.assert_array_equal(timed.events.action, dataset.events.action)
  for name, requests in timed.splits.items():
    np.testing.assert_array_equal(requests.end, dataset.splits[name].end)
    np.testing.assert_array_equal(requests.time, 60 * (requests.step + 1))
    for i, user in enumerate(requests.user):
      own = slice(timed.events.offsets[user], requests.end[i])
      assert timed.events.time[own][-1] < requests.time[i]
  for user in range(12):
    e = stream_draws.draw_events(options, user)
    own = slice(*timed.events.offsets[user : user + 2])
    np.testing.assert_array_equal(
      timed.events.time[own],
      60 * (find_slot_steps(options)[e.slot[e.is_history]] + 1),
    )
    assert timed.events.time[own][0] == 0


def test_truth_belongs_to_the_candidates(dataset):
  options = dataclasses.replace(OPTIONS, inference_candidates=50)
  fewer = streaming.generate_requests(options)
  for data, made_with in ((dataset, OPTIONS), (fewer, options)):
    for split, requests in data.splits.items():
      truth = streaming.reveal_truth(made_with, split)
      liked = requests.labels['liked']
      assert truth.rating.shape == liked.shape
      np.testing.assert_array_equal(truth.rating >= 3.5, liked)
      np.testing.assert_array_equal(
        truth.item_rating,
        stream_draws.rate_items(3, requests.items['item'] - 1),
      )
      user = np.repeat(requests.user, np.diff(requests.offsets))
      own = stream_draws.draw_plans(made_with, range(12)).categories
      np.testing.assert_array_equal(
        own[user, truth.place] + 1, requests.items['category']
      )


def test_a_user_is_the_same_at_any_scale(dataset):
  some = streaming.generate_requests(dataclasses.replace(OPTIONS, users=5))
  few = some.events.offsets[-1]
  np.testing.assert_array_equal(some.events.offsets, dataset.events.offsets[:6])
  for name, column in some.events.items.items():
    np.testing.assert_array_equal(column, dataset.events.items[name][:few])
  np.testing.assert_array_equal(some.events.action, dataset.events.action[:few])
  for split, requests in some.splits.items():
    whole = dataset.splits[split]
    mine = np.flatnonzero(whole.user < 5)
    np.testing.assert_array_equal(requests.user, whole.user[mine])
    np.testing.assert_array_equal(requests.end, whole.end[mine])
    for number, other in enumerate(mine):
      for a, b in zip(
        candidates(some, split, number),
        candidates(dataset, split, other),
        strict=True,
      ):
        np.testing.assert_array_equal(a, b)


def test_a_seed_stays_what_it_is(dataset):
  again = streaming.generate_requests(OPTIONS)
  assert again.fingerprint() == dataset.fingerprint()
  other = streaming.generate_requests(dataclasses.replace(OPTIONS, seed=4))
  assert other.fingerprint() != dataset.fingerprint()
  # Also from version to version: figures name their seeds.
  digest = hashlib.sha256()
  for array in (dataset.events.items['item'], dataset.events.action):
    digest.update(array.astype('<i4'))
  digest.update(dataset.splits['test'].items['item'].astype('<i4'))
  assert digest.hexdigest()[:16] == 'a877f1b8c1611374'


def test_users_are_planned_in_blocks(dataset, monkeypatch):
  monkeypatch.setattr(streaming, '_PLANNED', 5)
  again = streaming.generate_requests(OPTIONS)
  assert again.fingerprint() == dataset.fingerprint()


def test_a_split_without_a_step_is_missing():
  options = dataclasses.replace(OPTIONS, users=2, train_steps=20)
  dataset = streaming.generate_requests(options)
  assert list(dataset.splits) == ['train', 'valid']


@pytest.mark.parametrize('train_steps', [3, 4])
def test_ages_of_the_stream_have_room(train_steps):
  """The longest is of the evaluation where training is the whole stream."""
  options = dict(users=2, categories=8, steps=4, train_steps=train_steps)
  last = {3: 4, 4: 5}[train_steps]
  most = (2**31 - 1) // last
  options |= dict(inference_events=8, inference_candidates=2, activity=1.0)
  data = streaming.generate_requests(
    StreamOptions(**options, true_time=True, step_seconds=most)
  )
  checks.check_dataset(data)
  asked = max(split.time.max() for split in data.splits.values())
  assert asked - data.events.time.min() == last * most
  with pytest.raises(ValueError, match='lower step_seconds or steps$'):
    StreamOptions(**options, true_time=True, step_seconds=most + 1)
  StreamOptions(**options, step_seconds=most + 1)
