"""The evaluator over many batches, against user-by-user NumPy."""

import types

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import pallas_kernels
from genrec_jax.config import ConfigError
from genrec_jax.data import datasets, histories, pipeline, splits, vocab
from genrec_jax.embedding import lookup
from genrec_jax.evaluators import retrieval
from genrec_jax.features import EVENTS, Read
from genrec_jax.tasks import metrics
from tests import ranks as ranks_lib

USERS, ITEMS, MAX_LEN = 23, 31, 4


class LastItem:
  """A task whose query is the row of the last item: whole-number scores."""

  def __init__(self, corpus):
    self.corpus = np.asarray(corpus, np.int32)
    self.model_config = types.SimpleNamespace(max_len=MAX_LEN)

  def predict(self, params, rows, batch):
    del params
    events = batch.jagged[EVENTS]
    last = pallas_kernels.last_tokens(events['item'], events.lengths)
    return lookup.take_rows(rows['history'].values, last)

  def tables(self):
    return {}

  def reads_for(self, purpose, batch):
    if purpose == 'items':
      return {'items': Read(batch, 'items')}
    return {'history': Read(batch.jagged[EVENTS]['item'], 'items')}

  def vectors(self, rows):
    return rows['items'].all()


def config(**fields) -> ConfigDict:
  return ConfigDict(
    {
      'ks': (1, 5, 10),
      'batch_size': 5,
      'batch_tokens': 16,
      'item_chunk': 7,
      'filter_seen': 'window',
      'miss_rank': 0,
      **fields,
    }
  )


@pytest.fixture(scope='module')
def dataset():
  rng = np.random.default_rng(0)
  lengths = rng.integers(2, 12, USERS)
  h = histories.from_arrays(
    np.repeat(np.arange(USERS), lengths),
    np.concatenate([rng.integers(1, ITEMS + 1, n) for n in lengths]),
    item_vocab=vocab.Vocab(np.arange(1, ITEMS + 1)),
  )
  corpus = np.array([i for i in range(1, ITEMS + 1) if i % 4], np.int32)
  return datasets.RetrievalDataset('own', h, corpus)


@pytest.fixture(scope='module')
def examples(dataset):
  return splits.keep_whole(dataset.histories)


@pytest.fixture(scope='module')
def state():
  rng = np.random.default_rng(1)
  table = rng.integers(-2, 3, (ITEMS + 1, 3)).astype(np.float32)
  return types.SimpleNamespace(
    params={},
    tables={'items': jax.numpy.array(table)},
    id_states={},
    modules={},
  )


def expected_ranks(dataset, examples, score, filter_seen):
  """score(history) -> one score a candidate."""
  items, corpus = dataset.histories.items, dataset.corpus.tolist()
  ranks = []
  for row, begin, end in zip(
    examples.row, examples.begin, examples.end, strict=True
  ):
    history = items[begin:end]
    seen = {
      'none': [],
      'window': history[-MAX_LEN:],
      'history': items[dataset.histories.offsets[row] : end],
    }[filter_seen]
    scores = score(history)
    open_ = {
      item: -scores[c] for c, item in enumerate(corpus) if item not in seen
    }
    own = [cost for item, cost in open_.items() if item == items[end]]
    ranks.append(ranks_lib.mean_place(open_.values(), *own))
  return np.array(ranks)


@pytest.mark.parametrize('keep_vectors', [True, False])
@pytest.mark.parametrize('filter_seen', ['window', 'history', 'none'])
def test_ranks(dataset, examples, state, filter_seen, keep_vectors):
  table = np.asarray(state.tables['items'])
  expected = expected_ranks(
    dataset,
    examples,
    lambda history: table[dataset.corpus] @ table[history[-1]],
    filter_seen,
  )
  c = config(filter_seen=filter_seen, keep_vectors=keep_vectors)
  e = retrieval.RetrievalEvaluator(
    LastItem(dataset.corpus), dataset, examples, c
  )
  np.testing.assert_array_equal(e.ranks(state), expected)
  values = dict(e.run(state))
  assert values == metrics.ranking_metrics(expected, c.ks)
  assert all(e.intervals[n][0] <= x <= e.intervals[n][1]
             for n, x in values.items())  # fmt: skip


