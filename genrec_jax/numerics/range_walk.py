"""The rules of the greedy search for the range of a row's levels.

The paper leaves them open. These are torch's, of `choose_qparams_optimized`:

- it goes on while more than `1 - ratio` of the range is left;
- the error of a range is the L2 norm over the row, with its rounded bias and
  scale; a range is remembered if both ranges one step on are worse, and so are
  all that were remembered before, the whole range being the first of those;
- if both ends cost the same, the upper one moves.

A walk is (low, high, error of that range, least error so far, low and high of
the range with the least error), `[R]` each.
"""

import types


def start_walk(error, low, high) -> tuple:
  """The walk before its first step.

  Args:
    error: `[R]` error of the whole range.
    low: `[R]` its low end.
    high: `[R]` its high end.
  """
  return low, high, error, error, low, high


def unfinished_rows(walk: tuple, least):
  """Which rows, `[R]`, have a range that may still be cut."""
  return walk[0] + least < walk[1]


def advance_ranges(walk: tuple, step) -> tuple:
  """The two ranges that come next: the low end raised, the high end lowered."""
  low, high = walk[:2]
  return (low + step, high), (low, high - step)


def advance_walk(
  xp: types.ModuleType, walk, step, least, raised, lowered
) -> tuple:
  """Takes one step in the rows that are not finished.

  Args:
    xp: numpy or jax.numpy.
    walk: as from `start_walk`.
    step: `[R]` length of a step.
    least: `[R]` the range at which a row is finished.
    raised: `[R]` error of the first range of `advance_ranges`.
    lowered: `[R]` error of the second one.
  """
  low, high, error, best, best_low, best_high = walk
  active = unfinished_rows(walk, least)
  # A range better than both that follow it is a local minimum; the best of
  # these is what counts.
  record = active & (error < raised) & (error < lowered) & (error < best)
  # Not both: where the errors are equal, the upper end moves.
  up, down = active & (raised < lowered), active & ~(raised < lowered)
  return (
    xp.where(up, low + step, low),
    xp.where(down, high - step, high),
    xp.where(up, raised, xp.where(down, lowered, error)),
    xp.where(record, error, best),
    xp.where(record, low, best_low),
    xp.where(record, high, best_high),
  )
