import dataclasses
import re

import numpy as np
import pytest

from genrec_jax.data.requests import checks
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
)
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import FeatureSpec, LabelSpec, RequestSpec

SPEC = RequestSpec(
  items=(FeatureSpec('item', rows=6),),
  context=(FeatureSpec('age', rows=4),),
  actions=(('like', 1), ('share', 4)),
  labels=(LabelSpec('liked'), LabelSpec('seconds', 'regression')),
  watch_time=True,
)


def make() -> RequestDataset:
  """Users a, b (without events) and c; two requests of c and one of b."""
  return RequestDataset(
    name='three users',
    spec=SPEC,
    events=EventStore(
      offsets=np.array([0, 2, 2, 5]),
      items={'item': np.int32([1, 2, 3, 4, 5])},
      action=np.int32([0, 1, 4, 5, 0]),
      time=np.array([50, 60, 10, 10, 30]),
      watch_time=np.float32([0, 1, 2, 3, 4]),
    ),
    context={'age': np.int32([0, 1, 3])},
    splits={
      'test': Requests(
        user=np.int32([2, 1, 2]),
        end=np.array([4, 2, 5]),
        offsets=np.array([0, 2, 2, 4]),
        items={'item': np.int32([0, 1, 2, 5])},
        labels={
          'liked': np.float32([0, 1, 1, 0]),
          'seconds': np.float32([0.5, -1, 9, 3]),
        },
        weight=np.float32([1, 0, 2, 1]),
        time=np.array([20, 1, 30]),
        step=np.int32([0, 1, 1]),
      )
    },
    vocabs={'item': Vocab(np.array([10, 20, 30, 40]))},
    user_ids=np.array(['a', 'b', 'c']),
  )


def change(dataset, path, value):
  """The dataset with another value at 'events.items.item', say."""
  if not path:
    return value
  head, *rest = path
  if isinstance(dataset, dict):
    return {**dataset, head: change(dataset.get(head), rest, value)}
  inner = change(getattr(dataset, head), rest, value)
  return dataclasses.replace(dataset, **{head: inner})