@pytest.mark.parametrize('miss_rank', [0, 20, 2501])
def test_what_is_never_recommended_is_no_hit_for_any_k(
  dataset, examples, state, miss_rank
):
  size = len(dataset.corpus)
  c = config(filter_seen='history', ks=(5, size), miss_rank=miss_rank)
  e = retrieval.RetrievalEvaluator(
    LastItem(dataset.corpus), dataset, examples, c
  )
  ranks = e.ranks(state)
  found = dict(e.run(state))
  assert np.isinf(ranks).any()
  assert found[f'hr@{size}'] == np.mean(ranks < (miss_rank or np.inf)) < 1
  assert dict(e.run(state)) == found
  assert found['hr@5'] == np.mean(ranks <= 5)


def test_more_than_the_catalogue_is_not_measured(dataset, examples, state):
  size = len(dataset.corpus)
  e = retrieval.RetrievalEvaluator(
    LastItem(dataset.corpus),
    dataset,
    examples,
    config(ks=(5, size, size + 1, 100)),
  )
  names = ['hr@5', 'ndcg@5', f'hr@{size}', f'ndcg@{size}', 'mrr']
  counts = np.ones(ITEMS + 1)
  assert e.names() == list(dict(e.run(state))) == names
  assert list(e.popularity(counts)) == names


def test_ranks_do_not_depend_on_batches_or_chunks(dataset, examples, state):
  found = []
  for fields in (
    {},
    {'batch_size': 64, 'batch_tokens': 4096, 'item_chunk': 1000},
    {'batch_size': 3, 'batch_tokens': 1, 'item_chunk': 10},
  ):
    c = config(filter_seen='history', **fields)
    e = retrieval.RetrievalEvaluator(
      LastItem(dataset.corpus), dataset, examples, c
    )
    found.append(e.ranks(state))
  np.testing.assert_array_equal(found[0], found[1])
  np.testing.assert_array_equal(found[0], found[2])


def test_popularity(dataset, examples):
  counts = np.bincount(dataset.histories.items, minlength=ITEMS + 1)
  # Beyond 2**24 float32 cannot tell n from n + 1.
  counts = counts.astype(np.int64) + 2**26
  expected = expected_ranks(
    dataset, examples, lambda _: counts[dataset.corpus], 'window'
  )
  c = config(miss_rank=20)
  e = retrieval.RetrievalEvaluator(
    LastItem(dataset.corpus), dataset, examples, c
  )
  assert e.popularity(counts) == metrics.ranking_metrics(expected, c.ks, 20)


def test_no_example_is_no_number(dataset, state):
  none = splits.ExampleSpans(*(np.zeros(0, np.int64) for _ in range(3)))
  e = retrieval.RetrievalEvaluator(
    LastItem(dataset.corpus), dataset, none, config()
  )
  assert all(np.isnan(value) for _, value in e.run(state))


@pytest.mark.parametrize('keep_vectors', [True, False])
@pytest.mark.parametrize('where', ['history', 'candidate'])
@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(
  dataset, examples, state, where, value, keep_vectors
):
  table = np.array(state.tables['items'])
  items = dataset.histories.items
  if where == 'history':  # an item that is not a candidate
    last = items[examples.end - 1]
    table[last[last % 4 == 0][0]] = value
  else:  # a candidate nobody met lately; it would rank behind all others
    often = np.bincount(items[examples.end], minlength=ITEMS + 1)
    often += np.bincount(items[examples.end - 1], minlength=ITEMS + 1)
    table[[i for i in dataset.corpus if not often[i]][0]] = value
  bad = types.SimpleNamespace(
    params={},
    tables={'items': jax.numpy.array(table)},
    id_states={},
    modules={},
  )
  e = retrieval.RetrievalEvaluator(
    LastItem(dataset.corpus),
    dataset,
    examples,
    config(keep_vectors=keep_vectors),
  )
  with pytest.raises(FloatingPointError, match='NaN or infinite'):
    e.ranks(bad)


def test_config_is_checked(dataset, examples):
  def build(**fields):
    retrieval.RetrievalEvaluator(
      LastItem(dataset.corpus), dataset, examples, config(**fields)
    )

  with pytest.raises(ValueError, match="eval.filter_seen is 'all'"):
    build(filter_seen='all')
  with pytest.raises(ValueError, match='eval.item_chunk is 0'):
    build(item_chunk=0)


def never_recommended(histories, example, corpus, filter_seen):
  """Whether the target of an example can be in no list, by hand."""
  items, end = histories.items, int(example.end[0])
  past = {
    'none': [],
    'window': items[max(int(example.begin[0]), end - MAX_LEN) : end],
    'history': items[histories.offsets[int(example.row[0])] : end],
  }[filter_seen]
  return items[end] in past or items[end] not in corpus


