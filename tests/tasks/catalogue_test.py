"""Ranks and best items against a plain NumPy oracle."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from genrec_jax.features import EVENTS, PAD, Columns, Examples, Jagged
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.tasks import candidates, catalogue
from tests import ranks as ranks_lib

FILTERS = catalogue.FILTERS
CHUNKS = (1, 5, 16, 37, 1000)  # 37 candidates: one by one, uneven, all at once
ITEMS, CANDIDATES, WIDTH = 60, 37, 3
CORPORA = {
  'whole': np.arange(1, CANDIDATES + 1),
  # Neither contiguous nor beginning at 1: items can be outside.
  'scattered': np.sort(
    np.random.default_rng(5).choice(
      np.arange(2, ITEMS), CANDIDATES, replace=False
    )
  ),
}


def make_batch(
  seed: int = 0, sequences: int = 8, capacity: int = 64
) -> Examples:
  """Sequences of uneven length, empty ones too, and padding behind them."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, 8, sequences).astype(np.int32)
  lengths[[2, -1]] = 0
  tokens = lengths.sum()
  item = np.zeros(capacity, np.int32)
  item[:tokens] = rng.integers(1, ITEMS, tokens)
  next_item = np.zeros(capacity, np.int32)
  next_item[:tokens] = rng.integers(1, ITEMS, tokens)
  last = np.cumsum(lengths) - 1
  item[last[0] - 1 : last[0] + 1] = item[last[0]]  # seen twice
  next_item[last[1]] = item[last[1]]  # a target that is filtered
  next_item[last[3]] = PAD  # nothing to predict
  # More was seen than the tokens show.
  seen_lengths = lengths + rng.integers(0, 9, sequences).astype(np.int32)
  seen = np.zeros(128, np.int32)
  seen[: seen_lengths.sum()] = rng.integers(1, ITEMS, seen_lengths.sum())
  columns = Columns(np.stack([item, next_item], axis=1), ('item', 'next_item'))
  return Examples(
    weights=np.ones(sequences, np.float32),
    jagged={EVENTS: Jagged(columns, lengths)},
    seen=Jagged(Columns(seen[:, None], ('item',)), seen_lengths),
  )


def make_vectors(seed: int, sequences: int, corpus) -> tuple:
  """Small whole numbers: exact scores with many ties."""
  rng = np.random.default_rng([seed, 1])
  queries = rng.integers(-2, 3, (sequences, WIDTH)).astype(np.float32)
  vectors = rng.integers(-2, 3, (len(corpus), WIDTH)).astype(np.float32)
  return queries, vectors


def seen_by(batch: Examples, filter_seen: str) -> list[set]:
  events = batch.jagged[EVENTS]
  source = {
    'none': Jagged(events.columns, np.zeros_like(events.lengths)),
    'window': events,
    'history': batch.seen,
  }[filter_seen]
  ends = np.cumsum(source.lengths)
  return [
    set(source['item'][end - n : end].tolist())
    for end, n in zip(ends, source.lengths, strict=True)
  ]


def oracle(queries, vectors, corpus, batch, filter_seen, k):
  """Ranks, best items and their scores, user by user, sorted in Python."""
  events = batch.jagged[EVENTS]
  ends = np.cumsum(events.lengths)
  ranks, items, scores = [], [], []
  for b, seen in enumerate(seen_by(batch, filter_seen)):
    open_ = [
      (-float(queries[b] @ vectors[c]), c)
      for c in range(len(corpus))
      if int(corpus[c]) not in seen
    ]
    order = sorted(open_)  # equal scores: in catalogue order
    target = PAD
    if events.lengths[b]:
      target = int(events['next_item'][ends[b] - 1])
    own = [score for score, c in open_ if corpus[c] == target]
    ranks.append(ranks_lib.mean_place([score for score, _ in open_], *own))
    best = order[:k]
    missing = k - len(best)
    items.append([int(corpus[c]) for _, c in best] + [PAD] * missing)
    scores.append([-s for s, _ in best] + [-np.inf] * missing)
  return np.array(ranks), np.array(items), np.array(scores)


