"""Vectors of the items that queries are scored against.

They are computed once and kept, or read from the table whenever they are
scored, for tables beside which a device has no room for them.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from genrec_jax.features import PAD
from genrec_jax.parallel import collectives


class Candidates(Protocol):
  """The candidates of a shard.

  Attributes:
    count: how many a shard has; the last shards have places without an item.
  """

  count: int

  def slice(self, start: jax.Array, size: int) -> jax.Array:
    """`[size, D]` vectors, from place `start` of the shard on."""

  def pair_with_targets(
    self, targets: jax.Array, place: jax.Array
  ) -> Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]:
    """A function (start, size) -> what `slice` returns, vectors of all targets.

    Args:
      targets: `[B]` item indices of this shard's targets.
      place: `[W * B]` their places in the corpus, of all W shards.
    """


@dataclasses.dataclass(frozen=True)
class KeptCandidates:
  """The candidates of a shard, whose vectors are an array `[C, D]`."""

  vectors: jax.Array

  @property
  def count(self) -> int:
    return self.vectors.shape[0]

  def slice(self, start, size):
    return lax.dynamic_slice_in_dim(self.vectors, start, size)

  def pair_with_targets(self, targets, place):
    del targets
    at = place - collectives.shard_index() * self.count
    at = jnp.where((at >= 0) & (at < self.count), at, self.count)
    vectors = self.vectors.at[at].get(mode='fill', fill_value=0)
    vectors = collectives.sum_over_shards(vectors)
    return lambda start, size: (self.slice(start, size), vectors)


@dataclasses.dataclass(frozen=True)
class ReadCandidates:
  """The candidates of a shard, whose vectors are read when they are scored.

  Attributes:
    read: item indices -> vectors; all shards call it at the same time.
    ids: the `shard_corpus`.
  """

  read: Callable[[jax.Array], jax.Array]
  ids: jax.Array

  @property
  def count(self) -> int:
    return self.ids.shape[0]

  def slice(self, start, size):
    return self.read(lax.dynamic_slice_in_dim(self.ids, start, size))

  def pair_with_targets(self, targets, place):
    del place

    # Targets are read with every chunk, by the same instructions: otherwise a
    # vector and its equal might differ in the last bit, see `target_ranks`.
    def read_pair(start, size):
      ids = lax.dynamic_slice_in_dim(self.ids, start, size)
      vectors = self.read(jnp.concatenate([ids, targets]))
      return vectors[:size], collectives.gather(vectors[size:])

    return read_pair

  def are_finite(self, item_chunk: int) -> jax.Array:
    """Whether all vectors of the shard are numbers."""
    starts, _, chunk = list_chunks(self.count, item_chunk)

    def check_chunk(finite, start):
      return finite & jnp.all(jnp.isfinite(self.slice(start, chunk))), None

    return lax.scan(check_chunk, jnp.bool_(True), starts)[0]


class CandidateReader:
  """Reads the candidates of a task, for an evaluator or a predictor.

    reader = CandidateReader(task, runtime, config.eval)
    kept = reader.keep(weights)  # nothing, with eval.keep_vectors=False
    ...
    catalogue = reader.find(weights, kept)  # in a function of `runtime.jit`

  Attributes:
    corpus: `[C]` sorted item indices of all candidates.
  """

  def __init__(self, task, runtime, config):
    """Prepares; nothing is computed yet.

    Args:
      task: a retrieval task.
      runtime: where the weights lie.
      config: `config.eval`.
    """
    corpus, chunk = jnp.asarray(task.corpus), config.item_chunk
    # Configs of earlier versions lack it.
    keeps = config.get('keep_vectors', True)

    def bind(weights) -> Callable[[jax.Array], jax.Array]:
      def read(ids):
        reads = task.reads_for('items', ids)
        return task.vectors(runtime.read_rows(task, weights, reads)[1])

      return read

    def find(weights, kept):
      if keeps:
        return kept
      return ReadCandidates(bind(weights), shard_corpus(corpus))

    def check(weights):
      wrong = ~find(weights, ()).are_finite(chunk)
      return collectives.sum_over_shards(wrong.astype(jnp.int32)) == 0

    self.corpus, self.find, self._keeps = corpus, find, keeps
    # Functions that knew `self` would be a circle of references, which keeps
    # programs and arrays for longer than their user.
    if keeps:
      self._compiled = runtime.jit(
        lambda weights: read_vectors(bind(weights), corpus, chunk), ()
      )
    else:
      self._compiled = runtime.jit(check, (), 'alike')

  def keep(self, weights):
    """What `find(weights, kept)` needs; raises if a vector is not finite."""
    kept = self._compiled(weights)
    finite = jnp.all(jnp.isfinite(kept)) if self._keeps else kept
    if not finite:
      raise FloatingPointError('the model has NaN or infinite item vectors')
    return kept if self._keeps else ()


def shard_corpus(corpus: jax.Array) -> jax.Array:
  """The candidates of this shard: a run of the corpus, PAD behind its end."""
  share = -(-corpus.shape[0] // collectives.shard_count())
  at = collectives.shard_index() * share + jnp.arange(share)
  return corpus.at[at].get(mode='fill', fill_value=PAD)


def read_vectors(
  read: Callable[[jax.Array], jax.Array], corpus: jax.Array, item_chunk: int
) -> jax.Array:
  """Vectors of the `shard_corpus`, some items at a time.

  Rows that travel between devices take room several times over, which there is
  for a chunk and not for the share of a device.

  Args:
    read: item indices -> vectors.
    corpus: `[C]` sorted item indices.
    item_chunk: items at a time.
  """
  ids = shard_corpus(corpus)
  starts, _, chunk = list_chunks(ids.shape[0], item_chunk)
  if len(starts) == 1:
    return read(ids)

  def put_chunk(vectors, start):
    some = read(lax.dynamic_slice_in_dim(ids, start, chunk))
    return lax.dynamic_update_slice_in_dim(vectors, some, start, 0), None

  one = jax.eval_shape(read, ids[:chunk])
  vectors = jnp.zeros((ids.shape[0], *one.shape[1:]), one.dtype)
  return lax.scan(put_chunk, vectors, starts)[0]


def list_chunks(size: int, chunk: int) -> tuple[jax.Array, jax.Array, int]:
  """Where the chunks of so many items begin, where their new items do; length.

  The last chunk ends with the items, and begins among those of the one before:
  nothing is appended to an array, which would have to be copied for it.
  """
  if chunk < 1:
    raise ValueError(f'item_chunk is {chunk}, must be positive')
  chunk = max(1, min(chunk, size))
  new = jnp.arange(-(-size // chunk), dtype=jnp.int32) * chunk
  return jnp.minimum(new, size - chunk), new, chunk
