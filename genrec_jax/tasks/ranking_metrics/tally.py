"""Examples of a binary label as weights of distinct scores, and what is legal.

A score is a logit. Probabilities would tie where float32's sigmoid saturates:
from 17 on they are all 1.
"""

import dataclasses
from typing import NamedTuple

import numpy as np


class ScoredExamples(NamedTuple):
  """Checked examples in float64, those of weight 0 left out.

  Attributes:
    logits: `[N]` finite.
    positive: `[N]` weight times label.
    negative: `[N]` weight times one minus label.
    group: `[N]` int64, negative where an example belongs to none; or None.
  """

  logits: np.ndarray
  positive: np.ndarray
  negative: np.ndarray
  group: np.ndarray | None


def check_examples(logits, labels, weights=None, group=None) -> ScoredExamples:
  """Checks and prepares examples.

  Args:
    logits: `[N]` scores.
    labels: `[N]` 0 or 1, or shares between.
    weights: `[N]`, all 1 if None; 0 is padding, whose other values may be
      anything.
    group: `[N]` whole numbers, or None.

  Raises:
    FloatingPointError: a logit is NaN or infinite.
    ValueError: a label or a weight is what it cannot be.
  """
  logits, labels = np.asarray(logits), np.asarray(labels)
  shape = logits.shape
  weights = np.ones(shape) if weights is None else np.asarray(weights)
  group = None if group is None else np.asarray(group)
  if not len(shape) == 1 or not shape == labels.shape == weights.shape:
    raise ValueError(
      f'logits, labels and weights must be as many numbers, are {shape}, '
      f'{labels.shape}, {weights.shape}'
    )
  if group is not None and group.shape != shape:
    raise ValueError(f'group must be {shape}, is {group.shape}')
  weights = weights.astype(np.float64)
  if not np.all(weights >= 0) or not np.all(weights < np.inf):
    raise ValueError('the weight of an example must be finite and not below 0')
  real = weights > 0
  if not real.all():
    logits, labels, weights = logits[real], labels[real], weights[real]
    group = None if group is None else group[real]
  logits, labels = logits.astype(np.float64), labels.astype(np.float64)
  if not np.isfinite(logits).all():
    raise FloatingPointError('the model scores some examples NaN or infinite')
  if not np.all((labels >= 0) & (labels <= 1)):
    raise ValueError('the label of an example must be 0 or 1')
  positive = weights * labels
  # Zero added makes one zero of the two.
  group = None if group is None else group.astype(np.int64)
  return ScoredExamples(logits + 0.0, positive, weights - positive, group)


@dataclasses.dataclass(frozen=True)
class Tally:
  """Weights of the distinct (group, logit), sorted.

  Attributes:
    group: `[K]` int64, or None where groups do not matter.
    logit: `[K]`.
    positive: `[K]` weight of the positive examples.
    negative: `[K]` weight of the others.
  """

  group: np.ndarray | None
  logit: np.ndarray
  positive: np.ndarray
  negative: np.ndarray


def make_tally(group, logit, positive, negative) -> Tally:
  """Sorts and adds up; the arguments are those of `Tally`, in any order."""
  if not len(logit):
    return Tally(group, logit, positive, negative)
  if group is None:
    # The default is several times faster than a stable sort, except for what
    # is sorted in parts, and nothing here depends on the order of equals.
    order = np.argsort(logit)
  else:
    order = np.lexsort((logit, group))
    group = group[order]
  logit = logit[order]
  first = np.ones(len(logit), bool)
  first[1:] = logit[1:] != logit[:-1]
  if group is not None:
    first[1:] |= group[1:] != group[:-1]
  starts = np.flatnonzero(first)
  return Tally(
    None if group is None else group[starts],
    logit[starts],
    np.add.reduceat(positive[order], starts),
    np.add.reduceat(negative[order], starts),
  )


def join_tallies(tallies) -> Tally:
  """One tally of several of one kind, at least one."""
  if len(tallies) == 1:
    return tallies[0]
  columns = ([getattr(t, f.name) for t in tallies] for f in _FIELDS)
  return make_tally(
    *(None if c[0] is None else np.concatenate(c) for c in columns)
  )


_FIELDS = dataclasses.fields(Tally)
