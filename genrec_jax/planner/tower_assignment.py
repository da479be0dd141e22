"""Items to towers at the least cost, within bounds: exactly.

Where items are alike this is an assignment problem: `linear_sum_assignment` on
towers that are repeated once for each of their places. Where items weigh more
than others, or towers have bounds on bytes or load, it is an integer program,
unless the answer without those bounds keeps them.
"""

from collections.abc import Sequence

import numpy as np

from genrec_jax.planner.tower_bounds import (
  Bounds,
  Item,
  count_features,
  make_refusal,
)

MOST_NODES = 5_000  # of an integer program; its answer is good before that
_MOST_CUTS = 20


def assign_items(
  costs: np.ndarray, items: Sequence[Item], bounds: Bounds
) -> np.ndarray:
  """The assignment of items to towers that costs the least within bounds.

  >>> items = [Item((name,)) for name in 'abcd']
  >>> costs = np.array([[0, 9], [1, 9], [2, 9], [3, 9]])
  >>> assign_items(costs, items, Bounds(2, 2)).tolist()
  [0, 0, 1, 1]

  Args:
    costs: `[I, T]`, of each item in each tower.
    items: the items.
    bounds: of a tower.

  Returns:
    `[I]` numbers of towers.

  Raises:
    TowerBoundsError: no assignment keeps the bounds.
  """
  costs = np.asarray(costs, np.float64)
  towers = costs.shape[1]
  if (count_features(items) == 1).all():
    labels = _assign_places(costs, bounds)
    if labels is not None and bounds.hold(items, labels, towers):
      return labels  # the best with fewer bounds, so the best with all of them
  # The solver rounds, and may go beyond a bound by a millionth. Items that are
  # too many for a tower are then forbidden to be in one, and it is asked again.
  excesses = []
  for _ in range(_MOST_CUTS):
    labels = _assign_by_program(costs, items, bounds, excesses)
    if bounds.hold(items, labels, towers):
      return labels
    excesses += _find_excesses(items, labels, towers, bounds)
  raise make_refusal(items, towers, bounds, proven=False)


def _assign_places(costs: np.ndarray, bounds: Bounds) -> np.ndarray | None:
  """Items to places, of which a tower has `bounds.most`."""
  items, towers = costs.shape
  most = min(bounds.most, items)
  empty = towers * most - items
  if empty < 0 or towers * bounds.least > items:
    return None
  tower = np.repeat(np.arange(towers), most)
  # Nothing may leave one of the first places of a tower empty.
  needed = np.tile(np.arange(most) < bounds.least, towers)
  filler = np.where(needed, np.inf, 0.0)
  table = np.concatenate([costs[:, tower], np.tile(filler, (empty, 1))])
  from scipy import optimize  # most runs never need what it takes to load

  rows, places = optimize.linear_sum_assignment(table)
  return tower[places[np.argsort(rows)][:items]]


def _assign_by_program(
  costs: np.ndarray,
  items: Sequence[Item],
  bounds: Bounds,
  excesses: Sequence[np.ndarray],
) -> np.ndarray:
  from scipy import optimize, sparse  # as above

  count, towers = costs.shape
  # Variable i * towers + t: item i is in tower t.
  once = sparse.kron(sparse.eye(count), np.ones((1, towers)))
  constraints = [optimize.LinearConstraint(once, 1, 1)]
  sizes = count_features(items)
  held = sparse.kron(sizes[None], sparse.eye(towers))
  constraints.append(optimize.LinearConstraint(held, bounds.least, bounds.most))
  for weights, most in bounds.limits(items):
    shares = sparse.kron(weights[None] / max(most, 1e-300), sparse.eye(towers))
    constraints.append(optimize.LinearConstraint(shares, -np.inf, 1))
  for excess in excesses:
    together = sparse.kron(excess[None].astype(float), sparse.eye(towers))
    most = excess.sum() - 1
    constraints.append(optimize.LinearConstraint(together, -np.inf, most))
  answer = optimize.milp(
    costs.ravel(),
    integrality=np.ones(costs.size),
    bounds=optimize.Bounds(0, 1),
    constraints=constraints,
    # Nodes and not seconds: the answer must not depend on the machine.
    options={'node_limit': MOST_NODES},
  )
  if answer.x is None:
    raise make_refusal(items, towers, bounds, proven=answer.status == 2)
  return answer.x.reshape(count, towers).argmax(axis=1)


def _find_excesses(
  items: Sequence[Item], labels: np.ndarray, towers: int, bounds: Bounds
) -> list[np.ndarray]:
  """`[I]` for each tower beyond a bound: the items that are in it."""
  return [
    labels == tower
    for weights, most in bounds.limits(items)
    for tower in range(towers)
    if weights[labels == tower].sum() > most
  ]
