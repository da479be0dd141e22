"""A plain generated log of any length."""

from collections.abc import Iterator

import numpy as np

from genrec_jax.data import readers


def generate_events(
  n_events: int,
  users: int,
  items: int,
  seed: int = 0,
  chunk_rows: int = readers.CHUNK_ROWS,
) -> Iterator[readers.Events]:
  """A log of any length, generated chunk by chunk in constant memory.

  Popularity falls as 1 / rank (Zipf); activity of users falls as
  1 / sqrt(rank); times grow by about a second an event, with ties.
  """
  base = 1_500_000_000
  for i, start in enumerate(range(0, n_events, chunk_rows)):
    size = min(chunk_rows, n_events - start)
    rng = np.random.default_rng([seed, 2, i])
    # The inverse of the cumulative distribution of a 1 / x density.
    rank = np.exp(rng.random(size) * np.log(items + 1)).astype(np.int64)
    yield readers.Events(
      user=(rng.random(size) ** 2 * users).astype(np.int64) + 1,
      item=np.clip(rank, 1, items),
      time=base + start + np.sort(rng.integers(0, size, size)),
      where=lambda row, start=start: f'generated event {start + row}',
    )