NAN, INF = float('nan'), float('inf')
TEST = 'splits.test'
FAULTS = [
  ('events.items.item', np.int32([1, 2, 3, 6, 5]),
   "user 'c', event 1 (from 0) has item 6, but the table has rows 0 to 5; enc"),
  ('events.items.item', np.int32([1, -1, 3, 4, 5]), "user 'a', event 1 (from"),
  ('events.items.item', np.arange(5),
   'item is int64 (5,), must be int32 (5,)'),
  ('events.items.item', np.int32([1]), 'item is int32 (1,), must be int32'),
  ('events.items', {}, 'item: there is no such column, but the spec wants it'),
  ('events.action', np.int32([0, 1, 2, 0, 0]),
   "user 'c', event 0 (from 0) has action 2, but the actions have the bits 1, "
   '4; name the other bits in RequestSpec.actions'),
  ('events.action', np.int32([-8, 1, 0, 0, 0]), "user 'a', event 0 (from 0)"),
  ('events.time', np.array([50, 60, 10, 9, 30]),
   "user 'c', event 1 (from 0) is at time 9, before the event in front of it "
   "at 10; sort each user's events by time"),
  ('events.time', np.array([60, 50, 10, 10, 30]), "user 'a', event 1 (from"),
  ('events.time', None, 'the events have no times; give them, or set timed='),
  ('events.watch_time', np.float32([0, 1, 2, NAN, 4]),
   "user 'c', event 1 (from 0) has a watch time of nan seconds; it must be"),
  ('events.watch_time', np.float32([0, -1, 2, 2, 4]), "user 'a', event 1"),
  ('events.watch_time', None, 'events.watch_time: there is no such column'),
  ('events.offsets', np.array([1, 2, 2, 5]), 'events.offsets do not ascend'),
  ('events.offsets', np.array([0, 3, 2, 5]), 'events.offsets do not ascend'),
  ('context.age', np.int32([0, 1, 4]), "user 'c' has context 'age' 4, but the"),
  ('context', {}, "context 'age': there is no such column, but the spec wants"),
  ('context.height', np.int32([0, 1, 4]), "context 'height' is not a feature"),
  (TEST + '.context.height', np.int32([0, 1, 2]), "context 'height' is not a "
   'feature of the spec; add it to RequestSpec.context'),
  (TEST + '.context.age', np.int32([0, 1, 2]), "context 'age' is a column of "
   'the users and one of the requests of test; it belongs to one of the two'),
  ('user_ids', np.array(['a', 'b']), '2 user_ids for the events of 3 users'),
  ('vocabs.item', Vocab(np.arange(6)), 'at least 7'),
  (TEST + '.user', np.int32([2, 3, 2]), 'test: request 1 (from 0) is of user '
   'number 3, of 3 users'),
  (TEST + '.user', np.int32([2, -1, 2]), 'is of user number -1, of 3 users'),
  (TEST + '.end', np.array([4, 3, 5]), "test: request 1 (from 0) of user 'b': "
   'the history ends at position 3; the events of this user are at 2 to 2'),
  (TEST + '.end', np.array([4, 2, 1]), "request 2 (from 0) of user 'c': the "
   'history ends at position 1'),
  (TEST + '.end', np.int32([4, 2, 1]), 'test.end is int32 (3,), must be int64'),
  (TEST + '.offsets', np.array([0, 2, 1, 4]), 'test.offsets do not ascend'),
  (TEST + '.offsets', np.array([0, 2, 4]), 'test.offsets is int64 (3,), must'),
  (TEST + '.time', np.array([20, 1, 29]), "test: request 2 (from 0) of user 'c'"
   ' is at time 29, before the last event of its history at 30; end the his'),
  (TEST + '.time', np.array([2**31 + 10, 1, 30]), "test: request 0 (from 0) of "
   "user 'c' is 2147483648 seconds after its user's first event, more than"),
  (TEST + '.time', None, 'the requests have no times; give them, or set timed'),
  (TEST + '.step', np.int32([0, 2, 1]), "test: request 2 (from 0) of user 'c' "
   'has step 1, after one of step 2; sort the requests by step'),
  (TEST + '.items.item', np.int32([0, 1, 9, 5]), "test: request 2 (from 0) of "
   "user 'c', candidate 0 (from 0) has item 9, but the table has rows 0 to 5"),
  (TEST + '.labels.liked', np.float32([0, 1, 0.5, 0]), "user 'c', candidate 0 "
   "(from 0) has label 'liked' 0.5; it must be 0 or 1"),
  (TEST + '.labels.liked', np.float32([0, NAN, 1, 0]), "candidate 1 (from 0) "
   "has label 'liked' nan"),
  (TEST + '.labels.seconds', np.float32([0, 1, 1, INF]), "candidate 1 (from 0)"
   " has label 'seconds' inf; it must be a finite number"),
  (TEST + '.labels.seconds', None, "test.labels 'seconds': there is no such"),
  (TEST + '.weight', np.float32([0, -1, 1, 1]), 'candidate 1 (from 0) has '
   'weight -1.0; it must be finite and not negative'),
  (TEST + '.weight', np.float32([0, 1, NAN, 1]), 'has weight nan'),
]  # fmt: skip


@pytest.mark.parametrize(
  ('path', 'value', 'words'), FAULTS, ids=[fault[0] for fault in FAULTS]
)
@pytest.mark.parametrize('chunk', [2, 1 << 22])
def test_a_fault_is_told_in_a_sentence(monkeypatch, path, value, words, chunk):
  monkeypatch.setattr(checks, '_CHUNK', chunk)
  checks.check_dataset(make())
  with pytest.raises(ValueError, match=re.escape(words)) as e:
    checks.check_dataset(change(make(), path.split('.'), value))
  assert '\n' not in str(e.value)


def test_what_candidates_alone_have_is_checked_there_alone():
  places = (FeatureSpec('place', rows=3),)
  data = change(make(), ['spec'], dataclasses.replace(SPEC, candidates=places))

  def refuse(data, words):
    with pytest.raises(ValueError, match=re.escape(words)):
      checks.check_dataset(data)

  refuse(data, 'place: there is no such column, but the spec wants it')
  column = ['splits', 'test', 'items', 'place']
  good = change(data, column, np.int32([0, 1, 2, 1]))
  checks.check_dataset(good)
  bad = change(data, column, np.int32([0, 1, 2, 3]))
  refuse(bad, "candidate 1 (from 0) has place 3, but the table has rows 0 to 2")
  both = change(good, ['events', 'items', 'place'], np.int32([0, 1, 2, 0, 0]))
  refuse(both, "column 'place', which is a feature of candidates alone")
  refuse(change(good, ['vocabs', 'place'], Vocab(np.arange(4))), 'at least 5')


def make_with_device() -> RequestDataset:
  """The same, and one more split; each request has a device."""
  devices = (*SPEC.context, FeatureSpec('device', rows=3))
  data = change(make(), ['spec'], dataclasses.replace(SPEC, context=devices))
  data = change(data, ['splits', 'train'], data.splits['test'])
  for split in ('test', 'train'):
    path = ['splits', split, 'context', 'device']
    data = change(data, path, np.int32([2, 0, 1]))
  return data


