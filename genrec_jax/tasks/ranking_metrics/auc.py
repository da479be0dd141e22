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

_OCTAVES, _PER_OCTAVE_BITS = 16, 11
_SIDE = _OCTAVES << _PER_OCTAVE_BITS  # bins of the logits of one sign
BINS = 2 * _SIDE
_MANTISSA_BITS = 23
_ONE = np.float32(1).view(np.int32)


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
  """AUC of logits rounded to bins: constant memory, for endless streams.

  Pairs within a bin count as ties, so the result is off by at most half of
  their share of all pairs: `error()`. Bins are cut by the bits of 1 + |logit|,
  2,048 to a factor of two: from 1/2,048 wide around zero to 1/512 wide at 7 and
  a two-thousandth of |logit| further out. Logits beyond 65,535 tie.

  Attributes:
    positive: `[BINS]` weight of the positive examples.
    negative: `[BINS]` weight of the others.
  """

  positive: np.ndarray = dataclasses.field(
    default_factory=lambda: _empty_bins()
  )
  negative: np.ndarray = dataclasses.field(
    default_factory=lambda: _empty_bins()
  )

  def update(self, logits, labels, weights=None, group=None) -> 'BinnedAuc':
    """With `[N]` more examples; `group` does not matter."""
    del group
    e = check_examples(logits, labels, weights)
    places = bin_of(e.logits)
    new = BinnedAuc(self.positive.copy(), self.negative.copy())
    # One after the other, so that sums do not depend on how updates are cut.
    np.add.at(new.positive, places, e.positive)
    np.add.at(new.negative, places, e.negative)
    return new

  def merge(self, other: 'BinnedAuc') -> 'BinnedAuc':
    """With the examples of both."""
    return BinnedAuc(
      self.positive + other.positive, self.negative + other.negative
    )

  def result(self) -> float:
    """The AUC to within `error()`, NaN without a pair."""
    return _area_under(self.positive, self.negative)

  def error(self) -> float:
    """How far the exact AUC may be from the result at most."""
    pairs = self.positive.sum() * self.negative.sum()
    if not pairs:
      return math.nan
    return float(np.dot(self.positive, self.negative) / 2 / pairs)


def bin_of(logits: np.ndarray) -> np.ndarray:
  """The bin of each logit, in 0..BINS-1; a higher logit has no lower one."""
  size = np.minimum(np.abs(logits), 2.0**_OCTAVES).astype(np.float32)
  bits = (size + np.float32(1)).view(np.int32) - _ONE
  place = np.minimum(bits >> (_MANTISSA_BITS - _PER_OCTAVE_BITS), _SIDE - 1)
  return np.where(logits < 0, _SIDE - 1 - place, _SIDE + place)


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


def _empty_bins() -> np.ndarray:
  return np.zeros(BINS)
