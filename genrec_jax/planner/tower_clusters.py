"""Balanced k-means: points into towers that keep bounds.

A step of k-means asks which tower each item goes to, given the centroids. With
bounds that is an assignment problem, which `tower_assignment` solves exactly,
so that the sum of squares falls from step to step. Then moves of one item and
swaps of two go on for as long as they lower it.

Guaranteed: the bounds hold, or there is an error; and no single move or swap
that keeps them is better. That no partition is better at all is not: several
starts are tried, and the best of their ends is taken.
"""

from collections.abc import Sequence

import numpy as np

from genrec_jax.planner.tower_assignment import assign_items
from genrec_jax.planner.tower_bounds import (
  Bounds,
  Item,
  check_bounds,
  count_features,
)

MOST_STEPS = 50


def cluster_evenly(
  points: np.ndarray,
  items: Sequence[Item],
  towers: int,
  bounds: Bounds,
  *,
  seed: int = 0,
  restarts: int = 8,
) -> np.ndarray:
  """Groups items so that those of a tower lie near each other.

  Args:
    points: `[I, D]`, the mean of the points of an item's features.
    items: the items; one counts as often as it has features.
    towers: how many.
    bounds: of a tower.
    seed: of the starts; the answer is a function of it.
    restarts: how many starts.

  Returns:
    `[I]` numbers of towers, in the order of the towers' first items.

  Raises:
    TowerBoundsError: no partition keeps the bounds.
  """
  check_bounds(items, towers, bounds)
  points = np.asarray(points, np.float64)
  best, least = None, np.inf
  for restart in range(restarts):
    rng = np.random.default_rng([seed, restart])
    labels = _run_kmeans(points, items, towers, bounds, rng)
    labels = improve_partition(points, items, labels, towers, bounds)
    squares = sum_squares(points, items, labels, towers)
    if squares < least - 1e-12 * (1 + abs(squares)):
      best, least = labels, squares
  return number_in_order(best)


def number_in_order(labels: np.ndarray) -> np.ndarray:
  """Numbers groups by their first member.

  >>> number_in_order(np.array([2, 0, 2, 1])).tolist()
  [0, 1, 0, 2]
  """
  first = {}
  return np.array([first.setdefault(int(x), len(first)) for x in labels])


def sum_squares(
  points: np.ndarray, items: Sequence[Item], labels: np.ndarray, towers: int
) -> float:
  """Squared distances of all features from the centroids of their towers."""
  weights = count_features(items).astype(np.float64)
  centroids = _find_centroids(points, weights, labels, towers)
  offs = np.square(points - centroids[labels]).sum(axis=1)
  return float(weights @ offs)


def _find_centroids(points, weights, labels, towers) -> np.ndarray:
  sums = np.zeros((towers, points.shape[1]))
  np.add.at(sums, labels, weights[:, None] * points)
  return sums / np.bincount(labels, weights, towers)[:, None]


def _run_kmeans(points, items, towers, bounds, rng) -> np.ndarray:
  weights = count_features(items).astype(np.float64)
  centroids, labels = _draw_centroids(points, towers, rng), None
  for _ in range(MOST_STEPS):
    offs = np.square(points[:, None] - centroids[None]).sum(axis=-1)
    # An item of three features is three times at its place.
    new = assign_items(weights[:, None] * offs, items, bounds)
    if labels is not None and (
      np.array_equal(new, labels)
      # Ties, and programs that ended early, must not go round in circles.
      or sum_squares(points, items, new, towers)
      >= sum_squares(points, items, labels, towers)
    ):
      break
    labels = new
    centroids = _find_centroids(points, weights, labels, towers)
  return labels


def _draw_centroids(points, towers: int, rng) -> np.ndarray:
  """k-means++: each new one far from those before it, by a draw."""
  chosen = [int(rng.integers(len(points)))]
  while len(chosen) < towers:
    offs = np.square(points[:, None] - points[chosen][None]).sum(-1).min(1)
    offs[chosen] = 0.0
    if offs.sum() <= 0:  # no points but those that are centroids
      rest = np.setdiff1d(np.arange(len(points)), chosen)
      chosen.append(int(rng.choice(rest)))
    else:
      chosen.append(int(rng.choice(len(points), p=offs / offs.sum())))
  return points[chosen]