def ranks_of(queries, vectors, corpus, batch, filter_seen, chunk):
  ranks, own = jax.jit(
    lambda q, v, b: catalogue.target_ranks(
      q,
      v,
      jnp.asarray(corpus, jnp.int32),
      b,
      filter_seen=filter_seen,
      item_chunk=chunk,
    )
  )(queries, vectors, batch)
  return np.asarray(ranks), np.asarray(own)


def best_of(queries, vectors, corpus, batch, k, filter_seen, chunk):
  items, scores = jax.jit(
    lambda q, v, b: catalogue.top_k(
      q,
      v,
      jnp.asarray(corpus, jnp.int32),
      b,
      k,
      filter_seen=filter_seen,
      item_chunk=chunk,
    )
  )(queries, vectors, batch)
  return np.asarray(items), np.asarray(scores)


@pytest.mark.parametrize(
  'name, filter_seen, chunk',
  [
    *(('scattered', name, chunk) for name in FILTERS for chunk in (5, 1000)),
    *(('whole', 'window', chunk) for chunk in (1, 16, 37)),
  ],
)
def test_oracle(name, filter_seen, chunk):
  k, corpus = 4, CORPORA[name]
  ranked = jax.jit(
    lambda q, v, b: (
      catalogue.target_ranks(
        q,
        v,
        jnp.asarray(corpus, jnp.int32),
        b,
        filter_seen=filter_seen,
        item_chunk=chunk,
      ),
      catalogue.top_k(
        q,
        v,
        jnp.asarray(corpus, jnp.int32),
        b,
        k,
        filter_seen=filter_seen,
        item_chunk=chunk,
      ),
    )
  )
  for seed in range(20):
    batch = make_batch(seed)
    queries, vectors = make_vectors(seed, len(batch.weights), corpus)
    (ranks, _), (items, scores) = ranked(queries, vectors, batch)
    expected = oracle(queries, vectors, corpus, batch, filter_seen, k)
    np.testing.assert_array_equal(ranks, expected[0])
    np.testing.assert_array_equal(items, expected[1])
    np.testing.assert_array_equal(scores, expected[2])


@pytest.mark.parametrize('filter_seen, chunk', [('history', 5), ('none', 37)])
def test_k_beyond_the_unseen_items_is_filled_with_padding(filter_seen, chunk):
  corpus, batch = CORPORA['scattered'], make_batch(3)
  queries, vectors = make_vectors(3, len(batch.weights), corpus)
  k = len(corpus) + 3
  found = best_of(queries, vectors, corpus, batch, k, filter_seen, chunk)
  _, items, scores = oracle(queries, vectors, corpus, batch, filter_seen, k)
  np.testing.assert_array_equal(found[0], items)
  np.testing.assert_array_equal(found[1], scores)
  assert (found[0] == PAD).any()


def test_everything_seen():
  corpus = np.array([2, 3])
  columns = Columns(
    np.array([[3, 2], [2, 2], [2, 3], [0, 0]], np.int32), ('item', 'next_item')
  )
  batch = Examples(
    weights=np.ones(1, np.float32),
    jagged={EVENTS: Jagged(columns, np.array([3], np.int32))},
  )
  queries, vectors = np.ones((1, 2), np.float32), np.ones((2, 2), np.float32)
  items, scores = best_of(queries, vectors, corpus, batch, 2, 'window', 1)
  assert items.tolist() == [[PAD, PAD]]
  assert np.isneginf(scores).all()
  ranks, _ = ranks_of(queries, vectors, corpus, batch, 'window', 1)
  assert ranks.tolist() == [np.inf]


def test_ranks_do_not_depend_on_the_chunk():
  rng = np.random.default_rng(0)
  corpus, batch = CORPORA['scattered'], make_batch(1)
  queries = rng.normal(size=(len(batch.weights), 50)).astype(np.float32)
  vectors = rng.normal(size=(len(corpus), 50)).astype(np.float32)
  found = [
    ranks_of(queries, vectors, corpus, batch, 'history', chunk)[0]
    for chunk in CHUNKS
  ]
  for ranks in found[1:]:
    np.testing.assert_array_equal(ranks, found[0])


