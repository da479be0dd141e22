"""Scoring queries against a catalogue, in chunks of items.

There is never an array of users x items scores or a sorted catalogue: a rank is
a count of better and of equal items, and the best k are merged chunk by chunk.

Inside a mesh every shard holds a share of the catalogue (see `candidates.py`)
and ranks the queries of all shards in it; the counts are added.
"""

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from genrec_jax.features import EVENTS, PAD, Examples, Jagged
from genrec_jax.parallel import collectives
from genrec_jax.tasks.candidates import (
  Candidates,
  KeptCandidates,
  list_chunks,
)

FILTERS = ('window', 'history', 'none')


def find_positions(corpus: jax.Array, ids: jax.Array) -> jax.Array:
  """Position of each item in the sorted corpus; C where it is not in it."""
  place = jnp.searchsorted(corpus, ids)
  is_item = corpus.at[place].get(mode='clip') == ids
  return jnp.where(is_item, place, corpus.shape[0]).astype(jnp.int32)


def seen_items(batch: Examples, filter_seen: str) -> Jagged | None:
  """What must not be recommended, with a column 'item'."""
  if filter_seen not in FILTERS:
    raise ValueError(
      f'filter_seen is {filter_seen!r}, must be one of {FILTERS}'
    )
  if filter_seen == 'none':
    return None
  if filter_seen == 'history' and batch.seen is None:
    raise ValueError("filter_seen='history' needs batches made with it")
  if filter_seen == 'history':
    return batch.seen
  return batch.jagged[EVENTS]


def _score_items(queries: jax.Array, vectors: jax.Array) -> jax.Array:
  return jnp.matmul(queries, vectors.T, precision=lax.Precision.HIGHEST)


def _mask_scores(scores, start, new, size, seen_at):
  """`[B, chunk]` scores; -inf for seen items and those that are not there.

  Args:
    scores: of the items from place `start` on.
    start: the first place.
    new: the first that no chunk has had.
    size: how many places there are.
    seen_at: row and place of what was seen.
  """
  chunk = scores.shape[1]
  place = start + jnp.arange(chunk)
  is_there = (place >= new) & (place < size)
  scores = jnp.where(is_there[None], scores, -jnp.inf)
  if seen_at is not None:
    row, seen = seen_at
    here = (seen >= start) & (seen < start + chunk)
    column = jnp.where(here, seen - start, chunk)
    scores = scores.at[row, column].set(-jnp.inf, mode='drop')
  return scores


def _seen_at(batch, corpus, filter_seen):
  seen = seen_items(batch, filter_seen)
  if seen is None:
    return None
  items = seen['item']
  row = pallas_kernels.segment_ids(seen.lengths, items.shape[0])
  # Padding tokens belong to row B, which the scatter drops.
  return row, find_positions(corpus, items)


def _as_candidates(catalogue: jax.Array | Candidates) -> Candidates:
  if hasattr(catalogue, 'pair_with_targets'):
    return catalogue
  return KeptCandidates(catalogue)


def target_ranks(
  queries: jax.Array,
  catalogue: jax.Array | Candidates,
  corpus: jax.Array,
  batch: Examples,
  *,
  filter_seen: str = 'window',
  item_chunk: int = 16384,
) -> tuple[jax.Array, jax.Array]:
  """Rank of each sequence's last `next_item` among the unseen candidates.

  Candidates that score as the target does count half: a rank is the mean over
  all orders of the ties. So a model that cannot tell items apart has all
  targets in the middle of the catalogue, misses for every k below it. The
  target is scored in the same product as the candidates, once for each chunk:
  scored apart, it would differ from its equals in the last bit, and a constant
  model would put it first for every third user. A target that is filtered out,
  or no candidate, has the rank infinity.

  Args:
    queries: `[B, D]`.
    catalogue: `[C, D]` vectors of the candidates, or what reads them; of a
      shard, those of its `candidates.shard_corpus`.
    corpus: `[C]` their sorted item indices, always all of them.
    batch: B sequences.
    filter_seen: 'window' (the tokens), 'history' (`batch.seen`) or 'none'.
    item_chunk: candidates scored at a time.

  Returns:
    (ranks `[B]` float32, multiples of a half; target scores `[B]`).
  """
  size = corpus.shape[0]
  events = batch.jagged[EVENTS]
  target = pallas_kernels.last_tokens(events['next_item'], events.lengths)
  place = find_positions(corpus, target)
  seen_at = _seen_at(batch, corpus, filter_seen)
  ahead, own = _count_ahead(
    queries, _as_candidates(catalogue), size, target, place, seen_at, item_chunk
  )
  missed = (place == size) | (target == PAD)
  if seen_at is not None:
    row, seen = seen_at
    hit = seen == place.at[row].get(mode='fill', fill_value=-1)
    hits = jnp.zeros_like(place).at[row].add(hit.astype(jnp.int32), mode='drop')
    missed |= hits > 0
  # Exact, since the count is an integer up to here; the last digit of a rank
  # above 2**23 makes no difference to any metric.
  ranks = 1.0 + 0.5 * ahead.astype(jnp.float32)
  return jnp.where(missed, jnp.inf, ranks), own


