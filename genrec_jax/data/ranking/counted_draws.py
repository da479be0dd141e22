"""Draws that are functions of numbers, and items that a user never met.

A draw depends on a seed, on what it is for, and on the numbers of what is
drawn, such as a user and a window. So it is the same in whatever pieces rows
are made, and however often.
"""

from collections.abc import Callable

import numpy as np

from genrec_jax.data.ranking.mixing import mix_bits

_STEP = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 16  # after which the items that are left are listed


class NoItemLeftError(ValueError):
  """Somebody has met every item.

  Attributes:
    owner: the number of who.
  """

  def __init__(self, owner: int):
    super().__init__(f'number {owner} has met every item')
    self.owner = owner


def draw_uniform(seed: int, use: int, *numbers: np.ndarray | int) -> np.ndarray:
  """Draws in [0, 1), one for each tuple of numbers.

  >>> draw_uniform(0, 1, np.array([5, 6]), 0).shape
  (2,)
  >>> both = draw_uniform(0, 1, np.array([6, 5]), 0)
  >>> bool(draw_uniform(0, 1, 5, 0)[0] == both[1])
  True

  Args:
    seed: of the data.
    use: what the draws are for; those of another use are independent.
    numbers: whole numbers, arrays that broadcast.
  """
  bits = np.random.default_rng([seed, use]).integers(1 << 63, dtype=np.uint64)
  bits = np.atleast_1d(bits)
  for number in numbers:
    # Numbers below zero count from the end, as everywhere with 64 bits.
    number = np.asarray(number, np.int64).astype(np.uint64)
    bits = mix_bits((bits ^ number) + _STEP)
  return (bits >> np.uint64(11)) / 2.0**53


def draw_below(draws: np.ndarray, limits: np.ndarray | int) -> np.ndarray:
  """Whole numbers from 0 to limit - 1, of draws in [0, 1)."""
  return (draws * limits).astype(np.int64)


def make_keys(owner: np.ndarray, item: np.ndarray, items: int) -> np.ndarray:
  """The pairs of an owner and an item, as sorted int64 keys.

  Args:
    owner: numbers from 0 on.
    item: numbers from 0 to items - 1.
    items: how many items there are.
  """
  return np.sort(owner.astype(np.int64) * items + item)


def draw_unmet_items(
  met: np.ndarray,
  owner: np.ndarray,
  items: int,
  draw: Callable[[int, np.ndarray], np.ndarray],
) -> np.ndarray:
  """Uniform draws of items that their owners have not met.

  Args:
    met: of `make_keys`, what each owner has met.
    owner: `[N]` numbers from 0 on.
    items: how many items there are.
    draw: (round, places `[M]` below N) -> `[M]` draws in [0, 1).

  Returns:
    `[N]` int64 numbers of items.

  Raises:
    NoItemLeftError: an owner has met all of them.
  """
  out = np.empty(len(owner), np.int64)
  left = np.arange(len(owner))
  for number in range(_ROUNDS):
    if not len(left):
      return out
    pick = draw_below(draw(number, left), items)
    out[left] = pick
    keys = owner[left].astype(np.int64) * items + pick
    at = np.searchsorted(met, keys)
    is_met = at < len(met)
    is_met[is_met] = met[at[is_met]] == keys[is_met]
    left = left[is_met]
  for place in left.tolist():
    first = int(owner[place]) * items
    low, high = np.searchsorted(met, [first, first + items])
    others = np.setdiff1d(np.arange(items), met[low:high] - first)
    if not len(others):
      raise NoItemLeftError(int(owner[place]))
    chosen = draw_below(draw(_ROUNDS, np.array([place])), len(others))
    out[place] = others[chosen[0]]
  return out
