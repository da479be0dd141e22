"""The packed sequences that requests become: [context][history][candidates].

A sequence of a request has C tokens of context, the tokens of its events and
those of its candidates, which are the targets of the attention.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.features import (
  CANDIDATES,
  HISTORY,
  Columns,
  Examples,
  Jagged,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sequences:
  """What is known of T packed tokens beside their vectors.

  Attributes:
    lengths: `[B]` int32 tokens of each sequence.
    candidates: `[B]` int32 tokens at its end that are candidates.
    age: `[T]` int32 seconds from the event of a token to the request; 0 for
      context and candidates.
    number: `[T]` uint32 number of the token in the batch, on which dropout
      depends.
    candidate_capacity: tokens of candidates there may be, padding included.
  """

  lengths: jax.Array
  candidates: jax.Array
  age: jax.Array
  number: jax.Array
  candidate_capacity: int = dataclasses.field(metadata=dict(static=True))

  @property
  def tokens(self) -> int:
    return self.age.shape[0]

  def as_events(self) -> Jagged:
    """Lengths and times as `hstu.Block` reads them; no time is after 0."""
    times = jnp.stack([-self.age, -self.age], axis=1)
    return Jagged(Columns(times, ('time', 'next_time')), self.lengths)


@dataclasses.dataclass(frozen=True)
class Layout:
  """How the parts of a batch of requests lie one behind the other.

  Attributes:
    context: `[B]` tokens of context, 0 for padding requests.
    history: `[B]` tokens of the history.
    candidates: `[B]` tokens of the candidates.
    slots: tokens of context of a request.
    of_event: tokens of an event.
    of_candidate: tokens of a candidate.
    history_capacity: tokens of the histories, padding included.
    candidate_capacity: tokens of the candidates, padding included.
  """

  context: jax.Array
  history: jax.Array
  candidates: jax.Array
  slots: int
  of_event: int
  of_candidate: int
  history_capacity: int
  candidate_capacity: int

  @property
  def lengths(self) -> jax.Array:
    return self.context + self.history + self.candidates

  def join(
    self, context: jax.Array, history: jax.Array, candidates: jax.Array
  ) -> jax.Array:
    """Puts packed values of the three into the order of the sequences.

    Args:
      context: `[B, slots, ...]`.
      history: `[history_capacity, ...]`.
      candidates: `[candidate_capacity, ...]`.
    """
    left, left_lengths = history, self.history
    count = self.history_capacity
    if self.slots:
      room = context.shape[0] * self.slots
      packed = pallas_kernels.to_jagged(context, self.context, room)
      left_lengths, count = self.context + self.history, count + room
      left = pallas_kernels.concat(
        packed, self.context, history, self.history, count
      )
    if not self.candidate_capacity:  # nothing could be gathered of nothing
      return left
    count += self.candidate_capacity
    return pallas_kernels.concat(
      left, left_lengths, candidates, self.candidates, count
    )

  def find_events(self) -> jax.Array:
    """Where the last token of each event stands, `[events]`; T for padding."""
    lengths, start = self.history // self.of_event, self.context
    return self._find(
      lengths, start, self.history_capacity, self.of_event, self.of_event - 1
    )

  def find_candidates(self) -> jax.Array:
    """Where the first token of each candidate stands; T for padding."""
    lengths = self.candidates // self.of_candidate
    start = self.context + self.history
    return self._find(
      lengths, start, self.candidate_capacity, self.of_candidate, 0
    )

  def _find(self, lengths, start, capacity, step, shift):
    count = capacity // step
    segment = pallas_kernels.segment_ids(lengths, count)
    place = pallas_kernels.positions(lengths, count) * step + shift
    start = pallas_kernels.offsets(self.lengths) + start
    end = self.history_capacity + self.candidate_capacity
    end += self.context.shape[0] * self.slots
    start = start.at[segment].get(mode='fill', fill_value=end)
    # Padding is beyond the end, where gathers fill and scatters drop.
    return jnp.minimum(start + place, end).astype(jnp.int32)


def lay_out(
  batch: Examples, slots: int, of_event: int, of_candidate: int
) -> Layout:
  """The layout of a batch with that many tokens of each kind."""
  history, candidates = batch.jagged[HISTORY], batch.jagged[CANDIDATES]
  # Padding has no tokens at all; a request without weight may have some, and
  # whatever has tokens has context.
  real = (batch.weights > 0) | (history.lengths + candidates.lengths > 0)
  return Layout(
    context=jnp.where(real, slots, 0).astype(jnp.int32),
    history=history.lengths * of_event,
    candidates=candidates.lengths * of_candidate,
    slots=slots,
    of_event=of_event,
    of_candidate=of_candidate,
    history_capacity=history.columns.values.shape[0] * of_event,
    candidate_capacity=candidates.columns.values.shape[0] * of_candidate,
  )


def number_tokens(layout: Layout, batch: Examples, count: int) -> jax.Array:
  """`[count]` uint32 number of each token in the batch, over all shards."""
  numbers = jnp.arange(count, dtype=jnp.uint32)
  for first, tokens in (
    (batch.first, layout.slots),
    (batch.jagged[HISTORY].first, layout.of_event),
    (batch.jagged[CANDIDATES].first, layout.of_candidate),
  ):
    # Shards before this one end with padding, whose tokens have no number.
    if first is not None:
      numbers += (first * tokens).astype(jnp.uint32)
  return numbers
