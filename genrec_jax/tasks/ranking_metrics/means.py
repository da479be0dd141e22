"""Log loss, normalised entropy and calibration, from sums."""

import dataclasses
import math

import numpy as np

from genrec_jax.tasks.ranking_metrics.tally import check_examples


@dataclasses.dataclass(frozen=True)
class WeightedMeans:
  """Sums over examples; `update` and `merge` give a new one.

  Attributes:
    weight: of the examples.
    positive: weight of the positive ones.
    loss: sum of the binary cross-entropy, in nats.
    prediction: sum of the predicted probability.
  """

  weight: float = 0.0
  positive: float = 0.0
  loss: float = 0.0
  prediction: float = 0.0

  def update(self, logits, labels, weights=None, group=None) -> 'WeightedMeans':
    """With `[N]` more examples; `group` does not matter."""
    del group
    e = check_examples(logits, labels, weights)
    small = _exp_of_minus(np.abs(e.logits))
    # Of the label that the sign of the logit speaks for, and of the other.
    likely, unlikely = np.log1p(small), np.abs(e.logits)
    up = e.logits >= 0
    with np.errstate(over='ignore'):  # infinite is what it then is
      loss = likely * (e.positive + e.negative)
      loss = np.sum(loss + unlikely * np.where(up, e.negative, e.positive))
    positive, negative = float(e.positive.sum()), float(e.negative.sum())
    return self.merge(
      WeightedMeans(
        positive + negative,
        positive,
        float(loss),
        float(np.dot(to_probability(e.logits), e.positive + e.negative)),
      )
    )

  def merge(self, other: 'WeightedMeans') -> 'WeightedMeans':
    """With the examples of both."""
    return WeightedMeans(
      self.weight + other.weight,
      self.positive + other.positive,
      self.loss + other.loss,
      self.prediction + other.prediction,
    )

  def result(self) -> dict[str, float]:
    """What is undefined is NaN: all of it without examples.

    Returns:
      logloss: mean binary cross-entropy in nats.
      ne: log loss as a share of that of predicting the mean label always; NaN
        where all labels are alike.
      calibration: mean prediction over mean label; NaN without a positive.
    """
    if not self.weight:
      return {'logloss': math.nan, 'ne': math.nan, 'calibration': math.nan}
    loss, entropy = self.loss / self.weight, self.entropy()
    return {
      'logloss': loss,
      'ne': loss / entropy if entropy else math.nan,
      'calibration': (
        self.prediction / self.positive if self.positive else math.nan
      ),
    }

  def entropy(self) -> float:
    """Of the mean label, in nats."""
    rate = self.positive / self.weight
    negative = self.weight - self.positive
    if not 0 < rate < 1:
      return 0.0
    return -rate * math.log(rate) - negative / self.weight * math.log1p(-rate)


def to_probability(logits: np.ndarray) -> np.ndarray:
  """The sigmoid, without overflow."""
  small = _exp_of_minus(np.abs(logits))
  return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _exp_of_minus(size: np.ndarray) -> np.ndarray:
  """exp(-size), where further out it would underflow, with a warning."""
  return np.exp(-np.minimum(size, 745.0))
