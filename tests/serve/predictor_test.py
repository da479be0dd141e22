"""The Python API: recommendations for a few users, or for any number."""

import numpy as np
import pytest

from genrec_jax.data import histories, splits
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.evaluators.retrieval import RetrievalEvaluator
from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.weights import Weights, load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.train import experiment
from tests.tolerances import assert_close

T = 1_700_000_000


@pytest.fixture(scope='module')
def plain(untimed):
  """SASRec with whole numbers as ids; needs no config and no times."""
  return Predictor.load(untimed[1])


def test_recommend(plain):
  asked = [[4, 5, 6], [], [99, 7], [99], [30, 1, 2, 3, 4, 5, 6, 7]]
  found = plain.recommend(asked, k=5)
  assert [len(own) for own in found] == [5, 0, 5, 0, 5]
  for past, own in zip(asked, found, strict=True):
    scores = [score for _, score in own]
    assert scores == sorted(scores, reverse=True)
    assert not {item for item, _ in own} & set(past[-6:])  # max_len is 6
    assert all(type(item) is int for item, _ in own)


def test_recommend_takes_users_apart(plain):
  """Whoever else asks, the answer is the same; ids may be text."""
  asked = [[4, 5, 6], [30, 1], [8]]
  together = plain.recommend(asked, k=5)
  for past, own in zip(asked, together, strict=True):
    alone = plain.recommend([[str(item) for item in past]], k=5)[0]
    assert [item for item, _ in alone] == [item for item, _ in own]
    assert_close([s for _, s in alone], [s for _, s in own])


def test_recommend_nobody(plain):
  assert plain.recommend([], k=3) == []
  assert plain.recommend([[], ['foreign']], k=3) == [[], []]


def test_k_beyond_the_catalogue(plain):
  (own,) = plain.recommend([[1, 2, 3]], k=1000)
  assert sorted(item for item, _ in own) == list(range(4, 31))
  with pytest.raises(ValueError, match='k is 0'):
    plain.recommend([[1]], k=0)


def test_times(predictor):
  past, times = ['sku-01', 'sku-02', 'sku-03'], [T, T + 3600, T + 7200]
  (own,) = predictor.recommend([past], k=5, times=[times])
  # Events come in order of time, whatever the order they are given in.
  (mixed,) = predictor.recommend(
    [[past[i] for i in (2, 0, 1)]], k=5, times=[[times[i] for i in (2, 0, 1)]]
  )
  assert mixed == own
  # Also within a second, whose fractions the model does not see.
  spread = [times[-1] + i / 8 for i in (2, 0, 1)]
  mixed, sorted_ = predictor.recommend(
    [[past[i] for i in (2, 0, 1)], past],
    k=5,
    times=[spread, [times[-1]] * 3],
  )
  assert mixed == sorted_
  # Time counts from the first event; the date does not matter.
  later = [t + 10**8 for t in times]
  assert predictor.recommend([past], k=5, times=[later])[0] == own
  (asked,) = predictor.recommend(
    [past], k=5, times=[times], request_time=times[-1]
  )
  assert asked == own
  (asked,) = predictor.recommend([past], k=5, times=[times], request_time=T * 2)
  assert asked != own
  with pytest.raises(ValueError, match='reads times'):
    predictor.recommend([past], k=5)
  with pytest.raises(ValueError, match='one time for each item'):
    predictor.recommend([past], k=5, times=[times[:2]])


def test_answers_come_in_batches_and_in_order(plain):
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, 15, 70)
  users = np.repeat(np.arange(70), lengths)
  past = rng.integers(1, 31, lengths.sum())
  h = histories.from_arrays(users, past, item_vocab=plain.items.vocab)
  answers = list(plain.recommend_batches(h, k=4))
  assert len(answers) > 8  # batches of at most 8 users and 32 tokens
  rows = np.concatenate([a[0] for a in answers])
  np.testing.assert_array_equal(rows, np.arange(70))
  items = np.concatenate([a[1] for a in answers])
  scores = np.concatenate([a[2] for a in answers])
  for user in (0, 33, 69):
    (own,) = plain.recommend([past[users == user].tolist()], k=4)
    ids = plain.items.vocab.decode(items[user]).tolist()
    assert ids == [item for item, _ in own]
    assert_close(scores[user], [score for _, score in own])