def _count_ahead(queries, candidates, size, target, place, seen_at, item_chunk):
  """Twice the candidates above the target plus its equals, and its own score.

  Returns:
    (`[B]` int32, `[B]`).
  """
  count = queries.shape[0]
  queries, place = collectives.gather((queries, place))
  seen_at = _gather_seen(seen_at, count)
  first = collectives.shard_index() * candidates.count
  starts, new, chunk = list_chunks(candidates.count, item_chunk)
  read_pair = candidates.pair_with_targets(target, place)
  end = jnp.minimum(first + candidates.count, size)

  def count_chunk(carry, xs):
    ahead, _ = carry
    at, new = xs
    vectors, targets = read_pair(at, chunk)
    start, new = first + at, first + new
    scores = _score_items(queries, jnp.concatenate([vectors, targets]))
    own = jnp.diagonal(scores, offset=chunk)[:, None]
    scores = _mask_scores(scores[:, :chunk], start, new, end, seen_at)
    other = (start + jnp.arange(chunk))[None]
    others = (other != place[:, None]) & (other >= new) & (other < end)
    # What is better counts in both, a tie in one. A candidate that scores NaN
    # is better: a target must not profit by it.
    for wins in (~(scores <= own), ~(scores < own)):
      ahead += jnp.sum(wins & others, axis=-1, dtype=jnp.int32)
    return (ahead, own[:, 0]), None

  zeros = jnp.zeros_like(place), jnp.zeros(place.shape, queries.dtype)
  (ahead, own), _ = lax.scan(count_chunk, zeros, (starts, new))
  ahead = collectives.sum_over_shards(ahead)
  mine = collectives.shard_index() * count
  return (
    lax.dynamic_slice_in_dim(ahead, mine, count),
    lax.dynamic_slice_in_dim(own, mine, count),
  )


def _gather_seen(seen_at, count: int):
  """What the queries of all shards, `count` each, have seen."""
  if seen_at is None:
    return None
  row, seen = seen_at
  # Row B of a shard, the padding, must be no row of the next one.
  row = jnp.where(
    row < count,
    row + collectives.shard_index() * count,
    collectives.shard_count() * count,
  )
  return collectives.gather((row, seen))


def top_k(
  queries: jax.Array,
  catalogue: jax.Array | Candidates,
  corpus: jax.Array,
  batch: Examples,
  k: int,
  *,
  filter_seen: str = 'window',
  item_chunk: int = 16384,
) -> tuple[jax.Array, jax.Array]:
  """The best k unseen candidates of each query.

  Of equal scores, the smaller row comes first. Inside a mesh, every shard finds
  the best of its share for the queries of all shards, and sends them back.

  Args:
    queries: `[B, D]`.
    catalogue: `[C, D]` vectors of the candidates, or what reads them; of a
      shard, those of its `candidates.shard_corpus`.
    corpus: `[C]` their sorted item indices, always all of them.
    batch: B sequences.
    k: how many.
    filter_seen: 'window' (the tokens), 'history' (`batch.seen`) or 'none'.
    item_chunk: candidates scored at a time.

  Returns:
    (item indices `[B, k]`, scores `[B, k]`), best first; PAD and -inf where
    fewer than k candidates are unseen. What is NaN or infinite has the score
    NaN, and comes before all others.
  """
  size, count = corpus.shape[0], queries.shape[0]
  seen_at = _gather_seen(_seen_at(batch, corpus, filter_seen), count)
  queries = collectives.gather(queries)
  candidates = _as_candidates(catalogue)
  first = collectives.shard_index() * candidates.count
  end = jnp.minimum(first + candidates.count, size)
  starts, new, chunk = list_chunks(candidates.count, item_chunk)

  def merge_chunk(best, xs):
    at, new = xs
    start, new = first + at, first + new
    scores = _score_items(queries, candidates.slice(at, chunk))
    # -inf means masked, and `lax.top_k` would put a negative NaN behind it.
    scores = jnp.where(jnp.isfinite(scores), scores, jnp.nan)
    scores = _mask_scores(scores, start, new, end, seen_at)
    # `lax.top_k` prefers the earlier of two equals, but 0 to -0.
    scores = jnp.where(scores == 0, 0, scores)
    place = jnp.broadcast_to((start + jnp.arange(chunk))[None], scores.shape)
    scores = jnp.concatenate([best[0], scores], axis=-1)
    place = jnp.concatenate([best[1], place], axis=-1)
    scores, index = lax.top_k(scores, k)
    return (scores, jnp.take_along_axis(place, index, axis=-1)), None

  rows = queries.shape[0]
  start = jnp.full((rows, k), -jnp.inf), jnp.full((rows, k), size, jnp.int32)
  (scores, place), _ = lax.scan(merge_chunk, start, (starts, new))
  # From the shares to those who asked; earlier shares stand in front, so that
  # of equals the smaller row still comes first.
  scores, place = collectives.exchange_rows((scores, place))
  scores, index = lax.top_k(scores, k)
  place = jnp.take_along_axis(place, index, axis=-1)
  items = corpus.at[place].get(mode='fill', fill_value=PAD)
  return jnp.where(jnp.isneginf(scores), PAD, items), scores