def improve_partition(
  points: np.ndarray,
  items: Sequence[Item],
  labels: np.ndarray,
  towers: int,
  bounds: Bounds,
) -> np.ndarray:
  """Moves and swaps items within bounds, as long as it lowers the squares.

  Args:
    points: as in `cluster_evenly`.
    items: the items.
    labels: `[I]` a partition that keeps the bounds.
    towers: how many.
    bounds: of a tower.
  """
  labels = np.array(labels)
  weights = count_features(items).astype(np.float64)
  pulls = weights[:, None] * points
  products = pulls @ pulls.T
  least = sum_squares(points, items, labels, towers)
  while True:
    change = _weigh_changes(weights, pulls, products, labels, towers)
    change[~_find_allowed(items, labels, towers, bounds)] = np.inf
    best = change.min()
    slack = 1e-9 * (1 + least)
    while best < -slack:
      # Of those as good as any the first, whatever the last digits are.
      i, to = divmod(int(np.argmax(change <= best + slack)), change.shape[1])
      trial = labels.copy()
      if to < towers:
        trial[i] = to
      else:
        j = to - towers
        trial[i], trial[j] = labels[j], labels[i]
      if bounds.hold(items, trial, towers):
        break
      change[i, to] = np.inf
      best = change.min()
    else:
      return labels
    labels = trial
    least = sum_squares(points, items, labels, towers)


def _weigh_changes(weights, pulls, products, labels, towers) -> np.ndarray:
  """By how much the squares grow, `[I, T + I]`.

  Column t is a move of item i to tower t, column T + j a swap of i and j. The
  squares of a tower are those of its items less |sum|^2 / weight.
  """
  sums = np.zeros((towers, pulls.shape[1]))
  np.add.at(sums, labels, pulls)
  total = np.bincount(labels, weights, towers)
  square = np.square(sums).sum(axis=1)
  towards = sums @ pulls.T  # [T, I]
  own = np.diag(products)

  def weigh(square, weight):
    """|sum|^2 / weight; nothing of a tower that would be empty."""
    return np.where(weight > 0.5, square / np.maximum(weight, 0.5), 0.0)

  before = weigh(square, total)
  here = labels
  at = np.arange(len(labels))
  left = weigh(
    square[here] - 2 * towards[here, at] + own, total[here] - weights
  )
  joined = weigh(
    square[None] + 2 * towards.T + own[:, None],
    total[None] + weights[:, None],
  )
  moves = before[here][:, None] + before[None] - left[:, None] - joined
  apart = own[:, None] + own[None] - 2 * products
  mine = towards[here]  # [I, I]: of item i's tower towards item j
  changed = weigh(
    square[here][:, None] + 2 * (mine - mine[at, at][:, None]) + apart,
    total[here][:, None] + weights[None] - weights[:, None],
  )
  gone = before[here]
  swaps = gone[:, None] + gone[None] - changed - changed.T
  return np.concatenate([moves, swaps], axis=1)


def _find_allowed(items, labels, towers: int, bounds: Bounds) -> np.ndarray:
  """`[I, T + I]`, which moves and swaps keep the bounds, or nearly."""
  count = len(labels)
  elsewhere = labels[:, None] != np.arange(towers)[None]
  earlier = np.tri(count, k=-1, dtype=bool)
  allowed = np.concatenate(
    [elsewhere, earlier & (labels[:, None] != labels[None])], axis=1
  )
  sizes = count_features(items).astype(np.float64)
  limits = [(sizes, bounds.least, bounds.most)]
  limits += [(w, -np.inf, most) for w, most in bounds.limits(items)]
  for weights, least, most in limits:
    held = np.bincount(labels, weights, towers)
    left = held[labels] - weights  # of each item's tower without it
    # A little more than there may be: `Bounds.hold` has the last word, whose
    # sums are made in another order.
    slack = 1e-12 * (1 + held.max())

    def keeps(x, least=least, most=most, slack=slack):
      return (x >= least - slack) & (x <= most + slack)

    moves = keeps(left)[:, None] & keeps(held[None] + weights[:, None])
    swapped = keeps(left[:, None] + weights[None])
    allowed &= np.concatenate([moves, swapped & swapped.T], axis=1)
  return allowed
