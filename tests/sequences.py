"""Small event sequences: drawn one by one, packed into a batch."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from genrec_jax.features import EVENTS, PAD, Columns, Examples, Jagged

DAY = 86_400


class Events(NamedTuple):
  """One user's tokens and what followed each; see `features.Examples`."""

  item: np.ndarray
  time: np.ndarray
  next_item: np.ndarray
  next_time: np.ndarray


def draw(lengths: Sequence[int], items: int, seed: int = 0) -> list[Events]:
  """Random sequences over items 1..`items`, seconds to weeks apart."""
  rng = np.random.default_rng(seed)
  out = []
  for length in lengths:
    item = rng.integers(1, items + 1, length + 1)
    gaps = np.exp(rng.uniform(0, np.log(30 * DAY), length + 1))
    time = np.cumsum(gaps.astype(np.int64))
    time -= time[0]
    out.append(Events(item[:-1], time[:-1], item[1:], time[1:]))
  return out


def pack(sequences: Sequence[Events], capacity: int) -> Examples:
  """The batch of these sequences, `capacity` tokens."""
  lengths = np.array([len(s.item) for s in sequences], np.int32)

  def column(name):
    parts = [getattr(s, name) for s in sequences]
    parts.append(np.full(capacity - lengths.sum(), PAD))
    return jnp.asarray(np.concatenate(parts), jnp.int32)

  columns = jnp.stack([column(name) for name in Events._fields], axis=-1)
  return Examples(
    weights=jnp.ones(len(lengths), jnp.float32),
    row=jnp.arange(len(lengths), dtype=jnp.int32),
    jagged={
      EVENTS: Jagged(Columns(columns, Events._fields), jnp.asarray(lengths))
    },
  )
