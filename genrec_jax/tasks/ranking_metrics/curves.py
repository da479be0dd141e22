"""What a report draws of scores: a calibration curve and a histogram."""

import numpy as np

from genrec_jax.tasks import wilson
from genrec_jax.tasks.ranking_metrics.means import to_probability
from genrec_jax.tasks.ranking_metrics.tally import check_examples, make_tally

_Z = 1.96  # of a 95 % interval
_TAIL = 0.002  # share of the examples beyond either end of a histogram


def calibration_curve(logits, labels, weights=None, *, bins: int = 20):
  """How often what was predicted came true, in bins of predictions.

  Bins hold about as many examples each; equal predictions share a bin, so that
  there may be fewer.

  Args:
    logits: `[N]`.
    labels: `[N]`.
    weights: `[N]`, all 1 if None.
    bins: most bins.

  Returns:
    A list, from low to high predictions, of {'low', 'high': range of the
    predicted probability, 'prediction': its mean, 'rate': mean label,
    'rate_low', 'rate_high': Wilson's 95 % interval of the rate, 'weight'}.
  """
  if bins < 1:
    raise ValueError(f'report.bins is {bins}, must be positive')
  e = check_examples(logits, labels, weights)
  t = make_tally(None, e.logits, e.positive, e.negative)
  if not len(t.logit):
    return []
  weight = t.positive + t.negative
  middle = (np.cumsum(weight) - weight / 2) / weight.sum()
  place = np.minimum((middle * bins).astype(np.int64), bins - 1)
  starts = np.flatnonzero(np.diff(place, prepend=-1))
  ends = np.append(starts[1:], len(place)) - 1
  p = to_probability(t.logit)
  total = np.add.reduceat(weight, starts)
  rate = np.add.reduceat(t.positive, starts) / total
  low, high = _wilson_interval(rate, total * _examples_a_weight(e))
  columns = {
    'low': p[starts],
    'high': p[ends],
    'prediction': np.add.reduceat(weight * p, starts) / total,
    'rate': rate,
    'rate_low': low,
    'rate_high': high,
    'weight': total,
  }
  return [
    dict(zip(columns, map(float, row), strict=True))
    for row in zip(*columns.values(), strict=True)
  ]


def calibration_error(curve) -> float:
  """Mean distance of prediction and rate over a curve, by weight; or NaN."""
  total = sum(b['weight'] for b in curve)
  off = sum(b['weight'] * abs(b['prediction'] - b['rate']) for b in curve)
  return off / total if total else float('nan')


def score_histogram(logits, labels, weights=None, *, bins: int = 40) -> dict:
  """Where the logits of positive and of negative examples lie.

  Returns:
    {'edges': `bins + 1` logits, 'positive', 'negative': weight of the examples
    of each bin}; the few beyond the ends are in the outer bins. All lists are
    empty without examples.
  """
  e = check_examples(logits, labels, weights)
  if not len(e.logits):
    return {'edges': [], 'positive': [], 'negative': []}
  low, high = np.quantile(e.logits, [_TAIL, 1 - _TAIL])
  if high - low <= 1e-6 * max(abs(low), abs(high), 1):
    room = max(0.5, 1e-3 * abs(low))
    low, high = low - room, high + room
  inside = np.clip(e.logits, low, high)
  histogram = {'edges': np.linspace(low, high, bins + 1).tolist()}
  for name, weight in (('positive', e.positive), ('negative', e.negative)):
    counts, _ = np.histogram(inside, bins, (low, high), weights=weight)
    histogram[name] = counts.tolist()
  return histogram


def describe_labels(logits, labels, weights, names, *, bins: int) -> dict:
  """What a report draws of N examples of L labels, as JSON can say it.

  Args:
    logits: `[N, L]`.
    labels: `[N, L]`.
    weights: `[N]`.
    names: of the labels.
    bins: most bins of a calibration curve.

  Returns:
    label -> {'calibration', 'calibration_error', 'histogram'}.
  """
  described = {}
  for i, name in enumerate(names):
    of_label = logits[:, i], labels[:, i], weights
    curve = calibration_curve(*of_label, bins=bins)
    described[name] = {
      'calibration': curve,
      'calibration_error': calibration_error(curve),
      'histogram': score_histogram(*of_label),
    }
  return described


def _examples_a_weight(e) -> float:
  """How many equal examples a unit of weight is worth (Kish)."""
  weight = e.positive + e.negative
  return float(weight.sum() / np.square(weight).sum())


def _wilson_interval(rate, count):
  """A 95 % interval of `rate`, seen in `count` examples."""
  center, half = wilson.center_interval(rate, count, _Z)
  return np.maximum(center - half, 0), np.minimum(center + half, 1)
