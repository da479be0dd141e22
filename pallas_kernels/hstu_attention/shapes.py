"""Shapes of real models, shared by the tests and the benchmarks."""

import dataclasses

import jax.numpy as jnp
import numpy as np

TIME_BUCKETS = 129
CAPACITY_STEP = 128


@dataclasses.dataclass(frozen=True)
class Shape:
  """One attention call as a model makes it.

  Attributes:
    batch: sequences B.
    max_len: longest sequence; longer ones are cut to it.
    heads: H.
    dqk: width of a query and key, per head.
    dv: width of a value, per head.
    extra_positions: n = max_len + extra_positions is the size of the position
      table and the normaliser.
    position_bias: whether the model has a relative position bias.
    time_bias: whether it has a relative time bias.
    median_len: lengths are log-normal with deviation 1 around it, which is what
      MovieLens-1M has (median 94, mean of the cut lengths 108); 0 for sequences
      that all have max_len tokens.
    min_len: no sequence is shorter.
    targets: most candidates at the end of a sequence; each has a random number
      of them.
    contextual: context tokens at its head.
    window: how far a token sees, None for all the way.
    full_tail: latest history tokens which the window does not bind.
    prefix: oldest ones that are seen from beyond the window.
    queries: the last tokens of each sequence that ask, 0 for all of them.
  """

  batch: int
  max_len: int
  heads: int
  dqk: int
  dv: int
  extra_positions: int = 11
  position_bias: bool = True
  time_bias: bool = True
  median_len: int = 0
  min_len: int = 1
  targets: int = 0
  contextual: int = 0
  window: int | None = None
  full_tail: int = 0
  prefix: int = 0
  queries: int = 0

  @property
  def positions(self) -> int:
    return self.max_len + self.extra_positions


_MOVIELENS = dict(batch=128, max_len=200, median_len=94, min_len=18)
_RANKING = dict(
  batch=16,
  max_len=512,
  heads=4,
  dqk=128,
  dv=128,
  median_len=200,
  min_len=40,
  targets=32,
  contextual=3,
)

# The sizes of the published configurations; the lengths of Books are a
# guess (at least five events a user), those of MovieLens-20M are taken from 1M.
SHAPES = {
  'ml1m_hstu': Shape(heads=1, dqk=50, dv=50, **_MOVIELENS),
  'ml1m_large': Shape(heads=2, dqk=25, dv=25, **_MOVIELENS),
  'ml20m_hstu': Shape(heads=4, dqk=64, dv=64, **_MOVIELENS),
  'books_hstu': Shape(
    128, max_len=50, heads=4, dqk=16, dv=16, median_len=9, min_len=4
  ),
  'synthetic_stream': Shape(
    128, max_len=128, heads=1, dqk=48, dv=48, time_bias=False
  ),
  # Ranking with candidates after the history, as in MLPerf's DLRM-v3.
  'ranking': Shape(position_bias=False, time_bias=False, **_RANKING),
  # The same while serving: history cached, a micro-batch of candidates asks.
  'ranking_cached': Shape(queries=32, **_RANKING),
  # Long histories, seen through a window but for their latest tokens.
  'long_window': Shape(
    4,
    max_len=1024,
    heads=2,
    dqk=64,
    dv=64,
    median_len=600,
    window=128,
    full_tail=32,
  ),
  'tiny': Shape(3, max_len=12, heads=2, dqk=4, dv=8, median_len=5),
}


def lengths(shape: Shape, seed: int = 0) -> np.ndarray:
  """Tokens of each sequence, `[B]` int32."""
  if not shape.median_len:
    return np.full(shape.batch, shape.max_len, np.int32)
  draw = np.random.default_rng(seed).normal(size=shape.batch)
  wanted = np.exp(np.log(shape.median_len) + draw)
  return np.clip(wanted, shape.min_len, shape.max_len).astype(np.int32)


def inputs(
  shape: Shape, seed: int = 0, dtype='float32', sizes=None, capacity=None
) -> dict:
  """Arguments of `hstu_attention`: arrays, static options.

  Args:
    shape: the model's shape.
    seed: seed of lengths and values.
    dtype: dtype of q, k and v; the tables are float32 as in the models.
    sizes: `[B]` lengths to take instead of `lengths(shape, seed)`.
    capacity: tokens T; None for the next multiple of 128.
  """
  sizes = np.asarray(lengths(shape, seed) if sizes is None else sizes, np.int32)
  tokens = int(sizes.sum())
  if capacity is None:
    capacity = max(1, -(-tokens // CAPACITY_STEP)) * CAPACITY_STEP
  rng = np.random.default_rng(seed + 1)
  asking = sizes if not shape.queries else np.minimum(sizes, shape.queries)
  queries = capacity
  if shape.queries:
    queries = max(1, -(-int(asking.sum()) // 8)) * 8

  def normal(*size, scale=1.0):
    return jnp.asarray(scale * rng.normal(size=size), dtype)

  def table(size):
    return jnp.asarray(0.2 * rng.normal(size=size), 'float32')

  arguments = dict(
    # Scores of deviation 1, whatever the width.
    q=normal(queries, shape.heads, shape.dqk, scale=shape.dqk**-0.25),
    k=normal(capacity, shape.heads, shape.dqk, scale=shape.dqk**-0.25),
    v=normal(capacity, shape.heads, shape.dv),
    lengths=jnp.asarray(sizes),
    max_len=shape.max_len,
    normaliser=float(shape.positions),
  )
  if shape.position_bias:
    arguments['position_bias'] = table(2 * shape.positions - 1)
  if shape.time_bias:
    # Seconds to weeks between two events, a clock of its own a sequence.
    gaps = np.exp(rng.uniform(-1, 13, capacity)).astype(np.int32)
    clock = np.cumsum(gaps, dtype=np.int64)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    time = np.zeros(capacity, np.int32)
    time[:tokens] = clock[:tokens] - clock[first]
    query_time = np.zeros(queries, np.int32)
    start = np.cumsum(sizes) - asking
    token = np.repeat(start - (np.cumsum(asking) - asking), asking)
    token += np.arange(asking.sum())
    query_time[: asking.sum()] = (time + np.roll(gaps, -1))[token]
    arguments['time'] = jnp.asarray(time)
    arguments['query_time'] = jnp.asarray(query_time)
    arguments['time_bias'] = table(TIME_BUCKETS)
  if shape.targets:
    room = np.clip(sizes - shape.contextual, 0, shape.targets)
    arguments['targets'] = jnp.asarray(rng.integers(0, room + 1), 'int32')
  if shape.queries:
    arguments['query_lengths'] = jnp.asarray(asking)
    arguments['max_queries'] = shape.queries
  options = ('contextual', 'window', 'full_tail', 'prefix')
  return arguments | {
    name: getattr(shape, name) for name in options if getattr(shape, name)
  }