@pytest.mark.parametrize('width, chunk', [(50, 5), (64, 1000), (256, 16)])
def test_a_constant_model_ranks_in_the_middle(width, chunk):
  """Scored apart from its equals, a target would beat them by rounding."""
  rng = np.random.default_rng(width)
  corpus, batch = CORPORA['whole'], make_batch(2)
  queries = rng.normal(size=(len(batch.weights), width)).astype(np.float32)
  vectors = rng.normal(size=(1, width)).astype(np.float32)
  vectors = np.repeat(vectors, len(corpus), axis=0)
  ranks, _ = ranks_of(queries, vectors, corpus, batch, 'none', chunk)
  expected, _, _ = oracle(
    np.zeros_like(queries), vectors, corpus, batch, 'none', 1
  )
  np.testing.assert_array_equal(ranks, expected)
  assert set(expected) == {(len(corpus) + 1) / 2, np.inf}
  items, _ = best_of(queries, vectors, corpus, batch, 3, 'none', chunk)
  np.testing.assert_array_equal(items, [[1, 2, 3]] * len(items))


def test_zero_and_minus_zero_are_one_score():
  corpus, batch = CORPORA['whole'], make_batch(2)
  queries = np.zeros((len(batch.weights), 1), np.float32)
  vectors = np.where(np.arange(CANDIDATES) % 2, 1, -1)[:, None]
  vectors = vectors.astype(np.float32)
  for chunk in (5, 1000):
    items, _ = best_of(queries, vectors, corpus, batch, 4, 'none', chunk)
    np.testing.assert_array_equal(items, [[1, 2, 3, 4]] * len(items))


@pytest.mark.parametrize('keeps', [True, False])
@pytest.mark.parametrize('filter_seen', ['window', 'none'])
def test_shards_count_ties_as_the_whole(filter_seen, keeps):
  """Ties of a target lie in other shards, and in other chunks of its own."""
  shards, corpus = 4, CORPORA['scattered']
  rng = np.random.default_rng(9)
  columns = rng.choice(corpus, (4 * shards, 2)).astype(np.int32)
  columns[0, 1] = columns[0, 0]  # a target that is filtered
  batch = Examples(
    weights=np.ones(len(columns), np.float32),
    jagged={
      EVENTS: Jagged(
        Columns(columns, ('item', 'next_item')),
        np.ones(len(columns), np.int32),
      )
    },
  )
  queries, vectors = make_vectors(9, len(columns), corpus)
  whole = jnp.asarray(corpus, jnp.int32)

  def rank(queries, batch):
    def read(ids):
      own = catalogue.find_positions(whole, ids)
      return jnp.asarray(vectors).at[own].get(mode='fill', fill_value=0)

    ids = candidates.shard_corpus(whole)
    share = read(ids) if keeps else candidates.ReadCandidates(read, ids)
    return catalogue.target_ranks(
      queries, share, whole, batch, filter_seen=filter_seen, item_chunk=3
    )[0]

  split = PartitionSpec(mesh_lib.AXES)
  sharded = jax.shard_map(
    rank,
    mesh=mesh_lib.make_mesh(1, 1, shards),
    in_specs=(split, split),
    out_specs=split,
    check_vma=False,
  )
  expected, _, _ = oracle(queries, vectors, corpus, batch, filter_seen, 1)
  assert {0.0, 0.5} <= set(np.modf(expected)[0].tolist())
  np.testing.assert_array_equal(jax.jit(sharded)(queries, batch), expected)


def test_the_rank_of_a_target_is_its_place_among_the_best():
  rng = np.random.default_rng(7)
  corpus, batch = CORPORA['scattered'], make_batch(7)
  queries = rng.normal(size=(len(batch.weights), 8)).astype(np.float32)
  vectors = rng.normal(size=(len(corpus), 8)).astype(np.float32)
  events = batch.jagged[EVENTS]
  ends = np.cumsum(events.lengths)
  ranks, _ = ranks_of(queries, vectors, corpus, batch, 'window', 16)
  items, _ = best_of(queries, vectors, corpus, batch, 37, 'window', 16)
  for b in np.flatnonzero(events.lengths):
    place = np.flatnonzero(items[b] == events['next_item'][ends[b] - 1])
    place = place[items[b, place] != PAD]
    assert ranks[b] == (place[0] + 1 if len(place) else np.inf)


