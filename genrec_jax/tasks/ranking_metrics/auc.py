"""Area under the ROC curve: exact, in bins, and within groups.

AUC is the weight of the pairs (positive, negative) whose positive has the
higher logit, plus half of those that tie, as a share of all pairs. Without a
positive or without a negative there is no pair and the result is NaN.

Each class gathers examples: `update(logits, labels, weights, group)` and
`merge(other)` give a new one, `result()` the number. What is gathered in parts,
on several processes say, and merged is what one pass over all would have given,
but for the rounding of sums of weights; whole weights are added without any.
"""

import dataclasses
import math

import numpy as np

from genrec_jax.tasks.ranking_metrics.tally import (
  Tally,
  check_examples,
  join_tallies,
  make_tally,
)

# Bins that are left at least where neighbours are joined, and half of what
# there may be.
LEAST_BINS = 1 << 14
PLACE_BITS = 54
# Bins of this level are a 2,048th of 1 + |logit| wide; they become wider only
# where there is no other room.
USUAL_LEVEL = PLACE_BITS - 11
MOST_LEVEL = 61  # holds all logits of one sign


@dataclasses.dataclass(frozen=True)
class ExactAuc:
  """Exact AUC; keeps each distinct logit.

  Attributes:
    runs: tallies, each less than half as long as the one before it: to join
      them when that fails costs log(updates) sorts an example, not `updates`.
  """

  runs: tuple[Tally, ...] = ()

  def update(self, logits, labels, weights=None, group=None) -> 'ExactAuc':
    """With `[N]` more examples; `group` does not matter."""
    del group
    e = check_examples(logits, labels, weights)
    return ExactAuc(
      _append_run(self.runs, make_tally(None, e.logits, e.positive, e.negative))
    )

  def merge(self, other: 'ExactAuc') -> 'ExactAuc':
    """With the examples of both."""
    runs = self.runs
    for run in other.runs:
      runs = _append_run(runs, run)
    return ExactAuc(runs)

  def result(self) -> float:
    """The AUC, NaN without a pair."""
    if not self.runs:
      return math.nan
    t = join_tallies(self.runs)
    return _area_under(t.positive, t.negative)


@dataclasses.dataclass(frozen=True)
class GroupedAuc:
  """gAUC: sum of n_u AUC_u over sum of n_u, n_u the weight of group u.

  The sums go over groups with both labels; examples of a negative group belong
  to none. Keeps each distinct (group, logit).

  Attributes:
    runs: as those of `ExactAuc`.
  """

  runs: tuple[Tally, ...] = ()

  def update(self, logits, labels, weights=None, group=None) -> 'GroupedAuc':
    """With `[N]` more examples."""
    if group is None:
      raise ValueError('gAUC needs the group of each example')
    e = check_examples(logits, labels, weights, group)
    if not (e.group >= 0).all():
      e = type(e)(*(x[e.group >= 0] for x in e))
    return GroupedAuc(
      _append_run(
        self.runs, make_tally(e.group, e.logits, e.positive, e.negative)
      )
    )

  def merge(self, other: 'GroupedAuc') -> 'GroupedAuc':
    """With the examples of both."""
    runs = self.runs
    for run in other.runs:
      runs = _append_run(runs, run)
    return GroupedAuc(runs)

  def result(self) -> float:
    """The gAUC, NaN without a group that has both labels."""
    total, weight = self.sums()
    return total / weight if weight else math.nan

  def sums(self) -> tuple[float, float]:
    """(sum of n_u AUC_u, sum of n_u)."""
    if not self.runs or not len(self.runs[0].logit):
      return 0.0, 0.0
    t = join_tallies(self.runs)
    first = np.ones(len(t.group), bool)
    first[1:] = t.group[1:] != t.group[:-1]
    starts = np.flatnonzero(first)
    below = np.cumsum(t.negative) - t.negative
    below -= below[starts][np.cumsum(first) - 1]
    pairs = np.add.reduceat(t.positive * (below + t.negative / 2), starts)
    positive = np.add.reduceat(t.positive, starts)
    negative = np.add.reduceat(t.negative, starts)
    both = (positive > 0) & (negative > 0)
    pairs, positive, negative = pairs[both], positive[both], negative[both]
    weight = positive + negative
    auc = pairs / (positive * negative)
    return float(np.sum(weight * auc)), float(np.sum(weight))


