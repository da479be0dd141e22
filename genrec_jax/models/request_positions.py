"""Where in its sequence, and how long before the request, a token stands.

| published code (spec 2.4)        | here                                   |
|----------------------------------|----------------------------------------|
| sqrt(D) x + PosE[p] + TsE[b]     | `RequestPositions`                     |
| p, the latest event being C + 1  | `find_places`                          |
| b = sqrt(minutes), or ln         | `find_buckets`, `list_edges`           |
| (counted from the start)         | `find_gaps`                            |

Differences from the paper: none that it states. Buckets are found by whole
seconds; the published code takes the root of a float32, which now and then puts
the last second of a bucket into the next one. Tokens of the context, whose
time is 0 in the published code, have the last bucket.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import pallas_kernels
from genrec_jax.models.request_sequences import Sequences

MINUTE = 60


def list_edges(buckets: int, function: str) -> np.ndarray:
  """First second of the buckets 1, 2, ...; those that int32 has.

  >>> list_edges(3, 'sqrt').tolist(), list_edges(3, 'log').tolist()
  ([60, 240, 540], [164, 444, 1206])

  Args:
    buckets: the last bucket.
    function: 'sqrt' or 'log'.
  """
  edges = []
  for bucket in range(1, buckets + 1):
    if function == 'sqrt':
      edge = MINUTE * bucket * bucket
    else:
      # e^22 minutes are more than int32 has; e^710 more than a float.
      edge = math.ceil(MINUTE * math.exp(min(bucket, 22)))
    if edge > np.iinfo(np.int32).max:
      break
    edges.append(edge)
  return np.array(edges, np.int32)


def find_buckets(age: jax.Array, edges: np.ndarray) -> jax.Array:
  """The bucket of each age in seconds, int32."""
  found = jnp.searchsorted(jnp.asarray(edges), age, side='right')
  return found.astype(jnp.int32)


def find_places(
  sequences: Sequences,
  contextual: int,
  rows: int,
  listwise: bool,
  from_start: bool = False,
) -> jax.Array:
  """`[T]` rows of the table of positions.

  Context has 0, 1, ..., all candidates have C and the history C + 1, C + 2, ...
  from its latest token backwards; what is further away has the last row. Of
  listwise candidates the last one has C + 1.

  Counted from the start, the history has C, C + 1, ..., and all candidates what
  its next token would have; listwise ones count on.
  """
  lengths = sequences.lengths
  count = sequences.tokens
  high = lengths if listwise else lengths - sequences.candidates
  segment = pallas_kernels.segment_ids(lengths, count)
  high = high.at[segment].get(mode='fill', fill_value=0)
  place = pallas_kernels.positions(lengths, count)
  if from_start:
    return jnp.minimum(jnp.minimum(place, high), rows - 1)
  back = jnp.maximum(high - place, 0) + contextual
  return jnp.where(place < contextual, place, jnp.minimum(back, rows - 1))


def find_gaps(
  sequences: Sequences, contextual: int, tokens_of_event: int
) -> jax.Array:
  """`[T]` int32 seconds since the event before; 0 for the first one.

  Before a candidate is the latest event.

  Args:
    sequences: the tokens.
    contextual: tokens of context.
    tokens_of_event: of the history.
  """
  lengths, count = sequences.lengths, sequences.tokens
  segment = pallas_kernels.segment_ids(lengths, count)
  history = lengths - sequences.candidates
  history = history.at[segment].get(mode='fill', fill_value=0)
  place = pallas_kernels.positions(lengths, count)
  before = jnp.minimum(place - tokens_of_event, history - 1)
  index = jnp.arange(count, dtype=jnp.int32) - place + before
  age = sequences.age.at[jnp.maximum(index, 0)].get(mode='fill', fill_value=0)
  return jnp.where(before < contextual, 0, age - sequences.age)


class RequestPositions(nnx.Module):
  """Scales tokens and adds a row for the place and one for the age.

  Args:
    dim: D.
    contextual: tokens of context.
    rows: of the table of positions.
    buckets: the last bucket of ages.
    function: 'sqrt' or 'log'.
    last: where buckets are cut; `buckets`, or the published code's `dim` - 1.
    scale: factor of the tokens; None is sqrt(D).
    tokens_of_event: of the history, if places and times are counted from the
      start; 0 counts them from the request.
    rngs: random keys.
  """

  def __init__(
    self,
    dim: int,
    *,
    contextual: int,
    rows: int,
    buckets: int,
    function: str,
    last: int,
    scale: float | None,
    tokens_of_event: int = 0,
    rngs: nnx.Rngs,
  ):
    self.tokens_of_event = tokens_of_event
    self.scale = dim**0.5 if scale is None else scale
    self.contextual, self.last = contextual, min(last, buckets)
    self.edges = tuple(list_edges(buckets, function).tolist())
    self.position = _draw_rows(rows, rows, dim, rngs)
    self.age = _draw_rows(buckets + 1, buckets, dim, rngs)

  def __call__(
    self, x: jax.Array, sequences: Sequences, listwise: bool = False
  ) -> jax.Array:
    """`[T, D]` float32 -> `[T, D]` float32."""
    age, from_start = sequences.age, self.tokens_of_event > 0
    if from_start:
      age = find_gaps(sequences, self.contextual, self.tokens_of_event)
    place = find_places(
      sequences,
      self.contextual,
      self.position[...].shape[0],
      listwise,
      from_start,
    )
    inside = pallas_kernels.positions(sequences.lengths, x.shape[0])
    return self.add(x, place, age, inside < self.contextual)

  def add(
    self, x: jax.Array, place: jax.Array, age: jax.Array, is_context: jax.Array
  ) -> jax.Array:
    """Tokens with the rows of their places and ages added.

    Args:
      x: `[N, D]` float32.
      place: `[N]` rows of the table of positions.
      age: `[N]` int32 seconds.
      is_context: `[N]`, whose bucket is the last.
    """
    table, ages = self.position[...], self.age[...]
    bucket = find_buckets(age, np.array(self.edges, np.int32))
    bucket = jnp.where(is_context, ages.shape[0] - 1, bucket)
    bucket = jnp.minimum(bucket, self.last)
    return x * jnp.float32(self.scale) + table[place] + ages[bucket]


def _draw_rows(rows: int, size: int, dim: int, rngs: nnx.Rngs) -> nnx.Param:
  bound = size**-0.5
  key = rngs.params()
  return nnx.Param(
    jax.random.uniform(key, (rows, dim), minval=-bound, maxval=bound)
  )