def test_a_target_nan_is_seen_in_its_score():
  corpus, batch = CORPORA['whole'], make_batch(4)
  queries, vectors = make_vectors(4, len(batch.weights), corpus)
  queries[0] = np.nan
  _, own = ranks_of(queries, vectors, corpus, batch, 'window', 16)
  assert np.isnan(own[0]) and np.isfinite(own[1:]).all()


@pytest.mark.parametrize('value', [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('chunk', [5, 37])
def test_scores_that_are_no_numbers_come_first(value, chunk):
  """A processor's own NaN has the sign that `lax.top_k` puts behind -inf."""
  corpus, batch = CORPORA['whole'], make_batch(4)
  queries = np.ones((len(batch.weights), WIDTH), np.float32)
  vectors = np.ones((len(corpus), WIDTH), np.float32)
  vectors[17] = np.array(value, np.float32)
  items, scores = best_of(queries, vectors, corpus, batch, 3, 'none', chunk)
  assert (items[:, 0] == corpus[17]).all() and np.isnan(scores[:, 0]).all()
  assert (items[:, 1:] != PAD).all() and np.isfinite(scores[:, 1:]).all()
  # Nor does a target profit by a NaN beside it.
  if np.isnan(value):
    plain = vectors.copy()
    plain[17] = 2.0
    for one, other in zip(
      ranks_of(queries, vectors, corpus, batch, 'none', chunk)[:1],
      ranks_of(queries, plain, corpus, batch, 'none', chunk)[:1],
      strict=True,
    ):
      target = batch.jagged[EVENTS]['next_item'][
        np.cumsum(batch.jagged[EVENTS].lengths) - 1
      ]
      keep = target != corpus[17]
      np.testing.assert_array_equal(one[keep], other[keep])


def largest(jaxpr) -> int:
  """Elements of the largest array a program makes."""
  sizes = [0]
  for eqn in jaxpr.eqns:
    sizes += [v.aval.size for v in eqn.outvars if hasattr(v.aval, 'size')]
    for value in eqn.params.values():
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        sizes.append(largest(inner))
  return max(sizes)


@pytest.mark.parametrize('filter_seen', FILTERS)
def test_users_times_items_are_never_held(filter_seen):
  users, items, width, chunk, k = 64, 10_000, 4, 256, 10
  shape = jax.ShapeDtypeStruct
  batch = jax.tree.map(
    lambda x: shape((users if len(x) == 8 else 512, *x.shape[1:]), x.dtype),
    make_batch(),
  )
  queries = shape((users, width), jnp.float32)
  vectors = shape((items, width), jnp.float32)
  corpus = np.arange(1, items + 1, dtype=np.int32)
  options = dict(filter_seen=filter_seen, item_chunk=chunk)

  def ranks(q, v, b):
    return catalogue.target_ranks(q, v, jnp.asarray(corpus), b, **options)

  def best(q, v, b):
    return catalogue.top_k(q, v, jnp.asarray(corpus), b, k, **options)

  limit = max(users * (chunk + users + k), (items + chunk) * width)
  assert limit < users * items / 10
  for program in (ranks, best):
    jaxpr = jax.make_jaxpr(program)(queries, vectors, batch).jaxpr
    assert users * chunk <= largest(jaxpr) <= limit


def test_places():
  corpus = jnp.array([2, 3, 7], jnp.int32)
  found = catalogue.find_positions(
    corpus, jnp.array([0, 1, 2, 3, 5, 7, 9], jnp.int32)
  )
  assert found.tolist() == [3, 3, 0, 1, 3, 2, 3]


def test_arguments_are_checked():
  corpus, batch = CORPORA['whole'], make_batch()
  queries, vectors = make_vectors(0, len(batch.weights), corpus)
  with pytest.raises(ValueError, match='item_chunk is 0'):
    ranks_of(queries, vectors, corpus, batch, 'none', 0)
  with pytest.raises(ValueError, match='filter_seen is None'):
    ranks_of(queries, vectors, corpus, batch, None, 5)
  unseen = dataclasses.replace(batch, seen=None)
  with pytest.raises(ValueError, match='history'):
    best_of(queries, vectors, corpus, unseen, 3, 'history', 5)