DEVICE = 'splits.train.context.device'
DEVICE_FAULTS = [
  (DEVICE, np.int32([2, 0, 3]), "train: request 2 (from 0) of user 'c' has "
   "train.context 'device' 3, but the table has rows 0 to 2"),
  (DEVICE, np.int32([2, -1, 1]), "train: request 1 (from 0) of user 'b' has"),
  (DEVICE, np.int64([2, 0, 1]), "train.context 'device' is int64 (3,), must be"
   ' int32 (3,)'),
  (DEVICE, np.int32([2, 0]), "train.context 'device' is int32 (2,), must be"),
  ('splits.train.context', {}, "train.context 'device': there is no such "
   'column, but the spec wants it'),
  ('context.device', np.int32([0, 1, 2]), "context 'device' is a column of the "
   'users and one of the requests of t'),
  ('context', {}, "context 'age': there is no such column"),
  ('vocabs.device', Vocab(np.arange(3)), "'device' has 3 rows for a vocabulary"
   ' of 3 values; give it at least 4'),
]  # fmt: skip


@pytest.mark.parametrize(('path', 'value', 'words'), DEVICE_FAULTS)
def test_context_of_requests_is_checked_by_request(path, value, words):
  data = make_with_device()
  checks.check_dataset(data)
  with pytest.raises(ValueError, match=re.escape(words)):
    checks.check_dataset(change(data, path.split('.'), value))


def test_every_slot_of_the_context_is_checked():
  tags = FeatureSpec('tag', 'multi_hot', rows=3, max_len=2)
  spec = dataclasses.replace(SPEC, context=(*SPEC.context, tags))
  data = change(make(), ['spec'], spec)

  def refuse(data, words):
    with pytest.raises(ValueError, match=re.escape(words)):
      checks.check_dataset(data)

  data = change(data, ['context', 'tag.0'], np.int32([0, 1, 2]))
  refuse(data, "context 'tag.1': there is no such column, but the spec wants")
  refuse(change(data, ['context', 'tag'], np.int32([0, 1, 2])), "context 'tag'"
         ' is not a feature of the spec')  # fmt: skip
  good = change(data, ['context', 'tag.1'], np.int32([0, 0, 2]))
  checks.check_dataset(good)
  bad = change(data, ['context', 'tag.1'], np.int32([0, 3, 2]))
  refuse(bad, "user 'b' has context 'tag.1' 3, but the table has rows 0 to 2")
  refuse(change(good, ['vocabs', 'tag'], Vocab(np.arange(3))), 'at least 4')


def test_specs_of_contexts_without_sense_are_refused():
  item, age = SPEC.items[0], SPEC.context[0]
  for wrong, words in (
    (FeatureSpec('tag', 'multi_hot', 3), 'max_len=0 and .*one slot or more'),
    (FeatureSpec('tag', 'multi_hot', 3, max_len=2, weighted=True), 'no weight'),
    (
      FeatureSpec('tag', 'sequence', 3, max_len=2),
      "possible, or 'multi_hot' in",
    ),
    (age, "the context of a request has the name 'age' twice"),
  ):
    with pytest.raises(ValueError, match=words):
      RequestSpec((item,), (age, wrong))
  tags = FeatureSpec('tag', 'multi_hot', 3, max_len=2)
  with pytest.raises(ValueError, match="only 'categorical' is possible$"):
    RequestSpec((item, tags))


def test_context_of_requests_has_no_name_of_a_candidate():
  data = make_with_device()
  other = dataclasses.replace(data.spec, candidates=(data.spec.context[1],))
  with pytest.raises(ValueError, match="context 'device' of the requests of t"):
    checks.check_dataset(change(data, ['spec'], other))


@pytest.mark.parametrize('chunk', [1, 2, 3, 1 << 22])
def test_what_is_right_passes(monkeypatch, chunk):
  monkeypatch.setattr(checks, '_CHUNK', chunk)
  data = make()
  checks.check_dataset(data)
  # An event and the request at the same moment; the largest age there is.
  time = np.array([2**31 + 9, 1, 30])
  checks.check_dataset(change(data, ['splits', 'test', 'time'], time))
  # What is predicted has no labels; without times nothing is compared.
  checks.check_dataset(change(data, ['splits', 'test', 'labels'], {}))
  untimed = dataclasses.replace(SPEC, timed=False)
  data = change(data, ['spec'], untimed)
  data = change(data, ['events', 'time'], None)
  checks.check_dataset(change(data, ['splits', 'test', 'time'], None))
