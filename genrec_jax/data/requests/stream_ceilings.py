"""What the best predictor reaches on the generated stream.

Whether a candidate is liked is decided by the step, the place of its category
in the user's order, the rating of its item and the luck of the event. A
predictor that is told some of the first three gives the exact posterior of the
label, computed from the tables of the process and not fitted. All places are
taken for equally likely; users of a stream meet some of them more often, which
changes these figures by some .001 (see `benchmarks.gr_stream_ceilings`).
"""

import numpy as np

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import stream_draws

# Axes of all tables of cases: step, place of the category, rating of the item.
TOLD_IN_A_STEP = {
  'told the rating of the item': (0, 2),
  'told the rating of the item and the place of the category': (0, 1, 2),
}


def measure_steps(options: StreamOptions) -> dict[str, list[dict]]:
  """What can be reached in each step, by what the predictor is told.

  >>> found = measure_steps(StreamOptions(steps=3, train_steps=1))
  >>> [round(at['auc'], 3) for at in found['told the rating of the item']]
  [0.856, 0.859, 0.859]

  Args:
    options: of the stream.

  Returns:
    name of `TOLD_IN_A_STEP` -> [{'step', 'ne', 'auc'}, ...]. The predictor
    knows the step, so that none that is told no more of its candidates is
    better in it.
  """
  steps = np.arange(options.steps)
  cases = tabulate_cases(steps, options.categories_per_user)
  levels = {}
  for name, told in TOLD_IN_A_STEP.items():
    best = predict_labels(cases, told, cases.shape[:-1])
    levels[name] = [
      {'step': int(step), 'ne': float(found['ne']), 'auc': float(found['auc'])}
      for step in steps
      for found in [measure_cases(cases[step], best[step])]
    ]
  return levels


def tabulate_cases(steps: np.ndarray, categories_per_user: int) -> np.ndarray:
  """`[T, K, 5, 2]` chance of each case and label; equal places, equal steps."""
  like = stream_draws.chance_to_like(steps)
  like = np.clip(like, 0, 1)  # sums of shares may be 1.0000000000000002
  like = like[:, stream_draws.find_quartiles(categories_per_user)]
  chance = stream_draws.ITEM_SHARES / len(steps) / categories_per_user
  return np.stack([1 - like, like], axis=-1) * chance[:, None]


def predict_labels(
  cases: np.ndarray, told: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray:
  """The posterior of the label in each case, if `told` axes are known."""
  hidden = tuple(axis for axis in range(3) if axis not in told)
  known = cases.sum(axis=hidden, keepdims=True)
  return np.broadcast_to(known[..., 1] / known.sum(axis=-1), shape)


def measure_cases(
  cases: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
  """NE, AUC and accuracy of predictions.

  Args:
    cases: `[..., 2]` weight of each case with each label.
    predictions: `[...]` of each case.
  """
  cases, scores = cases.reshape(-1, 2), predictions.reshape(-1)
  chances = np.stack([1 - scores, scores], axis=-1)
  # Not a minus in front: it would print -0.000 where all is known.
  loss = 0.0 - np.sum(cases * np.log(np.where(cases > 0, chances, 1.0)))
  total = cases.sum(axis=0)
  entropy = -np.sum(total * np.log(total / total.sum()))
  right = np.where(scores >= 0.5, cases[:, 1], cases[:, 0])
  negative, positive = sum_by_score(cases, scores).T
  below = np.cumsum(negative) - negative / 2
  return {
    'ne': loss / entropy,
    'auc': positive @ below / total.prod(),
    'accuracy': right.sum() / total.sum(),
  }


def sum_by_score(cases: np.ndarray, scores: np.ndarray) -> np.ndarray:
  """`[..., S, 2]` weights by score, ascending, of `[..., C, 2]` by case."""
  _, group = np.unique(scores.round(12), return_inverse=True)
  member = group[:, None] == np.arange(group.max() + 1)
  return np.einsum('...cl,cs->...sl', cases, member.astype(cases.dtype))
