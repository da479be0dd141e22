"""A generated log: the HSTU paper's stream."""

import numpy as np

from genrec_jax.data import histories as histories_lib
from genrec_jax.data import vocab as vocab_lib

_BLOCK = 1 << 15  # records drawn together


def item_categories(items: int, categories: int, seed: int) -> np.ndarray:
  """`[items]` int32 category of item ids 1..items (position 0 is id 1)."""
  rng = np.random.default_rng([seed, 0])
  return rng.integers(0, categories, items, dtype=np.int32)


def opening_limits(
  records: int, items: int, opening: tuple[float, float]
) -> np.ndarray:
  """`[records]` int64: record r draws from item ids 1 .. limit only."""
  low, high = opening
  share = low + (high - low) * np.arange(records) / records
  return np.clip((share * items).astype(np.int64), 1, items)


class _Shelves:
  """Items ordered by (category, id), to draw from the open ones of each."""

  def __init__(self, category: np.ndarray, categories: int):
    self._order = np.argsort(category, kind='stable')
    self._span = len(category) + 1
    # One sorted key for (category, id): a search counts a category's open ids.
    self._keys = category[self._order] * np.int64(self._span) + self._order
    self._start = np.searchsorted(
      self._keys, np.arange(categories) * np.int64(self._span)
    )
    least = np.full(categories, len(category))
    np.minimum.at(least, category, np.arange(len(category)))
    self._by_opening = np.argsort(least, kind='stable')
    self._opens_at = least[self._by_opening]
    self._least = least

  def open_count(self, category: np.ndarray, limit: np.ndarray) -> np.ndarray:
    keys = category * np.int64(self._span) + limit
    return np.searchsorted(self._keys, keys) - self._start[category]

  def draw_items(self, category, limit, rng) -> np.ndarray:
    """Ids (from 1), uniform among the open items of each category."""
    count = self.open_count(category, limit)
    pick = (rng.random(category.shape) * count).astype(np.int64)
    return self._order[self._start[category] + pick] + 1

  def redraw_closed(self, category, limit, rng) -> np.ndarray:
    """Replaces categories without an open item by uniform open ones."""
    closed = self._least[category] >= limit
    count = np.searchsorted(self._opens_at, limit)
    other = (rng.random(category.shape) * count).astype(np.int64)
    return np.where(closed, self._by_opening[other], category)


def _draw_block(
  rng, shelves: _Shelves, limits, length, categories, per_record, alpha_max
) -> np.ndarray:
  """`[R, length]` int32 item ids of R records with opening `limits [R]`."""
  size = len(limits)
  rows = np.arange(size)
  own = rng.integers(0, categories, (size, per_record))
  own = shelves.redraw_closed(own, limits[:, None], rng)
  prior = np.cumsum(rng.exponential(size=(size, per_record)), axis=1)
  prior /= prior[:, -1:]  # a flat Dirichlet, cumulated
  alpha = rng.integers(1, alpha_max + 1, size)
  drawn = np.empty((size, length), np.int32)
  for n in range(length):  # n events came before
    fresh = rng.random(size) * (alpha + n) < alpha
    slot = np.sum(rng.random((size, 1)) >= prior[:, :-1], axis=1)
    # Copying the category of a uniform earlier event is drawing category c
    # with probability n_c / n.
    copied = drawn[rows, rng.integers(0, max(n, 1), size)] if n else 0
    drawn[:, n] = np.where(fresh, own[rows, slot], copied)
  return shelves.draw_items(drawn, limits[:, None], rng).astype(np.int32)


def generate_stream(
  records: int,
  length: int = 128,
  items: int = 20_000,
  categories: int = 100,
  per_record: int = 5,
  alpha_max: int = 500,
  seed: int = 0,
  opening: tuple[float, float] = (0.4, 1.0),
) -> histories_lib.Histories:
  """The non-stationary stream of the HSTU paper (appendix C), in memory.

  Each item belongs to one of the categories at random. Record r draws only
  items with id <= (opening[0] + (opening[1] - opening[0]) r / records) * items.
  It has `per_record` categories, drawn uniformly with replacement (so at most
  that many different ones), a prior over them (flat Dirichlet), and an integer
  alpha uniform in 1..alpha_max. Position n = 1, 2, ... takes with probability
  alpha / (alpha + n - 1) a category from the prior, else category c with
  probability n_c / (alpha + n - 1), where n_c counts c so far in the record;
  then a uniformly random open item of that category. A record's category that
  has no open item yet (only in tiny catalogues) is redrawn, when the record
  begins, uniformly among the categories that have one.

  Args:
    records: number of sequences, in order of time.
    length: events of each.
    items: size of the catalogue; original id i has index i.
    categories: number of categories.
    per_record: most categories of a record.
    alpha_max: greatest concentration.
    seed: of everything.
    opening: shares of the catalogue open to the first record and to the end.

  Returns:
    Histories without times; user ids are the record numbers.
  """
  shelves = _Shelves(item_categories(items, categories, seed), categories)
  limits = opening_limits(records, items, opening)
  drawn = np.empty((records, length), np.int32)
  for i, start in enumerate(range(0, records, _BLOCK)):
    block = slice(start, min(start + _BLOCK, records))
    drawn[block] = _draw_block(
      np.random.default_rng([seed, 1, i]),
      shelves,
      limits[block],
      length,
      categories,
      per_record,
      alpha_max,
    )
  return histories_lib.Histories(
    offsets=np.arange(records + 1, dtype=np.int64) * length,
    items=drawn.reshape(-1),
    times=None,
    ratings=None,
    users=vocab_lib.Vocab(np.arange(records)),
    vocab=vocab_lib.Vocab(np.arange(1, items + 1)),
  )
