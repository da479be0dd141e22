"""The rules of the greedy search for the range of a row's levels.

The paper leaves them open. These are torch's, of `choose_qparams_optimized`:

- it goes on while more than `1 - ratio` of the range is left;
- the error of a range is the L2 norm over the row, with its rounded bias and
  scale; a range is remembered if both ranges one step on are worse, and so are
  all that were remembered before, the whole range being the first of those;
- if both ends cost the same, the upper one moves.

A walk is (low, high, its error, least error, its low, its high), `[R]` each.
"""

import types


def start(error, low, high) -> tuple:
  """The walk at its begin: ends, their error, the best error and its ends."""
  return low, high, error, error, low, high


def unfinished_rows(walk: tuple, least):
  """Which rows, `[R]`, have not come to the least range."""
  return walk[0] + least < walk[1]


def advance_ranges(walk: tuple, step) -> tuple:
  """The two ranges one step on."""
  low, high = walk[:2]
  return (low + step, high), (low, high - step)


def advance(xp: types.ModuleType, walk, step, least, raised, lowered) -> tuple:
  """The walk one step on, where it goes on; given the errors of "
  "`advance_ranges`."""
  low, high, error, best, best_low, best_high = walk
  active = unfinished_rows(walk, least)
  record = active & (error < raised) & (error < lowered) & (error < best)
  up, down = active & (raised < lowered), active & ~(raised < lowered)
  return (
    xp.where(up, low + step, low),
    xp.where(down, high - step, high),
    xp.where(up, raised, xp.where(down, lowered, error)),
    xp.where(record, error, best),
    xp.where(record, low, best_low),
    xp.where(record, high, best_high),
  )
