"""Draws for requests that depend on nothing but numbers which name them.

What is drawn for a request must not depend on the batch it is in, on how many
devices there are, or on where a run was interrupted. So there is no generator
with a state: each draw is a hash of the seed, the epoch and the request.
"""

import numpy as np

from genrec_jax.data import splits
from genrec_jax.data.ranking import mixing

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64


def make_keys(*numbers: int | np.ndarray) -> np.ndarray:
  """A key for each place of the broadcast numbers, `[n]` uint64.

  >>> keys = make_keys(0, 1, np.array([5, 5, 6]), np.array([7, 8, 7]))
  >>> len(set(keys.tolist()))
  3

  Args:
    *numbers: whole numbers, or `[n]` arrays of them, none negative.
  """
  key = np.zeros(1, np.uint64)
  for number in numbers:
    number = np.atleast_1d(np.asarray(number)).astype(np.uint64)
    # The order of the numbers counts, and a 0 moves the key as well.
    key = mixing.mix_bits((key ^ number) + _GOLDEN)
  return key


def draw_bits(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
  """Draw number `numbers` of each key, `[n]` uint64: SplitMix64 from there."""
  return mixing.mix_bits(keys + _GOLDEN * numbers.astype(np.uint64))


def to_uniform(bits: np.ndarray) -> np.ndarray:
  """Numbers between 0 and 1, neither of them included, `[n]` float64.

  >>> bits = np.array([0, 2**64 - 1], np.uint64)
  >>> low, high = to_uniform(bits)
  >>> bool(0 < low < 1e-15), bool(1 - 1e-15 < high < 1)
  (True, True)
  """
  # 52 bits and a half: with 53 the largest would be rounded to 1.
  return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def keep_smallest(
  keys: np.ndarray, lengths: np.ndarray, count: int
) -> np.ndarray:
  """Where the smallest keys of each run stand, in the order of the run.

  >>> keep_smallest(np.array([3, 1, 2, 9, 8, 7]), np.array([3, 3]), 2).tolist()
  [[1, 2], [1, 2]]

  Args:
    keys: `[K]` of all runs, run behind run.
    lengths: `[m]` of the runs, each at least `count`.
    count: how many are kept of each.

  Returns:
    `[m, count]` int64 places within the run, ascending.
  """
  places = np.empty((len(lengths), count), np.int64)
  end = 0
  # A loop: runs differ in length, and sorting all keys at once costs more.
  for run, length in enumerate(lengths.tolist()):
    begin, end = end, end + length
    if length > count:
      places[run] = np.argpartition(keys[begin:end], count)[:count]
    else:
      places[run] = np.arange(count)
  places.sort(axis=1)
  return places


def place_runs(
  begin: np.ndarray, lengths: np.ndarray, cut: np.ndarray, places: np.ndarray
) -> np.ndarray:
  """Positions of all runs, of some of which only a part stays.

  >>> place_runs(
  ...   np.array([10, 20]), np.array([2, 5]), np.array([False, True]),
  ...   np.array([[0, 4]]),
  ... ).tolist()
  [10, 11, 20, 24]

  Args:
    begin: `[n]` position at which each run begins.
    lengths: `[n]` of the whole runs.
    cut: `[n]` bool, of which runs a part stays.
    places: `[m, k]` places within the m runs that are cut, ascending.

  Returns:
    `[K]` int64, run behind run.
  """
  kept = np.where(cut, places.shape[1], lengths)
  start = np.cumsum(kept) - kept
  whole = ~cut
  positions = np.empty(int(kept.sum()), np.int64)
  positions[splits.expand_ranges(start[whole], lengths[whole])] = (
    splits.expand_ranges(begin[whole], lengths[whole])
  )
  at = start[cut][:, None] + np.arange(places.shape[1])
  positions[at] = begin[cut][:, None] + places
  return positions