@dataclasses.dataclass(frozen=True)
class BinnedAuc:
  """AUC of logits in bins that follow them: constant memory, endless streams.

  Every logit has a bin of its own until there are more than `2 * LEAST_BINS`.
  Then neighbours of little weight are joined until at most `LEAST_BINS` are
  left, so that bins are narrow where examples lie densely, be their logits
  apart by units or by millionths.

  Pairs within a bin count as ties, so the result is off by at most half of
  their share of all pairs: `error()`. That does not depend on how examples are
  cut into updates. Merging joins the bins of one part that lie within a bin of
  the other, and loses no example.

  >>> auc = BinnedAuc().update([-3.5001, -3.5, -3.4999], [0, 1, 1])
  >>> auc.result(), auc.error()
  (1.0, 0.0)

  Attributes:
    start: `[K]` int64, ascending: the first place (see `place_of`) of each
      bin, a multiple of its width.
    level: `[K]` int64, the bin is `2 ** level` places wide.
    positive: `[K]` weight of the positive examples.
    negative: `[K]` weight of the others.
  """

  start: np.ndarray = dataclasses.field(default_factory=lambda: _no(np.int64))
  level: np.ndarray = dataclasses.field(default_factory=lambda: _no(np.int64))
  positive: np.ndarray = dataclasses.field(default_factory=lambda: _no(float))
  negative: np.ndarray = dataclasses.field(default_factory=lambda: _no(float))

  def update(self, logits, labels, weights=None, group=None) -> 'BinnedAuc':
    """With `[N]` more examples; `group` does not matter."""
    del group
    e = check_examples(logits, labels, weights)
    places, done, bins = place_of(e.logits), 0, self
    while done < len(places):
      rest = slice(done, None)
      bins, more = bins._add(places[rest], e.positive[rest], e.negative[rest])
      done += more
    return bins

  def merge(self, other: 'BinnedAuc') -> 'BinnedAuc':
    """With the examples of both."""
    columns = [
      np.concatenate([getattr(x, f.name) for x in (self, other)])
      for f in dataclasses.fields(self)
    ]
    # The widest of the bins that begin at one place comes first.
    order = np.lexsort((-columns[1], columns[0]))
    start, level, positive, negative = (c[order] for c in columns)
    end = np.maximum.accumulate(start + (1 << level))
    # Bins either lie within one another or have no place in common.
    first = np.flatnonzero(start[1:] >= end[:-1]) + 1
    first = np.concatenate([np.zeros(min(len(start), 1), np.int64), first])
    if not len(first):
      return self
    return BinnedAuc(
      start[first],
      level[first],
      np.add.reduceat(positive, first),
      np.add.reduceat(negative, first),
    )._join()

  def result(self) -> float:
    """The AUC to within `error()`, NaN without a pair."""
    return _area_under(self.positive, self.negative)

  def error(self) -> float:
    """How far the exact AUC may be from the result at most."""
    pairs = self.positive.sum() * self.negative.sum()
    if not pairs:
      return math.nan
    # Whatever is in a bin of one place does tie.
    wide = self.level > 0
    tied = np.dot(self.positive[wide], self.negative[wide])
    return float(tied / 2 / pairs)

  def _add(self, places, positive, negative) -> tuple['BinnedAuc', int]:
    """With as many of the examples as there are bins for, and their number."""
    distinct, first, which = np.unique(
      places, return_index=True, return_inverse=True
    )
    is_new = np.ones(len(distinct), bool)
    if len(self.start):
      at = np.searchsorted(self.start, distinct, 'right') - 1
      is_new = (at < 0) | (distinct - self.start[at] >> self.level[at] > 0)
    count, room = len(places), 2 * LEAST_BINS - len(self.start)
    if np.count_nonzero(is_new) > room:
      # Bins are joined behind the very example that makes them too many, so
      # that the result does not depend on where updates are cut.
      count = int(np.partition(first[is_new], room)[room]) + 1
      is_new &= first < count
    fresh = distinct[is_new]
    into = np.searchsorted(self.start, fresh)
    new = BinnedAuc(
      *(np.insert(x, into, y) for x, y in zip(
        vars(self).values(), (fresh, 0, 0.0, 0.0), strict=True
      ))
    )  # fmt: skip
    at = np.searchsorted(new.start, distinct, 'right') - 1
    at = at[which[:count]]
    # One after the other, so that sums do not depend on how updates are cut.
    np.add.at(new.positive, at, positive[:count])
    np.add.at(new.negative, at, negative[:count])
    return new._join(), count

  def _join(self) -> 'BinnedAuc':
    """Joins neighbours of little weight if there are too many bins."""
    if len(self.start) <= 2 * LEAST_BINS:
      return self
    total = float(self.positive.sum() + self.negative.sum())
    most, widest, bins = total / LEAST_BINS, USUAL_LEVEL, self
    while len(bins.start) > LEAST_BINS:
      bins = bins._join_light(most, widest)
      # First somewhat heavier bins, then wider ones: examples that come later
      # shall find room for their differences.
      if most < 4 * total / LEAST_BINS or widest == MOST_LEVEL:
        most *= 2
      else:
        widest += 1
    return bins

  def _join_light(self, most: float, widest: int) -> 'BinnedAuc':
    """Joins what together weighs `most` and is no wider than `widest`."""
    start, level, positive, negative = (
      getattr(self, f.name) for f in dataclasses.fields(self)
    )
    for height in range(1, widest + 1):
      block = start >> height
      first = np.flatnonzero(np.diff(block, prepend=block[0] - 1))
      count = np.diff(first, append=len(block))
      sums = [np.add.reduceat(x, first) for x in (positive, negative)]
      joins = (count > 1) & (sums[0] + sums[1] <= most)
      if not joins.any():
        continue
      # The first bin of a block that is joined becomes the whole block.
      stays = ~np.repeat(joins, count)
      stays[first[joins]] = True
      here = np.cumsum(stays)[first[joins]] - 1
      start, level, positive, negative = (
        x[stays] for x in (start, level, positive, negative)
      )
      start[here], level[here] = start[here] >> height << height, height
      positive[here], negative[here] = (x[joins] for x in sums)
    return BinnedAuc(start, level, positive, negative)