def test_answers_agree_with_the_evaluator(trained, predictor):
  """A target is among the best k exactly when it ranks at most k."""
  config, directory = trained
  built = experiment.build_experiment(
    config, directory, TASK_KINDS, log=lambda *_: None
  )
  weights = load_weights(directory, built.task, 'best')
  h, examples = built.data.dataset.histories, built.data.splits['test']
  ranks = RetrievalEvaluator(
    built.task, built.data.dataset, examples, config.eval
  ).ranks(weights)
  k, first = 5, 0
  for rows, items, _ in predictor.recommend_batches(h, examples, k=k):
    np.testing.assert_array_equal(rows, examples.row[first : first + len(rows)])
    for own in items:
      place = np.flatnonzero(own == h.items[examples.end[first]])
      assert (ranks[first] <= k) == (len(place) == 1)
      if len(place):
        assert ranks[first] == place[0] + 1
      first += 1
  assert first == len(examples)


def test_explain(trained, predictor):
  config, directory = trained
  built = experiment.build_experiment(
    config, directory, TASK_KINDS, log=lambda *_: None
  )
  h, examples = built.data.dataset.histories, built.data.splits['test']
  chosen = np.array([2, 7])
  shown = predictor.explain(h, examples, chosen, history=3, k=30)
  for i, user in zip(chosen, shown, strict=True):
    end = examples.end[i]
    assert user['user'] == h.users.ids[examples.row[i]]
    past = h.vocab.decode(h.items[end - 3 : end]).tolist()
    assert [event['item'] for event in user['history']] == past
    assert user['history'][-1]['time'] == h.times[end - 1]
    assert user['target']['item'] == h.vocab.decode(h.items[[end]])[0]
    hits = [a['hit'] for a in user['recommendations']]
    place = user['target_rank']
    assert hits == [n + 1 == place for n in range(len(hits))]
    # Filtered as evaluated: the whole history, not only what the model reads.
    every = h.items[h.offsets[examples.row[i]] : end]
    seen = set(h.vocab.decode(every).tolist())
    assert not seen & {a['item'] for a in user['recommendations']}


def test_foreign_histories_are_refused(plain):
  h = histories.from_arrays([1, 1], [1, 77])
  with pytest.raises(ValueError, match='another vocabulary'):
    next(plain.recommend_batches(h, k=3))


def test_nothing_to_answer(plain):
  h = histories.from_arrays([1], [1], item_vocab=plain.items.vocab)
  none = splits.ExampleSpans(*(np.zeros(0, np.int64) for _ in range(3)))
  assert list(plain.recommend_batches(h, none, k=3)) == []


@pytest.mark.parametrize('where', ['tables', 'params'])
def test_nan_is_refused(untimed, where):
  config, directory = untimed
  items = ItemCatalogue.load(directory)
  task = Retrieval.from_config(config, items.corpus, items.counts)
  w = load_weights(directory, task, 'latest')
  if where == 'tables':
    tables = {'items': w.tables['items'].at[7, 0].set(np.nan)}
    with pytest.raises(FloatingPointError, match='item vectors'):
      Predictor(task, Weights(w.params, tables, 1), items, config)
    return
  params = {**w.params, 'position': w.params['position'] * np.nan}
  bad = Predictor(task, Weights(params, w.tables, 1), items, config)
  with pytest.raises(FloatingPointError, match='scores some items NaN'):
    bad.recommend([[1, 2]])


def test_tables_of_few_bits_are_those_that_are_read(trained, own):
  config, directory = own(trained, numerics__rows="(('items', 'tbe_int2'),)")
  found = Predictor.load(directory, config)
  whole = Predictor.load(directory)
  table, wide = (
    np.asarray(x.weights['tables']['items']) for x in (found, whole)
  )
  assert all(len(np.unique(row)) <= 4 for row in table) and len(table) > 20
  assert np.abs(table - wide).max() <= np.ptp(wide) / 3
