"""Where the packed events of a history stand: whose they are, and how recent.

Models compute on packed events, so that their cost follows the events there
are, and put into places, `[B, T]`, what an MLP or a recurrence over a whole
history needs. The latest event of every history is in the last place: an MLP
then has the same input for the same recency, however short the history is.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EventPlaces:
  """The places of K packed events of B histories.

  >>> places = find_places(jnp.array([2, 0, 1]), 4, 3)
  >>> places.example.tolist(), places.slot.tolist()
  ([0, 0, 2, 3], [1, 2, 2, 3])
  >>> places.place(jnp.array([5.0, 6.0, 7.0, 9.0])).tolist()
  [[0.0, 5.0, 6.0], [0.0, 0.0, 0.0], [0.0, 0.0, 7.0]]

  Attributes:
    example: `[K]` whose event it is; B for padding.
    slot: `[K]` its place, T - 1 for the latest event; T for padding and for
      events that are too old for a place.
    lengths: `[B]` events that have a place.
    most: T, static.
  """

  example: jax.Array
  slot: jax.Array
  lengths: jax.Array
  most: int = dataclasses.field(metadata=dict(static=True))

  @property
  def is_real(self) -> jax.Array:
    """`[K]` whether there is an event, and it has a place."""
    return self.slot < self.most

  def spread(self, values: jax.Array) -> jax.Array:
    """`[B, ...]` values of examples, for each of their events `[K, ...]`."""
    return values.at[self.example].get(mode='fill', fill_value=0)

  def place(self, values: jax.Array, fill: float = 0.0) -> jax.Array:
    """`[K, ...]` values of the events in their places, `[B, T, ...]`."""
    shape = (len(self.lengths), self.most, *values.shape[1:])
    out = jnp.full(shape, fill, values.dtype)
    return out.at[self.example, self.slot].set(values, mode='drop')

  def gather(self, placed: jax.Array) -> jax.Array:
    """The inverse of `place`; 0 for what has no place."""
    at = self.example, self.slot
    return placed.at[at].get(mode='fill', fill_value=0)

  def add_up(self, values: jax.Array) -> jax.Array:
    """`[B, ...]` sums of the values of the events."""
    real = jnp.expand_dims(self.is_real, tuple(range(1, values.ndim)))
    values = jnp.where(real, values, jnp.zeros_like(values))
    # Padding belongs to an example behind the last one.
    return jax.ops.segment_sum(values, self.example, len(self.lengths) + 1)[:-1]

  @property
  def has_event(self) -> jax.Array:
    """`[B, T]` which places hold an event."""
    place = jnp.arange(self.most)[None]
    return place >= self.most - self.lengths[:, None]

  def keep_latest(self, most: int) -> 'EventPlaces':
    """The same for the `most` latest events of each history alone."""
    slot = self.slot - (self.most - most)
    slot = jnp.where(self.is_real & (slot >= 0), slot, most)
    return EventPlaces(
      self.example, slot, jnp.minimum(self.lengths, most), most
    )


def find_places(lengths: jax.Array, capacity: int, most: int) -> EventPlaces:
  """The places of packed events.

  Args:
    lengths: `[B]` events of each history.
    capacity: K, events and padding.
    most: T; of a longer history the earliest events have no place.
  """
  example = pallas_kernels.segment_ids(lengths, capacity)
  ends = jnp.cumsum(lengths).astype(jnp.int32)
  end = ends.at[example].get(mode='fill', fill_value=0)
  slot = most - (end - jnp.arange(capacity, dtype=jnp.int32))
  real = (example < len(lengths)) & (slot >= 0)
  slot = jnp.where(real, slot, most)
  return EventPlaces(example, slot, jnp.minimum(lengths, most), most)