@pytest.mark.parametrize('filter_seen', ['window', 'history', 'none'])
@pytest.mark.parametrize('size', [3, 40])
def test_a_miss_is_no_hit_whatever_is_asked(size, filter_seen):
  """For every k, catalogue, miss rank, filter, and for popularity as well."""
  rng = np.random.default_rng(size)
  lengths = rng.integers(2, 9, USERS)
  h = histories.from_arrays(
    np.repeat(np.arange(USERS), lengths),
    rng.integers(1, size + 1, lengths.sum()),
    item_vocab=vocab.Vocab(np.arange(1, size + 1)),
  )
  corpus = np.unique(rng.integers(1, size + 1, 2 * size)).astype(np.int32)
  corpus = np.unique(np.append(corpus, [1, 2])).astype(np.int32)
  spans = splits.keep_whole(h)
  dataset = datasets.RetrievalDataset('own', h, corpus)
  table = rng.normal(size=(size + 1, 3)).astype(np.float32)
  state = types.SimpleNamespace(
    params={},
    tables={'items': jax.numpy.array(table)},
    id_states={},
    modules={},
  )
  each = [
    splits.ExampleSpans(*(x[i : i + 1] for x in vars(spans).values()))
    for i in range(len(spans))
  ]
  misses = np.array(
    [never_recommended(h, one, corpus, filter_seen) for one in each]
  )
  ks = (1, 2, size // 2, size, 10**6)
  c = config(filter_seen=filter_seen, ks=ks)
  e = retrieval.RetrievalEvaluator(LastItem(corpus), dataset, spans, c)
  ranks = e.ranks(state)
  np.testing.assert_array_equal(np.isinf(ranks), misses)
  counts = np.bincount(h.items, minlength=size + 1)
  for miss_rank in (0, 1, 2, len(corpus), len(corpus) + 1, 10**6):
    c.miss_rank = miss_rank
    paths = {
      'model': dict(e.run(state)),
      'popularity': e.popularity(counts),
      'any k': metrics.ranking_metrics(ranks, ks, miss_rank),
    }
    for values in paths.values():
      for name, value in values.items():
        most = 1 - misses.mean()
        if name == 'mrr':  # what a miss is worth is said, and it is the least
          most += misses.mean() / (miss_rank or np.inf)
        assert 0 <= value <= most + 1e-12, (name, miss_rank)
    # Where nothing can be hit, nothing is.
    if misses.any():
      lost = metrics.ranking_metrics(ranks[misses], ks, miss_rank)
      assert lost.pop('mrr') == pytest.approx(1 / (miss_rank or np.inf))
      assert set(lost.values()) == {0}


@pytest.mark.parametrize('shards', [1, 2])
def test_the_time_of_the_request(shards):
  """That of the target, or of the last event, as predictions have it."""
  times = np.array([5, 9, 20, 21, 50, 7, 8, 30])
  h = histories.from_arrays([1] * 5 + [2] * 3, np.arange(1, 9), times)
  spans = splits.keep_whole(h)
  asked = {}
  for at_last_event in (False, True):
    batches = pipeline.eval_batches(
      h, spans, batch_size=2, capacity=16, max_len=3, shards=shards,
      at_last_event=at_last_event,
    )  # fmt: skip
    [batch] = batches
    events = batch.jagged[EVENTS]
    real = events['item'] > 0
    asked[at_last_event] = (events['time'][real], events['next_time'][real])
  time, target = asked[False]
  np.testing.assert_array_equal(time, [0, 11, 12, 0, 1])
  np.testing.assert_array_equal(target, [11, 12, 41, 1, 23])
  np.testing.assert_array_equal(asked[True][1], [11, 12, 12, 1, 1])


@pytest.mark.parametrize(
  'value, timed, words',
  [
    ('now', True, "request_time is 'now', must be one of target, last_event"),
    ('last_event', False, 'a model without model.time_bias reads no times'),
  ],
)
def test_request_times_that_mean_nothing(
  dataset, examples, value, timed, words
):
  task = LastItem(dataset.corpus)
  task.model_config.time_bias = timed
  with pytest.raises(ConfigError, match=words):
    retrieval.RetrievalEvaluator(
      task, dataset, examples, config(request_time=value)
    )


def test_the_report_says_when_the_model_was_asked(dataset, examples):
  task = LastItem(dataset.corpus)

  def notes(**fields):
    e = retrieval.RetrievalEvaluator(task, dataset, examples, config(**fields))
    return e.notes

  assert notes() == []
  task.model_config.time_bias = True
  assert "(eval.request_time='target')" in notes()[0]
  assert 'time of the last event' in notes(request_time='last_event')[0]