def place_of(logits: np.ndarray) -> np.ndarray:
  """The place of each logit, int64; a higher logit has no lower one.

  What float32 tells apart has places apart. They are counted by the bits of
  1 + |logit|, `2 ** PLACE_BITS` to a factor of two, and where those are too
  few, next to zero, by the bits of |logit|.
  """
  size = np.minimum(np.abs(logits), np.finfo(np.float32).max)
  place = (1.0 + size).view(np.int64) - np.float64(1).view(np.int64)
  place = place >> 5 << PLACE_BITS - 47
  near = size.astype(np.float32).view(np.int32)
  place = np.where(size < 2.0**-24, near, place)
  return np.where(logits < 0, ~place, place)


def _append_run(runs: tuple[Tally, ...], run: Tally) -> tuple[Tally, ...]:
  runs = (*runs, run)
  while len(runs) > 1 and 2 * len(runs[-1].logit) >= len(runs[-2].logit):
    runs = (*runs[:-2], join_tallies(runs[-2:]))
  return runs


def _area_under(positive: np.ndarray, negative: np.ndarray) -> float:
  """AUC of the weights of ascending distinct scores."""
  pairs = positive.sum() * negative.sum()
  if not pairs:
    return math.nan
  below = np.cumsum(negative) - negative
  return float(np.dot(positive, below + negative / 2) / pairs)


def _no(dtype) -> np.ndarray:
  return np.zeros(0, dtype)
